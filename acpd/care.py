"""Looking after a store: what is wrong with a session, putting it right, and removing one with all that is its own."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from acpd.errors import SessionNotFound, StateUnreadable, StoreError
from acpd.needs import Store
from acpd.storage.contract import Key, Row
from acpd.storage.rows import row_of
from acpd.storage.upkeep import KINDS, NEWER, Checked, Found, of_tree
from acpd.wire.lines import VERSION, Header

FOLDED = "acpd."
"""How the names of states begin that are folds of the log."""

_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d")


class Report(NamedTuple):
    """What was found. `row`: what the catalog has to say. `kept`: originals that a repaired copy took the place of.

    `mended`: what was wrong before, and is not any more.
    """

    key: Key
    found: list[Found]
    row: Row
    kept: list[str]
    mended: Sequence[Found] = ()


class _Fold(Struct):
    seq: int


async def look(store: Store, key: Key, *, listed: bool = True, ours: bool = False) -> Report:
    """Everything that is wrong with a session; nothing is changed, but that an unreadable state is copied aside.

    `listed`: the catalog is one that should know it. `ours`: the lease is this process's. Raises SessionNotFound, StoreError.
    """
    holder = None if ours else await store.lease.holder(key)
    checked = await _checked(store, key, live=holder is not None)
    row = row_of(key, checked.header or made_up(key, None), checked.fold, checked.size)
    found = [*checked.found, *await _states(store, key, checked.fold.seq)]
    path = store.journals.log_path(key)
    if holder is not None:
        found.append(Found(kind="open", path=path, detail=f"in pid {holder}"))
        return Report(key, found, row, [])
    if not ours and await store.lease.holder(key) is not None:  # opened while it was read
        return await look(store, key, listed=listed)
    if store.journals.upkeep is not None and not any(each.weight == "damage" for each in found):
        found += await store.journals.upkeep.unused(key)
    if listed and not _is_newer(found):
        found += _of_row(await store.catalog.get(key.session), row, path)
    return Report(key, found, row, [])


async def _checked(store: Store, key: Key, *, live: bool) -> Checked:
    if store.journals.upkeep is not None:
        return await store.journals.upkeep.check(key, live=live)
    header, fold = await store.journals.peek(key)
    tree = await store.journals.tree(key)
    return Checked(header, fold, 0, of_tree(store.journals.log_path(key), tree.findings))


def made_up(key: Key, row: Row | None) -> Header:
    """For a log that has lost its header: what the catalog still knows."""
    cwd, created, dirs = (row.cwd, row.createdAt, row.dirs) if row is not None else ("", "", ())
    return Header(
        version=VERSION,
        id=key.session,
        cwd=cwd,
        agent=key.agent or (row.agent if row is not None else ""),
        user=key.user,
        createdAt=created,
        additionalDirectories=dirs,
    )


async def _states(store: Store, key: Key, seq: int) -> list[Found]:
    found: list[Found] = []
    for name in await store.session.names(key):
        kind = "state-fold" if name.startswith(FOLDED) else "state"
        try:
            value = await store.session.load(key, name)
        except StateUnreadable as error:
            found.append(Found(kind=kind, path=error.target, detail=name))
            continue
        if kind == "state-fold" and value is not None and _seq(value) > seq:
            found.append(Found(kind=kind, path=f"state {name} of session {key.session}", detail=name))
    return found


def _seq(value: bytes) -> int:
    try:
        return msgspec.json.decode(value, type=_Fold).seq
    except msgspec.DecodeError:
        return 0


def _of_row(known: Row | None, row: Row, path: str) -> list[Found]:
    if known is None:
        return [Found(kind="row-missing", path=path)]
    wrong = [name for name in Row.__struct_fields__ if name != "searched" and getattr(known, name) != getattr(row, name)]
    return [Found(kind="row-behind", path=path, detail=", ".join(wrong))] if wrong else []


async def mark_open(store: Store, key: Key) -> None:
    """Before a log is changed: should this process not live to say what it did, the next start reads it again."""
    row = await store.catalog.get(key.session)
    if row is not None:
        await store.catalog.put(replace(row, state="open"))


async def mend(store: Store, key: Key) -> Report:
    """What is still wrong after all was put right that can be. Raises SessionBusy, SessionNotFound, StoreError."""
    await store.lease.take(key)
    try:
        report = first = await look(store, key, ours=True)
        if _is_newer(report.found):
            return report
        kept = await _mend_log(store, key, report.found)
        for each in report.found:
            if each.kind == "state-fold":
                await store.session.delete(key, each.detail)
        if kept or any(each.kind == "state-fold" or each.kind.startswith(("index", "context")) for each in report.found):
            if store.journals.upkeep is not None:
                await store.journals.upkeep.renew(key)
            report = await look(store, key, ours=True)
        if kept:
            await store.catalog.delete(key.session)  # with what is searched of it: its lines have other numbers now
        if kept or any(each.kind.startswith("row") for each in report.found):
            await store.catalog.put(report.row)
        found = [each for each in report.found if not each.kind.startswith("row")]
        left = {each.kind for each in found}
        mended = [each for each in first.found if each.weight != "note" and each.kind not in left]
        return Report(key, found, report.row, kept, mended)
    finally:
        await store.lease.give_up(key)


def _is_newer(found: list[Found]) -> bool:
    return any(each.kind == NEWER for each in found)


async def _mend_log(store: Store, key: Key, found: list[Found]) -> list[str]:
    kinds = {each.kind for each in found}
    if store.journals.upkeep is None or not any(KINDS[kind].log for kind in kinds):
        return []
    await mark_open(store, key)
    return await store.journals.upkeep.repair(key, made_up(key, await store.catalog.get(key.session)))


async def rows_without_log(store: Store, sessions: set[str]) -> AsyncIterator[Row]:
    """Rows of none of these sessions, but those whose maker is about to write the log."""
    for row in await store.catalog.find("", limit=1 << 40):
        if row.id not in sessions and await store.lease.holder(Key(row.agent, row.id, row.user)) is None:
            yield row


async def remove(store: Store, key: Key, row: Row | None) -> None:
    """Every artefact of a session but its row, which the caller removes then; it has the lease.

    Raises StoreError; done again, it goes on. `row` is marked so that, if this process is killed, the next start goes on.
    """
    if row is not None:
        with contextlib.suppress(StoreError):  # on a full disk the deleting has to go on
            await store.catalog.put(replace(row, state="deleting"))
    await store.session.delete(key)
    await store.journals.delete(key)  # behind all else: as long as there is a log, this can be done again


async def take_and_remove(store: Store, key: Key, row: Row | None) -> None:
    """Raises SessionBusy, StoreError."""
    await store.lease.take(key)
    try:
        await remove(store, key, row)
        await store.catalog.delete(key.session)
    finally:
        await store.lease.give_up(key)


class Old(NamedTuple):
    """A session whose last event is older than was asked for. `bytes`: of its log, blobs and caches."""

    key: Key
    row: Row
    bytes: int


async def older_than(store: Store, before: str) -> AsyncIterator[Old]:
    """The sessions whose log ends before this time, by what the log says. One whose time cannot be told is never old."""
    for row in await store.catalog.find("", limit=1 << 40):
        key = Key(row.agent, row.id, row.user)
        if row.updatedAt < before and await _is_old(store, key, before):
            yield Old(key, row, await store.journals.upkeep.weigh(key) if store.journals.upkeep is not None else 0)


async def _is_old(store: Store, key: Key, before: str) -> bool:
    """By the log, because its file's time is that of a copy, and the row may be behind."""
    try:
        header, fold = await store.journals.peek(key)
    except SessionNotFound:
        return False
    last = max(fold.updated_at, header.createdAt)
    return bool(_TIME.match(last)) and last < before


async def remove_old(store: Store, old: Old, before: str) -> bool:
    """False: somebody has gone on with it meanwhile. Raises SessionBusy, StoreError."""
    await store.lease.take(old.key)
    try:
        if not await _is_old(store, old.key, before):
            return False
        await remove(store, old.key, old.row)
        await store.catalog.delete(old.key.session)
    finally:
        await store.lease.give_up(old.key)
    return True


async def garbage(store: Store, key: Key) -> list[Found]:
    """The blobs of a session that nothing names. None of a damaged log: what that names is not known for certain.

    For who has the lease, or only wants to know. Raises SessionNotFound, StoreError.
    """
    upkeep = store.journals.upkeep
    found = await upkeep.unused(key) if upkeep is not None else []
    if upkeep is None or not found:
        return []
    checked = await upkeep.check(key, live=False)
    return [] if any(each.weight == "damage" for each in checked.found) else found


async def remove_garbage(store: Store, key: Key) -> list[Found]:
    """What was removed. Raises SessionBusy, SessionNotFound, StoreError."""
    await store.lease.take(key)
    try:
        found = await garbage(store, key)
        if store.journals.upkeep is not None:
            await store.journals.upkeep.remove(found)
        return found
    finally:
        await store.lease.give_up(key)
