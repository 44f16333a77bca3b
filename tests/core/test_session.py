"""Turns of a live session: one at a time, each answered once, whatever the agent, the client or the disk does."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from acpd.errors import AgentError, RequestError, StoreError
from acpd.needs import Settings
from acpd.scribe import GIVE_UP, RETRY_EVERY
from acpd.session import NEVER_BEGUN, LiveSession
from acpd.storage.contract import Key
from acpd.turn import Turn
from tests.core.pipes import start
from tests.core.world import Editor, Voice, World, attach, chunk, prompt, put_forward, until
from tests.support import store as logs

BIG = "x" * 70_000


async def running(world: World, *names: str) -> tuple[LiveSession, Voice, Editor]:
    """A session on whose agent the first of these prompts runs; the others wait."""
    session, voice = await world.with_agent()
    attach(session, editor := Editor())
    for name in names or ("p1",):
        prompt(session, editor, name)
    await voice.prompted()
    return session, voice, editor


def ends(log: logs.Log) -> list[tuple[str, str]]:
    """How the turns ended: prompt text, and stop reason, error code or state."""
    texts = {entry["id"]: entry["prompt"][0]["text"] for entry in log.of("prompt")}
    found = []
    for entry in log.of("turn"):
        if entry["state"] != "running":
            how = entry["stopReason"] if entry["state"] == "ended" and "stopReason" in entry else entry["state"]
            found.append((texts.get(entry.get("entry", ""), ""), str(entry["error"]["code"]) if "error" in entry else how))
    return found


# -- one turn


async def test_a_turn(world: World) -> None:
    """Prompt, durable; the agent; updates; the end, durable; the answer, which is the agent's own with all its members."""
    session, voice, editor = await running(world)
    assert [{"type": "text", "text": "p1"}] == voice.prompts[0][0]["prompt"]
    voice.say("a", "b")
    voice.end(usage={"totalTokens": 1.50})
    answer = await editor.answered("p1")
    assert {"stopReason": "end_turn", "usage": {"totalTokens": 1.50}} == answer["result"]
    assert ["a", "b", "=end_turn"] == editor.texts
    log = world.log(session)
    assert ["link", "prompt", "turn", "info", "update", "update", "turn"] == [entry["type"] for entry in log.entries]
    assert [("p1", "end_turn")] == ends(log)
    assert ("p1", Turn.IDLE) == (session.fold.title, session.state)


async def test_the_prompt_is_durable_before_the_agent_gets_it(world: World) -> None:
    """What the agent acts upon survives a loss of power."""
    session, voice = await world.with_agent()
    await session.scribe.settled()
    before: list[int] = []
    world.files.on_sync = lambda _: before.append(len(voice.prompts))
    prompt(session, None, "p1")
    assert [] == voice.prompts
    await voice.prompted()
    assert [0] == before
    voice.end()
    await session.idle()


async def test_the_end_is_durable_before_the_answer(world: World) -> None:
    """An answered prompt's whole turn survives a loss of power."""
    session, voice, editor = await running(world)
    world.files.on_sync = lambda _: before.append(editor.answer_to("p1") is None)
    before: list[bool] = []
    voice.say("a")
    voice.end()
    assert editor.answer_to("p1") is None
    await session.idle()
    assert (True, True) == (before[0], editor.answer_to("p1") is not None)


@pytest.mark.parametrize("reason", ["end_turn", "max_tokens", "max_turn_requests", "refusal", "cancelled"])
async def test_every_stop_reason_of_the_schema_is_passed_on(world: World, reason: str) -> None:
    """The closed enum of ACP v1."""
    session, voice, editor = await running(world)
    voice.end(reason)
    assert reason == (await editor.answered("p1"))["result"]["stopReason"]
    assert [("p1", reason)] == ends(world.log(session))


