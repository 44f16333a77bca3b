"""Lines of stdin on the loop, from a terminal, a pipe or a file; without a thread that an end would have to wait for."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable

from acpd.errors import AcpdError

LIMIT = 4 * 1024 * 1024
"""Bytes of a line."""
_READ = 64 * 1024


class Typed:
    """`take(line)` gets one line at a time while `wanted()` is true; `end(error)` is called once, behind the last.

    A line that ends with a backslash goes on in the next. Call `more` whenever what `wanted` says may have changed.
    """

    def __init__(
        self, fd: int, wanted: Callable[[], bool], take: Callable[[str], None], end: Callable[[AcpdError | None], None]
    ) -> None:
        self._fd = fd
        self._wanted = wanted
        self._take = take
        self._end = end
        self._lines: deque[str] = deque()
        self._rest = b""
        self._joined = ""
        """Lines that go on in the next."""
        self._ended = False
        self._error: AcpdError | None = None
        self._told = False
        self._watching = False
        self._loop = asyncio.get_running_loop()

    def more(self) -> None:
        """Lines that are there already, else watch for others."""
        while self._lines and self._wanted():
            self._take(self._lines.popleft())
        if self._ended and not self._lines and not self._told:
            self._told = True
            self._end(self._error)
        self._watch(not self._ended and not self._lines and self._wanted())

    def stop(self) -> None:
        self._told = self._ended = True
        self._lines.clear()
        self._watch(False)

    def _watch(self, wanted: bool) -> None:  # noqa: FBT001  a setter
        if wanted == self._watching:
            return
        self._watching = wanted
        if not wanted:
            self._loop.remove_reader(self._fd)
            return
        try:
            self._loop.add_reader(self._fd, self._read)
        except OSError:  # a file, which is always ready, or closed
            self._watching = False
            self._loop.call_soon(self._read)

    def _read(self) -> None:
        if self._ended:
            return
        try:
            data = os.read(self._fd, _READ)
        except BlockingIOError:  # others have the terminal as well, and made it so
            return
        except OSError:
            data = b""  # what cannot be read has ended
        self._rest += data
        if not data:
            self._ended = True
            self._rest += b"\n" if self._rest else b""
        elif len(self._rest) > LIMIT and b"\n" not in data:
            self._ended, self._rest = True, b""
            self._error = AcpdError(f"a line of stdin is over {LIMIT >> 20} MiB")
        self._cut()
        if self._ended and self._joined:
            self._lines.append(self._joined[:-1])
        self.more()

    def _cut(self) -> None:
        whole, newline, self._rest = self._rest.rpartition(b"\n")
        if not newline:
            return
        for line in whole.decode(errors="replace").split("\n"):
            if line.endswith("\\"):
                self._joined += line[:-1] + "\n"
            else:
                self._lines.append(self._joined + line)
                self._joined = ""
