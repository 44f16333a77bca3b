"""What a dead holder left open is closed in the log when the session is opened again; nothing is run again."""

from __future__ import annotations

from pathlib import Path

import pytest

from acpd import recovery
from acpd.asks import PERMISSION
from acpd.errors import StoreError
from acpd.session import NEVER_BEGUN, LiveSession
from tests.core.test_asks import CANCELLED, PARAMS
from tests.core.test_session import ends
from tests.core.world import Editor, World, attach, load, prompt
from tests.support import store as logs

AT = "2026-01-02T03:04:05.678Z"


async def left_open(world: World, *what: str) -> LiveSession:
    """A session with these open: "turn", "ask", "queue"."""
    session, voice = await world.with_agent()
    attach(session, editor := Editor())
    prompt(session, editor, "p0")
    await voice.until(lambda: voice.prompts)
    voice.say("zero")
    if "turn" in what or "queue" in what:
        if "queue" in what:
            prompt(session, editor, "p1")
            prompt(session, editor, "p2")
    else:
        voice.end()
        await session.idle()
    if "ask" in what:
        voice.ask_user("q", PERMISSION, PARAMS)
    return session


async def reopened(world: World, session: LiveSession, to: Path) -> logs.Log:
    """The log after kill -9, an opening and a closing."""
    async with world.crashed(to) as later:
        await later.registry.open(session.id)
        await later.registry.close(session.id)
        return later.log(session.id)


async def test_a_session_that_was_idle_is_left_alone(world: World, tmp_path: Path) -> None:
    """Nothing was open, so opening writes nothing."""
    session = await left_open(world)
    assert world.log(session).lines == (await reopened(world, session, tmp_path / "after")).lines


async def test_an_open_turn_is_interrupted(world: World, tmp_path: Path) -> None:
    """The user is told in the conversation that nothing is run again; the turn has an end."""
    session = await left_open(world, "turn")
    log = await reopened(world, session, tmp_path / "after")
    added = log.entries[len(world.log(session).entries) :]
    assert ["update", "turn"] == [entry["type"] for entry in added]
    assert recovery.INTERRUPTED in added[0]["params"]["update"]["content"]["text"]
    assert [("", "interrupted")] == ends(log)


async def test_an_open_ask_is_answered(world: World, tmp_path: Path) -> None:
    """Its agent is gone, so nobody waits for the answer; it is no grant."""
    session = await left_open(world, "ask")
    log = await reopened(world, session, tmp_path / "after")
    answer = log.entries[-1]
    assert ("answer", log.of("ask")[0]["id"], "acpd", CANCELLED) == (
        answer["type"],
        answer["ask"],
        answer["by"],
        answer["result"],
    )


async def test_prompts_that_waited_become_part_of_the_conversation(world: World, tmp_path: Path) -> None:
    """Each is recorded in its order with a word that the agent never got it, and none is sent."""
    session = await left_open(world, "queue")
    after = world.crashed(tmp_path / "after")
    async with after:
        again = await after.registry.open(session.id)
        assert (None, 0, []) == (again.fold.queue, after.agents.starts, again.queue)
        await load(again, editor := Editor())
        texts = [text for text in editor.texts if text != recovery.INTERRUPTED]
        assert ["p0", "p1", "p2"] == [text for text in texts if text.startswith("p")]
        assert 2 == sum(NEVER_BEGUN in text for text in texts)
        assert ["interrupted"] * 3 == [how for _, how in ends(after.log(session.id))]


MIXED = '[5,{"x":1},{"prompt":"p"},{"prompt":[7]},{"prompt":[{"a":1}]}]'


