"""A database that an older acpd left is brought up, and nothing of it is lost."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from acpd.indexing import catch_up_all
from acpd.needs import Store
from acpd.storage.contract import Key, SearchCatalog
from acpd.storage.hits import Find
from acpd.storage.queries import parse
from acpd_backends.schema import STEPS, VERSION
from acpd_backends.stores import open_store
from tests.backends.test_catalog import opened, write_log

# As version 1 made it, letter by letter.
VERSION_1 = """
CREATE TABLE meta(name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE session(
  id TEXT PRIMARY KEY, agent TEXT NOT NULL, cwd TEXT NOT NULL, title TEXT NOT NULL, createdAt TEXT NOT NULL,
  updatedAt TEXT NOT NULL, messages INTEGER NOT NULL, prompted INTEGER NOT NULL, seq INTEGER NOT NULL,
  size INTEGER NOT NULL, leaf TEXT, "inner" TEXT NOT NULL, parent TEXT, dirs TEXT NOT NULL, state TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX by_time ON session(updatedAt, id) WHERE prompted;
CREATE INDEX by_cwd ON session(cwd, updatedAt, id) WHERE prompted;
CREATE INDEX by_agent ON session(agent, updatedAt, id) WHERE prompted;
CREATE INDEX by_inner ON session(agent, "inner") WHERE "inner" <> '';
CREATE INDEX still_open ON session(id) WHERE state = 'open';
CREATE TABLE state(
  agent TEXT NOT NULL, session TEXT NOT NULL, name TEXT NOT NULL, value BLOB NOT NULL, PRIMARY KEY(agent, session, name)
);
CREATE TABLE state_unreadable(
  agent TEXT NOT NULL, session TEXT NOT NULL, name TEXT NOT NULL, value BLOB NOT NULL,
  PRIMARY KEY(agent, session, name, value)
);
PRAGMA user_version = 1;
INSERT INTO meta VALUES ('complete', '1');
INSERT INTO session VALUES ('s1', 'coder', '/w', 'hi', '2026-01-01T00:00:00.000Z', '2026-01-01T00:01:00.000Z', 1, 1, 2, 0,
  'e1', 'theirs', NULL, '', 'clean');
INSERT INTO state VALUES ('coder', 's1', 'memory', '{"kept": 1}');
INSERT INTO state_unreadable VALUES ('coder', 's1', 'plan', 'garbage');
"""


def made(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA journal_mode=WAL")
        db.executescript(VERSION_1)


@pytest.mark.parametrize("name", ["workspace", "json", "sqlite"])
async def test_version_1(tmp_path: Path, name: str) -> None:
    """Rows stay without a scan of the logs, states stay, and the sessions can be searched once they are read."""
    made(path := tmp_path / ".acpd" / {"sqlite": "store.db", "json": "catalog-json.db"}.get(name, "catalog.db"))
    async with opened(tmp_path, name) as store:
        await write_log(store.journals, Key("coder", "s1"))
    for _ in range(2):
        async with opened(tmp_path, name) as store:
            assert store.backend.lease is not None
            assert 0 == await store.catalog.recover(store.journals)
            row = await store.catalog.get("s1")
            assert row is not None
            assert ("hi", "theirs", 2) == (row.title, row.inner, row.seq)
            if name == "sqlite":
                assert b'{"kept": 1}' == await store.backend.session.load(Key("coder", "s1"), "memory")
                assert ["memory"] == await store.backend.session.names(Key("coder", "s1"))
            await catch_up_all(
                Store(store.backend.session, store.journals, store.catalog, store.backend.lease), None, gently=False
            )
            assert isinstance(store.catalog, SearchCatalog)
            assert ["e1"] == [hit.entry for hit in (await store.catalog.search(Find(query=parse("hi")))).hits]
            assert [] == await store.catalog.behind()
    with closing(sqlite3.connect(path)) as db:
        assert (VERSION,) == db.execute("PRAGMA user_version").fetchone()
        assert [("garbage",)] == db.execute("SELECT value FROM state_unreadable").fetchall()


async def test_an_old_file_is_as_a_new_one(tmp_path: Path) -> None:
    """What was brought up has the tables and indexes of what is made."""
    made(tmp_path / "old" / ".acpd" / "catalog.db")
    found = []
    for root in ("old", "new"):
        backend = open_store("workspace", tmp_path / root)
        assert backend.catalog is not None
        await backend.catalog.page()
        await backend.catalog.close()
        with closing(sqlite3.connect(tmp_path / root / ".acpd" / "catalog.db")) as db:
            found.append(sorted(db.execute("SELECT name, sql FROM sqlite_schema").fetchall()))
    assert found[0] == found[1]


async def test_version_2(tmp_path: Path) -> None:
    """Sessions keep their places in listings, and those that were not searched yet are still to be."""
    path = tmp_path / ".acpd" / "catalog.db"
    path.parent.mkdir()
    put = (
        "INSERT INTO session(id, agent, cwd, title, createdAt, updatedAt, messages, prompted, seq, size, inner, dirs, state,"
        " searched) VALUES (?, 'coder', '/w', '', '2026', ?, 1, ?, 5, 0, '', '', 'clean', ?)"
    )
    with closing(sqlite3.connect(path)) as db, db:
        db.executescript("".join(STEPS[:2]) + "PRAGMA user_version = 2;")
        db.executemany(put, [("s1", "2027", 1, 5), ("s2", "2026", 1, 3), ("s3", "2029", 1, -1), ("s4", "2028", 0, 0)])
    async with opened(tmp_path) as store:
        assert ["s3", "s1", "s2"] == [row.id for row in await store.catalog.page(cwd="/w")]
        assert ["s3", "s2"] == [row.id for row in await store.catalog.behind()]
        assert ["s4"] == [row.id for row in await store.catalog.unprompted("2029")]
