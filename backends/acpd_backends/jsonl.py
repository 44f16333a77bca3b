"""The logs of a store as JSONL files (docs/architecture.md, "The log"): one folder of sessions, a few files each.

    <session>.log.jsonl         header, then every entry and fact; appended to, never rewritten
    <session>.log.jsonl.torn-1  what was cut off after a crash
    <session>.jsonl             context: a projection, written by the session
    <session>.idx               cache, see `records`
    <session>.blobs/<sha256>    big strings

Appending is a write(2) on the event loop (about 2 us); everything else happens in threads. Only the holder of the
session's lease opens a log for writing; reading needs no lease and changes nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from acpd.errors import SessionNotFound, SessionReadOnly, StoreError
from acpd.storage.contract import Journals, Key, Row
from acpd.storage.fold import Fold
from acpd.storage.tree import SessionTree
from acpd.wire.lines import VERSION, Header, Stored, header_line
from acpd_backends import logfile, logfolders
from acpd_backends.commits import Committer
from acpd_backends.files import FILES, Files, failed
from acpd_backends.forks import write_fork
from acpd_backends.indexfile import write_index
from acpd_backends.logfile import LogFile, LogPaths
from acpd_backends.names import Layout, encode
from acpd_backends.openlog import JsonlJournal
from acpd_backends.pieces import in_pieces

if TYPE_CHECKING:
    from acpd.storage.upkeep import Upkeep

P = ParamSpec("P")
T = TypeVar("T")


class JsonlJournals(Journals):
    """The logs below `layout.root`. Bound to one event loop."""

    def __init__(self, layout: Layout, *, sync: bool = True, files: Files = FILES) -> None:
        """`sync`: what was acknowledged outlives a power loss ("power"), or else the process only ("process")."""
        self.layout = layout
        self.power_safe = sync
        self.files = files
        self.committer = Committer(by_kernel=files.syncs_by_kernel)
        self._open: dict[Key, JsonlJournal] = {}

    @property
    def upkeep(self) -> Upkeep:
        from acpd_backends.logcare import JsonlUpkeep  # for a few commands only

        return JsonlUpkeep(self)

    def paths(self, key: Key) -> LogPaths:
        return LogPaths(self.layout.sessions(key), encode(key.session))

    def log_path(self, key: Key, /) -> str:
        return str(self.paths(key).log)

    async def call(self, operation: str, key: Key, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """`work` in a thread; what it raises as OSError becomes a StoreError that names the session."""
        try:
            return await asyncio.to_thread(work, *args, **kwargs)
        except OSError as error:
            raise failed(operation, f"session {key.session}", error) from error

    async def look(self, operation: str, key: Key, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """As `call`, where the log must be there."""
        try:
            return await asyncio.to_thread(work, *args, **kwargs)
        except FileNotFoundError as error:
            raise SessionNotFound(key.session) from error
        except OSError as error:
            raise failed(operation, f"session {key.session}", error) from error

    def _name(self, key: Key) -> Key:
        """The key that stands for this log: where agents have no folder of their own, theirs is no part of it."""
        return key if self.layout.per_agent else Key(agent="", session=key.session, user=key.user)

    def forget(self, journal: JsonlJournal) -> bool:
        """Whether it was open."""
        return self._open.pop(self._name(journal.key), None) is not None

    def keep(self, journal: JsonlJournal) -> None:
        self._open[self._name(journal.key)] = journal

    async def create(self, key: Key, header: Header, /) -> JsonlJournal:
        """See Journals. Cancelling it may leave an empty log."""
        return await self._opening(partial(self._create, key, header), "create", key)

    async def open(self, key: Key, /) -> JsonlJournal:
        """See Journals. Cancelling it closes the log again; its tail may have been mended."""
        try:
            return await self._opening(partial(self._open_log, key), "open", key)
        except FileNotFoundError as error:
            raise SessionNotFound(key.session) from error

    async def _opening(self, work: Callable[[], JsonlJournal], operation: str, key: Key) -> JsonlJournal:
        """The journal that `work` opens in a thread; if nobody waits for it any more it is closed. Raises FileNotFoundError."""
        opening = asyncio.get_running_loop().run_in_executor(None, work)
        try:
            journal = await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(self._abandoned)
            raise
        except FileNotFoundError:
            raise
        except OSError as error:
            raise failed(operation, f"session {key.session}", error) from error
        self.keep(journal)
        return journal

    def _abandoned(self, opening: asyncio.Future[JsonlJournal]) -> None:
        if not opening.cancelled() and opening.exception() is None:
            asyncio.get_running_loop().run_in_executor(None, opening.result().abandon)

    def _create(self, key: Key, header: Header) -> JsonlJournal:
        try:
            self.layout.make(key, "sessions", sync=self.power_safe, files=self.files)
            descriptor = self.files.open_append(self.paths(key).log, create=True)
        except FileExistsError as error:
            raise StoreError("create", f"session {key.session}", cause="there is a log of it already") from error
        except FileNotFoundError as error:
            raise failed("create", f"session {key.session}", error) from error
        fold = Fold()
        fold.created_at = header.createdAt
        journal = JsonlJournal(self, key, header, fold, descriptor, 0)
        journal.append(header_line(header))
        return journal

    def _open_log(self, key: Key) -> JsonlJournal:
        paths = self.paths(key)
        with LogFile(paths) as log:
            _check_writable(log, key)
            warning = _mend_tail(log, paths, self.files)
            opened = logfile.fold_log(log)
            size = log.size
        if opened.header is None:
            raise _read_only(key, "it has no usable header")
        if warning:
            opened.fold.warnings.append(warning)
        with contextlib.suppress(OSError):  # a cache
            write_index(paths, opened.index, self.files)
        return JsonlJournal(self, key, opened.header, opened.fold, self.files.open_append(paths.log, create=False), size)

    async def peek(self, key: Key, /) -> tuple[Header, Fold]:
        opened = await self.look("read", key, self._peek, key)
        made_up = Header(version=VERSION, id=key.session, cwd="", agent=key.agent, user=key.user)
        return opened.header or made_up, opened.fold

    def _peek(self, key: Key) -> logfile.Opened:
        with LogFile(self.paths(key)) as log:
            return logfile.fold_log(log)

    def read(self, key: Key, /, *, after: int = 0, until: int | None = None) -> AsyncIterator[list[Stored]]:
        return self._stream(key, logfile.read_lines(self.paths(key), after, until))

    async def path(
        self, key: Key, /, *, leaf: str | None = None, until: int | None = None, straight: bool = False
    ) -> AsyncIterator[list[Stored]]:
        paths = self.paths(key)
        journal = self._open.get(self._name(key))
        if journal is not None and not straight:
            await journal.index()
        windows = logfile.read_entries(paths, until) if straight else logfile.read_path(paths, leaf, until)
        async for window in self._stream(key, windows):
            yield window

    async def _stream(self, key: Key, windows: Iterator[list[Stored]]) -> AsyncIterator[list[Stored]]:
        """Each window is read and decoded in a thread when it is asked for."""
        while (window := await self.look("read", key, _next_of, key, windows)) is not None:
            yield window

    async def last(self, key: Key, count: int, /) -> list[Stored]:
        """A few milliseconds at any length where the index is sound."""
        return await self.look("read", key, logfile.last_entries, self.paths(key), count)

    async def tree(self, key: Key, /) -> SessionTree:
        return await self.look("read", key, self._tree, key)

    def _tree(self, key: Key) -> SessionTree:
        with LogFile(self.paths(key)) as log:
            return logfile.load_tree(log)

    async def fork(self, source: Key, target: Key, header: Header, /, *, entry: str | None) -> None:
        await self.look("fork", source, self._fork, source, target, header, entry)

    def _fork(self, source: Key, target: Key, header: Header, entry: str | None) -> None:
        self.layout.make(target, "sessions", sync=True, files=self.files)
        with LogFile(self.paths(source)) as log:
            try:
                write_fork(log, self.paths(target), header, entry, self.files)
            except KeyError as error:
                raise _no_entry(source, entry) from error

    async def delete(self, key: Key, /) -> None:
        await self.call("delete", key, self._delete, key)

    def _delete(self, key: Key) -> None:
        """Everything whose name begins with the session's; the log last, so that a broken-off attempt can be repeated."""
        paths = self.paths(key)
        logfolders.remove(paths, paths.log, self.files)

    async def rows(self, keys: Sequence[Key], /) -> AsyncIterator[list[tuple[Key, Row | None]]]:
        from acpd_backends.rowreader import Task, read_all  # where there is something to read again

        tasks = [Task(key.session, key.agent, key.user, str((at := self.paths(key)).folder), at.stem) for key in keys]
        async for part in read_all(tasks):
            yield [(Key(task.agent, task.session, task.user), found.row) for task, found in part if not found.unreadable]

    async def sizes(self, keys: Sequence[Key], /) -> list[int | None]:
        folders: dict[tuple[str, str | None], str] = {}
        paths: list[str] = []
        for key in keys:
            place = (key.agent, key.user)
            if place not in folders:
                folders[place] = str(self.layout.sessions(key))
            paths.append(f"{folders[place]}/{encode(key.session)}.log.jsonl")
        return await asyncio.to_thread(lambda: [_size(path) for path in paths])

    async def scan(self, user: str | None, /) -> AsyncIterator[Key]:
        keys = logfolders.scan(self.layout, user)
        while (found := await asyncio.to_thread(next, keys, None)) is not None:
            for key in found:
                yield key

    async def sweep(self, user: str | None, /, *, rest: float = 0) -> set[str]:
        pieces = logfolders.sweep(self.layout, user, self.files)
        found: set[str] = set()
        try:
            if not rest:
                return await asyncio.to_thread(lambda: found.union(*pieces))
            async for piece in in_pieces(lambda: asyncio.to_thread(next, pieces, None), rest):
                found |= piece
        except OSError as error:
            raise failed("look through", f"the store {self.layout.home(user)}", error) from error
        return found

    async def close(self) -> None:
        """Close every log that is still open and wait for its sync. Raises the first StoreError, after all were tried."""
        failures = []
        for journal in list(self._open.values()):
            try:
                await journal.close()
            except StoreError as error:
                failures.append(error)
        await self.committer.close()
        if failures:
            raise failures[0]


