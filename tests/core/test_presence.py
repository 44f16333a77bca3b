"""A session that is left alone: its turns, and how long it is kept."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from acpd.asks import PERMISSION
from acpd.needs import Settings
from acpd.session import LiveSession
from tests.agents.house import House
from tests.core.desk import desk
from tests.core.test_asks import PARAMS
from tests.core.world import Editor, Voice, World, attach, prompt, put_forward, until

RETURN, KEEP = 5.0, 600.0


@pytest.fixture
async def cancelling(tmp_path: Path) -> AsyncIterator[World]:
    """`[sessions] on_disconnect = "cancel"`."""
    async with World(tmp_path / "store", settings=Settings(cancel_alone=True)) as opened:
        yield opened


def leave(session: LiveSession, editor: Editor) -> None:
    """As a connection ends."""
    editor.close()
    session.detach(editor)


async def later(world: World, seconds: float) -> None:
    """So much later, everything that was due has happened."""
    put_forward(seconds)
    await world.registry.store.catalog.get("nothing")
    await until(lambda: not world.registry._closing)


async def running(world: World, *editors: Editor) -> tuple[LiveSession, Voice]:
    """A session with these clients, in which a prompt of the first runs, and one waits."""
    session, voice = await world.with_agent()
    for editor in editors:
        attach(session, editor)
    prompt(session, editors[0], "p1")
    await voice.prompted()
    prompt(session, editors[0], "p2")
    return session, voice


async def test_turns_go_on_without_a_client(world: World) -> None:
    """`continue`: the running prompt and the waiting one end as ever, are answered to nobody, and are there for the next."""
    session, voice = await running(world, editor := Editor())
    leave(session, editor)
    await later(world, 100.0)
    voice.say("a")
    voice.end()
    await voice.prompted(2)
    voice.say("b")
    voice.end()
    await session.idle()
    assert (0, ["end_turn", "end_turn"]) == (
        voice.cancels,
        [entry["stopReason"] for entry in world.log(session).of("turn") if entry["state"] == "ended"],
    )
    assert [] == [message for message in editor.got if "result" in message]


async def test_turns_are_cancelled_without_a_client(cancelling: World) -> None:
    """`cancel`: when nobody has come back in time the running prompt and the waiting one end `cancelled`."""
    session, voice = await running(cancelling, editor := Editor())
    leave(session, editor)
    await later(cancelling, RETURN - 0.1)
    assert 0 == voice.cancels
    await later(cancelling, 0.2)
    assert 1 == voice.cancels
    voice.end("cancelled")
    await session.idle()
    assert (1, ["cancelled", "cancelled"]) == (
        len(voice.prompts),
        [entry["stopReason"] for entry in cancelling.log(session).of("turn") if entry["state"] == "ended"],
    )


async def test_who_comes_back_in_time_finds_the_turn_running(cancelling: World) -> None:
    """A new attachment, of any controller, ends the waiting; that it leaves again begins it anew."""
    session, voice = await running(cancelling, editor := Editor())
    leave(session, editor)
    await later(cancelling, RETURN - 0.1)
    attach(session, again := Editor())
    await later(cancelling, 100.0)
    leave(session, again)
    await later(cancelling, RETURN - 0.1)
    assert 0 == voice.cancels
    await later(cancelling, 0.2)
    assert 1 == voice.cancels


async def test_another_controller_keeps_the_turn_and_an_observer_does_not(cancelling: World) -> None:
    """Only who could cancel counts as being there; an observer that comes changes nothing."""
    session, voice = await running(cancelling, one := Editor(), two := Editor())
    leave(session, one)
    await later(cancelling, 100.0)
    assert 0 == voice.cancels
    session.audience.start(session.attach(Editor(), observer=True))
    leave(session, two)
    session.audience.start(session.attach(Editor(), observer=True))
    await later(cancelling, RETURN + 0.1)
    assert 1 == voice.cancels


async def test_a_controller_that_becomes_an_observer_has_not_left(cancelling: World) -> None:
    """It is still there and may take the wheel again: nothing is cancelled."""
    session, voice = await running(cancelling, editor := Editor())
    session.audience.start(session.attach(editor, observer=True))
    await later(cancelling, 100.0)
    assert 0 == voice.cancels


async def test_a_late_cancel_hits_nothing(cancelling: World) -> None:
    """A turn that ended before the time was over stays as it ended, and so does the session."""
    session, voice = await running(cancelling, editor := Editor())
    leave(session, editor)
    voice.end()
    await voice.prompted(2)
    voice.end()
    await session.idle()
    await later(cancelling, RETURN + 0.1)
    assert (0, [session.id]) == (voice.cancels, [*cancelling.registry.live])


async def test_a_session_that_nobody_has_open_is_closed(world: World) -> None:
    """Its agent is ended, its lease given up; the session stays and is opened again by whoever asks."""
    session, voice = await world.with_agent()
    attach(session, editor := Editor())
    await later(world, 10 * KEEP)
    assert not voice.stopped
    leave(session, editor)
    await later(world, KEEP - 1.0)
    assert session.id in world.registry.live
    await later(world, 2.0)
    assert (True, {}) == (voice.stopped, world.registry.live)
    assert session.id == (await world.registry.open(session.id)).id


async def test_a_session_that_nobody_ever_attached_is_closed(world: World) -> None:
    """Opened for a request that failed, or that needs no attachment: it does not stay for ever."""
    await world.new()
    await later(world, KEEP + 1.0)
    assert {} == world.registry.live


async def test_an_observer_keeps_a_session(world: World) -> None:
    """Somebody looks at it."""
    session, voice = await world.with_agent()
    session.audience.start(session.attach(observer := Editor(), observer=True))
    await later(world, 10 * KEEP)
    assert not voice.stopped
    leave(session, observer)
    await later(world, KEEP + 1.0)
    assert voice.stopped


async def test_a_running_turn_keeps_a_session(world: World) -> None:
    """However long it takes, and the waiting prompt behind it; its time begins with the end of the last turn."""
    session, voice = await running(world, editor := Editor())
    leave(session, editor)
    for _ in range(3):
        await later(world, KEEP + 1.0)
    voice.end()
    await voice.prompted(2)
    await later(world, KEEP + 1.0)
    voice.end()
    await session.idle()
    await later(world, KEEP - 1.0)
    assert not voice.stopped
    await later(world, 2.0)
    assert voice.stopped


async def test_an_open_ask_keeps_a_session(world: World) -> None:
    """A question between turns waits for somebody to answer it; once it is settled the session may go."""
    session, voice = await world.with_agent()
    voice.ask_user("q", PERMISSION, PARAMS)
    for _ in range(3):
        await later(world, KEEP + 1.0)
    assert (False, 1) == (voice.stopped, len(session.fold.asks))
    session.asks.withdraw(b"q")
    for _ in range(2):
        await later(world, KEEP + 1.0)
    assert voice.stopped


async def test_an_agent_that_works_unasked_keeps_a_session(world: World) -> None:
    """As long as it says something at least once in that time."""
    _, voice = await world.with_agent()
    for _ in range(3):
        voice.say("still at it")
        await later(world, KEEP + 1.0)
    assert not voice.stopped
    await later(world, KEEP + 1.0)
    assert voice.stopped


async def test_a_session_that_cannot_be_closed_is_tried_again(world: World) -> None:
    """A full disk: it stays as it is, and goes when it can."""
    session, _ = await world.with_agent()
    attach(session, editor := Editor())
    await later(world, 0.0)
    world.files.on_sync = _fail
    leave(session, editor)
    await later(world, KEEP + 1.0)
    assert session.id in world.registry.live
    world.files.on_sync = lambda _: None
    await later(world, 2 * KEEP)
    assert {} == world.registry.live
    world.failed.clear()


def _fail(_: object) -> None:
    raise OSError(5, "the disk does not answer")


async def test_an_agent_that_no_session_takes_is_ended(house: House) -> None:
    """After `keep_idle` seconds, so that idle clients cost no processes; whoever wants a session then has one started."""
    async with desk(house, house.host()) as one:
        await until(lambda: house.pool.links)
        put_forward(house.pool.settings.keep_idle + 1)
        await until(lambda: not house.pool.links)
        assert await one.new()
