"""What agents remember, as files: for each user and agent a folder with a ledger a day and MEMORY.md.

    2026-05-01.md      sections, each headed by its time and its session; only ever appended to. Days are those of UTC.
    MEMORY.md          made of them by the agent's model, replaced as a whole
    .consolidated      {"at", "day", "size"}: when, and up to which byte of which ledger MEMORY.md was made of them
    .lock              held (flock) while one of these is written, for as long as that takes

A person may read and edit all of it. Links are not followed. Whatever is read is bounded, and what is no UTF-8 is shown
as U+FFFD.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import re
import stat
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec
from msgspec import Struct

from acpd.errors import StoreError
from acpd.storage.contract import Key, Memories, Memory
from acpd.wire.texts import plain_lines
from acpd_backends.files import FILES, Files, failed, is_abandoned
from acpd_backends.names import Layout

T = TypeVar("T")

WHOLE = "MEMORY.md"
PREFIX = "memory/"
"""How a path begins in what agents are told."""
SECTION = 8 * 1024
"""Bytes of a section."""
DAY = 256 * 1024
"""Bytes of a ledger; the sections after it are refused until the next day."""
MEMORY = 16 * 1024
"""Bytes of MEMORY.md. One that a person has made longer is read up to here, and is not replaced."""
TODAY = 8 * 1024
RECENT = 24 * 1024
"""Bytes of Memories.today and Memories.recent."""
SEARCHED = 4 * 1024 * 1024
"""Bytes of all texts together that are read at once, the newest first."""

_POSITION = ".consolidated"
_LEDGER = re.compile(r"(\d{4}-\d\d-\d\d)\.md\Z")
_SIGNS = re.compile(r"\A[-*•#\s]+|\s+\Z")


class _Position(Struct, frozen=True):
    """Of the ledgers, everything before byte `size` of that of `day` is in MEMORY.md. `at`: seconds since 1970."""

    at: float = 0.0
    day: str = ""
    size: int = 0


class _Recent(NamedTuple):
    text: str
    grown: int
    day: str
    size: int


class FileMemory(Memory):
    """See the module. Several processes may use it at once. `now`: seconds since 1970."""

    def __init__(
        self, layout: Layout, *, sync: bool = True, files: Files = FILES, now: Callable[[], float] = time.time
    ) -> None:
        self._layout = layout
        self._sync = sync
        self._files = files
        self._now = now

    async def append(self, key: Key, text: str, /) -> int:
        size = len(text.encode("utf-8", "replace"))
        if size > SECTION:
            raise StoreError("remember", "this text", cause=f"it has {size} bytes, of at most {SECTION}", hint="shorten it")
        return await self._run("remember", key, lambda: self._append(key, text))

    async def read(self, key: Key, /) -> Memories:
        return await self._run("read", key, lambda: self._read(key))

    async def consolidate(self, key: Key, seen: str, text: str, /) -> None:
        data = f"{text.strip()}\n".encode("utf-8", "replace")
        if not text.strip() or len(data) > MEMORY:
            cause = f"a text of 1 to {MEMORY} bytes is wanted, and it has {len(data) if text.strip() else 0}"
            raise StoreError("consolidate", WHOLE, cause=cause, hint="keep what matters most")
        await self._run("consolidate", key, lambda: self._consolidate(key, seen, data))

    async def texts(self, key: Key, path: str | None = None, /) -> list[tuple[str, str]]:
        return await self._run("read", key, lambda: self._texts(self._layout.memory(key), path))

    async def _run(self, operation: str, key: Key, work: Callable[[], T]) -> T:
        try:
            return await asyncio.to_thread(work)
        except OSError as error:
            raise failed(operation, _whose(key), error) from error

    # In a thread.

    def _append(self, key: Key, text: str) -> int:
        if not text.strip():
            return 0
        folder = self._layout.make_memory(key, sync=self._sync, files=self._files)
        now = time.gmtime(self._now())
        path = folder / time.strftime("%Y-%m-%d.md", now)
        with self._locked(folder):
            days = _ledgers(folder, path.name)[-2:]
            known = set(_said([_text(folder / WHOLE, MEMORY), *(_text(folder / day, DAY) for day in days)]))
            lines = _new(text, known)
            head = f"\n## {time.strftime('%Y-%m-%dT%H:%M:%SZ', now)} session {' '.join(key.session.split())}\n\n"
            data = (head + "\n".join(lines) + "\n").encode("utf-8", "replace")
            if not lines:
                return 0
            if _size(path) + len(data) > DAY:
                raise StoreError("remember", "this text", cause=f"{path} is full", hint="it is taken tomorrow")
            fresh = not os.path.lexists(path)
            if path.is_symlink():
                raise StoreError("remember", "this text", cause=f"{path} is a link", hint="move it away")
            self._files.append(path, data, sync=self._sync)
            if fresh and self._sync:
                self._files.sync_folder(folder)
        return len(lines)

    def _read(self, key: Key) -> Memories:
        folder = self._layout.memory(key)
        now = self._now()
        newest = time.strftime("%Y-%m-%d.md", time.gmtime(now))
        position = _position(folder, newest)
        whole = _bytes(folder / WHOLE, MEMORY + 1)
        recent = _recent(folder, position, newest)
        today = _bytes(folder / newest, DAY)
        return Memories(
            text=whole[:MEMORY].decode("utf-8", "replace"),
            today=_cut(today, max(0, len(today) - TODAY)).decode("utf-8", "replace"),
            recent=recent.text,
            grown=recent.grown,
            age=None if position is None or position.at > now else now - position.at,
            seen=f"{_digest(whole)}:{recent.day}:{recent.size}" if len(whole) <= MEMORY else "",
        )

    def _consolidate(self, key: Key, seen: str, data: bytes) -> None:
        folder = self._layout.memory(key)
        digest, _, rest = seen.partition(":")
        day, _, size = rest.partition(":")
        if not folder.is_dir() or not size.isdecimal():
            raise StoreError("consolidate", WHOLE, cause="that is not what was read", hint="read it again")
        with self._locked(folder):
            whole = _bytes(folder / WHOLE, MEMORY + 1)
            if len(whole) > MEMORY or _digest(whole) != digest:
                cause = "it has changed since it was read"
                raise StoreError("consolidate", WHOLE, cause=cause, hint="read it again", retryable=True)
            for name in os.listdir(folder):
                if is_abandoned(folder / name):
                    self._files.unlink(folder / name)
            self._files.write_atomic(folder / WHOLE, data, sync=self._sync)
            position = _Position(self._now(), day, int(size))
            self._files.write_atomic(folder / _POSITION, msgspec.json.encode(position), sync=False)

    def _texts(self, folder: Path, path: str | None) -> list[tuple[str, str]]:
        names = [WHOLE, *reversed(_ledgers(folder))]
        if path is not None:
            names = [name for name in names if name == path.removeprefix(PREFIX)]
        left = SEARCHED
        found: list[tuple[str, str]] = []
        for name in names:
            data = _bytes(folder / name, left)
            left -= len(data)
            if data:
                found.append((PREFIX + name, data.decode("utf-8", "replace")))
        return found

    @contextmanager
    def _locked(self, folder: Path) -> Generator[None]:
        fd = self._files.open_lock(folder / ".lock")
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            self._files.close(fd)


def _whose(key: Key) -> str:
    return f"the memory of {key.agent}" + (f" and {key.user}" if key.user is not None else "")


def _ledgers(folder: Path, newest: str = "") -> list[str]:
    """Names of the ledgers, the oldest first, up to this one. Absent: none."""
    try:
        return sorted(name for name in os.listdir(folder) if _LEDGER.match(name) and (not newest or name <= newest))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _bytes(path: Path, limit: int, start: int = 0) -> bytes:
    """At most so many bytes of a regular file from here on; nothing of what is absent, or a link. Raises OSError."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        return b""
    except OSError:
        if path.is_symlink():
            return b""
        raise
    try:
        return os.pread(fd, max(0, limit), start) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
    finally:
        os.close(fd)


