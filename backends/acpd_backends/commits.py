"""Putting logs on disk: at most 8 syncs at once, one per log, and one sync serves all who wait for that log.

Everything but the jobs runs on the event loop. Who asks while a sync of the same log runs waits for the next one: its
lines may have been written behind the first. A log whose sync failed is closed, opened again and verified before
anything is appended to it, because the kernel may have dropped the pages that it could not write.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from acpd.errors import StoreError

T = TypeVar("T")
LIMIT = 8
Waiters = list[asyncio.Future[None]]


class Syncable(ABC):
    """What the committer needs of a log. The two jobs run in a thread, the rest on the loop."""

    @abstractmethod
    def sync_job(self) -> tuple[int, Callable[[], None]]:
        """How far the log is now, and the call that puts so much on disk. That raises OSError, or StoreError for good."""

    @abstractmethod
    def synced(self, size: int) -> None: ...

    @abstractmethod
    def suspect(self, error: OSError | StoreError) -> StoreError:
        """Nothing may be appended until `repaired`; after a StoreError never again. The error for those who wait."""

    @abstractmethod
    def repair_job(self) -> Callable[[], int]:
        """The call that opens and verifies the log anew. It raises OSError or StoreError."""

    @abstractmethod
    def repaired(self, descriptor: int | None, error: StoreError | None) -> None:
        """`error`: it stays suspect."""


class Committer:
    """The syncs of one store."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._pool: ThreadPoolExecutor | None = None
        self._waiters: dict[Syncable, Waiters] = {}
        self._queue: deque[Syncable] = deque()
        self._running: set[Syncable] = set()
        self._active = 0
        self._jobs: set[asyncio.Future[Any]] = set()

    def wait(self, log: Syncable) -> asyncio.Future[None]:
        """Done when everything that this log has flushed until now is on disk. Cancelling it concerns nobody else."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiters = self._waiters.get(log)
        if waiters is not None:
            waiters.append(waiter)
            return waiter
        self._waiters[log] = [waiter]
        if log not in self._running:
            self._queue.append(log)
            self._start()
        return waiter

    def _start(self) -> None:
        """Give what waits to the threads that are free, in equal shares: handing one over costs as much as a sync."""
        share = max(1, len(self._queue) // self._limit)
        while self._queue and self._active < self._limit:
            taken = [self._queue.popleft() for _ in range(min(share, len(self._queue)))]
            waiters = [self._waiters.pop(log) for log in taken]
            sizes, jobs = zip(*(log.sync_job() for log in taken), strict=True)
            self._running.update(taken)
            self._active += 1
            work = self._run(partial(_each, jobs))
            work.add_done_callback(partial(self._done, taken, waiters, sizes))

    def _run(self, job: Callable[[], T]) -> asyncio.Future[T]:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._limit, thread_name_prefix="acpd-sync")
        work = asyncio.get_running_loop().run_in_executor(self._pool, job)
        self._jobs.add(work)
        work.add_done_callback(self._jobs.discard)
        return work

    def _done(
        self, logs: list[Syncable], waiters: list[Waiters], sizes: Sequence[int], work: asyncio.Future[list[Exception | None]]
    ) -> None:
        self._active -= 1
        failed = work.exception()
        outcomes = [failed] * len(logs) if failed is not None else work.result()
        for log, waiting, size, error in zip(logs, waiters, sizes, outcomes, strict=True):
            if isinstance(error, OSError):
                self.repair(log, waiting, log.suspect(error))
                continue
            if isinstance(error, StoreError):
                log.suspect(error)
            if error is None:
                log.synced(size)
            self._settle(log, waiting, error)
        self._start()

    def busy(self, log: Syncable) -> bool:
        """Whether a job of this log runs."""
        return log in self._running

    def repair(self, log: Syncable, waiters: Waiters, cause: StoreError) -> None:
        """Open and verify a suspect log; then `waiters` fail with `cause`."""
        self._running.add(log)
        work = self._run(log.repair_job())
        work.add_done_callback(partial(self._repaired, log, waiters, cause))

    def _repaired(self, log: Syncable, waiters: Waiters, cause: StoreError, work: asyncio.Future[int]) -> None:
        error = work.exception()
        log.repaired(None if error else work.result(), error if isinstance(error, StoreError) else None)
        self._settle(log, waiters, cause)
        self._start()

    def _settle(self, log: Syncable, waiters: Waiters, error: BaseException | None) -> None:
        for waiter in waiters:
            if waiter.done():
                continue
            if error is None:
                waiter.set_result(None)
            else:
                waiter.set_exception(error)
        self._running.discard(log)
        if log in self._waiters:
            self._queue.append(log)

    async def close(self) -> None:
        """Wait for the syncs that were asked for. Cancelling this leaves them running."""
        while self._jobs or self._queue:
            await asyncio.wait(list(self._jobs))
        if self._pool is not None:
            self._pool.shutdown(wait=False)
            self._pool = None


def _each(jobs: Sequence[Callable[[], None]]) -> list[Exception | None]:
    """Every job to its end; what each raised. In a thread."""
    outcomes: list[Exception | None] = []
    for job in jobs:
        try:
            job()
        except (OSError, StoreError) as error:
            outcomes.append(error)
        else:
            outcomes.append(None)
    return outcomes
