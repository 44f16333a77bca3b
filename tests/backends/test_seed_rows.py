"""What the original session system got wrong, row by row (A13 to A20, A25, A30), on every backend."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import NamedTuple

import pytest
from msgspec import UNSET

from acpd.errors import SessionNotFound, SessionReadOnly, StateUnreadable
from acpd.storage.contract import Catalog, Journals, Key, Lease, Session
from acpd.storage.rows import row_of
from acpd.storage.testing import ODD_NAMES
from acpd.wire.lines import Header, entry
from acpd_backends.stores import open_store
from tests.support.paths import ROOT
from tests.support.walk import below, contents

MADE = "2026-01-01T00:00:00.000Z"

every_backend = pytest.mark.parametrize("name", ["workspace", "json", "sqlite"])


class Store(NamedTuple):
    session: Session
    journals: Journals
    catalog: Catalog
    lease: Lease


@asynccontextmanager
async def opened(root: Path, name: str, user: str | None = None) -> AsyncGenerator[Store]:
    backend = open_store(name, root, user=user, sync="process")
    assert backend.journals is not None
    assert backend.catalog is not None
    assert backend.lease is not None
    store = Store(backend.session, backend.journals, backend.catalog, backend.lease)
    try:
        yield store
    finally:
        await store.journals.close()
        await store.catalog.close()
        await store.session.close()


async def converse(store: Store, key: Key, text: str = "hi") -> None:
    """A whole session: log, context, a blob, state, row."""
    journal = await store.journals.create(key, Header(version=1, id=key.session, cwd="/w", agent=key.agent, createdAt=MADE))
    blob = text.encode() * 100
    await journal.put_blobs([(hashlib.sha256(blob).hexdigest(), blob)])
    body = b',"prompt":[{"type":"text","text":%b}]' % json.dumps(text).encode()
    journal.append(entry("prompt", "e1", None, 1, MADE, body))
    journal.fold.prompted = True
    journal.flush()
    await journal.write_context(b'{"type":"message","id":"e1"}\n', fresh=True)
    await store.catalog.put(row_of(key, journal.header, journal.fold, journal.size))
    await journal.close()
    await store.session.save(key, "memory", json.dumps([text]).encode())


async def forget(store: Store, key: Key) -> None:
    """What session/delete does."""
    await store.journals.delete(key)
    await store.session.delete(key)
    await store.catalog.delete(key.session)


def files_of(root: Path) -> dict[str, bytes]:
    """Every file that has something of a session; databases and locks aside."""
    found = {str(path.relative_to(root)): data for path, data in contents(root).items()}
    return {name: data for name, data in found.items() if ".acpd" not in name and not name.endswith(".lock")}


async def texts(store: Store, key: Key) -> list[bytes]:
    return [bytes(line.prompt) async for window in store.journals.read(key) for line in window if line.prompt is not UNSET]


@every_backend
async def test_a13_two_users_share_nothing(tmp_path: Path, name: str) -> None:
    """A13: two sessions at once, users alice and bob, one agent and one id: no shared path, no shared message or state."""
    alice, bob = Key("coder", "s", "alice"), Key("coder", "s", "bob")
    async with opened(tmp_path, name, "alice") as one, opened(tmp_path, name, "bob") as two:
        await asyncio.gather(converse(one, alice, "from alice"), converse(two, bob, "from bob"))
        assert await one.session.load(alice, "memory") == b'["from alice"]'
        assert await two.session.load(bob, "memory") == b'["from bob"]'
        assert [key async for key in one.journals.scan("alice")] == [alice]
        assert [row.user for row in await one.catalog.page()] == ["alice"]
        assert [row.user for row in await two.catalog.page()] == ["bob"]
        await one.lease.take(alice)
        await two.lease.take(bob)
        await one.lease.give_up(alice)
        await two.lease.give_up(bob)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["u-alice", "u-bob"]
    assert [] == [path for path, data in contents(tmp_path / "u-alice").items() if b"from bob" in data]


@every_backend
async def test_a14_a_new_session_starts_empty(tmp_path: Path, name: str) -> None:
    """A14: a new session after an old one on the same agent has no state."""
    async with opened(tmp_path, name) as store:
        await converse(store, Key("coder", "old"))
        assert await store.session.names(Key("coder", "new")) == []
        assert await store.session.load(Key("coder", "new"), "memory") is None
        with pytest.raises(SessionNotFound):
            await store.journals.peek(Key("coder", "new"))


def damage(root: Path, name: str) -> Callable[[], bytes]:
    """Tear the memory of session "s"; the result reads what is there."""
    if name == "sqlite":
        with closing(sqlite3.connect(root / ".acpd" / "store.db")) as db, db:
            db.execute("UPDATE state SET value = ? WHERE session = 's'", (b'["to',))

        def stored() -> bytes:
            with closing(sqlite3.connect(root / ".acpd" / "store.db")) as db:
                return bytes(db.execute("SELECT value FROM state WHERE session = 's'").fetchone()[0])

        return stored
    (path,) = below(root, "context/s/memory.json")
    path.write_bytes(b'["to')
    return path.read_bytes


@every_backend
async def test_a15_an_unreadable_snapshot_is_an_error(tmp_path: Path, name: str) -> None:
    """A15: its load fails, and it is still there, untouched, after another session's next turn."""
    key = Key("coder", "s")
    async with opened(tmp_path, name) as store:
        await converse(store, key)
    stored = damage(tmp_path, name)
    async with opened(tmp_path, name) as store:
        with pytest.raises(StateUnreadable, match="put aside"):
            await store.session.load(key, "memory")
        await converse(store, Key("coder", "other"))
    assert stored() == b'["to'


