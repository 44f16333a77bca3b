"""Logs for the tests of the journal: lines, whole logs as text, and files that fail on demand."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from msgspec import Raw

from acpd.storage.contract import Key
from acpd.storage.fold import Fold
from acpd.wire.lines import Header, Stored, encode, entry, fact, header_line
from acpd_backends.files import Files
from acpd_backends.jsonl import JsonlJournals
from acpd_backends.names import Layout
from acpd_backends.openlog import JsonlJournal

AT = "2026-11-30T09:57:03.234Z"
KEY = Key("agent", "session")
HEADER = Header(version=1, id="session", cwd="/w", agent="agent", createdAt=AT)


def store(root: Path, files: Files | None = None, *, sync: bool = True) -> JsonlJournals:
    return JsonlJournals(Layout(root), sync=sync, files=files or Files())


def place(root: Path, *lines: bytes, header: Header = HEADER) -> tuple[JsonlJournals, Path]:
    """A store that holds this log, and the log's path."""
    journals = store(root)
    log = Path(journals.log_path(KEY))
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_bytes(header_line(header) + b"".join(lines))
    return journals, log


def update(number: int, parent: int | None, body: bytes = b"", kind: str = "agent_message_chunk") -> bytes:
    """The entry e<number>, with seq = number; ids ascend in file order if numbers do."""
    return entry(
        "update", name(number), None if parent is None else name(parent), number, AT, b',"kind":"%b"' % kind.encode() + body
    )


def name(number: int) -> str:
    return f"e{number:06d}"


def chain(count: int, start: int = 1, size: int = 0) -> list[bytes]:
    body = b',"params":{"x":"%b"}' % (b"y" * size) if size else b""
    return [update(number, number - 1 if number > 1 else None, body) for number in range(start, start + count)]


def config(number: int, text: str = "x") -> bytes:
    return fact("config", name(number), number, AT, b',"kind":"current_mode_update","params":{"mode":%b}' % encode(text))


async def read(journals: JsonlJournals, key: Key = KEY, after: int = 0, until: int | None = None) -> list[Stored]:
    return [line async for window in journals.read(key, after=after, until=until) for line in window]


async def path(journals: JsonlJournals, key: Key = KEY, leaf: str | None = None, until: int | None = None) -> list[Stored]:
    return [line async for window in journals.path(key, leaf=leaf, until=until) for line in window]


def ids(lines: Iterable[Stored]) -> list[str]:
    return [line.id for line in lines]


def plain(value: Any) -> Any:
    """Lines and folds as values that can be compared."""
    if isinstance(value, Raw):
        return bytes(value)
    if isinstance(value, Stored):
        return {field: plain(getattr(value, field)) for field in Stored.__struct_fields__}
    if isinstance(value, Fold):
        return {slot: plain(getattr(value, slot)) for slot in Fold.__slots__}
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value


async def fresh(journals: JsonlJournals, *lines: bytes) -> JsonlJournal:
    """A new log with these lines, flushed."""
    journal = await journals.create(KEY, HEADER)
    for line in lines:
        journal.append(line)
    journal.flush()
    return journal


class FaultyFiles(Files):
    """Real files; what the next writes and syncs do can be told.

    `writes`: for each next write(2) of a log how many bytes it takes at most, or None to fail. `on_sync` is called in the
    thread before each fdatasync with its number, from 1, and may wait or raise.
    """

    def __init__(self) -> None:
        self.writes: list[int | None] = []
        self.syncs = 0
        self.folders = 0
        self.at_once = 0
        self.most_at_once = 0
        self.on_sync: Callable[[int], None] = lambda _: None
        self._lock = threading.Lock()

    def write(self, fd: int, data: bytes | memoryview) -> int:
        if self.writes and not os.get_blocking(fd):  # a log
            limit = self.writes.pop(0)
            if limit is None:
                raise no_space()
            data = data[: max(1, limit)]
        return super().write(fd, data)

    def fdatasync(self, fd: int) -> None:
        with self._lock:
            self.syncs += 1
            number = self.syncs
            self.at_once += 1
            self.most_at_once = max(self.at_once, self.most_at_once)
        try:
            self.on_sync(number)
            super().fdatasync(fd)
        finally:
            with self._lock:
                self.at_once -= 1

    def fsync(self, fd: int) -> None:
        self.folders += 1
        super().fsync(fd)


def no_space() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Killed(BaseException):
    """What a process does not survive."""


class Dying(Files):
    """Real files of a process that is killed before its step `at`: from then on it does nothing any more."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.steps = 0

    def _step(self) -> None:
        self.steps += 1
        if self.steps >= self.at:
            raise Killed

    def write(self, fd: int, data: bytes | memoryview) -> int:
        self._step()
        return super().write(fd, data)

    def replace(self, source: Path, target: Path) -> None:
        self._step()
        super().replace(source, target)

    def link(self, source: Path, target: Path) -> None:
        self._step()
        super().link(source, target)

    def unlink(self, path: Path) -> None:
        self._step()
        super().unlink(path)

    def mkdir(self, path: Path) -> bool:
        self._step()
        return super().mkdir(path)
