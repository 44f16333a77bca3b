"""One file, one thread, one connection."""

from __future__ import annotations

import asyncio
import functools
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from acpd.errors import StateUnreadable, StoreError
from acpd_backends.schema import VERSION
from acpd_backends.sqlite import BATCH, BRIEF, Database, execute, query

ADD = "INSERT INTO meta VALUES (?1, ?2)"


@asynccontextmanager
async def opened(path: Path, *, rebuildable: bool = True, sync: bool = True) -> AsyncGenerator[Database]:
    database = Database(path, rebuildable=rebuildable, sync=sync)
    try:
        yield database
    finally:
        await database.close()


async def names(database: Database) -> list[str]:
    return [name for (name,) in await database.read(lambda db: query(db, "SELECT name FROM meta ORDER BY name"))]


async def add(database: Database, name: str) -> None:
    await database.write(lambda db: execute(db, ADD, name, ""))


async def test_writes_that_wait_together_share_a_commit(tmp_path: Path) -> None:
    """As many closures as were asked for while the thread was busy are one transaction."""
    statements: list[str] = []
    async with opened(tmp_path / "x.db") as database:
        await database.read(lambda db: db.set_trace_callback(statements.append))
        gate = threading.Event()
        busy = asyncio.gather(database.read(lambda db: gate.wait()))
        writes = asyncio.gather(*(add(database, f"n{n:03}") for n in range(BATCH)))
        await asyncio.sleep(0)  # all are asked for
        gate.set()
        await asyncio.gather(busy, writes)
        await database.read(lambda db: db.set_trace_callback(None))
        assert [f"n{n:03}" for n in range(BATCH)] == await names(database)
    assert statements.count("COMMIT") <= 2


async def test_a_closure_that_fails_fails_alone(tmp_path: Path) -> None:
    """Its caller gets the error and nothing of it stays; those that shared its transaction are carried out."""

    def fail(db: sqlite3.Connection) -> None:
        execute(db, ADD, "half", "")
        raise ValueError("no")

    async with opened(tmp_path / "x.db") as database:
        work = [add(database, "a"), database.write(fail), add(database, "b"), add(database, "a")]
        results = await asyncio.gather(*work, return_exceptions=True)
        assert [None, ValueError, None, StoreError] == [None if r is None else type(r) for r in results]
        assert ["a", "b"] == await names(database)


async def test_a_read_sees_the_writes_before_it(tmp_path: Path) -> None:
    """What was asked for earlier is seen, also when nobody waited for it."""
    async with opened(tmp_path / "x.db") as database:
        _, seen = await asyncio.gather(add(database, "a"), names(database))
        assert seen == ["a"]


async def test_a_cancelled_write_is_still_made(tmp_path: Path) -> None:
    """Cancelling gives up the answer, not the transaction."""
    async with opened(tmp_path / "x.db") as database:
        gate = threading.Event()
        busy = asyncio.gather(database.read(lambda db: gate.wait()))
        writing = asyncio.gather(add(database, "a"))
        await asyncio.sleep(0)
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
        gate.set()
        await busy
        assert ["a"] == await names(database)