@pytest.mark.parametrize("result", [{"stopReason": "tired"}, {"stopReason": None}, {}, None, [], "end_turn", 7])
async def test_an_unknown_answer_is_an_error_and_ends_the_turn(world: World, result: object) -> None:
    """A client would not understand it: it gets -32603, and the next prompt works."""
    session, voice, editor = await running(world)
    voice.finish(result)
    assert -32603 == (await editor.answered("p1"))["error"]["code"]
    prompt(session, editor, "p2")
    await voice.prompted(2)
    voice.end()
    assert "result" in await editor.answered("p2")


async def test_an_agents_error_is_passed_on_as_it_is(world: World) -> None:
    """Code, message and data are the agent's; the turn has ended with it."""
    session, voice, editor = await running(world)
    voice.finish(error=RequestError(-32000, "x", raw=b'{"code":-32000,"message":"log in","data":{"a":1.50}}'))
    assert {"code": -32000, "message": "log in", "data": {"a": 1.50}} == (await editor.answered("p1"))["error"]
    assert [("p1", "-32000")] == ends(world.log(session))


async def test_a_second_answer_of_the_agent_is_nothing(world: World) -> None:
    """Late answers to a turn that is over do not touch the next one."""
    session, voice, editor = await running(world, "p1", "p2")
    old = voice.prompts[0][1]
    voice.end()
    old(b'{"stopReason":"refusal"}', None)
    await voice.prompted(2)
    old(b'{"stopReason":"refusal"}', None)
    assert Turn.RUNNING is session.state
    voice.end()
    await editor.answered("p2")
    assert [("p1", "end_turn"), ("p2", "end_turn")] == ends(world.log(session))


async def test_an_echo_of_the_prompt_is_not_stored_twice(world: World) -> None:
    """An agent that repeats the running prompt as user_message_chunk tells nothing new; other user chunks are kept."""
    session, voice, editor = await running(world)
    voice.say(chunk("p1", "user_message_chunk"), chunk("other", "user_message_chunk"))
    assert ["other"] == editor.texts
    voice.end()
    await session.idle()


async def test_a_prompt_with_a_big_image(world: World) -> None:
    """Its data stands beside the log before the log names it; the agent gets it whole, other clients too."""
    session, voice = await world.with_agent()
    attach(session, mine := Editor())
    attach(session, yours := Editor())
    prompt(session, mine, "p1", BIG)
    assert (Turn.STARTING, []) == (session.state, voice.prompts)
    await voice.prompted()
    assert BIG == voice.prompts[0][0]["prompt"][0]["text"]
    assert [BIG] == yours.texts
    log = world.log(session)
    assert 70_000 == log.of("prompt")[0]["prompt"][0]["text"]["bytes"]
    voice.end()
    await mine.answered("p1")


async def test_work_after_the_end_is_stored_and_shown(world: World) -> None:
    """Agents go on after their answer; that is like any other work."""
    session, voice, editor = await running(world)
    voice.end()
    await editor.answered("p1")
    voice.say("late")
    assert ["=end_turn", "late"] == editor.texts
    assert 1 == len(world.log(session).of("update"))


# -- the queue


async def test_prompts_wait_in_order(world: World) -> None:
    """One turn at a time; the others begin in the order in which they came, each answered by itself."""
    session, voice, editor = await running(world, "p1", "p2", "p3")
    for number in range(3):
        await voice.prompted(number + 1)
        assert 2 - number == len(session.queue)
        voice.say(f"u{number + 1}")
        voice.end()
        await editor.answered(f"p{number + 1}")
    assert ["u1", "=end_turn", "u2", "=end_turn", "u3", "=end_turn"] == editor.texts
    assert [("p1", "end_turn"), ("p2", "end_turn"), ("p3", "end_turn")] == ends(world.log(session))


async def test_the_queue_is_bounded(world: World) -> None:
    """One more than `queue` waiting prompts is refused, and the others are served."""
    session, voice, editor = await running(world, *(f"p{number}" for number in range(world.settings.queue + 1)))
    with pytest.raises(RequestError, match="queue"):
        prompt(session, editor, "too many")
    session.cancel()
    voice.end("cancelled")
    await session.idle()
    assert ["=cancelled"] * (world.settings.queue + 1) == editor.texts


