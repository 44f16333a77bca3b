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
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from acpd.errors import SessionNotFound, SessionReadOnly, StoreError
from acpd.storage.contract import Journal, Journals, Key, Row
from acpd.storage.fold import Fold
from acpd.storage.tree import SessionTree
from acpd.wire.lines import VERSION, Header, Stored, header_line
from acpd_backends import logfile, logfolders
from acpd_backends.blobfiles import put_blobs
from acpd_backends.commits import Committer, Syncable
from acpd_backends.files import FILES, Files, failed
from acpd_backends.forks import write_fork
from acpd_backends.indexfile import update_index, write_index
from acpd_backends.logfile import LogFile, LogPaths
from acpd_backends.names import Layout, encode

if TYPE_CHECKING:
    from acpd.storage.upkeep import Upkeep

P = ParamSpec("P")
T = TypeVar("T")
_TAIL = 4096


class JsonlJournal(Journal, Syncable):
    """One open log. `append`, `flush` and `sync` on the loop; made by JsonlJournals."""

    __slots__ = (
        "_buffer",
        "_fd",
        "_files",
        "_left",
        "_lock",
        "_size",
        "_start",
        "_store",
        "_suspect",
        "_synced",
        "_tail",
        "fold",
        "header",
        "key",
    )

    def __init__(self, store: JsonlJournals, key: Key, header: Header, fold: Fold, descriptor: int, size: int) -> None:
        self.header = header
        self.fold = fold
        self.key = key
        self._store = store
        self._files = store.files
        self._fd = descriptor
        self._buffer: list[bytes] = []
        self._left = b""
        self._size = self._start = size
        self._synced = -1
        """Bytes that are on disk, their name included; -1: nobody knows."""
        self._tail = b""
        self._suspect: StoreError | None = None
        self._lock: asyncio.Lock | None = None

    @property
    def size(self) -> int:
        return self._size

    @property
    def paths(self) -> LogPaths:
        """Made when they are wanted: an idle session holds none."""
        return self._store.paths(self.key)

    def append(self, line: bytes, /) -> None:
        self._buffer.append(line)

    def flush(self) -> None:
        if self._suspect is not None:
            self._heal(self._suspect)
            raise self._suspect
        if self._buffer:
            self._left = b"".join([self._left, *self._buffer])
            self._buffer.clear()
        while self._left:
            try:
                written = self._files.write(self._fd, self._left)
            except OSError as error:
                raise failed("append to", self._target, error) from error
            self._size += written
            if self._store.power_safe:
                self._tail = self._left[max(0, written - _TAIL) : written]
            self._left = self._left[written:]

    def sync(self) -> asyncio.Future[None] | None:
        if self._synced >= self._size:
            return None
        if self._suspect is None and not self._store.power_safe:
            try:
                self._check(self._fd, self._size)  # of an open file: a microsecond, no disk
            except StoreError as error:
                self.suspect(error)
            else:
                self._synced = self._size
                return None
        if self._suspect is not None:
            self._heal(self._suspect)
            refused: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            refused.set_exception(self._suspect)
            return refused
        return self._store.committer.wait(self)

    @property
    def _target(self) -> str:
        return f"the log of session {self.key.session}"

    # For the committer.

    def sync_job(self) -> tuple[int, Callable[[], None]]:
        folder = self.paths.folder if self._synced < 0 else None
        return self._size, partial(self._sync, self._fd, self._size, folder)

    def _sync(self, descriptor: int, size: int, folder: Path | None) -> None:
        self._files.fdatasync(descriptor)
        self._check(descriptor, size)
        if folder is not None:
            self._files.sync_folder(folder)

    def _check(self, descriptor: int, size: int) -> None:
        """Raises StoreError if the log has lost its name, or bytes: what is appended to it nobody would ever read."""
        found = os.fstat(descriptor)
        if found.st_nlink == 0 or found.st_size < size:
            cause = "it was removed, replaced or cut by somebody else"
            raise StoreError("go on with", str(self.paths.log), cause=cause, hint="start acpd anew to go on with what is there")

    def synced(self, size: int) -> None:
        self._synced = size
        if size == self._size:
            self._tail = b""

    def suspect(self, error: OSError | StoreError) -> StoreError:
        if isinstance(error, StoreError):
            self._suspect = error
            return error
        self._suspect = failed("sync", self._target, error)
        self._suspect.retryable = True
        return self._suspect

    def repair_job(self) -> Callable[[], int]:
        since = max(self._synced, self._start)
        descriptor, self._fd = self._fd, -1
        return partial(_reopen, self._files, self.paths.log, descriptor, since, self._size, self._tail)

    def repaired(self, descriptor: int | None, error: StoreError | None) -> None:
        if descriptor is not None:
            self._fd = descriptor
            self._suspect = None
        elif error is not None:
            self._suspect = error

    def _heal(self, cause: StoreError) -> None:
        if cause.retryable and not self._store.committer.busy(self):
            self._store.committer.repair(self, [], cause)

    # In threads.

    async def put_blobs(self, blobs: Sequence[tuple[str, bytes]], /) -> None:
        if blobs:
            sync = self._store.power_safe
            await self._store.call("store a blob of", self.key, put_blobs, self._files, self.paths.blobs, blobs, sync)

    async def write_context(self, lines: bytes, *, fresh: bool) -> None:
        async with self._serial():
            await self._store.call("write the context of", self.key, self._write_context, lines, fresh)

    def _write_context(self, lines: bytes, fresh: bool) -> None:  # noqa: FBT001 - passed on by to_thread
        path = self.paths.context
        if fresh or not path.exists():
            head = b"" if lines.startswith(b'{"type":"session"') else header_line(self.header)
            self._files.write_atomic(path, head + lines, sync=False)
        else:
            self._files.append(path, lines)

    async def index(self) -> None:
        """Bring the index file up to date with what was flushed. It is a cache: a failure is not told."""
        async with self._serial():
            await asyncio.to_thread(update_index, self.paths, self._files)

    def _serial(self) -> asyncio.Lock:
        """Held while one of the session's lesser files is written; made when it is first needed."""
        if self._lock is None:
            self._lock = asyncio.Lock()
        return self._lock

    async def close(self) -> None:
        """See Journal. In "power" mode what was flushed is synced too. Raises StoreError, and then it is still open."""
        if self._store.forget(self):
            try:
                self.flush()
                waiter = self.sync()
                if waiter is not None:
                    await waiter
            except StoreError:
                self._store.keep(self)
                raise
            try:
                await self.index()
            finally:
                await self._store.call("close", self.key, self.abandon)

    async def discard(self) -> None:
        """See Journal. A line that was written in part is cut off when the log is next opened."""
        if self._store.forget(self):
            with contextlib.suppress(StoreError):
                await self._store.call("close", self.key, self.abandon)

    def abandon(self) -> None:
        """Close the file and nothing else. Blocks."""
        descriptor, self._fd = self._fd, -1
        self._files.close(descriptor)


