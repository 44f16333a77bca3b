"""Both ends of a real connection, in one process."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Coroutine
from typing import Any, Self, TypeVar

from acpd.errors import RequestError
from acpd.peer import Peer, pipe_end
from acpd.rpc.protocol import Params

T = TypeVar("T")


def start(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Something that a test lets run beside it and awaits later."""
    return asyncio.get_running_loop().create_task(work)


class Recorded:
    """Owner of a peer: what it was told, in order, and what it does at a method."""

    def __init__(self) -> None:
        self.events: list[tuple[str, object]] = []
        self.batches = 0
        self.writable = 0
        self.closed = asyncio.Event()
        self.at: dict[str, Callable[[bytes], None]] = {}
        self._changed = asyncio.Event()

    def on_request(self, identifier: bytes, method: str, _params: Params, /) -> None:
        self._add("request", method)
        if act := self.at.get(method):
            act(identifier)

    def on_notification(self, method: str, params: Params, /) -> None:
        self._add("notification", method)
        if act := self.at.get(method):
            act(b"")

    def on_bad_line(self, why: str, /) -> None:
        self._add("bad", why)

    def on_batch_end(self) -> None:
        self.batches += 1
        self._changed.set()

    def on_writable(self) -> None:
        self.writable += 1
        self._changed.set()

    def on_closed(self) -> None:
        assert not self.closed.is_set()
        self._add("closed", None)
        self.closed.set()

    def _add(self, kind: str, what: object) -> None:
        self.events.append((kind, what))
        self._changed.set()

    @property
    def methods(self) -> list[object]:
        return [what for kind, what in self.events if kind in ("request", "notification")]

    async def until(self, true: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not true():
                self._changed.clear()
                await self._changed.wait()


class Wire:
    """A peer on two pipes, and the other side's ends of them as plain descriptors."""

    def __init__(self, owner: Recorded, *, strict: bool = True, polite: bool = False, limit: int = 1 << 20) -> None:
        self.owner = owner
        self.peer = Peer(owner, strict=strict, polite=polite, limit=limit)
        self._input, self.to_peer = os.pipe()
        self.from_peer, self._output = os.pipe()
        self._open = {self.to_peer, self.from_peer}

    async def connect(self) -> None:
        loop = asyncio.get_running_loop()
        writer, _ = await loop.connect_write_pipe(lambda: self.peer, pipe_end(self._output, "wb"))
        self.peer.use_writer(writer)
        reader, _ = await loop.connect_read_pipe(lambda: self.peer, pipe_end(self._input, "rb"))
        self.peer.use_reader(reader)

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.peer.close()
        self.hang_up()
        async with asyncio.timeout(10):
            await self.owner.closed.wait()
        await asyncio.sleep(0)

    def say(self, data: bytes) -> None:
        """To the peer."""
        os.write(self.to_peer, data)

    def end(self) -> None:
        """No more input for the peer."""
        self._close(self.to_peer)

    def hang_up(self) -> None:
        self.end()
        self._close(self.from_peer)

    def _close(self, fd: int) -> None:
        if fd in self._open:
            self._open.discard(fd)
            os.close(fd)

    async def hear(self, count: int) -> bytes:
        """The next so many bytes of the peer."""
        found = b""
        async with asyncio.timeout(10):
            while len(found) < count:
                found += await asyncio.to_thread(os.read, self.from_peer, count - len(found))
        return found

    async def hear_lines(self, count: int) -> list[bytes]:
        found = b""
        async with asyncio.timeout(10):
            while found.count(b"\n") < count:
                found += await asyncio.to_thread(os.read, self.from_peer, 1 << 16)
        return found.splitlines()


async def joined(one: Recorded, other: Recorded) -> tuple[Peer, Peer]:
    """Two peers on the two ends of a socket."""
    loop = asyncio.get_running_loop()
    peers = Peer(one, strict=True), Peer(other, strict=True)
    for peer, end in zip(peers, socket.socketpair(), strict=True):
        end.setblocking(False)
        transport, _ = await loop.create_connection(lambda peer=peer: peer, sock=end)  # type: ignore[misc]
        peer.use_writer(transport)
        peer.use_reader(transport)
    return peers


def no_answer(_result: bytes | None, _error: RequestError | None) -> None:
    raise AssertionError("this call is not answered")
