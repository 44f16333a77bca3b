"""The built-in stores, put together: names to classes. The daemon resolves `acpd_backends.stores:open_store` by this text."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from acpd.errors import ConfigError
from acpd.storage.contract import Backend, Session
from acpd_backends.catalog import SqliteCatalog
from acpd_backends.files import FILES, Files
from acpd_backends.jsonl import JsonlJournals
from acpd_backends.leases import FlockLease
from acpd_backends.ledgers import FileMemory
from acpd_backends.names import Layout
from acpd_backends.sqlite import Database
from acpd_backends.states import JsonSession, SqliteSession, WorkspaceSession

NAMES = ("workspace", "json", "sqlite")


def catalog_file(layout: Layout) -> str:
    """Of the catalog of these logs: both layouts may have logs in one folder."""
    return "catalog.db" if layout.per_agent else "catalog-json.db"


Sync = Literal["power", "process"]


def open_store(
    name: str,
    root: Path,
    *,
    user: str | None = None,
    sync: Sync = "power",
    files: Files = FILES,
    catalog_in_memory: bool = False,
) -> Backend:
    """One store with all its five parts. Nothing is read, made or started before the first call.

    `catalog_in_memory`: it is made of the logs and forgotten, for a disk that cannot be written.

    `user`: whose sessions the catalog lists. `sync`: whether what was acknowledged outlives a power loss ("power") or
    the process only ("process"). To close: the journals, whose last words the catalog is told, then the catalog, which
    writes `sessions.json`, then the states. Raises ConfigError for an unknown name.
    """
    if name not in NAMES:
        raise ConfigError(f"unknown storage backend {name!r}", hint=f"[storage] backend is one of {', '.join(NAMES)}")
    durable = sync == "power"
    layout = Layout(root, per_agent=name != "json")
    lease = FlockLease(layout, files=files)
    session: Session
    if name == "sqlite":
        session = states = SqliteSession(root, sync=durable, files=files)
        catalog = SqliteCatalog(states.database(user).shared(), layout, user=user, lease=lease)
    else:
        session = (WorkspaceSession if layout.per_agent else JsonSession)(root, sync=durable, files=files)
        database = Database(layout.private(user) / catalog_file(layout), sync=durable, files=files)
        catalog = SqliteCatalog(database, layout, user=user, lease=lease)
    if catalog_in_memory:
        catalog = SqliteCatalog(Database(root, memory=True), layout, user=user, lease=lease, writes_lists=False)
    memory = FileMemory(layout, sync=durable, files=files)
    return Backend(session, JsonlJournals(layout, sync=durable, files=files), catalog, lease, memory)
