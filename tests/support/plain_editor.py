"""A blocking client for tests: it drives one agent process, answers its requests from a table, keeps what it saw."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import threading
from collections.abc import Callable, Generator, Sequence
from typing import Any

from tests.support.paths import ROOT

Json = dict[str, Any]
Answer = Callable[[Json], Json]
PATIENCE = 20  # seconds: a hang is a failure, not a wait
CAPABILITIES: Json = {
    "fs": {"readTextFile": True, "writeTextFile": True},
    "terminal": True,
    "elicitation": {"form": {}, "url": {}},
    "session": {"configOptions": {"boolean": {}}},
    "_meta": {"acpd.dev/state": {}},
}


class PlainEditor:
    """One agent process and the connection to it. Raises EOFError when the agent ends, queue.Empty when it is silent."""

    def __init__(self, command: Sequence[str]) -> None:
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, bufsize=0)
        self.answers: dict[str, Answer] = {}
        self.updates: list[Json] = []
        self.requests: list[Json] = []
        self.notes: list[Json] = []
        self.made = 0
        self._frames: queue.Queue[bytes] = queue.Queue()
        self._pump_thread = threading.Thread(target=self._pump, daemon=True)
        self._pump_thread.start()

    def _pump(self) -> None:
        assert self.process.stdout is not None
        rest = b""
        while data := os.read(self.process.stdout.fileno(), 1 << 16):  # an unbuffered file's lines are read byte by byte
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                self._frames.put(line + b"\n")
        self._frames.put(b"")

    def send(self, message: Json) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}, separators=(",", ":")).encode() + b"\n")

    def start(self, method: str, params: Json) -> int:
        self.made += 1
        self.send({"id": self.made, "method": method, "params": params})
        return self.made

    def next(self) -> Json:
        line = self._frames.get(timeout=PATIENCE)
        if not line:
            raise EOFError
        message: Json = json.loads(line)
        return message

    def until(self, wanted: Callable[[Json], bool]) -> Json:
        """Take frames, answering requests, up to the first that is wanted."""
        while True:
            message = self.next()
            if message.get("method") == "session/update":
                self.updates.append(message["params"])
            elif "method" in message and "id" in message:
                self.requests.append(message)
                if message["method"] in self.answers:
                    self.send({"id": message["id"], **self.answers[message["method"]](message["params"])})
            elif "method" in message:
                self.notes.append(message)
            if wanted(message):
                return message

    def answer(self, identifier: int) -> Json:
        return self.until(lambda message: "method" not in message and message.get("id") == identifier)

    def call(self, method: str, params: Json) -> Json:
        return self.answer(self.start(method, params))

    def initialize(self, capabilities: Json | None = None) -> Json:
        """As a client that keeps state, whatever else it can."""
        able = CAPABILITIES if capabilities is None else {"_meta": CAPABILITIES["_meta"], **capabilities}
        params = {"protocolVersion": 1, "clientCapabilities": able}
        result: Json = self.call("initialize", params)["result"]
        return result

    def new(self) -> str:
        name: str = self.call("session/new", {"cwd": "/tmp", "mcpServers": []})["result"]["sessionId"]
        return name

    def begin(self, session: str, text: str) -> int:
        return self.start("session/prompt", {"sessionId": session, "prompt": [{"type": "text", "text": text}]})

    def prompt(self, session: str, text: str) -> Json:
        return self.answer(self.begin(session, text))

    def says(self, session: str, text: str) -> list[str]:
        """The texts of the agent's messages of one turn that ends well."""
        self.updates.clear()
        assert {"stopReason": "end_turn"} == self.prompt(session, text).get("result")
        return [update["content"].get("text", "") for update in self.kinds("agent_message_chunk")]

    def kinds(self, *wanted: str) -> list[Json]:
        return [params["update"] for params in self.updates if params["update"]["sessionUpdate"] in wanted]

    def close(self) -> int:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        code = self.process.wait(PATIENCE)
        self._pump_thread.join(PATIENCE)  # a descriptor that is closed under a reader would be somebody else's next
        self.process.stdout.close()
        return code


@contextlib.contextmanager
def editors() -> Generator[Callable[[Sequence[str]], PlainEditor]]:
    """A function that starts agents; all are ended at the end."""
    started: list[PlainEditor] = []

    def start(command: Sequence[str]) -> PlainEditor:
        started.append(PlainEditor(command))
        return started[-1]

    try:
        yield start
    finally:
        for editor in started:
            editor.process.kill()
            editor.close()
