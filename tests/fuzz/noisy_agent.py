"""An ACP agent that says what nobody asked for: `fuzz SEED COUNT` in the prompt. Ends its turn properly, nearly always."""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.fuzz import lines

FROM_AGENT = [
    "session/update",
    "session/request_permission",
    "fs/read_text_file",
    "terminal/create",
    "elicitation/create",
    "_x/y",
    "nope",
]


def write(data: bytes) -> None:
    sys.stdout.buffer.write(data + b"\n")
    sys.stdout.buffer.flush()


def answer(message: dict[str, Any], result: dict[str, Any]) -> None:
    write(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}).encode())


def noise(rng: random.Random, session: str) -> bytes:
    """One line of any quality. Never a right answer to an open request: ids are texts."""
    pick = rng.random()
    if pick < 0.55:
        update = lines.update(rng)
        return json.dumps(
            {"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": session, "update": update}}
        ).encode()
    if pick < 0.75:
        return lines.message(rng, [session], FROM_AGENT)
    if pick < 0.9:
        return lines.mutate(rng, lines.message(rng, [session], FROM_AGENT))
    return bytes(rng.randrange(256) for _ in range(rng.randrange(200)))


def turn(message: dict[str, Any]) -> None:
    params = message["params"]
    words = str(params["prompt"][0].get("text", "")).split()
    if words[:1] == ["fuzz"]:
        rng = random.Random(int(words[1]))
        for _ in range(int(words[2])):
            write(noise(rng, params["sessionId"]).replace(b"\n", b" "))
        if rng.random() < 0.02:
            os._exit(7)
    answer(message, {"stopReason": "end_turn"})


def main() -> None:
    results: dict[str, dict[str, Any]] = {
        "initialize": {
            "protocolVersion": 1,
            "agentCapabilities": {"loadSession": True},
            "agentInfo": {"name": "noisy", "version": "1"},
        },
        "session/new": {"sessionId": f"n-{os.getpid()}"},
        "session/load": {},
    }
    for line in sys.stdin.buffer:
        message = json.loads(line)
        method = message.get("method")
        if method == "session/prompt":
            turn(message)
        elif method in results:
            answer(message, results[method])
        elif "id" in message and method:
            write(json.dumps({"jsonrpc": "2.0", "id": message["id"], "error": {"code": -32601, "message": "no"}}).encode())


if __name__ == "__main__":
    main()
