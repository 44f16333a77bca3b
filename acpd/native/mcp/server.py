"""One server's life in a session: connected by one task, connected again when it died, ended with everything that it is.

A connection that was made and is lost is made again after 1, 2, 4, 8 and 16 seconds, and whenever a call wants it. A server
that runs on HTTP and was not there at first is looked for in the same way. Each trouble is told to the user once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from acpd.native.mcp.child import Child, Started, spawn
from acpd.native.mcp.failed import ENDED, ServerFailed, ServerFlooded
from acpd.native.plain import one_line
from acpd.native.toolbox import ToolFailed
from acpd.tasks import within

if TYPE_CHECKING:
    import mcp_types as types

    from acpd.api.session import Session
    from acpd.api.shapes import Severity
    from acpd.native.mcp.link import Link
    from acpd.native.mcp.spec import Spec
    from acpd.tasks import Tasks

T = TypeVar("T")
PATIENCE = 60.0
"""Seconds for a server to answer; the session does not wait so long. The first start of a package may download it."""
TRIES = 5
"""Attempts of our own after a loss, each after twice the time of the one before, from 1 second on."""
STEADY = 30.0
"""Seconds after which a server that was connected counts as a working one again."""
LOOK_AGAIN = 60.0
"""Seconds between looks for a server on HTTP that is not there, while the session is used."""


class Server:
    """One of the session's servers. `label`: its name for people, unique in the session."""

    def __init__(
        self, spec: Spec, label: str, session: Session, calls: Tasks, endings: Tasks, load: Callable[[], Awaitable[Any]]
    ) -> None:
        """`endings`: tasks that nobody cancels. `load`: gives acpd.native.mcp.link."""
        self.spec = spec
        self.label = label
        self.link: Link | None = None
        self.tools: list[types.Tool] = []
        """The list of the last connection: a server that died is started again by a call."""
        self.known = False
        """Whether it was ever connected."""
        self.why = ""
        """Why there is no connection; nothing in it is secret."""
        self._session = session
        self._calls = calls
        self._endings = endings
        self._load = load
        self._package: Any = None
        self._settled = asyncio.Event()
        """The attempt under way, if there is one, has come to an end, good or bad."""
        self._wanted = asyncio.Event()
        self._over = asyncio.Event()
        """The newest connection has ended, and `why` says why."""
        self._failed_at = 0.0
        self._since = 0.0
        self._told = False
        """The trouble that it has now was told."""
        self._warned: set[str] = set()
        """What is wrong with its list and was told."""
        self._waited = False
        """`open` has not waited for it."""
        self._forgotten = False
        """It does not know our session any more, as after its restart: that is nobody's trouble, connect anew."""
        self._flooded = False
        """The last connection was ended for that: only a call connects again."""
        self._child: Child | None = None
        self._children: set[Child] = set()
        """Processes that are not known to have ended."""

    async def opened(self, timeout: float) -> None:
        """Until it is connected or has failed; after `timeout` seconds the user is told that it takes longer."""
        try:
            async with asyncio.timeout(timeout):
                await self._settled.wait()
        except TimeoutError:
            self._waited = True
            self._tell(f"has not answered within {timeout:g} seconds", "The session goes on without it until it answers.")

    async def run(self) -> None:
        """For the whole session. Cancelling it ends the connection, and begins to end the process."""
        loop = asyncio.get_running_loop()
        failures = 0
        while True:
            began = loop.time()
            self._settled.clear()
            try:
                await self._connect()
            finally:
                self._failed_at = loop.time()
                self._over.set()
                if not self._wanted.is_set():  # by a call meanwhile, which waits for the next attempt
                    self._settled.set()
            failures = 1 if self.known and self._failed_at - began > STEADY else failures + 1
            again = (self.known or self.spec.kind != "stdio") and failures <= TRIES and not self._flooded
            try:
                async with asyncio.timeout(2.0 ** (failures - 1) if again else None):
                    await self._wanted.wait()
            except TimeoutError:
                continue
            finally:
                self._wanted.clear()

    async def _connect(self) -> None:
        """One connection from its beginning to its end, whose cause is `why` then."""
        self.why, self._flooded = "", False
        try:
            async with asyncio.timeout(PATIENCE) as limit:
                await self._talk(limit)
            self.why = ENDED
            await self._exited()
        except TimeoutError:
            self.why = f"it did not answer within {PATIENCE:g} seconds"
        except ServerFailed as failed:
            self.why, self._flooded = str(failed), isinstance(failed, ServerFlooded)
            await self._exited()
        finally:
            words = self._child.last_words() if self._child is not None else ""
            self.end()
        self._lost(words)

    async def _talk(self, limit: asyncio.Timeout) -> None:
        if self.spec.kind == "stdio":
            await self._start()
        self._package = await self._load()
        async with self._package.connected(self.spec, self._child, self._session.roots) as link:
            await link.greet()
            limit.reschedule(None)
            self._connected(link)
            try:
                await link.stay(self._listed)
            finally:
                self.link = None  # before its process has ended: a call that comes now connects again

    async def _exited(self) -> None:
        """The end of its output comes a moment before its own, which says more."""
        if self._child is not None and await self._child.ended(0.5) and self.why == ENDED:
            self.why = ""

    async def _start(self) -> None:
        spec = self.spec
        starting = asyncio.get_running_loop().run_in_executor(
            None, partial(spawn, spec.command, spec.environment(), str(self._session.cwd))
        )
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            self._endings.spawn(self._unwanted(starting), name=f"mcp-unwanted:{self.label}")
            raise
        self._child = self._born(starting)
        await self._child.drain()

    def _born(self, starting: asyncio.Future[Started]) -> Child:
        child = Child(starting.result())
        self._children.add(child)
        return child

    async def _unwanted(self, starting: asyncio.Future[Started]) -> None:
        """The session was closed while the process was being started."""
        await asyncio.wait([starting])
        if starting.exception() is None:
            self._child = self._born(starting)
            self.end()

    def end(self) -> None:
        """The process, if there is one, in a task that nobody cancels."""
        child, self._child = self._child, None
        if child is None:
            return

        async def end() -> None:
            await child.stop()
            self._children.discard(child)

        self._endings.spawn(end(), name=f"mcp-stop:{child.pid}")

    def _connected(self, link: Link) -> None:
        if self._waited and not self.known:
            self._notice("info", "is ready now")
        if not self.known:
            self._told = False
        self.link, self.known, self._over = link, True, asyncio.Event()
        self._since = asyncio.get_running_loop().time()
        self._listed(link.tools)
        self._settled.set()

    def _listed(self, tools: list[types.Tool]) -> None:
        """A tool that is listed twice cannot be told apart by a call: it counts once."""
        unique = {tool.name: tool for tool in reversed(tools)}
        twice = sorted({tool.name for tool in tools if unique[tool.name] is not tool})
        self._warn("lists a tool more than once", "Once is enough", twice)
        unusable = [] if self.link is None else self.link.unusable
        self._warn("has tools that no model can be offered", "Their arguments are described by too much", unusable)
        self.tools = list(reversed(unique.values()))

    def _warn(self, what: str, why: str, tools: list[str]) -> None:
        """Once in the session, if there are any such tools."""
        if tools and what not in self._warned:
            self._warned.add(what)
            names = self.spec.secrets.shown(", ".join(tools)[:200])
            self._notice("warning", what, f"{why}: {names}.")

    def _lost(self, words: str) -> None:
        """Say why there is no connection any more. `words`: those of its process."""
        self.why = self.spec.secrets.shown("; ".join(filter(None, (self.why, words))))[:1000]
        forgotten, self._forgotten = self._forgotten, False
        if forgotten:
            return
        if not self.known:
            self._tell("is not available", "The session goes on without it.")
            return
        if asyncio.get_running_loop().time() - self._since > STEADY:
            self._told = False
        self._tell("has ended" if self.spec.kind == "stdio" else "is gone", "It is connected again when it is needed.")

    def _tell(self, what: str, then: str) -> None:
        if not self._told:
            self._told = True
            cause = f"{self.why[:1].upper()}{self.why[1:]}. " if self.why else ""
            self._notice("warning", what, f"{cause}{then}")

    def _notice(self, severity: Severity, what: str, description: str = "") -> None:
        self._session.notice(severity, one_line(f"MCP server {self.label} {what}"), one_line(description))

    def look(self) -> None:
        """The session is used: a server on HTTP that was not there may be there by now."""
        now = asyncio.get_running_loop().time()
        if self.spec.kind != "stdio" and self._settled.is_set() and self.link is None and now - self._failed_at > LOOK_AGAIN:
            self._wanted.set()

    def begin(self, make: Callable[[Link], Coroutine[Any, Any, T]], timeout: float) -> asyncio.Task[T]:
        """Ask the server, connecting first where that is needed, which may take `timeout` seconds. Raises ToolFailed.

        Cancelling the task tells the server so; it need not be waited for.
        """
        return self._calls.spawn(self._ask(make, timeout), name=f"mcp:{self.label}", watched=True)

    async def _ask(self, make: Callable[[Link], Coroutine[Any, Any, T]], timeout: float) -> T:
        for last in (False, True):
            link = await self._linked(timeout)
            over = self._over
            try:
                return await make(link)
            except Exception as error:  # noqa: BLE001  whatever a server's answer does to the package costs this call only
                if forgotten := link.was_forgotten(error):
                    self._forgotten = True
                    link.end()
                cause = self._package.cause(error)
                if forgotten or cause == ENDED:
                    await within(2, over.wait())
                if last or not forgotten:
                    ended = f"it ended during this call: {self.why}. The next call connects again"
                    raise self.failed(ended if over.is_set() else cause) from None
        raise AssertionError("unreachable")

    async def _linked(self, timeout: float) -> Link:
        if self.link is None:
            if self._settled.is_set():
                self._settled.clear()
                self._wanted.set()
            try:
                async with asyncio.timeout(timeout):
                    await self._settled.wait()
            except TimeoutError:
                raise self.failed(f"it is not connected yet, after {timeout:g} seconds") from None
        if self.link is None:
            raise self.failed(f"it is not available: {self.why}")
        return self.link

    def failed(self, why: str) -> ToolFailed:
        """An error for the model, without secrets."""
        text = self.spec.secrets.shown(why)[:2000]
        return ToolFailed(f"MCP server {self.label}: {text if text.endswith(('.', '!', '?')) else f'{text}.'}")

    def kill(self) -> None:
        """What is left, at once."""
        for child in self._children:
            child.kill()
