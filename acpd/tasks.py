"""Tasks with an owner and a name. The only place that creates one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Tasks:
    """The tasks of one owner. A task that fails with anything but cancellation is reported, never lost.

    `on_error(name, error)` is called on the loop, once for each failed task that is not `watched`.
    """

    __slots__ = ("_on_error", "_tasks")

    def __init__(self, on_error: Callable[[str, BaseException], None]) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._on_error = on_error

    def __len__(self) -> int:
        return len(self._tasks)

    def spawn(self, work: Coroutine[Any, Any, T], *, name: str, watched: bool = False) -> asyncio.Task[T]:
        """`watched`: its failure is the business of who awaits it. If nobody does any more, it does not matter."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(self._seen if watched else self._done)
        return task

    def _seen(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled():
            task.exception()  # or asyncio reports it

    def _done(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_error(task.get_name(), error)

    async def drain(self) -> None:
        """Wait until all tasks have ended, those too that start meanwhile. Cancelling this waits for nothing more."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def cancel(self) -> None:
        """Cancel all tasks and wait for their end."""
        current = asyncio.current_task()
        while tasks := [task for task in self._tasks if task is not current]:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)


async def within(seconds: float, work: Coroutine[Any, Any, object]) -> None:
    """Do it, or as much of it as there is time for."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await work
