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

    @property
    def due(self) -> bool:
        """Whether a turn that is over may not be saved yet: the next one may run already."""
        return self._timer is not None or (self._lock is not None and self._lock.locked())

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
        """Append the turns that ended since the last time; all anew at first, once the agent has compacted, and always once the
        log has branched.
        """
        if self._context_seq == 0 or self._session.fold.branched or not await self._append():
            await self._rewrite()

    async def _append(self) -> bool:
        """Whether that was enough."""
        from acpd.storage.context import Context  # after the first turn, not at the start

        session, before = self._session, self._context_seq
        context = Context(self._context_parent)
        async for window in session.store.journals.read(session.key, after=before, until=session.scribe.flushed):
            lines = context.feed(window)
            if context.compacted:
                return False
            if lines:
                await self._write(lines)
        self._context_seq, self._context_parent = context.seq or before, context.parent
        return True

    async def _rewrite(self) -> None:
        from acpd.storage.context import Context
        from acpd.storage.cuts import Cuts

        session, cuts, fresh = self._session, Cuts(), True
        path = partial(session.store.journals.path, session.key, until=session.scribe.flushed, straight=session.fold.straight)
        async for window in path():
            cuts.feed(window)
        context = Context(cut=cuts.newest)
        async for window in path():
            if (lines := context.feed(window)) or fresh:
                await self._write(lines, fresh=fresh)
                fresh = False
        self._context_seq, self._context_parent = context.seq, context.parent

    async def _write(self, lines: bytes, *, fresh: bool = False) -> None:
        self._context_seq = 0  # until all of it is written: what fails half-way is written anew
        await self._session.scribe.journal.write_context(lines, fresh=fresh)


def _value(line: Stored) -> bytes:
    if line.params is not UNSET:
        return bytes(line.params)
    members = [(b"modes", line.modes), (b"configOptions", line.configOptions)]
    return b"{%b}" % b",".join(b'"%b":%b' % (name, bytes(value)) for name, value in members if isinstance(value, Raw))
