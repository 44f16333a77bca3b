"""acpd's own log: lines about acpd itself, never the contents of a session.

A thread renders and writes the lines. Who logs waits for nothing: not for structlog, which is imported with the first
line (17 ms), not for an editor that does not read stderr, not for a disk.
"""

from __future__ import annotations

import os
import queue
import re
import select
import threading
import time
from collections.abc import Callable, Mapping
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from acpd import config
from acpd.agents.pool import Log
from acpd.stores import resolve
from acpd.systemd import is_journal

if TYPE_CHECKING:
    from structlog.typing import EventDict, Processor

LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}
PRIORITIES = {"debug": 7, "info": 6, "warning": 4, "error": 3}
"""Of syslog(3): what `journalctl -p` goes by."""
MIB = 1 << 20
_FILE = "acpd_backends.rotated:RotatedFile"
# C0 but newline, which logfmt escapes itself, DEL, C1, what reorders text, and halves of characters.
_UNSAFE = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


class Form(Enum):
    LOGFMT = "logfmt"
    JOURNAL = "logfmt behind a priority, without the time: the journal has its own"
    JSON = "a JSON object on each line"


class Sink(Protocol):
    """Where lines go. Called by one thread; may block."""

    def write(self, data: bytes, /) -> None:
        """All of it. Raises OSError: it is not written, or not all of it."""
        ...

    def reopen(self) -> None:
        """Somebody may have moved the file away."""
        ...

    def close(self) -> None: ...


class Stderr:
    FD = 2

    def write(self, data: bytes) -> None:
        while data:
            try:
                data = data[os.write(self.FD, data) :]
            except BlockingIOError:
                select.select([], [self.FD], [])

    def reopen(self) -> None:
        """It is open as long as the process."""

    def close(self) -> None:
        """It is not ours alone."""


class Line(NamedTuple):
    at: float
    level: str
    event: str
    values: dict[str, object]


class Writer:
    """The thread. Lines that find no room, or cannot be written, are dropped, and counted in a line of their own later."""

    ROOM = 1000

    def __init__(self, form: Form, sink: Callable[[], Sink]) -> None:
        self._form = form
        self._make_sink = sink
        self._lines: queue.SimpleQueue[Line | Callable[[Sink], None] | None] = queue.SimpleQueue()
        self._dropped = self._told = 0
        self._why = "nobody read it"
        self._thread = threading.Thread(target=self._run, daemon=True, name="log")
        self._thread.start()

    def put(self, line: Line) -> None:
        if self._lines.qsize() < self.ROOM:
            self._lines.put(line)
        else:
            self._dropped += 1

    def reopen(self) -> None:
        self._lines.put(lambda sink: sink.reopen())

    def close(self, seconds: float) -> None:
        """Wait that long for what is not written yet."""
        self._lines.put(None)
        self._thread.join(seconds)

    def _run(self) -> None:
        render, sink = _renderer(self._form), self._make_sink()
        while (item := self._lines.get()) is not None:
            if not isinstance(item, Line):
                item(sink)
                continue
            try:
                data = render(item)
            except Exception as error:  # noqa: BLE001  a value that cannot be shown must not end the log
                self._why = f"{item.event} cannot be written: {type(error).__name__}"
                self._dropped += 1
            else:
                self._write(sink, data)
            if self._lines.empty():
                self._tell(sink, render)
        self._tell(sink, render)
        sink.close()

    def _tell(self, sink: Sink, render: Callable[[Line], bytes]) -> None:
        count = self._dropped - self._told
        if count:
            values: dict[str, object] = {"cause": self._why, "count": count}
            if self._write(sink, render(Line(time.time(), "warning", "lines of this log were dropped", values)), lost=0):
                self._told += count
                self._why = "nobody read it"

    def _write(self, sink: Sink, data: bytes, lost: int = 1) -> bool:
        """`lost`: the lines that are dropped if it fails."""
        try:
            sink.write(data)
        except OSError as error:
            self._why = error.strerror or str(error)
            self._dropped += lost
            return False
        return True


