"""`acpd rm ID...` and `acpd gc`: removing sessions, and what nobody needs."""

from __future__ import annotations

import contextlib
import time

from acpd.care import Old, garbage, older_than, remove_garbage, remove_old, take_and_remove
from acpd.cli import holding, output
from acpd.cli.call import Call
from acpd.cli.store import exists, opened, resolve
from acpd.errors import AcpdError, SessionBusy, SessionNotFound
from acpd.needs import Store
from acpd.storage.contract import Key, Row
from acpd.storage.upkeep import Found

FAILED = 1


async def rm(call: Call) -> int:
    """Remove these sessions, all of them or, if one of them is not found, none. On a terminal the person is asked.

    One that is in use in the daemon goes only if somebody has said yes.
    """
    ids: list[str] = call.values.ids
    if not exists(call.config):
        raise SessionNotFound(ids[0])
    async with opened(call.config) as store:
        chosen = {
            key: await store.catalog.get(key.session) for key in [await resolve(store, name, call.config.user) for name in ids]
        }
        sure: bool = call.values.yes
        if not sure and output.can_ask():
            sure = output.ask(_question(list(chosen.values()), await _uses(call)))
            if not sure:
                output.note("nothing was removed")
                return FAILED
        failed = 0
        for key, row in chosen.items():
            try:
                await _remove(call, store, key, row, sure=sure)
            except AcpdError as error:
                output.complain(error)
                failed = FAILED
            else:
                call.out.say(f"removed {key.session}")
        return failed


async def _remove(call: Call, store: Store, key: Key, row: Row | None, *, sure: bool) -> None:
    """`sure`: also if it is in use in the daemon. Raises AcpdError."""
    try:
        await take_and_remove(store, key, row)
    except SessionBusy as error:
        if not sure:
            await holding.check_unused(call, store, error, hint="--yes removes it all the same")
        await holding.through(call, store, error, "session/delete")


async def _uses(call: Call) -> dict[str, str]:
    """What goes on in the sessions that the daemon has open."""
    with contextlib.suppress(AcpdError, OSError):  # none runs; or it does not say, then it does not remove either
        return {name: holding.use(session) for name, session in (await holding.sessions(call)).items()}
    return {}


def _question(rows: list[Row | None], uses: dict[str, str]) -> str:
    known = [row for row in rows if row is not None]
    known.sort(key=lambda row: not uses.get(row.id))
    named = [
        row.id + (f" ({row.title})" if row.title else "") + (f" [{uses[row.id]}]" if uses.get(row.id) else "") for row in known
    ]
    more = f" and {len(named) - 3} more" if len(named) > 3 else ""
    return f"remove {', '.join(named[:3])}{more} for good?"


class Sweeping:
    """One run of `gc`: what went, or would go."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.dry: bool = call.values.dry_run
        self.freed = 0
        self.removed: list[dict[str, object]] = []
        self.skipped: list[dict[str, object]] = []
        self.gone: set[str] = set()

    def file(self, found: Found, session: str | None) -> None:
        self._one({"kind": found.kind, "session": session, "path": found.path, "bytes": found.bytes})
        self._say(f"{found.kind} {found.path}, {found.bytes:,} bytes")

    def session(self, old: Old) -> None:
        self.gone.add(old.key.session)
        row = old.row
        self._one({"kind": "session", "session": row.id, "title": row.title, "updatedAt": row.updatedAt, "bytes": old.bytes})
        title = f" ({output.one_line(row.title, 60)})" if row.title else ""
        self._say(f"session {row.id}{title}, last used {row.updatedAt}, {old.bytes:,} bytes")

    def _one(self, one: dict[str, object]) -> None:
        self.removed.append(one)
        self.freed += int(str(one["bytes"]))

    def _say(self, text: str) -> None:
        if not self.call.values.json:
            self.call.out.say(f"{'would remove' if self.dry else 'removed'} {text}")

    def busy(self, session: str, pid: int | None) -> None:
        if any(one["session"] == session for one in self.skipped):
            return
        self.skipped.append({"session": session, "pid": pid})
        if not self.call.values.json:
            self.call.out.say(f"skipped session {session}: open in {f'pid {pid}' if pid else 'another process'}")

    def end(self) -> None:
        if self.call.values.json:
            self.call.out.json({"dryRun": self.dry, "freed": self.freed, "removed": self.removed, "skipped": self.skipped})
        else:
            self.call.out.say(f"{'would free' if self.dry else 'freed'} {self.freed:,} bytes")


async def gc(call: Call) -> int:
    """Garbage always; sessions only with `--older-than`, by the last event in the log; what was put aside with `--aside`."""
    sweeping = Sweeping(call)
    if exists(call.config):
        async with opened(call.config, recover=False) as store:
            await _files(store, sweeping)
            if not sweeping.dry or call.values.older_than:  # a catalog that is behind would miss some
                await store.catalog.recover(store.journals)
            if call.values.older_than:
                await _sessions(store, sweeping, before(call.values.older_than))
            async for key in store.journals.scan(call.config.user):
                if key.session not in sweeping.gone:
                    await _blobs(store, sweeping, key)
    sweeping.end()
    return 0


def before(age: int) -> str:
    """The time so many seconds ago, as logs have it."""
    return time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(max(0, time.time() - age)))


async def _files(store: Store, sweeping: Sweeping) -> None:
    """Half-written files of dead processes and, if wanted, what was put aside."""
    upkeep = store.journals.upkeep
    if upkeep is None:
        return
    wanted = {"temp", "kept"} if sweeping.call.values.aside else {"temp"}
    found = [each for each in await upkeep.left(sweeping.call.config.user) if each.kind in wanted]
    if not sweeping.dry:
        await upkeep.remove(found)
    for each in found:
        sweeping.file(each, None)


async def _sessions(store: Store, sweeping: Sweeping, before: str) -> None:
    async for old in older_than(store, before):
        pid = await store.lease.holder(old.key)
        if pid is not None:
            sweeping.busy(old.key.session, pid)
        elif sweeping.dry:
            sweeping.session(old)
        else:
            try:
                if await remove_old(store, old, before):
                    sweeping.session(old)
            except SessionBusy as error:
                sweeping.busy(old.key.session, error.pid)


async def _blobs(store: Store, sweeping: Sweeping, key: Key) -> None:
    try:
        pid = await store.lease.holder(key)
        if pid is not None:  # its newest blobs are named by a line that is still to come
            sweeping.busy(key.session, pid)
            return
        found = await garbage(store, key)
        if found and not sweeping.dry:
            found = await remove_garbage(store, key)
    except (SessionNotFound, SessionBusy):
        return
    for each in found:
        sweeping.file(each, key.session)
