"""The catalog: listings that cost the same whatever their length, and a cache that can always be made anew."""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from sqlite3 import Connection
from typing import NamedTuple, TypeVar

import pytest
from msgspec.structs import replace

from acpd.errors import StoreError
from acpd.storage.contract import After, Backend, Catalog, Journals, Key, Row
from acpd.storage.fold import Fold
from acpd.storage.rows import row_of
from acpd.wire.lines import Header, Parent, Stored, entry, fact
from acpd_backends import catalog, logfolders
from acpd_backends.catalog import _SELECT, _UNCLEAN, SqliteCatalog, _page_sql
from acpd_backends.names import Layout
from acpd_backends.sqlite import Database, query
from acpd_backends.stores import open_store

T = TypeVar("T")


class Parts(NamedTuple):
    journals: Journals
    catalog: SqliteCatalog
    backend: Backend


@asynccontextmanager
async def opened(root: Path, name: str = "workspace", user: str | None = None) -> AsyncGenerator[Parts]:
    backend = open_store(name, root, user=user)
    assert backend.journals is not None
    assert isinstance(backend.catalog, SqliteCatalog)
    try:
        yield Parts(backend.journals, backend.catalog, backend)
    finally:
        await backend.journals.close()
        await backend.catalog.close()
        await backend.session.close()


async def write_log(journals: Journals, key: Key, prompts: int = 1) -> None:
    journal = await journals.create(
        key, Header(version=1, id=key.session, cwd="/w", agent=key.agent, createdAt="2026-01-01T00:00:00.000Z")
    )
    for n in range(1, prompts + 1):
        body = b',"prompt":[{"type":"text","text":"hi"}]'
        journal.append(entry("prompt", f"e{n}", f"e{n - 1}" if n > 1 else None, n, f"2026-01-01T00:00:{n:02}.000Z", body))
    journal.append(fact("info", "t", prompts + 1, "2026-01-01T00:01:00.000Z", b',"title":"hi"'))
    journal.flush()
    await journal.close()


def log_row(key: Key, prompts: int, size: int, state: str = "clean") -> Row:
    return Row(
        id=key.session, agent=key.agent, user=key.user, cwd="/w", title="hi", createdAt="2026-01-01T00:00:00.000Z",
        updatedAt="2026-01-01T00:01:00.000Z", messages=prompts, prompted=True, seq=prompts + 1, size=size, leaf=f"e{prompts}",
        state=state,
    )  # fmt: skip


def test_a_row_says_what_header_and_fold_say() -> None:
    """Everything that a listing shows comes from the log."""
    fold = Fold()
    fold.add(Stored(type="prompt", id="e1", seq=1, at="2026-01-02T00:00:00.000Z", parentId=None))
    fold.add(Stored(type="info", id="f", seq=2, at="2026-01-02T00:00:01.000Z", title="first line"))
    fold.add(Stored(type="link", id="l", seq=3, at="2026-01-02T00:00:02.000Z", inner="theirs"))
    header = Header(
        version=1,
        id="s",
        cwd="/w",
        agent="a",
        createdAt="2026-01-01T00:00:00.000Z",
        parent=Parent("p"),
        additionalDirectories=("/x",),
    )
    assert row_of(Key("a", "s", "u"), header, fold, 77, "open") == Row(
        id="s", agent="a", user="u", cwd="/w", title="first line", createdAt="2026-01-01T00:00:00.000Z",
        updatedAt="2026-01-02T00:00:02.000Z", messages=1, prompted=True, seq=3, size=77, leaf="e1", inner="theirs", parent="p",
        dirs=("/x",), state="open",
    )  # fmt: skip


def test_a_log_without_entries_has_a_row() -> None:
    """A session never prompted was last changed when it was made."""
    header = Header(version=1, id="s", cwd="/w", agent="a", createdAt="2026-01-01T00:00:00.000Z")
    row = row_of(Key("a", "s"), header, Fold(), 10)
    assert (row.updatedAt, row.prompted, row.leaf, row.parent) == ("2026-01-01T00:00:00.000Z", False, None, None)