async def test_the_queue_is_in_the_log(world: World) -> None:
    """What waits is a fact while it waits: it changes in the same write as the prompt that leaves it."""
    session, voice, editor = await running(world, "p1", "p2")
    assert [["p2"]] == [[each["prompt"][0]["text"] for each in fact["prompts"]] for fact in world.log(session).of("queue")]
    writes: list[bytes] = []
    write = world.files.write

    def noted(fd: int, data: bytes | memoryview) -> int:
        writes.append(bytes(data))
        return write(fd, data)

    world.files.write = noted  # type: ignore[method-assign]
    voice.end()
    await voice.prompted(2)
    both = [data for data in writes if b'"type":"prompt"' in data or b'"type":"queue"' in data]
    assert 1 == len(both)
    assert None is session.fold.queue
    voice.end()
    await editor.answered("p2")


# -- cancel, in every state


async def test_a_cancel_while_nothing_runs_is_nothing(world: World) -> None:
    """A late cancel never hits the next turn."""
    session, voice = await world.with_agent()
    attach(session, editor := Editor())
    session.cancel()
    prompt(session, editor, "p1")
    await voice.prompted()
    voice.end()
    assert "end_turn" == (await editor.answered("p1"))["result"]["stopReason"]
    assert 0 == voice.cancels


async def test_a_cancel_before_the_prompt_is_durable(world: World) -> None:
    """STARTING, in the log already: it ends cancelled and the agent never hears of it."""
    session, voice = await world.with_agent()
    attach(session, editor := Editor())
    prompt(session, editor, "p1")
    assert Turn.STARTING is session.state
    session.cancel()
    assert "cancelled" == (await editor.answered("p1"))["result"]["stopReason"]
    assert ([], 0, [("p1", "cancelled")]) == (voice.prompts, voice.cancels, ends(world.log(session)))


async def test_a_cancel_before_the_prompt_is_in_the_log(world: World) -> None:
    """STARTING, its blobs still being stored: it is recorded, then ends cancelled."""
    session, voice = await world.with_agent()
    attach(session, editor := Editor())
    prompt(session, editor, "p1", BIG)
    session.cancel()
    assert "cancelled" == (await editor.answered("p1"))["result"]["stopReason"]
    assert ([], 1) == (voice.prompts, len(world.log(session).of("prompt")))


async def test_a_cancel_while_the_agent_starts(world: World) -> None:
    """The turn ends at once; the agent comes up for the next one."""
    session = await world.new()
    attach(session, editor := Editor())
    world.agents.gate.clear()
    prompt(session, editor, "p1")
    await until(lambda: world.agents.starts)
    session.cancel()
    assert "cancelled" == (await editor.answered("p1"))["result"]["stopReason"]
    world.agents.gate.set()
    prompt(session, editor, "p2")
    await until(lambda: world.agents.made and world.agents.made[0].prompts)
    world.agents.made[0].end()
    await editor.answered("p2")
    assert 1 == world.agents.starts


@pytest.mark.parametrize("finish", ["cancelled", "end_turn", "tired", "error", "null"])
async def test_a_cancel_of_a_running_turn_is_answered_cancelled(world: World, finish: str) -> None:
    """ACP v1: `cancelled`, never an error, whatever the agent makes of it; its other members are kept."""
    session, voice, editor = await running(world)
    session.cancel()
    session.cancel()
    assert (Turn.CANCELLING, 1) == (session.state, voice.cancels)
    voice.say("last words")
    if finish == "error":
        voice.finish(error=RequestError(-32603, "aborted"))
    elif finish == "null":
        voice.finish(None)
    else:
        voice.end(finish, more=1)
    answer = await editor.answered("p1")
    assert ("cancelled", finish not in ("error", "null")) == (answer["result"]["stopReason"], "more" in answer["result"])
    assert ["last words", "=cancelled"] == editor.texts


