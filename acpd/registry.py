"""Which sessions this process holds: opening, making, closing, forking, deleting them; one opening at a time each."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Coroutine

from acpd import pages
from acpd.errors import INVALID_REQUEST, RequestError, SessionBusy, SessionNotFound, SessionReadOnly, StoreError
from acpd.needs import Agents, Settings, Store
from acpd.presence import Presence
from acpd.recovery import recover
from acpd.saving import AT_ONCE, Saver
from acpd.session import LiveSession
from acpd.storage.binding import bind
from acpd.storage.contract import After, Journal, Key, Row
from acpd.storage.fold import Fold
from acpd.storage.outline import before_turn, find
from acpd.storage.rows import row_of
from acpd.tasks import Tasks
from acpd.turn import Turn
from acpd.wire.ids import Clock, Ids
from acpd.wire.lines import VERSION, Header, Parent

COMPLETE_TIMEOUT = 10.0
"""Seconds that a listing waits at most for a catalog that is being made anew."""


BeforeDelete = Callable[[str, str], Awaitable[None]]
"""Takes the agentId of a session and the agent's own id of it; "" if it has none."""


class Registry:
    """The live sessions of one store and one user."""

    def __init__(self, store: Store, agents: Agents, settings: Settings, tasks: Tasks, user: str | None) -> None:
        self.store = store
        self.user = user
        self.live: dict[str, LiveSession] = {}
        self._agents = agents
        self._settings = settings
        self._tasks = tasks
        self._savers: dict[str, Saver] = {}
        self._saving = asyncio.Semaphore(AT_ONCE)
        self._presences: dict[str, Presence] = {}
        self._opening: dict[str, asyncio.Task[LiveSession]] = {}
        self._closing: dict[str, asyncio.Task[None]] = {}
        self._deleting: dict[str, asyncio.Task[None]] = {}
        self._gone: set[str] = set()
        """Deleted sessions whose row could not be removed: the disk was full."""
        self.complete = asyncio.Event()
        """Set while the catalog knows every session; at a start it may have to be made anew first."""
        self.complete.set()
        self.compared = True
        """False while there may be logs that the catalog does not know."""
        self._ids = Ids()
        self._clock = Clock()

    def reconfigure(self, settings: Settings) -> None:
        """The limits of all sessions from now on."""
        self._settings = settings
        for session in self.live.values():
            session.settings = settings
            self._presences[session.id].again()

    @property
    def busy(self) -> bool:
        """Whether a session is open, or is being opened, closed or deleted."""
        return bool(self.live or self._opening or self._closing or self._deleting)

    def new_id(self) -> str:
        return self._ids.new()

    async def header(
        self,
        session_id: str,
        agent: str,
        cwd: str,
        command: tuple[str, ...],
        directories: tuple[str, ...] = (),
        parent: Parent | None = None,
    ) -> Header:
        folder = await asyncio.to_thread(os.path.realpath, cwd)
        return Header(
            version=VERSION,
            id=session_id,
            cwd=cwd,
            agent=agent,
            command=command,
            user=self.user,
            createdAt=self._clock.now(),
            parent=parent,
            additionalDirectories=directories,
            folder="" if folder == cwd else folder,
        )

    def key(self, session_id: str, agent: str) -> Key:
        return bind(agent, default=self.store.session, session_id=session_id, user=self.user).tree_key

    async def create(self, header: Header) -> LiveSession:
        """A new session with its header appended. Its row is in the catalog before anybody learns the id."""
        key = self.key(header.id, header.agent)
        await self.store.lease.take(key)
        journal: Journal | None = None
        try:
            journal = await self.store.journals.create(key, header)
            await self.store.catalog.put(row_of(key, header, journal.fold, 0, "open"))
        except BaseException:
            await self._drop(key, journal)
            if journal is not None:
                await self.store.journals.delete(key)
            raise
        return self._admit(self._live(key, journal))

    async def _discard(self, key: Key, journal: Journal) -> None:
        """An adoption that was cut off: the agent still has all of it, and is asked again."""
        await journal.discard()
        await self.store.journals.delete(key)
        await self.store.catalog.delete(key.session)

    async def abandon(self, session: LiveSession) -> None:
        """Leave nothing of a session whose adoption failed."""
        session.closed = True
        self._forget(session)
        await self._discard(session.key, session.scribe.journal)
        await self.store.lease.give_up(session.key)

    async def _drop(self, key: Key, journal: Journal | None) -> None:
        """Give up what was taken for a session that cannot be opened."""
        if journal is not None:
            await journal.discard()
        await self.store.lease.give_up(key)

    def _live(self, key: Key, journal: Journal) -> LiveSession:
        return LiveSession(key, journal, self.store, self._agents, self._settings, self._tasks, self._ids, self._clock)

    def _admit(self, session: LiveSession) -> LiveSession:
        saver = Saver(session, self._saving)
        self._savers[session.id] = saver
        self._presences[session.id] = Presence(session, self.begin_close, saver.soon)
        self.live[session.id] = session
        return session

    def _forget(self, session: LiveSession) -> None:
        session.scribe.stop()
        self._presences.pop(session.id).stop()
        del self.live[session.id], self._savers[session.id]

    def at_hand(self, session_id: str) -> LiveSession | None:
        """The live session, unless it is being closed or deleted."""
        return None if session_id in self._closing or session_id in self._deleting else self.live.get(session_id)

    async def key_of(self, session_id: str) -> Key:
        """Where the session is in the store. Raises SessionNotFound, StoreError."""
        row = await self._row(session_id)
        if row is None:
            raise SessionNotFound(session_id)
        return self.key(session_id, row.agent)

    async def open(self, session_id: str) -> LiveSession:
        """The live session, opened once however many ask. Raises SessionNotFound, SessionBusy, SessionReadOnly, StoreError.

        Cancelling it does not stop the opening.
        """
        for ending in (self._deleting, self._closing):
            if task := ending.get(session_id):
                await asyncio.wait([task])
        if session_id not in self._opening and (session := self.live.get(session_id)):
            return session
        return await self.once(session_id, lambda: self._open(session_id))

    async def once(self, session_id: str, make: Callable[[], Coroutine[None, None, LiveSession]]) -> LiveSession:
        """`make` it live, once however many ask. Raises what that raises; cancelling this does not stop it."""
        opening = self._opening.get(session_id)
        if opening is None:
            opening = self._tasks.spawn(make(), name=f"open:{session_id}", watched=True)
            self._opening[session_id] = opening
            opening.add_done_callback(lambda _: self._opening.pop(session_id, None))
        return await asyncio.shield(opening)

    async def _open(self, session_id: str) -> LiveSession:
        key = await self.key_of(session_id)
        await self.store.lease.take(key)
        journal: Journal | None = None
        try:
            try:
                journal = await self.store.journals.open(key)
            except SessionNotFound:  # somebody removed the log
                await self._remove_row(session_id)
                raise
            if journal.fold.adopting:
                await self._discard(key, journal)
                journal = None
                raise SessionNotFound(session_id)
            session = self._live(key, journal)
            try:
                await recover(session)
            except BaseException:
                session.scribe.stop()
                raise
            await self.store.catalog.put(row_of(key, journal.header, journal.fold, journal.size, "open"))
        except BaseException:
            await self._drop(key, journal)
            raise
        return self._admit(session)

    async def fork(self, session_id: str, cwd: str, directories: tuple[str, ...], entry: str | None = None) -> LiveSession:
        """A new session with the path up to an entry (its id, a label, the beginning of its id).

        Without one: up to the leaf, or to the end of the last turn that is over. The source is only read, whoever has it
        open. Raises SessionNotFound, EntryNotFound, SessionReadOnly, StoreError; RequestError if no turn of it is over yet. A
        fork that is cancelled is removed as soon as it is made.
        """
        if (source := self.at_hand(session_id)) is not None:
            source.scribe.commit()
        key = await self.key_of(session_id)
        old, fold = await self.store.journals.peek(key)
        if old.version > VERSION or not old.cwd:
            raise SessionReadOnly("fork", f"session {session_id}", cause="its header is of a newer version, or not there")
        if fold.adopting:
            raise SessionNotFound(session_id)
        leaf = await self._fork_point(key, fold, entry)
        header = await self.header(self.new_id(), key.agent, cwd, old.command, directories, Parent(session_id, leaf))
        making = self._tasks.spawn(self._fork(key, header, leaf), name=f"fork:{header.id}", watched=True)
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            self._tasks.spawn(self._unwanted(making), name=f"delete:{header.id}")
            raise

    async def _fork_point(self, key: Key, fold: Fold, entry: str | None) -> str | None:
        if entry is None and fold.turn is None:
            return fold.leaf
        tree = await self.store.journals.tree(key)
        if entry is not None:
            return find(tree, fold.labels, entry, key.session)
        leaf = before_turn(tree, fold.turn)
        if leaf is None:
            raise RequestError(INVALID_REQUEST, f"no turn of session {key.session} is over yet, so there is nothing to fork")
        return leaf

    async def _fork(self, source: Key, header: Header, leaf: str | None) -> LiveSession:
        target = self.key(header.id, header.agent)
        try:
            await self.store.journals.fork(source, target, header, entry=leaf)
            _, fold = await self.store.journals.peek(target)
            await self.store.catalog.put(row_of(target, header, fold, 0, "open"))
            return await self.open(header.id)
        except BaseException:
            await self.store.journals.delete(target)
            await self.store.catalog.delete(header.id)
            raise

    async def _unwanted(self, making: asyncio.Task[LiveSession]) -> None:
        """Nobody learnt the id of what is being made."""
        await asyncio.wait([making])
        if not making.cancelled() and making.exception() is None:
            await self.delete(making.result().id)

    async def close(self, session_id: str, *, interrupt: bool = False) -> None:
        """Cancel, save, stop the agent, give up the lease. The session stays in the store. Not live is no error.

        `interrupt`: a running turn is recorded as interrupted at once, nobody waits for the agent.
        """
        if opening := self._opening.get(session_id):
            await asyncio.wait([opening])
        self.begin_close(session_id, interrupt=interrupt)
        if closing := self._closing.get(session_id):
            await asyncio.shield(closing)

    def begin_close(self, session_id: str, *, interrupt: bool = False) -> None:
        """Plain: what comes for this session from now on waits for the close, if it is live and not only being opened."""
        session = None if session_id in self._opening else self.live.get(session_id)
        if session is not None and session_id not in self._closing:
            task = self._tasks.spawn(self._close(session, interrupt=interrupt), name=f"close:{session_id}")
            self._closing[session_id] = task
            task.add_done_callback(lambda _: self._closing.pop(session_id, None))

    async def _close(self, session: LiveSession, *, interrupt: bool) -> None:
        if interrupt:
            session.interrupt()
        else:
            session.cancel()
        await session.idle()
        await session.audience.dismiss(self._settings.stop_grace)
        session.closed = True
        try:
            await session.end_agent()
            session.asks.close_all("acpd")
            await self._savers[session.id].save("clean")
            await session.scribe.journal.close()
        except BaseException:  # a log that cannot be written stays open, and so does the session
            session.closed = False
            raise
        self._forget(session)
        await self.store.lease.give_up(session.key)

    async def page(
        self, *, agent: str | None = None, cwd: str | None = None, after: After | None = None, limit: int = 100
    ) -> tuple[list[Row], After | None]:
        """A page as Catalog.page, and where the next one begins, if there may be one.

        The catalog is brought up to the live sessions' logs first; where it cannot be written, the rows are right all the same.
        """
        await self._completed()
        behind: dict[str, Row] = {}
        for session_id, saver in list(self._savers.items()):
            try:
                await saver.row()
            except StoreError:
                behind[session_id] = saver.current()
        for session_id in list(self._gone):
            await self._remove_row(session_id)
        rows, following = await pages.page(self.store, self.user, agent=agent, cwd=cwd, after=after, limit=limit)
        rows = [row for row in rows if row.id not in behind and row.id not in self._gone]
        if behind and after is None:
            rows += [row for row in behind.values() if row.prompted and agent in (None, row.agent) and cwd in (None, row.cwd)]
            rows.sort(key=lambda row: (row.updatedAt, row.id), reverse=True)
        return rows, following

    async def _remove_row(self, session_id: str) -> None:
        """The log is gone, so that this cannot fail: a row that stays is hidden, and gone at the next start at the latest."""
        try:
            await self.store.catalog.delete(session_id)
        except StoreError:
            self._gone.add(session_id)
        else:
            self._gone.discard(session_id)

    async def searchable(self) -> bool:
        """What was said in turns that are over can be found. A running turn is searched when it is over.

        Whether no turn runs, and the catalog knows every log: it may not so soon after a start, or on a full disk.
        """
        await self._completed()
        known = self.complete.is_set() and self.compared
        for session_id, saver in list(self._savers.items()):
            if (session := self.live.get(session_id)) is None:
                continue
            known &= session.state is Turn.IDLE
            if session.state is Turn.IDLE or saver.due:
                try:
                    await saver.words()
                except StoreError:
                    known = False
        return known

    async def _completed(self) -> None:
        """Wait for the catalog of a new start, but not for ever: a big store that lost it takes its time."""
        if self.complete.is_set():  # a task for it costs 40 us
            return
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.complete.wait(), COMPLETE_TIMEOUT)

    async def _row(self, session_id: str) -> Row | None:
        """The session's row; one that the catalog does not know yet is waited for. Raises StoreError if that takes too long."""
        row = await self.store.catalog.get(session_id)
        if row is None and not self.complete.is_set():
            await self._completed()
            row = await self.store.catalog.get(session_id)
            if row is None and not self.complete.is_set():
                cause = "the catalog is still being made anew; try again in a moment"
                raise StoreError("find", f"session {session_id}", cause=cause, retryable=True)
        return await self._by_log(session_id) if row is None and not self.compared else row

    async def _by_log(self, session_id: str) -> Row | None:
        """What the log of a session without a row says, as it would be in the catalog. Raises StoreError."""
        async for key in self.store.journals.scan(self.user):
            if key.session == session_id:
                async for part in self.store.journals.rows([key]):
                    return part[0][1]
        return None

    async def forget_unprompted(self, before: str) -> None:
        """Delete the sessions that nobody ever prompted and nobody has had open since."""
        for row in await self.store.catalog.unprompted(before):
            if row.id not in self.live and row.id not in self._opening:
                with contextlib.suppress(SessionBusy):  # somebody came back to it
                    await self._once_deleted(row.id, unprompted=True)

    async def delete(self, session_id: str, before: BeforeDelete | None = None) -> None:
        """Remove every artefact. Absent is no error. Raises SessionBusy when another process has it open.

        `before` is called first, when no turn runs and this process has the lease. It is done once however many ask.
        Cancelling it does not stop the deleting.
        """
        await self._once_deleted(session_id, before)

    async def _once_deleted(self, session_id: str, before: BeforeDelete | None = None, *, unprompted: bool = False) -> None:
        task = self._deleting.get(session_id)
        if task is None:
            work = self._delete(session_id, before, unprompted=unprompted)
            task = self._tasks.spawn(work, name=f"delete:{session_id}", watched=True)
            self._deleting[session_id] = task
            task.add_done_callback(lambda _: self._deleting.pop(session_id, None))
        await asyncio.shield(task)

    async def _delete(self, session_id: str, before: BeforeDelete | None, *, unprompted: bool) -> None:
        """`unprompted`: not if somebody has prompted it after all."""
        session = self.live.get(session_id)
        if session is not None and before is not None and session_id not in self._closing:  # while its own agent can be asked
            session.cancel()
            await session.idle()
            await before(session.header.agent, session.fold.last_inner)
            before = None
        await self.close(session_id)
        row = await self._row(session_id)
        if row is None:
            return
        key = self.key(session_id, row.agent)
        await self.store.lease.take(key)
        try:
            if unprompted and await self._is_prompted(key):
                return
            if before is not None:
                await before(row.agent, row.inner)
            from acpd.care import remove  # of no use to a start

            await remove(self.store, key, row)
            await self._remove_row(session_id)
        finally:
            await self.store.lease.give_up(key)

    async def _is_prompted(self, key: Key) -> bool:
        """By the log itself: nothing is deleted on the word of a cache. Raises StoreError if it cannot be read."""
        try:
            header, fold = await self.store.journals.peek(key)
        except SessionNotFound:
            return False
        if fold.prompted:
            (size,) = await self.store.journals.sizes([key])
            await self.store.catalog.put(row_of(key, header, fold, size or 0))
        return fold.prompted

    async def stop(self, *, interrupt: bool) -> None:
        """Close every session, and then the store's parts."""
        await _all(lambda session_id: self.close(session_id, interrupt=interrupt), [*self._opening, *self.live])


async def _all(work: Callable[[str], Awaitable[None]], items: list[str]) -> None:
    """Each to its end, whatever happens to the others; the first failure is raised then."""
    results = await asyncio.gather(*(work(item) for item in items), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
