"""The daemon's end of a shim's connection: the hello, and lines with a number or a place in front.

docs/protocol.md, "The shim", has the rules.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from acpd import cursors
from acpd.cursors import Cursor
from acpd.peer import Owner, Peer
from acpd.rejoin import Earlier
from acpd.rpc import framing
from acpd.rpc.protocol import Bad

MAGIC = b"acpd-shim "
VERSION = 1
MAX_HELLO = 4 * 1024 * 1024
"""Bytes of a hello: an environment has 2 MiB at most."""
_FIRST_LINE = re.compile(rb"acpd-shim ([0-9]{1,6}) ([0-9a-f]{32}) ([0-9]{1,9})\n")
_MAX_FIRST_LINE = 64


class Hello(NamedTuple):
    """What a shim says first. `env` and `arguments` are the shim's own."""

    version: int
    token: str
    arguments: tuple[str, ...] = ()
    cwd: str = "/"
    env: Mapping[str, str] = MappingProxyType({})
    earlier: Earlier = Earlier()
    runs: bool = False
    """Whether it understands many lines with one prefix."""


def read_hello(data: bytes) -> tuple[Hello, bytes] | None:
    """The hello and what stands behind it; None while some of it is missing. Raises ValueError for what is none."""
    found = _FIRST_LINE.match(data)
    if found is None:
        if len(data) >= _MAX_FIRST_LINE or b"\n" in data:
            raise ValueError("the hello of the shim cannot be read")
        return None
    version, token, size = int(found[1]), found[2].decode(), int(found[3])
    if size > MAX_HELLO:
        raise ValueError(f"a hello of {size} bytes is over the limit of {MAX_HELLO}")
    end = found.end() + size
    if len(data) < end:
        return None
    try:
        hello = _hello(version, token, data[found.end() : end])
    except ValueError:
        raise ValueError("an item of the hello of the shim cannot be read") from None
    return hello, data[end:]


def _hello(version: int, token: str, body: bytes) -> Hello:
    arguments: list[str] = []
    env: dict[str, str] = {}
    cwd, following, runs = "/", 0, False
    sessions: dict[str, tuple[Cursor, int | None]] = {}
    for item in body.split(b"\0"):
        name, _, value = item.decode("utf-8", "surrogateescape").partition("=")
        if name == "arg":
            arguments.append(value)
        elif name == "cwd":
            cwd = value
        elif name == "env":
            variable, _, text = value.partition("=")
            env[variable] = text
        elif name == "runs":
            runs = value == "1"
        elif name == "next" and value.isdecimal():
            following = int(value)
        elif name == "session":
            session, place, line = value.split(" ")
            if (cursor := cursors.parsed(place)) is not None:
                sessions[cursors.session_of(session)] = (cursor, int(line) if line != "-" else None)
    return Hello(version, token, tuple(arguments), cwd, env, Earlier(token, following, sessions), runs)


def answer(refusal: str = "", code: int | None = None) -> bytes:
    """The line that a hello gets. `code`: the exit code of a mistake that is the user's; None: the shim may do without us."""
    if not refusal:
        return b"acpd-daemon %d ok\n" % VERSION
    text = " ".join(refusal.split()).encode("utf-8", "replace")
    return b"acpd-daemon %d no %b %b\n" % (VERSION, b"-" if code is None else b"%d" % code, text)


class ShimPeer(Peer):
    """Upwards each line has its number in front, downwards the place behind it and the number of the line that it settles."""

    def __init__(self, owner: Owner) -> None:
        # Ids of requests are never used twice, or a late answer to the daemon before would be taken for another one.
        super().__init__(owner, strict=True, polite=True, first_id=time.time_ns() >> 10)
        self._numbers: dict[bytes, int] = {}
        """Of the lines that open requests came in."""
        self._number = 0
        """Of the line that is being handled; 0 once it is settled, or a request."""
        self._initializing: set[int] = set()

    def _one(self, line: bytes | framing.TooLong) -> None:
        number, space, rest = (line.head if isinstance(line, framing.TooLong) else line).partition(b" ")
        if not space or not number.isdigit() or len(number) > 18:
            self._owner.on_bad_line("a line without a number: this is no shim")
            self.close()
            return
        self._number = int(number)
        super()._one(line if isinstance(line, framing.TooLong) else rest)
        if self._number:
            self.send(b"- %d \n" % self._number)

    def _last(self) -> bytes:
        """A shim ends every line: one that was cut comes again as a whole, and must not be handled twice."""
        return b""

    def _requested(self, identifier: bytes, method: str, /) -> None:
        self._numbers[identifier] = self._number
        if method == "initialize":
            self._initializing.add(self._number)
        self._number = 0

    def _bad(self, event: Bad) -> None:
        self._owner.on_bad_line(event.why)
        if event.reply:
            self.send(b"- %d %b" % (self._number, event.reply))
            self._number = 0

    def number(self, identifier: bytes, /) -> int:
        return self._numbers.get(identifier, 0)

    def _dressed(self, line: bytes, answered: bytes | None = None, place: bytes = b"", *, sets_up: bool = False) -> bytes:
        number = self._numbers.pop(answered, 0) if answered is not None else 0
        if not number:
            return b"%b - %b" % (place or b"-", line)
        keep = b"*" if number in self._initializing else b"+" if sets_up and place else b""
        return b"%b %d%b %b" % (place or b"-", number, keep, line)
