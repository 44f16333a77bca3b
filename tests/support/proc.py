"""Processes of one test, found by a unique variable in their environment (Linux: /proc/*/environ)."""

from __future__ import annotations

import os
import select
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

MARK = "ACPD_TEST_MARK"


class Process(NamedTuple):
    """One process as /proc shows it."""

    pid: int
    command: str


def new_mark() -> str:
    return uuid.uuid4().hex


def marked(mark: str) -> list[Process]:
    """Every living process whose environment has the mark. A zombie has no environment any more."""
    wanted = f"{MARK}={mark}".encode()
    return [Process(pid, _command(pid)) for pid in _pids() if wanted in _read(f"/proc/{pid}/environ").split(b"\0")]


def wait_none_left(mark: str, *, within: float = 10.0) -> list[Process]:
    """Those that are still alive after `within` seconds; waits for their ends, not for the clock."""
    end = time.monotonic() + within
    while (found := marked(mark)) and time.monotonic() < end:
        _wait_ended(found[0].pid, end - time.monotonic())
    return found


def assert_none_left(mark: str, *, within: float = 10.0) -> None:
    left = wait_none_left(mark, within=within)
    assert [] == left, f"processes left over: {left}"


def assert_gone(pid: int, *, within: float) -> None:
    assert _wait_ended(pid, within), f"process {pid} is still alive: {_command(pid)}"


def kill_marked(mark: str) -> None:
    """End what a failed test left behind."""
    for process in marked(mark):
        try:
            os.kill(process.pid, 9)
        except ProcessLookupError:
            continue


def rss(pid: int) -> int:
    """Resident memory in bytes; 0 when the process is gone."""
    fields = _read(f"/proc/{pid}/statm").split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") if fields else 0


def cpu(pid: int, seconds: float) -> bool:
    """Whether the process used the CPU within this time: what does not is waiting for something."""
    before = _read(f"/proc/{pid}/schedstat").split()[:1]
    time.sleep(seconds)
    return before != _read(f"/proc/{pid}/schedstat").split()[:1]


def fds(pid: int) -> int:
    """Open descriptors; 0 when the process is gone."""
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return 0


def alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    stat = _read(f"/proc/{pid}/stat")
    return bool(stat) and stat.rpartition(b")")[2].split()[0] not in (b"Z", b"X")


def parent(pid: int) -> int:
    """The pid of its parent; 0 when the process is gone."""
    stat = _read(f"/proc/{pid}/stat")
    return int(stat.rpartition(b")")[2].split()[1]) if stat else 0


def children() -> list[int]:
    """The pids of this process's children, zombies too."""
    return [pid for pid in _pids() if parent(pid) == os.getpid()]


def _wait_ended(pid: int, timeout: float) -> bool:
    """True once the process has ended (also as a zombie that its parent has not fetched)."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        return bool(poll.poll(max(0.0, timeout) * 1000)) or not alive(pid)
    finally:
        os.close(handle)


def _pids() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""


def _command(pid: int) -> str:
    return _read(f"/proc/{pid}/cmdline").replace(b"\0", b" ").decode(errors="replace").strip()
