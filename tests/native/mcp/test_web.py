"""Servers over streamable HTTP and SSE: headers, progress, cancellation, big results, their restart, their absence."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Literal

import pytest

from acpd.native.mcp import streams
from tests.native.mcp.seat import OWN, opened, remote

Kind = Literal["http", "sse"]
pytestmark = pytest.mark.e2e
SECRET = "canary-4711-header"
TRANSPORTS = ["http", "json", "sse"]


class Web:
    """A running server."""

    def __init__(self, transport: str, port: int = 0) -> None:
        command = [sys.executable, str(OWN / "web.py"), transport, str(port)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "KEY": SECRET})
        self.transport = transport
        self.port = int(self.line())

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    @property
    def kind(self) -> Kind:
        return "sse" if self.transport == "sse" else "http"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/{'sse' if self.transport == 'sse' else 'mcp'}"

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture(params=TRANSPORTS)
def web(request: pytest.FixtureRequest) -> Iterator[Web]:
    """A server on each transport."""
    with contextlib.closing(_Closing(Web(request.param))) as running:
        yield running.web


class _Closing:
    def __init__(self, web: Web) -> None:
        self.web = web

    def close(self) -> None:
        self.web.end()


@pytest.fixture(autouse=True)
def no_descriptor_is_left() -> Iterator[None]:
    """What a session opened is closed with it."""
    before = len(os.listdir("/proc/self/fd"))
    yield
    assert len(os.listdir("/proc/self/fd")) <= before + 1


async def test_calls_with_headers(tmp_path: Path, web: Web) -> None:
    """Every request has the given headers, whose values are hidden from the model; progress is shown; resources are read."""
    async with opened(tmp_path, remote("web", web.kind, web.url, **{"X-Key": SECRET})) as session:
        assert [] == session.seat.notices
        assert "hi" == (await session.call("web_echo", text="hi")).text
        assert "***" == (await session.call("web_key")).text
        assert "content of one" in (await session.call("mcp_resources", uri="mem://one")).text
        assert "counted" == (await session.call("web_count")).text
        shown = [text for call in session.seat.calls for text in call.shown if "step" in text]
        assert bool(shown) == (web.transport != "json")  # an answer in one piece has no room for progress
        assert "Be quick." in session.servers.instructions()


@pytest.mark.parametrize("web", ["http", "sse"], indirect=True)
async def test_a_flood(tmp_path: Path, web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that says too much is given up here too, and works again when it is called."""
    monkeypatch.setattr(streams, "BURST", 200)
    async with opened(tmp_path, remote("web", web.kind, web.url, **{"X-Key": SECRET})) as session:
        assert "chattered" == (await session.call("web_chatter", words=100)).text
        monkeypatch.setattr(streams, "PER_SECOND", 1)
        output = await session.call("web_chatter", words=2000)
        assert output.failed
        assert "it floods" in output.text
        assert ["MCP server web is gone"] == [notice.title for notice in session.seat.notices]
        assert "hi" == (await session.call("web_echo", text="hi")).text


async def test_a_wrong_key(tmp_path: Path, web: Web) -> None:
    """A refusal is told with its status and without the header."""
    async with opened(
        tmp_path, remote("web", web.kind, f"{web.url}?token=canary-4711", **{"X-Key": f"wrong-{SECRET}"})
    ) as session:
        (notice,) = session.seat.notices
        assert "HTTP 401 Unauthorized. The session goes on without it." == notice.description
        assert "canary" not in repr(session.seat.notices)


@pytest.mark.parametrize("kind", ["http", "sse"])
async def test_nobody_listens(tmp_path: Path, kind: Kind) -> None:
    """A server that is not there is told at once."""
    began = time.monotonic()
    async with opened(tmp_path, remote("web", kind, "http://127.0.0.1:9/mcp", **{"X-Key": SECRET})) as session:
        assert time.monotonic() - began < 5
        assert [("MCP server web is not available", "It cannot be reached. The session goes on without it.")] == [
            notice[1:] for notice in session.seat.notices
        ]


