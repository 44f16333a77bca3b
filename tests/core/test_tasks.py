"""Tasks have an owner and a name, and none fails in silence."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path

import pytest

from acpd.errors import SessionNotFound
from acpd.tasks import Tasks
from tests.core.pipes import start
from tests.core.world import World


class Owner:
    def __init__(self) -> None:
        self.failed: list[tuple[str, str]] = []
        self.tasks = Tasks(lambda name, error: self.failed.append((name, str(error))))
        self.gate = asyncio.Event()

    async def wait(self) -> str:
        await self.gate.wait()
        return "done"

    async def fail(self) -> None:
        await self.gate.wait()
        raise ValueError("oh")


async def test_a_task_that_fails_is_reported_once() -> None:
    """By its name, with the error, to the owner; others go on."""
    owner = Owner()
    good, bad = owner.tasks.spawn(owner.wait(), name="good"), owner.tasks.spawn(owner.fail(), name="bad")
    assert (2, "bad") == (len(owner.tasks), bad.get_name())
    owner.gate.set()
    assert "done" == await good
    await owner.tasks.drain()
    assert ([("bad", "oh")], 0) == (owner.failed, len(owner.tasks))


async def test_who_awaits_a_watched_task_is_told_its_failure_and_nobody_else() -> None:
    """The owner is not; nor is anybody, asyncio's own log included, when who awaited it went away."""
    owner = Owner()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: owner.failed.append(("asyncio", context["message"])))
    tasks = [owner.tasks.spawn(owner.fail(), name=name, watched=True) for name in ("awaited", "left")]
    owner.gate.set()
    with pytest.raises(ValueError, match="oh"):
        await tasks[0]
    await owner.tasks.drain()
    tasks.clear()
    gc.collect()
    assert ([], 0) == (owner.failed, len(owner.tasks))


async def test_a_session_that_nobody_knows_is_no_failure_of_acpds(tmp_path: Path) -> None:
    """The answer to the client says so; acpd's own log would fill with the ids that clients remember."""
    async with World(tmp_path) as world:
        with pytest.raises(SessionNotFound):
            await world.registry.open("unknown")


async def test_draining_waits_for_those_that_start_meanwhile() -> None:
    """Until no task is left; cancelling it waits for nothing more and stops nothing."""
    owner = Owner()

    async def another() -> None:
        await owner.gate.wait()
        owner.tasks.spawn(owner.wait(), name="late")

    owner.tasks.spawn(another(), name="first")
    draining = start(owner.tasks.drain())
    await asyncio.sleep(0)
    draining.cancel()
    with pytest.raises(asyncio.CancelledError):
        await draining
    assert 1 == len(owner.tasks)
    owner.gate.set()
    await owner.tasks.drain()
    assert (0, []) == (len(owner.tasks), owner.failed)


async def test_cancelling_ends_all_but_the_caller() -> None:
    """A task may cancel all others of its owner, also those that take their time; cancelled is not failed."""
    owner = Owner()
    ended: list[str] = []

    async def slow() -> None:
        try:
            await owner.gate.wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            ended.append("slow")
            raise

    async def cancel() -> str:
        await owner.tasks.cancel()
        return "here"

    owner.tasks.spawn(slow(), name="slow")
    await asyncio.sleep(0)
    assert "here" == await owner.tasks.spawn(cancel(), name="cancel")
    assert (["slow"], []) == (ended, owner.failed)
