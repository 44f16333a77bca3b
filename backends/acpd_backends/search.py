"""The search index in a catalog's database: what is put into it, taken out, found. Every function is for its thread.

`document` has a row for each document, `document_text` what it says, and `search` (FTS5, which keeps no text) its tokens. FTS5
takes a row out only if it is told the very tokens that went in; they are made again from the text, so a change of their rules
(sqlite.RULES) empties the index.

A document's number rises with its time, 4 in a second, so that "the newest" is a walk along the index from its end, and a
time filter a range of it, in whatever order logs are read. Where a second has more, they take the places behind it. (More
places would cost more: each doubling adds 2 % of the text to the index.)

`session.number` is the short name of a session here, `searched` the seq up to which it was searched, `settled` where the next
batch begins. `searched` -1: what there is of it must go first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from acpd.storage.contract import Row
from acpd.storage.hits import Batch, Document, Find, Hit, Hits
from acpd.storage.queries import Query, Scope, Term
from acpd_backends import snippets, tokens
from acpd_backends.sqlite import RULES, execute, query, rules

if TYPE_CHECKING:
    from sqlite3 import Connection

NUMBERED: tuple[Scope, ...] = ("answer", "prompt", "thought", "tool")
"""By their number in `document`."""

SLOTS = 4
"""Numbers of a second."""
_YEAR_9999 = 253_370_764_800_000
"""Milliseconds; later ones are no dates in every zone."""
_SPILL = 86_400 * SLOTS
"""How far documents may be pushed behind their second and still be found by a filter of times."""

RANKED = 500
"""Newest matches that are ranked for `best`. Reading the texts of more costs more than 10 ms."""
CLOSER = 50
"""Those of them that are looked at closely."""
LOOKED_AT = 5_000
"""Matches that are walked through at most while one session's many hide the others'."""
REMOVED = 32
"""Documents that are taken out in one transaction, so that others need not wait for a long session's."""

_SEARCHED = "UPDATE session SET searched = ?2, settled = ?3, late = (?2 < 0 OR prompted AND ?2 < seq) WHERE id = ?1"
_PUT = "INSERT INTO document(id, session, scope, seq, entry, at) VALUES (?1, ?2, ?3, ?4, ?5, ?6)"
_PUT_TEXT = "INSERT INTO document_text(id, text, paths) VALUES (?1, ?2, ?3)"
_TEXTS = "SELECT id, text, paths FROM document_text WHERE id IN "
_PUT_TOKENS = "INSERT INTO search(rowid, text, path) VALUES (?1, ?2, ?3)"
_TAKE_TOKENS = "INSERT INTO search(search, rowid, text, path) VALUES ('delete', ?1, ?2, ?3)"
_OF = "document.session IN (SELECT number FROM session WHERE number IS NOT NULL AND"
_UNWANTED = (
    "NOT (document.scope = {0} AND EXISTS (SELECT 1 FROM search AS other WHERE other.search MATCH {1}"
    " AND other.rowid = document.id))"
)
_MATCHING = (
    "SELECT document.id, document.session, scope, seq, entry, at"
    " FROM search CROSS JOIN document ON document.id = search.rowid"  # in this order, whatever the planner thinks
)


class Prepared(NamedTuple):
    """A batch with its tokens, made outside the transaction."""

    batch: Batch
    columns: Sequence[tuple[str, str]]


Terms = list[tuple[snippets.Wanted, Scope | None]]


class Match(NamedTuple):
    """A document that matched, not yet looked at."""

    id: int
    session: int
    scope: Scope
    seq: int
    entry: str
    at: int


# -- in and out


def prepare(batch: Batch) -> Prepared:
    """Costs about 50 us for 1 KB of text; needs no database."""
    return Prepared(batch, [_columns(each.text, each.paths) for each in batch.documents])


def _columns(text: str, paths: str) -> tuple[str, str]:
    return tokens.document(text), f" {tokens.BARRIER} ".join(map(tokens.document, paths.split("\n")))