def _next_of(key: Key, windows: Iterator[list[Stored]]) -> list[Stored] | None:
    try:
        return next(windows, None)
    except KeyError as error:
        raise _no_entry(key, str(error.args[0])) from error


def _size(path: str) -> int | None:
    try:
        return os.stat(path).st_size
    except OSError:
        return None


def _no_entry(key: Key, entry: str | None) -> StoreError:
    return StoreError("find", f"entry {entry} of session {key.session}", hint="'acpd tree' lists them")


def _read_only(key: Key, cause: str) -> SessionReadOnly:
    hint = f"nothing was changed; acpd show {key.session} shows what can be read"
    return SessionReadOnly("open", f"session {key.session}", cause=cause, hint=hint)


def _check_writable(log: LogFile, key: Key) -> None:
    header = log.any_header()
    if header is None:
        raise _read_only(key, "the log is empty" if log.size == 0 else "it has no usable header")
    if header.version > VERSION:
        raise _read_only(key, f"it was written by a newer version (format {header.version}, this is {VERSION})")


def _mend_tail(log: LogFile, paths: LogPaths, files: Files) -> str:
    """End a last line that only lacks its newline; cut off a torn one and keep it aside. What was done, if anything."""
    tail = logfile.torn_tail(log)
    if tail is None:
        return ""
    at, whole = tail
    if whole:
        files.append(paths.log, b"\n")
        return ""
    number = 1
    while paths.torn(number).exists():
        number += 1
    files.truncate_tail(paths.log, at, paths.torn(number))
    return f"a torn last line was cut off and kept as {paths.torn(number).name}"
