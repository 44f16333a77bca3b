"""All MCP servers of one session."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING

from acpd.native.mcp.failed import ServerFailed
from acpd.native.mcp.names import Names, labels
from acpd.native.mcp.reading import PROMPTS, RESOURCES, ReadPrompts, ReadResources
from acpd.native.mcp.server import Server
from acpd.native.mcp.spec import Spec
from acpd.native.mcp.tools import McpTool
from acpd.native.words import INSTALL
from acpd.tasks import Tasks, within

if TYPE_CHECKING:
    from acpd.api.session import Session
    from acpd.native.toolbox import Tool

TIMEOUT = 10.0
"""Seconds that a session waits for its servers, where nothing else is configured."""
GOODBYE = 0.5
"""Seconds for the end of calls, and of connections: servers are told of both."""
ENDING = 3.0
"""Seconds for the end of processes, after which what is left is killed and not waited for."""
MAX_INSTRUCTIONS = 4 * 1024
"""Characters of one server's instructions."""


class Servers:
    """Opened and closed with the session. None of its methods raises but CancelledError."""

    def __init__(self, session: Session, *, timeout: float = TIMEOUT) -> None:
        """`timeout`: seconds that `open` waits for a server."""
        self._session = session
        self._timeout = timeout
        self._names = Names((RESOURCES, PROMPTS))
        self._connections = Tasks(self._broken)
        self._calls = Tasks(self._broken)
        self._endings = Tasks(self._broken)
        """Processes that are being ended: nobody cancels these."""
        self._package: asyncio.Task[ModuleType] | None = None
        self._servers: list[Server] = []

    def _broken(self, name: str, error: BaseException) -> None:
        self._session.notice("error", "An MCP server is lost", f"Internal error in {name}: {type(error).__name__}.")

    async def open(self) -> None:
        """Connect all, each for itself. Returns when each is ready, has failed, or has not answered within the timeout.

        Failures are told to the user. A server that is late is used from then on.
        """
        specs = [Spec(given) for given in self._session.mcp_servers]
        for spec, label in zip(specs, labels([spec.name for spec in specs]), strict=True):
            server = Server(spec, label, self._session, self._calls, self._endings, self._load)
            self._servers.append(server)
            self._connections.spawn(server.run(), name=f"mcp:{label}")
        opening = [self._calls.spawn(server.opened(self._timeout), name=f"mcp-open:{server.label}") for server in self._servers]
        if opening:
            await asyncio.wait(opening)

    async def _load(self) -> ModuleType:
        """The module that needs the `mcp` package."""
        if self._package is None:
            self._package = self._calls.spawn(asyncio.to_thread(_import), name="mcp-import", watched=True)
        return await asyncio.shield(self._package)

    def tools(self) -> Sequence[Tool]:
        """Those of this moment. A server that died is still among them: a call starts it again."""
        found: list[Tool] = []
        for server in self._servers:
            server.look()
            for tool in server.tools:
                name = self._names.of(server.label, tool.name)
                found.append(McpTool(server, name, tool, self._timeout))
        if with_resources := [server for server in self._servers if server.link and server.link.resources]:
            found.append(ReadResources(with_resources, self._timeout))
        if with_prompts := [server for server in self._servers if server.link and server.link.prompts]:
            found.append(ReadPrompts(with_prompts, self._timeout))
        return found

    def instructions(self) -> str:
        """What the servers tell a model about their use."""
        said = [
            f"# MCP server {server.label}\n{server.spec.secrets.told(server.link.instructions)[:MAX_INSTRUCTIONS]}"
            for server in self._servers
            if server.link and server.link.instructions
        ]
        return "\n\n".join(said)

    async def close(self) -> None:
        """End all: EOF, SIGTERM, SIGKILL for processes. At most about five seconds, one where no server makes trouble on HTTP.
        Cancelling it kills what is left.
        """
        try:
            await _cancel(self._calls, GOODBYE)
            await _cancel(self._connections, GOODBYE)
            await _cancel(self._connections, GOODBYE)  # where the first cancel still waits for a goodbye
            for server in self._servers:
                server.end()  # where its connection has still not come to an end: that of one that floods is busy
            await within(ENDING, self._endings.drain())
        finally:
            for server in self._servers:
                server.kill()


def _import() -> ModuleType:
    """More than half a second. The package imports jsonschema at the first result with a schema, which would be on the loop.

    Raises ServerFailed if the packages are not installed.
    """
    try:
        importlib.import_module("jsonschema")
        return importlib.import_module("acpd.native.mcp.link")
    except ImportError as error:
        missing = f"acpd-agent has no library for MCP ({error.name or 'unknown module'} is missing)"
        raise ServerFailed(f"{missing} ({INSTALL})") from None


async def _cancel(tasks: Tasks, timeout: float) -> None:
    await within(timeout, tasks.cancel())
