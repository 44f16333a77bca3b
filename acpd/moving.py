"""A project that moved: its sessions are told, each by a fact in its log. No line of a log is ever changed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from typing import NamedTuple

from acpd.care import mark_open
from acpd.errors import StoreError
from acpd.needs import Store
from acpd.storage.contract import Journal, Key
from acpd.storage.rows import row_of
from acpd.wire.ids import Clock, Ids
from acpd.wire.lines import Header, encode, fact


class Move(NamedTuple):
    """From one folder to another. `old`: every name that the old one has, or had."""

    old: tuple[str, ...]
    new: str

    def of(self, path: str) -> str | None:
        """Where this folder is now; None: it is not one of those that moved."""
        for old in self.old:
            if path == old or path.startswith(old.rstrip("/") + "/"):
                return os.path.normpath(self.new + path[len(old.rstrip("/")) :])
        return None


def move_between(old: str, new: str) -> Move:
    """Absolute, under both names where one is a link; the old one need not be there any more. Blocks.

    Raises StoreError if the new one is not there: the sessions would be listed where nobody looks.
    """
    if not os.path.isdir(new):
        raise StoreError("move sessions to", new, cause="there is no such folder", hint="move the project first")
    names = dict.fromkeys((os.path.abspath(old), os.path.realpath(old)))
    return Move(tuple(names), os.path.abspath(new))


class Moving(NamedTuple):
    """A session that moves. `folders`: those of them that move, as the catalog has them, with where they are now."""

    key: Key
    folders: dict[str, str]
    now: str | None
    """Where its `cwd` is now; None: only additional directories move."""


async def moving(store: Store, move: Move) -> AsyncIterator[Moving]:
    """The sessions whose folder, or one of whose additional directories, is the old folder or below it."""
    for row in await store.catalog.find("", limit=1 << 40):
        folders = {path: now for path in (row.cwd, *row.dirs) if (now := move.of(path)) is not None and now != path}
        if folders:
            yield Moving(Key(row.agent, row.id, row.user), folders, folders.get(row.cwd))


async def move_session(store: Store, key: Key, move: Move, now: str | None) -> None:
    """`now` as in Moving. Durable when it returns. Raises SessionBusy, SessionReadOnly, SessionNotFound, StoreError."""
    await store.lease.take(key)
    try:
        journal = await store.journals.open(key)
        try:
            await mark_open(store, key)
            await _tell(journal, move, now)
        except StoreError:
            await journal.discard()
            raise
        await journal.close()
        header, fold = await store.journals.peek(key)
        await store.catalog.put(row_of(key, header, fold, journal.size))
    finally:
        await store.lease.give_up(key)


async def _tell(journal: Journal, move: Move, now: str | None) -> None:
    """Append the fact, durably. Raises StoreError."""
    header, fold = journal.header, journal.fold
    ids = Ids()
    ids.after(fold.last_id)
    # A move is no event: the session keeps its place in listings, and its age.
    at = fold.updated_at or header.createdAt or Clock().now()
    journal.append(fact("info", ids.new(), fold.seq + 1, at, await asyncio.to_thread(_places, header, move, now)))
    journal.flush()
    waiter = journal.sync()
    if waiter is not None:
        await waiter


def _places(header: Header, move: Move, now: str | None) -> bytes:
    """The body of the fact: all of where the project is, because the newest fact is all that counts. Blocks."""
    cwd = move.of(header.cwd) or now or header.cwd
    folder = os.path.realpath(cwd)
    body = b',"cwd":%b,"folder":%b' % (encode(cwd), encode("" if folder == cwd else folder))
    directories = tuple(move.of(path) or path for path in header.additionalDirectories)
    if directories:
        body += b',"additionalDirectories":%b' % encode(directories)
    return body
