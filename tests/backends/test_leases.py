"""Leases by flock."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from acpd.errors import SessionBusy, StoreError
from acpd.storage.contract import Key
from acpd.tasks import Tasks
from acpd_backends.files import Files
from acpd_backends.leases import FlockLease
from acpd_backends.names import Layout
from tests.backends.journal_logs import FaultyFiles, no_space

KEY = Key("agent", "session")
HOLD = """
import asyncio, sys
from pathlib import Path
from acpd.storage.contract import Key
from acpd_backends.leases import FlockLease
from acpd_backends.names import Layout
async def main():
    lease = FlockLease(Layout(Path(sys.argv[1])))
    await lease.take(Key("agent", "session"))
    print("taken", flush=True)
    sys.stdin.readline()
asyncio.run(main())
"""


class FullFiles(Files):
    """Files on a disk without a free byte."""

    def write(self, fd: int, data: bytes | memoryview) -> int:
        raise no_space()


def hold(root: Path) -> subprocess.Popen[str]:
    """Another process that has the lease of KEY."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "taken\n"
    return child


async def test_one_process_has_a_lease_once(tmp_path: Path) -> None:
    """Taking twice in one process is busy with our own pid; given up it can be taken; other sessions are free."""
    lease = FlockLease(Layout(tmp_path))
    await lease.take(KEY)
    with pytest.raises(SessionBusy) as busy:
        await lease.take(KEY)
    assert os.getpid() == busy.value.pid == await lease.holder(KEY)
    await lease.take(Key("agent", "other"))
    await lease.give_up(KEY)
    await lease.give_up(KEY)
    assert await lease.holder(KEY) is None
    await lease.take(KEY)


async def test_two_stores_in_one_process_exclude_each_other(tmp_path: Path) -> None:
    """The lock is on the file: a second store on the same folder is refused too."""
    one, two = FlockLease(Layout(tmp_path)), FlockLease(Layout(tmp_path))
    await one.take(KEY)
    with pytest.raises(SessionBusy) as busy:
        await two.take(KEY)
    assert os.getpid() == busy.value.pid == await two.holder(KEY)
    await one.give_up(KEY)
    await two.take(KEY)


async def test_concurrent_takes_have_one_winner(tmp_path: Path) -> None:
    """Of many that take at once exactly one has it; the others hear who."""
    leases = [FlockLease(Layout(tmp_path)) for _ in range(8)]
    results = await asyncio.gather(*(lease.take(KEY) for lease in leases), return_exceptions=True)
    assert 1 == results.count(None)
    assert all(isinstance(result, SessionBusy) for result in results if result is not None)


async def test_asking_does_not_take(tmp_path: Path) -> None:
    """`holder` while others take and give up never makes a take fail for good."""
    lease, other = FlockLease(Layout(tmp_path)), FlockLease(Layout(tmp_path))
    for _ in range(20):
        await asyncio.gather(lease.take(KEY), other.holder(KEY), other.holder(KEY), other.holder(KEY))
        await asyncio.gather(lease.give_up(KEY), other.holder(KEY))
    assert await other.holder(KEY) is None


async def test_a_lease_ends_with_its_process(tmp_path: Path) -> None:
    """Another process's pid is told; killed with -9 it holds nothing, though its file is still there."""
    lease = FlockLease(Layout(tmp_path))
    child = await asyncio.to_thread(hold, tmp_path)
    with child:
        assert child.pid == await lease.holder(KEY)
        with pytest.raises(SessionBusy, match=f"pid {child.pid}"):
            await lease.take(KEY)
        child.send_signal(signal.SIGKILL)
        await asyncio.to_thread(child.wait)
    assert lease.path(KEY).exists()
    assert await lease.holder(KEY) is None
    await lease.take(KEY)
    assert f"{os.getpid()}\n" == lease.path(KEY).read_text()
    await lease.give_up(KEY)
    assert not lease.path(KEY).exists()


