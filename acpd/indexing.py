"""Bringing the search index up to the logs: after a turn, in the background of a start, before `acpd search` answers.

A log is read from where its session is settled (acpd.storage.hits.Batch), in windows, without a lease; what it says goes
into the catalog in small transactions. Nobody waits for it, and whoever else does the same at the same time does no harm.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from acpd.errors import StoreError
from acpd.needs import Store
from acpd.storage.contract import After, Key, Row, SearchCatalog

if TYPE_CHECKING:
    from acpd.storage.documents import Documents, Part
    from acpd.storage.hits import Batch, Document

DOCUMENTS, TEXT = 32, 64 * 1024
"""Documents and characters from which on a batch is full: some milliseconds in one transaction."""
PAGE = 100
REST = 4
"""How many times as long as it worked the background rests."""


def searchable(store: Store) -> SearchCatalog:
    """The store's catalog. Raises StoreError if it cannot be searched."""
    if isinstance(store.catalog, SearchCatalog):
        return store.catalog
    raise StoreError("search", "the sessions", cause="the catalog of this store has no search", hint="see [storage] backend")


async def catch_up(store: Store, key: Key, row: Row | None = None, *, windows: int = 0, rest: float = 0) -> bool:
    """Make what the log says searchable. Whether `row` was put with it; it is not where the log says nothing new.

    `windows`: read so many at most (0: all). `rest`: after each, and at the end, so many times as long as it took.
    Raises StoreError. Cancelled, it goes on at the same place the next time.
    """
    if not isinstance(store.catalog, SearchCatalog):
        return False
    after = await store.catalog.place(key.session)
    if after is None:
        return False
    documents = await asyncio.to_thread(_documents, after)
    filling = _Filling(after)
    count = 0
    started = time.monotonic()
    async for window in store.journals.read(key, after=after):
        for part in await asyncio.to_thread(documents.feed, window):
            full = filling.add(part)
            if full is not None and not await store.catalog.index(key.session, full):
                return False
        count += 1
        if count == windows:
            break
        if rest:
            await asyncio.sleep(rest * (time.monotonic() - started))
            started = time.monotonic()
    if documents.seen == after:
        return False
    last = await asyncio.to_thread(filling.last, documents)
    await store.catalog.index(key.session, last, row)
    await asyncio.sleep(rest * (time.monotonic() - started))
    return row is not None


def _documents(after: int) -> Documents:
    from acpd.storage.documents import Documents  # after the first turn, not at the start

    return Documents(after)


class _Filling:
    """The batch that is being filled with parts."""

    __slots__ = ("_after", "_documents", "_settled", "_size")

    def __init__(self, after: int) -> None:
        self._after = self._settled = after
        self._documents: list[Document] = []
        self._size = 0

    def add(self, part: Part) -> Batch | None:
        """The batch before this part, if it is full."""
        full = None
        if len(self._documents) >= DOCUMENTS or self._size >= TEXT:
            full = self._take(self._settled, self._settled)
        self._settled = part.settled
        self._documents += part.documents
        self._size += sum(len(each.text) + len(each.paths) for each in part.documents)
        return full

    def last(self, documents: Documents) -> Batch:
        """With what the turn that is not over has so far."""
        self._documents += documents.rest()
        return self._take(documents.seen, documents.settled)

    def _take(self, until: int, settled: int) -> Batch:
        from acpd.storage.hits import Batch

        batch = Batch(self._after, until, settled, self._documents)
        self._after, self._documents, self._size = settled, [], 0
        return batch


async def catch_up_all(store: Store, user: str | None, told: Callable[[int], None] = lambda _: None, *, gently: bool) -> None:
    """Every session that is behind, the newest first. A log that cannot be read stays behind.

    Raises StoreError where the catalog cannot be read or written: then no other log is worth the reading.
    `told(n)`: n are done. `gently`: a fifth of the time, so that who is waited for finds the machine free.
    """
    if not isinstance(store.catalog, SearchCatalog):
        return
    done = 0
    after: After | None = None
    while page := await store.catalog.behind(after=after, limit=PAGE):
        for row in page:
            try:
                await catch_up(store, Key(row.agent, row.id, user), rest=REST if gently else 0)
            except StoreError as error:
                if error.operation == "write":  # the catalog: of a log nothing is written here
                    raise
            done += 1
            told(done)
        after = After(page[-1].updatedAt, page[-1].id)
