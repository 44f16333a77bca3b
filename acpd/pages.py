"""Pages of a listing, true to the logs: what somebody else did to one since its row was written is noticed."""

from __future__ import annotations

import contextlib

from acpd.errors import StoreError
from acpd.needs import Store
from acpd.storage.contract import After, Key, Row


async def page(
    store: Store,
    user: str | None,
    *,
    agent: str | None = None,
    cwd: str | None = None,
    after: After | None = None,
    limit: int = 100,
) -> tuple[list[Row], After | None]:
    """As Catalog.page, and where the next page begins, if there may be one. Rows of logs that changed are read again."""
    rows = await store.catalog.page(agent=agent, cwd=cwd, after=after, limit=limit)
    following = After(rows[-1].updatedAt, rows[-1].id) if len(rows) == limit else None
    fresh = await _changed(store, user, [row for row in rows if row.state == "clean"])
    if fresh:
        rows = [fresh.get(row.id, row) for row in rows]
        rows.sort(key=lambda row: (row.updatedAt, row.id), reverse=True)
    return rows, following


async def _changed(store: Store, user: str | None, rows: list[Row]) -> dict[str, Row]:
    """What logs of another size than their rows say now. A log that is gone may be on a disk that is: no word of it."""
    keys = [Key(row.agent, row.id, user) for row in rows]
    sizes = await store.journals.sizes(keys)
    suspects = [key for key, row, size in zip(keys, rows, sizes, strict=True) if size not in (None, row.size)]
    if not suspects:
        return {}
    held = await store.lease.held(suspects)  # whoever writes it now says so in the catalog
    found: dict[str, Row] = {}
    async for part in store.journals.rows([key for key in suspects if key not in held]):
        for key, row in part:
            if row is not None:
                found[key.session] = row
                with contextlib.suppress(StoreError):
                    await store.catalog.put(row)
    return found