def _text(path: Path, limit: int) -> str:
    return _bytes(path, limit).decode("utf-8", "replace")


def _size(path: Path) -> int:
    try:
        return os.lstat(path).st_size
    except FileNotFoundError:
        return 0


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]


def _cut(data: bytes, start: int) -> bytes:
    """From the first whole line at or behind `start`."""
    return data if start == 0 else data[data.find(b"\n", start - 1) + 1 :]


def _position(folder: Path, newest: str) -> _Position | None:
    """None: nothing was consolidated, or nobody can tell what. One behind the newest ledger is that of a wrong clock."""
    try:
        position = msgspec.json.decode(_bytes(folder / _POSITION, 1024), type=_Position)
    except msgspec.DecodeError:
        return None
    return position if position.day <= newest[:10] else None


def _recent(folder: Path, position: _Position | None, newest: str) -> _Recent:
    """The oldest RECENT bytes, in whole lines, of what is behind the position; how much there is; and where it ends.

    A ledger behind the newest waits for its day: the position may not pass those that come before it.
    """
    day, size = (position.day, position.size) if position is not None else ("", 0)
    left, grown, pieces = RECENT, 0, list[bytes]()
    full = False
    for name in _ledgers(folder, newest):
        if name[:10] < day:
            continue
        start = min(size, _size(folder / name)) if name[:10] == day else 0
        grown += _size(folder / name) - start
        data = b"" if full else _bytes(folder / name, left, start)
        if len(data) == left:
            whole = data[: data.rfind(b"\n") + 1]
            full, data = True, whole if whole or pieces else data
        if data:
            pieces.append(data)
            left, day, size = left - len(data), name[:10], start + len(data)
    return _Recent(b"".join(pieces).decode("utf-8", "replace"), grown, day, size)


def _plain(line: str) -> str:
    """A line as it is compared."""
    return " ".join(_SIGNS.sub("", line).casefold().split())


def _said(texts: Iterable[str]) -> Iterable[str]:
    return (plain for text in texts for line in plain_lines(text) if (plain := _plain(line)))


def _new(text: str, known: set[str]) -> list[str]:
    """The lines that say something that is not known. None of them looks like the head of a section."""
    found: list[str] = []
    for line in plain_lines(text):
        plain = _plain(line)
        if plain and plain not in known:
            known.add(plain)
            found.append(line.rstrip().lstrip("#").lstrip() if line.startswith("#") else line.rstrip())
    return found
