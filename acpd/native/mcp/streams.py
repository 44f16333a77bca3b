"""The two streams of a connection, measured: what a server may say unasked, and how many answers it may leave lying.

The `mcp` package makes a task of every message of a server's. Without a bound a server that floods costs a core and memory.
Imports the `mcp` package.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Self

from mcp_types import JSONRPCRequest

if TYPE_CHECKING:
    from mcp.client._transport import ReadStream, WriteStream
    from mcp.shared.message import SessionMessage

BURST = 10_000
"""Messages, lines that are none, and pieces of PIECE bytes that a server may send at once: some 320 MB."""
PER_SECOND = 1_000
"""The same in the long run. One with much progress to tell sends a hundred a second."""
PIECE = 32 * 1024
ASKING = 10
"""What a request of a server's counts: as so many messages."""
OPEN = 1_000
"""Answers to requests of a server's that it has not read."""


class Meter:
    """Of one connection. `fault`: why it has to end. `on_fault` is called once."""

    def __init__(self) -> None:
        self.fault = ""
        self.on_fault: Callable[[], None] | None = None
        self._spent = 0.0
        self._at = asyncio.get_running_loop().time()

    def count(self, cost: float) -> bool:
        """Take this much. Whether there is anything left."""
        now = asyncio.get_running_loop().time()
        self._spent = max(0.0, self._spent - (now - self._at) * PER_SECOND) + cost
        self._at = now
        if self._spent > BURST:
            self.fail(f"it floods (more than {PER_SECOND} messages, or {PER_SECOND // ASKING} requests, a second)")
        return not self.fault

    def fail(self, why: str) -> None:
        if not self.fault:
            self.fault = why
            if self.on_fault is not None:
                self.on_fault()


class Writing:
    """A write stream that knows how many messages wait until the server reads them."""

    def __init__(self, stream: WriteStream[SessionMessage]) -> None:
        self._stream = stream
        self.waiting = 0

    async def send(self, item: SessionMessage, /) -> None:
        self.waiting += 1
        try:
            await self._stream.send(item)
        finally:
            self.waiting -= 1

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def __aenter__(self) -> Self:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stream.__aexit__(None, None, None)


class Reading:
    """A read stream that ends where the server says too much, and whose end is noticed: the package tells it to nobody but
    waiting requests.
    """

    def __init__(self, stream: ReadStream[SessionMessage | Exception], meter: Meter, writing: Writing) -> None:
        self._stream = stream
        self._meter = meter
        self._writing = writing
        self.on_end: Callable[[], None] | None = None

    @property
    def last_context(self) -> object:
        return getattr(self._stream, "last_context", None)

    async def receive(self) -> SessionMessage | Exception:
        return await self.__anext__()

    async def aclose(self) -> None:
        await self._stream.aclose()

    def __aiter__(self) -> AsyncIterator[SessionMessage | Exception]:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self._next()
        except StopAsyncIteration:
            await asyncio.sleep(0)  # tasks that have not begun yet would be warned about on stderr
            raise

    async def _next(self) -> SessionMessage | Exception:
        item = await self._stream.__anext__()
        asks = not isinstance(item, Exception) and isinstance(item.message, JSONRPCRequest)
        if asks and self._writing.waiting > OPEN:
            self._meter.fail(f"it asks, and leaves more than {OPEN} answers unread")
        if not self._meter.count(ASKING if asks else 1):
            raise StopAsyncIteration
        return item

    async def __aenter__(self) -> Self:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self.on_end is not None:
            self.on_end()
        await self._stream.__aexit__(None, None, None)
