"""The daemon's Unix socket: who connects, and as what - an ACP client that speaks as on stdio, or a shim."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import stat
import struct
import sys
from collections.abc import Awaitable, Callable
from typing import NamedTuple, cast

from acpd import where
from acpd.errors import AcpdError, ConfigError, RequestError, StoreError
from acpd.peer import Peer
from acpd.tasks import Tasks
from acpd.transports import shimlink
from acpd.transports.shimlink import Hello
from acpd.wire import envelope

GREETING = 10.0
"""Seconds that a shim may take for its hello."""
SILENCE = 60.0
"""Seconds after which who has not said a byte is sent away."""
HELLOS = 64 * 1024 * 1024
"""Bytes of all hellos that are not whole yet."""
BACKLOG = 4096
"""All clients of a daemon may come back at once when it was started again; one that finds no place takes it for dead."""
_BUFFER = 1024 * 1024
_LOCAL_PEERCRED, _LOCAL_PEERPID = 1, 2


class Caller(NamedTuple):
    """The process at the other end, as it was when it connected."""

    pid: int
    uid: int


Admit = Callable[[Hello | None, Caller], Awaitable[Peer]]
"""The peer for a shim that said this, or (None) for a plain client; and who it is. Raises AcpdError to refuse it."""


def bind(path: str) -> socket.socket:
    """A listening socket that only this user can reach. Call it with the store's lock held: what is at `path` is removed.

    Raises StoreError.
    """
    try:
        folder = os.path.dirname(path)
        os.makedirs(folder, mode=0o700, exist_ok=True)
        found = os.stat(folder)
        if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
            raise StoreError(
                "listen in",
                folder,
                cause="others may use this folder",
                hint=f"chmod 700 {folder}, or remove it if it is not yours",
            )
        with contextlib.suppress(FileNotFoundError):
            if stat.S_ISSOCK(os.lstat(path).st_mode):
                os.unlink(path)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        address, folder_fd = where.address(path)
        try:
            listening.bind(address)
            os.chmod(path, 0o600)
            listening.listen(BACKLOG)
        except BaseException:
            listening.close()
            raise
        finally:
            if folder_fd >= 0:
                os.close(folder_fd)
    except OSError as error:
        raise StoreError("listen at", path, cause=error.strerror or str(error)) from error
    return listening


async def listen(listening: socket.socket, admit: Admit, tasks: Tasks, limit: Callable[[], int]) -> asyncio.Server:
    """Accept from now on. `limit`: how many may be there that have not said who they are; one more is sent away."""
    loop = asyncio.get_running_loop()
    door = _Door(admit, tasks, limit)
    return await loop.create_unix_server(lambda: _Greeting(door), sock=listening, backlog=BACKLOG)


def caller_of(connected: socket.socket) -> Caller:
    """Raises OSError."""
    if sys.platform == "darwin":
        raw = connected.getsockopt(0, _LOCAL_PEERCRED, 76)
        return Caller(connected.getsockopt(0, _LOCAL_PEERPID), int(struct.unpack_from("=II", raw)[1]))
    pid, uid, _ = struct.unpack("3i", connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return Caller(pid, uid)


class _Door:
    """What all have in common that have not said yet who they are. `size`: bytes that they said."""

    def __init__(self, admit: Admit, tasks: Tasks, limit: Callable[[], int]) -> None:
        self.admit = admit
        self.tasks = tasks
        self.limit = limit
        self.count = 0
        self.size = 0


class _Greeting(asyncio.Protocol):
    """Reads until it is clear who is there; then the peer takes over."""

    def __init__(self, door: _Door) -> None:
        self._door = door
        self._data = b""
        self._size = 0
        self._ended = False
        self._admitting = False
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is not one to isinstance
        self._door.count += 1
        if self._door.count > self._door.limit():
            self._transport.abort()
        self._wait(SILENCE)

    def eof_received(self) -> bool:
        self._ended = True
        return self._admitting

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  asyncio's signature
        self._ended = True
        self._leave()

    def _leave(self) -> None:
        """The peer takes over, or it is gone."""
        self._stop_waiting()
        self._door.count -= 1
        self._door.size -= self._size

    def _wait(self, seconds: float) -> None:
        self._stop_waiting()
        assert self._transport is not None
        self._deadline = asyncio.get_running_loop().call_later(seconds, self._transport.abort)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def data_received(self, data: bytes) -> None:
        if not self._data:
            self._wait(GREETING)
        self._data += data
        self._size += len(data)
        self._door.size += len(data)
        if self._admitting or self._transport is None or self._transport.is_closing():
            return
        start = self._data[: len(shimlink.MAGIC)]
        if start != shimlink.MAGIC[: len(start)]:
            self._begin(None)
        elif len(start) == len(shimlink.MAGIC):
            self._hear()

    def _hear(self) -> None:
        """A shim, as it seems."""
        try:
            if self._door.size > HELLOS:
                raise ValueError("too many shims connect at once: try again in a moment")
            found = shimlink.read_hello(self._data)
        except ValueError as error:
            self._refuse(str(error), None, is_shim=True)
            return
        if found is not None:
            hello, self._data = found
            self._begin(hello)

    def _begin(self, hello: Hello | None) -> None:
        self._stop_waiting()
        self._admitting = True
        assert self._transport is not None
        self._transport.pause_reading()
        self._door.tasks.spawn(self._take_over(self._transport, hello), name="admit")

    async def _take_over(self, transport: asyncio.Transport, hello: Hello | None) -> None:
        connected = transport.get_extra_info("socket")
        try:
            peer = await self._door.admit(hello, caller_of(connected))
        except AcpdError as error:
            self._refuse(str(error), error, is_shim=hello is not None)
            return
        except BaseException:  # a bug, or acpd ends: nobody else would close it
            transport.abort()
            raise
        if transport.is_closing():
            peer.connection_lost(None)
            return
        with contextlib.suppress(OSError):
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)
        transport.set_protocol(peer)
        self._leave()
        peer.use_writer(transport)
        if hello is not None:
            transport.write(shimlink.answer())
        transport.resume_reading()  # before the peer has it: what it is given now may make it hold
        peer.use_reader(transport)
        peer.data_received(self._data)
        if self._ended:
            peer.eof_received()

    def _refuse(self, why: str, error: AcpdError | None, *, is_shim: bool) -> None:
        assert self._transport is not None
        if is_shim:
            self._transport.write(shimlink.answer(why, 2 if isinstance(error, ConfigError) else None))
        else:
            self._transport.write(envelope.error(envelope.NULL, RequestError(-32603, why)))
        self._transport.close()
