"""The catalog in SQLite: one row a session, listings by key and not by offset, so that each page costs the same."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Container, Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from acpd.storage.contract import After, Journals, Key, Lease, Row, SearchCatalog
from acpd_backends.index import LIMIT, SessionsJson
from acpd_backends.names import Layout
from acpd_backends.pieces import in_pieces
from acpd_backends.sqlite import RULES, Database, execute, query, rules

if TYPE_CHECKING:
    from sqlite3 import Connection

    from acpd.storage.hits import Batch, Find, Hits
    from acpd.storage.upkeep import Found
    from acpd_backends.search import Prepared

COLUMNS = (
    "id", "agent", "cwd", "title", "createdAt", "updatedAt", "messages", "prompted", "seq", "size", "leaf", "inner",
    "parent", "dirs", "state",
)  # fmt: skip
_KEPT = ("id", "agent", "cwd", "prompted", "inner")
"""Hardly ever changed by a turn. SQLite writes the indexes of all columns that a statement names, whatever their values."""
_NAMES = ", ".join(f'"{name}"' for name in COLUMNS)
_PLACE = {name: f"?{i}" for i, name in enumerate(COLUMNS, 1)}
_OTHER = f"(searched > {_PLACE['seq']} OR (searched > 0 AND seq = {_PLACE['seq']} AND size <> {_PLACE['size']}))"
"""A log that became shorter, or another size without another line, is another one: a copy of it, or an edited one."""
_LATE = f"(searched < 0 OR {_PLACE['prompted']} AND searched < {_PLACE['seq']})"
_AGAIN = f"searched = iif({_OTHER}, -1, searched), late = ({_OTHER} OR {_LATE})"
_SET = ", ".join(f"{name} = {_PLACE[name]}" for name in COLUMNS if name not in _KEPT)
_SAME = " AND ".join(f'"{name}" IS {_PLACE[name]}' for name in _KEPT)
_ALL = ", ".join(f'"{name}" = {_PLACE[name]}' for name in COLUMNS[1:]) + f", {_AGAIN}"
_NEW = f"{', '.join(_PLACE.values())}, {_PLACE['updatedAt']}, {_PLACE['prompted']} AND {_PLACE['seq']} > 0"
_PUT = (
    f"UPDATE session SET {_SET} WHERE {_SAME} AND late = {_LATE} AND NOT {_OTHER}",  # noqa: S608 - names of columns only
    f"UPDATE session SET {_SET}, {_AGAIN} WHERE {_SAME}",  # noqa: S608
    f"INSERT INTO session({_NAMES}, listed, late) VALUES ({_NEW}) ON CONFLICT(id) DO UPDATE SET {_ALL}",  # noqa: S608
)
"""The first one that finds the row: from what touches the fewest indexes to what always works."""
_SETTLE = "UPDATE session SET listed = updatedAt WHERE listed <> updatedAt"
RECENT = 128
"""Sessions that stand in the index `recent` by one process at most; then they go to their places in the others, all at once,
which takes 50 to 100 us each. So an update is cheap while no more sessions than that are updated again and again. A page of a
listing looks at all of them: 0.3 ms.
"""
_SELECT = f"SELECT {_NAMES}, max(searched, 0) FROM session "  # noqa: S608 - names of columns only
_NUMBERED = f"SELECT {_NAMES}, max(searched, 0), number FROM session "  # noqa: S608
_MOVED = "INDEXED BY recent WHERE listed <> updatedAt AND prompted"
_NEWEST = "ORDER BY updatedAt DESC, id DESC LIMIT "
PIECE = 1000
"""Ids that are read in one go: a millisecond."""
_AGENTS = (
    "WITH RECURSIVE each(agent) AS (SELECT min(agent) FROM session WHERE prompted UNION ALL"
    " SELECT (SELECT min(agent) FROM session WHERE prompted AND agent > each.agent) FROM each WHERE agent IS NOT NULL)"
    " SELECT agent FROM each WHERE agent IS NOT NULL"
)
"""From one agent to the next in the index `by_agent`: DISTINCT would walk along all sessions."""
_UNCLEAN = "WHERE state <> 'clean'"
_IDS = "SELECT id FROM session WHERE id > ?1 ORDER BY id LIMIT ?2"
_BOOT = "SELECT value FROM meta WHERE name = 'boot'"
"""In which run of the machine the rows were last compared with the logs' names."""
_COMPLETE = "SELECT 1 FROM meta WHERE name = 'complete'"
_PLACE_OF = "SELECT searched, settled FROM session WHERE id = ?1"
Progress = Callable[[int, int], None]


