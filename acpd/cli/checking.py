"""`acpd fsck [ID]`: what is wrong with the store, and putting it right."""

from __future__ import annotations

import contextlib

from acpd.care import Report, look, mend, rows_without_log
from acpd.cli import holding, output
from acpd.cli.call import Call
from acpd.cli.store import close, exists, opened
from acpd.errors import AcpdError, SessionBusy, SessionNotFound, StoreError
from acpd.needs import Store
from acpd.storage.contract import Key
from acpd.storage.upkeep import KINDS, Found
from acpd.stores import open_store

FOUND = 1


class Told:
    """What was found so far, said or collected. `wrong`: findings that are more than notes."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self.sessions = 0
        self.wrong = 0
        self.notes = 0
        self.mended = 0
        self.kept: list[str] = []
        self.failed = False
        """Whether something could not be looked at, or not be repaired."""
        self._found: list[dict[str, object]] = []
        self._mended: list[dict[str, object]] = []

    def report(self, report: Report) -> None:
        self.sessions += 1
        for each in report.mended:
            self.one(each, report.key.session, mended=True)
        for each in report.found:
            self.one(each, report.key.session)
        for path in report.kept:
            self.kept.append(path)
            if not self._call.values.json:
                self._call.out.say(f"{path}: the log as it was; a repaired copy has its place")

    def one(self, found: Found, session: str, *, mended: bool = False) -> None:
        note = found.weight == "note"
        self.mended += mended
        self.notes += note
        self.wrong += not note and not mended
        if self._call.values.json:
            (self._mended if mended else self._found).append(as_json(found, session))
        else:
            self._call.out.say(as_line(found, session, mended=mended))

    def end(self) -> int:
        """The exit code."""
        if self._call.values.json:
            told = {"sessions": self.sessions, "found": self._found, "repaired": self._mended, "kept": self.kept}
            self._call.out.json(told)
        else:
            counts = [_count(self.wrong, "finding"), _count(self.notes, "note")]
            counts += [f"{self.mended} repaired"] if self._call.values.repair else []
            self._call.out.say(f"{_count(self.sessions, 'session')}: {', '.join(counts)}")
        return FOUND if self.wrong or self.failed else 0


async def fsck(call: Call) -> int:
    """The exit code: 1 if anything was found that is more than a note."""
    told = Told(call)
    prefix: str | None = call.values.id
    if exists(call.config):
        sound = prefix is not None or await _catalog(call, told)
        renewed = not sound and call.values.repair
        async with opened(call.config, recover=renewed, catalog=sound or renewed) as store:
            keys = [key async for key in store.journals.scan(call.config.user)]
            chosen = keys if prefix is None else [_chosen(keys, prefix)]
            known = {row.id for row in await store.catalog.find("", limit=1 << 40)}
            progress = output.Progress("checking sessions")
            for number, key in enumerate(sorted(chosen, key=lambda key: key.session)):
                progress.tell(number, len(chosen))
                await _check(call, store, key, told, listed=bool(known))
            progress.end()
            if prefix is None:
                await _beside(store, {key.session for key in keys}, told, call)
    elif prefix is not None:
        raise SessionNotFound(prefix)
    return told.end()


async def _catalog(call: Call, told: Told) -> bool:
    """Whether the catalog is sound in itself; with `--repair` what was not is given up: the next to open it makes it anew."""
    repair = call.values.repair
    store = open_store(call.config)
    try:
        found: list[Found] = []
        with contextlib.suppress(StoreError):  # it cannot be read or written at all: who opens it next says why
            found = await store.catalog.faults()
        if found and repair:
            await store.catalog.renew()
        for each in found:
            told.one(each, "", mended=repair and each.weight == "behind")
        return not found
    finally:
        await close(store)


def _chosen(keys: list[Key], prefix: str) -> Key:
    """By the logs, because the catalog may be what is wrong."""
    found = [key for key in keys if key.session == prefix] or [key for key in keys if prefix and key.session.startswith(prefix)]
    if not found:
        raise SessionNotFound(prefix)
    if len(found) > 1:
        raise StoreError("tell which session is", prefix, cause=f"{len(found)} begin so", hint="give more of the id")
    return found[0]


async def _check(call: Call, store: Store, key: Key, told: Told, *, listed: bool) -> None:
    try:
        told.report(await (_mend(call, store, key) if call.values.repair else look(store, key, listed=listed)))
    except SessionNotFound:  # deleted meanwhile
        return
    except SessionBusy as error:
        output.complain(error)
        told.failed = True
        told.report(await look(store, key))
    except AcpdError as error:  # the others are looked at all the same
        output.complain(error)
        told.failed = True


async def _mend(call: Call, store: Store, key: Key) -> Report:
    """Raises AcpdError."""
    try:
        return await mend(store, key)
    except SessionBusy as error:
        await holding.let_go(call, store, error)
        return await mend(store, key)


async def _beside(store: Store, sessions: set[str], told: Told, call: Call) -> None:
    """What belongs to no session."""
    async for row in rows_without_log(store, sessions):
        if call.values.repair:
            await store.catalog.delete(row.id)
        found = Found(kind="row-alone", path=store.journals.log_path(Key(row.agent, row.id, row.user)))
        told.one(found, row.id, mended=call.values.repair)
    if store.journals.upkeep is not None:
        for each in await store.journals.upkeep.left(call.config.user):
            told.one(each, "")


def as_json(found: Found, session: str) -> dict[str, object]:
    kind = KINDS[found.kind]
    return {
        "session": session or None,
        "kind": found.kind,
        "weight": kind.weight,
        "path": found.path,
        "line": found.line or None,
        "detail": found.detail,
        "meaning": kind.meaning,
        "remedy": _remedy(found, session),
    }


def as_line(found: Found, session: str, *, mended: bool = False) -> str:
    """`PATH:LINE: kind (detail): what it means; what to do`, as compilers have it."""
    kind = KINDS[found.kind]
    place = f"{found.path}:{found.line}" if found.line else found.path
    detail = f" ({output.one_line(found.detail)})" if found.detail else ""
    return f"{place}: {found.kind}{detail}: {kind.meaning}; {'repaired' if mended else _remedy(found, session)}"


def _remedy(found: Found, session: str) -> str:
    return KINDS[found.kind].remedy.replace(" ID", f" {session}")


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
