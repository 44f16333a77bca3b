"""Which sessions are open: one opening each, nothing leaked, nothing left behind."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from acpd.errors import RequestError, SessionBusy, SessionNotFound, StoreError
from acpd.registry import COMPLETE_TIMEOUT
from acpd.session import LiveSession
from acpd.storage.contract import Key, Row
from tests.core.pipes import start
from tests.core.world import Editor, World, attach, chunk, load, prompt, put_forward, until
from tests.support import store as logs
from tests.support.walk import below


def counted(owner: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """The calls of this method from now on."""
    calls: list[tuple[Any, ...]] = []
    method = getattr(owner, name)

    def call(*args: Any) -> Any:
        calls.append(args)
        return method(*args)

    monkeypatch.setattr(owner, name, call)
    return calls


def open_logs() -> int:
    """Descriptors of this process that are logs."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            found += os.readlink(f"/proc/self/fd/{name}").endswith(".log.jsonl")
        except OSError:
            continue
    return found


async def closed(world: World, *texts: str) -> LiveSession:
    """A session with a turn, closed again."""
    session, voice = await world.with_agent()
    attach(session, editor := Editor())
    prompt(session, editor, "p1")
    await voice.prompted()
    voice.say(*(texts or ("a",)))
    voice.end()
    await editor.answered("p1")
    await world.registry.close(session.id)
    return session


