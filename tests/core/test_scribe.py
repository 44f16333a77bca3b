"""The writer of a log: ids and seq, and a disk that says no."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest

from acpd.errors import StoreError
from acpd.scribe import GIVE_UP, RETRY_EVERY, Scribe
from acpd.storage.contract import Key
from acpd.storage.fold import Fold
from acpd.wire.ids import Clock, Ids
from acpd.wire.lines import Header, decode
from acpd_backends.jsonl import JsonlJournals
from acpd_backends.names import Layout
from tests.backends.journal_logs import FaultyFiles, no_space
from tests.core.pipes import start
from tests.core.world import put_forward, until
from tests.support import store as logs

KEY = Key("agent", "s")


class Desk:
    """A scribe on a real journal; what it tells its owner is in `told`, and the log's own word is `log`."""

    def __init__(self, root: Path, *, sync: bool = True) -> None:
        self.root = root
        self.files = FaultyFiles()
        self.journals = JsonlJournals(Layout(root), sync=sync, files=self.files)
        self.told: list[str] = []
        self.freed = asyncio.Event()
        self.settled: list[int] = []
        self.ids = Ids()
        self.scribe: Scribe = None  # type: ignore[assignment]

    async def open(self, *, again: bool = False) -> Scribe:
        header = Header(version=1, id="s", cwd="/w", agent="agent", createdAt=Clock().now())
        journal = await (self.journals.open(KEY) if again else self.journals.create(KEY, header))
        self.scribe = Scribe(
            journal,
            self.ids,
            Clock(),
            on_stuck=lambda error: self.told.append(f"stuck {error.retryable}"),
            on_free=self._free,
            on_give_up=lambda _: self.told.append("give up"),
        )
        return self.scribe

    def _free(self) -> None:
        self.told.append("free")
        self.freed.set()

    def settle(self, number: int) -> None:
        self.scribe.settle(lambda: self.settled.append(number))

    def write(self, text: str = "x") -> str:
        body = b',"kind":"agent_message_chunk","params":{"t":"%b"}' % text.encode()
        return self.scribe.entry("update", body, self.scribe.fold.leaf, what="agent_message_chunk").id

    def log(self) -> logs.Log:
        found = logs.log(self.root, "s")
        logs.check(found)
        return found

    def said(self) -> list[str]:
        return [entry["params"]["t"] for entry in self.log().of("update")]

    async def close(self) -> None:
        self.scribe.stop()
        await self.journals.close()


async def test_seq_is_dense_and_ids_grow(tmp_path: Path) -> None:
    """Entries and facts count together, and the fold is what a reader of the file makes of it."""
    desk = Desk(tmp_path)
    scribe = await desk.open()
    written = [scribe.entry("prompt", b',"prompt":[]', None)]
    written.append(scribe.fact("info", b',"title":"t"'))
    identifier = scribe.new_id()
    written.append(scribe.entry("update", b',"kind":"plan","params":{}', written[0].id, identifier=identifier, what="plan"))
    written.append(scribe.entry("ask", b',"method":"m","params":{}', identifier))
    assert scribe.commit()
    log = desk.log()
    assert [(1, written[0].id), (2, written[1].id), (3, identifier), (4, written[3].id)] == [
        (entry["seq"], entry["id"]) for entry in log.entries
    ]
    assert [one.at for one in written] == [entry["at"] for entry in log.entries]
    assert (4, written[3].id, "t") == (scribe.flushed, scribe.fold.leaf, scribe.fold.title)
    await desk.close()


async def test_what_is_folded_without_reading_it_again_is_what_a_reader_makes_of_it(tmp_path: Path) -> None:
    """Prompts, turns and updates change the fold as their lines would."""
    desk = Desk(tmp_path)
    scribe = await desk.open()
    for state in ("running", "ended", "running"):
        scribe.entry("prompt", b',"prompt":[]', scribe.fold.leaf)
        scribe.entry("turn", b',"state":"%b"' % state.encode(), scribe.fold.leaf, what=state)
        for kind in ("agent_message_chunk", "agent_message_chunk", "tool_call", "user_message_chunk"):
            scribe.entry("update", b',"kind":"%b","params":{}' % kind.encode(), scribe.fold.leaf, what=kind)
        read = Fold()
        read.created_at = scribe.fold.created_at
        assert scribe.commit()
        for line in Path(desk.journals.log_path(KEY)).read_bytes().splitlines()[1:]:
            read.add(decode(line))
        assert [getattr(read, name) for name in Fold.__slots__] == [getattr(scribe.fold, name) for name in Fold.__slots__]
    await desk.close()


