"""MCP servers that were not written here, through our agent's connections: server-everything on each transport, server-time."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

from acpd.api.shapes import McpServer, StdioServer
from tests.e2e.peers.install import Installed
from tests.native.mcp.seat import opened, remote
from tests.support import proc

pytestmark = pytest.mark.peers
Kind = Literal["stdio", "http", "sse"]


def everything(peers: Installed) -> tuple[str, str]:
    """Node, and the script: npm's own link would start it with whatever `node` comes first."""
    return str(peers.node_bin / "node"), str(Path(peers.command("mcp", "mcp-server-everything")).resolve())


@contextlib.contextmanager
def running(peers: Installed, kind: Kind, mark: str) -> Iterator[McpServer]:
    """server-everything as a session has it."""
    node, script = everything(peers)
    if kind == "stdio":
        yield StdioServer("everything", node, (script, "stdio"), {proc.MARK: mark})
        return
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    mode, path = ("sse", "sse") if kind == "sse" else ("streamableHttp", "mcp")
    env = {**os.environ, "PORT": str(port), proc.MARK: mark}
    with subprocess.Popen([node, script, mode], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            _wait_for(port)
            yield remote("everything", kind, f"http://127.0.0.1:{port}/{path}")
        finally:
            server.kill()


def _wait_for(port: int) -> None:
    end = time.monotonic() + 20
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        assert time.monotonic() < end, "server-everything does not listen"
        time.sleep(0.05)


@pytest.mark.parametrize("kind", ["stdio", "http", "sse"])
async def test_everything(mcp_peers: Installed, tmp_path: Path, kind: Kind) -> None:
    """Every kind of result, progress, resources and prompts of server-everything, on each of its transports."""
    mark = proc.new_mark()
    with running(mcp_peers, kind, mark) as server:
        async with opened(tmp_path, server, timeout=30) as session:
            assert [] == session.seat.notices
            assert "Echo: hi" == (await session.call("everything_echo", message="hi")).text
            assert "The sum of 2 and 3 is 5." == (await session.call("everything_get-sum", a=2, b=3)).text
            wrong = await session.call("everything_get-sum", a="x")
            assert wrong.failed
            image = await session.call("everything_get-tiny-image")
            assert ["image/png"] == [mime for _, mime in image.images]
            structured = await session.call("everything_get-structured-content", location="Chicago")
            assert isinstance(structured.structured, dict)
            assert "[demo://resource/" in (await session.call("everything_get-resource-links", count=2)).text
            assert "demo://resource/" in (await session.call("everything_get-resource-reference", resourceType="Text")).text
            assert tmp_path.as_uri() in (await session.call("everything_get-roots-list")).text
            listed = (await session.call("mcp_resources")).text
            uri = listed.split("[", 1)[1].split(",")[0].split("]")[0]
            assert uri in (await session.call("mcp_resources", uri=uri)).text
            assert "simple-prompt()" in (await session.call("mcp_prompts")).text
            long = await session.call("everything_trigger-long-running-operation", duration=2, steps=4)
            assert "completed" in long.text
            assert any("/4" in text for text in session.seat.calls[-1].shown[:-1])
            call = asyncio.ensure_future(session.call("everything_trigger-long-running-operation", duration=60))  # noqa: TID251
            await asyncio.sleep(0.3)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            assert "Echo: hi" == (await session.call("everything_echo", message="hi")).text
    proc.assert_none_left(mark, within=1)


async def test_time(mcp_peers: Installed, tmp_path: Path) -> None:
    """server-time tells the time, and what is wrong with a wrong question."""
    mark = proc.new_mark()
    program = mcp_peers.groups["mcp"].python.with_name("mcp-server-time")
    server = StdioServer("time", str(program), ("--local-timezone", "UTC"), {proc.MARK: mark})
    async with opened(tmp_path, server, timeout=30) as session:
        assert ["time_get_current_time", "time_convert_time"] == session.names
        assert '"timezone": "Europe/Vienna"' in (await session.call("time_get_current_time", timezone="Europe/Vienna")).text
        wrong = await session.call("time_get_current_time", timezone="Nowhere/Land")
        assert wrong.failed
        assert "Nowhere/Land" in wrong.text
        assert [] == session.seat.notices
    proc.assert_none_left(mark, within=1)
