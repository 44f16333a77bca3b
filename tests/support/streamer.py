"""An ACP agent that streams a seeded mixture of updates: `stream SEED COUNT [MICROSECONDS]` in the prompt. `ask NAME`: it asks
for a permission and says what it heard.

Standard library only; run as a program. STREAM_TRACE=FILE: every prompt that it got and every update that it sent
is a line there, written before it is sent; `%p` in the name is its pid. STREAM_DEAF=1: it ignores SIGTERM, the end of
stdin and broken pipes.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Json = dict[str, Any]

ODD = (
    '{ "content":{"text":"\\u00e9 \\ud83d\\ude00","type":"text","_meta":{"n":1.0,"e":1.50e2,"big":12345678901234567890}} ,'
    ' "sessionUpdate" :"agent_message_chunk"}'
)
"""Spelled as no encoder of ours would: it must come through byte for byte."""


def updates(seed: int, count: int) -> Iterator[str]:
    """The updates of one turn as JSON text: odd spellings included, because those must survive as they are."""
    rng = random.Random(seed)
    call = 0
    for n in range(count):
        kind = rng.choice(["say", "say", "say", "say id", "think", "tool", "tool", "plan", "odd", "blank"])
        if kind == "say":
            yield _chunk("agent_message_chunk", f"w{seed}-{n} ")
        elif kind == "say id":
            yield _chunk("agent_message_chunk", f"m{n} ", messageId=f"own-{seed}-{n // 4}")
        elif kind == "think":
            yield _chunk("agent_thought_chunk", f"t{n} ")
        elif kind == "tool":
            call += 1
            yield from _tool(f"call-{seed}-{call}", rng)
        elif kind == "plan":
            entries = [{"content": f"step {k}", "priority": "high", "status": "pending"} for k in range(rng.randint(1, 4))]
            yield json.dumps({"sessionUpdate": "plan", "entries": entries})
        elif kind == "odd":
            yield ODD
        else:
            yield _chunk("agent_message_chunk", "\u2028 \u4e2d\u6587 \x00")


def _chunk(kind: str, text: str, **more: str) -> str:
    return json.dumps({"sessionUpdate": kind, "content": {"type": "text", "text": text}, **more}, ensure_ascii=False)


def _tool(call: str, rng: random.Random) -> Iterator[str]:
    yield json.dumps({"sessionUpdate": "tool_call", "toolCallId": call, "title": "Read", "kind": "read", "status": "pending"})
    if rng.random() < 0.7:
        content = [{"type": "content", "content": {"type": "text", "text": "out " * rng.randint(1, 200)}}]
        yield json.dumps(
            {"sessionUpdate": "tool_call_update", "toolCallId": call, "status": "in_progress", "rawInput": {"x": [1, None]}}
        )
        yield json.dumps({"sessionUpdate": "tool_call_update", "toolCallId": call, "status": "completed", "content": content})


class Agent:
    """One connection."""

    def __init__(self) -> None:
        self._trace = os.environ.get("STREAM_TRACE", "").replace("%p", str(os.getpid()))
        self._made = 0

    def write(self, text: str) -> None:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    def trace(self, text: str) -> None:
        if self._trace:
            with Path(self._trace).open("a", encoding="utf-8") as file:
                file.write(text + "\n")

    def handle(self, message: Json) -> None:
        method, params = message.get("method"), message.get("params") or {}
        if method == "session/prompt":
            self._turn(message["id"], params)
            return
        results: dict[str, Json] = {
            "initialize": {
                "protocolVersion": 1,
                "agentCapabilities": {"loadSession": True, "sessionCapabilities": {"resume": {}}},
                "agentInfo": {"name": "streamer", "version": "1"},
                "authMethods": [],
            },
            "session/load": {},
            "session/resume": {},
        }
        if method == "session/new":
            self._made += 1
            results["session/new"] = {"sessionId": f"s-{os.getpid()}-{self._made}"}
        if "id" in message and method in results:
            self.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": results[method]}))
        elif "id" in message and method:
            error = {"code": -32601, "message": "no such method"}
            self.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], "error": error}))

    def _turn(self, ident: Any, params: Json) -> None:
        text = " ".join(block.get("text", "") for block in params["prompt"])
        self.trace("prompt " + json.dumps(text))
        words = text.split()
        if words and words[0] == "stream":
            pause = int(words[3]) / 1e6 if len(words) > 3 else 0
            for update in updates(int(words[1]), int(words[2])):
                self._update(params["sessionId"], update)
                time.sleep(pause)
        elif words and words[0] == "ask":
            self._ask(params["sessionId"], words[1])
        else:
            self._update(params["sessionId"], _chunk("agent_message_chunk", text))
        self.write(json.dumps({"jsonrpc": "2.0", "id": ident, "result": {"stopReason": "end_turn"}}))

    def _ask(self, session: str, name: str) -> None:
        """Nothing else is read meanwhile but the answer, and a cancel, which is answered by whoever was asked."""
        call = {"toolCallId": f"call-{name}", "title": "Write", "kind": "edit", "status": "pending"}
        self._update(session, json.dumps({"sessionUpdate": "tool_call", **call}))
        options = [{"optionId": "yes", "name": "Yes", "kind": "allow_once"}]
        params = {"sessionId": session, "toolCall": call, "options": options}
        self.write(
            json.dumps({"jsonrpc": "2.0", "id": f"ask-{name}", "method": "session/request_permission", "params": params})
        )
        for line in sys.stdin:
            message = json.loads(line)
            if message.get("id") == f"ask-{name}":
                outcome = (message.get("result") or {}).get("outcome") or {}
                heard = outcome.get("optionId") or outcome.get("outcome") or "an error"
                self._update(session, json.dumps({"sessionUpdate": "tool_call_update", **call, "status": "completed"}))
                self._update(session, _chunk("agent_message_chunk", f"{name}: {heard} "))
                return
        os._exit(0)  # nobody is there any more

    def _update(self, session: str, update: str) -> None:
        self.trace("update " + update)
        self.write(
            f'{{"jsonrpc":"2.0","method":"session/update","params":{{"sessionId":{json.dumps(session)},"update":{update}}}}}'
        )


def main() -> None:
    agent = Agent()
    deaf = bool(os.environ.get("STREAM_DEAF"))
    if deaf:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        for line in sys.stdin:
            agent.handle(json.loads(line))
    except BrokenPipeError:
        sys.stderr.close()
    if deaf:
        while True:
            signal.pause()
    os._exit(0)


if __name__ == "__main__":
    main()
