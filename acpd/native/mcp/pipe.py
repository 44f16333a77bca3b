"""MCP on a process's stdin and stdout: JSON-RPC messages, one a line. Imports the `mcp` package.

Bytes are read only when the session wants a message, so a server that floods fills its own pipe and not our memory.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any, Self

from anyio import BrokenResourceError
from mcp.shared.message import SessionMessage
from mcp_types import INTERNAL_ERROR, ErrorData, JSONRPCError, JSONRPCNotification, jsonrpc_message_adapter
from pydantic import ValidationError

from acpd.native.mcp.child import LINGER, Child
from acpd.native.mcp.streams import PIECE, Meter
from acpd.peer import pipe_end

MAX_LINE = 32 * 1024 * 1024
"""Bytes; the answer in a longer one is an error, for its call only."""
MAX_NOISE = 10_000
"""Lines one after the other that are no messages: then it is no MCP server. So it is after eight times MAX_LINE in one."""
MAX_UNREAD = 64 * 1024 * 1024
"""Bytes that a server may leave unread, e.g. our answers to its own requests."""
CHUNK = 128 * 1024
_ID = rb'"id"\s*:\s*(\d{1,18}|"(?:[^"\\]|\\.){1,64}")'
_ANSWER = re.compile(rb'"(?:result|error)"\s*:')
_ID_FIRST = re.compile(rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?' + _ID)
_ID_LAST = re.compile(_ID + rb'\s*(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*$')


class Messages:
    """What a server writes, as the session's read stream."""

    def __init__(self, stdout: asyncio.StreamReader, meter: Meter) -> None:
        self._stdout = stdout
        self._meter = meter
        self._pieces: list[bytes] = []
        """The beginning of a line."""
        self._size = 0
        self._lines: list[bytes] = []
        """Whole lines, the next one last."""
        self._noise = 0
        self.fault = ""
        """Why reading was given up."""

    async def receive(self) -> SessionMessage:
        """Raises StopAsyncIteration at the end."""
        while True:
            while self._lines:
                if (message := self._message(self._lines.pop())) is not None:
                    return message
                if not self._meter.count(1):
                    raise StopAsyncIteration
                if self._noise > MAX_NOISE:
                    self.fault = "it writes what is not MCP"
                    raise StopAsyncIteration
            chunk = await self._stdout.read(CHUNK)
            if not chunk or not self._meter.count(len(chunk) / PIECE):
                raise StopAsyncIteration
            self._take(chunk)
            if self._size > 8 * MAX_LINE:
                self.fault = "it writes without end"
                raise StopAsyncIteration

    def _take(self, chunk: bytes) -> None:
        """Cut into lines. Of one that is too long only its beginning and its end are kept."""
        first, *rest = chunk.split(b"\n")
        self._pieces.append(first)
        self._size += len(first)
        if self._size > MAX_LINE:
            self._pieces = [b"".join(self._pieces[:-1])[:CHUNK], b"".join(self._pieces[-2:])[-CHUNK:]]
        if rest:
            whole = b"".join(self._pieces)
            self._lines = [*reversed(rest[:-1]), whole]
            if self._size > MAX_LINE:
                self._lines[-1] = _refused(whole, f"its answer has {self._size} bytes, more than {MAX_LINE}")
            self._pieces, self._size = [rest[-1]], len(rest[-1])

    def _message(self, line: bytes) -> SessionMessage | None:
        """None for what is no message: a banner, an empty line, another program's JSON."""
        if not line.strip():
            self._noise += 1
            return None
        try:
            message = jsonrpc_message_adapter.validate_json(line.decode(errors="replace"), by_name=False)
        except ValidationError:
            self._noise += 1
            refused = _refused(line, "its answer is not valid JSON-RPC") if b'"jsonrpc"' in line else b""
            return SessionMessage(jsonrpc_message_adapter.validate_json(refused)) if refused else None
        self._noise = 0
        return SessionMessage(message)

    async def aclose(self) -> None:
        """The pipe belongs to `talking`."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage:
        return await self.receive()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()


def _refused(line: bytes, why: str) -> bytes:
    """An error in the place of the answer that this line has; empty where it has none that can be told."""
    found = _ID_FIRST.match(line[:1000]) or _ID_LAST.search(line[-1000:])
    if found is None or not _ANSWER.search(line[:1000]):
        return b""
    identifier = found[1].decode()
    number = int(identifier) if identifier.isdigit() else identifier[1:-1]
    error = JSONRPCError(jsonrpc="2.0", id=number, error=ErrorData(code=INTERNAL_ERROR, message=why))
    return error.model_dump_json(by_alias=True, exclude_unset=True).encode()


class Sender(asyncio.Protocol):
    """What a server reads, as the session's write stream."""

    def __init__(self, on_lost: Callable[[], object], before_end: Callable[[], asyncio.Future[Any]]) -> None:
        """`on_lost`: called when the server does not read any more, and will not. `before_end`: done when it may be told so."""
        self._on_lost = on_lost
        self._before_end = before_end
        self._pipe: asyncio.WriteTransport | None = None
        self._writable = asyncio.Event()
        self._writable.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._pipe = transport

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  asyncio's signature
        self._pipe = None
        self._writable.set()
        self._on_lost()

    async def send(self, item: SessionMessage) -> None:
        """Waits while the server does not read; a notification, such as that of a cancel, never waits."""
        if self._pipe is None:
            raise BrokenResourceError
        if self._pipe.get_write_buffer_size() > MAX_UNREAD:
            self._pipe.abort()
            raise BrokenResourceError
        self._pipe.write(item.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")
        if not isinstance(item.message, JSONRPCNotification):
            await self._writable.wait()

    def end(self) -> None:
        """EOF for the server; at once, whether it reads or not."""
        if self._pipe is not None and self._pipe.get_write_buffer_size():
            self._pipe.abort()
        elif self._pipe is not None:
            pipe = self._pipe
            self._before_end().add_done_callback(lambda _: pipe.close())

    async def aclose(self) -> None:
        self.end()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        self.end()


@asynccontextmanager
async def talking(child: Child, meter: Meter) -> AsyncGenerator[tuple[Messages, Sender]]:
    """The streams of a child that has just been started. Its pipes are closed in the end; the process is its owner's."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=CHUNK)
    stdout: asyncio.ReadTransport | None = None

    def end() -> None:
        if stdout is not None:
            stdout.close()  # what is written from now on has no reader: one at its end must not be fed
        reader.feed_eof()

    def ending() -> None:
        """What it has written already is still read; what it has started may hold its stdout open."""
        loop.call_later(LINGER, end)

    child.when_exited(ending)
    sender = Sender(ending, child.look)
    try:
        protocol = asyncio.StreamReaderProtocol(reader)
        await loop.connect_write_pipe(lambda: sender, pipe_end(child.pipes.pop(0), "wb"))
        stdout, _ = await loop.connect_read_pipe(lambda: protocol, pipe_end(child.pipes.pop(0), "rb"))
        yield Messages(reader, meter), sender
    finally:
        sender.end()
        if stdout is not None:
            stdout.close()
