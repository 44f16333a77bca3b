"""One open log: appended to on the event loop, put on disk and healed in threads."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from acpd.errors import StoreError
from acpd.storage.contract import Journal, Key
from acpd.storage.fold import Fold
from acpd.wire.lines import Header, header_line
from acpd_backends.blobfiles import put_blobs
from acpd_backends.commits import Syncable, SyncJob
from acpd_backends.files import Files, failed
from acpd_backends.indexfile import update_index
from acpd_backends.logfile import LogPaths

if TYPE_CHECKING:
    from acpd_backends.jsonl import JsonlJournals

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
            self._left += b"".join(self._buffer)  # most often one piece and nothing left: no byte is copied then
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

    def sync_job(self) -> SyncJob:
        folder = self.paths.folder if self._synced < 0 else None
        run = partial(self._sync, self._fd, self._size, folder)
        return SyncJob(self._size, run, -1 if folder else self._fd, partial(self._check, self._fd, self._size))

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