class SqliteCatalog(SearchCatalog):
    """The catalog of one user. `lease`: recovery asks it whether an "open" row is really open elsewhere.

    `layout` says where `sessions.json` goes, if it `writes_lists`. The database is closed with the catalog; where others use
    it: `shared()`.
    """

    def __init__(
        self,
        database: Database,
        layout: Layout,
        *,
        user: str | None = None,
        lease: Lease | None = None,
        writes_lists: bool = True,
    ) -> None:
        self._database = database
        self._reader = database.another()
        self._user = user
        self._lease = lease
        self._index = SessionsJson(layout, user, self._newest if writes_lists else None)
        self._marked: set[str] = set()
        """Sessions whose rows say "open" by a word of this process."""
        self._moved: set[str] = set()
        """Sessions whose rows this process has put since those in `recent` went to their places."""
        self._settled = False
        """Whether they ever did: some may be left of an earlier process."""

    async def put(self, row: Row, /) -> None:
        """Raises StoreError. Cancelling gives up the answer, not the writing.

        That a known session is open, or being deleted, outlives a loss of power, or its row would not be read again. A log
        without a row is found without that.
        """
        settle = self._moves(row)
        await self._database.write(lambda db: _put(db, row, settle=settle), durable=self._opens(row), brief=not settle)
        self._written(row)

    def _moves(self, row: Row) -> bool:
        """Whether the rows that have moved go to their places with this one. A new row is at its place and need not wait."""
        if row.seq == 0:
            return False
        self._moved.add(row.id)
        if self._settled and len(self._moved) < RECENT:
            return False
        self._settled = True
        self._moved.clear()
        return True

    def _opens(self, row: Row) -> bool:
        """Whether this says of a known session, for the first time, that it is open, or that it is being deleted."""
        return row.state == "deleting" or (row.state == "open" and row.seq > 0 and row.id not in self._marked)

    def _written(self, row: Row) -> None:
        (self._marked.add if row.state == "open" else self._marked.discard)(row.id)
        self._index.changed(row)

    async def get(self, session_id: str, /) -> Row | None:
        rows = await self._rows("WHERE id = ?1", session_id)
        return rows[0] if rows else None

    async def find(self, prefix: str, /, limit: int = 2) -> list[Row]:
        # No text has the byte FF, so that this is the end of all that starts with the prefix.
        end = prefix.encode("utf-8", "surrogatepass") + b"\xff"
        where = f"WHERE id >= ?1 AND id < CAST(?2 AS TEXT) {_NEWEST} ?3"
        return await self._rows(where, prefix, end, limit)

    async def page(
        self, /, *, agent: str | None = None, cwd: str | None = None, after: After | None = None, limit: int = 100
    ) -> list[Row]:
        return await self._database.read(lambda db: _page(db, self._user, agent, cwd, after, limit))

    async def delete(self, session_id: str, /) -> None:
        """A long session's documents go in several transactions, the last ones with its row."""
        while not await self._database.write(lambda db: _forget(db, session_id)):
            continue
        for (agent,) in await self._database.write(lambda db: _delete(db, session_id)):
            self._index.removed(agent, session_id)
        self._marked.discard(session_id)

    async def place(self, session_id: str, /) -> int | None:
        found = await self._database.read(lambda db: query(db, _PLACE_OF, session_id))
        if not found or found[0][0] >= 0:
            return found[0][1] if found else None
        while not await self._database.write(lambda db: _forget(db, session_id)):
            continue
        return 0

    async def index(self, session_id: str, batch: Batch, /, row: Row | None = None) -> bool:
        """Raises StoreError. The tokens are made before the transaction, in a thread."""
        prepared = await asyncio.to_thread(_prepared, batch)
        durable = row is not None and self._opens(row)
        settle = row is not None and self._moves(row)
        taken = await self._database.write(lambda db: _take(db, session_id, prepared, row, settle=settle), durable=durable)
        if row is not None:
            self._written(row)
        return taken

    async def behind(self, /, *, after: After | None = None, limit: int = 100) -> list[Row]:
        later, values = ("", ()) if after is None else ("AND id < ?1", (after.id,))
        return await self._rows(f"WHERE late {later} ORDER BY id DESC LIMIT {limit:d}", *values)

    async def agents(self) -> list[str]:
        return [agent for (agent,) in await self._database.read(lambda db: query(db, _AGENTS))]

    async def opened(self) -> list[Row]:
        return [row for row in await self._rows(_UNCLEAN) if row.state == "open"]

    async def search(self, find: Find, /) -> Hits:
        return await self._reader.read(lambda db: _search(db, find, self._user))

    async def known_inner(self, agent: str, ids: Sequence[str], /) -> set[str]:
        sql = 'SELECT 1 FROM session WHERE agent = ?1 AND "inner" = ?2'
        return await self._database.read(lambda db: {each for each in ids if each and query(db, sql, agent, each)})

    async def unprompted(self, before: str, /) -> list[Row]:
        return await self._rows("WHERE NOT prompted AND state = 'clean' AND updatedAt < ?1 LIMIT 1000", before)

    async def recover(self, journals: Journals, progress: Progress | None = None, /) -> int:
        """Rows of sessions that another process has open stay "open"; a row whose log is gone goes; one whose log
        cannot be read stays as it is. A full scan that was interrupted starts again the next time.
        """
        if not await self._is_complete():
            return await self._make_anew(journals, progress)
        count = await self._reread_unclean(journals)
        return count + await self._compare(journals, progress)

    async def mend(self, journals: Journals, progress: Progress | None = None, /) -> int:
        """As `recover`, without the names of the logs: those of 100,000 sessions take half a second.

        Unless the machine was down since they were compared: then the rows of new sessions may be lost.
        """
        if not await self._is_complete():
            return await self._make_anew(journals, progress)
        count = await self._reread_unclean(journals)
        boot = await asyncio.to_thread(_boot)
        if not boot or await self._database.read(lambda db: query(db, _BOOT)) != [(boot,)]:
            count += await self._compare(journals, progress)
            await self._remember(boot=boot)
        return count

    async def compare(self, journals: Journals, /, *, rest: float = 0) -> int:
        return await self._compare(journals, rest=rest)

    async def _is_complete(self) -> bool:
        if await self._database.read(rules) != RULES:
            await self._database.write(_renew)
        return await self._database.read(lambda db: bool(query(db, _COMPLETE)))

    async def _make_anew(self, journals: Journals, progress: Progress | None) -> int:
        await journals.sweep(self._user)
        count = await self._reread(journals, [key async for key in journals.scan(self._user)], progress)
        await self._remember(complete="1", boot=await asyncio.to_thread(_boot))
        return count

    async def _remember(self, **values: str) -> None:
        def work(db: Connection) -> None:
            for name, value in values.items():
                execute(db, "INSERT OR REPLACE INTO meta VALUES (?1, ?2)", name, value)

        await self._database.write(work)

    async def _reread_unclean(self, journals: Journals) -> int:
        rows = await self._rows(_UNCLEAN)
        deleting = {row.id for row in rows if row.state == "deleting"}
        return await self._reread(journals, [Key(row.agent, row.id, self._user) for row in rows], deleting=deleting)

    async def _compare(self, journals: Journals, progress: Progress | None = None, *, rest: float = 0) -> int:
        """Logs without a row, and rows without a log, are told by the logs' names, which costs little."""
        logs = await journals.sweep(self._user, rest=rest)
        has_logs, lost = bool(logs), []
        async for piece in in_pieces(self._ids_in_pieces(), rest):
            lost += [each for each in piece if each not in logs]
            logs.difference_update(piece)
        if lost and has_logs:  # removed with other means; if there are none at all, their disk may not be there
            rows = [row for row in [await self.get(each) for each in lost] if row is not None]
            gone = [Key(row.agent, row.id, self._user) for row in rows]
            held = await self._held(gone)  # among them those that were made meanwhile
            await self._reread(journals, [key for key in gone if key not in held])
        return await self._reread(journals, await self._without_row(journals, logs), progress) if logs else 0

    def _ids_in_pieces(self) -> Callable[[], Awaitable[list[str] | None]]:
        """Gives the ids of all rows, some at each call, and then None."""
        last = ""

        async def piece() -> list[str] | None:
            nonlocal last
            found = [row[0] for row in await self._database.read(lambda db: query(db, _IDS, last, PIECE))]
            last = found[-1] if found else last
            return found or None

        return piece

    async def faults(self) -> list[Found]:
        from acpd.storage.upkeep import Found

        path = str(self._database.path)
        if said := await self._database.read(_page_fault):
            return [Found(kind="catalog" if self._database.rebuildable else "database", path=path, detail=said)]
        said = await self._database.write(_index_fault)
        return [Found(kind="search-index", path=path, detail=said)] if said else []

    async def renew(self) -> None:
        """Whatever is wrong. A file with damaged pages that is no cache stays as it is."""
        if not await self._database.read(_page_fault):
            await self._database.write(_empty)
        elif self._database.rebuildable:
            await self._database.give_up()

    async def _without_row(self, journals: Journals, sessions: set[str]) -> list[Key]:
        """Logs that were put back, or whose maker was killed; not those whose maker is about to put the row."""
        found = [key async for key in journals.scan(self._user) if key.session in sessions]
        held = await self._held(found)
        return [key for key in found if key not in held]

    async def _held(self, keys: Sequence[Key]) -> set[Key]:
        return await self._lease.held(keys) if self._lease else set()

    async def close(self) -> None:
        try:
            await self._index.close()
        finally:
            await self._reader.close()
            await self._database.close()

    async def _rows(self, where: str, *values: object) -> list[Row]:
        return await self._database.read(
            lambda db: [_row(values, self._user) for values in query(db, _SELECT + where, *values)]
        )

    def _newest(self, agent: str | None) -> list[Row]:
        """For the thread of `sessions.json`."""
        return self._database.read_from_thread(lambda db: _page(db, self._user, agent, None, None, LIMIT))

    async def _reread(
        self,
        journals: Journals,
        keys: Sequence[Key],
        progress: Progress | None = None,
        *,
        deleting: Container[str] = (),
    ) -> int:
        """What cannot be read stays as the catalog knows it. Of a log that is gone nothing is removed, it may be put back; but
        where its session was being deleted the rest goes: whoever was killed in that may not have made it last.
        """
        held = await self._held(keys)
        count = done = 0
        async for part in journals.rows(keys):
            rows = [replace(row, state="open") if key in held else row for key, row in part if row is not None]
            gone = [key for key, row in part if row is None and key not in held]  # a holder is about to write it
            for key in gone:
                if key.session in deleting:
                    await journals.delete(key)
            await self._write(rows, gone)
            count += len(rows)
            done += len(part)
            if progress is not None:
                progress(done, len(keys))
        return count

    async def _write(self, rows: list[Row], gone: list[Key]) -> None:
        await self._database.write(lambda db: _put_newer(db, rows, [key.session for key in gone]))
        for row in rows:
            self._index.changed(row)
        for key in gone:
            self._index.removed(key.agent, key.session)