async def test_twenty_who_open_at_once_share_one_opening(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """One lease, one reading of the log, one live session; cancelling one of them stops nothing."""
    session = await closed(world)
    leases = counted(world.store.lease, "take", monkeypatch)
    opens = counted(world.store.journals, "open", monkeypatch)
    opening = [start(world.registry.open(session.id)) for _ in range(20)]
    await until(lambda: leases)
    opening[0].cancel()
    found = await asyncio.gather(*opening[1:])
    assert (1, 1, 1) == (len(leases), len(opens), len({id(each) for each in found}))
    assert [found[0]] == list(world.registry.live.values())


async def test_creating(world: World) -> None:
    """The row is in the catalog before anybody learns the id; the header is there when it is durable."""
    session = await world.new("/some/where")
    row = await world.store.catalog.get(session.id)
    assert row is not None
    assert ("open", "/some/where", False) == (row.state, row.cwd, row.prompted)
    assert os.getpid() == await world.store.lease.holder(session.key)
    header = world.log(session).header
    assert (session.id, "agent", ["agent"], 1) == (header["id"], header["agent"], header["command"], header["version"])


async def test_a_session_that_cannot_be_made_leaves_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """No lease, no log, no open descriptor."""

    async def full(_row: object) -> None:
        raise StoreError("write", "the catalog", cause="no space")

    before = open_logs()
    monkeypatch.setattr(world.store.catalog, "put", full)
    with pytest.raises(StoreError, match="no space"):
        await world.new()
    monkeypatch.undo()
    assert (before, [], {}) == (open_logs(), below(world.root, "*.log.jsonl"), world.registry.live)
    await world.new()


async def test_a_session_that_cannot_be_opened_leaves_nothing_open(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lease is given up, the log closed, and the next opening works."""
    session = await closed(world)

    async def full(_row: object) -> None:
        raise StoreError("write", "the catalog", cause="no space")

    before = open_logs()
    monkeypatch.setattr(world.store.catalog, "put", full)
    with pytest.raises(StoreError, match="no space"):
        await world.registry.open(session.id)
    monkeypatch.undo()
    assert (before, None) == (open_logs(), await world.store.lease.holder(session.key))
    assert "p1" == (await world.registry.open(session.id)).fold.title
    world.failed.clear()


async def test_closing(world: World) -> None:
    """Agent ended, log and lease given up, the row clean with the log's size, context and states written."""
    session, voice = await world.with_agent()
    attach(session, editor := Editor())
    prompt(session, editor, "p1")
    await voice.prompted()
    voice.say("a", {"sessionUpdate": "usage_update", "used": 1, "size": 2})
    voice.end()
    await editor.answered("p1")
    await world.registry.close(session.id)
    await world.registry.close(session.id)
    row = await world.store.catalog.get(session.id)
    assert row is not None
    log = world.log(session)
    assert ("clean", log.path.stat().st_size, session.fold.seq) == (row.state, row.size, row.seq)
    assert (True, {}, None, 0) == (voice.stopped, world.registry.live, await world.store.lease.holder(session.key), open_logs())
    assert b'"text":"a"' in log.path.with_name(log.path.name.replace(".log.", ".")).read_bytes()
    assert b'"used":1' in (await world.store.session.load(session.key, "acpd.usage") or b"")


async def test_closing_cancels_a_turn(world: World) -> None:
    """As session/cancel: the prompt is answered `cancelled` before the close is."""
    session, voice = await world.with_agent()
    attach(session, editor := Editor())
    prompt(session, editor, "p1")
    await voice.prompted()
    closing = start(world.registry.close(session.id))
    await until(lambda: voice.cancels)
    assert not closing.done()
    voice.end("cancelled")
    await closing
    assert "cancelled" == (await editor.answered("p1"))["result"]["stopReason"]


async def test_closing_with_an_agent_that_only_starts(world: World) -> None:
    """The start is given up, and nothing of it comes later."""
    session = await world.new()
    attach(session, editor := Editor())
    world.agents.gate.clear()
    prompt(session, editor, "p1")
    await until(lambda: world.agents.starts)
    await world.registry.close(session.id)
    assert (1, [], None) == (world.agents.ended_starts, world.agents.made, session.link)
    assert "cancelled" == (await editor.answered("p1"))["result"]["stopReason"]


async def test_closing_while_opening(world: World) -> None:
    """The close waits for the opening, so that the session is closed when it is answered."""
    session = await closed(world)
    opening = start(world.registry.open(session.id))
    await asyncio.sleep(0)
    await world.registry.close(session.id)
    assert (True, {}, None) == (opening.done(), world.registry.live, await world.store.lease.holder(session.key))


async def test_opening_while_closing(world: World) -> None:
    """The opening waits for the close, and then opens anew."""
    session = await world.new()
    closing = start(world.registry.close(session.id))
    await asyncio.sleep(0)
    again = await world.registry.open(session.id)
    assert closing.done()
    assert again is not session
    assert {session.id: again} == world.registry.live


async def test_a_log_that_cannot_be_closed_stays_open(world: World) -> None:
    """What is not written yet is not thrown away: the close fails with the cause, and works when there is room again."""
    session = await world.new()
    world.break_disk()
    session.recorder.tell("a word")
    session.on_batch_end()
    for _ in range(2):
        with pytest.raises(StoreError, match="No space left"):
            await world.registry.close(session.id)
    assert session is world.registry.live[session.id]
    world.failed.clear()
    world.mend_disk()
    await world.registry.close(session.id)
    assert 1 == len(world.log(session).of("update"))


async def test_closing_does_not_wait_for_ever_for_the_disk(world: World) -> None:
    """The end of the turn cannot be written: after thirty seconds the close fails with the cause, and so do later ones."""
    session, voice = await world.with_agent()
    attach(session, editor := Editor())
    prompt(session, editor, "p1")
    await voice.prompted()
    world.break_disk()
    voice.end()
    closing = start(world.registry.close(session.id))
    await asyncio.sleep(0)
    while not closing.done():
        put_forward(1.0)
        await asyncio.sleep(0.001)
    for attempt in (closing, world.registry.close(session.id)):
        with pytest.raises(StoreError, match="No space left"):
            await attempt
    world.failed.clear()
    world.mend_disk()
    put_forward(1.0)
    await until(lambda: session.scribe.error is None)
    await world.registry.close(session.id)
    assert "ended" == world.log(session).of("turn")[-1]["state"]


async def test_deleting(world: World) -> None:
    """Every artefact goes: log, context, index, blobs, states, row, lease; a running turn is cancelled first."""
    session, voice = await world.with_agent()
    attach(session, editor := Editor())
    voice.keep("mine", 1)
    await voice.until(lambda: voice.replies)
    prompt(session, editor, "p1", "x" * 70_000)
    await voice.prompted()
    deleting = [start(world.registry.delete(session.id)) for _ in range(3)]
    await until(lambda: voice.cancels)
    voice.end("cancelled")
    await asyncio.gather(*deleting)
    assert None is await world.store.catalog.get(session.id)
    assert [] == [path for path in below(world.root) if session.id in path.name]
    with pytest.raises(SessionNotFound):
        await world.registry.open(session.id)
    world.failed.clear()


@pytest.mark.parametrize("part", ["session", "journals", "catalog"])
async def test_a_deleting_that_was_cut_off_is_done_again(world: World, monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    """acpd is killed before the states, the log or the row: the log goes behind all else, so that nothing is left over."""
    await world.store.catalog.recover(world.store.journals)
    session, voice = await world.with_agent()
    voice.keep("mine", 1)
    await voice.until(lambda: voice.replies)
    await world.registry.close(session.id)

    async def cut(_key: Key | str) -> None:
        raise asyncio.CancelledError

    with monkeypatch.context() as patch:
        patch.setattr(getattr(world.store, part), "delete", cut)
        with pytest.raises(asyncio.CancelledError):
            await world.registry.delete(session.id)
    await world.store.catalog.recover(world.store.journals)
    assert (part == "catalog") == (await world.store.catalog.get(session.id) is None)
    await world.registry.delete(session.id)
    assert None is await world.store.catalog.get(session.id)
    assert [] == [path for path in below(world.root) if session.id in path.name]


async def test_a_log_that_a_killed_deleting_removed_stays_away(world: World) -> None:
    """The folder was perhaps not synced: the next start does that, before the row goes."""
    session = await closed(world)
    await world.store.catalog.recover(world.store.journals)
    row = await world.store.catalog.get(session.id)
    assert row is not None
    await world.store.catalog.put(replace(row, state="deleting"))
    os.unlink(world.store.journals.log_path(session.key))
    synced = world.files.folders
    await world.store.catalog.recover(world.store.journals)
    assert (None, synced + 1) == (await world.store.catalog.get(session.id), world.files.folders)


async def test_deleting_on_a_full_disk(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written before the log is removed may fail: removing makes room."""
    session = await closed(world)

    async def full(_row: Row) -> None:
        raise StoreError("write", "the catalog", cause="no space")

    monkeypatch.setattr(world.store.catalog, "put", full)
    await world.registry.delete(session.id)
    assert None is await world.store.catalog.get(session.id)


async def test_deleting_with_a_catalog_that_cannot_be_written(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the log is gone the session is: it is no error, it is not listed, and its row goes when that works again."""
    session, other = await closed(world), await closed(world)

    async def full(_what: object) -> None:
        raise StoreError("write", "the catalog", cause="no space")

    for name in ("put", "delete"):
        monkeypatch.setattr(world.store.catalog, name, full)
    await world.registry.delete(session.id)
    assert [other.id] == await listed(world)
    monkeypatch.undo()
    assert [other.id] == await listed(world)
    assert None is await world.store.catalog.get(session.id)


async def listed(world: World) -> list[str]:
    return [row.id for row in (await world.registry.page())[0]]


async def test_a_session_whose_row_cannot_be_written_is_listed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a full disk as well a listing has what the log says: each session once, newest first, under its folder only."""
    old = await closed(world)
    session, voice = await world.with_agent()
    prompt(session, None, "p1")
    await voice.prompted()

    async def full(_row: Row) -> None:
        raise StoreError("write", "the catalog", cause="no space")

    monkeypatch.setattr(world.store.catalog, "put", full)
    assert [session.id, old.id] == await listed(world)
    here, _ = await world.registry.page(cwd=session.header.folder or session.header.cwd)
    assert ["p1"] == [row.title for row in here if row.id == session.id]
    assert ([], None) == await world.registry.page(cwd="/nowhere")
    first, after = await world.registry.page(limit=1)
    assert [session.id, old.id] == [row.id for row in first]
    assert ([], None) == await world.registry.page(after=after)
    monkeypatch.undo()
    voice.end()
    await session.idle()


async def test_what_is_done_before_a_delete_is_done_with_the_lease_and_without_a_turn(world: World) -> None:
    """The agent is asked to delete its own session when nobody can use it any more, and not where the delete is refused."""
    asked: list[tuple[str, bool]] = []

    async def before(_agent: str, inner: str) -> None:
        asked.append((inner, await world.store.lease.holder(session.key) is not None))

    session, voice = await world.with_agent()
    async with World(world.root) as other:
        with pytest.raises(SessionBusy):
            await other.registry.delete(session.id, before)
        other.failed.clear()
    assert [] == asked
    prompt(session, None, "p1")
    await voice.prompted()
    deleting = start(world.registry.delete(session.id, before))
    await until(lambda: voice.cancels)
    assert [] == asked
    voice.end("cancelled")
    await deleting
    session = await closed(world)
    await world.registry.delete(session.id, before)
    assert [("inner-1", True)] * 2 == asked


async def test_a_session_whose_log_was_removed_is_not_listed_any_more(world: World) -> None:
    """Whoever finds out that it is gone puts the catalog right."""
    session = await closed(world)
    os.unlink(world.store.journals.log_path(session.key))
    with pytest.raises(SessionNotFound):
        await world.registry.open(session.id)
    assert None is await world.store.catalog.get(session.id)
    world.failed.clear()


async def test_nothing_is_deleted_on_the_word_of_the_catalog(world: World) -> None:
    """A row that says that nobody ever prompted, of a log that knows better: the log stays, and the row is put right."""
    session = await closed(world)
    row = await world.store.catalog.get(session.id)
    assert row is not None
    await world.store.catalog.put(replace(row, prompted=False))
    await world.registry.forget_unprompted("2999-01-01T00:00:00.000Z")
    assert 1 == len(world.log(session).of("prompt"))
    assert [session.id] == [row.id for row in await world.store.catalog.page()]


async def test_deleting_what_is_not_there(world: World) -> None:
    """Idempotent: an unknown id, and one deleted before, are no errors."""
    session = await closed(world)
    await world.registry.delete("no such session")
    await world.registry.delete(session.id)
    await world.registry.delete(session.id)


async def test_opening_while_deleting(world: World) -> None:
    """Who opens what is being deleted is told that it is gone, and not that it is busy."""
    session = await closed(world)
    deleting = start(world.registry.delete(session.id))
    await asyncio.sleep(0)
    with pytest.raises(SessionNotFound):
        await world.registry.open(session.id)
    await deleting
    world.failed.clear()


async def test_deleting_while_opening(world: World) -> None:
    """The opening ends first, then the session is closed and removed."""
    session = await closed(world)
    opening = start(world.registry.open(session.id))
    await asyncio.sleep(0)
    await world.registry.delete(session.id)
    assert (True, {}) == (opening.done(), world.registry.live)
    assert None is await world.store.catalog.get(session.id)


async def test_forking(world: World) -> None:
    """The path up to the leaf in a log of its own, with its parent named; the source is not touched."""
    source, voice = await world.with_agent()
    attach(source, editor := Editor())
    prompt(source, editor, "p1")
    await voice.prompted()
    voice.say("a", "b")
    voice.end()
    await editor.answered("p1")
    before = world.log(source).lines
    fork = await world.registry.fork(source.id, "/else/where", ("/more",))
    header = world.registry.live[fork.id].header
    assert ("/else/where", ("/more",), source.id, source.fold.leaf) == (
        header.cwd,
        header.additionalDirectories,
        header.parent.sessionId if header.parent else None,
        header.parent.entryId if header.parent else None,
    )
    await load(fork, late := Editor())
    assert ["p1", "ab"] == late.texts
    assert (before, "", "p1") == (world.log(source).lines, fork.fold.inner, fork.fold.title)
    attach(fork, other := Editor())
    prompt(fork, other, "p2")
    await until(lambda: len(world.agents.made) == 2 and world.agents.made[1].prompts)
    world.agents.made[1].end()
    await other.answered("p2")
    assert before == world.log(source).lines


async def test_a_fork_in_a_turn_ends_with_the_turn_before(world: World) -> None:
    """What is not over is no part of a fork; where no turn is over there is nothing to fork."""
    source, voice = await world.with_agent()
    attach(source, editor := Editor())
    prompt(source, editor, "p1")
    await voice.prompted()
    with pytest.raises(RequestError, match="nothing to fork"):
        await world.registry.fork(source.id, "/else", ())
    voice.end()
    await editor.answered("p1")
    prompt(source, editor, "p2")
    await voice.prompted(2)
    fork = await world.registry.fork(source.id, "/else", ())
    await load(fork, late := Editor())
    assert ["p1"] == late.texts


async def test_a_session_that_another_process_has(world: World, tmp_path: Path) -> None:
    """Its pid is named; it can be neither opened nor deleted here, and both work when it is given up there."""
    session = await world.new()
    async with World(world.root) as other:
        for work in (other.registry.open, other.registry.delete):
            with pytest.raises(SessionBusy, match=str(os.getpid())):
                await work(session.id)
        other.failed.clear()
        await world.registry.close(session.id)
        await other.registry.open(session.id)
        with pytest.raises(SessionBusy):
            await world.registry.open(session.id)
        world.failed.clear()


async def test_an_unknown_session(world: World) -> None:
    """SessionNotFound, with the id."""
    with pytest.raises(SessionNotFound, match="nothing"):
        await world.registry.open("nothing")
    world.failed.clear()


async def test_stopping_closes_all_and_reports_the_first_failure(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """One session that cannot be closed keeps no other from being closed."""
    one, two, three = [await world.new() for _ in range(3)]
    close = two.scribe.journal.close

    async def failing() -> None:
        raise StoreError("close", "the log", cause="no space")

    monkeypatch.setattr(two.scribe.journal, "close", failing)
    with pytest.raises(StoreError, match="no space"):
        await world.registry.stop(interrupt=True)
    assert {two.id: two} == world.registry.live
    assert (None, None) == (await world.store.lease.holder(one.key), await world.store.lease.holder(three.key))
    monkeypatch.setattr(two.scribe.journal, "close", close)
    world.failed.clear()


async def test_the_catalog_is_brought_up_to_the_log_on_request(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """`refresh` writes what is new; where that fails the catalog says what it knew, and the next one tries again."""
    session, voice = await world.with_agent()
    prompt(session, None, "p1")
    await voice.prompted()

    async def full(_row: object) -> None:
        raise StoreError("write", "the catalog", cause="no space")

    monkeypatch.setattr(world.store.catalog, "put", full)
    await world.registry.page()
    monkeypatch.undo()
    row = await world.store.catalog.get(session.id)
    assert row is not None
    assert not row.prompted
    await world.registry.page()
    row = await world.store.catalog.get(session.id)
    assert row is not None
    assert (True, "p1", session.fold.seq) == (row.prompted, row.title, row.seq)
    voice.end()
    await session.idle()


async def not_known_yet(world: World) -> tuple[LiveSession, Row]:
    """A closed session that the catalog, which is being made, has no row of yet; and that row."""
    session = await closed(world)
    row = await world.store.catalog.get(session.id)
    assert row is not None
    await world.store.catalog.delete(session.id)
    world.registry.complete.clear()
    return session, row


async def test_a_catalog_that_is_made_anew_is_waited_for(world: World) -> None:
    """At a start the catalog may not know a session yet: opening and listing wait until it does, but not for ever."""
    session, row = await not_known_yet(world)
    opening, listing = start(world.registry.open(session.id)), start(world.registry.page())
    for _ in range(100):
        await asyncio.sleep(0)
    assert (False, False) == (opening.done(), listing.done())
    await world.store.catalog.put(row)
    world.registry.complete.set()
    await listing
    assert session.id == (await opening).id
    world.registry.complete.clear()
    waiting = start(world.registry.page())
    await asyncio.sleep(0)
    put_forward(COMPLETE_TIMEOUT)
    async with asyncio.timeout(5):
        await waiting
    world.registry.complete.set()


async def test_a_session_without_a_row_is_found_by_its_log(world: World) -> None:
    """Right after a start the catalog may not know a log that was put back: it is opened, or deleted, all the same."""
    session, _ = await not_known_yet(world)
    world.registry.complete.set()
    with pytest.raises(SessionNotFound):
        await world.registry.open(session.id)
    world.failed.clear()
    world.registry.compared = False
    assert session.id == (await world.registry.open(session.id)).id
    await world.registry.delete(session.id)
    with pytest.raises(SessionNotFound):
        await world.registry.open(session.id)
    world.failed.clear()


async def test_sessions_that_nobody_used_are_forgotten(world: World) -> None:
    """Those never prompted and closed before the time go; open, prompted and younger ones stay."""
    prompted = await closed(world)
    unused, held = await world.new(), await world.new()
    await world.registry.close(unused.id)
    await world.registry.forget_unprompted("2000-01-01T00:00:00.000Z")
    assert None is not await world.store.catalog.get(unused.id)
    await world.registry.forget_unprompted("2999-01-01T00:00:00.000Z")
    assert None is await world.store.catalog.get(unused.id)
    assert held.id in world.registry.live
    assert None is not await world.store.catalog.get(prompted.id)


async def test_a_session_that_somebody_came_back_to_is_not_forgotten(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Open again or prompted since the catalog was asked: it stays."""
    prompted, held = await closed(world), await world.new()
    rows = [row for name in (prompted.id, held.id) if (row := await world.store.catalog.get(name)) is not None]

    async def stale(_before: str) -> list[Row]:
        return [replace(row, prompted=False) for row in rows]

    monkeypatch.setattr(world.store.catalog, "unprompted", stale)
    await world.registry.forget_unprompted("2999-01-01T00:00:00.000Z")
    assert 2 == len(rows)
    assert held.id in world.registry.live
    assert (await world.registry.open(prompted.id)).fold.prompted


async def test_a_session_that_a_catalog_in_the_making_does_not_know_yet(world: World) -> None:
    """Not "no such session", after which it would be looked for elsewhere, but an error that passes."""
    session, row = await not_known_yet(world)
    opening = start(world.registry.open(session.id))
    while not opening.done():
        await asyncio.sleep(0.0005)
        put_forward(COMPLETE_TIMEOUT)
    with pytest.raises(StoreError, match="try again") as raised:
        await opening
    assert raised.value.retryable
    world.failed.clear()
    await world.store.catalog.put(row)
    world.registry.complete.set()
    assert session.id == (await world.registry.open(session.id)).id


async def test_a_fork_that_fails_leaves_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """No log, no row, no lease of the new session; the source is as it was, and the next fork works."""
    session = await closed(world)
    source = await world.registry.open(session.id)

    async def broken(*_: object) -> None:
        raise StoreError("read", "the log", cause="I/O error")

    monkeypatch.setattr(world.store.journals, "peek", broken)
    with pytest.raises(StoreError):
        await world.registry.fork(source.id, "/w", ())
    world.failed.clear()
    assert [session.id] == list(logs.logs(world.root))
    monkeypatch.undo()
    assert None is not await world.registry.fork(source.id, "/w", ())


# -- what follows a turn (acpd.saving)


async def saved(world: World, session: LiveSession, true: Callable[[], object]) -> None:
    """Until the saver has written so much; its delay has passed."""
    for _ in range(5000):
        if true():
            return
        put_forward(0.5)
        await asyncio.sleep(0.0005)
    raise TimeoutError


def context_of(world: World, session: LiveSession) -> str:
    path = Path(world.store.journals.log_path(session.key))
    context = path.with_name(path.name.replace(".log.", "."))
    return context.read_text() if context.exists() else ""


def in_context(world: World, session: LiveSession, text: str) -> bool:
    return text in context_of(world, session)


async def test_after_each_turn_the_context_is_appended(world: World) -> None:
    """Once a while after the turn, without being asked; the second turn is appended to the first."""
    session, voice = await world.with_agent()
    attach(session, editor := Editor())
    for number in (1, 2):
        prompt(session, editor, f"p{number}")
        await voice.prompted(number)
        voice.say(f"reply {number}")
        voice.end()
        await editor.answered(f"p{number}")
        await saved(world, session, partial(in_context, world, session, f"reply {number}"))
    lines = context_of(world, session).splitlines()
    assert 5 == len(lines)
    assert [1, 1, 1, 1] == [sum(text in line for line in lines) for text in ('"p1"', '"reply 1"', '"p2"', '"reply 2"')]


async def test_a_part_that_cannot_be_saved_keeps_none_of_the_others(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """States, context, row: each is tried, what failed is counted and mended by the next save."""
    session, voice = await world.with_agent()
    attach(session, editor := Editor())
    save = world.store.session.save
    broken = [True]

    async def failing(key: Key, name: str, value: bytes) -> None:
        if broken:
            raise StoreError("save", name, cause="no space")
        await save(key, name, value)

    monkeypatch.setattr(world.store.session, "save", failing)
    voice.say({"sessionUpdate": "usage_update", "used": 1, "size": 2})
    prompt(session, editor, "p1")
    await voice.prompted()
    voice.say("a")
    voice.end()
    await editor.answered("p1")
    await saved(world, session, lambda: session.recorder.warnings)
    await saved(world, session, lambda: '"a"' in context_of(world, session))
    broken.clear()
    await world.registry.close(session.id)
    assert b'"used":1' in (await world.store.session.load(session.key, "acpd.usage") or b"")


async def test_once_the_agent_has_compacted_the_context_is_made_anew(world: World) -> None:
    """The context begins with the newest summary, the log keeps everything; later turns are appended again."""
    session, voice = await world.with_agent()
    attach(session, editor := Editor())
    for number in (1, 2, 3, 4):
        prompt(session, editor, f"p{number}")
        await voice.prompted(number)
        if number == 3:
            said = {"sessionUpdate": "compaction_update", "compactionId": "k", "status": "completed"}
            voice.say({**said, "summary": [{"type": "text", "text": "SUM"}], "_meta": {"acpd.dev/upTo": "m1"}})
        voice.say(chunk(f"reply {number}", messageId=f"m{number}"))
        voice.end()
        await editor.answered(f"p{number}")
        await saved(world, session, partial(in_context, world, session, f"reply {number}"))
    lines = context_of(world, session).splitlines()[1:]
    texts = ["SUM", "p2", "reply 2", "p3", "reply 3", "p4", "reply 4"]
    assert [True] * 7 == [text in line for text, line in zip(texts, lines, strict=True)]
    log = Path(world.store.journals.log_path(session.key)).read_text()
    assert json.loads(lines[0])["upTo"] == next(json.loads(line)["id"] for line in log.splitlines() if "reply 1" in line)


async def test_a_context_that_failed_half_way_is_written_anew(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """No line is in it twice."""
    session, voice = await world.with_agent()
    attach(session, editor := Editor())
    journal = session.scribe.journal
    write = journal.write_context
    failures = [StoreError("write", "the context", cause="no space")]

    async def half(lines: bytes, *, fresh: bool) -> None:
        await write(lines, fresh=fresh)
        if not fresh and failures:
            raise failures.pop()

    monkeypatch.setattr(journal, "write_context", half)
    for number in (1, 2):
        prompt(session, editor, f"p{number}")
        await voice.prompted(number)
        voice.say(f"reply {number}")
        voice.end()
        await editor.answered(f"p{number}")
        await saved(world, session, partial(in_context, world, session, f"reply {number}"))
    await world.registry.close(session.id)
    assert ([], 1) == (failures, context_of(world, session).count("reply 2"))
