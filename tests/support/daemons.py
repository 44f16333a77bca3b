"""The daemon of a test: found by the mark of its case, killed, stopped, and what it may leave behind.

It is nobody's child, so only /proc knows it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import time
from collections.abc import Mapping
from pathlib import Path

from tests.support import proc
from tests.support.walk import below

BY_DAEMON = {"ACPD_STANDALONE": "0"}
"""Lets `acpd` be a shim, which starts a daemon; tests/__init__.py has it otherwise."""
BY: Mapping[str, Mapping[str, str]] = {"standalone": {}, "daemon": BY_DAEMON}
_STAYS = {"acpd.start"}
"""A file that is locked while a daemon starts. It is never removed: somebody may wait at it."""


def pids(mark: str) -> list[int]:
    """Of the daemons of this case, also of one that is starting."""
    found = {process.pid for process in proc.marked(mark) if " serve" in process.command}
    return sorted(pid for pid in found if proc.parent(pid) not in found)  # a child that is becoming an agent is none


def wait(mark: str, *, within: float = 20.0) -> int:
    """The pid of the daemon, once there is one."""
    end = time.monotonic() + within
    while not (found := pids(mark)):
        assert time.monotonic() < end, "no daemon was started"
        time.sleep(0.005)
    return found[0]


def kill(mark: str) -> int:
    """kill -9 whatever daemon there is. How many there were."""
    killed = 0
    for pid in pids(mark):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
        proc.assert_gone(pid, within=10)
        killed += 1
    return killed


def stop(mark: str, home: Path, *, killed: bool = False, within: float = 20.0) -> None:
    """SIGTERM; then nothing is left of it and of all that it started.

    `killed`: others were killed before. The lock's file of a session that one of them was making, and nobody heard of, stays
    until that session is removed; nobody holds it.
    """
    for pid in pids(mark):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        proc.assert_gone(pid, within=within)
    proc.assert_none_left(mark)
    found = [path for path in left(home) if not killed or "/.acpd/locks/" not in path]
    assert [] == found, f"left over: {found}"


def left(home: Path) -> list[str]:
    """Sockets, pipes, held or needless locks, temporary files, open databases, files of running agents below this folder."""
    locks = Path("/proc/locks").read_text(encoding="ascii")
    held = {int(line.split()[5].split(":")[2]) for line in locks.splitlines() if "->" not in line}
    return [str(path) for path in below(home, "*") if _is_left(path, held)]


def _is_left(path: Path, held: set[int]) -> bool:
    found = path.lstat()
    if stat.S_ISSOCK(found.st_mode) or stat.S_ISFIFO(found.st_mode) or found.st_ino in held:
        return True
    in_runtime = path.parent.name == "run" or path.parent.parent.name == "run"
    return (
        path.name.endswith((".tmp", "-wal", "-shm"))
        or (path.parent.name == "locks" and stat.S_ISREG(found.st_mode))
        or (in_runtime and stat.S_ISREG(found.st_mode) and path.name not in _STAYS and path.suffix not in {".log", ".stderr"})
    )