async def test_what_is_cancelled_keeps_its_place_until_it_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So many jobs wait for the thread at most, those that nobody waits for any more included; then there is room again."""
    monkeypatch.setattr("acpd_backends.sqlite.WAITING", 3)
    async with opened(tmp_path / "x.db") as database:
        gate = threading.Event()
        done: list[sqlite3.Connection] = []
        busy = asyncio.gather(database.read(lambda db: gate.wait()))
        for _ in range(20):
            job = asyncio.gather(database.read(done.append))
            await asyncio.sleep(0)
            job.cancel()
        gate.set()
        await busy
        assert [] == await names(database)
        assert 2 == len(done)
    for _ in range(4):
        with pytest.raises(StoreError, match="closed"):
            await database.read(done.append)


async def test_close_finishes_what_was_asked_for(tmp_path: Path) -> None:
    """Closing waits for what is under way; afterwards a call is StoreError, and closing again no error."""
    database = Database(tmp_path / "x.db")
    writing = asyncio.gather(*(add(database, f"{n}") for n in range(200)))
    await asyncio.sleep(0)
    await database.close()
    await writing
    await database.close()
    with pytest.raises(StoreError, match="closed"):
        await names(database)
    with closing(sqlite3.connect(tmp_path / "x.db")) as db:
        assert (200,) == db.execute("SELECT count(*) FROM meta").fetchone()


async def test_a_shared_file_is_closed_by_the_last_holder(tmp_path: Path) -> None:
    """Each holder closes it; it works until the last one has."""
    database = Database(tmp_path / "x.db")
    other = database.shared()
    await database.close()
    await add(other, "a")
    await other.close()
    with pytest.raises(StoreError):
        await add(other, "b")


async def test_a_durable_write_is_synced_and_others_are_not(tmp_path: Path) -> None:
    """`durable` commits with synchronous=FULL, the others with NORMAL; in a store that does not sync all do."""

    def level(db: sqlite3.Connection) -> int:
        return int(db.execute("PRAGMA synchronous").fetchone()[0])

    async with opened(tmp_path / "x.db") as database:
        assert [2, 1, 2] == [await database.write(level, durable=durable) for durable in (True, False, True)]
    async with opened(tmp_path / "y.db", sync=False) as database:
        assert await database.write(level, durable=True) == 1


async def test_a_full_disk_is_said_and_passes(tmp_path: Path) -> None:
    """A write that finds no room raises a StoreError that says so and may be tried again; what was there stays."""
    async with opened(tmp_path / "x.db") as database:
        await add(database, "a")
        await database.read(lambda db: db.execute("PRAGMA max_page_count = 20").fetchall())
        with pytest.raises(StoreError, match="free space") as caught:
            await database.write(lambda db: execute(db, ADD, "big", "x" * 1_000_000))
        assert caught.value.retryable
        assert ["a"] == await names(database)
        await database.read(lambda db: db.execute("PRAGMA max_page_count = 100000").fetchall())
        await database.write(lambda db: execute(db, ADD, "big", "x" * 1_000_000))
        assert ["a", "big"] == await names(database)


class Faulty(sqlite3.Connection):
    """A disk that fails while a transaction is taken back."""

    def execute(self, sql: str, /, *values: Any) -> sqlite3.Cursor:
        if sql == "ROLLBACK":
            raise sqlite3.OperationalError("disk I/O error")
        return super().execute(sql, *values)


async def test_a_rollback_that_fails_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All who wait get a StoreError and none waits for ever; nothing of it is in the file, and the next calls work."""
    monkeypatch.setattr(sqlite3, "connect", functools.partial(sqlite3.connect, factory=Faulty))
    async with opened(tmp_path / "x.db") as database:
        await add(database, "a")
        gate = threading.Event()
        busy = asyncio.gather(database.read(lambda db: gate.wait()))
        calls = asyncio.gather(add(database, "b"), add(database, "a"), names(database), return_exceptions=True)
        await asyncio.sleep(0)  # all are asked for
        gate.set()
        await busy
        results = await asyncio.wait_for(calls, 10)
        assert [StoreError] * 3 == [type(result) for result in results]
        assert "disk I/O error" in str(results[0])
        await add(database, "c")
        assert ["a", "c"] == await names(database)


@pytest.mark.parametrize("error", [MemoryError("no room"), OSError(5, "broken"), sqlite3.OperationalError("odd")])
async def test_whatever_stops_an_opening_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """A caller in a task and one in a thread get it as StoreError, and the next call opens the file."""

    def fail(self: Database) -> None:
        raise error

    async with opened(tmp_path / "x.db") as database:
        with monkeypatch.context() as patched:
            patched.setattr(Database, "_connect", fail)
            with pytest.raises(StoreError, match=str(error.args[-1])):
                await asyncio.wait_for(names(database), 10)
            with pytest.raises(StoreError):
                await asyncio.wait_for(asyncio.to_thread(database.read_from_thread, lambda db: db.total_changes), 10)
        await add(database, "a")
        assert ["a"] == await names(database)


async def add_briefly(database: Database, name: str) -> str:
    """Gives the name of the thread that did it."""

    def work(db: sqlite3.Connection) -> str:
        execute(db, ADD, name, "")
        return threading.current_thread().name

    return await database.write(work, brief=True)