@pytest.mark.parametrize("prompts", [MIXED, "5", "{}", "null", '"x"'])
async def test_a_queue_that_is_damaged_costs_what_is_damaged(world: World, prompts: str) -> None:
    """The session opens; what is a prompt becomes part of the conversation."""
    session = await left_open(world)
    await world.registry.close(session.id)
    log = world.log(session)
    seq = log.entries[-1]["seq"] + 1
    with log.path.open("a") as file:
        file.write(f'{{"type":"queue","id":"{world.registry.new_id()}","seq":{seq},"at":"{AT}","prompts":{prompts}}}\n')
    again = await world.registry.open(session.id)
    assert 1 + prompts.startswith("[") == len(world.log(again).of("prompt"))
    assert again.fold.queue is None


async def test_everything_at_once_and_twice(world: World, tmp_path: Path) -> None:
    """Ask, turn and queue are closed in this order in one chain; opening a second time changes nothing more."""
    session = await left_open(world, "turn", "ask", "queue")
    async with world.crashed(tmp_path / "one") as first:
        await first.registry.open(session.id)
        log = first.log(session.id)
        added = [entry["type"] for entry in log.entries[len(world.log(session).entries) :]]
        assert ["answer", "update", "turn", *["prompt", "update", "turn"] * 2, "queue"] == added
        entries = [entry for entry in log.entries if "parentId" in entry]
        assert [None, *(entry["id"] for entry in entries[:-1])] == [entry["parentId"] for entry in entries]
        async with first.crashed(tmp_path / "two") as second:
            again = await second.registry.open(session.id)
            assert log.lines == second.log(session.id).lines
            assert ({}, None, None) == (again.fold.asks, again.fold.turn, again.fold.queue)


async def test_the_next_prompt_works_after_recovery(world: World, tmp_path: Path) -> None:
    """A recovered session goes on: the new turn hangs behind what was closed."""
    session = await left_open(world, "turn", "ask", "queue")
    async with world.crashed(tmp_path / "after") as later:
        again = await later.registry.open(session.id)
        attach(again, editor := Editor())
        prompt(again, editor, "next")
        await later.agents.until(lambda: later.agents.made and later.agents.made[0].prompts)
        later.agents.made[0].say("yes")
        later.agents.made[0].end()
        await editor.answered("next")
        assert ["yes", "=end_turn"] == editor.texts
        assert not again.fold.branched


async def test_recovery_is_durable_before_anybody_sees_the_session(world: World, tmp_path: Path) -> None:
    """It is synced when `open` returns."""
    session = await left_open(world, "turn")
    async with world.crashed(tmp_path / "after") as later:
        again = await later.registry.open(session.id)
        assert later.files.syncs == 1
        assert again.scribe.journal.sync() is None


async def test_a_session_that_cannot_be_recovered_is_not_opened(world: World, tmp_path: Path) -> None:
    """A full disk: the error is the opener's, the lease is free again, and a later opening works."""
    session = await left_open(world, "turn")
    async with world.crashed(tmp_path / "after") as later:
        later.break_disk()
        with pytest.raises(StoreError, match="No space left"):
            await later.registry.open(session.id)
        assert ({}, None) == (later.registry.live, await later.store.lease.holder(session.key))
        later.failed.clear()
        later.mend_disk()
        await later.registry.open(session.id)
        assert [("", "interrupted")] == ends(later.log(session.id))


async def test_a_start_lists_what_was_prompted_before_the_crash(world: World, tmp_path: Path) -> None:
    """Killed in its first turn, or closed before: a session of acpd's own has a row, so that no start need look for its log."""
    running, voice = await world.with_agent()
    attach(running, editor := Editor())
    prompt(running, editor, "p1")
    await voice.prompted()
    ended, voice = await world.with_agent()
    attach(ended, editor := Editor())
    prompt(ended, editor, "p1")
    await voice.prompted()
    voice.end()
    await ended.idle()
    await world.registry.close(ended.id)
    async with world.crashed(tmp_path / "later") as later:
        await later.store.catalog.mend(later.store.journals)
        rows, _ = await later.registry.page()
        assert {running.id: "p1", ended.id: "p1"} == {row.id: row.title for row in rows}
