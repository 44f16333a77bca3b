"""The care of logs that are files: what is wrong with one, a repaired copy, and what lies about that nobody needs."""

from __future__ import annotations

import asyncio
import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from acpd.storage.contract import Key
from acpd.storage.upkeep import NEWER, Checked, Found, Upkeep
from acpd.wire.lines import Header, header_line
from acpd_backends import fsck, logfolders, repairs
from acpd_backends.files import TEMP, failed, is_abandoned
from acpd_backends.indexfile import update_index
from acpd_backends.logfile import LogFile, LogPaths

if TYPE_CHECKING:
    from acpd_backends.jsonl import JsonlJournals

P = ParamSpec("P")
T = TypeVar("T")

_KEPT = re.compile(r".+(?:\.log\.jsonl\.(?:torn|damaged)-\d+|\.(?:json|db)\.unreadable-[0-9a-f]{12}(?:-wal|-shm)?)\Z")
_OF_LOG = re.compile(r"([^.]+)\.(?:blobs|jsonl|idx)\Z")
_BLOB = re.compile(r"[0-9a-f]{64}\Z")


class JsonlUpkeep(Upkeep):
    """Of the logs of one store."""

    def __init__(self, journals: JsonlJournals) -> None:
        self._journals = journals
        self._files = journals.files
        self._layout = journals.layout

    async def check(self, key: Key, /, *, live: bool) -> Checked:
        checked = await self._journals.look("check", key, fsck.check, self._journals.paths(key), live=live)
        return checked._replace(found=[*_other_id(key, checked, self._journals.log_path(key)), *checked.found])

    async def repair(self, key: Key, header: Header, /) -> list[str]:
        return [str(await self._journals.look("repair", key, repairs.repair, self._journals.paths(key), header, self._files))]

    async def renew(self, key: Key, /) -> None:
        await self._journals.look("make anew the caches of", key, self._renew, self._journals.paths(key))

    def _renew(self, paths: LogPaths) -> None:
        with LogFile(paths) as log:
            header = log.any_header()
        self._files.unlink(paths.index)
        update_index(paths, self._files)
        if header is not None and paths.context.exists():
            self._files.write_pieces(paths.context, _context(paths, header), sync=False)

    async def left(self, user: str | None, /) -> list[Found]:
        return await self._through(user, self._left)

    def _left(self, user: str | None) -> list[Found]:
        return [found for folder in self._folders(user) for found in _lying(folder)]

    def _folders(self, user: str | None) -> Iterator[Path]:
        yield self._layout.private(user)
        for _, place in self._layout.places(user):
            yield place / "sessions"
            yield from (Path(entry.path) for entry in _entries(place / "context") if entry.is_dir(follow_symlinks=False))

    async def unused(self, key: Key, /) -> list[Found]:
        return await self._journals.look("look through the blobs of", key, _unused, self._journals.paths(key))

    async def weigh(self, key: Key, /) -> int:
        return await self._journals.look("look at", key, _weigh, self._journals.paths(key))

    async def remove(self, found: Sequence[Found], /) -> None:
        await self._through(None, self._remove, found)

    def _remove(self, _: None, found: Sequence[Found]) -> None:
        for each in found:
            self._files.unlink(Path(each.path))

    async def _through(self, user: str | None, work: Callable[..., T], *more: object) -> T:
        try:
            return await asyncio.to_thread(work, user, *more)
        except OSError as error:
            raise failed("look through", f"the store {self._layout.home(user)}", error) from error


def _other_id(key: Key, checked: Checked, path: str) -> list[Found]:
    """The id that a header gives is nowhere gone by."""
    if checked.header is None or checked.header.id == key.session or any(each.kind == NEWER for each in checked.found):
        return []
    return [Found(kind="other-id", path=path, line=1, detail=checked.header.id)]


def _context(paths: LogPaths, header: Header) -> Iterator[bytes]:
    yield header_line(header)
    yield from fsck.context_of(paths)


def _lying(folder: Path) -> Iterator[Found]:
    """What lies in a folder beside what belongs there."""
    entries = _entries(folder)
    names = {entry.name for entry in entries}
    for entry in sorted(entries, key=lambda entry: entry.name):
        if TEMP.match(entry.name) and is_abandoned(Path(entry.path)):
            yield Found(kind="temp", path=entry.path, bytes=_freed(entry))
        elif _KEPT.match(entry.name):
            yield Found(kind="kept", path=entry.path, bytes=_freed(entry))
        elif (match := _OF_LOG.match(entry.name)) and not logfolders.has_log(names, match[1]):
            yield Found(kind="no-log", path=entry.path)


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _freed(entry: os.DirEntry[str]) -> int:
    """Bytes that go with this name: none while the file has another one."""
    found = entry.stat(follow_symlinks=False)
    return found.st_size if found.st_nlink == 1 and stat.S_ISREG(found.st_mode) else 0


def _unused(paths: LogPaths) -> list[Found]:
    entries = [entry for entry in _entries(paths.blobs) if _BLOB.match(entry.name)]
    named = fsck.named_blobs(paths) if entries else set[str]()
    unused = [entry for entry in sorted(entries, key=lambda entry: entry.name) if entry.name not in named]
    return [Found(kind="orphan-blob", path=entry.path, bytes=_freed(entry)) for entry in unused]


def _weigh(paths: LogPaths) -> int:
    prefix = f"{paths.stem}."
    own = [entry for entry in _entries(paths.folder) if entry.name.startswith(prefix) and entry.is_file(follow_symlinks=False)]
    return sum(map(_freed, [*own, *_entries(paths.blobs)]))