async def test_a_brief_write_is_made_at_once(tmp_path: Path) -> None:
    """On the event loop, once the file is open; it is committed and others see it."""
    here = threading.current_thread().name
    async with opened(tmp_path / "x.db") as database:
        assert [False, True] == [await add_briefly(database, name) == here for name in "ab"]
        with closing(sqlite3.connect(tmp_path / "x.db")) as other:
            assert [("a",), ("b",)] == other.execute("SELECT name FROM meta ORDER BY name").fetchall()


async def test_a_brief_write_does_not_overtake(tmp_path: Path) -> None:
    """While something waits for the thread it waits too, also for what nobody waits for any more."""
    async with opened(tmp_path / "x.db") as database:
        await add(database, "a")
        gate = threading.Event()
        blocked = asyncio.gather(database.read(lambda db: gate.wait()))
        first = asyncio.gather(add(database, "n"))
        await asyncio.sleep(0)
        first.cancel()
        second = asyncio.gather(database.write(lambda db: execute(db, "DELETE FROM meta WHERE name = 'n'"), brief=True))
        await asyncio.sleep(0)
        gate.set()
        await asyncio.gather(blocked, second)
        assert ["a"] == await names(database)


async def test_a_brief_write_waits_for_another_process_in_the_thread(tmp_path: Path) -> None:
    """A lock that another connection holds delays it, and not the event loop."""
    async with opened(tmp_path / "x.db") as database:
        await add(database, "a")
        with closing(sqlite3.connect(tmp_path / "x.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            writing = asyncio.gather(add_briefly(database, "b"))
            await asyncio.sleep(0)
            assert not writing.done()
            other.execute("COMMIT")
        assert ("sqlite:x.db",) == tuple(await writing)
        assert ["a", "b"] == await names(database)


async def test_a_brief_write_that_fails_is_told_once_and_changes_nothing(tmp_path: Path) -> None:
    """What it had done before is not in the file; the next one is made."""
    async with opened(tmp_path / "x.db") as database:
        await add(database, "a")

        def fail(db: sqlite3.Connection) -> None:
            execute(db, ADD, "b", "")
            execute(db, ADD, "a", "")

        with pytest.raises(StoreError, match="UNIQUE"):
            await database.write(fail, brief=True)
        await add_briefly(database, "c")
        assert ["a", "c"] == await names(database)


async def test_brief_writes_do_not_let_the_wal_grow(tmp_path: Path) -> None:
    """The thread writes it back: it stays within what one round of them adds to the thousand pages from which on it does."""
    async with opened(tmp_path / "x.db") as database:
        for n in range(20 * BRIEF):
            sql = f"INSERT OR REPLACE INTO meta VALUES ('a', '{n}')"
            await database.write(functools.partial(execute, sql=sql), brief=True)
        assert (1000 + 4 * BRIEF) * 4200 > (tmp_path / "x.db-wal").stat().st_size


async def test_another_process_that_writes_is_waited_for(tmp_path: Path) -> None:
    """A lock that another connection holds delays a write, and not the event loop."""
    async with opened(tmp_path / "x.db") as database:
        await add(database, "a")
        with closing(sqlite3.connect(tmp_path / "x.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            writing = asyncio.gather(add(database, "b"))
            await asyncio.sleep(0)
            assert not writing.done()
            other.execute("COMMIT")
        await writing
        assert ["a", "b"] == await names(database)


COUNT = """
import asyncio, sys
from pathlib import Path
from acpd_backends.sqlite import Database

def increment(db):
    (value,) = db.execute("SELECT coalesce((SELECT value FROM meta WHERE name = 'n'), 0)").fetchone()
    db.execute("INSERT OR REPLACE INTO meta VALUES ('n', ?)", (str(int(value) + 1),))

async def main():
    database = Database(Path(sys.argv[1]))
    for _ in range(50):
        await asyncio.gather(database.write(increment), database.write(increment))
    await database.close()

asyncio.run(main())
"""


async def test_processes_share_a_file(tmp_path: Path) -> None:
    """Four processes that make, read, change and close one file at once: no write is lost, none finds it locked."""
    path = tmp_path / "new" / "x.db"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    children = [subprocess.Popen([sys.executable, "-c", COUNT, str(path)], env=environment) for _ in range(4)]
    assert [0, 0, 0, 0] == [await asyncio.to_thread(child.wait) for child in children]
    async with opened(path) as database:
        assert [("400",)] == await database.read(lambda db: query(db, "SELECT value FROM meta"))


@pytest.mark.parametrize(
    "garbage", [b"this is no database, it only looks like a file " * 100, b"SQLite format 3\x00" + b"\xff" * 5000]
)
async def test_a_damaged_file_that_can_be_rebuilt_is_moved_aside(tmp_path: Path, garbage: bytes) -> None:
    """A new file stands in its place; the old one is beside it, whole."""
    path = tmp_path / "catalog.db"
    path.write_bytes(garbage)
    async with opened(path) as database:
        await add(database, "a")
    async with opened(path) as database:
        assert ["a"] == await names(database)
    assert [garbage] == [aside.read_bytes() for aside in tmp_path.glob("catalog.db.unreadable-*")]


async def test_a_damaged_page_is_the_end_of_a_file_that_can_be_rebuilt(tmp_path: Path) -> None:
    """Met in the middle of the work it is an error; closed, the file is put aside, and the next one to open it begins anew."""
    path = tmp_path / "catalog.db"
    async with opened(path) as database:
        for number in range(300):
            await add(database, f"{number:04}" + "x" * 500)
    pages = bytearray(path.read_bytes())
    for at in range(4 * 4096, len(pages), 4096):
        pages[at : at + 100] = b"\xff" * 100
    path.write_bytes(pages)
    async with opened(path) as database:
        with pytest.raises(StoreError, match="malformed"):
            await names(database)
    assert not path.exists()
    async with opened(path) as database:
        await add(database, "a")
        assert ["a"] == await names(database)


async def test_a_damaged_file_with_states_stays(tmp_path: Path) -> None:
    """Every call raises StateUnreadable; the file is as it was, and one copy is beside it."""
    path = tmp_path / "store.db"
    garbage = b"not a database" * 1000
    path.write_bytes(garbage)
    for _ in range(2):
        async with opened(path, rebuildable=False) as database:
            for _ in range(2):
                with pytest.raises(StateUnreadable, match="backup"):
                    await add(database, "a")
    assert path.read_bytes() == garbage
    assert [garbage] == [aside.read_bytes() for aside in tmp_path.glob("store.db.unreadable-*")]


@pytest.mark.parametrize("rebuildable", [True, False])
async def test_a_newer_file_is_refused_and_stays(tmp_path: Path, rebuildable: bool) -> None:
    """A file of a newer version raises StoreError, which says so, and not a byte of it changes."""
    path = tmp_path / "x.db"
    with closing(sqlite3.connect(path)) as db:
        db.executescript(f"CREATE TABLE future(x); PRAGMA user_version = {VERSION + 1};")
    before = path.read_bytes()
    async with opened(path, rebuildable=rebuildable) as database:
        with pytest.raises(StoreError, match="newer"):
            await add(database, "a")
    assert path.read_bytes() == before


async def test_a_folder_without_rights_is_named(tmp_path: Path) -> None:
    """What stands in the way is in the error, and the next call tries again."""
    (tmp_path / "file").write_text("in the way")
    async with opened(tmp_path / "file" / "x.db") as database:
        with pytest.raises(StoreError, match=r"x\.db"):
            await add(database, "a")
        (tmp_path / "file").unlink()
        await add(database, "a")
        assert ["a"] == await names(database)


async def test_the_file_is_for_its_owner_only(tmp_path: Path) -> None:
    """Database, WAL and lock are 0600."""
    async with opened(tmp_path / "x.db") as database:
        await add(database, "a")
        assert {0o600} == {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb", "\x00", "a\x00b", "\U0010ffff", "?1", "'"])
async def test_any_text_goes_in_and_comes_out(tmp_path: Path, text: str) -> None:
    """Lone surrogates and NUL are stored and found like other text."""
    async with opened(tmp_path / "x.db") as database:
        await database.write(lambda db: execute(db, ADD, text, text))
        await add(database, "other")
        assert [(text,)] == await database.read(lambda db: query(db, "SELECT value FROM meta WHERE name = ?1", text))
