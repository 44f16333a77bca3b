"""Prompts of several clients on one session: one order, the same for everybody, whoever stays or leaves."""

from __future__ import annotations

import itertools

import pytest

from tests.core.world import Editor, Voice, World, attach, load, prompt
from tests.support.store import Json


def names(voice: Voice) -> list[str]:
    return [params["prompt"][0]["text"] for params, _ in voice.prompts]


async def run(voice: Voice, count: int) -> None:
    """So many turns, from the running one on; each says its prompt's name in capitals."""
    for _ in range(count):
        voice.say(names(voice)[-1].upper())
        done = len(voice.prompts)
        voice.end()
        if done < count:
            await voice.prompted(done + 1)
    await voice.session.idle()


async def three(world: World) -> tuple[Voice, list[Editor]]:
    session, voice = await world.with_agent()
    editors = [Editor(), Editor(), Editor()]
    for editor in editors:
        attach(session, editor)
    return voice, editors


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
async def test_prompts_run_in_the_order_in_which_they_came(world: World, order: tuple[int, ...]) -> None:
    """Over all clients; each is answered where it was sent, behind its updates, and the others see it when it begins."""
    voice, editors = await three(world)
    sent = [*order, *order]
    for number, index in enumerate(sent):
        prompt(voice.session, editors[index], f"p{number}")
    await voice.prompted()
    await run(voice, 6)
    assert [f"p{number}" for number in range(6)] == names(voice)
    for index, editor in enumerate(editors):
        wanted: list[str] = []
        for number, other in enumerate(sent):
            mine = other == index
            wanted += [f"P{number}", "=end_turn"] if mine else [f"p{number}", f"P{number}"]
        assert wanted == editor.texts
    await load(voice.session, late := Editor())
    assert [text for number in range(6) for text in (f"p{number}", f"P{number}")] == late.texts


async def test_prompts_of_a_client_that_left_keep_their_places(world: World) -> None:
    """The running one and the waiting one end as ever and are answered to nobody; the others' are not overtaken."""
    voice, (one, two, watching) = await three(world)
    for number, editor in enumerate((one, two, one, two)):
        prompt(voice.session, editor, f"p{number}")
    await voice.prompted()
    one.close()
    voice.session.detach(one)
    await run(voice, 4)
    assert ["p0", "p1", "p2", "p3"] == names(voice)
    assert ["p0", "P0", "P1", "=end_turn", "p2", "P2", "P3", "=end_turn"] == two.texts
    assert ["p0", "P0", "p1", "P1", "p2", "P2", "p3", "P3"] == watching.texts
    assert [] == one.texts
    assert ["end_turn"] * 4 == [end["stopReason"] for end in world.log(voice.session).of("turn") if end["state"] == "ended"]


async def test_all_clients_leave_and_the_queue_runs_on(world: World) -> None:
    """Who comes back finds the whole conversation, in order, and its own prompts in it."""
    voice, editors = await three(world)
    for number, editor in enumerate(editors):
        prompt(voice.session, editor, f"p{number}")
    await voice.prompted()
    for editor in editors:
        editor.close()
        voice.session.detach(editor)
    await run(voice, 3)
    await load(voice.session, again := Editor())
    assert ["p0", "P0", "p1", "P1", "p2", "P2"] == again.texts


async def test_a_client_that_comes_between_sees_each_prompt_once(world: World) -> None:
    """A load in the middle: what has begun is in the replay, what waits is seen when it begins."""
    voice, (one, two, _) = await three(world)
    for number, editor in enumerate((one, two, one)):
        prompt(voice.session, editor, f"p{number}")
    await voice.prompted()
    voice.say("half")
    await load(voice.session, late := Editor())
    assert ["p0", "half"] == late.texts
    await run(voice, 3)
    assert ["p0", "half", "P0", "p1", "P1", "p2", "P2"] == late.texts


async def test_withdrawing_one_prompt_moves_no_other(world: World) -> None:
    """$/cancel_request is for the prompt of that client alone, though another one's has the same id."""
    voice, (one, two, watching) = await three(world)
    prompt(voice.session, one, "p0")
    prompt(voice.session, one, "same", "mine")
    prompt(voice.session, two, "same", "yours")
    await voice.prompted()
    assert not voice.session.cancel_prompt(watching, b'"same"')
    assert voice.session.cancel_prompt(one, b'"same"')
    assert {"stopReason": "cancelled"} == (await one.answered("same"))["result"]
    await run(voice, 2)
    assert ["p0", "yours"] == names(voice)
    assert ["p0", "P0", "yours", "YOURS"] == watching.texts


async def test_a_cancel_ends_every_clients_prompts(world: World) -> None:
    """session/cancel is the session's: each is answered `cancelled`, in order, to the client that sent it."""
    voice, editors = await three(world)
    for number, editor in enumerate(editors):
        prompt(voice.session, editor, f"p{number}")
    await voice.prompted()
    voice.session.cancel()
    voice.end("cancelled")
    await voice.session.idle()
    answers: list[Json | None] = [editor.answer_to(f"p{number}") for number, editor in enumerate(editors)]
    assert [{"stopReason": "cancelled"}] * 3 == [answer["result"] for answer in answers if answer is not None]
    assert ["p0"] == names(voice)
