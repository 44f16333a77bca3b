"""A model of a disk: what was done to it, step by step, and what a crash after any step may leave of it.

`RecordingFiles` does what it is told in a real folder and notes it. Inodes have numbers of the model's own, so that a
file keeps its identity over a rename, and a disk over a restart. What is on disk for certain is what a sync covers that
has *returned* and *began* after it (POSIX.1-2017 fsync, fdatasync); a file's own sync says nothing about its name, which
a sync of its folder covers. A sync that failed takes the writes before it with it: no later sync covers them, because
the kernel may have marked their pages clean.

SQLite does not write through the seam: after each commit a copy of the database is a step of its own.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Concatenate, NamedTuple, ParamSpec, TypeVar

from acpd_backends.files import failed
from acpd_backends.sqlite import Database
from tests.backends.journal_logs import FaultyFiles

if TYPE_CHECKING:
    from sqlite3 import Connection

P = ParamSpec("P")
T = TypeVar("T")
BASE = 0
"""The inode of the folder in which the store is made. It is there for certain."""


class Write(NamedTuple):
    inode: int
    offset: int
    data: bytes


class Truncate(NamedTuple):
    inode: int
    size: int


class Names(NamedTuple):
    """Names of one folder and what they stand for now; None: nothing. All of it happens, or nothing."""

    folder: int
    changes: tuple[tuple[str, int | None], ...]


class Began(NamedTuple):
    """A sync of this file or folder."""

    inode: int


class Synced(NamedTuple):
    """It returned. `began`: the number of its step."""

    inode: int
    began: int


class Failed(NamedTuple):
    inode: int
    began: int


class Committed(NamedTuple):
    """A transaction of SQLite is in the file `name` of this folder. `durable`: it is on disk, and so are those before it."""

    folder: int
    name: str
    data: bytes
    durable: bool


class Mark(NamedTuple):
    """Something left acpd: what it promised is `promise`, a value of the test's."""

    promise: object


Step = Write | Truncate | Names | Began | Synced | Failed | Committed | Mark
State = dict[str, bytes | None]
"""A disk after a crash: each path with its bytes; None: a folder."""


def is_lesser(name: str) -> bool:
    """Whether a file's bytes mean nothing after a crash (flock), or come by `Committed`."""
    return name.endswith((".lock", ".db", "-wal", "-shm"))


