"""Where a client stands in a session, as text that its shim keeps and brings back (docs/protocol.md, "The shim").

`12`: everything up to seq 12 was sent. `12.1`: and the first frame of the line behind it. `r12.40`: of the replay of everything
up to seq 12 the first 40 frames. A session and a cursor together, `<session>:<cursor>`, are a place.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")
_CURSOR = re.compile(r"(r?)([0-9]{1,18})(?:\.([0-9]{1,18}))?")
GONE = b"x"
"""In a place: the client is no longer in this session."""


class Cursor(NamedTuple):
    """`replay`: `frames` of the replay up to `seq`; else `frames` of the line behind `seq`."""

    seq: int
    frames: int = 0
    replay: bool = False


def parsed(text: str) -> Cursor | None:
    """None for what is no cursor."""
    found = _CURSOR.fullmatch(text)
    return Cursor(int(found[2]), int(found[3] or 0), bool(found[1])) if found else None


def name(session_id: str) -> bytes:
    """A session's id as it stands in a place: letters, digits, `_` and `-` as they are, the other bytes as %XX."""
    raw = session_id.encode("utf-8", "surrogatepass")
    if _PLAIN.issuperset(raw):
        return raw
    return b"".join(bytes((byte,)) if byte in _PLAIN else b"%%%02X" % byte for byte in raw)


def session_of(name: str) -> str:
    """The id that `name` made this of. Raises ValueError."""
    parts = name.split("%")
    raw = parts[0].encode() + b"".join(bytes.fromhex(part[:2]) + part[2:].encode() for part in parts[1:])
    return raw.decode("utf-8", "surrogatepass")


def run(session: bytes, cursor: bytes, frames: bytes) -> bytes:
    """These frames with one place in front, the one behind the last. `session` is a name. Nothing for no frames."""
    return b"%b:%b =%d \n%b" % (session, cursor, len(frames), frames) if frames else b""


def each_placed(session: bytes, seq: int, frames: bytes) -> bytes:
    """The frames of lines from this seq on, one each."""
    line = b"%b:%%d - %%b\n" % session.replace(b"%", b"%%")
    return b"".join([line % each for each in enumerate(frames.split(b"\n")[:-1], seq)])


def placed(session: bytes, seq: int, frames: bytes, skip: int = 0) -> bytes:
    """The frames of one line but the first `skip`, each with its place in front and nothing settled. `session` is a name."""
    lines = frames.split(b"\n")[:-1]
    if len(lines) == 1 and not skip:
        return b"%b:%d - %b" % (session, seq, frames)
    return b"".join(
        b"%b:%d - %b\n" % (session, seq, line) if i == len(lines) else b"%b:%d.%d - %b\n" % (session, seq - 1, i, line)
        for i, line in enumerate(lines[skip:], skip + 1)
    )
