"""One connection to one server: opened, its lists read, calls sent. Imports the `mcp` package: import it in a thread.

The package's scopes are bound to the task that enters them: `connected` is entered and left by the server's one task. Requests
may be sent by any task.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import mcp_types as types
from mcp.client.session import ClientRequestContext, ClientSession, IncomingMessage
from mcp.client.subscriptions import SubscriptionLost, listen
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import FileUrl, ValidationError

from acpd.native.mcp import schemas, web
from acpd.native.mcp.failed import ENDED, ServerFailed, ServerFlooded
from acpd.native.mcp.pipe import Messages, talking
from acpd.native.mcp.streams import Meter, Reading, Writing
from acpd.tasks import within
from acpd.version import __version__

if TYPE_CHECKING:
    from mcp.shared.dispatcher import ProgressFnT

    from acpd.native.mcp.child import Child
    from acpd.native.mcp.spec import Spec

MAX_PAGES = 100
MAX_TOOLS = 1000
LISTING = 10.0
"""Seconds for a list that has changed."""
SETTLING = 0.2
"""Seconds between the news that a list has changed and its reading: they come in crowds. Twice as many each time, up to QUIET,
for a server that cannot stop."""
QUIET = 30.0
CLOSED = "Connection closed"
"""What the package says to requests when a connection ends; the same code is used where one answer is lost."""

for _name in ("mcp", "client", "httpx2", "httpcore2"):  # their records hold what servers wrote: nothing of it is logged
    _logger = logging.getLogger(_name)
    _logger.addHandler(logging.NullHandler())
    _logger.propagate = False
    _logger.setLevel(logging.CRITICAL)


Listed = Callable[[list[types.Tool]], None]
"""Told of the server's tools when they were read anew."""


class Link:
    """An open connection. Requests raise what `cause` makes a text of."""

    def __init__(self, session: ClientSession, refusal: web.Refusal) -> None:
        self._session = session
        self._refusal = refusal
        self._ended = asyncio.Event()
        self._news = asyncio.Event()
        """The list of tools has changed, or the connection has ended."""
        self.tools: list[types.Tool] = []
        """With schemas as models take them."""
        self.unusable: list[str] = []
        """The names of tools that are not among them, because their schemas cannot be mended."""
        self.resources = False
        """Whether the server has some."""
        self.prompts = False

    @property
    def instructions(self) -> str:
        return self._session.instructions or ""

    async def greet(self) -> None:
        """Handshake and first list. The old handshake first: servers that know it only may end at any other message."""
        try:
            await self._session.initialize()
        except MCPError as error:
            if error.code not in {types.UNSUPPORTED_PROTOCOL_VERSION, types.METHOD_NOT_FOUND} or self._ended.is_set():
                raise
            await self._session.discover()
        self.tools, self.resources, self.prompts = await asyncio.gather(
            self._list(), self._has_resources(), self._has_prompts()
        )

    async def _has_resources(self) -> bool:
        said = self._session.server_capabilities
        return said is not None and said.resources is not None and await self._any(self._resources())

    async def _resources(self) -> bool:
        listed = await self._session.list_resources()
        return bool(listed.resources or (await self._session.list_resource_templates()).resource_templates)

    async def _has_prompts(self) -> bool:
        said = self._session.server_capabilities
        return said is not None and said.prompts is not None and await self._any(self._prompts())

    async def _prompts(self) -> bool:
        return bool((await self._session.list_prompts()).prompts)

    async def _any(self, asked: Coroutine[Any, Any, bool]) -> bool:
        """Many servers say that they have what they have none of. One that cannot tell may have some."""
        try:
            async with asyncio.timeout(LISTING / 2):
                return await asked
        except (MCPError, ValidationError, TimeoutError):
            return not self._ended.is_set()

    async def _list(self) -> list[types.Tool]:
        """All pages, as far as they go on; at most MAX_TOOLS, without those that run as tasks only."""
        said = self._session.server_capabilities
        if said is None or said.tools is None:
            return []
        tools: list[types.Tool] = []
        cursor: str | None = None
        seen: set[str] = set()
        for _ in range(MAX_PAGES):
            page = await self._session.list_tools(params=types.PaginatedRequestParams(cursor=cursor) if cursor else None)
            tools += page.tools
            cursor = page.next_cursor
            if not cursor or cursor in seen or len(tools) >= MAX_TOOLS:
                break
            seen.add(cursor)
        callable_ = [tool for tool in tools[:MAX_TOOLS] if tool.execution is None or tool.execution.task_support != "required"]
        usable, self.unusable = await asyncio.to_thread(_usable, callable_)
        return usable

    async def stay(self, listed: Listed) -> None:
        """Until the connection ends: read the list again when the server says that it has changed."""
        if self._session.protocol_version in MODERN_PROTOCOL_VERSIONS:
            await self._listen(listed)
        else:
            await self._follow(listed)

    async def _listen(self, listed: Listed) -> None:
        """By the newer protocol, where one asks for such news."""
        try:
            async with listen(self._session, tools_list_changed=True) as news:
                async for _ in news:
                    await self._again(listed)
        except (MCPError, SubscriptionLost):
            pass  # a server that does not tell
        await self._ended.wait()

    async def _follow(self, listed: Listed) -> None:
        pause = SETTLING
        while not self._ended.is_set():
            quiet = asyncio.get_running_loop().time() + QUIET
            await self._news.wait()
            pause = SETTLING if asyncio.get_running_loop().time() > quiet else min(2 * pause, QUIET)
            await within(pause, self._ended.wait())
            if not self._ended.is_set():
                self._news.clear()
                await self._again(listed)

    async def _again(self, listed: Listed) -> None:
        try:
            async with asyncio.timeout(LISTING):
                self.tools = await self._list()
        except (MCPError, ValidationError, TimeoutError):
            return  # the old list stands
        listed(self.tools)

    def told(self, message: IncomingMessage) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self._news.set()
        elif isinstance(message, types.ResourceListChangedNotification):
            self.resources = True
        elif isinstance(message, types.PromptListChangedNotification):
            self.prompts = True

    def end(self) -> None:
        """The connection is no more, or of no more use."""
        self._ended.set()
        self._news.set()

    def was_forgotten(self, error: BaseException) -> bool:
        """Whether it failed because the server does not know our session any more: it was not done."""
        return self._refusal.forgotten and isinstance(error, MCPError) and "session" in error.message.lower()

    async def call(self, tool: str, arguments: Mapping[str, Any], progress: ProgressFnT) -> types.CallToolResult:
        """Cancelling it tells the server (notifications/cancelled)."""
        return await self._session.call_tool(tool, dict(arguments), progress_callback=progress)

    async def list_resources(self, cursor: str | None) -> types.ListResourcesResult:
        return await self._session.list_resources(params=_page(cursor))

    async def list_templates(self) -> types.ListResourceTemplatesResult:
        return await self._session.list_resource_templates()

    async def read_resource(self, uri: str) -> types.ReadResourceResult:
        return await self._session.read_resource(uri)

    async def list_prompts(self, cursor: str | None) -> types.ListPromptsResult:
        return await self._session.list_prompts(params=_page(cursor))

    async def get_prompt(self, name: str, arguments: Mapping[str, str]) -> types.GetPromptResult:
        return await self._session.get_prompt(name, dict(arguments))


