"""`acpd migrate --to BACKEND`: everything from the configured backend to another, in the same folder."""

from __future__ import annotations

import os
from pathlib import Path

from acpd.cli import holding, output
from acpd.cli.call import Call
from acpd.cli.store import exists
from acpd.errors import ConfigError, StoreError
from acpd.stores import BACKENDS, MIGRATION, resolve


async def migrate(call: Call) -> None:
    """Done again after it was killed, it goes on. Raises ConfigError, SessionBusy, StoreError."""
    storage, target = call.config.storage, call.values.to
    if target not in BACKENDS:
        raise ConfigError(f"--to: unknown storage backend {target!r}", hint=f"it is one of {', '.join(BACKENDS)}")
    if storage.backend not in BACKENDS:
        raise ConfigError(f"the store is of {storage.backend!r}, which acpd cannot read", hint="--backend names another")
    if target == storage.backend:
        raise ConfigError(f"the store is {target} already", hint="[storage] backend, --backend")
    if not exists(call.config):
        call.out.say(f"there is no store in {storage.path} yet: nothing to migrate")
        return
    if (daemon := await holding.daemon_at(call.config)) is not None:  # it would go on with the old backend
        cause = f"its daemon runs, pid {daemon}"
        raise StoreError("migrate", f"the store {storage.path}", cause=cause, hint=holding.HINT, retryable=True)
    progress = output.Progress("copying sessions")
    migration = resolve(MIGRATION)(Path(storage.path), storage.backend, target, progress=progress.tell)
    keys = await migration.plan()
    if call.values.dry_run:
        call.out.say(f"would migrate {len(keys)} sessions of {storage.path} from {storage.backend} to {target}")
        return
    try:
        moved = await migration.run()
    finally:
        progress.end()
    logs = f"{moved.logs} logs, {moved.blobs} blobs, " if migration.moves_logs else f"{moved.logs} logs serve both; "
    call.out.say(f"in {target} now, and compared byte for byte: {logs}{moved.states} states")
    kept = ", ".join(os.path.join(storage.path, pattern) for pattern in migration.kept())
    call.out.say(f"kept as it was, until you remove it: {kept}")
    if migration.aside:
        call.out.say(f"what {target} had before is beside it, with .before-N behind its name: {', '.join(migration.aside)}")
    call.out.say(f"now say so in {call.paths.config_file}:")
    call.out.say(f'\n[storage]\nbackend = "{target}"')
