"""Listings are true to the logs, whoever changed them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from acpd.errors import StoreError
from tests.core.test_registry import closed, counted
from tests.core.world import World


async def titles(world: World, limit: int = 100) -> list[tuple[str, int]]:
    rows, _ = await world.registry.page(limit=limit)
    return [(row.id, row.messages) for row in rows]


async def test_a_log_that_somebody_else_changed_is_noticed(world: World) -> None:
    """What was appended elsewhere, or put back from a backup, is what the listing says; once read it is not read again."""
    one, two = await closed(world), await closed(world)
    path = Path(world.store.journals.log_path(one.key))
    before = path.read_bytes()
    assert [(two.id, 2), (one.id, 2)] == await titles(world)
    async with World(world.root) as other:
        session = await other.registry.open(one.id)
        entry = session.recorder.entry("prompt", b',"prompt":[{"type":"text","text":"more"}]')
        assert entry is not None
        session.scribe.commit()
        await session.scribe.settled()
        other.store.catalog.put = _nothing  # type: ignore[method-assign]  # killed before it could say so
        await other.registry.close(one.id)
    row = await world.store.catalog.get(one.id)
    assert row is not None
    await world.store.catalog.put(replace(row, state="clean"))
    assert [(one.id, 3), (two.id, 2)] == await titles(world)
    path.write_bytes(before)
    assert [(two.id, 2), (one.id, 2)] == await titles(world)


async def _nothing(_row: object) -> None: ...


async def test_what_did_not_change_is_not_read(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page costs one look at the sizes."""
    await closed(world)
    reads = counted(world.store.journals, "rows", monkeypatch)
    await titles(world)
    assert [] == reads


async def test_a_log_that_is_gone_stays_listed(world: World) -> None:
    """It may be on a disk that is not mounted; who opens it is told."""
    session = await closed(world)
    os.rename(world.store.journals.log_path(session.key), world.root / "elsewhere")
    assert [(session.id, 2)] == await titles(world)


async def test_a_changed_log_is_listed_right_where_the_catalog_cannot_be_written(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page is right all the same."""
    session = await closed(world)
    path = Path(world.store.journals.log_path(session.key))
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-2]))

    async def full(_row: object) -> None:
        raise StoreError("write", "the catalog", cause="no space")

    monkeypatch.setattr(world.store.catalog, "put", full)
    row = await world.store.catalog.get(session.id)
    assert row is not None
    ((found,), _) = await world.registry.page()
    assert found.seq == row.seq - 2
