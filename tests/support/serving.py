"""`acpd serve` in a home of its own, and plain clients on its socket."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.cli.acpd import ACPD, environment
from tests.support import proc

Json = dict[str, Any]


class Serving:
    """The daemon, until the end of the block. Its only agent is `agent`; `toml` is the rest of its configuration."""

    def __init__(self, home: Path, agent: Sequence[str], *, toml: str = "", env: Mapping[str, str] = {}) -> None:
        self.home = home
        self.mark = proc.new_mark()
        self._connected: list[socket.socket] = []
        self.path = str(home / "run" / "acpd.sock")
        config = home / "config" / "acpd.toml"
        config.parent.mkdir(parents=True, exist_ok=True)
        config.write_text(f"[agents.one]\ncommand = {json.dumps(list(agent))}\n{toml}")
        ready, theirs = os.pipe()
        self.env = {**environment(home), proc.MARK: self.mark, **env}
        del self.env["ACPD_STANDALONE"]
        self.process = subprocess.Popen(
            [*ACPD, "serve"],
            env={**self.env, "ACPD_READY_FD": str(theirs)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=sys.stderr,
            pass_fds=(theirs,),
        )
        os.close(theirs)
        with os.fdopen(ready, "rb") as said:
            answer = said.readline()
        assert answer == b"ready\n", answer
        self.pid = self.process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for each in self._connected:
            each.close()
        self.process.terminate()
        try:
            code = self.process.wait(30)
        finally:
            proc.kill_marked(self.mark)
        if error is None:
            assert code == 0
            proc.assert_none_left(self.mark)

    def connect(self) -> socket.socket:
        """A stream that has said nothing. It is closed at the end, if not before."""
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._connected.append(made)
        made.settimeout(60)
        made.connect(self.path)
        return made

    def client(self) -> Plain:
        """One that is initialized."""
        made = Plain(self.connect())
        made.ask("initialize", {"protocolVersion": 1, "clientCapabilities": {}})
        return made

    def rss(self) -> int:
        return proc.rss(self.pid)


class Plain:
    """A client without a shim. Blocking: it reads when it waits for an answer, and not before."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.number = 0
        self.others: list[Json] = []
        """What came before answers."""
        self._rest = b""

    def send(self, method: str, params: Json) -> int:
        self.number += 1
        self.sock.sendall(line(self.number, method, params))
        return self.number

    def ask(self, method: str, params: Json) -> Json:
        """The whole answer."""
        return self.answer(self.send(method, params))

    def ask_first(self) -> Json:
        """What the daemon says to who has said nothing yet: a result, or why it is refused."""
        self.send("initialize", {"protocolVersion": 1})
        return self.read()

    def answer(self, number: int) -> Json:
        while True:
            message = self.read()
            if message.get("id") == number and "method" not in message:
                return message
            self.others.append(message)

    def read(self) -> Json:
        while b"\n" not in self._rest:
            data = self.sock.recv(1 << 16)
            assert data, "the daemon hung up"
            self._rest += data
        first, _, self._rest = self._rest.partition(b"\n")
        found: Json = json.loads(first)
        return found

    def new(self, cwd: Path) -> str:
        return str(self.ask("session/new", {"cwd": str(cwd), "mcpServers": []})["result"]["sessionId"])

    def prompt(self, session: str, text: str = "hi") -> Json:
        return self.ask("session/prompt", prompt(session, text))

    def close(self) -> None:
        self.sock.close()


def line(number: int, method: str, params: Json) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}).encode() + b"\n"


def prompt(session: str, text: str = "hi") -> Json:
    return {"sessionId": session, "prompt": [{"type": "text", "text": text}]}
