"""One client's place on a session, as a test steers it: what it sends, and all that it was told, in order.

A seat is a connection. What it is told is one list of events, whoever the client is: `update` (params of session/update),
`asked` (id and params of session/request_permission), `withdrawn` (the id of a `$/cancel_request`), `answered` (key, and
result or error).
"""

from __future__ import annotations

import abc
import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from tests.support.wire import checks

Json = dict[str, Any]
T = TypeVar("T")

WAIT = 30.0
"""Seconds until a wait fails. Generous: two cores serve many processes."""


class Changes:
    """Whoever is told something says so here."""

    def __init__(self) -> None:
        self.condition = threading.Condition()

    def until(self, what: str, found: Callable[[], T | None], story: Callable[[], str]) -> T:
        """What `found` gives as soon as it is true; it is asked again after each event.

        A turn that nobody watches makes no events, so it is asked again every 20 ms too.
        """
        end = time.monotonic() + WAIT
        with self.condition:
            while not (value := found()):
                assert time.monotonic() < end, f"waited {WAIT:g} s for {what}\n{story()}"
                self.condition.wait(0.02)
        return value


class Seat(abc.ABC):
    """See the module. A key names one request of this connection."""

    def __init__(self, who: str, changes: Changes) -> None:
        self.who = who
        self.changes = changes
        self.told: list[Json] = []
        self.left = False

    def tell(self, event: str, **members: Any) -> None:
        """What came from acpd, in the reader's thread."""
        with self.changes.condition:
            self.told.append({"event": event, **members})
            self.changes.condition.notify_all()

    def of(self, event: str) -> list[Json]:
        with self.changes.condition:
            return [each for each in self.told if each["event"] == event]

    def answers(self, key: Any) -> list[Json]:
        return [each for each in self.of("answered") if each["key"] == key]

    def result(self, key: Any) -> Json:
        """The answer to this request, as an event."""
        return self.changes.until(f"the answer to {key} of {self.who}", lambda: next(iter(self.answers(key)), None), self.story)

    def enter(self, how: str, session: str, cwd: Path) -> str:
        """session/new, load or resume (`how`), up to its answer; gives the session's id."""
        with self.changes.condition:
            self.told.clear()
        answer = self.result(self.begin(how, session, cwd))
        assert "result" in answer, f"{self.who}: {how} of {session or cwd}: {answer}"
        return str((answer["result"] or {}).get("sessionId", session))

    def barrier(self) -> None:
        """Until all that was sent before has been looked at: an unknown method is refused in the order of the lines."""
        answer = self.result(self.nonsense())
        assert "error" in answer, f"{self.who}: {answer}"

    def story(self) -> str:
        return f"{self.who} was told: {json.dumps(self.told[-12:])[-3000:]}"

    @abc.abstractmethod
    def begin(self, how: str, session: str, cwd: Path) -> Any:
        """Send session/new, load or resume; gives its key."""

    @abc.abstractmethod
    def prompt(self, session: str, text: str) -> Any:
        """Send a prompt; gives its key."""

    @abc.abstractmethod
    def nonsense(self) -> Any:
        """Send a request of an unknown method; gives its key."""

    @abc.abstractmethod
    def cancel(self, session: str) -> None: ...

    @abc.abstractmethod
    def choose(self, ask: Json, option: str) -> None:
        """Answer what it was asked; `ask` is the event."""

    @abc.abstractmethod
    def close_session(self, session: str) -> None:
        """session/close, up to its answer."""

    @abc.abstractmethod
    def close(self) -> None:
        """Leave as a client leaves that ends."""

    @abc.abstractmethod
    def kill(self) -> None:
        """Be gone at once."""

    def stall(self) -> None:
        """Read nothing more until `read_on`."""

    def read_on(self) -> None: ...


class SocketSeat(Seat):
    """A plain ndjson client on the daemon's socket, every line of it held against the schema."""

    def __init__(self, who: str, changes: Changes, path: Path) -> None:
        super().__init__(who, changes)
        self.violations: list[str] = []
        self._checks = checks()
        self._number = 0
        self._reads = threading.Event()
        self._reads.set()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(str(path))
        self._reader = threading.Thread(target=self._read, name=f"seat:{who}", daemon=True)
        self._reader.start()
        info = {"name": who, "version": "0"}
        self.result(self._request("initialize", {"protocolVersion": 1, "clientCapabilities": {}, "clientInfo": info}))

    def begin(self, how: str, session: str, cwd: Path) -> Any:
        named = {} if how == "new" else {"sessionId": session}
        return self._request(f"session/{how}", {**named, "cwd": str(cwd), "mcpServers": []})

    def prompt(self, session: str, text: str) -> Any:
        return self._request("session/prompt", {"sessionId": session, "prompt": [{"type": "text", "text": text}]})

    def nonsense(self) -> Any:
        return self._request("_acpd/nonsense", {})

    def cancel(self, session: str) -> None:
        self._send({"method": "session/cancel", "params": {"sessionId": session}})

    def choose(self, ask: Json, option: str) -> None:
        self._send({"id": ask["id"], "result": {"outcome": {"outcome": "selected", "optionId": option}}})

    def close_session(self, session: str) -> None:
        assert "result" in self.result(self._request("session/close", {"sessionId": session}))

    def close(self) -> None:
        """It ends its half and reads to the end."""
        self.left = True
        self.read_on()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
        self._reader.join(WAIT)
        assert not self._reader.is_alive(), f"{self.who}: the connection does not end"
        self._socket.close()
        assert [] == self.violations, "\n".join(self.violations[:3])

    def kill(self) -> None:
        self.left = True
        self.read_on()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._reader.join(WAIT)
        self._socket.close()

    def stall(self) -> None:
        self._reads.clear()

    def read_on(self) -> None:
        self._reads.set()

    def _request(self, method: str, params: Json) -> Any:
        self._number += 1
        self._send({"id": self._number, "method": method, "params": params})
        return self._number

    def _send(self, message: Json) -> None:
        line = json.dumps({"jsonrpc": "2.0", **message}).encode()
        self._checks.from_client(line)
        self._socket.sendall(line + b"\n")

    def _read(self) -> None:
        held = b""
        while self._reads.wait() and (data := self._receive()):
            *lines, held = (held + data).split(b"\n")
            for line in lines:
                self._take(line)

    def _receive(self) -> bytes:
        try:
            return self._socket.recv(1 << 16)
        except OSError:
            return b""

    def _take(self, line: bytes) -> None:
        if (wrong := self._checks.to_client(line)) is not None:
            self.violations.append(wrong)
        message = json.loads(line)
        match message.get("method"):
            case "session/update":
                self.tell("update", params=message["params"])
            case "session/request_permission":
                self.tell("asked", id=message["id"], params=message["params"])
            case "$/cancel_request":
                self.tell("withdrawn", id=message["params"]["requestId"])
            case None:
                self.tell("answered", key=message["id"], **{k: message[k] for k in ("result", "error") if k in message})
            case other:
                self.violations.append(f"{other} was not expected")