@every_backend
async def test_a16_any_id_is_one_session(tmp_path: Path, name: str) -> None:
    """A16: ids that were once taken for something else are distinct sessions, listed as they were given, inside the root."""
    root = tmp_path / "root"
    ids = [odd for odd in ODD_NAMES if odd not in ("\ud800", "\udfff")]  # a header is UTF-8
    async with opened(root, name) as store:
        for odd in ids:
            await converse(store, Key("coder", odd), f"text {ids.index(odd)}")
        for odd in ids:
            assert await store.session.load(Key("coder", odd), "memory") == b'["text %d"]' % ids.index(odd)
            assert f"text {ids.index(odd)}".encode() in (await texts(store, Key("coder", odd)))[0]
        assert sorted(ids) == sorted([key.session async for key in store.journals.scan(None)])
        assert sorted(ids) == sorted(key.session for key in await store.session.keys())
        assert sorted(ids) == sorted(row.id for row in await store.catalog.page(limit=1000))
    assert [path.name for path in tmp_path.iterdir()] == ["root"]


@every_backend
async def test_a17_delete_removes_everything_of_one_session(tmp_path: Path, name: str) -> None:
    """A17: snapshot, both JSONL files, blobs, index entry and row are gone, others untouched; again is a no-op."""
    async with opened(tmp_path, name) as store:
        await converse(store, Key("coder", "keep"))
    before = files_of(tmp_path)
    async with opened(tmp_path, name) as store:
        await converse(store, Key("coder", "gone"), "secret")
    assert len(files_of(tmp_path)) > len(before)
    for _ in range(2):
        async with opened(tmp_path, name) as store:
            await forget(store, Key("coder", "gone"))
            assert [row.id for row in await store.catalog.page()] == ["keep"]
            assert await store.session.keys() == [Key("" if name == "json" else "coder", "keep")]
        assert files_of(tmp_path) == before