def plans() -> Iterator[tuple[str, str, list[object]]]:
    for agent in (None, "a"):
        for cwd in (None, "/w"):
            for after in (None, After("2026-01-01T00:00:00.000Z", "s")):
                yield _page_sql(agent, cwd, after, 100)


@pytest.mark.parametrize(("placed", "moved", "values"), list(plans()))
async def test_no_page_sorts_or_scans(tmp_path: Path, placed: str, moved: str, values: list[object]) -> None:
    """Every listing is a range of an index in its own order, and the few sessions that have moved: what a page costs does not
    depend on the number of rows.
    """
    found: list[str] = []
    database = Database(tmp_path / "x.db")
    for sql in (placed, moved):
        (steps,) = await database.read(lambda db, sql=sql: query(db, f"EXPLAIN QUERY PLAN {sql}", *values))  # type: ignore[misc]
        found.append(steps[-1])
    await database.close()
    assert found[0].startswith("SEARCH session USING INDEX by_" if values else "SCAN session USING INDEX by_time")
    assert found[1].startswith("SCAN session USING INDEX recent")


@pytest.mark.parametrize("settled", [1, 3, 1000])
async def test_a_session_that_has_moved_is_listed_where_it_is_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settled: int
) -> None:
    """Whether an update is in the listings' own indexes yet, or not, no page shows: in any order, by any filter."""
    monkeypatch.setattr(catalog, "RECENT", settled)
    chance = random.Random(settled)
    rows: dict[str, Row] = {}
    async with opened(tmp_path) as store:
        for number in range(60):
            at = f"2026-01-01T00:00:{chance.randrange(60):02}.000Z"
            row = Row(
                id=f"s{chance.randrange(12)}", agent=chance.choice("ab"), cwd=chance.choice("xy"), updatedAt=at,
                prompted=chance.random() < 0.8, seq=number,
            )  # fmt: skip
            rows[row.id] = row
            await store.catalog.put(row)
            for agent, cwd in ((None, None), ("a", None), (None, "x"), ("a", "x")):
                expected = [
                    each for each in rows.values() if each.prompted and agent in (None, each.agent) and cwd in (None, each.cwd)
                ]
                expected.sort(key=lambda each: (each.updatedAt, each.id), reverse=True)
                found: list[Row] = []
                while page := await store.catalog.page(
                    agent=agent, cwd=cwd, after=After(found[-1].updatedAt, found[-1].id) if found else None, limit=2
                ):
                    found += page
                assert expected == found
            late = sorted((each.id for each in rows.values() if each.prompted and each.seq), reverse=True)
            assert late == [each.id for each in await store.catalog.behind()]


