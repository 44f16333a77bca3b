"""The composition root: names to classes; start, serve, stop."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import replace

from acpd.agents.pool import AgentPool, Host
from acpd.agents.restore import Restorer
from acpd.config import AgentChoice, Config, Paths, tools_command
from acpd.errors import AcpdError
from acpd.indexing import REST, catch_up_all
from acpd.logger import Logger, Noise
from acpd.needs import Settings, Store
from acpd.ownagent import NATIVE
from acpd.registry import Registry
from acpd.router import Connection
from acpd.stores import open_store, resolve
from acpd.tasks import Tasks
from acpd.transports import stdio
from acpd.wire.ids import Clock

if TYPE_CHECKING:
    from acpd.agents.link import Runtime

_LINKS = "acpd_backends.links:LinkFolder"
DELAY = 5.0
"""Seconds after a start in which nothing is done that nobody waits for: an editor loads its sessions then."""
TENANT_IDLE = 300.0
"""Seconds, at least, for which a user's store stays open that nobody is connected to and that has no session open."""
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


class Tenant(NamedTuple):
    """What one user has in this process."""

    store: Store
    registry: Registry


class Daemon:
    """One store, its sessions, its agents. Who connects, and how, is the caller's."""

    def __init__(self, config: Config, paths: Paths, log: Logger | None = None) -> None:
        """`log`: without one it goes to stderr."""
        self.config = config
        self.paths = paths
        self.log = log if log is not None else Logger(config.log.level)
        self.tasks = Tasks(self._failed)
        self.connections: set[Connection] = set()
        self.stuck = False
        """Whether something could not be stopped in time."""
        runtime: Runtime = resolve(_LINKS)(Path(paths.runtime) / "links")
        self._settings = _settings(config)
        self.pool = AgentPool(runtime, self._settings, self.tasks, Noise(self.log), _known(config))
        self._tenants: dict[str | None, Tenant] = {}
        self._opening: dict[str | None, asyncio.Task[Tenant]] = {}
        self._recovering: dict[str | None, asyncio.Task[None]] = {}
        self._unused: set[str | None] = set()
        """Users of whose store nobody had a use at the last look."""
        self._numbers = itertools.count(1)
        self._begun = asyncio.Event()
        """Set when the store is ours: only then is anything of it put right."""
        self._leftovers: asyncio.Task[int] | None = None
        self.on_closed: Callable[[Connection], None] = lambda _: None
        """Told of each connection that has ended."""

    def _failed(self, name: str, error: BaseException) -> None:
        if isinstance(error, AcpdError):
            self.log("warning", "task failed", task=name, error=str(error))
        else:
            self.log("error", "task failed", task=name, error=repr(error), exc_info=error)

    def begin(self) -> None:
        """What runs as long as the process does. Call it once, on the loop, when no other daemon has the store."""
        self._leftovers = self.tasks.spawn(self.pool.end_leftovers(), name="leftovers")
        self._begun.set()
        self.tasks.spawn(self.pool.trim(), name="trim")
        self.tasks.spawn(self._look_at_tenants(), name="tenants")

    def reconfigure(self, config: Config) -> None:
        """What may change while it runs is in force from now on: for new agents, new turns, new connections."""
        before, now = _known(self.config), _known(config)
        for connection in self.connections:
            host = connection.host
            if host.choice == before.get(host.choice.name):
                host.choice = now.get(host.choice.name, host.choice)
        self.config = config
        self._settings = _settings(config)
        self.pool.settings, self.pool.known = self._settings, now
        for tenant in self.tenants:
            tenant.registry.reconfigure(self._settings)
        self.log.level(config.log.level)

    def settle_down(self) -> None:
        """All that a start needs is there: the collector need not look at it again, and threads wait for each other less."""
        gc.freeze()
        sys.setswitchinterval(0.0005)

    async def tenant(self, user: str | None) -> Tenant:
        """Opened once. Raises AcpdError when the store cannot be opened; the next call tries again."""
        self._unused.discard(user)
        if (known := self._tenants.get(user)) is not None:
            return known
        if (opening := self._opening.get(user)) is None:
            opening = self._opening[user] = self.tasks.spawn(self._open(user), name="open", watched=True)
            opening.add_done_callback(lambda _: self._opening.pop(user))
        return await asyncio.shield(opening)

    async def _open(self, user: str | None) -> Tenant:
        store = await asyncio.to_thread(open_store, replace(self.config, user=user))
        registry = Registry(store, Restorer(self.pool), self._settings, self.tasks, user)
        registry.complete.clear()
        registry.compared = False
        recovering = self._recovering[user] = self.tasks.spawn(self._recover(registry), name="recover")
        recovering.add_done_callback(lambda _: self._recovering.pop(user, None))
        made = self._tenants[user] = Tenant(store, registry)
        return made

    async def _look_at_tenants(self) -> None:
        while True:
            await asyncio.sleep(TENANT_IDLE)
            await self.close_unused()

    async def close_unused(self) -> None:
        """Close the stores of users that have no client and no open session, if it was so the last time too; ours stays."""
        connected = {connection.registry for connection in self.connections}
        idle = {
            user
            for user, tenant in self._tenants.items()
            if user != self.config.user and user not in self._recovering and tenant.registry not in connected
            if not tenant.registry.busy
        }
        gone = [self._tenants.pop(user) for user in idle & self._unused]
        self._unused = idle & self._tenants.keys()
        for store, _ in gone:
            for part in (store.journals, store.catalog, store.session):
                await self._step(part.close())

    @property
    def tenants(self) -> list[Tenant]:
        """Those that are open."""
        return list(self._tenants.values())

    def connection(self, tenant: Tenant, host: Host, **more: Any) -> Connection:
        """A new one; `more` as Connection takes it. It leaves `connections` when its stream ends."""
        made: Connection

        def closed() -> None:
            self.connections.discard(made)
            self.on_closed(made)

        made = Connection(tenant.registry, self.pool, host, self.tasks, closed, **more)
        number = next(self._numbers)
        made.number = number
        made.log = partial(self.log.bind(connection=number), "info")
        self.connections.add(made)
        return made

    async def serve_stdio(self, choice: AgentChoice, stdin: int, stdout: int) -> int:
        stopping = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stopping.set)
        self.begin()
        tenant = await self.tenant(self.config.user)
        connection = self.connection(tenant, Host(choice, dict(os.environ)))
        self.on_closed = lambda _: stopping.set()
        await stdio.connect(connection.peer, stdin, stdout)
        self.settle_down()
        await stopping.wait()
        await self.stop()
        await self.end_threads()
        return 0

    async def _recover(self, registry: Registry) -> None:
        """What an earlier acpd left: agents, rows of sessions that it had open.

        Then, gently: what others did to the logs, sessions that nobody ever used, what cannot be searched yet.
        """
        await self._begun.wait()
        try:
            if self._leftovers is not None:
                await asyncio.wait([self._leftovers])
            await registry.store.catalog.mend(registry.store.journals)
        finally:
            registry.complete.set()
        await asyncio.sleep(DELAY)
        await registry.store.catalog.compare(registry.store.journals, rest=REST)
        registry.compared = True
        day_ago = Clock(lambda: time.time_ns() - UNPROMPTED_DAYS * 86_400_000_000_000).now()
        await registry.forget_unprompted(day_ago)
        await catch_up_all(registry.store, registry.user, gently=True)

    async def stop(self) -> None:
        """Nothing more of a client is handled: its shim sends it to the next daemon, where it is not interrupted.

        Then turns are recorded as interrupted, sessions saved, agents ended; then the stores are closed.
        """
        for connection in self.connections:
            connection.peer.hold("stopping")
        drain = (self._close_sessions, self.pool.stop, self.tasks.cancel)
        drained = await self._steps(STOP_SECONDS, *drain) or await self._steps(CLOSE_SECONDS, self.pool.kill, *drain)
        for connection in list(self.connections):
            connection.peer.close()
        closings = [part.close for store, _ in self.tenants for part in (store.journals, store.catalog, store.session)]
        closed = [await self._steps(CLOSE_SECONDS, closing) for closing in closings]
        self.stuck = not (drained and all(closed))

    async def end_threads(self) -> None:
        """The last step: one may block, e.g. on a file that is a pipe, and the interpreter would wait for it."""
        if not await self._steps(CLOSE_SECONDS, asyncio.get_running_loop().shutdown_default_executor):
            self.stuck = True

    async def _close_sessions(self) -> None:
        await asyncio.gather(*(self._step(registry.stop(interrupt=True)) for _, registry in self.tenants))

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


def _known(config: Config) -> dict[str, AgentChoice]:
    own = [NATIVE] if config.agents.native is not None else []
    return {name: config.choose(name) for name in (*config.agents.programs, *own)}


def _settings(config: Config) -> Settings:
    return Settings(
        queue=config.sessions.queue,
        cancel_timeout=config.agents.cancel_timeout,
        stop_grace=config.agents.stop_grace,
        start_timeout=config.agents.start_timeout,
        primer_tokens=config.agents.primer_tokens,
        cancel_alone=config.sessions.on_disconnect == "cancel",
        keep_idle=config.sessions.keep_idle,
        agents=config.daemon.agents,
        tools=tools_command(config) if config.sessions.tools else (),
    )
