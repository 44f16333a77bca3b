"""What follows a turn: context file, state modules, catalog row, search. All of it can be made anew from the log."""

from __future__ import annotations

import asyncio
from functools import partial

from msgspec import UNSET, Raw

from acpd.errors import StoreError
from acpd.indexing import catch_up
from acpd.session import LiveSession
from acpd.storage.contract import Row
from acpd.storage.rows import row_of
from acpd.wire.lines import Stored

DELAY = 1.0
"""Seconds from the end of a turn to its saving, so that quick turns are saved together."""
AT_ONCE = 2
"""Sessions of a store that are saved at the same time after their turns. Each has a window of its log in memory, and work for
a thread: more of them would take memory and the interpreter from the turns that run, and wait for the catalog all the same."""
WINDOWS = 5
"""Windows of the log that are made searchable with one save. A session that is further behind is caught up by the next
save, by the background of the next start, or by `acpd search`."""
_MODULES = ("config", "usage", "plan")


class Saver:
    """Saves one session, at most one save at a time, on every outcome of a turn."""

    __slots__ = (
        "_context_parent",
        "_context_seq",
        "_discarded",
        "_lock",
        "_row_seq",
        "_saved",
        "_session",
        "_timer",
        "_turns",
        "_words_seq",
    )

    def __init__(self, session: LiveSession, turns: asyncio.Semaphore) -> None:
        """`turns`: of AT_ONCE, the store's."""
        self._session = session
        self._turns = turns
        self._saved: dict[str, str] = {}
        self._context_seq = 0
        self._context_parent: str | None = None
        self._timer: asyncio.TimerHandle | None = None
        """Not None: a save is to come."""
        self._lock: asyncio.Lock | None = None
        self._row_seq = -1
        self._discarded = False
        self._words_seq = 0

    async def row(self, state: str = "open") -> None:
        """Bring the catalog's row up to the log. Raises StoreError; it is behind then, and the next call tries again."""
        session = self._session
        if self._row_seq == session.fold.seq and state == "open":
            return
        self._row_seq = session.fold.seq
        try:
            await session.store.catalog.put(self.current(state))
        except StoreError:
            self._row_seq = -1
            raise

    def current(self, state: str = "open") -> Row:
        """The row as it should be now."""
        session = self._session
        return row_of(session.key, session.header, session.fold, session.scribe.journal.size, state)

    async def words(self) -> None:
        """As `row`, and what was said can be searched. Raises StoreError."""
        if self._words_seq != self._session.fold.seq:
            async with self._alone():
                await self._words("open")

    async def _words(self, state: str) -> None:
        """Documents and row in one transaction; the row alone where there is nothing to be searched."""
        session = self._session
        row = self.current(state)
        if row.prompted and self._words_seq != row.seq:
            put = await catch_up(session.store, session.key, row, windows=WINDOWS)
            self._words_seq = row.seq
            if put:
                self._row_seq = row.seq
                return
        await self.row(state)

    def soon(self) -> None:
        """Save in DELAY seconds."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(DELAY, self._start)

    def _start(self) -> None:
        self._session.tasks.spawn(self._in_turn(), name=f"save:{self._session.id}")

    async def _in_turn(self) -> None:
        """A save that waits for others is one however many turns end meanwhile."""
        async with self._turns:
            if self._timer is not None:
                await self.save()

    async def save(self, state: str = "open") -> None:
        """Bring everything up to the log. A part that fails is left behind; the next save, or the next open, mends it."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        async with self._alone():
            for part in (self._modules, self._context, partial(self._words, state)):
                try:
                    await part()
                except StoreError:
                    self._session.recorder.warnings += 1

    def _alone(self) -> asyncio.Lock:
        if self._lock is None:  # an idle session has none
            self._lock = asyncio.Lock()
        return self._lock

    async def _discard(self) -> None:
        """States of lines that the log lost with the power. Where it has a line of the kind, that one's replaces it."""
        session = self._session
        states = session.store.session
        found = await states.names(session.key)
        for name in _MODULES:
            if getattr(session.fold, name) is None and f"acpd.{name}" in found:
                await states.delete(session.key, f"acpd.{name}")
        self._discarded = True

    async def _modules(self) -> None:
        session = self._session
        if not self._discarded:
            await self._discard()
        for name in _MODULES:
            line: Stored | None = getattr(session.fold, name)
            if line is None or self._saved.get(name) == line.id:
                continue
            value = b'{"seq":%d,"value":%b}' % (line.seq, _value(line))
            await session.store.session.save(session.key, f"acpd.{name}", value)
            self._saved[name] = line.id

    async def _context(self) -> None:
        """Append the turns that ended since the last time; all anew at first, and always once the log has branched."""
        from acpd.storage.context import Context  # after the first turn, not at the start

        session = self._session
        journals = session.store.journals
        until = session.scribe.flushed
        before = self._context_seq
        fresh = before == 0 or session.fold.branched
        context = Context(None if fresh else self._context_parent)
        windows = (
            journals.path(session.key, until=until, straight=session.fold.straight)
            if fresh
            else journals.read(session.key, after=before, until=until)
        )
        async for window in windows:
            if (lines := context.feed(window)) or fresh:
                self._context_seq = 0  # until all of it is written: what fails half-way is written anew
                await session.scribe.journal.write_context(lines, fresh=fresh)
                fresh = False
        self._context_seq = context.seq or before
        self._context_parent = context.parent


def _value(line: Stored) -> bytes:
    if line.params is not UNSET:
        return bytes(line.params)
    members = [(b"modes", line.modes), (b"configOptions", line.configOptions)]
    return b"{%b}" % b",".join(b'"%b":%b' % (name, bytes(value)) for name, value in members if isinstance(value, Raw))
