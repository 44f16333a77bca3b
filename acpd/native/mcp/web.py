"""The two transports over HTTP, with a server's headers. Imports the `mcp` package and its HTTP client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import httpx2
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client

from acpd.native.mcp.streams import PIECE

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams

    from acpd.native.mcp.spec import Spec
    from acpd.native.mcp.streams import Meter

CONNECT = 10.0
"""Seconds to connect and to write."""
READ = 600.0
"""Seconds without a byte; a call has a deadline of its own."""
LONGEST = 32 * 1024 * 1024
"""Bytes of an answer, and of an event of a stream."""


class Refusal:
    """Looks at each answer, for what the `mcp` package does not tell."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self.status = ""
        """That of the last POST, if it was an HTTP error."""
        self.forgotten = False
        """The server may not know our session any more (404; some say 400), e.g. after its restart."""

    async def seen(self, response: httpx2.Response) -> None:
        if response.request.method == "POST":  # a server need not have the stream of a GET
            failed = response.status_code >= 400
            self.forgotten = response.status_code in {400, 404} and "mcp-session-id" in response.request.headers
            self.status = f"HTTP {response.status_code} {response.reason_phrase}".strip() if failed else ""
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            raise httpx2.DecodingError("the answer is compressed, which was not asked for", request=response.request)
        endless = response.headers.get("content-type", "").lower().startswith("text/event-stream")
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = _Bounded(response.stream, self._meter, None if endless else LONGEST)


class _Bounded(httpx2.AsyncByteStream):
    """A body of at most so many bytes: above, it fails as one that cannot be read, which costs that call."""

    def __init__(self, stream: httpx2.AsyncByteStream, meter: Meter, limit: int | None) -> None:
        self._stream = stream
        self._meter = meter
        self._limit = limit

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for part in self._stream:
            size += len(part)
            if self._limit is not None and size > self._limit:
                raise httpx2.StreamError(f"the answer has more than {self._limit} bytes")
            if not self._meter.count(len(part) / PIECE):
                raise httpx2.StreamError(self._meter.fault)
            yield part

    async def aclose(self) -> None:
        await self._stream.aclose()


@asynccontextmanager
async def streaming(spec: Spec, refusal: Refusal) -> AsyncGenerator[TransportStreams]:
    """Streamable HTTP. Its end says goodbye to the server (DELETE), which may take up to CONNECT seconds if not cancelled."""
    async with (
        await asyncio.to_thread(_client, spec, refusal) as client,
        streamable_http_client(spec.url, http_client=client, max_sse_event_size=LONGEST) as streams,
    ):
        yield streams


@asynccontextmanager
async def events(spec: Spec, refusal: Refusal) -> AsyncGenerator[TransportStreams]:
    """HTTP with server-sent events, the older transport. Its events have at most 1 MiB."""
    client = await asyncio.to_thread(_client, spec, refusal)

    def made(
        headers: dict[str, str] | None = None,  # noqa: ARG001  the package's signature
        timeout: httpx2.Timeout | None = None,  # noqa: ARG001
        auth: httpx2.Auth | None = None,  # noqa: ARG001
    ) -> httpx2.AsyncClient:
        return client

    async with sse_client(spec.url, httpx_client_factory=made) as streams:
        yield streams


def _client(spec: Spec, refusal: Refusal) -> httpx2.AsyncClient:
    """Reads the certificates of the system, so call it in a thread."""
    return httpx2.AsyncClient(
        headers=[*spec.headers, ("Accept-Encoding", "identity")],  # 3 MB may be 3 GB, which nobody counts before it is unpacked
        timeout=httpx2.Timeout(CONNECT, read=READ),
        event_hooks={"response": [refusal.seen]},
    )
