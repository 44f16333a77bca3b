"""`acpd serve`: many clients on Unix sockets, one daemon for a store; until it is told to stop, or nobody needs it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from acpd import systemd
from acpd.agents.pool import Host
from acpd.agents.process import allow_many_descriptors
from acpd.config import OFFLINE, AgentChoice, Config, Paths
from acpd.daemon import Daemon, Tenant
from acpd.errors import AcpdError, ConfigError, SessionBusy, StoreError
from acpd.logger import Logger
from acpd.peer import Peer
from acpd.reload import read_again, unread
from acpd.router import Connection
from acpd.rpc.protocol import Params
from acpd.session import LiveSession
from acpd.status import METHOD, Came, Lag, report
from acpd.storage.contract import Key
from acpd.transports import unix
from acpd.transports.shimlink import VERSION, Hello, ShimPeer
from acpd.transports.unix import Caller
from acpd.wire.envelope import encode

LOCK = Key(agent=".acpd", session=".acpd-daemon")
"""What a daemon holds of a store: a lease like a session's, of a name that no session has."""
LOCK_TIMEOUT = 18.0
"""Seconds that a daemon which a shim started waits for one that is stopping."""
SPARE = 8
"""Clients over the limit that may ask what the daemon does."""
LOOK = 1.0
"""Seconds between two looks at whether anybody needs a daemon that may end by itself."""


class Asked(NamedTuple):
    """What a shim's words and environment come to."""

    config: Config
    choice: AgentChoice


Understand = Callable[[Hello], Asked]
"""Blocks. Raises ConfigError."""


class Terms(NamedTuple):
    """How one daemon serves. `idle_exit`: seconds without a client and an agent until it ends; None: never."""

    path: str
    understand: Understand
    idle_exit: float | None = None
    patient: bool = False
    """Whether it waits for another daemon of this store that is ending."""
    inherited: Sequence[int] = ()
    """Listening sockets that a service manager passed: they are served instead of `path`."""
    ready: Callable[[], None] = lambda: None
    """Called when clients can connect."""
    prepare: Callable[[], object] = lambda: None
    """Called once they can, in a thread: what the first of them would wait for."""
    reload: Callable[[], Config] | None = None
    """Reads the configuration again. Blocks. Raises ConfigError."""


def serve(config: Config, paths: Paths, terms: Terms) -> int:
    """Serve until SIGTERM or SIGINT. The exit code. Raises AcpdError when it cannot begin."""
    import uvloop

    daemon = Daemon(config, paths, Logger.of_service(config.log, config.storage.path, os.environ))
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(Server(daemon, terms).run())
            if daemon.stuck:
                daemon.log.close()
                os._exit(0)
            return 0
    finally:
        daemon.log.close()


