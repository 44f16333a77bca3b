"""Leases as flock on a file per session, `<home>/.acpd/locks/<agent>.<session>` (`<session>` where logs have no agent).

The lock, not the file, is the lease: it ends with the process, whatever kills it, and a file that a crash left behind
means nothing. The holder's pid stands in it for messages. The file is removed by its holder while it still has the lock;
whoever opened it before finds another file, or none, under the name, and tries again.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import hashlib
import os
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from acpd.errors import SessionBusy
from acpd.storage.contract import Key, Lease
from acpd_backends.files import FILES, Files, failed
from acpd_backends.names import Layout, encode

_TRIES = 5
_PAUSE = 0.004
"""Seconds. `holder` asks by taking a shared lock for some microseconds; a refusal within 20 ms may be only that."""
_NAME_MAX = 255


class FlockLease(Lease):
    """The leases of this process. `take` and `give_up` of one key may not overlap; different keys are independent."""

    def __init__(self, layout: Layout, *, files: Files = FILES) -> None:
        self._layout = layout
        self._files = files
        self._held: dict[Key, int | None] = {}
        """Descriptors, by what the lease is of; None while one is being taken. A path would be half a KiB a session."""

    def _of(self, key: Key) -> Key:
        """What stands for the lease: where agents have no folder of their own, theirs is no part of it."""
        return key if self._layout.per_agent else Key(agent="", session=key.session, user=key.user)

    def path(self, key: Key) -> Path:
        """The lock file of this session."""
        name = encode(key.session)
        if self._layout.per_agent:
            name = f"{encode(key.agent)}.{name}"
        if len(name) > _NAME_MAX:
            name = "~" + hashlib.sha256(name.encode()).hexdigest()
        return self._layout.private(key.user) / "locks" / name

    async def take(self, key: Key, /) -> None:
        """See Lease. Raises StoreError where the file cannot be made. Cancelling it gives the lease up again."""
        path, name = self.path(key), self._of(key)
        if name in self._held:
            raise SessionBusy(key.session, os.getpid())
        self._held[name] = None
        taking = asyncio.get_running_loop().run_in_executor(None, self._take, path)
        try:
            self._held[name] = await asyncio.shield(taking)
        except asyncio.CancelledError:
            taking.add_done_callback(partial(self._unwanted, name, path))
            raise
        except OSError as error:
            del self._held[name]
            if not isinstance(error, BlockingIOError):
                raise failed("lock", f"session {key.session} by {path}", error) from error
            pid = await asyncio.to_thread(_pid_in, path)
            raise SessionBusy(key.session, pid) from None

    def _unwanted(self, name: Key, path: Path, taking: asyncio.Future[int]) -> None:
        """Whoever wanted this lease was cancelled before it was there."""
        self._held.pop(name, None)
        if taking.exception() is None:
            asyncio.get_running_loop().run_in_executor(None, self._give_up, path, taking.result())

    def _take(self, path: Path) -> int:
        """Raises BlockingIOError if somebody else has it, OSError."""
        self._files.make_folders(path.parent.parent, sync=True)  # what must last may be in it too
        self._files.make_folders(path.parent, sync=False)
        for attempt in range(_TRIES):
            try:
                while (descriptor := self._lock(path)) is None:
                    pass  # its holder removed it meanwhile: each round another one ended
            except BlockingIOError:
                if attempt == _TRIES - 1:
                    raise
                time.sleep(_PAUSE)
            else:
                return descriptor
        raise BlockingIOError(errno.EWOULDBLOCK, "held", str(path))

    def _lock(self, path: Path) -> int | None:
        """A locked descriptor with our pid in the file; None if the file was removed before it was locked."""
        descriptor = self._files.open_lock(path)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(descriptor, path):
                self._sign(descriptor)
                return descriptor
        except BaseException:
            self._files.close(descriptor)
            raise
        self._files.close(descriptor)
        return None

    def _sign(self, descriptor: int) -> None:
        """Our pid, for messages: a full disk is no reason to refuse, deleting a session may be what makes room."""
        try:
            self._files.truncate(descriptor, 0)
            self._files.write_all(descriptor, b"%d\n" % os.getpid())
        except OSError as error:
            if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
                raise

    async def give_up(self, key: Key, /) -> None:
        descriptor = self._held.pop(self._of(key), None)
        if descriptor is not None:
            try:
                await asyncio.to_thread(self._give_up, self.path(key), descriptor)
            except OSError as error:
                raise failed("unlock", f"session {key.session}", error) from error

    def _give_up(self, path: Path, descriptor: int) -> None:
        try:
            self._files.unlink(path)
        finally:
            self._files.close(descriptor)

    async def held(self, keys: Sequence[Key], /) -> set[Key]:
        """Where there are many, only those that have a file are looked at: it is there while somebody holds it."""
        folders = {self.path(key).parent for key in keys}
        names = await asyncio.to_thread(_names, folders) if len(keys) > 1 else None
        return {key for key in keys if (names is None or self.path(key).name in names) and await self.holder(key) is not None}

    async def holder(self, key: Key, /) -> int | None:
        if self._held.get(self._of(key)) is not None:
            return os.getpid()
        return await asyncio.to_thread(_holder, self.path(key))


def _names(folders: set[Path]) -> set[str]:
    found: set[str] = set()
    for folder in folders:
        with contextlib.suppress(OSError):
            found.update(os.listdir(folder))
    return found


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether this open file still has this name."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False


def _holder(path: Path) -> int | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _pid_in(path)
    finally:
        os.close(descriptor)
    return None


def _pid_in(path: Path) -> int | None:
    """The pid in a lock file; None while it is being written or when it is gone."""
    try:
        return int(path.read_bytes())
    except (OSError, ValueError):
        return None
