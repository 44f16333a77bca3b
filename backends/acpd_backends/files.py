"""Every file that acpd writes is opened, written, synced, renamed and removed here, and nowhere else.

`Files` is the seam: its small methods are the system calls, the others are made of them, so that a test can
record them, fail one, or cut the power after any. All of them block and are called in threads; the exception
is `write` to a file that `open_append` opened: O_NONBLOCK, without effect on disk files, marks the one call
that may be made on the event loop (a small append to the page cache takes about 2 us).

Durable means: the bytes by fdatasync (F_FULLFSYNC on macOS, where fsync stops at the drive's cache), the name
by fsync of its folder. All methods raise OSError; `failed` turns one into a StoreError.
"""

from __future__ import annotations

import errno
import itertools
import os
import re
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from acpd.errors import StoreError

_FULL = {errno.ENOSPC: "disk full: free space and send again", errno.EDQUOT: "over quota: free space and send again"}
_RIGHTS = {errno.EACCES, errno.EPERM, errno.EROFS}
_PLACE = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}
_LASTING = {errno.ENAMETOOLONG, errno.EISDIR, errno.ENOTDIR, errno.ELOOP, errno.EEXIST}
_BLOCK = 1 << 20
_temp = itertools.count()
TEMP = re.compile(r"(.+)\.(\d{1,10})(?:-\d+)?\.tmp\Z")
"""What a file is called until it is whole: its own name, and the pid of who writes it."""
_STARTED = time.time()


def failed(operation: str, target: str, error: OSError) -> StoreError:
    """The StoreError for this failure of `operation` on `target`, with the next step where there is one."""
    hint = _FULL.get(error.errno or 0, "")
    if error.errno in _RIGHTS:
        hint = "check the rights of the file and its folder"
    elif error.errno in _PLACE:
        hint = "check [storage] path: a folder that acpd can make or write"
    retryable = error.errno not in _LASTING
    return StoreError(operation, target, cause=error.strerror or str(error), hint=hint, retryable=retryable)


def is_abandoned(temp: Path) -> bool:
    """Whether nobody writes this file with a name as TEMP any more: its process is dead, or was an earlier one with our pid."""
    match = TEMP.match(temp.name)
    if match is None:
        return False
    try:
        if int(match[2]) == os.getpid():
            return temp.stat().st_mtime < _STARTED
        os.kill(int(match[2]), 0)
    except (ProcessLookupError, OverflowError):
        return True
    except OSError:
        return False
    return False


def _is_fresh(folder: Path) -> bool:
    """Whether a folder may have been made by one of us who was killed before its name was on disk: it is empty then."""
    with os.scandir(folder) as entries:
        return next(entries, None) is None and os.access(folder.parent, os.W_OK)


