"""A bench agent whose updates do not fold: a replay of N of them is N updates, however it joins messages.

The prompt `/mixed N SIZE` answers with N updates of about SIZE characters: thoughts, messages and tool calls as in a
long coding conversation, each message with an id of its own, each tool call complete in one update. Any other prompt is
one update. Deterministic, standard library only, blocking: run it with -I -S.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator

BLOCK = 64 * 1024
WORDS = ["the", "parser", "keeps", "a", "buffer", "of", "lines", "and", "the", "reader", "waits", "until", "one", "is", "whole"]


def texts(size: int) -> list[str]:
    """JSON texts from a quarter of `size` to twice as much; their mean is `size`."""
    lengths = [max(1, size * part // 4) for part in (1, 2, 3, 4, 4, 4, 6, 8)]
    found: list[str] = []
    for turn in range(8):
        for length in lengths:
            words = " ".join(WORDS[(turn + index) % len(WORDS)] for index in range(length // 2 + 1))
            found.append(json.dumps(words[:length]))
    return found


def updates(count: int, size: int) -> Iterator[str]:
    pool = texts(size)
    for index in range(count):
        text, slot = pool[index * 7 % len(pool)], index % 20
        if slot in (5, 6, 11, 12):
            what = (
                f'"title":"Edit","kind":"edit","status":"completed","rawInput":{{"path":"/src/{index % 977}.py","new":{text}}}'
            )
            yield f'{{"sessionUpdate":"tool_call","toolCallId":"call_{index:08d}",{what}}}'
            continue
        kind = "agent_thought_chunk" if slot in (1, 2) else "agent_message_chunk"
        yield f'{{"sessionUpdate":"{kind}","content":{{"type":"text","text":{text}}},"messageId":"m_{index:08d}"}}'


def write(lines: list[str]) -> None:
    view = memoryview("".join(lines).encode())
    while view:
        view = view[os.write(1, view) :]


def prompt(session: str, text: str) -> None:
    words = text.split()
    count, size = (int(words[1]), int(words[2])) if words and words[0] == "/mixed" else (1, 20)
    head = f'{{"jsonrpc":"2.0","method":"session/update","params":{{"sessionId":{json.dumps(session)},"update":'
    pending: list[str] = []
    held = 0
    for update in updates(count, size):
        pending.append(f"{head}{update}}}}}\n")
        held += len(pending[-1])
        if held >= BLOCK:
            write(pending)
            pending, held = [], 0
    write(pending)


def main() -> None:
    made = 0
    for line in sys.stdin.buffer:
        message = json.loads(line)
        method, params = message.get("method"), message.get("params") or {}
        if "id" not in message or method is None:
            continue
        result: dict[str, object] = {}
        if method == "initialize":
            result = {"protocolVersion": 1, "agentCapabilities": {"sessionCapabilities": {"resume": {}}}}
        elif method == "session/new":
            made += 1
            result = {"sessionId": f"mixed-{os.getpid()}-{made}"}
        elif method == "session/prompt":
            prompt(params["sessionId"], " ".join(block.get("text", "") for block in params["prompt"]))
            result = {"stopReason": "end_turn"}
        write([json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}) + "\n"])


if __name__ == "__main__":
    main()