class Logger:
    """`log("info", "agent started", agent="codex")`. A start logs nothing: the thread starts with the first line."""

    CLOSE_SECONDS = 1.0
    """How long the end of acpd waits for who reads the log."""

    def __init__(self, level: str, form: Form = Form.LOGFMT, sink: Callable[[], Sink] = Stderr) -> None:
        self._threshold = LEVELS[level]
        self._form = form
        self._sink = sink
        self._writer: Writer | None = None

    @classmethod
    def of_service(cls, settings: config.Log, store: str, env: Mapping[str, str]) -> Logger:
        """Of a daemon: the journal or the terminal, where stderr is one; else the file."""
        if is_journal(Stderr.FD, env):
            return cls(settings.level, Form.JOURNAL)
        if os.isatty(Stderr.FD):
            return cls(settings.level)
        made = partial(_rotated, path_of(settings, store), size=settings.size * MIB, keep=settings.keep)
        return cls(settings.level, Form.JSON, made)

    def __call__(self, level: str, event: str, /, **values: object) -> None:
        if LEVELS[level] < self._threshold:
            return
        if self._writer is None:
            self._writer = Writer(self._form, self._sink)
        self._writer.put(Line(time.time(), level, event, values))

    def bind(self, **ids: object) -> Bound:
        """The same log for one session, connection, agent or link: each line has these values."""
        return Bound(self, ids)

    def level(self, level: str) -> None:
        """From now on."""
        self._threshold = LEVELS[level]

    def reopen(self) -> None:
        """What is written from now on goes to a file of the configured name, also if somebody has moved that away."""
        if self._writer is not None:
            self._writer.reopen()

    def close(self) -> None:
        """Nothing is logged any more. What was is written, unless nobody reads it."""
        if self._writer is not None:
            self._writer.close(self.CLOSE_SECONDS)


class Bound:
    """A log whose lines say whom they are about."""

    __slots__ = ("_ids", "_log")

    def __init__(self, log: Logger, ids: dict[str, object]) -> None:
        self._log = log
        self._ids = ids

    def __call__(self, level: str, event: str, /, **values: object) -> None:
        self._log(level, event, **{**self._ids, **values})

    def bind(self, **ids: object) -> Bound:
        return Bound(self._log, {**self._ids, **ids})


class Noise(Log):
    """Reports an agent's noise, a bounded number of lines."""

    LIMIT = 20

    def __init__(self, log: Logger) -> None:
        self._log = log
        self._lines: dict[str, int] = {}

    def noise(self, agent: str, why: str) -> None:
        count = self._lines[agent] = self._lines.get(agent, 0) + 1
        if count <= self.LIMIT:
            self._log("info", "noise from agent", agent=agent, line=why[:200], last=count == self.LIMIT)

    def changed(self, event: str, agent: str, link: str, pid: int) -> None:
        self._log("debug", event, agent=agent, link=link, pid=pid)


def path_of(settings: config.Log, store: str) -> str:
    """The file of a daemon's log: `[log] file`, else one in the folder of its store."""
    return settings.file or os.path.join(store, "logs", "acpd.log")


def _rotated(path: str, *, size: int, keep: int) -> Sink:
    made: Sink = resolve(_FILE)(path, size=size, keep=keep)
    return made


# -- from a line to bytes; all of it in the thread


def _renderer(form: Form) -> Callable[[Line], bytes]:
    from datetime import UTC, datetime

    import structlog

    from acpd import redaction

    shapes: dict[Form, list[Processor]] = {
        Form.LOGFMT: [_visible, structlog.processors.LogfmtRenderer(key_order=("timestamp", "level", "event"))],
        Form.JOURNAL: [_visible, _without_time, structlog.processors.LogfmtRenderer(key_order=("level", "event"))],
        Form.JSON: [_event_before_values, structlog.processors.JSONRenderer(default=str)],
    }
    log: Any = structlog.wrap_logger(
        structlog.ReturnLogger(),
        processors=[structlog.processors.format_exc_info, redaction.redacted, *shapes[form]],
        wrapper_class=structlog.make_filtering_bound_logger(0),
        cache_logger_on_first_use=True,
    )

    def render(line: Line) -> bytes:
        stamp = datetime.fromtimestamp(line.at, UTC).isoformat().replace("+00:00", "Z")
        text: str = log.info(line.event, **{"timestamp": stamp, "level": line.level, **line.values})
        priority = f"<{PRIORITIES[line.level]}>" if form is Form.JOURNAL else ""
        return f"{priority}{text}\n".encode(errors="replace")

    return render


def _visible(_: Any, _name: str, event: EventDict) -> EventDict:
    """What could steer a terminal is written as Python escapes: agents' texts are among the values."""
    for key, value in event.items():
        if isinstance(value, str):
            event[key] = _UNSAFE.sub(lambda match: match[0].encode("unicode_escape", "surrogatepass").decode("ascii"), value)
    return event


def _event_before_values(_: Any, _name: str, event: EventDict) -> EventDict:
    return {**{key: event[key] for key in ("timestamp", "level", "event")}, **event}


def _without_time(_: Any, _name: str, event: EventDict) -> EventDict:
    del event["timestamp"]
    return event