async def test_a_cancel_while_the_end_is_being_written_changes_nothing(world: World) -> None:
    """ENDING: the answer is on its way as it is, and the agent hears nothing."""
    session, voice, editor = await running(world)
    voice.end()
    assert Turn.ENDING is session.state
    session.cancel()
    assert "end_turn" == (await editor.answered("p1"))["result"]["stopReason"]
    assert 0 == voice.cancels


async def test_a_cancel_answers_what_waits(world: World) -> None:
    """The running prompt and the queued ones are all `cancelled`; the agent gets none of those that waited."""
    session, voice, editor = await running(world, "p1", "p2", "p3")
    session.cancel()
    voice.end("cancelled")
    await editor.answered("p3")
    assert ["=cancelled"] * 3 == editor.texts
    assert 1 == len(voice.prompts)
    assert [("p1", "cancelled"), ("p2", "cancelled"), ("p3", "cancelled")] == ends(world.log(session))


async def test_a_full_queue_of_cancelled_prompts_needs_no_stack(tmp_path: Path) -> None:
    """However many prompts are cancelled at once, also where nothing is synced and each ends in the call that begins it."""
    async with World(tmp_path / "store", settings=Settings(queue=2000), sync=False) as world:
        session, voice, editor = await running(world, *(f"p{number}" for number in range(1500)))
        session.cancel()
        voice.end("cancelled")
        await session.idle()
        assert ["=cancelled"] * 1500 == editor.texts


async def test_cancelling_one_prompt_by_its_request(world: World) -> None:
    """$/cancel_request: the one that waits is cancelled alone, the running one as by session/cancel, unknown ones never."""
    session, voice, editor = await running(world, "p1", "p2", "p3")
    other = Editor()
    assert [False, False, True] == [
        session.cancel_prompt(editor, b'"p9"'),
        session.cancel_prompt(other, b'"p2"'),
        session.cancel_prompt(editor, b'"p2"'),
    ]
    await editor.answered("p2")  # at once: it was withdrawn, and no turn of it begins
    voice.end()
    await voice.prompted(2)
    voice.end()
    await editor.answered("p3")
    assert ["=cancelled", "=end_turn", "=end_turn"] == editor.texts
    prompt(session, editor, "p4")
    await voice.prompted(3)
    assert session.cancel_prompt(editor, b'"p4"')
    voice.end("cancelled")
    await editor.answered("p4")


async def test_a_deaf_agent_is_stopped(world: World) -> None:
    """After cancel_timeout the turn is `cancelled` all the same, the agent is stopped, and the next prompt starts another."""
    session, voice, editor = await running(world)
    session.cancel()
    await asyncio.sleep(0)
    put_forward(world.settings.cancel_timeout - 1)
    await asyncio.sleep(0)
    assert editor.answer_to("p1") is None
    put_forward(1)
    assert "cancelled" == (await editor.answered("p1"))["result"]["stopReason"]
    await until(lambda: voice.stopped)
    voice.end("end_turn")
    prompt(session, editor, "p2")
    await until(lambda: len(world.agents.made) == 2 and world.agents.made[1].prompts)
    world.agents.made[1].end()
    await editor.answered("p2")
    assert [("p1", "cancelled"), ("p2", "end_turn")] == ends(world.log(session))


async def test_the_deadline_of_a_cancel_ends_with_its_turn(world: World) -> None:
    """An agent that answered in time is not stopped later, in the next turn."""
    session, voice, editor = await running(world, "p1")
    session.cancel()
    voice.end("cancelled")
    await editor.answered("p1")
    prompt(session, editor, "p2")
    await voice.prompted(2)
    put_forward(world.settings.cancel_timeout * 2)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert (False, Turn.RUNNING) == (voice.stopped, session.state)
    voice.end()
    await editor.answered("p2")


# -- the agent is lost, in every state


async def test_an_agent_that_dies_in_a_turn(world: World) -> None:
    """The turn ends with the cause, which is in the log too; the next prompt starts a new agent."""
    session, voice, editor = await running(world, "p1", "p2")
    voice.say("a")
    voice.die()
    answer = await editor.answered("p1")
    assert (-32603, True) == (answer["error"]["code"], "exit code 3: oh no" in answer["error"]["message"])
    await until(lambda: len(world.agents.made) == 2 and world.agents.made[1].prompts)
    world.agents.made[1].end()
    assert "end_turn" == (await editor.answered("p2"))["result"]["stopReason"]
    assert [("p1", "-32603"), ("p2", "end_turn")] == ends(world.log(session))


