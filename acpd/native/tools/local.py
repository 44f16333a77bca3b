"""Files as tools see them: through the session's client inside its folders, here and after a permission outside of them.

What is looked at before (sizes, kinds, first bytes) is looked at here; everything that blocks is called in a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import stat
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from acpd.agents import files
from acpd.native.toolbox import ToolFailed
from acpd.native.tools.places import Place, is_text, kind, shown
from acpd.wire.envelope import encode

if TYPE_CHECKING:
    from acpd.api.turn import Turn

_TO_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC
_TO_LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Seen:
    """Which state of which file the model has seen, so that nothing is overwritten that it does not know. Of one session."""

    def __init__(self) -> None:
        self._stamps: dict[str, tuple[int, int]] = {}

    def note(self, real: str) -> None:
        stamp = _stamp(real)
        if stamp is not None:
            self._stamps[real] = stamp

    def knows(self, real: str) -> bool:
        """Whether it is what it was when it was noted."""
        return self._stamps.get(real) == _stamp(real) is not None

    def has(self, real: str) -> bool:
        return real in self._stamps


def _stamp(real: str) -> tuple[int, int] | None:
    try:
        found = os.stat(real)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def check(where: Place) -> None:
    """Raises ToolFailed for what is neither a plain file nor free: a client that opened a pipe would wait for ever."""
    what = kind(where.real)
    if what not in {"file", "nothing"}:
        raise ToolFailed(f"{shown(where.path)} is {'a ' if what == 'folder' else ''}{what}")


def first_bytes(real: str, limit: int, inside: int | None = None) -> bytes:
    """At most `limit` bytes of a plain file; empty for one that is not there (a client may know better). `inside`: a descriptor
    of its folder, if there is one. Raises ToolFailed.
    """
    try:
        name = os.path.basename(real)
        with open(_reached(real, _TO_READ) if inside is None else os.open(name, _TO_READ, dir_fd=inside), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise ToolFailed(f"{shown(real)} is {kind(real)}")
            return file.read(limit)
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise failed(real, error) from None


@contextlib.contextmanager
def folder(real: str) -> Generator[int]:
    """A folder's descriptor, for os.scandir. Raises OSError."""
    found = _reached(real, _TO_LIST)
    try:
        yield found
    finally:
        os.close(found)


def _reached(real: str, flags: int) -> int:
    """What is there is opened (`flags`: _TO_READ, _TO_LIST) without following any link: none was in this path when it was asked
    for. Raises OSError.
    """
    *above, name = real.strip("/").split("/")
    if not name:
        return os.open("/", flags)
    inside = files.walk("/", above)
    try:
        return os.open(name, flags, dir_fd=inside)
    finally:
        os.close(inside)


def failed(real: str, error: OSError) -> ToolFailed:
    """In words for the model."""
    if error.errno in {errno.ELOOP, errno.ENOTDIR}:
        return ToolFailed(f"{shown(real)} is not there any more, or leads to another place now.")
    return ToolFailed(f"{shown(real)}: {error.strerror}")


async def read_text(turn: Turn, where: Place, line: int | None = None, limit: int | None = None) -> str:
    """The text, or `limit` lines of it from `line` on. Raises ToolFailed, and what Turn.read_text raises."""
    await asyncio.to_thread(check, where)
    if where.root:
        return await turn.read_text(Path(where.path), line, limit)
    params = encode({"path": _named(where), "line": line, "limit": limit})
    answer = await asyncio.to_thread(files.read, params, None)
    text: str = msgspec.json.decode(answer)["content"]
    return text


async def write_text(turn: Turn, where: Place, text: str) -> None:
    """As a whole: the file has what it had, or all of this. Raises as `read_text` does."""
    await asyncio.to_thread(check, where)
    if where.root:
        await turn.write_text(Path(where.path), text)
    else:
        await asyncio.to_thread(files.write, encode({"path": _named(where), "content": text}), None)


def _named(where: Place) -> str:
    """Raises ToolFailed."""
    if not is_text(where.real):
        raise ToolFailed(f"{shown(where.real)} has a name that is not UTF-8. Use `run` with a program that takes any name.")
    return where.real