async def test_a_cancelled_take_gives_the_lease_up(tmp_path: Path) -> None:
    """Whoever is cancelled while it takes a lease does not keep it, whenever the lock came."""
    lease = FlockLease(Layout(tmp_path))
    for turns in range(4):
        taking = Tasks(lambda name, error: None).spawn(lease.take(KEY), name="take")
        for _ in range(turns):
            await asyncio.sleep(0)
        taking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await taking
            await lease.give_up(KEY)
        async with asyncio.timeout(30):
            while True:
                try:
                    await lease.take(KEY)
                except SessionBusy:
                    await asyncio.to_thread(os.sched_yield)
                else:
                    break
        await lease.give_up(KEY)


async def test_a_child_does_not_inherit_a_lease(tmp_path: Path) -> None:
    """A program started while we hold a lease does not keep it when we give it up."""
    lease = FlockLease(Layout(tmp_path))
    await lease.take(KEY)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, close_fds=False) as child:
        await lease.give_up(KEY)
        await FlockLease(Layout(tmp_path)).take(KEY)
        child.kill()


async def test_a_removed_file_is_not_mistaken_for_the_lease(tmp_path: Path) -> None:
    """Whoever locked a file that lost its name meanwhile goes on to the file that has it now."""
    one, two = FlockLease(Layout(tmp_path)), FlockLease(Layout(tmp_path))
    await one.take(KEY)
    one.path(KEY).unlink()
    await two.take(KEY)
    assert two.path(KEY).exists()
    with pytest.raises(SessionBusy):
        await FlockLease(Layout(tmp_path)).take(KEY)


def test_names_of_any_length_have_a_lock_file(tmp_path: Path) -> None:
    """Two long names make one file name that a file system takes; where logs have no agent, leases have none."""
    lease = FlockLease(Layout(tmp_path))
    names = {lease.path(Key(agent, session)).name for agent in ("a" * 200, "b" * 200) for session in ("c" * 200, "d" * 200)}
    assert 4 == len(names)
    assert all(len(name) <= 255 for name in names)
    flat = FlockLease(Layout(tmp_path, per_agent=False))
    assert flat.path(Key("a", "s")) == flat.path(Key("b", "s"))


async def test_a_folder_that_cannot_be_used(tmp_path: Path) -> None:
    """Where no lock file can be made the error names the session, and nothing counts as taken."""
    (tmp_path / "file").touch()
    lease = FlockLease(Layout(tmp_path / "file"))
    for _ in range(2):
        with pytest.raises(StoreError, match="cannot lock session session"):
            await lease.take(KEY)


async def test_a_full_disk_keeps_nobody_from_a_lease(tmp_path: Path) -> None:
    """The pid in the file is only for messages: deleting a session may be what makes room."""
    lease = FlockLease(Layout(tmp_path), files=FullFiles())
    await lease.take(KEY)
    assert os.getpid() == await lease.holder(KEY)
    with pytest.raises(SessionBusy, match="open in another process"):
        await FlockLease(Layout(tmp_path)).take(KEY)
    await lease.give_up(KEY)


async def test_a_lock_that_is_a_folder_is_named(tmp_path: Path) -> None:
    """Whoever has to remove it learns where it is."""
    lease = FlockLease(Layout(tmp_path))
    lease.path(KEY).mkdir(parents=True)
    with pytest.raises(StoreError, match=f"{lease.path(KEY)}: Is a directory"):
        await lease.take(KEY)


async def test_the_folder_that_a_lease_makes_outlives_the_machine(tmp_path: Path) -> None:
    """The store is in it: with a lease that is taken first, the store's own name is on disk before anything is answered."""
    files = FaultyFiles()
    (tmp_path / "other").touch()
    lease = FlockLease(Layout(tmp_path / "new" / "store"), files=files)
    await lease.take(KEY)
    await lease.give_up(KEY)
    assert 3 == files.folders  # of new, of store, of .acpd; that of the locks means nothing