async def test_an_agent_that_dies_while_it_is_cancelled(world: World) -> None:
    """The turn ends `cancelled`, which is what was asked for."""
    session, voice, editor = await running(world)
    session.cancel()
    voice.die()
    assert "cancelled" == (await editor.answered("p1"))["result"]["stopReason"]
    put_forward(world.settings.cancel_timeout * 2)
    await asyncio.sleep(0)
    assert Turn.IDLE is session.state


async def test_an_agent_that_dies_before_it_has_the_prompt(world: World) -> None:
    """STARTING: another one is started for the prompt; nothing was lost."""
    session, voice = await world.with_agent()
    attach(session, editor := Editor())
    prompt(session, editor, "p1")
    voice.die()
    await until(lambda: len(world.agents.made) == 2 and world.agents.made[1].prompts)
    world.agents.made[1].end()
    assert "end_turn" == (await editor.answered("p1"))["result"]["stopReason"]


async def test_an_agent_that_dies_behind_its_answer(world: World) -> None:
    """ENDING and IDLE: the answer stands, the next prompt starts another."""
    session, voice, editor = await running(world)
    voice.end()
    voice.die()
    assert "end_turn" == (await editor.answered("p1"))["result"]["stopReason"]
    assert None is session.link
    voice.die()


async def test_an_agent_that_does_not_start(world: World) -> None:
    """The prompt is answered with the reason: the agent's own error as it is, acpd's as -32603; the next one tries again."""
    session = await world.new()
    attach(session, editor := Editor())
    failures: list[BaseException] = [
        AgentError("no such program", hint="PATH searched: /bin"),
        RequestError(-32000, "log in"),
        PermissionError(13, "Permission denied"),
    ]
    for number, failure in enumerate(failures):
        world.agents.failure = failure
        prompt(session, editor, f"p{number}")
        await editor.answered(f"p{number}")
    assert ["!-32603", "!-32000", "!-32603"] == editor.texts
    assert "PATH searched" in editor.got[0]["error"]["message"]
    world.agents.failure = None
    prompt(session, editor, "p3")
    await until(lambda: world.agents.made and world.agents.made[0].prompts)
    world.agents.made[0].end()
    await editor.answered("p3")
    world.failed.clear()


async def test_an_agent_is_started_once_however_many_ask(world: World) -> None:
    """Several that need it share one start, and cancelling one of them does not stop it."""
    session = await world.new()
    world.agents.gate.clear()
    asking = [start(session.ensure_agent()) for _ in range(5)]
    await until(lambda: world.agents.starts)
    asking[0].cancel()
    await asyncio.sleep(0)
    world.agents.gate.set()
    links = await asyncio.gather(*asking[1:])
    assert (1, 1, True) == (world.agents.starts, len({id(link) for link in links}), asking[0].cancelled())


# -- what an agent keeps in acpd


async def test_state_is_saved_before_the_turn_is_answered(world: World) -> None:
    """`_acpd/state` values exist nowhere else: they are durable, in order, and replied to, before the prompt's answer."""
    session, voice, editor = await running(world)
    for number in range(20):
        voice.keep("counter", number)
    voice.keep("other", {"a": 1.5})
    voice.end()
    await editor.answered("p1")
    assert 21 == len(voice.replies)
    assert {"counter": b"19", "other": b'{"a":1.5}'} == await session.kept.all()


async def test_state_that_cannot_be_saved_is_told_to_the_agent(world: World) -> None:
    """The agent gets the error, and the turn is answered all the same."""
    session, voice, editor = await running(world)

    async def failing(*_: object) -> None:
        raise StoreError("save", "state 'x'", cause="no space")

    world.store.session.save = failing  # type: ignore[method-assign]
    voice.keep("x", 1)
    voice.end()
    await editor.answered("p1")
    assert [("x", -32603)] == voice.replies
    del world.store.session.save
    assert {} == await session.kept.all()


