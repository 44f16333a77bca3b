"""A history on a disk that says no: what may be said then, and that everything goes on when it is well again."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import inspect
import time
from collections.abc import Awaitable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from acpd.errors import AcpdError, RequestError, StoreError
from acpd.session import LiveSession
from tests.core.pipes import start
from tests.core.world import put_forward, until
from tests.crash.disk import refused
from tests.crash.examine import Examination
from tests.crash.histories import History
from tests.crash.promises import Violation
from tests.crash.scene import Scene

TICK = 0.004
"""Seconds of real time that threads have for what they do, before the clock is put forward."""
PATIENCE = 200
"""Ticks until something that waits is stuck for good: three minutes of the clock's time, but STALL seconds at least."""
STALL = 20
"""Seconds of real time in which a thread surely had its turn."""


class Fault(NamedTuple):
    """From call `at` of the seam on, `calls` of them fail; with `error` 0 a write is short in the place of failing."""

    error: int
    at: int
    calls: int
    only: frozenset[str] = frozenset()
    """Names of calls that can fail; empty: all."""

    def __str__(self) -> str:
        what = errno.errorcode.get(self.error, "short write")
        return f"{what} from call {self.at} for {self.calls} calls of {', '.join(sorted(self.only)) or 'any kind'}"


class Faulty:
    """One run of a history with a fault."""

    def __init__(self, scene: Scene, fault: Fault) -> None:
        self.scene = scene
        self.fault = fault
        self.hits = 0
        self.calls = 0
        self.told: list[str] = []
        """What was answered in the place of a result."""

    def _asked(self, call: str, path: str) -> int | None:
        self.calls += 1
        fault = self.fault
        if self.calls < fault.at or self.hits >= fault.calls or (fault.only and call not in fault.only):
            return None
        self.hits += 1
        if fault.error:
            raise refused(fault.error)
        return 1

    def well(self) -> None:
        self.scene.files.fault = None

    async def run(self, history: History) -> None:
        """Raises Violation."""
        self.scene.files.fault = self._asked
        await self._told(history(self.scene))
        self.well()
        await self._told(self._go_on(), expected=False)

    async def _told(self, work: Awaitable[None], *, expected: bool = True) -> None:
        """The work to its end. A failure must be one that a person can read."""
        try:
            await driven(work)
        except (StoreError, RequestError) as error:
            if not expected:
                raise Violation(f"the fault is gone and it does not go on: {error}") from error
            self._check_words(str(error))
        except AcpdError as error:
            raise Violation(f"a fault of the disk became {error!r}") from error
        for message in self.scene.editor.got:
            if "error" in message:
                self._check_words(message["error"]["message"])

    def _check_words(self, text: str) -> None:
        self.told.append(text)
        if "session" not in text and "/" not in text:
            raise Violation(f"an error that names nothing: {text!r}")

    async def _go_on(self) -> None:
        """Each session that lives takes a prompt and answers it, and so does a new one."""
        scene = self.scene
        for number, session in enumerate(list(scene.world.registry.live.values())):
            await until(partial(_is_well, session))  # it tries again each second
            if session.audience.attachment(scene.editor) is None:
                session.audience.start(session.attach(scene.editor))
            await self._over(session)
            await self._answered(session, f"on-{number}")
        await self._answered(await scene.new(), "on-new")

    async def _over(self, session: LiveSession) -> None:
        """The turn that the history left, if it left one."""
        session.cancel()
        ears = [ear for ear in self.scene.agents.ears if ear.session is session and ear.prompts]
        for ear in ears:
            ear.end("cancelled")
        await session.idle()

    async def _answered(self, session: LiveSession, name: str) -> None:
        answer = await self.scene.turn(session, name, "on")
        if "result" not in answer:
            raise Violation(f"the fault is gone and a prompt is answered {answer['error']}")


def _is_well(session: LiveSession) -> bool:
    return session.scribe.error is None and not session.scribe._line


async def driven(work: Awaitable[None]) -> None:
    """The work to its end; when nothing happens the clock is put forward. Raises what that raises; Violation if it hangs."""
    assert inspect.iscoroutine(work)
    task = start(work)
    ticks, stalled = 0, time.monotonic() + STALL
    while ticks < PATIENCE or time.monotonic() < stalled:
        await asyncio.wait([task], timeout=TICK)
        if task.done():
            await task
            return
        put_forward(1.0)
        ticks += 1
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    raise Violation("it hangs, with the fault or when it is gone")


async def with_fault(history: History, base: Path, fault: Fault, *, backend: str = "workspace") -> Faulty:
    """The history with this fault, to its end and on; then what was promised is looked for after a crash. Raises Violation."""
    scene = Scene(base / "history", backend=backend)
    faulty = Faulty(scene, fault)
    try:
        await scene.recovered()
        await faulty.run(history)
        failed = scene.world.failed
        wrong = [error for _, error in failed if not isinstance(error, StoreError | RequestError)]
        if wrong:
            raise Violation(f"a task failed: {wrong}")
    except Violation as violation:
        raise Violation(f"{fault}: {violation}") from violation
    finally:
        await scene.end()
    await Examination(scene, base, limit=2).run([len(scene.disk.steps)])
    return faulty
