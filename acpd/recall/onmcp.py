"""The tools as an MCP server on stdin and stdout. Imports the `mcp` package, so that only `acpd mcp` imports this."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, cast

import anyio
import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

from acpd.errors import AcpdError
from acpd.recall.asker import Asker
from acpd.recall.calling import call
from acpd.recall.tools import Described, schema
from acpd.version import __version__
from acpd.wire.envelope import mend_surrogates

_Context = ServerRequestContext[Any]
_READS = types.ToolAnnotations(read_only_hint=True, open_world_hint=False)


async def serve(asker: Callable[[], Awaitable[Asker]], tools: Callable[[], Sequence[Described]]) -> None:
    """Until stdin ends. `asker` says for whom, `tools` which there are, at each call anew.

    What they raise of AcpdError is told to the model. Raises BrokenPipeError once nobody reads stdout any more.
    """
    one_by_one = asyncio.Lock()

    async def called(_: _Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        known = {tool.name: tool for tool in tools()}
        try:
            if params.name not in known:
                return _said(f"There is no tool {params.name[:100]}. There are: {', '.join(known)}.", failed=True)
            async with one_by_one:
                return _said(await call(await asker(), known[params.name], params.arguments or {}))
        except AcpdError as error:
            return _said(str(error), failed=True)

    async def listed(_: _Context, _params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        return _listed(tools())

    server: Server[Any] = Server("acpd", version=__version__, on_list_tools=listed, on_call_tool=called)
    try:
        async with stdio_server(cast("anyio.AsyncFile[str]", _lines())) as (reader, writer):
            await server.run(reader, writer, server.create_initialization_options())
    except BaseExceptionGroup as group:  # the package's tasks raise them so
        if group.split(BrokenPipeError)[1] is None:
            raise BrokenPipeError from None
        raise


async def _lines() -> AsyncIterator[str]:
    """Of stdin, with U+FFFD for half a character: the package reads no such line, and would leave it without an answer."""
    async for line in anyio.wrap_file(sys.stdin.buffer):
        yield mend_surrogates(line).decode(errors="replace")


def _listed(tools: Sequence[Described]) -> types.ListToolsResult:
    return types.ListToolsResult(
        tools=[
            types.Tool(name=tool.name, description=tool.description, input_schema=schema(tool.arguments), annotations=_READS)
            for tool in tools
        ]
    )


def _said(text: str, *, failed: bool = False) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(text=text)], is_error=failed)
