"""The one writer of a live session's log: ids, seq, order, and what happens when the disk says no.

A failed write (disk full): nothing is lost, nothing unwritten is sent; it is tried again each second and with each
request. After GIVE_UP seconds, or at once if waiting cannot help, the owner is told:
docs/architecture.md, "What is durable when".
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from msgspec import Struct

from acpd.errors import StoreError
from acpd.storage.contract import Journal
from acpd.wire import lines
from acpd.wire.ids import Clock, Ids

RETRY_EVERY = 1.0
GIVE_UP = 30.0


class Written(Struct, gc=False):
    """One line that was appended."""

    id: str
    seq: int
    at: str


class _Waiting(Struct):
    """Somebody who waits until what was committed before is durable."""

    then: Callable[[], None]
    syncing: bool = False
    durable: bool = False


class Scribe:
    """Appends lines and keeps `fold` true. Plain calls on the loop.

    `on_stuck(error)` when a write fails first, `on_free()` when it works again, `on_give_up(error)` after GIVE_UP seconds.
    """

    __slots__ = (
        "_asked",
        "_clock",
        "_failing_since",
        "_gave_up",
        "_ids",
        "_line",
        "_loop",
        "_on_free",
        "_on_give_up",
        "_on_stuck",
        "_serving",
        "_stopped",
        "_timer",
        "error",
        "flushed",
        "fold",
        "journal",
    )

    def __init__(
        self,
        journal: Journal,
        ids: Ids,
        clock: Clock,
        *,
        on_stuck: Callable[[StoreError], None],
        on_free: Callable[[], None],
        on_give_up: Callable[[StoreError], None],
    ) -> None:
        self.journal = journal
        self.fold = journal.fold
        self.flushed = self.fold.seq
        """The seq of the last line that is in the kernel: what may be sent."""
        self.error: StoreError | None = None
        self._ids = ids
        self._clock = clock
        self._on_stuck = on_stuck
        self._on_free = on_free
        self._on_give_up = on_give_up
        self._line: list[_Waiting] = []
        self._serving = False
        self._asked: list[asyncio.Future[None]] = []
        self._failing_since: float | None = None
        """Loop time; None: what anybody waited for last was written and synced."""
        self._gave_up = False
        self._stopped = False
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        ids.after(self.fold.last_id)

    def new_id(self) -> str:
        return self._ids.new()

    def entry(self, kind: str, body: bytes, parent: str | None, *, identifier: str | None = None, what: str = "") -> Written:
        """Append a line of the tree. `what` is the sessionUpdate kind of an update, the state of a turn."""
        fold = self.fold
        seq = fold.seq + 1
        name, at = identifier or self._ids.new(), self._clock.now()
        line = lines.entry(kind, name, parent, seq, at, body)
        self.journal.append(line)
        if kind == "prompt" or (kind != "compaction" and what not in {"", "plan"}):
            fold.advance(kind, what, name, parent, seq, at)
        else:
            fold.add(lines.decode(line))
        return Written(name, seq, at)

    def updates(self, kind: str, parent: str | None, body: bytes, positions: list[int], texts: list[bytes]) -> Written:
        """Append entries of type "update" and this kind (not "plan"), each behind the one before it. The last of them.

        `body` is a format of a position and a text.
        """
        first = self.fold.seq + 1
        ids, at = self._ids.some(len(texts)), self._clock.now()
        self.journal.append(lines.chain("update", ids, parent, first, at, body, positions, texts))
        self.fold.advance("update", kind, ids[0], parent, first, at)
        if len(ids) > 1:
            self.fold.go_on(ids[-1], first + len(ids) - 1)
        return Written(ids[-1], self.fold.seq, at)

    def fact(self, kind: str, body: bytes) -> Written:
        """Append a line outside the tree."""
        written = Written(self._ids.new(), self.fold.seq + 1, self._clock.now())
        line = lines.fact(kind, written.id, written.seq, written.at, body)
        self.journal.append(line)
        self.fold.add(lines.decode(line))
        return written

    def commit(self) -> bool:
        """Whether everything appended is in the kernel now."""
        try:
            self.journal.flush()
        except StoreError as error:
            self._fail(error)
            return False
        self.flushed = self.fold.seq
        if self.error is not None:
            self._free()
        return True

    def settle(self, then: Callable[[], None]) -> None:
        """Call `then` once everything committed so far is as durable as the store's `sync` mode asks.

        In the order of the calls. Where the last commit failed, it waits for one that works.
        """
        waiting = _Waiting(then)
        self._line.append(waiting)
        if self.error is None:
            self._sync(waiting)

    def _sync(self, waiting: _Waiting) -> None:
        future = self.journal.sync()
        if future is None:
            waiting.durable = True
            self._failing_since = None
            self._serve()
        else:
            waiting.syncing = True
            future.add_done_callback(partial(self._synced, waiting))

    def _synced(self, waiting: _Waiting, future: asyncio.Future[None]) -> None:
        if future.cancelled():
            return
        waiting.syncing = False
        error = future.exception()
        if error is None:
            waiting.durable = True
            if self.error is None:
                self._failing_since = None
            self._serve()
        else:
            self._fail(
                error if isinstance(error, StoreError) else StoreError("sync", "the log", cause=str(error), retryable=True)
            )

    def _serve(self) -> None:
        """Call those at the head of the line whose lines are durable."""
        if self._serving:
            return
        self._serving = True
        try:
            while self._line and self._line[0].durable:
                self._line.pop(0).then()
        finally:
            self._serving = False

    def _fail(self, error: StoreError) -> None:
        now = self._loop.time()
        if self._failing_since is None:
            self._failing_since = now
        if self.error is None:
            self._gave_up = False
            self._on_stuck(error)
        self.error = error
        if (not error.retryable or now - self._failing_since >= GIVE_UP) and not self._gave_up:
            self._gave_up = True
            self.give_up(error)
        if self._timer is None and not self._stopped:
            self._timer = self._loop.call_later(RETRY_EVERY, self._retry)

    def give_up(self, error: StoreError) -> None:
        """The disk has said no for too long: nobody shall wait for it without knowing."""
        self._on_give_up(error)
        for future in self._asked:
            if not future.done():
                future.set_exception(error)

    def _retry(self) -> None:
        self._timer = None
        self.commit()

    def _free(self) -> None:
        """It can be written. That is not the end of the trouble while somebody waits for a sync, which may fail again."""
        self.error = None
        if not self._line:
            self._failing_since = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._on_free()
        for waiting in list(self._line):
            if not waiting.syncing and not waiting.durable:
                self._sync(waiting)

    @property
    def gave_up(self) -> bool:
        """Whether the log could not be written, or synced, for GIVE_UP seconds, and still cannot."""
        return self.error is not None and self._gave_up

    def _raise_if_given_up(self) -> None:
        if self.error is not None and self._gave_up:
            raise self.error

    async def settled(self) -> None:
        """As `settle`, to be awaited. Raises StoreError after GIVE_UP seconds of failing."""
        self._raise_if_given_up()
        future: asyncio.Future[None] = self._loop.create_future()
        self.settle(lambda: None if future.done() else future.set_result(None))
        await self.unless_given_up(future)

    async def unless_given_up(self, future: asyncio.Future[None]) -> None:
        """Until it is done. Raises StoreError where that waits for a log that fails for GIVE_UP seconds."""
        self._raise_if_given_up()
        self._asked.append(future)
        try:
            await future
        finally:
            self._asked.remove(future)

    def stop(self) -> None:
        """No more retries: the session is closed."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