class Server:
    """See the module."""

    def __init__(self, daemon: Daemon, terms: Terms) -> None:
        self._daemon = daemon
        self._terms = terms
        self._stopping = asyncio.Event()
        self._at_once = asyncio.Event()
        """Set by a second signal: running turns are not waited for."""
        self._used = 0.0
        """Loop time when somebody was here last."""
        self._came: dict[Connection, Came] = {}
        self._lag = Lag()
        self._began = time.monotonic()

    async def run(self) -> None:
        daemon = self._daemon
        allow_many_descriptors()
        tenant = await daemon.tenant(daemon.config.user)
        await self._lock(tenant)
        try:
            await self._serve()
        finally:
            with contextlib.suppress(AcpdError):
                await tenant.store.lease.give_up(LOCK)
            await daemon.end_threads()

    async def _lock(self, tenant: Tenant) -> None:
        """Raises StoreError if another daemon has this store."""
        deadline = time.monotonic() + (LOCK_TIMEOUT if self._terms.patient else 0)
        while True:
            try:
                return await tenant.store.lease.take(LOCK)
            except SessionBusy as error:
                if time.monotonic() < deadline:
                    await asyncio.sleep(0.05)
                    continue
                path = self._daemon.config.storage.path
                who = f"acpd serve with pid {error.pid}" if error.pid else "another acpd serve"
                raise StoreError("serve", f"the store {path}", cause=f"{who} has it", hint="acpd status") from None

    async def _serve(self) -> None:
        daemon = self._daemon
        self._listen_to_signals()
        daemon.begin()
        sockets = [socket.socket(fileno=fd) for fd in self._terms.inherited] or [unix.bind(self._terms.path)]
        identity = None if self._terms.inherited else _identity(self._terms.path)
        daemon.on_closed = self._left
        servers = [await unix.listen(each, self._admit, daemon.tasks, self._limit) for each in sockets]
        daemon.settle_down()
        daemon.tasks.spawn(self._watch(), name="watch")
        daemon.log("info", "listening", path=self._terms.path, pid=os.getpid(), store=daemon.config.storage.path)
        self._terms.ready()
        daemon.tasks.spawn(asyncio.to_thread(self._terms.prepare), name="prepare")
        systemd.notify("READY=1")
        try:
            await self._stopping.wait()
        finally:
            for server in servers:  # who comes now starts the next daemon, which waits for the lock
                server.close()
            systemd.notify("STOPPING=1")
            await self._let_turns_end()
            await daemon.stop()
            daemon.log("info", "stopped", pid=os.getpid())
            if identity is not None and _identity(self._terms.path) == identity:
                os.unlink(self._terms.path)

    def _listen_to_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        loop.add_signal_handler(signal.SIGHUP, lambda: self._daemon.tasks.spawn(self._reload(), name="reload"))

    async def _reload(self) -> None:
        """The configuration is read again, and the file of the log begun anew, for whoever has moved it away."""
        self._daemon.log.reopen()
        if self._terms.reload is not None:
            old = self._daemon.config
            new = await asyncio.to_thread(read_again, old, self._terms.reload, self._daemon.log)
            self._daemon.reconfigure(new)

    def _stop(self) -> None:
        if self._stopping.is_set():
            self._at_once.set()
        self._daemon.log("info", "told to stop", again=self._stopping.is_set(), clients=len(self._daemon.connections))
        self._stopping.set()

    async def _let_turns_end(self) -> None:
        """Running turns have a while to end; then they are interrupted."""
        sessions = [each for tenant in self._daemon.tenants for each in tenant.registry.live.values()]
        ends = [self._daemon.tasks.spawn(each, name="drain", watched=True) for each in (_idle(sessions), self._at_once.wait())]
        await asyncio.wait(ends, timeout=self._daemon.config.daemon.drain, return_when=asyncio.FIRST_COMPLETED)
        for end in ends:
            end.cancel()

    async def _watch(self) -> None:
        """Say that we live; and stop when nobody has needed us for a while."""
        loop = asyncio.get_running_loop()
        watchdog = systemd.watchdog_interval(os.environ, os.getpid())
        self._used = loop.time()
        while True:
            due = time.monotonic() + (pause := min(LOOK, watchdog or LOOK))
            await asyncio.sleep(pause)
            self._lag.add(now := time.monotonic(), now - due)
            if watchdog is not None:
                systemd.notify("WATCHDOG=1")
            if self._daemon.connections or self._daemon.pool.links:
                self._used = loop.time()
            elif self._terms.idle_exit is not None and loop.time() - self._used >= self._terms.idle_exit:
                self._daemon.log("info", "nobody is here any more", seconds=self._terms.idle_exit)
                self._stopping.set()

    # -- who connects

    def _limit(self) -> int:
        return self._daemon.config.daemon.connections

    async def _admit(self, hello: Hello | None, caller: Caller) -> Peer:
        """See transports.unix.Admit."""
        self._check_room(hello, caller)
        if hello is None:
            config = self._daemon.config
            host = Host(config.choose(), systemd.without_ours(os.environ))
            return (await self._connected(config.user, caller, host)).peer
        if hello.version > VERSION:
            raise StoreError("serve", f"a shim of version {hello.version}", cause=f"this daemon knows {VERSION}")
        try:
            asked = await asyncio.to_thread(self._terms.understand, hello)
        except ConfigError:
            if not _only_looks(hello, caller):
                raise
            asked = Asked(self._daemon.config, self._daemon.config.choose(OFFLINE))
        self._check_store(asked.config)
        for old in [each for each in self._daemon.connections if each.token == hello.token]:
            old.peer.abort()  # its shim has lost it
        host = Host(asked.choice, hello.env, hello.cwd)
        return (await self._connected(asked.config.user, caller, host, hello)).peer

    def _check_room(self, hello: Hello | None, caller: Caller) -> None:
        """Raises StoreError where nobody else is served."""
        if self._stopping.is_set():
            raise StoreError("serve", "a new client", cause="acpd is stopping", hint="try again in a moment")
        limit, only_looks = self._limit(), _only_looks(hello, caller)
        if len(self._daemon.connections) >= limit + (SPARE if only_looks else 0):
            raise StoreError("serve", "a new client", cause=f"{limit} are connected", hint="raise [daemon] connections")

    async def _connected(self, user: str | None, caller: Caller, host: Host, hello: Hello | None = None) -> Connection:
        tenant = await self._daemon.tenant(user if caller.uid == os.geteuid() else _name_of(caller.uid))
        self._check_room(hello, caller)  # others came meanwhile, or the signal to stop
        more = {} if hello is None else {"peer": ShimPeer, "earlier": hello.earlier}
        made = self._daemon.connection(tenant, host, **more)
        made.runs = hello is not None and hello.runs
        self._came[made] = Came(caller, time.monotonic())
        kind = "shim" if hello is not None else "plain"
        self._daemon.log("info", "client came", connection=made.number, kind=kind, pid=caller.pid, uid=caller.uid)
        if caller.uid in {0, os.geteuid()}:  # others would see sessions that are not theirs
            made.own[METHOD] = self._status
        return made

    def _left(self, connection: Connection) -> None:
        self._came.pop(connection, None)
        self._daemon.log("info", "client left", connection=connection.number)

    async def _status(self, asking: Connection, _identifier: bytes, _params: Params) -> bytes:
        told = await report(self._daemon, self._came, asking)
        load = self._terms.reload
        changed = [] if load is None else await asyncio.to_thread(unread, self._daemon.config, load)
        now = time.monotonic()
        lag = {"last": round(self._lag.last, 4), "worst": round(self._lag.worst(now), 4)}
        more = {"socket": self._terms.path, "uptime": round(now - self._began, 1), "lag": lag, "unread": changed}
        return encode({**told, **more})

    def _check_store(self, asked: Config) -> None:
        ours, theirs = self._daemon.config.storage, asked.storage
        if (ours.backend, ours.path) != (theirs.backend, theirs.path):
            raise StoreError(
                "serve", f"the store {theirs.path} ({theirs.backend})", cause=f"this daemon has {ours.path} ({ours.backend})"
            )
        if ours.sync == "process" and theirs.sync == "power":  # more than was asked for is no reason
            raise StoreError("serve", 'a client that wants storage.sync = "power"', cause='this daemon has "process"')


def _only_looks(hello: Hello | None, caller: Caller) -> bool:
    """Whether this is our own user's `acpd status`, as acpd.cli.reaching says hello: it must work when little else does."""
    words = hello.arguments if hello is not None else ()
    return words[-1:] == ("status",) and all("=" in word for word in words[:-1]) and caller.uid in {0, os.geteuid()}


async def _idle(sessions: Sequence[LiveSession]) -> None:
    await asyncio.gather(*(each.idle() for each in sessions), return_exceptions=True)


def _name_of(uid: int) -> str:
    """A user of another uid has sessions of their own, named so."""
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid-{uid}"


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
