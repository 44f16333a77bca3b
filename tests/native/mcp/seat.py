"""A session and a turn as the MCP code sees them, which remember what they were told."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self, cast

from acpd.api.session import Session
from acpd.api.shapes import McpServer, RemoteServer, StdioServer
from acpd.api.turn import Turn
from acpd.native.mcp.servers import Servers
from acpd.native.toolbox import Toolbox, ToolOutput
from tests.support.paths import SHARED

CORPUS = SHARED / "corpus" / "mcp"
OWN = Path(__file__).parent / "programs"


class Notice(NamedTuple):
    severity: str
    title: str
    description: str


class Call:
    """A tool call: every text that it showed, and how it ended."""

    def __init__(self) -> None:
        self.shown: list[str] = []
        self.failed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        return

    async def start(self) -> None:
        return

    async def text(self, text: str) -> None:
        self.shown.append(text)

    async def content(self, block: Mapping[str, object]) -> None:
        self.shown.append(str(block["type"]))

    async def finish(self, output: object = None) -> None:
        return

    async def fail(self, why: str, output: object = None) -> None:
        self.failed = True


class Seat:
    """Session and turn in one."""

    def __init__(self, cwd: Path, servers: tuple[McpServer, ...]) -> None:
        self.cwd = cwd
        self.roots = (cwd,)
        self.mcp_servers = servers
        self.choices = {"mode": "code"}
        self.notices: list[Notice] = []
        self.calls: list[Call] = []
        self.asked: list[str] = []
        self.questions: list[str] = []
        """As they are shown."""
        self.titles: list[str] = []

    @property
    def session(self) -> Seat:
        return self

    def notice(self, severity: str, title: str, description: str = "") -> None:
        self.notices.append(Notice(severity, title, description))

    def tool(self, title: str, **_: object) -> Call:
        self.calls.append(Call())
        self.titles.append(title)
        return self.calls[-1]

    async def allowed(self, call: Call, scope: str, what: str = "") -> bool:
        self.asked.append(scope)
        self.questions.append(what or scope)
        return True


class Opened:
    """A seat whose servers are open."""

    def __init__(self, seat: Seat, servers: Servers) -> None:
        self.seat = seat
        self.servers = servers
        self.toolbox = Toolbox((), servers.tools)

    @property
    def names(self) -> list[str]:
        return [tool.name for tool in self.servers.tools()]

    async def call(self, name: str, /, **arguments: Any) -> ToolOutput:
        return await self.toolbox.call(cast("Turn", self.seat), name, arguments)


@contextlib.asynccontextmanager
async def opened(cwd: Path, *servers: McpServer, timeout: float = 10.0) -> AsyncGenerator[Opened]:
    """The servers of a session, closed in the end."""
    seat = Seat(cwd, servers)
    own = Servers(cast("Session", seat), timeout=timeout)
    try:
        await own.open()
        yield Opened(seat, own)
    finally:
        await own.close()


def corpus(name: str, **env: str) -> StdioServer:
    """A server of the corpus."""
    return StdioServer(name, sys.executable, (str(CORPUS / f"{name}.py"),), env)


def program(name: str, *args: str, label: str = "", **env: str) -> StdioServer:
    """A server of this folder's."""
    return StdioServer(label or name, sys.executable, (str(OWN / f"{name}.py"), *args), env)


def remote(name: str, kind: Literal["http", "sse"], url: str, **headers: str) -> RemoteServer:
    return RemoteServer(name, kind, url, tuple(headers.items()))
