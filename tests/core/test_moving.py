"""A project that moved is told durably; the command is in tests/cli."""

from __future__ import annotations

from pathlib import Path

import pytest

from acpd.moving import Move, move_session
from acpd.storage.contract import Catalog, Row
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


async def test_a_move_that_is_cut_off_is_read_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the log is written the row says that the session is open, so that the next start reads what became of it."""
    session = await closed(world)
    real = world.store.catalog.put
    said: list[tuple[str, str]] = []

    async def noted(self: Catalog, row: Row, /) -> None:
        said.append((row.state, row.cwd))
        await real(row)

    monkeypatch.setattr(type(world.store.catalog), "put", noted)
    await move_session(world.store, session.key, Move((session.header.cwd,), "/moved"), "/moved")
    assert [("open", session.header.cwd), ("clean", "/moved")] == said