@pytest.mark.parametrize("kind", ["http", "sse"])
async def test_a_server_that_accepts_and_is_silent(tmp_path: Path, kind: Kind) -> None:
    """One that accepts connections and says nothing costs its timeout, and closing does not wait for it."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/mcp"
        async with opened(tmp_path, remote("web", kind, url), timeout=1) as session:
            assert ["MCP server web has not answered within 1 seconds"] == [notice.title for notice in session.seat.notices]
            closing = time.monotonic()
        assert time.monotonic() - closing < 1


@pytest.mark.parametrize("kind", ["http", "sse"])
async def test_an_answer_that_is_packed(tmp_path: Path, kind: Kind) -> None:
    """Nothing packed is asked for, and nothing packed is unpacked: what is small on the way may be larger than all memory."""
    asked: list[str] = []

    class Packer(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  http.server's name
            """Say nothing."""

        def answer(self) -> None:
            asked.append(self.headers["Accept-Encoding"])
            self.send_response(200)
            self.send_header("Content-Type", "application/json" if kind == "http" else "text/event-stream")
            self.send_header("Content-Encoding", "gzip")
            self.end_headers()
            self.wfile.write(gzip.compress(b" " * (1 << 20)))

        do_GET = do_POST = answer

    with ThreadingHTTPServer(("127.0.0.1", 0), Packer) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        async with opened(tmp_path, remote("web", kind, f"http://127.0.0.1:{server.server_port}/mcp")) as session:
            assert ["MCP server web is not available"] == [notice.title for notice in session.seat.notices]
        server.shutdown()
    assert {"identity"} == set(asked)


async def test_a_big_result(tmp_path: Path, web: Web) -> None:
    """Two megabytes are read and cut for the model; SSE has a limit of one, which costs this call and not the session."""
    async with opened(tmp_path, remote("web", web.kind, web.url, **{"X-Key": SECRET})) as session:
        output = await session.call("web_big", size=2 << 20)
        assert (web.transport == "sse") == output.failed
        assert len(output.text) < 65 * 1024
        assert "hi" == (await session.call("web_echo", text="hi")).text


async def test_a_result_that_is_too_big(tmp_path: Path, web: Web) -> None:
    """Above the limit a result fails, and only it."""
    async with opened(tmp_path, remote("web", web.kind, web.url, **{"X-Key": SECRET})) as session:
        assert (await session.call("web_big", size=40 << 20)).failed
        assert "hi" == (await session.call("web_echo", text="hi")).text
        assert (web.transport != "sse") == (session.seat.notices == [])


async def test_cancelling(tmp_path: Path, web: Web) -> None:
    """A cancelled call is cancelled at the server."""
    async with opened(tmp_path, remote("web", web.kind, web.url, **{"X-Key": SECRET})) as session:
        call = asyncio.ensure_future(session.call("web_slow"))  # noqa: TID251
        assert "slow" == await asyncio.to_thread(web.line)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert "stopped" == await asyncio.wait_for(asyncio.to_thread(web.line), 10)
        assert "hi" == (await session.call("web_echo", text="hi")).text


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_server_that_is_started_anew(tmp_path: Path, transport: str) -> None:
    """After the restart of a server the next call works, though it does not know the session any more."""
    first = Web(transport)
    second: Web | None = None
    try:
        async with opened(tmp_path, remote("web", first.kind, first.url, **{"X-Key": SECRET})) as session:
            assert "hi" == (await session.call("web_echo", text="hi")).text
            first.end()
            second = await asyncio.to_thread(Web, transport, first.port)
            assert "hi" == (await session.call("web_echo", text="hi")).text
            assert len(session.seat.notices) <= 1
    finally:
        first.end()
        if second is not None:
            second.end()


async def test_a_server_that_comes_later(tmp_path: Path) -> None:
    """One that is started a moment after the session is found."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    late: Web | None = None
    try:
        async with opened(tmp_path, remote("web", "http", f"http://127.0.0.1:{port}/mcp", **{"X-Key": SECRET})) as session:
            assert [] == session.names
            late = await asyncio.to_thread(Web, "http", port)
            async with asyncio.timeout(15):
                while not session.names:
                    await asyncio.sleep(0.05)
            assert "hi" == (await session.call("web_echo", text="hi")).text
    finally:
        if late is not None:
            late.end()