async def test_few_sessions_have_moved_at_any_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page looks at all of them, so that there must not be more with each update, nor with each start."""
    monkeypatch.setattr(catalog, "RECENT", 5)
    most = 0
    for start in range(4):
        async with opened(tmp_path) as store:
            for number in range(8):
                row = log_row(Key("a", f"s{number}"), 1 + start, 0)
                await store.catalog.put(replace(row, updatedAt=f"2026-01-01T00:0{start}:0{number}.000Z"))
                most = max(most, len(await store.catalog._rows("WHERE listed <> updatedAt")))
    assert 0 < most < 10


async def test_a_catalog_in_memory_writes_nothing(tmp_path: Path) -> None:
    """Neither in the store nor beside it."""
    root = tmp_path / "data"
    root.mkdir()
    backend = open_store("workspace", root, catalog_in_memory=True)
    assert backend.catalog is not None
    assert await backend.catalog.get("s") is None
    await backend.catalog.close()
    await backend.session.close()
    assert [[root], []] == [list(tmp_path.iterdir()), list(root.iterdir())]


@pytest.mark.parametrize("name", ["workspace", "json", "sqlite"])
async def test_a_lost_catalog_is_made_anew(tmp_path: Path, name: str) -> None:
    """Delete it, or damage it: recovery reads every log of the user, and no session vanishes."""
    keys = [Key("coder", "s1"), Key("coder", "s2"), Key("other", "s3")]
    file = {"sqlite": "store.db", "json": "catalog-json.db"}.get(name, "catalog.db")
    async with opened(tmp_path, name) as store:
        for key in keys:
            await write_log(store.journals, key)
        await write_log(store.journals, Key("coder", "foreign", "alice"))
        assert await store.catalog.recover(store.journals) == 3
        before = [await store.catalog.get(key.session) for key in keys]
        assert [row and row.title for row in before] == ["hi"] * 3
    (tmp_path / ".acpd" / file).unlink()
    async with opened(tmp_path, name) as store:
        assert await store.catalog.recover(store.journals) == 3
        assert before == [await store.catalog.get(key.session) for key in keys]


async def test_a_damaged_catalog_is_made_anew(tmp_path: Path) -> None:
    """A catalog that is no database is moved aside and rebuilt from the logs."""
    async with opened(tmp_path) as store:
        await write_log(store.journals, Key("coder", "s1"))
    (tmp_path / ".acpd").mkdir(exist_ok=True)
    (tmp_path / ".acpd" / "catalog.db").write_bytes(b"garbage" * 1000)
    async with opened(tmp_path) as store:
        assert await store.catalog.recover(store.journals) == 1
        assert [row.id for row in await store.catalog.page()] == ["s1"]


async def test_what_is_left_of_a_log_that_is_gone_goes_only_where_it_was_being_deleted(tmp_path: Path) -> None:
    """A log that was taken away may be put back, with its big strings; a deletion that was cut off is completed."""
    async with opened(tmp_path) as parts:
        await parts.catalog.recover(parts.journals)
        left: list[bool] = []
        for state in ("open", "deleting"):
            key = Key("agent", state)
            await write_log(parts.journals, key)
            log = Path(parts.journals.log_path(key))
            blob = log.with_name(f"{state}.blobs") / ("0" * 64)
            blob.parent.mkdir()
            blob.write_bytes(b"x")
            await parts.catalog.put(log_row(key, 1, log.stat().st_size, state))
            log.rename(tmp_path / f"{state}.aside")
            await parts.catalog.recover(parts.journals)
            assert None is await parts.catalog.get(state)
            left.append(blob.exists())
        assert [True, False] == left


async def test_rows_without_a_log_go_at_a_start(tmp_path: Path) -> None:
    """Somebody removed it with other means. Where no log is found at all nothing is forgotten: their disk may not be there."""
    async with opened(tmp_path) as parts:
        for name in ("one", "two"):
            await write_log(parts.journals, Key("agent", name))
        await parts.catalog.recover(parts.journals)
        for name, left in (("one", {"two"}), ("two", {"two"})):
            Path(parts.journals.log_path(Key("agent", name))).unlink()
            await parts.catalog.recover(parts.journals)
            assert left == {row.id for row in await parts.catalog.find("", limit=9)}


async def test_an_open_row_is_read_again(tmp_path: Path) -> None:
    """After a crash the row says what the log says; its size is the log's."""
    key = Key("coder", "s1")
    async with opened(tmp_path) as store:
        await store.catalog.recover(store.journals)
        await write_log(store.journals, key, 3)
        await store.catalog.put(log_row(key, 1, 0, "open"))
        assert await store.catalog.recover(store.journals) == 1
        size = Path(store.journals.log_path(key)).stat().st_size
        assert await store.catalog.get("s1") == log_row(key, 3, size)


async def test_which_sessions_are_open(tmp_path: Path) -> None:
    """Their rows, prompted or not, found by an index however many others there are."""
    async with opened(tmp_path) as store:
        for name, state in (("s1", "open"), ("s2", "clean"), ("s3", "deleting"), ("s4", "open")):
            await store.catalog.put(log_row(Key("coder", name), 1, 0, state))
        assert ["s1", "s4"] == sorted(row.id for row in await store.catalog.opened())
        assert ["s1", "s4"] == sorted(row.id for row in await Catalog.opened(store.catalog))  # of one that has no better way
    database = Database(tmp_path / "x.db")
    (steps,) = await database.read(lambda db: query(db, f"EXPLAIN QUERY PLAN {_SELECT} {_UNCLEAN}"))
    await database.close()
    assert "USING INDEX unclean" in steps[-1]


