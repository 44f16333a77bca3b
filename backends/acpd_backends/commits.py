"""Putting logs on disk: one sync at a time for a log, which serves all who wait for that log, and many logs at once.

The kernel does them by itself (acpd_backends.kernelsync), or else 8 threads do, as they do whatever is more than a sync. All
else runs on the event loop. Who asks while a sync of the same log runs waits for the next one: its
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
from typing import Any, NamedTuple, TypeVar

from acpd.errors import StoreError
from acpd_backends import kernelsync

T = TypeVar("T")
LIMIT = 8
Waiters = list[asyncio.Future[None]]


class SyncJob(NamedTuple):
    """Puts a log on disk."""

    size: int
    """How far the log is now."""
    run: Callable[[], None]
    """The whole of it, in a thread. Raises OSError, or StoreError for good."""
    descriptor: int
    """An fdatasync of this and then `check` are the whole of it; -1: they are not."""
    check: Callable[[], None]
    """On the loop. Raises as `run`."""


class Syncable(ABC):
    """What the committer needs of a log."""

    @abstractmethod
    def sync_job(self) -> SyncJob: ...

    @abstractmethod
    def synced(self, size: int) -> None: ...

    @abstractmethod
    def suspect(self, error: OSError | StoreError) -> StoreError:
        """Nothing may be appended until `repaired`; after a StoreError never again. The error for those who wait."""

    @abstractmethod
    def repair_job(self) -> Callable[[], int]:
        """The call that opens and verifies the log anew, in a thread. It raises OSError or StoreError."""

    @abstractmethod
    def repaired(self, descriptor: int | None, error: StoreError | None) -> None:
        """`error`: it stays suspect."""


class Committer:
    """The syncs of one store. `by_kernel`: where it can; else by threads alone."""

    def __init__(self, limit: int = LIMIT, *, by_kernel: bool = False) -> None:
        self._limit = limit
        self._by_kernel = by_kernel
        self._kernel: kernelsync.KernelSyncs | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._waiters: dict[Syncable, Waiters] = {}
        """Who waits for a sync that has not begun."""
        self._fresh: list[Syncable] = []
        """Logs that the kernel is asked for with the next turn of the loop, in one call."""
        self._flying: dict[Syncable, Waiters] = {}
        """Those that it has."""
        self._landed: asyncio.Future[None] | None = None
        """Done when it has none, and none are fresh."""
        self._queue: deque[Syncable] = deque()
        """For the threads."""
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
            self._put(log)
            self._start()
        return waiter

    def _put(self, log: Syncable) -> None:
        if not self._by_kernel:
            self._queue.append(log)
            return
        self._fresh.append(log)
        if len(self._fresh) == 1:
            asyncio.get_running_loop().call_soon(self._fly)
        if self._landed is None:
            self._landed = asyncio.get_running_loop().create_future()
            self._jobs.add(self._landed)

    def _fly(self) -> None:
        """Give the kernel what it can do, and the rest to the threads."""
        logs, self._fresh = self._fresh, []
        kernel = self._kernel = self._kernel or kernelsync.opened()
        self._by_kernel = kernel is not None
        able = [(log, job) for log in logs if (job := log.sync_job()).descriptor >= 0]
        taken = kernel.take([(job.descriptor, partial(self._land, log, job)) for log, job in able]) if kernel else 0
        for log, _ in able[:taken]:
            self._flying[log] = self._waiters.pop(log)
        self._running |= self._flying.keys()
        self._queue += [log for log in logs if log not in self._flying]
        self._start()
        self._look()

    def _land(self, log: Syncable, job: SyncJob, error: OSError | None) -> None:
        outcome = error if error is not None else _each([job.check])[0]
        self._over(log, self._flying.pop(log), job.size, outcome)
        self._start()
        self._look()

    def _look(self) -> None:
        if self._landed is not None and not self._fresh and not self._flying:
            self._jobs.discard(self._landed)
            self._landed.set_result(None)
            self._landed = None

    def _start(self) -> None:
        """Give what waits to the threads that are free, in equal shares: handing one over costs as much as a sync."""
        share = max(1, len(self._queue) // self._limit)
        while self._queue and self._active < self._limit:
            taken = [self._queue.popleft() for _ in range(min(share, len(self._queue)))]
            waiters = [self._waiters.pop(log) for log in taken]
            jobs = [log.sync_job() for log in taken]
            self._running.update(taken)
            self._active += 1
            work = self._run(partial(_each, [job.run for job in jobs]))
            work.add_done_callback(partial(self._done, taken, waiters, [job.size for job in jobs]))

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
            self._over(log, waiting, size, error)
        self._start()

    def _over(self, log: Syncable, waiters: Waiters, size: int, error: BaseException | None) -> None:
        if isinstance(error, OSError):
            self.repair(log, waiters, log.suspect(error))
            return
        if isinstance(error, StoreError):
            log.suspect(error)
        if error is None:
            log.synced(size)
        self._settle(log, waiters, error)

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
            self._put(log)

    async def close(self) -> None:
        """Wait for the syncs that were asked for. Cancelling this leaves them running."""
        while self._jobs or self._queue:
            await asyncio.wait(list(self._jobs))
        if self._kernel is not None:
            kernel, self._kernel = self._kernel, None
            await kernel.close()
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
