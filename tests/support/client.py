"""A test client for ACP on stdio: own code, nothing of acpd's, every line kept as it came.

One thread reads stdout, the test's thread sends and waits. Every wait is for a line or for the end of the
stream, never for time; a wait that is not fulfilled fails the test with what came instead.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import itertools
import json
import os
import signal
import subprocess
import termios
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support import proc
from tests.support.wire import Checks, checks

Json = dict[str, Any]
Policy = Callable[[Json], Json | None]
"""From a request of the agent's side to the result, or None: the test answers itself."""

WAIT = 20.0
"""Seconds until a wait fails. Generous: two cores serve many processes."""


class RpcError(Exception):
    """An error answer."""

    def __init__(self, error: Json) -> None:
        super().__init__(f"{error.get('code')}: {error.get('message')}")
        self.code = int(error.get("code", 0))
        self.message = str(error.get("message", ""))
        self.data: Any = error.get("data")


@dataclass(frozen=True)
class Line:
    """One line of stdout: its place in the order of arrival, the moment (monotonic seconds), its bytes, its meaning."""

    number: int
    at: float
    raw: bytes
    message: Json

    @property
    def method(self) -> str:
        return str(self.message.get("method", ""))

    @property
    def params(self) -> Json:
        return self.message.get("params") or {}

    @property
    def update(self) -> Json:
        return self.params.get("update") or {}

    @property
    def kind(self) -> str:
        return str(self.update.get("sessionUpdate", "")) if self.method == "session/update" else ""

    @property
    def session(self) -> str:
        return str(self.params.get("sessionId", ""))

    @property
    def seq(self) -> int | None:
        """The place in the log that acpd names, if it does."""
        return (self.params.get("_meta") or {}).get("acpd.dev/seq")

    @property
    def is_notice(self) -> bool:
        """Words of acpd's own to the user, no part of the conversation: `notice`, or a marked chunk where that is unknown."""
        return self.kind == "notice" or bool((self.params.get("_meta") or {}).get("acpd.dev/notice"))

    @property
    def is_answer(self) -> bool:
        return "id" in self.message and "method" not in self.message


@dataclass
class Sent:
    """One request that was sent."""

    id: Any
    method: str
    params: Json
    at: float = field(default_factory=time.monotonic)


def allow(request: Json) -> Json | None:
    """Say yes to every permission request."""
    if request["method"] != "session/request_permission":
        return None
    options = request["params"]["options"]
    chosen = next((o for o in options if str(o["kind"]).startswith("allow")), options[0])
    return {"outcome": {"outcome": "selected", "optionId": chosen["optionId"]}}


