"""The public conformance suite on every backend that acpd has. `test_documented` runs it on the one of the documents."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from acpd.storage.contract import Backend, Key
from acpd.storage.testing import BackendConformance, MemoryConformance, SearchConformance
from acpd_backends.names import Layout, encode
from acpd_backends.stores import open_store


def open_workspace(root: Path) -> Backend:
    return open_store("workspace", root)


def open_json(root: Path) -> Backend:
    return open_store("json", root)


def open_sqlite(root: Path) -> Backend:
    return open_store("sqlite", root)


def damage_file(layout: Callable[[Path], Layout], root: Path, key: Key, name: str, garbage: bytes) -> None:
    path = layout(root).context(key) / f"{encode(name)}.json"
    assert path.is_file()
    path.write_bytes(garbage)


class TestWorkspace(BackendConformance, SearchConformance, MemoryConformance):
    store = f"{__name__}:open_workspace"

    def damage(self, root: Path, key: Key, name: str, garbage: bytes) -> None:
        damage_file(Layout, root, key, name, garbage)


class TestJson(BackendConformance, SearchConformance, MemoryConformance):
    store = f"{__name__}:open_json"
    per_agent = False

    def damage(self, root: Path, key: Key, name: str, garbage: bytes) -> None:
        damage_file(lambda folder: Layout(folder, per_agent=False), root, key, name, garbage)


class TestSqlite(BackendConformance, SearchConformance, MemoryConformance):
    store = f"{__name__}:open_sqlite"

    def damage(self, root: Path, key: Key, name: str, garbage: bytes) -> None:
        with closing(sqlite3.connect(root / ".acpd" / "store.db")) as db, db:
            done = db.execute("UPDATE state SET value = ? WHERE session = ? AND name = ?", (garbage, key.session, name))
            assert done.rowcount == 1