def place(db: Connection, session_id: str) -> int | None:
    """Where the next batch begins; None: no such session. -1: `forget` first."""
    rows = query(db, "SELECT searched, settled FROM session WHERE id = ?1", session_id)
    return None if not rows else -1 if rows[0][0] < 0 else int(rows[0][1])


def take(db: Connection, session_id: str, prepared: Prepared) -> bool:
    """Whether the batch fits behind what is there, and so was taken."""
    batch = prepared.batch
    if place(db, session_id) != batch.after or not current(db):
        return False
    number = _number(db, session_id)
    _remove(db, query(db, "SELECT id FROM document WHERE session = ?1 AND seq > ?2", number, batch.after))
    newest = query(db, "SELECT id FROM document WHERE session = ?1 ORDER BY seq DESC LIMIT 1", number)
    last = newest[0][0] if newest else 0
    for document, columns in zip(batch.documents, prepared.columns, strict=True):
        last = _put(db, number, document, columns, last + 1)
    execute(db, _SEARCHED, session_id, batch.until, batch.settled)
    return True


def _number(db: Connection, session_id: str) -> int:
    number = query(db, "SELECT number FROM session WHERE id = ?1", session_id)[0][0]
    if number is None:
        # Counted on for ever: a number that was given again would make old documents that session's.
        number = int((query(db, "SELECT value FROM meta WHERE name = 'numbers'") or [("0",)])[0][0]) + 1
        execute(db, "INSERT OR REPLACE INTO meta VALUES ('numbers', ?1)", str(number))
        execute(db, "UPDATE session SET number = ?2 WHERE id = ?1", session_id, number)
    return int(number)


def _put(db: Connection, session: int, document: Document, columns: tuple[str, str], least: int) -> int:
    """The document's number: the first free one of its time, and behind its session's last."""
    at = milliseconds(document.at)
    number = _free(db, max(slot(at), least))
    execute(db, _PUT, number, session, NUMBERED.index(document.scope), document.seq, document.entry, at)
    execute(db, _PUT_TEXT, number, document.text, document.paths)
    execute(db, _PUT_TOKENS, number, *columns)
    return number


def _free(db: Connection, number: int) -> int:
    if not query(db, "SELECT 1 FROM document WHERE id = ?1", number):
        return number
    sql = (
        "SELECT id + 1 FROM document AS one WHERE id >= ?1"
        " AND NOT EXISTS (SELECT 1 FROM document WHERE id = one.id + 1) ORDER BY id LIMIT 1"
    )
    return int(query(db, sql, number)[0][0])


def forget(db: Connection, session_id: str, limit: int = REMOVED) -> bool:
    """Take out at most so many of the session's documents; whether none is left. Until then it is marked as one to forget."""
    sql = "SELECT document.id FROM session JOIN document ON document.session = number WHERE session.id = ?1 LIMIT ?2"
    rows = query(db, sql, session_id, limit + 1)
    _remove(db, rows[:limit])
    done = len(rows) <= limit
    searched = 0 if done else -1
    execute(db, _SEARCHED, session_id, searched, 0)
    return done


def _remove(db: Connection, rows: list[tuple[int]]) -> None:
    texts = _texts(db, [number for (number,) in rows])
    for number, (text, paths) in texts.items():
        execute(db, _TAKE_TOKENS, number, *_columns(text, paths))
        execute(db, "DELETE FROM document_text WHERE id = ?1", number)
        execute(db, "DELETE FROM document WHERE id = ?1", number)


def current(db: Connection) -> bool:
    """Whether the index was made by the rules of this version."""
    return rules(db) == RULES


def renew(db: Connection) -> None:
    """Empty an index that was made by other rules, or by none: everything is then read again."""
    if not current(db):
        empty(db)


