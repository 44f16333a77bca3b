"""Syncs that the kernel does by itself, and what becomes of those that it does not take."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from acpd.errors import StoreError
from acpd.storage.contract import Key
from acpd_backends import kernelsync
from acpd_backends.files import Files
from acpd_backends.jsonl import JsonlJournals
from acpd_backends.kernelsync import SLOTS, Done, KernelSyncs
from acpd_backends.openlog import JsonlJournal
from tests.backends.journal_logs import HEADER, FaultyFiles, chain, store

Outcomes = list[OSError | None]


@asynccontextmanager
async def kernel() -> AsyncGenerator[KernelSyncs]:
    syncs = kernelsync.opened()
    assert syncs is not None, "this machine has no asynchronous fdatasync"
    try:
        yield syncs
    finally:
        await syncs.close()


class Sink:
    """Gathers outcomes, and tells when there are as many as wanted."""

    def __init__(self, wanted: int) -> None:
        self.outcomes: Outcomes = []
        self._wanted = wanted
        self.whole = asyncio.Event()

    def __call__(self, error: OSError | None) -> None:
        self.outcomes.append(error)
        if len(self.outcomes) == self._wanted:
            self.whole.set()


async def test_the_kernel_tells_of_each_sync_once(tmp_path: Path) -> None:
    """As many as there are slots at once, and then as many again."""
    async with kernel() as syncs:
        descriptors = [os.open(tmp_path / str(n), os.O_CREAT | os.O_WRONLY) for n in range(SLOTS + 1)]
        for _ in range(2):
            sink = Sink(SLOTS)
            for descriptor in descriptors:
                os.write(descriptor, b"x" * 100)
            assert syncs.take([(descriptor, sink) for descriptor in descriptors]) == SLOTS
            await asyncio.wait_for(sink.whole.wait(), 30)
            assert [None] * SLOTS == sink.outcomes
        for descriptor in descriptors:
            os.close(descriptor)


async def test_what_cannot_be_synced_is_not_taken(tmp_path: Path) -> None:
    """Those before it are; somebody else has to say what is wrong with it, and the slots are free again."""
    async with kernel() as syncs:
        sink = Sink(1)
        one = os.open(tmp_path / "one", os.O_CREAT | os.O_WRONLY)
        two, pipe = os.pipe()
        for unfit in (-1, 10**6, two):
            assert syncs.take([(unfit, sink)]) == 0
        assert syncs.take([(one, sink), (-1, sink), (one, sink)]) == 1
        await asyncio.wait_for(sink.whole.wait(), 30)
        assert [None] == sink.outcomes
        many = Sink(SLOTS)
        assert syncs.take([(one, many)] * SLOTS) == SLOTS
        await asyncio.wait_for(many.whole.wait(), 30)
        for descriptor in (one, two, pipe):
            os.close(descriptor)


async def test_who_raises_costs_no_other_its_outcome(tmp_path: Path) -> None:
    """Of syncs that end at once each is told, though one that is told raises; the loop reports that one."""
    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context.get("exception")))
    bug = RuntimeError("a bug")

    def raises(_error: OSError | None) -> None:
        raise bug

    async with kernel() as syncs:
        one = os.open(tmp_path / "one", os.O_CREAT | os.O_WRONLY)
        sink = Sink(8)
        syncs.take([(one, done) for _ in range(8) for done in (raises, sink)])
        await asyncio.wait_for(sink.whole.wait(), 30)
        assert [None] * 8 == sink.outcomes
        assert {bug} == set(reported)
        os.close(one)


class Fake(KernelSyncs):
    """Takes what it is told to, and ends each with what it is told."""

    def __init__(self, taken: int, error: OSError | None = None) -> None:
        self.taken, self.error, self.asked, self.closed = taken, error, 0, False

    def take(self, syncs: Sequence[tuple[int, Done]]) -> int:
        taken = syncs[: self.taken]
        self.asked += len(syncs)
        for _, done in taken:
            asyncio.get_running_loop().call_soon(done, self.error)
        return len(taken)

    async def close(self) -> None:
        self.closed = True


class Counted(Files):
    """By threads, which are counted."""

    def __init__(self) -> None:
        self.folders = self.by_thread = 0

    @property
    def syncs_by_kernel(self) -> bool:
        return True

    def fdatasync(self, fd: int) -> None:
        self.by_thread += 1
        super().fdatasync(fd)


async def logs(journals: JsonlJournals, count: int) -> list[JsonlJournal]:
    """So many, each on disk and with a line more that is not."""
    made = [await journals.create(Key("agent", f"s{number}"), HEADER) for number in range(count)]
    for journal in made:
        first, second = chain(2)
        journal.append(first)
        journal.flush()
        waiter = journal.sync()
        assert waiter is not None
        await waiter
        journal.append(second)
        journal.flush()
    return made


@pytest.fixture
def faked(monkeypatch: pytest.MonkeyPatch) -> Callable[[Fake | None], None]:
    return lambda fake: monkeypatch.setattr(kernelsync, "opened", lambda: fake)


@pytest.mark.parametrize(("taken", "by_thread"), [(3, 0), (1, 2), (0, 3)])
async def test_threads_do_what_the_kernel_does_not_take(
    tmp_path: Path, faked: Callable[[Fake | None], None], taken: int, by_thread: int
) -> None:
    """Everybody who waits is served, by the one or the other."""
    files = Counted()
    journals = store(tmp_path, files)
    fake = Fake(0)
    faked(fake)
    made = await logs(journals, 3)
    fake.taken, fake.asked, files.by_thread = taken, 0, 0
    await asyncio.gather(*(waiter for waiter in [journal.sync() for journal in made] if waiter is not None))
    assert (3, by_thread) == (fake.asked, files.by_thread)
    assert [None] * 3 == [journal.sync() for journal in made]
    await journals.close()
    assert fake.closed


async def test_without_a_kernel_that_can_threads_do_all(tmp_path: Path, faked: Callable[[Fake | None], None]) -> None:
    """It is asked for once."""
    files = Counted()
    journals = store(tmp_path, files)
    faked(None)
    made = await logs(journals, 2)
    await asyncio.gather(*(waiter for waiter in [journal.sync() for journal in made] if waiter is not None))
    assert 4 == files.by_thread
    await journals.close()


async def test_a_sync_that_failed_in_the_kernel_is_repaired(tmp_path: Path, faked: Callable[[Fake | None], None]) -> None:
    """Who waits is told; the log is opened and verified anew, and then goes on."""
    files = Counted()
    journals = store(tmp_path, files)
    fake = Fake(1)
    faked(fake)
    (journal,) = await logs(journals, 1)
    fake.error = OSError(errno.EIO, "Input/output error")
    waiter = journal.sync()
    assert waiter is not None
    with pytest.raises(StoreError, match="Input/output error"):
        await waiter
    fake.error = None
    journal.append(chain(3)[2])
    journal.flush()
    waiter = journal.sync()
    assert waiter is not None
    await waiter
    assert journal.sync() is None
    await journals.close()


async def test_a_log_that_was_cut_is_told_after_a_sync_by_the_kernel(tmp_path: Path) -> None:
    """As after one by a thread: what was acknowledged would not be read again."""
    journals = store(tmp_path, Files())
    (journal,) = await logs(journals, 1)
    os.truncate(journals.log_path(journal.key), 10)
    waiter = journal.sync()
    assert waiter is not None
    with pytest.raises(StoreError, match="cut by somebody else"):
        await waiter
    await journal.discard()
    await journals.close()


async def test_closing_waits_for_the_kernel(tmp_path: Path) -> None:
    """Also for those whose waiters are gone."""
    journals = store(tmp_path, Files())
    for journal in await logs(journals, 5):
        waiter = journal.sync()
        assert waiter is not None
        waiter.cancel()
    await journals.committer.close()
    await journals.close()


def test_only_a_true_fdatasync_is_left_to_the_kernel() -> None:
    """Files that do something else with it are asked each time."""
    assert (True, False) == (Files().syncs_by_kernel, FaultyFiles().syncs_by_kernel)