async def test_a_session_that_is_open_elsewhere_stays_open(tmp_path: Path) -> None:
    """A row whose lease is held is brought up to date and stays "open", so that the holder's crash is noticed too."""
    key = Key("coder", "s1")
    async with opened(tmp_path) as store, opened(tmp_path) as other:
        assert other.backend.lease is not None
        await write_log(store.journals, key, 2)
        await other.backend.lease.take(key)
        await store.catalog.recover(store.journals)
        found = await store.catalog.get("s1")
        assert found is not None
        assert (found.state, found.seq) == ("open", 3)
        await other.backend.lease.give_up(key)
        assert await store.catalog.recover(store.journals) == 1
        found = await store.catalog.get("s1")
        assert found is not None
        assert found.state == "clean"


async def test_a_session_that_is_being_made_keeps_its_row(tmp_path: Path) -> None:
    """Recovery runs beside new sessions: one whose log is not there yet, but whose lease is held, is not forgotten."""
    key = Key("coder", "s1")
    async with opened(tmp_path) as store:
        await store.catalog.recover(store.journals)
        assert store.backend.lease is not None
        await store.backend.lease.take(key)
        await store.catalog.put(log_row(key, 0, 0, "open"))
        await store.catalog.recover(store.journals)
        assert await store.catalog.get("s1") == log_row(key, 0, 0, "open")
        await store.backend.lease.give_up(key)
        await store.catalog.recover(store.journals)
        assert await store.catalog.get("s1") is None


class Interrupted(StoreError):
    pass


@pytest.mark.parametrize("name", ["workspace", "json", "sqlite"])
async def test_a_log_without_a_row_is_found(tmp_path: Path, name: str) -> None:
    """A log that was put back, or whose maker was killed before its row, is in the catalog after the next start."""
    async with opened(tmp_path, name) as store:
        await write_log(store.journals, Key("a", "first"))
        assert 1 == await store.catalog.recover(store.journals)
    async with opened(tmp_path, name) as store:
        await write_log(store.journals, key := Key("b", "Später.1"), 2)
        size = Path(store.journals.log_path(key)).stat().st_size
        assert 1 == await store.catalog.recover(store.journals)
        assert log_row(key, 2, size) == await store.catalog.get(key.session)
        assert 0 == await store.catalog.recover(store.journals)


@pytest.mark.parametrize("rest", [0, 0.01])
async def test_a_start_compares_the_names_of_logs_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rest: float) -> None:
    """What listings wait for does not grow with the store; logs that were put there or taken away come with the second part."""
    monkeypatch.setattr(catalog, "PIECE", 2)
    monkeypatch.setattr(logfolders, "PIECE", 2)
    async with opened(tmp_path) as store:
        for name in ("a", "b", "c", "open", "taken"):
            await write_log(store.journals, Key("agent", name), 2)
        assert 5 == await store.catalog.recover(store.journals)
        await store.catalog.put(log_row(Key("agent", "open"), 1, 0, "open"))
        Path(store.journals.log_path(Key("agent", "taken"))).unlink()
        await write_log(store.journals, Key("agent", "put"))
        assert 1 == await store.catalog.mend(store.journals)
        rows = await store.catalog.find("", limit=9)
        assert {"a", "b", "c", "open", "taken"} == {row.id for row in rows}
        assert {"clean"} == {row.state for row in rows}
        assert 1 == await store.catalog.compare(store.journals, rest=rest)
        assert {"a", "b", "c", "open", "put"} == {row.id for row in await store.catalog.find("", limit=9)}


@pytest.mark.parametrize("now", ["another", ""])
async def test_a_machine_that_was_down_may_have_lost_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, now: str) -> None:
    """Rows of new sessions are not synced, their logs are: the first start after that compares at once, and only that one.

    Where the system does not tell, every start does.
    """
    key = Key("agent", "s")
    async with opened(tmp_path) as store:
        assert 0 == await store.catalog.mend(store.journals)
        await write_log(store.journals, key)
        assert 0 == await store.catalog.mend(store.journals)
        monkeypatch.setattr(catalog, "_boot", lambda: now)
        for again in (1, int(not now)):
            assert again == await store.catalog.mend(store.journals)
            await store.catalog.delete("s")