async def test_kept_state_has_the_agents_names_only(world: World) -> None:
    """acpd's own modules, saved after each turn, are not shown to the agent."""
    session, voice, editor = await running(world)
    voice.say({"sessionUpdate": "usage_update", "used": 1, "size": 2})
    voice.keep("mine", 1)
    voice.end()
    await editor.answered("p1")
    await world.registry.close(session.id)
    assert ["acpd.usage", "mine"] == await world.store.session.names(session.key)
    again = await world.registry.open(session.id)
    assert {"mine": b"1"} == await again.kept.all()


# -- trouble with the disk


async def test_a_disk_that_is_full_for_a_while(world: World) -> None:
    """The agent is not read, nothing unwritten is sent; when there is room again everything comes, once and in order."""
    session, voice, editor = await running(world)
    voice.say("a")
    world.break_disk()
    voice.say("b")
    assert (["a"], {"disk"}) == (editor.texts, voice.held)
    voice.end()  # its answer was in the same read
    world.mend_disk()
    put_forward(RETRY_EVERY)
    await editor.answered("p1")
    assert (["a", "b", "=end_turn"], set()) == (editor.texts, voice.held)
    world.log(session)


async def test_thirty_seconds_without_disk(world: World) -> None:
    """Running and waiting prompts are answered with the cause, the agent is cancelled; further ones are refused at once.

    When there is room again all of it is in the log, and the next prompt works.
    """
    session, voice, editor = await running(world, "p1", "p2")
    world.break_disk()
    voice.say("b")
    assert editor.answer_to("p1") is None
    for _ in range(int(GIVE_UP) + 1):
        put_forward(RETRY_EVERY)
        await asyncio.sleep(0)
    assert [-32603, -32603] == [(await editor.answered(name))["error"]["code"] for name in ("p1", "p2")]
    assert "No space left" in (await editor.answered("p1"))["error"]["message"]
    assert 1 == voice.cancels
    with pytest.raises(RequestError, match="No space left"):
        prompt(session, editor, "p3")
    world.mend_disk()
    voice.held.clear()
    voice.end("cancelled")
    prompt(session, editor, "p4")
    await until(lambda: len(voice.prompts) == 2)
    assert "p4" == voice.prompts[1][0]["prompt"][0]["text"]
    voice.end()
    await editor.answered("p4")
    assert [("p1", "cancelled"), ("p2", "cancelled"), ("p4", "end_turn")] == ends(world.log(session))


async def test_a_log_that_no_waiting_mends(world: World) -> None:
    """Its prompts are answered with the cause at once."""
    session, voice, editor = await running(world, "p1", "p2")

    def gone() -> None:
        raise StoreError("write", "the log", cause="it was removed")

    session.scribe.journal.flush = gone  # type: ignore[method-assign]
    voice.say("a")
    for name in ("p1", "p2"):
        assert "it was removed" in (await editor.answered(name))["error"]["message"]
    del session.scribe.journal.flush
    world.failed.clear()
    put_forward(RETRY_EVERY)
    voice.end("cancelled")
    await session.idle()


async def test_a_big_prompt_that_cannot_be_stored(world: World) -> None:
    """After 30 seconds it is answered with the cause and is no part of the conversation; what waits behind it begins."""
    session, voice = await world.with_agent()
    attach(session, editor := Editor())

    async def failing(_found: Any) -> None:
        raise StoreError("store a blob of", "the session", cause="no space", retryable=True)

    session.scribe.journal.put_blobs = failing  # type: ignore[method-assign]
    prompt(session, editor, "p1", BIG)
    prompt(session, editor, "p2", BIG)
    prompt(session, editor, "p3")
    session.queue[0].cancelled = True
    while editor.answer_to("p2") is None:
        put_forward(RETRY_EVERY)
        await asyncio.sleep(0.0005)
    error = (await editor.answered("p1"))["error"]
    assert (-32603, True) == (error["code"], "no space" in error["message"])
    assert "cancelled" == (await editor.answered("p2"))["result"]["stopReason"]
    await voice.prompted()
    voice.end()
    await editor.answered("p3")
    assert [("p3", "end_turn")] == ends(world.log(session))


