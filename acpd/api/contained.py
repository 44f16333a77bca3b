"""An agent's code ends neither its process nor the loop of a program that calls it: SystemExit and their like are its failures.

asyncio lets SystemExit and KeyboardInterrupt of any task out of the loop. So every task that an agent's code starts, however
it does, is one in which they become `Escaped`: the loop's task factory knows these tasks by a context variable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any, TypeVar, cast

T = TypeVar("T")

_inside: ContextVar[bool] = ContextVar("acpd_agent", default=False)


class Escaped(RuntimeError):
    """What an agent's code has raised that is no Exception; that is the cause."""


async def contained(work: Coroutine[Any, Any, T]) -> T:
    """Raises Escaped in the place of what is no Exception, but for CancelledError. What it starts is contained too."""
    _inside.set(True)
    try:
        return await work
    except (Exception, asyncio.CancelledError):
        raise
    except BaseException as error:
        raise Escaped(f"an agent's code has raised {error!r}") from error


class _Factory:
    """A loop's task factory: that of before, but for tasks that are started by contained ones."""

    def __init__(self, before: Callable[..., Any] | None) -> None:
        self._before = before

    def __call__(self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], **more: Any) -> asyncio.Task[Any]:
        ours = _inside.get() and asyncio.iscoroutine(work)
        wanted = contained(work) if ours else work
        task: asyncio.Task[Any] = (self._before or _task)(loop, wanted, **more)
        if ours:
            task.add_done_callback(lambda _: work.close())  # one that was cancelled before it began
        return task


def _task(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], **more: Any) -> asyncio.Task[Any]:
    return asyncio.Task(work, loop=loop, **more)


def context() -> Context:
    """In which an agent's code is to run that is no coroutine. Its tasks on the running loop are contained from now on."""
    loop = asyncio.get_running_loop()
    before = loop.get_task_factory()
    if not isinstance(before, _Factory):
        loop.set_task_factory(cast("Any", _Factory(before)))
    made = copy_context()
    made.run(_inside.set, True)
    return made
