"""The public conformance suite on every backend that acpd has, and on one of thirty lines that brings states only."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from acpd.storage.contract import Backend, Key, Session
from acpd.storage.testing import BackendConformance, SessionConformance
from acpd_backends.names import Layout, encode
from acpd_backends.stores import open_store


def open_workspace(root: Path) -> Backend:
    return open_store("workspace", root)


def open_json(root: Path) -> Backend:
    return open_store("json", root)


def open_sqlite(root: Path) -> Backend:
    return open_store("sqlite", root)


class DictSession(Session):
    """What a third party must bring, and no more: thirty lines in memory."""

    def __init__(self) -> None:
        self._values: dict[Key, dict[str, bytes]] = {}

    async def load(self, key: Key, name: str, /) -> bytes | None:
        return self._values.get(key, {}).get(name)

    async def save(self, key: Key, name: str, value: bytes, /) -> None:
        self._values.setdefault(key, {})[name] = bytes(value)

    async def names(self, key: Key, /) -> list[str]:
        return sorted(self._values.get(key, {}))

    async def delete(self, key: Key, name: str | None = None, /) -> None:
        values = self._values.get(key, {})
        for each in list(values) if name is None else [name]:
            values.pop(each, None)

    async def keys(self, /) -> list[Key]:
        return [key for key, values in self._values.items() if values]


def open_dict(root: Path) -> Backend:
    return Backend(DictSession())


def damage_file(layout: Callable[[Path], Layout], root: Path, key: Key, name: str, garbage: bytes) -> None:
    path = layout(root).context(key) / f"{encode(name)}.json"
    assert path.is_file()
    path.write_bytes(garbage)


class TestWorkspace(BackendConformance):
    store = f"{__name__}:open_workspace"

    def damage(self, root: Path, key: Key, name: str, garbage: bytes) -> None:
        damage_file(Layout, root, key, name, garbage)


class TestJson(BackendConformance):
    store = f"{__name__}:open_json"
    per_agent = False

    def damage(self, root: Path, key: Key, name: str, garbage: bytes) -> None:
        damage_file(lambda folder: Layout(folder, per_agent=False), root, key, name, garbage)


class TestSqlite(BackendConformance):
    store = f"{__name__}:open_sqlite"

    def damage(self, root: Path, key: Key, name: str, garbage: bytes) -> None:
        with closing(sqlite3.connect(root / ".acpd" / "store.db")) as db, db:
            done = db.execute("UPDATE state SET value = ? WHERE session = ? AND name = ?", (garbage, key.session, name))
            assert done.rowcount == 1


class TestStatesOnly(SessionConformance):
    store = f"{__name__}:open_dict"
