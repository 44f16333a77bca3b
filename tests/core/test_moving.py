"""A project that moved is told durably; the command is in tests/cli."""

from __future__ import annotations

from pathlib import Path

from acpd.moving import Move, move_session
from tests.core.test_registry import closed
from tests.core.world import World


async def test_a_move_is_on_disk_when_it_is_done(world: World) -> None:
    """A sync that covers the whole log returned; the row says the new folder."""
    session = await closed(world)
    log = Path(world.store.journals.log_path(session.key))
    before = log.stat().st_size
    covered: list[int] = []
    world.files.on_sync = lambda _: covered.append(log.stat().st_size)
    await move_session(world.store, session.key, Move((session.header.cwd,), "/moved"), "/moved")
    assert before < log.stat().st_size == covered[-1]
    row = await world.store.catalog.get(session.id)
    assert row is not None
    assert ("/moved", "clean") == (row.cwd, row.state)
