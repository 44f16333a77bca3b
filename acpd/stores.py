"""From the configured name to an opened store. Backends are resolved by name, never imported by acpd's own modules."""

from __future__ import annotations

import importlib
import os
from functools import partial
from pathlib import Path
from typing import Any

from acpd.config import Config
from acpd.errors import AcpdError, ConfigError, StoreError
from acpd.needs import Store
from acpd.storage.contract import Backend

GROUP = "acpd.backends"
"""Entry points of third parties: name -> function(root: Path, *, user, sync) -> Backend."""
BACKENDS = ("workspace", "json", "sqlite")
_STORES = "acpd_backends.stores:open_store"
MIGRATION = "acpd_backends.migration:Migration"


def resolve(name: str) -> Any:
    """The object named `module:attribute`."""
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


def open_store(config: Config, *, catalog_in_memory: bool = False) -> Store:
    """The configured store: one of the built-in ones, or what a third party brings over the parts of "workspace".

    `catalog_in_memory`: a built-in catalog reads all logs, and writes nothing. Raises ConfigError for an unknown backend,
    StoreError. Blocks.
    """
    storage = config.storage
    if os.path.exists(storage.path) and not os.path.isdir(storage.path):
        where = config.sources.get("storage.path", "default")
        raise StoreError(
            "open", f"the store {storage.path}", cause="it is no folder", hint=f"{where}: [storage] path names a folder"
        )
    made = partial(resolve(_STORES), root=Path(storage.path), user=config.user, sync=storage.sync)
    if catalog_in_memory:
        made = partial(made, catalog_in_memory=True)
    if storage.backend in BACKENDS:
        return _whole(made(storage.backend))
    from importlib.metadata import entry_points  # 46 ms

    found = entry_points(group=GROUP, name=storage.backend)
    if not found:
        known = ", ".join((*BACKENDS, *entry_points(group=GROUP).names))
        where = config.sources.get("storage.backend", "default")
        raise ConfigError(f"{where}: unknown storage backend {storage.backend!r}", hint=f"[storage] backend is one of {known}")
    own = _third(next(iter(found)), config)
    other: Backend = made("workspace")
    parts = own.journals or other.journals, own.catalog or other.catalog, own.lease or other.lease, own.memory or other.memory
    return _whole(Backend(own.session, *parts))


def _third(entry: Any, config: Config) -> Backend:
    """What the code behind this entry point opens. Raises ConfigError for one that cannot be used, StoreError as it comes."""
    hint = f"{entry.value} comes with the package that brings this backend: repair or remove that, or choose another backend"
    try:
        made = entry.load()(Path(config.storage.path), user=config.user, sync=config.storage.sync)
    except AcpdError:
        raise
    except Exception as error:
        raise ConfigError(f"storage backend {entry.name!r} cannot be used: {error!r}", hint=hint) from error
    if not isinstance(made, Backend):
        raise ConfigError(f"storage backend {entry.name!r} opened a {type(made).__name__}, not a Backend", hint=hint)
    return made


def _whole(backend: Backend) -> Store:
    if backend.journals is None or backend.catalog is None or backend.lease is None:
        raise StoreError("open", "the store", cause="its backend brings no journals, catalog or lease")
    return Store(backend.session, backend.journals, backend.catalog, backend.lease, backend.memory)