def _reopen(files: Files, path: Path, descriptor: int, since: int, size: int, tail: bytes) -> int:
    """After a failed sync: a new descriptor of a file that holds what was written.

    The bytes from `since` on are written again in place: the kernel may have marked their pages clean although they
    never reached the disk, and the next sync would pass them over. Raises StoreError if the file holds something else.
    """
    if descriptor >= 0:
        files.close(descriptor)
    fresh = files.open_append(path, create=False)
    if os.fstat(fresh).st_size != size or os.pread(fresh, len(tail), size - len(tail)) != tail:
        files.close(fresh)
        raise StoreError(
            "go on with", str(path), cause="it does not hold what was written to it", hint="close the session and open it again"
        )
    files.write_again(path, since, size)
    return fresh


class JsonlJournals(Journals):
    """The logs below `layout.root`. Bound to one event loop."""

    def __init__(self, layout: Layout, *, sync: bool = True, files: Files = FILES) -> None:
        """`sync`: what was acknowledged outlives a power loss ("power"), or else the process only ("process")."""
        self.layout = layout
        self.power_safe = sync
        self.files = files
        self.committer = Committer()
        self._open: dict[Key, JsonlJournal] = {}

    @property
    def upkeep(self) -> Upkeep:
        from acpd_backends.upkeep import JsonlUpkeep  # for a few commands only

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

    async def _look(self, operation: str, key: Key, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
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
        opened = await self._look("read", key, self._peek, key)
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
        while (window := await self._look("read", key, _next_of, key, windows)) is not None:
            yield window

    async def last(self, key: Key, count: int, /) -> list[Stored]:
        """A few milliseconds at any length where the index is sound."""
        return await self._look("read", key, logfile.last_entries, self.paths(key), count)

    async def tree(self, key: Key, /) -> SessionTree:
        return await self._look("read", key, self._tree, key)

    def _tree(self, key: Key) -> SessionTree:
        with LogFile(self.paths(key)) as log:
            return logfile.load_tree(log)

    async def fork(self, source: Key, target: Key, header: Header, /, *, entry: str | None) -> None:
        await self._look("fork", source, self._fork, source, target, header, entry)

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

    async def confirm_gone(self, key: Key, /) -> None:
        if self.power_safe:
            with contextlib.suppress(SessionNotFound):  # its folder is gone too
                await self._look("remove", key, self.files.sync_folder, self.paths(key).folder)

    async def rows(self, keys: Sequence[Key], /) -> AsyncIterator[list[tuple[Key, Row | None]]]:
        from acpd_backends.rowreader import Task, read_all  # where there is something to read again

        tasks = [Task(key.session, key.agent, key.user, str((at := self.paths(key)).folder), at.stem) for key in keys]
        async for part in read_all(tasks):
            yield [(Key(task.agent, task.session, task.user), found.row) for task, found in part if not found.unreadable]

    async def sizes(self, keys: Sequence[Key], /) -> list[int | None]:
        paths = [self.paths(key).log for key in keys]
        return await asyncio.to_thread(lambda: [_size(path) for path in paths])

    async def scan(self, user: str | None, /) -> AsyncIterator[Key]:
        keys = logfolders.scan(self.layout, user)
        while (found := await asyncio.to_thread(next, keys, None)) is not None:
            for key in found:
                yield key

    async def sweep(self, user: str | None, /) -> set[str]:
        try:
            return await asyncio.to_thread(logfolders.sweep, self.layout, user, self.files)
        except OSError as error:
            raise failed("look through", f"the store {self.layout.home(user)}", error) from error

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


def _size(path: Path) -> int | None:
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
