"""Faults that work for root too: a disk without space, a folder that is no folder."""

from __future__ import annotations

import os
import resource
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from tests.support.walk import sizes


class Disk:
    """A place for a store whose space can be taken away and given back.

    A small tmpfs where mounting is allowed (ENOSPC); elsewhere a limit on the size of the process's files (EFBIG): the
    writer sees a failing write(2) either way.
    """

    def __init__(self, path: Path, *, mounted: bool) -> None:
        self.path = path
        self.mounted = mounted
        self._filler = path / "filler"

    def fill(self, pid: int) -> None:
        """From now on a write of this process fails."""
        if not self.mounted:
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))
            return
        with self._filler.open("wb", buffering=0) as file:
            for size in (1 << 16, 1 << 12, 1):
                try:
                    while file.write(b"\0" * size):
                        pass
                except OSError:
                    continue

    def free(self, pid: int) -> None:
        if self.mounted:
            self._filler.unlink(missing_ok=True)
        else:
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


@contextmanager
def small_disk(path: Path, size: int = 8 << 20) -> Generator[Disk]:
    """A disk of `size` bytes mounted at `path`; unmounted at the end."""
    path.mkdir(parents=True)
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)], capture_output=True)
    disk = Disk(path, mounted=made.returncode == 0)
    try:
        yield disk
    finally:
        if disk.mounted:
            subprocess.run(["umount", "--lazy", str(path)], check=True)


def bound_by_rights(command: list[str]) -> list[str]:
    """The command so that the rights of files bind it, for root as well."""
    return ["setpriv", "--bounding-set", "-dac_override,-dac_read_search", *command] if os.geteuid() == 0 else command


def log_bytes(home: Path) -> int:
    """Bytes of all logs below this folder."""
    return sum(sizes(home, "*.log.jsonl").values())


def not_executable(path: Path) -> Path:
    """A file that is there and cannot be run, also by root."""
    path.write_text("#!/bin/sh\nexit 0\n")
    os.chmod(path, 0o644)
    return path