async def test_ids_grow_behind_a_log_from_the_future(tmp_path: Path) -> None:
    """A log whose last id is later than the clock goes on behind that id."""
    desk = Desk(tmp_path)
    desk.ids = Ids(lambda: 4_000_000_000 * 10**9)
    await desk.open()
    late = desk.write()
    desk.scribe.commit()
    await desk.scribe.journal.close()
    desk.ids = Ids()
    await desk.open(again=True)
    first, second = desk.write(), desk.write()
    desk.scribe.commit()
    assert late < first < second
    assert [1, 2, 3] == [entry["seq"] for entry in desk.log().entries]
    await desk.close()


@pytest.mark.parametrize("failures", [1, 3])
async def test_a_failing_write_loses_and_doubles_nothing(tmp_path: Path, failures: int) -> None:
    """Stuck is told once, however often it fails; each second it is tried again; then free is told, and all is there once."""
    desk = Desk(tmp_path)
    scribe = await desk.open()
    desk.write("a")
    assert scribe.commit()
    desk.files.writes = [3, None] + [None] * (failures - 1)  # the first write takes three bytes of the line
    desk.write("b")
    assert (False, 1) == (scribe.commit(), scribe.flushed)
    desk.write("c")
    for _ in range(failures):
        assert ["stuck True"] == desk.told
        put_forward(RETRY_EVERY)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    async with asyncio.timeout(5):
        await desk.freed.wait()
    assert ["stuck True", "free"] == desk.told
    assert (None, 3, ["a", "b", "c"]) == (scribe.error, scribe.flushed, desk.said())
    await desk.close()


async def test_a_commit_on_request_tries_at_once(tmp_path: Path) -> None:
    """A request need not wait for the next second: a commit that works frees what waited."""
    desk = Desk(tmp_path)
    scribe = await desk.open()
    desk.files.writes = [None]
    desk.write("a")
    assert not scribe.commit()
    assert scribe.commit()
    assert ["stuck True", "free"] == desk.told
    await desk.close()


async def test_who_waits_is_served_in_order(tmp_path: Path) -> None:
    """Whoever asked first is settled first: before a failure, during it, and after."""
    desk = Desk(tmp_path)
    scribe = await desk.open()
    desk.write("a")
    scribe.commit()
    desk.settle(1)
    desk.files.writes = [None]
    desk.write("b")
    scribe.commit()
    desk.settle(2)
    desk.settle(3)
    assert scribe.commit()
    desk.settle(4)
    await scribe.settled()
    assert [1, 2, 3, 4] == desk.settled
    await desk.close()


async def test_what_is_durable_already_does_not_overtake(tmp_path: Path) -> None:
    """When a sync has just ended, who asks then is called behind those who waited for it."""
    desk = Desk(tmp_path)
    scribe = await desk.open()
    desk.write("a")
    scribe.commit()
    sync = scribe.journal.sync()
    assert sync is not None
    sync.add_done_callback(lambda _: desk.settle(3))  # it is on disk now, and 1 and 2 are not told yet

    def first() -> None:
        desk.settled.append(1)
        desk.settle(4)

    scribe.settle(first)
    desk.settle(2)
    await scribe.settled()
    assert [1, 2, 3, 4] == desk.settled
    await desk.close()


async def test_settling_is_immediate_where_the_store_does_not_sync(tmp_path: Path) -> None:
    """With sync = "process" what is in the kernel is settled, in this very call."""
    desk = Desk(tmp_path, sync=False)
    scribe = await desk.open()
    desk.write("a")
    scribe.commit()
    desk.settle(1)
    assert [1] == desk.settled
    await desk.close()


async def test_settled_means_synced(tmp_path: Path) -> None:
    """Nobody is called before the fdatasync that covers the line has returned."""
    desk = Desk(tmp_path)
    scribe = await desk.open()
    seen: list[list[int]] = []
    desk.files.on_sync = lambda _: seen.append(list(desk.settled))
    desk.write("a")
    scribe.commit()
    desk.settle(1)
    await scribe.settled()
    assert ([], [1]) == (seen[0], desk.settled)
    await desk.close()