@every_backend
async def test_a18_unrelated_folders_are_not_sessions(tmp_path: Path, name: str) -> None:
    """A18: in a workspace with other folders none of them is listed or removed."""
    for folder in ("src", "agents/Notes", "agents/coder/skills", "context/Other Things", "u-/x", "sessions/Old.dir", "memory"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "file.txt").write_text("mine")
    (tmp_path / "agents" / "coder" / "sessions").mkdir()
    (tmp_path / "agents" / "coder" / "sessions" / "README.md").write_text("mine")
    before = files_of(tmp_path)
    async with opened(tmp_path, name) as store:
        assert await store.session.keys() == []
        assert [key async for key in store.journals.scan(None)] == []
        await converse(store, Key("coder", "s"))
        assert [key.session for key in await store.session.keys()] == ["s"]
        assert [key.session async for key in store.journals.scan(None)] == ["s"]
        await forget(store, Key("coder", "s"))
    left = {path: data for path, data in files_of(tmp_path).items() if not path.endswith("sessions.json")}
    assert left == before


@every_backend
async def test_a19_a_corrupt_index_is_made_anew(tmp_path: Path, name: str) -> None:
    """A19: no session vanishes from a sessions.json that was corrupt, even if the catalog is lost with it."""
    async with opened(tmp_path, name) as store:
        for n in range(3):
            await converse(store, Key("coder", f"s{n}"))
    (index,) = below(tmp_path, "sessions.json")
    index.write_bytes(b'{"version": 1, "sessions": {"s0": ')
    for lost in (tmp_path / ".acpd").glob("*.db*"):
        lost.unlink()
    async with opened(tmp_path, name) as store:
        await store.catalog.recover(store.journals)
    assert sorted(json.loads(index.read_bytes())["sessions"]) == ["s0", "s1", "s2"]


UPDATES = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, sys.argv[4])
from tests.backends.test_seed_rows import Key, converse, opened

async def main():
    async with opened(Path(sys.argv[1]), sys.argv[2]) as store:
        await asyncio.gather(*(converse(store, Key("coder", f"{sys.argv[3]}{n}")) for n in range(25)))

asyncio.run(main())
"""


@every_backend
async def test_a20_fifty_updates_at_once(tmp_path: Path, name: str) -> None:
    """A20: two processes with 25 concurrent sessions each: 50 entries, 50 rows, 50 states."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", UPDATES, str(tmp_path), name]
    children = [subprocess.Popen([*command, who, str(ROOT)], env=environment) for who in "ab"]
    assert [await asyncio.to_thread(child.wait) for child in children] == [0, 0]
    expected = sorted(f"{who}{n}" for who in "ab" for n in range(25))
    (index,) = below(tmp_path, "sessions.json")
    assert sorted(json.loads(index.read_bytes())["sessions"]) == expected
    async with opened(tmp_path, name) as store:
        assert sorted(row.id for row in await store.catalog.page(limit=1000)) == expected
        assert sorted(key.session for key in await store.session.keys()) == expected


@every_backend
async def test_a25_a_newer_log_is_never_written(tmp_path: Path, name: str) -> None:
    """A25: a log of a newer version is not opened for writing, and not a byte of it changes."""
    key = Key("coder", "s")
    async with opened(tmp_path, name) as store:
        await converse(store, key)
        path = Path(store.journals.log_path(key))
        newer = path.read_bytes().replace(b'"version":1', b'"version":99') + b'{"type":"hologram","id":"x","torn'
        path.write_bytes(newer)
        with pytest.raises(SessionReadOnly):
            await store.journals.open(key)
        await store.catalog.recover(store.journals)
    assert path.read_bytes() == newer


@every_backend
async def test_a30_an_empty_list_stays_empty(tmp_path: Path, name: str) -> None:
    """A30: a memory that was cleared does not come back."""
    key = Key("coder", "s")
    async with opened(tmp_path, name) as store:
        await converse(store, key)
        await store.session.save(key, "memory", b"[]")
    async with opened(tmp_path, name) as store:
        assert await store.session.load(key, "memory") == b"[]"
