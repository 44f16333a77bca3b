"""The store as a reader sees it: no lease, nothing started, and no folder made where there is none."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from acpd.cli import output
from acpd.config import Config
from acpd.errors import SessionNotFound, StoreError
from acpd.needs import Store
from acpd.storage.contract import Key, Row
from acpd.stores import open_store


def exists(config: Config) -> bool:
    return os.path.exists(config.storage.path)


@asynccontextmanager
async def opened(config: Config, *, recover: bool = True, catalog: bool = True) -> AsyncGenerator[Store, None]:
    """The configured store, its catalog up to date, or (`recover` False) as it lies there, or an empty one (`catalog` False).

    Where the catalog cannot be used (a full disk, a disk that may only be read) one in memory takes its place. Raises
    StoreError.
    """
    store = open_store(config, catalog_in_memory=not catalog)
    behind = await _bring_up_to_date(store, recover=recover)
    if behind is not None:
        await close(store)
        store = open_store(config, catalog_in_memory=True)
    try:
        if behind is not None:
            await store.catalog.recover(store.journals)
        yield store
        if behind is not None:  # only now: a command that failed has said its own line
            output.complain(f"all logs were read instead of the catalog: {behind}")
    finally:
        await close(store)


async def close(store: Store) -> None:
    await store.journals.close()
    try:
        await store.catalog.close()
    except StoreError as error:  # a list for other tools is behind: no reason to fail
        output.complain(error)
    await store.session.close()


async def _bring_up_to_date(store: Store, *, recover: bool) -> StoreError | None:
    """The error, where the catalog cannot be read or written."""
    progress = output.Progress("reading logs")
    try:
        if recover:
            await store.catalog.recover(store.journals, progress.tell)
        else:
            await store.catalog.get("")
    except StoreError as error:
        return error
    finally:
        progress.end()
    return None


async def resolve(store: Store, prefix: str, user: str | None) -> Key:
    """The session whose id is this or begins with it.

    Raises SessionNotFound, or StoreError if several begin so.
    """
    row = await store.catalog.get(prefix) if prefix else None
    if row is None:
        rows = await store.catalog.find(prefix, limit=6) if prefix else []
        if not rows:
            raise SessionNotFound(prefix)
        if len(rows) > 1:
            raise StoreError("tell which session is", prefix, cause=_ambiguous(rows), hint="give more of the id")
        row = rows[0]
    return Key(row.agent, row.id, user)


def _ambiguous(rows: list[Row]) -> str:
    shown = ", ".join(row.id for row in rows[:5])
    return f"{shown} begin so" if len(rows) <= 5 else f"{shown} and more begin so"
