"""The composition root: names to classes; start, serve, stop."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from acpd.agents.pool import AgentPool, Host
from acpd.agents.restore import Restorer
from acpd.config import AgentChoice, Config, Paths
from acpd.errors import AcpdError
from acpd.indexing import catch_up_all
from acpd.logger import Logger, Noise
from acpd.needs import Settings, Store
from acpd.registry import Registry
from acpd.router import Connection
from acpd.stores import open_store, resolve
from acpd.tasks import Tasks
from acpd.transports import stdio
from acpd.wire.ids import Clock

if TYPE_CHECKING:
    from acpd.agents.link import Runtime

_LINKS = "acpd_backends.links:LinkFolder"
UNPROMPTED_DAYS = 1
"""How long a session that nobody prompted is kept after its last client left."""
STOP_SECONDS = 8.0
"""For draining; then the agents that are left are killed."""
CLOSE_SECONDS = 2.0
"""For what is left then, and for closing each part of the store; after that the process ends all the same."""


def serve_stdio(config: Config, paths: Paths, choice: AgentChoice) -> int:
    """Serve one client on stdin and stdout until stdin ends or SIGTERM. The exit code.

    Raises AcpdError when the store cannot be opened.
    """
    stdin, stdout = stdio.claim()
    import uvloop

    daemon = Daemon(config, paths)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            code = runner.run(daemon.serve_stdio(choice, stdin, stdout))
            if daemon.stuck:  # in a thread, on a disk that does not answer: the interpreter would wait for it
                daemon.log.close()
                os._exit(code)
            return code
    finally:
        daemon.log.close()


class Daemon:
    """One store, its sessions, its agents."""

    def __init__(self, config: Config, paths: Paths) -> None:
        self._config = config
        self._paths = paths
        self.log = Logger(config.log.level)
        self._tasks = Tasks(self._failed)
        self._stopping: asyncio.Event | None = None
        self.stuck = False
        """Whether something could not be stopped in time."""

    def _failed(self, name: str, error: BaseException) -> None:
        if isinstance(error, AcpdError):
            self.log("warning", "task failed", task=name, error=str(error))
        else:
            self.log("error", "task failed", task=name, error=repr(error), exc_info=error)

    async def serve_stdio(self, choice: AgentChoice, stdin: int, stdout: int) -> int:
        stopping = self._stopping = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stopping.set)
        config = self._config
        settings = Settings(
            queue=config.sessions.queue,
            cancel_timeout=config.agents.cancel_timeout,
            stop_grace=config.agents.stop_grace,
            start_timeout=config.agents.start_timeout,
            primer_tokens=config.agents.primer_tokens,
            cancel_alone=config.sessions.on_disconnect == "cancel",
            keep_idle=config.sessions.keep_idle,
        )
        store = await self._open_store()
        runtime: Runtime = resolve(_LINKS)(Path(self._paths.runtime) / "links")
        known = {name: config.choose(name) for name in config.agents.programs}
        pool = AgentPool(runtime, settings, self._tasks, Noise(self.log), known)
        registry = Registry(store, Restorer(pool), settings, self._tasks, config.user)
        connection = Connection(registry, pool, Host(choice, dict(os.environ)), self._tasks, stopping.set)
        connection.log = lambda event, text: self.log("info", event, text=text)
        registry.complete.clear()
        self._tasks.spawn(self._recover(pool, registry), name="recover")
        self._tasks.spawn(pool.trim(), name="trim")
        await stdio.connect(connection.peer, stdin, stdout)
        gc.freeze()
        sys.setswitchinterval(0.0005)
        await stopping.wait()
        await self._stop(registry, pool, store, connection)
        return 0

    async def _recover(self, pool: AgentPool, registry: Registry) -> None:
        """What an earlier acpd left: agents, rows of sessions that it had open, sessions that nobody ever used."""
        try:
            await pool.end_leftovers()
            await registry.store.catalog.recover(registry.store.journals)
        finally:
            registry.complete.set()
        day_ago = Clock(lambda: time.time_ns() - UNPROMPTED_DAYS * 86_400_000_000_000).now()
        await registry.forget_unprompted(day_ago)
        await catch_up_all(registry.store, self._config.user, gently=True)

    async def _open_store(self) -> Store:
        return await asyncio.to_thread(open_store, self._config)

    async def _stop(self, registry: Registry, pool: AgentPool, store: Store, connection: Connection) -> None:
        """Drain: turns are recorded as interrupted, sessions saved, agents ended; then the store is closed."""
        drain = (partial(registry.stop, interrupt=True), pool.stop, self._tasks.cancel)
        drained = await self._steps(STOP_SECONDS, *drain) or await self._steps(CLOSE_SECONDS, pool.kill, *drain)
        connection.peer.close()
        closings = (store.journals.close, store.catalog.close, store.session.close)
        closed = [await self._steps(CLOSE_SECONDS, closing) for closing in closings]
        self.stuck = not (drained and all(closed))

    async def _steps(self, seconds: float, *steps: Callable[[], Awaitable[None]]) -> bool:
        """One after the other; whether all had their end in time."""
        try:
            async with asyncio.timeout(seconds):
                for step in steps:
                    await self._step(step())
        except TimeoutError:
            self.log("warning", "stopping took too long", seconds=seconds)
            return False
        return True

    async def _step(self, work: Awaitable[None]) -> None:
        """One step of stopping; one that fails keeps none of the others from being done."""
        try:
            await work
        except (AcpdError, OSError) as error:
            self.log("error", "stopping", error=str(error))