async def test_a_log_whose_maker_lives_is_left_to_it(tmp_path: Path) -> None:
    """Between its log and its row a new session is its maker's."""
    key = Key("a", "s")
    async with opened(tmp_path) as other, opened(tmp_path) as store:
        await store.catalog.recover(store.journals)
        assert other.backend.lease is not None
        await other.backend.lease.take(key)
        await write_log(other.journals, key)
        assert 0 == await store.catalog.recover(store.journals)
        assert await store.catalog.get("s") is None
        await other.backend.lease.give_up(key)


async def test_an_interrupted_scan_starts_again(tmp_path: Path) -> None:
    """A new catalog counts as complete when every log was read, not before."""
    async with opened(tmp_path) as store:
        for n in range(3):
            await write_log(store.journals, Key("coder", f"s{n}"))
        real = store.journals.scan

        async def torn(user: str | None, /) -> AsyncIterator[Key]:
            async for key in real(user):
                yield key
                raise Interrupted("scan", "x")

        store.journals.scan = torn  # type: ignore[method-assign]
        with pytest.raises(Interrupted):
            await store.catalog.recover(store.journals)
    async with opened(tmp_path) as store:
        assert await store.catalog.recover(store.journals) == 3
        assert await store.catalog.recover(store.journals) == 0


async def test_a_log_that_cannot_be_read_keeps_its_row(tmp_path: Path) -> None:
    """A log of a newer version, or without a header, is no reason to forget or to invent anything."""
    key = Key("coder", "s1")
    async with opened(tmp_path) as store:
        await store.catalog.recover(store.journals)
        await write_log(store.journals, key)
        Path(store.journals.log_path(key)).write_bytes(b"no header\n")
        await store.catalog.put(log_row(key, 1, 0, "open"))
        await store.catalog.recover(store.journals)
        assert await store.catalog.get("s1") == log_row(key, 1, 0, "open")


async def test_recovery_does_not_undo_what_is_newer(tmp_path: Path) -> None:
    """A row that another process wrote after the log was read stays."""
    key = Key("coder", "s1")
    async with opened(tmp_path) as store:
        await write_log(store.journals, key, 1)
        await store.catalog.put(log_row(key, 9, 0))
        assert await store.catalog.recover(store.journals) == 1
        assert await store.catalog.get("s1") == log_row(key, 9, 0)


async def test_users_have_catalogs_of_their_own(tmp_path: Path) -> None:
    """One user's rows are in no other's catalog, and a row carries its user."""
    async with opened(tmp_path, user="alice") as alice, opened(tmp_path, user="bob") as bob:
        await alice.catalog.put(log_row(Key("coder", "s1", "alice"), 1, 0))
        assert await alice.catalog.get("s1") == log_row(Key("coder", "s1", "alice"), 1, 0)
        assert await bob.catalog.get("s1") is None
    assert (tmp_path / "u-alice" / ".acpd" / "catalog.db").is_file()
    assert not (tmp_path / ".acpd").exists()


async def test_a_layout_decides_where_the_index_is(tmp_path: Path) -> None:
    """The catalog of another layout writes `sessions.json` there."""
    layout = Layout(tmp_path, per_agent=False)
    store = SqliteCatalog(Database(tmp_path / "c.db"), layout)
    await store.put(log_row(Key("coder", "s1"), 1, 0))
    await store.close()
    assert (tmp_path / "sessions" / "sessions.json").is_file()


class _Modes(Database):
    """Notes which transactions outlive a loss of power."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.durable: list[bool] = []

    async def write(self, work: Callable[[Connection], T], /, *, durable: bool = False, brief: bool = False) -> T:
        self.durable.append(durable)
        return await super().write(work, durable=durable, brief=brief)


async def test_that_a_known_session_is_open_outlives_a_loss_of_power(tmp_path: Path) -> None:
    """Once each time it is opened: else its row would say "clean" and not be read again. A new log is found without a row."""
    database = _Modes(tmp_path / "catalog.db")
    catalog = SqliteCatalog(database, Layout(tmp_path))
    new = log_row(Key("a", "s"), 0, 0, "open")
    for row in (replace(new, seq=0), new, replace(new, state="clean"), new, new, replace(new, state="clean")):
        await catalog.put(row)
    assert [False, False, False, True, False, False] == database.durable
    await catalog.close()