async def test_what_an_ended_agent_could_not_store_is_in_no_other_turn(world: World) -> None:
    """A deaf agent is ended while a big string of it finds no room: what it still had to say goes with it."""
    session, voice = await world.with_agent()
    attach(session, editor := Editor())
    real = session.scribe.journal.put_blobs

    async def failing(_found: Any) -> None:
        raise StoreError("store a blob of", "the session", cause="no space", retryable=True)

    session.scribe.journal.put_blobs = failing  # type: ignore[method-assign]
    prompt(session, editor, "p1")
    await voice.prompted()
    voice.say("before", BIG, "behind")
    await until(lambda: session.recorder.error is not None)
    session.cancel()
    put_forward(session.settings.cancel_timeout + 1)
    await editor.answered("p1")
    assert session.link is None
    session.scribe.journal.put_blobs = real  # type: ignore[method-assign]
    while session.recorder.is_storing:
        put_forward(RETRY_EVERY)
        await asyncio.sleep(0.0005)
    assert session.recorder.error is None
    chunks = [entry["params"]["update"]["content"]["text"] for entry in world.log(session).of("update")]
    assert ["before"] == chunks


async def test_an_agent_that_comes_up_while_the_disk_is_full_is_held(world: World) -> None:
    """What it says would have nowhere to go."""
    session = await world.new()
    world.break_disk()
    session.recorder.tell("a word")
    session.on_batch_end()
    await session.ensure_agent()
    assert {"disk"} == world.agents.made[0].held
    world.mend_disk()
    put_forward(RETRY_EVERY)
    await until(lambda: not world.agents.made[0].held)


# -- the client is gone


@pytest.mark.parametrize("state", ["RUNNING", "CANCELLING", "STARTING", "BIG"])
async def test_a_turn_whose_client_is_gone_is_recorded_as_interrupted(world: World, state: str) -> None:
    """Nobody is answered, nobody waits for the agent, the session is idle; what waited is recorded too."""
    session, voice = await world.with_agent()
    attach(session, editor := Editor())
    prompt(session, editor, "p1", BIG if state == "BIG" else None)
    prompt(session, editor, "p2")
    if state in ("RUNNING", "CANCELLING"):
        await voice.prompted()
    if state == "CANCELLING":
        session.cancel()
    session.interrupt()
    await session.idle()
    assert [] == [message for message in editor.got if "method" not in message]
    log = world.log(session)
    assert 2 == len(log.of("prompt"))
    assert ["interrupted"] * 2 == [how for _, how in ends(log)]
    assert len(voice.prompts) == (state in ("RUNNING", "CANCELLING"))
    told = [entry["params"]["update"]["content"]["text"] for entry in log.of("update")]
    assert [NEVER_BEGUN in text for text in told] == [state not in ("RUNNING", "CANCELLING"), True]


async def test_a_bug_in_starting_an_agent_answers_the_prompt(world: World) -> None:
    """The prompt gets -32603 without the bug's text, which goes to the log only."""
    session = await world.new()
    attach(session, editor := Editor())
    world.agents.failure = ZeroDivisionError("secret")
    prompt(session, editor, "p1")
    answer = await editor.answered("p1")
    assert (-32603, False) == (answer["error"]["code"], "secret" in json.dumps(answer))
    await until(lambda: world.failed)
    world.failed.clear()


async def test_the_state_of_another_session_is_its_own(world: World) -> None:
    """Two sessions do not see each other's values."""
    one, voice, editor = await running(world)
    voice.keep("x", 1)
    voice.end()
    await editor.answered("p1")
    two = await world.new()
    assert {} == await two.kept.all()
    assert one.key != Key(agent="agent", session=two.id)
