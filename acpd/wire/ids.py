"""Entry ids (UUIDv7, monotonic) and time stamps."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

_LAST_MS = 2**48 - 1
"""There is no id after this time; one that claims it (a damaged or forged log) is passed over."""


class Ids:
    """UUIDv7 (RFC 9562 5.7) that only ever grow, also when the clock goes back.

    The 12 bits behind the version are a counter within the millisecond (method 1); when they
    overflow, the millisecond is advanced. The 62 random bits are this object's. `clock` gives nanoseconds since the epoch.
    """

    __slots__ = ("_clock", "_counter", "_head", "_ms", "_tail")

    def __init__(self, clock: Callable[[], int] = time.time_ns) -> None:
        self._clock = clock
        self._ms = 0
        self._counter = 0
        text = f"{int.from_bytes(os.urandom(8), 'big') & ~(3 << 62) | 2 << 62:016x}"
        self._tail = f"-{text[:4]}-{text[4:]}"
        self._advance(0)  # a clock that stands at the epoch, or before it, gives ids as well

    def after(self, last: str) -> None:
        """Let every id that is made from now on be greater than `last`, if that is a UUIDv7."""
        try:
            ms = int(last[:8] + last[9:13], 16)
        except ValueError:
            return
        if len(last) == 36 and last[14] == "7" and self._ms <= ms < _LAST_MS:
            self._advance(ms)
            self._counter = 0xFFF

    def new(self) -> str:
        ms = self._clock() // 1_000_000
        if ms > self._ms:
            self._advance(ms)
        elif self._counter < 0xFFF:
            self._counter += 1
        else:
            self._advance(self._ms + 1)
        return f"{self._head}{self._counter:03x}{self._tail}"

    def some(self, count: int) -> list[str]:
        """So many ids, one at least."""
        found = [self.new()]
        head, tail, last = self._head, self._tail, min(self._counter + count - 1, 0xFFF)
        found += [f"{head}{counter:03x}{tail}" for counter in range(self._counter + 1, last + 1)]
        self._counter = last
        while len(found) < count:
            found.append(self.new())
        return found

    def _advance(self, ms: int) -> None:
        """A new millisecond: the counter starts again."""
        self._ms = ms
        self._counter = 0
        self._head = f"{ms >> 16:08x}-{ms & 0xFFFF:04x}-7"


class Clock:
    """The present as RFC 3339 text in UTC with milliseconds, e.g. 2026-11-30T09:57:03.234Z."""

    __slots__ = ("_clock", "_ms", "_now", "_second", "_text")

    def __init__(self, clock: Callable[[], int] = time.time_ns) -> None:
        self._clock = clock
        self._second = self._ms = -1
        self._text = self._now = ""

    def now(self) -> str:
        ms = self._clock() // 1_000_000
        if ms != self._ms:
            second = ms // 1000
            if second != self._second:
                self._second = second
                self._text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
            self._ms = ms
            self._now = f"{self._text}.{ms % 1000:03d}Z"
        return self._now
