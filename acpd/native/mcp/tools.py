"""A server's tool as a tool of the session."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from acpd.native.mcp import results
from acpd.native.toolbox import Tool, ToolOutput

if TYPE_CHECKING:
    import mcp_types as types

    from acpd.api.calls import ToolCall
    from acpd.api.session import Session
    from acpd.api.turn import Turn
    from acpd.native.mcp.server import Server

IDLE = 300.0
"""Seconds that a call may take, or a server may be silent where it tells of its progress."""
LONGEST = 3600.0
"""Seconds that a call may take at most."""
MAX_DESCRIPTION = 8 * 1024
"""Characters."""


class McpTool(Tool):
    """Asks always, by server and tool: what a server says of its own tools (read-only and the like) is no promise."""

    def __init__(self, server: Server, name: str, tool: types.Tool, timeout: float) -> None:
        """`name`: the model's for it. `tool`: as a Link has it. `timeout`: seconds to connect again where that is needed."""
        secrets = server.spec.secrets
        self.name = name
        self.description = secrets.told(tool.description or tool.title or tool.name)[:MAX_DESCRIPTION]
        self.schema = tool.input_schema
        hints = tool.annotations
        self.kind = "read" if hints is not None and hints.read_only_hint else "other"
        shown = secrets.told(tool.title or (hints.title if hints else None) or tool.name)
        self._title = f"{server.label}: {shown}"[:200]
        self._scope = f"mcp:{server.label}/{tool.name}"
        self._server = server
        self._tool = tool.name
        self._timeout = timeout

    def title(self, session: Session, arguments: Mapping[str, Any]) -> str:  # noqa: ARG002  Tool's signature
        return self._title

    def scope(self, session: Session, arguments: Mapping[str, Any]) -> str:  # noqa: ARG002  Tool's signature
        return self._scope

    async def run(self, turn: Turn, call: ToolCall, arguments: Mapping[str, Any]) -> ToolOutput:  # noqa: ARG002  Tool's signature
        """Its progress is shown. Cancelling it tells the server so, and does not wait for it."""
        progress = Progress()
        asked = self._server.begin(lambda link: link.call(self._tool, arguments, progress.take), self._timeout)
        try:
            async with asyncio.timeout(LONGEST):
                await self._follow(asked, progress, call)
            return results.of_call(asked.result(), self._server.spec.secrets)
        except TimeoutError:
            raise self._server.failed(f"{self._tool} took too long and was cancelled") from None
        finally:
            asked.cancel()

    async def _follow(self, asked: asyncio.Task[Any], progress: Progress, call: ToolCall) -> None:
        """Until it is done. Raises TimeoutError where nothing happens."""
        pause = 1.0
        while not asked.done():
            news = progress.news()
            done, _ = await asyncio.wait({asked, news}, timeout=IDLE, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                raise TimeoutError
            if news.done() and not asked.done():
                await call.text(self._server.spec.secrets.told(progress.text))
                await asyncio.wait({asked}, timeout=pause)
                pause = min(pause * 1.5, 30.0)


class Progress:
    """The newest word of a server about a call: those that came between two looks are skipped."""

    def __init__(self) -> None:
        self.text = ""
        self._news: asyncio.Future[None] | None = None
        self._fresh = False

    async def take(self, progress: float, total: float | None, message: str | None) -> None:
        """As the `mcp` package calls it."""
        part = f"{progress:g}/{total:g}" if total else f"{progress:g}"
        self.text = f"{part} {message or ''}".strip()[:500]
        if self._news is not None and not self._news.done():
            self._news.set_result(None)
        else:
            self._fresh = True

    def news(self) -> asyncio.Future[None]:
        """Done when there is a word that was not looked at yet."""
        self._news = asyncio.get_running_loop().create_future()
        if self._fresh:
            self._news.set_result(None)
        self._fresh = False
        return self._news