async def test_a_failed_sync_is_tried_again(tmp_path: Path) -> None:
    """Who waited for a sync that failed is called after one that worked; nothing is lost or written twice."""
    desk = Desk(tmp_path)
    scribe = await desk.open()

    def fail_once(number: int) -> None:
        if number == 1:
            raise no_space()

    desk.files.on_sync = fail_once
    desk.write("a")
    scribe.commit()
    desk.settle(1)
    desk.settle(2)
    for _ in range(200):
        if desk.freed.is_set():
            break
        put_forward(RETRY_EVERY)
        await asyncio.sleep(0.001)
    desk.write("b")
    assert scribe.commit()
    await scribe.settled()
    assert (["stuck True", "free"], [1, 2], ["a", "b"]) == (desk.told, desk.settled, desk.said())
    await desk.close()


async def test_after_thirty_seconds_it_gives_up_once_and_goes_on_trying(tmp_path: Path) -> None:
    """GIVE_UP is told once for a failure, who awaits gets the error, and when the disk is back everything is written."""
    desk = Desk(tmp_path)
    scribe = await desk.open()
    desk.files.writes = [None] * 1000
    desk.write("a")
    scribe.commit()
    waiting = start(scribe.settled())
    desk.settle(1)
    await asyncio.sleep(0)
    put_forward(GIVE_UP - 1)
    scribe.commit()
    assert (["stuck True"], False) == (desk.told, scribe.gave_up)
    put_forward(1)
    for _ in range(3):
        scribe.commit()
    assert (["stuck True", "give up"], True) == (desk.told, scribe.gave_up)
    with pytest.raises(StoreError):
        await waiting
    with pytest.raises(StoreError):
        await scribe.settled()
    desk.files.writes = []
    assert scribe.commit()
    await scribe.settled()
    assert (["stuck True", "give up", "free"], [1], ["a"], False) == (desk.told, desk.settled, desk.said(), scribe.gave_up)
    desk.files.writes = [None]
    desk.write("b")
    scribe.commit()
    assert ("stuck True", False) == (desk.told[-1], scribe.gave_up)
    scribe.commit()
    await desk.close()


def _tried_again(desk: Desk, syncs: int, waiting: asyncio.Task[None]) -> bool:
    return waiting.done() or (desk.files.syncs > syncs and desk.scribe.error is not None)


async def test_syncs_that_fail_for_thirty_seconds_are_given_up_too(tmp_path: Path) -> None:
    """The log can be written and never synced: that it can be opened anew between two attempts is no end of the trouble."""
    desk = Desk(tmp_path)
    scribe = await desk.open()

    def fail(_: int) -> None:
        raise no_space()

    desk.files.on_sync = fail
    desk.write("a")
    scribe.commit()
    waiting = start(scribe.settled())
    for _ in range(int(GIVE_UP / RETRY_EVERY) + 2):
        await until(partial(_tried_again, desk, desk.files.syncs, waiting))
        put_forward(RETRY_EVERY)
    with pytest.raises(StoreError, match="No space left"):
        await waiting
    assert 1 == desk.told.count("give up")
    desk.files.on_sync = lambda _: None
    await until(lambda: scribe.error is None)
    await scribe.settled()
    await desk.close()


async def test_a_cancelled_wait_leaves_the_others(tmp_path: Path) -> None:
    """Cancelling `settled` concerns nobody else."""
    desk = Desk(tmp_path)
    scribe = await desk.open()
    desk.write("a")
    scribe.commit()
    first, second = start(scribe.settled()), start(scribe.settled())
    await asyncio.sleep(0)
    first.cancel()
    await second
    assert first.cancelled()
    await desk.close()


async def test_nothing_is_tried_after_the_stop(tmp_path: Path) -> None:
    """A stopped scribe has no timer, also if a commit fails afterwards."""
    desk = Desk(tmp_path)
    scribe = await desk.open()
    desk.files.writes = [None]
    desk.write("a")
    scribe.commit()
    scribe.stop()
    assert scribe._timer is None
    desk.files.writes = [None]
    scribe.commit()
    assert scribe._timer is None
    await desk.close()