class Disk:
    """Everything that was done, and what the kernel shows of it now."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.folders: dict[int, dict[str, int]] = {BASE: {}}
        self.files: dict[int, bytearray] = {}
        self.base: tuple[dict[int, dict[str, int]], dict[int, bytes]] = ({BASE: {}}, {})
        """Folders and files that were there, durably, before the first step."""
        self.kinds: dict[int, bool] = {BASE: True}
        """Of each inode whether it is a folder."""

    def new_inode(self, *, folder: bool) -> int:
        inode = len(self.kinds)
        self.kinds[inode] = folder
        return inode

    @classmethod
    def of(cls, state: State) -> Disk:
        """A disk that holds this, all of it durably: the machine was started again."""
        disk = cls()
        copies: list[Step] = []
        for path in sorted(state):
            folder, name = disk.place(path)
            data = state[path]
            if is_lesser(name):
                copies.append(Committed(folder, name, data or b"", durable=True))
                continue
            inode = disk.new_inode(folder=data is None)
            disk._name(folder, name, inode)
            if data is not None:
                disk.files[inode] = bytearray(data)
        disk._set_base()
        disk.steps = copies
        return disk

    def _set_base(self) -> None:
        folders = {inode: dict(names) for inode, names in self.folders.items()}
        self.base = (folders, {inode: bytes(data) for inode, data in self.files.items()})

    def until(self, number: int, cut: int | None = None) -> Disk:
        """The disk as it was after so many steps, of the last write only `cut` bytes."""
        disk = Disk()
        disk.base, disk.kinds = self.base, self.kinds
        disk.folders = {inode: dict(names) for inode, names in self.base[0].items()}
        disk.files = {inode: bytearray(data) for inode, data in self.base[1].items()}
        for at, step in enumerate(self.steps[:number], 1):
            torn = isinstance(step, Write) and at == number and cut is not None
            disk.do(step._replace(data=step.data[:cut]) if torn and isinstance(step, Write) else step)
        return disk

    def do(self, step: Step) -> None:
        """One more step."""
        self.steps.append(step)
        if isinstance(step, Names):
            for name, inode in step.changes:
                self._name(step.folder, name, inode)
        elif isinstance(step, Write | Truncate):
            apply(self.files[step.inode], step)

    def _name(self, folder: int, name: str, inode: int | None) -> None:
        if inode is None:
            self.folders[folder].pop(name, None)
            return
        self.folders[folder][name] = inode
        if self.kinds[inode]:
            self.folders.setdefault(inode, {})
        else:
            self.files.setdefault(inode, bytearray())

    @contextmanager
    def syncing(self, inode: int) -> Generator[None]:
        began = len(self.steps)
        self.do(Began(inode))
        try:
            yield
        except OSError:
            self.do(Failed(inode, began))
            raise
        self.do(Synced(inode, began))

    def mark(self, promise: object) -> None:
        """Something left acpd."""
        self.do(Mark(promise))

    def place(self, path: str) -> tuple[int, str]:
        """(inode of the folder, name) of this path. Raises KeyError for a folder that is not there."""
        *above, name = path.split("/")
        folder = BASE
        for part in above:
            folder = self.folders[folder][part]
        return folder, name

    def inode(self, path: str) -> int | None:
        try:
            folder, name = self.place(path)
        except KeyError:
            return None
        return self.folders[folder].get(name)

    def text(self, path: str) -> bytes:
        """What stands in the file at this path; empty if there is none."""
        inode = self.inode(path)
        return b"" if inode is None else bytes(self.files[inode])


def apply(data: bytearray, step: Write | Truncate) -> None:
    """What the step does to a file; a gap is zeros."""
    size = step.size if isinstance(step, Truncate) else step.offset
    if len(data) < size:
        data.extend(bytes(size - len(data)))
    if isinstance(step, Truncate):
        del data[step.size :]
    else:
        data[step.offset : step.offset + len(step.data)] = step.data


Fault = Callable[[str, str], int | None]
"""Asked before each call of the seam, with its name and path: raises OSError, or gives how many bytes a write may take."""


def _at_once(call: Callable[Concatenate[RecordingFiles, P], T]) -> Callable[Concatenate[RecordingFiles, P], T]:
    """The call and its note are one step: what another thread does meanwhile must not come between."""

    def locked(self: RecordingFiles, /, *args: P.args, **kwargs: P.kwargs) -> T:
        with self.order:
            return call(self, *args, **kwargs)

    return locked


class RecordingFiles(FaultyFiles):
    """Real files below `base`, and a note of each call in `disk`. `fault` may make a call fail: `calls` counts them."""

    def __init__(self, disk: Disk, base: Path) -> None:
        super().__init__()
        self.disk = disk
        self.base = base
        self.calls = 0
        self.fault: Fault | None = None
        self.order = threading.RLock()
        self._open: dict[int, tuple[int, bool, str]] = {}
        """Of a descriptor: inode, whether it appends, path."""

    def path(self, path: Path) -> str:
        return os.path.relpath(path, self.base)

    def _asked(self, call: str, path: str) -> int | None:
        self.calls += 1
        return self.fault(call, path) if self.fault is not None else None

    @_at_once
    def open(self, path: Path, flags: int) -> int:
        where = self.path(path)
        self._asked("open", where)
        fd = super().open(path, flags)
        folder, name = self.disk.place(where)
        if is_lesser(name) or "/locks/" in where:
            return fd
        inode = self.disk.inode(where)
        if inode is None:
            inode = self.disk.new_inode(folder=False)
            self.disk.do(Names(folder, ((name, inode),)))
        elif flags & os.O_TRUNC:
            self.disk.do(Truncate(inode, 0))
        self._open[fd] = (inode, bool(flags & os.O_APPEND), where)
        return fd

    def close(self, fd: int) -> None:
        self._open.pop(fd, None)
        super().close(fd)

    @_at_once
    def write(self, fd: int, data: bytes | memoryview) -> int:
        inode, appends, where = self._open.get(fd, (None, False, "a lock"))
        limit = self._asked("write", where)
        if limit is not None:
            data = data[: max(1, limit)]
        if inode is None:
            return super().write(fd, data)
        offset = len(self.disk.files[inode]) if appends else os.lseek(fd, 0, os.SEEK_CUR)
        written = super().write(fd, data)
        self.disk.do(Write(inode, offset, bytes(data[:written])))
        return written

    @_at_once
    def truncate(self, fd: int, size: int) -> None:
        inode, _, where = self._open.get(fd, (None, False, "a lock"))
        self._asked("truncate", where)
        super().truncate(fd, size)
        if inode is not None:
            self.disk.do(Truncate(inode, size))

    def fdatasync(self, fd: int) -> None:
        inode, _, where = self._open[fd]
        with self.disk.syncing(inode):
            self._asked("fdatasync", where)
            super().fdatasync(fd)

    def fsync(self, fd: int) -> None:
        where = self.path(Path(os.readlink(f"/proc/self/fd/{fd}")))
        inode = BASE if where == "." else self.disk.inode(where)
        if inode is None:  # above the folder that the model knows: not of ours
            return
        with self.disk.syncing(inode):
            self._asked("fsync", where)
            super().fsync(fd)

    @_at_once
    def replace(self, source: Path, target: Path) -> None:
        self._asked("replace", self.path(target))
        super().replace(source, target)
        folder, old = self.disk.place(self.path(source))
        there, new = self.disk.place(self.path(target))
        if is_lesser(old.partition(".unreadable-")[0]):
            return
        assert folder == there, "the model knows no rename between folders"
        self.disk.do(Names(folder, ((old, None), (new, self.disk.folders[folder][old]))))

    @_at_once
    def link(self, source: Path, target: Path) -> None:
        self._asked("link", self.path(target))
        inode = self.disk.inode(self.path(source))
        known = self.disk.inode(self.path(target))
        super().link(source, target)
        folder, name = self.disk.place(self.path(target))
        if known is None:
            self.disk.do(Names(folder, ((name, inode),)))

    @_at_once
    def unlink(self, path: Path) -> None:
        self._asked("unlink", self.path(path))
        super().unlink(path)
        self._gone(self.path(path))

    @_at_once
    def mkdir(self, path: Path) -> bool:
        self._asked("mkdir", self.path(path))
        made = super().mkdir(path)
        folder, name = self.disk.place(self.path(path))
        if made:
            inode = self.disk.new_inode(folder=True)
            self.disk.do(Names(folder, ((name, inode),)))
        return made

    @_at_once
    def rmdir(self, path: Path) -> None:
        self._asked("rmdir", self.path(path))
        super().rmdir(path)
        self._gone(self.path(path))

    def _gone(self, path: str) -> None:
        if self.disk.inode(path) is not None:
            folder, name = self.disk.place(path)
            self.disk.do(Names(folder, ((name, None),)))

    def commits(self, path: Path) -> None:
        """A transaction is about to be committed: the fault may refuse it."""
        self._asked("commit", self.path(path))

    def committed(self, path: Path, data: bytes, *, durable: bool) -> None:
        folder, name = self.disk.place(self.path(path))
        self.disk.do(Committed(folder, name, data, durable))


@contextmanager
def recorded_databases() -> Generator[None]:
    """Each commit of a database on recording files is a step, before anybody is told of it, and can be refused like one."""
    real = Database._commit

    def commit(self: Database, db: Connection, works: Sequence[Callable[[Connection], T]]) -> list[T]:
        files = self._files
        if not isinstance(files, RecordingFiles):
            return real(self, db, works)
        try:
            files.commits(self.path)
        except OSError as error:
            raise failed("write", str(self.path), error) from None
        results = real(self, db, works)
        files.committed(self.path, db.serialize(), durable=self._settings["synchronous"] == "FULL")
        return results

    Database._commit = commit  # type: ignore[method-assign]
    try:
        yield
    finally:
        Database._commit = real  # type: ignore[method-assign]


def refused(number: int) -> OSError:
    return OSError(number, os.strerror(number))


FULL, BROKEN, READ_ONLY = errno.ENOSPC, errno.EIO, errno.EROFS