class Client:
    """One process and what was said to it.

    `home` becomes ACPD_HOME; `mark` the unique variable of the case. Ids are numbers, or texts with
    `id_prefix`, where others use numbers on the same connection. Use as a context manager: leaving it closes stdin,
    waits for the end, kills what does not end, and fails if the peer broke a rule of the wire.
    """

    def __init__(
        self,
        command: Sequence[str],
        home: Path,
        *,
        mark: str = "",
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        policy: Policy | None = allow,
        check: bool = True,
        id_prefix: str = "",
    ) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self.home = home
        self.mark = mark or proc.new_mark()
        self.lines: list[Line] = []
        self.sent: list[Sent] = []
        self.violations: list[str] = []
        self.ended = False
        self._policy = policy
        self._seen = threading.Condition()
        self._reads = threading.Event()
        self._reads.set()
        self._send_lock = threading.Lock()
        self._unended = b""
        self._ids = itertools.count(1)
        self._id_prefix = id_prefix
        self._check: Checks = checks() if check else Checks()
        self.stderr_path = home / f"stderr-{time.time_ns()}.txt"
        full = {**os.environ, "ACPD_HOME": str(home), proc.MARK: self.mark, **(env or {})}
        with self.stderr_path.open("wb") as stderr:
            self.process = subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=full,
                cwd=cwd,
                process_group=0,
                bufsize=0,
            )
        self.pid = self.process.pid
        self._reader = threading.Thread(target=self._read, name=f"client:{self.pid}", daemon=True)
        self._reader.start()

    # Sending

    def send_bytes(self, data: bytes) -> None:
        """These bytes as they are. A peer that is gone is no error: the wait for its answer will say it."""
        assert self.process.stdin is not None
        with self._send_lock, contextlib.suppress(BrokenPipeError, ValueError):
            *whole, self._unended = (self._unended + data).split(b"\n")
            for line in whole:
                self._check.from_client(line)
            view = memoryview(data)
            while view:
                view = view[self.process.stdin.write(view) or 0 :]

    def send(self, message: Json) -> None:
        line = json.dumps({"jsonrpc": "2.0", **message}, ensure_ascii=False, separators=(",", ":"))
        self.send_bytes(line.encode() + b"\n")

    def request(self, method: str, params: Json, *, id: Any = None) -> Any:  # noqa: A002
        """Send a request; gives its id."""
        ident = id if id is not None else f"{self._id_prefix}{next(self._ids)}" if self._id_prefix else next(self._ids)
        self.sent.append(Sent(ident, method, params))
        self.send({"id": ident, "method": method, "params": params})
        return ident

    def notify(self, method: str, params: Json) -> None:
        self.send({"method": method, "params": params})

    def reply(self, request: Line, result: Json) -> None:
        self.send({"id": request.message["id"], "result": result})

    def reply_error(self, request: Line, code: int, message: str) -> None:
        self.send({"id": request.message["id"], "error": {"code": code, "message": message}})

    def pause_reading(self) -> None:
        """Take no more lines off the pipe until `resume_reading`; one read that is under way is kept back too."""
        self._reads.clear()

    def resume_reading(self) -> None:
        self._reads.set()

    def unread(self) -> int:
        """Bytes that wait in the pipe."""
        assert self.process.stdout is not None
        waiting = array.array("i", [0])
        fcntl.ioctl(self.process.stdout.fileno(), termios.FIONREAD, waiting)
        return waiting[0]

    # Waiting

    def wait(self, what: str, found: Callable[[], Any], *, within: float = WAIT) -> Any:
        """The first true value of `found`, asked again after every line. Fails when the stream ends or time is up."""
        end = time.monotonic() + within
        with self._seen:
            while not (value := found()):
                left = end - time.monotonic()
                if left <= 0 or self.ended:
                    why = "the stream ended" if self.ended else f"nothing in {within:g} s"
                    raise AssertionError(f"waited for {what}: {why}\n{self.story()}")
                self._seen.wait(left)
        return value

    def answers(self, ident: Any) -> list[Line]:
        """Every answer to this id; 1 and "1" are two ids."""
        with self._seen:
            return [line for line in self.lines if line.is_answer and same_id(line.message["id"], ident)]

    def answer(self, ident: Any, *, within: float = WAIT) -> Line:
        found: Line = self.wait(f"the answer to {ident!r}", lambda: next(iter(self.answers(ident)), None), within=within)
        return found

    def result(self, ident: Any, *, within: float = WAIT) -> Any:
        """The result for this id. Raises RpcError."""
        message = self.answer(ident, within=within).message
        if "error" in message:
            raise RpcError(message["error"])
        return message["result"]

    def call(self, method: str, params: Json, *, within: float = WAIT) -> Any:
        """Request and result in one. Raises RpcError."""
        return self.result(self.request(method, params), within=within)

    def updates(self, kind: str = "", session: str = "") -> list[Line]:
        """The session/update lines so far."""
        with self._seen:
            lines = [line for line in self.lines if line.kind]
        return [line for line in lines if kind in ("", line.kind) and session in ("", line.session)]

    def wait_update(self, kind: str = "", count: int = 1, *, session: str = "", within: float = WAIT) -> list[Line]:
        found: list[Line] = self.wait(
            f"{count} updates {kind}",
            lambda: lines if len(lines := self.updates(kind, session)) >= count else None,
            within=within,
        )
        return found

    def wait_request(self, method: str, count: int = 1, *, within: float = WAIT) -> Line:
        """The newest of at least `count` requests of the agent's side."""

        def found() -> Line | None:
            lines = [line for line in self.lines if line.method == method and "id" in line.message]
            return lines[-1] if len(lines) >= count else None

        line: Line = self.wait(f"{count} requests {method}", found, within=within)
        return line

    def wait_settled(self, idents: Sequence[Any], *, within: float = WAIT) -> None:
        """Until all of these are answered, or the process has ended and so never will."""
        end = time.monotonic() + within
        with self._seen:
            while not self.ended and not all(self.answers(ident) for ident in idents):
                open_ones = [ident for ident in idents if not self.answers(ident)]
                assert time.monotonic() < end, f"neither answered nor ended: {open_ones}: {self.story()}"
                self._seen.wait(end - time.monotonic())

    def wait_end(self, within: float = WAIT) -> bool:
        """Whether the stream ended within this time."""
        self._reader.join(within)
        return self.ended

    # What nearly every test does

    def initialize(self, **capabilities: Any) -> Json:
        result: Json = self.call(
            "initialize",
            {"protocolVersion": 1, "clientCapabilities": capabilities, "clientInfo": {"name": "test", "version": "0"}},
        )
        return result

    def new(self, cwd: Path | str) -> str:
        return str(self.call("session/new", {"cwd": str(cwd), "mcpServers": []})["sessionId"])

    def load(self, session: str, cwd: Path | str, *, within: float = WAIT) -> Any:
        return self.call("session/load", {"sessionId": session, "cwd": str(cwd), "mcpServers": []}, within=within)

    def start_prompt(self, session: str, text: str) -> Any:
        return self.request("session/prompt", {"sessionId": session, "prompt": [{"type": "text", "text": text}]})

    def prompt(self, session: str, text: str, *, within: float = WAIT) -> str:
        """A whole turn; gives its stop reason."""
        return str(self.result(self.start_prompt(session, text), within=within)["stopReason"])

    def text(self, session: str = "", kind: str = "agent_message_chunk") -> str:
        """The texts of these chunks of the conversation, joined."""
        lines = [line for line in self.updates(kind, session) if not line.is_notice]
        return "".join(str((line.update.get("content") or {}).get("text", "")) for line in lines)

    def told(self, session: str) -> str:
        """What acpd said itself to the user of this session."""
        notices = [line.update for line in self.updates(session=session) if line.is_notice]
        return "\n".join(json.dumps(update, ensure_ascii=False) for update in notices)

    # Ending

    def kill(self) -> None:
        """Kill -9 the process itself, not its group; afterwards every line it wrote has been read."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(WAIT)
        self._reader.join(WAIT)

    def close_stdin(self) -> None:
        assert self.process.stdin is not None
        with self._send_lock, contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()

    def wait_exit(self, within: float = WAIT) -> int:
        """Its exit code. Fails if it does not end in time."""
        try:
            code = self.process.wait(within)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {within:g} s\n{self.story()}") from None
        self._reader.join(WAIT)
        return code

    def stderr(self) -> str:
        return self.stderr_path.read_text(errors="replace")

    def stop(self) -> None:
        """Free everything, whatever state it is in."""
        self.resume_reading()
        self.close_stdin()
        try:
            self.process.wait(WAIT)
        except subprocess.TimeoutExpired:
            self.violations.append(f"did not end within {WAIT:g} s of the end of its stdin")
            self.process.kill()
            self.process.wait()
        self._reader.join(5)
        if self._reader.is_alive():
            self.violations.append("a child of it keeps its stdout open")
        elif self.process.stdout is not None:
            self.process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()
        if kind is None:
            self.assert_clean()

    def assert_clean(self) -> None:
        """No rule of the wire was broken: only JSON objects, at most one answer an id, valid messages, no traceback."""
        assert [] == self.violations, "\n".join(self.violations[:5])
        twice = [s.id for s in self.sent if len(self.answers(s.id)) > sum(same_id(o.id, s.id) for o in self.sent)]
        assert [] == twice, f"answered more than once: {twice}"
        assert "Traceback (most recent call last)" not in self.stderr(), self.stderr()[-3000:]

    def forget(self) -> list[Json]:
        """Drop the lines and the answered requests so far: a long run keeps no history. Checks what it drops; gives the answers
        among it, which are seen nowhere else from now on.
        """
        with self._seen:
            answers = [line.message for line in self.lines if line.is_answer]
            answered: dict[str, int] = {}
            for message in answers:
                key = json.dumps(message["id"])
                answered[key] = answered.get(key, 0) + 1
            twice = [sent.id for sent in self.sent if answered.get(json.dumps(sent.id), 0) > 1]
            self.sent = [sent for sent in self.sent if json.dumps(sent.id) not in answered]
            self.lines = []
        assert [] == twice, f"answered more than once: {twice}"
        assert [] == self.violations, "\n".join(self.violations[:5])
        return answers

    def story(self, last: int = 12) -> str:
        """The end of the conversation and of stderr, for a failure's message."""
        lines = "\n".join(f"  <- {line.raw[:300].decode(errors='replace').rstrip()}" for line in self.lines[-last:])
        return f"{lines}\n  stderr: {self.stderr()[-1500:]}"

    # The reader's thread

    def _read(self) -> None:
        assert self.process.stdout is not None
        for raw in _lines(self.process.stdout.fileno()):
            self._reads.wait()
            self._take(raw)
        with self._seen:
            self.ended = True
            self._seen.notify_all()

    def _take(self, raw: bytes) -> None:
        try:
            message = json.loads(raw.decode("utf-8"), parse_constant=_no_constant)
        except ValueError:
            message = None
        if not isinstance(message, dict) or not raw.endswith(b"\n"):
            self._note(f"stdout line is no JSON object: {raw[:200]!r}")
            return
        self._note(self._check.to_client(raw))
        with self._seen:
            line = Line(len(self.lines), time.monotonic(), raw, message)
            self.lines.append(line)
            self._seen.notify_all()
        if "method" in message and "id" in message and self._policy is not None:
            result = self._policy(message)
            if result is not None:
                self.send({"id": message["id"], "result": result})

    def _note(self, violation: str | None) -> None:
        if violation:
            self.violations.append(violation)


def same_id(one: Any, other: Any) -> bool:
    return type(one) is type(other) and one == other


def _no_constant(name: str) -> None:
    raise ValueError(name)


def _lines(descriptor: int) -> Iterator[bytes]:
    """Lines as they come; a torn one at the end is given too unless the process was cut off in it (nothing follows)."""
    parts: list[bytes] = []
    while chunk := os.read(descriptor, 1 << 16):
        head, newline, tail = chunk.rpartition(b"\n")
        if not newline:
            parts.append(chunk)
            continue
        whole = b"".join((*parts, head))
        yield from (line + b"\n" for line in whole.split(b"\n"))
        parts = [tail] if tail else []
