r"""Lines out of a byte stream. Sans-IO; bounded; never raises.

ACP v1 transports: one JSON object a line, ended by `\n` (0x0A and nothing else), UTF-8.
"""

from __future__ import annotations

from typing import NamedTuple

MAX_LINE = 64 * 1024 * 1024
BOM = b"\xef\xbb\xbf"


HEAD = 32
"""Bytes of a line over the limit that are kept, if the limit is not below that."""


class TooLong(NamedTuple):
    """A line over the limit; its bytes are gone but for the first ones, the stream is in step behind it."""

    size: int
    head: bytes = b""


class Lines:
    r"""Splits a stream at `\n`. A line may have `limit` bytes; no more than that is ever held.

    Each line comes as it was (blank ones and a trailing `\r` too) but for a byte order mark at the very start of the
    stream, so that a reader can count positions: a line took `len(line) + 1` bytes, a TooLong `size + 1`.
    """

    __slots__ = ("_dropped", "_head", "_held", "_parts", "_started", "limit")

    def __init__(self, limit: int = MAX_LINE) -> None:
        self.limit = limit
        self._parts: list[bytes] = []
        self._held = 0
        self._dropped = 0
        self._head = b""
        self._started = False

    def receive(self, data: bytes) -> list[bytes | TooLong]:
        """The lines that end in this data, in order."""
        pieces = data.split(b"\n")
        tail = pieces.pop()
        lines: list[bytes | TooLong] = [*pieces]
        if pieces and (self._held or self._dropped):
            lines[0] = self._ended(pieces[0])
        if len(data) > self.limit:
            lines = [line if isinstance(line, TooLong) or len(line) <= self.limit else self._too_long(line) for line in lines]
        if tail:
            self._hold(tail)
        if lines and not self._started:
            self._started = True
            lines[0] = _unmarked(lines[0]) if isinstance(lines[0], bytes) else lines[0]
        return lines

    def rest(self) -> bytes:
        """What stands behind the last newline, e.g. at the end of the stream; empty if it is over the limit."""
        rest = self._taken()
        return rest if self._started else _unmarked(rest)

    def _taken(self) -> bytes:
        held = b"".join(self._parts)
        self._parts, self._held, self._dropped = [], 0, 0
        return held

    def _ended(self, piece: bytes) -> bytes | TooLong:
        size = self._dropped + self._held + len(piece)
        if size > self.limit:
            head = self._head if self._dropped else self._head_of(piece)
            self._taken()
            return TooLong(size, head)
        return self._taken() + piece

    def _too_long(self, line: bytes) -> TooLong:
        return TooLong(len(line), line[: min(HEAD, self.limit)])

    def _head_of(self, more: bytes) -> bytes:
        return b"".join((*self._parts, more))[: min(HEAD, self.limit)]

    def _hold(self, tail: bytes) -> None:
        if self._dropped or self._held + len(tail) > self.limit:
            if not self._dropped:
                self._head = self._head_of(tail)
            self._dropped += self._held + len(tail)
            self._parts, self._held = [], 0
        else:
            self._parts.append(tail)
            self._held += len(tail)


def _unmarked(line: bytes) -> bytes:
    """The first line of the stream: a mark becomes what is white space to JSON, so that positions stay right."""
    return b"   " + line[3:] if line.startswith(BOM) else line