def _boot() -> str:
    """Names this run of the machine; "" where the system has no such name. Blocks."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""


def _page(db: Connection, user: str | None, agent: str | None, cwd: str | None, after: After | None, limit: int) -> list[Row]:
    """Of the sessions that stand at their places, and of those that have moved since. As of one moment, so that a session that
    moves meanwhile is in one of the two.
    """
    placed, moved, values = _page_sql(agent, cwd, after, limit)
    db.execute("BEGIN")
    try:
        elsewhere = query(db, moved, *values)
        rows = [_row(each, user) for each in query(db, placed, *values)]
    finally:
        if db.in_transaction:  # a disk that fails may have ended it
            db.execute("ROLLBACK")
    if elsewhere:
        rows += [_row(each, user) for each in elsewhere]
        rows.sort(key=lambda row: (row.updatedAt, row.id), reverse=True)
    return rows[:limit]


def _page_sql(agent: str | None, cwd: str | None, after: After | None, limit: int) -> tuple[str, str, list[object]]:
    """Both questions, and their values. Filters come first in their index, so that a page is one range of it."""
    where = also = ""
    values: list[object] = []
    for column, value in (("cwd", cwd), ("agent", agent)):
        if value is not None:
            values.append(value)
            # One index serves; the other filter is applied to what it finds.
            where += f" AND {column if len(values) == 1 else '+' + column} = ?{len(values)}"
            also += f" AND {column} = ?{len(values)}"
    if after is not None:
        at, identifier = len(values) + 1, len(values) + 2
        values += after
        where += f" AND (listed, id) < (?{at}, ?{identifier})"
        also += f" AND (updatedAt, id) < (?{at}, ?{identifier})"
    placed = f"{_SELECT}WHERE prompted AND listed = updatedAt{where} ORDER BY listed DESC, id DESC LIMIT {limit:d}"
    return placed, f"{_SELECT}{_MOVED}{also}", values


def _put(db: Connection, row: Row, *, settle: bool = False) -> None:
    values = _values(row)
    for sql in _PUT:
        if execute(db, sql, *values).rowcount:
            break
    if settle:
        execute(db, _SETTLE)


# Search. Its modules are imported by the thread that needs them: a start needs none of them.


def _prepared(batch: Batch) -> Prepared:
    from acpd_backends import search

    return search.prepare(batch)


def _take(db: Connection, session_id: str, prepared: Prepared, row: Row | None, *, settle: bool) -> bool:
    from acpd_backends import search

    if row is not None:
        _put(db, row, settle=settle)
    return search.take(db, session_id, prepared)


def _search(db: Connection, find: Find, user: str | None) -> Hits:
    from acpd_backends import search

    whole = bool(query(db, _COMPLETE))  # before: what is known later is found too
    return search.search(db, find, lambda numbers: _rows_of(db, numbers, user))._replace(whole=whole)


def _rows_of(db: Connection, numbers: Collection[int], user: str | None) -> dict[int, Row]:
    from acpd_backends import search

    found = query(db, f"{_NUMBERED}WHERE number IN {search.listed(numbers)} AND searched >= 0") if numbers else []
    return {number: _row(values, user) for *values, number in found}


def _renew(db: Connection) -> None:
    from acpd_backends import search

    search.renew(db)


def _empty(db: Connection) -> None:
    from acpd_backends import search

    search.empty(db)


def _page_fault(db: Connection) -> str:
    from acpd_backends import soundness

    return soundness.page_fault(db)


def _index_fault(db: Connection) -> str:
    from acpd_backends import soundness

    return soundness.index_fault(db)


def _forget(db: Connection, session_id: str) -> bool:
    from acpd_backends import search

    return search.forget(db, session_id)


def _delete(db: Connection, session_id: str) -> list[tuple[Any, ...]]:
    """The row and every document of it. What was deleted, by its agent."""
    while not _forget(db, session_id):
        continue
    return query(db, "DELETE FROM session WHERE id = ?1 RETURNING agent", session_id)


def _put_newer(db: Connection, rows: list[Row], gone: list[str]) -> None:
    """Write what the logs said, unless another process has meanwhile written something newer."""
    for row in rows:
        known = query(db, "SELECT seq FROM session WHERE id = ?1", row.id)
        if not known or known[0][0] <= row.seq:
            _put(db, row)
    execute(db, _SETTLE)
    for identifier in gone:
        _delete(db, identifier)


def _values(row: Row) -> tuple[object, ...]:
    return (
        row.id, row.agent, row.cwd, row.title, row.createdAt, row.updatedAt, row.messages, row.prompted, row.seq, row.size,
        row.leaf, row.inner, row.parent, _texts(row.dirs), row.state,
    )  # fmt: skip


def _row(values: Sequence[Any], user: str | None) -> Row:
    identifier, agent, cwd, title, created, updated, messages, prompted, seq, size, leaf, inner, parent, dirs, state, to = (
        values
    )
    return Row(
        id=identifier, agent=agent, user=user, cwd=cwd, title=title, createdAt=created, updatedAt=updated,
        messages=messages, prompted=bool(prompted), seq=seq, size=size, leaf=leaf, inner=inner, parent=parent,
        dirs=_from_texts(dirs), state=state, searched=to,
    )  # fmt: skip


def _texts(values: tuple[str, ...]) -> str:
    """As JSON in ASCII: lone surrogates too. Most sessions have none."""
    import json

    return json.dumps(values) if values else ""


def _from_texts(text: str) -> tuple[str, ...]:
    import json

    return tuple(json.loads(text)) if text else ()