class Files:
    """Blocking file operations. Paths may be relative only where the caller wants them so. Files are 0600, folders 0700."""

    @property
    def syncs_by_kernel(self) -> bool:
        """Whether `fdatasync` may be left to acpd_backends.kernelsync: not where it is something else."""
        return type(self).fdatasync is Files.fdatasync

    # The system calls.

    def open(self, path: Path, flags: int) -> int:
        return os.open(path, flags | os.O_CLOEXEC, 0o600)

    def close(self, fd: int) -> None:
        os.close(fd)

    def write(self, fd: int, data: bytes | memoryview) -> int:
        """How many bytes the kernel took; it may be less than all."""
        return os.write(fd, data)

    def truncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def fdatasync(self, fd: int) -> None:
        """The bytes of this file, and its size, are on disk."""
        if sys.platform == "darwin":
            import fcntl

            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
        else:
            os.fdatasync(fd)

    def fsync(self, fd: int) -> None:
        os.fsync(fd)

    def replace(self, source: Path, target: Path) -> None:
        os.replace(source, target)

    def link(self, source: Path, target: Path) -> None:
        """A second name for a file that never changes; a copy where the file system has no such thing."""
        try:
            os.link(source, target, follow_symlinks=False)
        except FileExistsError:
            return
        except OSError:
            self.write_atomic(target, source.read_bytes(), sync=True)

    def unlink(self, path: Path) -> None:
        """Absent is no error."""
        try:
            os.unlink(path)
        except FileNotFoundError:
            return

    def mkdir(self, path: Path) -> bool:
        """Whether it was made; False if it was there."""
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            return False
        return True

    def rmdir(self, path: Path) -> None:
        """Absent is no error."""
        try:
            os.rmdir(path)
        except FileNotFoundError:
            return

    # What is made of them.

    def open_append(self, path: Path, *, create: bool) -> int:
        """A descriptor at whose end `write` may be called on the event loop. `create`: the file must not be there yet."""
        flags = os.O_RDWR | os.O_APPEND | os.O_NONBLOCK
        return self.open(path, flags | (os.O_CREAT | os.O_EXCL if create else 0))

    def open_lock(self, path: Path) -> int:
        """A descriptor to take flock on; the file is made if it is absent."""
        return self.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)

    def write_all(self, fd: int, data: bytes | memoryview) -> None:
        left = memoryview(data)
        while left:
            left = left[self.write(fd, left) :]

    def append(self, path: Path, data: bytes, *, sync: bool = False) -> None:
        """All of `data` at the end of the file, which is made if it is absent. `sync`: it is on disk; the name is not."""
        fd = self.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            self.write_all(fd, data)
            if sync:
                self.fdatasync(fd)
        finally:
            self.close(fd)

    def write_again(self, path: Path, start: int, end: int) -> None:
        """Write the bytes of this range once more where they stand, so that the next sync covers them."""
        fd = self.open(path, os.O_RDWR)
        try:
            os.lseek(fd, start, os.SEEK_SET)
            while start < end and (data := os.pread(fd, min(_BLOCK, end - start), start)):
                self.write_all(fd, data)
                start += len(data)
        finally:
            self.close(fd)

    def sync_folder(self, path: Path) -> None:
        """The names in this folder are on disk."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self.fsync(fd)
        finally:
            os.close(fd)

    def make_folders(self, path: Path, *, sync: bool) -> None:
        """This folder and those above it. `sync`: the name of each that was made is on disk.

        So is that of one that is there and empty; what is in a folder was put there after its name was on disk, if all
        who make it ask for `sync`.
        """
        missing = []
        while not path.is_dir():
            missing.append(path)
            path = path.parent
        if sync and _is_fresh(path):
            self.sync_folder(path.parent)
        for folder in reversed(missing):
            self.mkdir(folder)
            if sync:
                self.sync_folder(folder.parent)

    def write_atomic(self, path: Path, data: bytes, *, sync: bool) -> None:
        """The file holds either what it held or all of `data`, whatever happens. `sync`: and the latter is on disk."""
        self.write_pieces(path, (data,), sync=sync)

    def write_pieces(self, path: Path, pieces: Iterable[bytes], *, sync: bool) -> None:
        """As `write_atomic`, of what does not fit into memory."""
        temp = path.with_name(f"{path.name}.{os.getpid()}-{next(_temp)}.tmp")
        fd = self.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            try:
                for data in pieces:
                    self.write_all(fd, data)
                if sync:
                    self.fdatasync(fd)
            finally:
                self.close(fd)
            self.replace(temp, path)
        except Exception:  # of who makes the pieces as well
            self.unlink(temp)
            raise
        if sync:
            self.sync_folder(path.parent)

    def truncate_tail(self, path: Path, at: int, keep_as: Path) -> None:
        """Cut the file at byte `at`; what stood behind is in `keep_as`, durably, before it is cut."""
        with path.open("rb") as source:
            source.seek(at)
            self.write_atomic(keep_as, source.read(), sync=True)
        fd = self.open(path, os.O_WRONLY)
        try:
            self.truncate(fd, at)
            self.fdatasync(fd)
        finally:
            self.close(fd)

    def keep_tail(self, path: Path, keep: int) -> None:
        """Shorten a file to its last whole lines of at most `keep` bytes while another process appends to it.

        What that one writes within these few microseconds may be lost; nothing else is, and it need not reopen the file.
        """
        fd = self.open(path, os.O_RDWR | os.O_APPEND)
        try:
            size = os.fstat(fd).st_size
            tail = os.pread(fd, keep, max(0, size - keep))
            if size > keep:
                tail = tail[tail.find(b"\n") + 1 :]
            self.truncate(fd, 0)
            self.write_all(fd, tail)
        finally:
            self.close(fd)

    def remove_tree(self, path: Path) -> None:
        """Remove a folder of ours with the files in it. Links are removed, not followed. Absent is no error."""
        try:
            with os.scandir(path) as entries:
                found = [(Path(entry.path), entry.is_dir(follow_symlinks=False)) for entry in entries]
        except FileNotFoundError:
            return
        for child, is_folder in found:
            if is_folder:
                self.remove_tree(child)
            else:
                self.unlink(child)
        self.rmdir(path)


FILES = Files()
"""The real ones."""