def _usable(tools: list[types.Tool]) -> tuple[list[types.Tool], list[str]]:
    """Those whose schemas every provider takes now, and the names of the others."""
    usable: list[types.Tool] = []
    others: list[str] = []
    for tool in tools:
        try:
            usable.append(tool.model_copy(update={"input_schema": schemas.plain(tool.input_schema)}))
        except schemas.Unusable:
            others.append(tool.name)
    return usable, others


def _page(cursor: str | None) -> types.PaginatedRequestParams | None:
    return types.PaginatedRequestParams(cursor=cursor) if cursor else None


@asynccontextmanager
async def connected(spec: Spec, child: Child | None, roots: tuple[Path, ...]) -> AsyncGenerator[Link]:
    """A connection; `greet` it. `child`: the server's process, for stdio. What goes wrong is raised as ServerFailed."""
    meter = Meter()
    refusal = web.Refusal(meter)
    messages: Any = None
    try:
        async with _streams(spec, child, refusal, meter) as (messages, unmeasured):
            writing = Writing(unmeasured)
            stream = Reading(messages, meter, writing)
            async with _session(stream, writing, roots, refusal) as link:
                stream.on_end = meter.on_fault = link.end
                yield link
        if meter.fault or (isinstance(messages, Messages) and messages.fault):
            raise ServerFailed(meter.fault or messages.fault)
    except Exception as error:  # noqa: BLE001  the package's task groups raise whatever its transports meet; it costs this server only
        if meter.fault:
            raise ServerFlooded(meter.fault) from None
        fault = messages.fault if isinstance(messages, Messages) else refusal.status
        raise ServerFailed(fault or cause(error)) from None


@asynccontextmanager
async def _session(reading: Any, writing: Any, roots: tuple[Path, ...], refusal: web.Refusal) -> AsyncGenerator[Link]:
    links: list[Link] = []

    async def told(message: IncomingMessage) -> None:
        for link in links:
            link.told(message)

    async def list_roots(context: ClientRequestContext) -> types.ListRootsResult:  # noqa: ARG001  the package's signature
        return types.ListRootsResult(roots=[types.Root(uri=FileUrl(root.as_uri()), name=root.name) for root in roots])

    client = types.Implementation(name="acpd-agent", version=__version__)
    async with ClientSession(
        reading, writing, message_handler=told, list_roots_callback=list_roots, client_info=client
    ) as session:
        links.append(Link(session, refusal))
        yield links[0]


def _streams(spec: Spec, child: Child | None, refusal: web.Refusal, meter: Meter) -> Any:
    if child is not None:
        return talking(child, meter)
    return web.events(spec, refusal) if spec.kind == "sse" else web.streaming(spec, refusal)


def _leaf(error: BaseException) -> BaseException:
    """The first error in a group of groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def cause(error: BaseException) -> str:
    """What went wrong, in words, bounded; values are not hidden yet."""
    error = _leaf(error)
    if isinstance(error, httpx2.HTTPStatusError):
        return f"HTTP {error.response.status_code} {error.response.reason_phrase}".strip()
    if isinstance(error, ValidationError):
        places = ", ".join(sorted({".".join(map(str, item["loc"][:3])) for item in error.errors(include_input=False)})[:3])
        return f"its answer breaks the rules of MCP (at {places})"
    if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout):
        return "it cannot be reached"
    if isinstance(error, MCPError) and error.message == CLOSED:
        return ENDED
    if isinstance(error, TimeoutError | httpx2.TimeoutException):
        return "it did not answer in time"
    return (str(error) or type(error).__name__)[:1000]
