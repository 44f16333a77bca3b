"""What is saved beside the log follows it."""

from __future__ import annotations

import asyncio

import pytest

from acpd.saving import AT_ONCE, DELAY, Saver
from tests.core.world import World, prompt, put_forward, until


async def test_few_sessions_are_saved_at_the_same_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has to wait for its turn, and waits once however many of its prompts end meanwhile."""
    gate = asyncio.Event()
    begun: list[str] = []
    save = Saver.save

    async def slowly(saver: Saver, state: str = "open") -> None:
        begun.append(saver._session.id)
        await gate.wait()
        await save(saver, state)

    monkeypatch.setattr(Saver, "save", slowly)
    made = [await world.with_agent() for _ in range(AT_ONCE + 3)]
    for count in (1, 2, 3):
        for session, voice in made:
            prompt(session, None, f"p{count}")
            await voice.prompted(count)
            voice.end()
            await session.idle()
        put_forward(DELAY)
        await until(lambda: len(begun) == AT_ONCE)
    monkeypatch.setattr(Saver, "save", save)
    gate.set()
    wanted = [(world.registry._savers[session.id], session.fold.seq) for session, _ in made]
    await until(lambda: all(saver._words_seq == seq for saver, seq in wanted))
    assert AT_ONCE == len(begun)


async def test_a_state_that_the_log_has_lost_is_discarded(world: World) -> None:
    """A loss of power may leave acpd's states newer than the log; what an agent keeps is none of them."""
    session, voice = await world.with_agent()
    voice.keep("mine", 1)
    await voice.until(lambda: voice.replies)
    await world.store.session.save(session.key, "acpd.config", b'{"seq":99,"value":{}}')
    await world.registry.close(session.id)
    assert ["mine"] == await world.store.session.names(session.key)