def empty(db: Connection) -> None:
    """Every session is then behind, and read again."""
    execute(db, "INSERT INTO search(search) VALUES ('delete-all')")
    execute(db, "DELETE FROM document")
    execute(db, "DELETE FROM document_text")
    execute(db, "UPDATE session SET searched = 0, settled = 0, late = prompted WHERE searched <> 0")
    execute(db, "INSERT OR REPLACE INTO meta VALUES ('rules', ?1)", str(RULES))


# -- times


def milliseconds(text: str) -> int:
    """Since 1970; 0 for what is no time, or none that `time_of` can say."""
    from datetime import datetime

    try:
        at = int(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError):
        return 0
    return at if 0 <= at < _YEAR_9999 else 0


def time_of(at: int) -> str:
    """RFC 3339, UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at // 1000)) + f".{at % 1000:03}Z"


def slot(at: int) -> int:
    return max(at, 0) * SLOTS // 1000


# -- search


def expression(asked: Query) -> str:
    """FTS5's text of the query: quoted tokens and its own operators, nothing of the user's. Empty: nothing can match.

    Words that are unwanted in one scope only are a condition of their own.
    """
    wanted = [text for term in asked.wanted if (text := _term(term))]
    unwanted = [text for term in asked.unwanted if term.scope in {None, "path"} and (text := _term(term))]
    if not wanted:
        return ""
    found = " AND ".join(wanted)
    return f"({found}) NOT ({' OR '.join(unwanted)})" if unwanted else found


def _term(term: Term) -> str:
    chunks = [tokens.chunk(word) for word in term.words]
    split = " ".join(filter(None, (chunk.split for chunk in chunks))).split()
    if not split:
        return ""
    last = chunks[-1]
    star = term.prefix or last.open
    if last.open and len(split) > 1 and split[-2][1:] == split[-1]:
        split.pop()  # the last character of a run is in the pair before it already
        star = term.prefix
    texts = [f'"{" ".join(split)}"{"*" if star else ""}']
    if len(chunks) == 1 and last.whole:
        texts.append(f'"{last.whole}"{"*" if star else ""}')
    column = "path : " if term.scope == "path" else ""
    return f"{column}({' OR '.join(texts)})"


class _Pick:
    """The first `limit` that are worth showing: each entry once, not too many of one session."""

    def __init__(self, find: Find) -> None:
        self.found: list[Match] = []
        self.more = False
        self._limit, self._each = find.limit, find.each
        self._entries: set[tuple[str, int]] = set()
        self._counts: dict[int, int] = {}

    def add(self, found: Match) -> bool:
        """Whether it is shown."""
        if (found.entry, found.at) in self._entries:  # of a fork and of its source
            return False
        count = self._counts.get(found.session, 0)
        if len(self.found) >= self._limit or (self._each and count >= self._each):
            self.more = True
            return False
        self._entries.add((found.entry, found.at))
        self._counts[found.session] = count + 1
        self.found.append(found)
        return True


def search(db: Connection, find: Find, rows_of: Callable[[Collection[int]], Mapping[int, Row]]) -> Hits:
    """`rows_of`: the rows of sessions by their numbers. All of it is of one moment, whoever writes meanwhile."""
    execute(db, "BEGIN")
    try:
        return _search(db, find, rows_of)
    finally:
        execute(db, "COMMIT")


def _search(db: Connection, find: Find, rows_of: Callable[[Collection[int]], Mapping[int, Row]]) -> Hits:
    complete = current(db) and not query(db, "SELECT 1 FROM session WHERE late LIMIT 1")
    sql, values = _matching(find)
    if not sql:
        return Hits([], more=False, complete=complete)
    rows = (Match(row[0], row[1], NUMBERED[row[2]], *row[3:]) for row in execute(db, sql, *values))
    terms: Terms = [(snippets.wanted(term), term.scope) for term in find.query.wanted]
    pick = _Pick(find)
    looks: dict[int, snippets.Look] = {}
    if find.best:
        looks = _ranked(db, rows, terms, pick)
    else:
        for looked_at, found in enumerate(rows):
            pick.add(found)
            if (pick.more and len(pick.found) == find.limit) or looked_at == max(LOOKED_AT, find.limit):
                break
    sessions = rows_of({found.session for found in pick.found})
    texts = _texts(db, [found.id for found in pick.found if found.id not in looks])
    hits: list[Hit] = []
    for found in pick.found:
        row = sessions.get(found.session)
        if row is not None:  # a session that nobody knows any more
            hits.append(_hit(row, found, looks.get(found.id) or snippets.look(*texts[found.id], terms)))
    return Hits(hits, pick.more, complete)


def _ranked(db: Connection, rows: Iterator[Match], terms: Terms, pick: _Pick) -> dict[int, snippets.Look]:
    """Pick the best of the newest matches: the likely ones at a glance, those by a closer look."""
    matched = [found for _, found in zip(range(RANKED + 1), rows, strict=False)]
    texts = _texts(db, [found.id for found in matched[:RANKED]])
    likely = [(snippets.glance(texts[found.id][0], terms), found) for found in matched[:RANKED]]
    likely.sort(key=lambda pair: -pair[0])
    closer = [found for _, found in likely[:CLOSER]]
    looks = {found.id: snippets.look(*texts[found.id], terms) for found in closer}
    for found in sorted(closer, key=lambda found: (-looks[found.id].score, -found.id)):
        pick.add(found)
    for _, found in likely[CLOSER:]:
        pick.add(found)
    pick.more |= len(matched) > RANKED
    return looks


def _hit(row: Row, found: Match, looked: snippets.Look) -> Hit:
    scope: Scope = "path" if looked.path else found.scope
    at = time_of(found.at)
    return Hit(row=row, entry=found.entry, seq=found.seq, at=at, scope=scope, snippet=snippets.snippet(looked))


class _Where:
    """The conditions of a statement, whose values are parameters."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.values: list[object] = []

    def add(self, condition: str, *values: object) -> None:
        """`condition` has a place for each value: `{0}`, or `{all}` for a list of them."""
        places = [f"?{len(self.values) + number}" for number in range(1, len(values) + 1)]
        self.values.extend(values)
        self.texts.append(condition.format(*places, all=", ".join(places)))


