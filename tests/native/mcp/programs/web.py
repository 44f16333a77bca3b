"""An MCP server over HTTP: `web.py TRANSPORT PORT`, which prints its port. It wants the header X-Key: $KEY.

TRANSPORT: sse, http (streamable, answers as events), json (streamable, answers as JSON), modern (2026-07-28 only).
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import uvicorn
from mcp.server.mcpserver import Context, MCPServer

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
server = MCPServer("web", instructions="Be quick.")
keys: list[str] = []


@server.tool()
def echo(text: str) -> str:
    return text


@server.tool()
def key() -> str:
    """The header that came with this call."""
    return keys[-1]


@server.tool()
def big(size: int) -> str:
    return "z" * size


@server.tool()
async def count(context: Context[Any]) -> str:
    for step in range(3):
        await context.report_progress(step + 1, 3, f"step {step + 1}")
        await asyncio.sleep(0.2)
    return "counted"


@server.tool()
async def chatter(context: Context[Any], words: int) -> str:
    for step in range(words):
        await context.report_progress(step + 1, words)
    return "chattered"


@server.tool()
async def slow() -> str:
    print("slow", flush=True)
    try:
        await asyncio.sleep(60)
    except BaseException:
        print("stopped", flush=True)
        raise
    return "slept"


@server.resource("mem://one")
def one() -> str:
    return "content of one"


def guarded(app: Any) -> Any:
    async def checked(scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            keys.append(dict(scope["headers"]).get(b"x-key", b"").decode())
            if keys[-1] != os.environ.get("KEY", ""):
                await send({"type": "http.response.start", "status": 401, "headers": []})
                await send({"type": "http.response.body", "body": b"who are you"})
                return
        await app(scope, receive, send)

    return checked


def main() -> None:
    transport, port = sys.argv[1], int(sys.argv[2])
    app = server.sse_app() if transport == "sse" else server.streamable_http_app(json_response=transport == "json")
    listening = socket.create_server(("127.0.0.1", port))
    print(listening.getsockname()[1], flush=True)
    config = uvicorn.Config(guarded(app), log_level="critical", timeout_graceful_shutdown=1)
    asyncio.run(uvicorn.Server(config).serve(sockets=[listening]))


main()
