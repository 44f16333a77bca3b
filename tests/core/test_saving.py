"""What is saved beside the log follows it."""

from __future__ import annotations

from tests.core.world import World


async def test_a_state_that_the_log_has_lost_is_discarded(world: World) -> None:
    """A loss of power may leave acpd's states newer than the log; what an agent keeps is none of them."""
    session, voice = await world.with_agent()
    voice.keep("mine", 1)
    await voice.until(lambda: voice.replies)
    await world.store.session.save(session.key, "acpd.config", b'{"seq":99,"value":{}}')
    await world.registry.close(session.id)
    assert ["mine"] == await world.store.session.names(session.key)
