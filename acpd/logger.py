"""acpd's own log: lines about acpd itself, never the contents of a session."""

from __future__ import annotations

import contextlib
import os
import queue
import select
import threading
from typing import Any

from acpd.agents.pool import Log


class Stderr:
    """A file for acpd's log. A thread writes it: an editor that does not read it stops nothing.

    Lines that find no room are dropped, and counted in a line of their own once those before them are written.
    """

    FD = 2
    ROOM = 1000

    def __init__(self) -> None:
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._dropped = self._told = 0
        self._thread = threading.Thread(target=self._run, daemon=True, name="log")
        self._thread.start()

    def write(self, text: str) -> None:
        if self._lines.qsize() < self.ROOM:
            self._lines.put(text.encode(errors="replace"))
        else:
            self._dropped += 1

    def flush(self) -> None:
        """The thread writes at once."""

    def close(self, seconds: float) -> None:
        """Wait that long for what is not written yet."""
        self._lines.put(None)
        self._thread.join(seconds)

    def _run(self) -> None:
        with contextlib.suppress(OSError):  # nobody can read it any more
            while line := self._lines.get():
                self._write(line)
                if self._lines.empty():
                    self._tell()
            self._tell()

    def _tell(self) -> None:
        count = self._dropped - self._told
        if count:
            self._write(b'level=warning event="lines of this log were dropped: nobody read it" count=%d\n' % count)
            self._told += count

    def _write(self, data: bytes) -> None:
        while data:
            try:
                data = data[os.write(self.FD, data) :]
            except BlockingIOError:
                select.select([], [self.FD], [])


class Logger:
    """acpd's own log, on stderr. structlog is imported with the first line that is logged: a start logs nothing."""

    CLOSE_SECONDS = 1.0
    """How long the end of acpd waits for who reads stderr."""

    def __init__(self, level: str) -> None:
        self._level = level
        self._logger: Any = None
        self._file: Stderr | None = None

    def __call__(self, level: str, event: str, **values: object) -> None:
        if self._logger is None:
            import structlog  # 17 ms

            stamp = structlog.processors.TimeStamper(fmt="iso", utc=True)
            shape = structlog.processors.LogfmtRenderer(key_order=("timestamp", "level", "event"))
            self._file = Stderr()
            self._logger = structlog.wrap_logger(
                structlog.WriteLogger(self._file),  # type: ignore[arg-type]  # all of a file that it uses
                processors=[structlog.processors.add_log_level, stamp, structlog.processors.format_exc_info, shape],
                wrapper_class=structlog.make_filtering_bound_logger(self._level),
            )
        getattr(self._logger, level)(event, **values)

    def close(self) -> None:
        """Nothing is logged any more. What was is written, unless nobody reads it."""
        if self._file is not None:
            self._file.close(self.CLOSE_SECONDS)


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
