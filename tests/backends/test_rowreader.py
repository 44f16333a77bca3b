"""Rows of very many logs: several processes read them, and say what one would."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from acpd.storage.contract import Key, Row
from acpd.storage.rows import row_of
from acpd_backends import rowreader
from tests.backends.test_catalog import opened, write_log

NAMES = [*(f"s{number}" for number in range(40)), "Über.Größe"]


@pytest.fixture
def many(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if these few were very many, on a machine with three processors."""
    monkeypatch.setattr(rowreader, "MANY", 10)
    monkeypatch.setattr(rowreader, "BATCH", 7)
    monkeypatch.setattr(os, "cpu_count", lambda: 3)


async def read(root: Path, keys: list[Key]) -> dict[str, Row | None]:
    async with opened(root) as parts:
        return {key.session: row async for part in parts.journals.rows(keys) for key, row in part}


@pytest.mark.usefixtures("many")
async def test_processes_say_what_one_would(tmp_path: Path) -> None:
    """Each log's row is that of its fold and its size; one that is gone is None, one that cannot be read is left out."""
    keys = [Key("agent", name) for name in NAMES]
    async with opened(tmp_path) as parts:
        for number, key in enumerate(keys):
            await write_log(parts.journals, key, prompts=number % 3 + 1)
        want: dict[str, Row | None] = {}
        for key in keys:
            size = os.stat(parts.journals.log_path(key)).st_size
            want[key.session] = row_of(key, *await parts.journals.peek(key), size)
        folder = Path(parts.journals.log_path(Key("agent", "folder")))
    folder.mkdir()
    found = await read(tmp_path, [*keys, Key("agent", "gone"), Key("agent", "folder")])
    assert {**want, "gone": None} == found
    assert found == await read(tmp_path, [*reversed(keys), Key("agent", "gone")])


@pytest.mark.usefixtures("many")
@pytest.mark.parametrize("command", ["/bin/false", "/bin/cat"])
async def test_a_process_that_is_of_no_use_costs_nothing(tmp_path: Path, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that ends, or answers something else: the logs are read without it."""
    keys = [Key("agent", name) for name in NAMES]
    async with opened(tmp_path) as parts:
        for key in keys:
            await write_log(parts.journals, key)
    want = await read(tmp_path, keys)
    monkeypatch.setattr(sys, "executable", command)
    assert want == await read(tmp_path, keys)
    assert len(want) == len(NAMES)


@pytest.mark.usefixtures("many")
async def test_a_lost_catalog_of_many_sessions_is_made_anew(tmp_path: Path) -> None:
    """All of them, with word of how far it is; who is open elsewhere stays open."""
    keys = [Key("agent", name) for name in NAMES if name.isascii()]
    async with opened(tmp_path) as parts:
        for key in keys:
            await write_log(parts.journals, key)
        assert parts.backend.lease is not None
        told: list[tuple[int, int]] = []
        async with opened(tmp_path) as other:
            assert other.backend.lease is not None
            await other.backend.lease.take(keys[3])
            assert len(keys) == await parts.catalog.recover(parts.journals, lambda done, of: told.append((done, of)))
            assert ["open"] == [row.state for row in await parts.catalog.page(limit=100) if row.id == keys[3].session]
            await other.backend.lease.give_up(keys[3])
        assert sorted(told) == told
        assert (len(keys), len(keys)) == told[-1]
        assert len(told) > 3
        assert {key.session for key in keys} == {row.id for row in await parts.catalog.page(limit=100)}
