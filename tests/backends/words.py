"""A search index in memory, without logs and threads: documents in, ids of entries out."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from acpd.storage.contract import Row
from acpd.storage.hits import Batch, Document, Find, Hit
from acpd.storage.queries import Scope, parse
from acpd_backends import catalog, search
from acpd_backends.schema import STEPS
from acpd_backends.sqlite import execute, query


def at(second: int) -> str:
    return search.time_of(1_800_000_000_000 + second * 1000)


def document(text: str, number: int = 1, scope: Scope = "answer", paths: str = "", entry: str = "") -> Document:
    """`number`: its seq, and its second."""
    return Document(entry=entry or f"e{number}", seq=number, at=at(number), scope=scope, text=text, paths=paths)


class Words:
    """One index. Sessions are made when they are first named."""

    def __init__(self) -> None:
        self.db = sqlite3.connect(":memory:", isolation_level=None)
        self.db.executescript(" ".join(STEPS))

    def session(self, name: str, **fields: Any) -> None:
        catalog._put(self.db, replace(Row(id=name, agent="agent", cwd="/w", prompted=True, seq=99), **fields))

    def put(self, documents: Iterable[Document], session: str = "s") -> None:
        """Behind what is there of the session."""
        if search.place(self.db, session) is None:
            self.session(session)
        place = search.place(self.db, session) or 0
        batch = list(documents)
        until = max([place, *(each.seq for each in batch)])
        assert search.take(self.db, session, search.prepare(Batch(place, until, until, batch)))

    def texts(self, *texts: str) -> None:
        """One session with these, the first one the oldest."""
        self.put(document(text, number) for number, text in enumerate(texts, 1))

    def hits(self, text: str, **find: Any) -> Sequence[Hit]:
        return search.search(self.db, replace(Find(query=parse(text), each=0), **find), self.rows).hits

    def rows(self, numbers: Collection[int]) -> dict[int, Row]:
        return catalog._rows_of(self.db, numbers, None)

    def found(self, text: str, **find: Any) -> list[str]:
        """Ids of entries, in the order of the hits."""
        return [hit.entry for hit in self.hits(text, **find)]

    def check(self) -> None:
        """The index is whole."""
        execute(self.db, "INSERT INTO search(search) VALUES ('integrity-check')")

    def left(self) -> int:
        """Tokens and documents that are in it."""
        execute(self.db, "CREATE VIRTUAL TABLE IF NOT EXISTS temp.vocabulary USING fts5vocab('main', 'search', 'instance')")
        counts = [query(self.db, f"SELECT count(*) FROM {name}") for name in ("temp.vocabulary", "document", "document_text")]
        return sum(rows[0][0] for rows in counts)