def _matching(find: Find) -> tuple[str, list[object]]:
    """The statement that walks the matches, the newest first, and its values; empty: nothing can match."""
    text = expression(find.query)
    if not text:
        return "", []
    where = _Where()
    where.add("search MATCH {0}", text)
    _in_scopes(where, find.query)
    if find.since is not None:
        where.add("search.rowid >= {0} AND document.at >= {1}", slot(find.since), find.since)
    if find.until is not None:
        where.add("search.rowid <= {0} AND document.at < {1}", slot(find.until) + _SPILL, find.until)
    if find.agent is not None:
        where.add(f"{_OF} agent = {{0}})", find.agent)
    if find.folders:
        where.add(f"{_OF} cwd IN ({{all}}))", *find.folders)
    return f"{_MATCHING} WHERE {' AND '.join(where.texts)} ORDER BY search.rowid DESC", where.values


def _in_scopes(where: _Where, asked: Query) -> None:
    for term in asked.wanted:
        if term.scope not in {None, "path"}:
            where.add("document.scope = {0}", NUMBERED.index(term.scope))
    for term in asked.unwanted:
        if term.scope not in {None, "path"} and (text := _term(term)):
            where.add(_UNWANTED, NUMBERED.index(term.scope), text)


def _texts(db: Connection, documents: Sequence[int]) -> dict[int, tuple[str, str]]:
    """What they say, and their paths."""
    if not documents:
        return {}
    return {number: (text, paths) for number, text, paths in query(db, f"{_TEXTS}{listed(documents)}")}


def listed(numbers: Collection[int]) -> str:
    return f"({', '.join(map(str, numbers))})"
