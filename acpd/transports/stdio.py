"""The editor's pipes: stdin and stdout of this process, kept for the protocol alone."""

from __future__ import annotations

import asyncio
import fcntl
import os
import stat
import threading

from acpd.peer import Peer, pipe_end

READ = 64 * 1024
PIPE = 1024 * 1024


def claim() -> tuple[int, int]:
    """Descriptors for the protocol. From now on fd 0 is empty and fd 1 is stderr, whatever a library prints or reads.

    Call it before anything else can write.
    """
    stdin, stdout = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    return stdin, stdout


def widen(fd: int) -> None:
    """A larger kernel buffer, where the system has one to give: 1.2 to 1.3 times the throughput of a stream."""
    try:
        fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, PIPE)
    except (AttributeError, OSError):
        return  # not Linux, no pipe, or over the user's share


async def connect(peer: Peer, stdin: int, stdout: int) -> None:
    """Join the peer to the two descriptors: pipes, sockets, terminals by the event loop, files by a thread."""
    loop = asyncio.get_running_loop()
    widen(stdout)
    if _is_file(stdout):
        peer.use_writer(_FileWriter(stdout, peer))
    else:
        writer, _ = await loop.connect_write_pipe(lambda: peer, pipe_end(stdout, "wb"))
        peer.use_writer(writer)
    if _is_file(stdin):
        threading.Thread(target=_feed, args=(peer, stdin, loop), daemon=True, name="stdin").start()
    else:
        reader, _ = await loop.connect_read_pipe(lambda: peer, pipe_end(stdin, "rb"))
        peer.use_reader(reader)


def _is_file(fd: int) -> bool:
    mode = os.fstat(fd).st_mode
    return stat.S_ISREG(mode) or (stat.S_ISCHR(mode) and not os.isatty(fd))  # /dev/null cannot be polled either


def _feed(peer: Peer, fd: int, loop: asyncio.AbstractEventLoop) -> None:
    while data := os.read(fd, READ):
        asyncio.run_coroutine_threadsafe(_received(peer, data), loop).result()
    loop.call_soon_threadsafe(peer.eof_received)


async def _received(peer: Peer, data: bytes) -> None:
    peer.data_received(data)


class _FileWriter(asyncio.WriteTransport):
    """A file takes every write at once; event loops do not poll files. One that cannot be written ends the connection."""

    def __init__(self, fd: int, peer: Peer) -> None:
        super().__init__()
        os.set_blocking(fd, False)  # which files ignore: they never make a writer wait for a reader
        self._fd = fd
        self._peer = peer
        self._closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        view = memoryview(data)
        try:
            while view and not self._closed:
                view = view[os.write(self._fd, view) :]
        except OSError as error:
            self._closed = True
            asyncio.get_running_loop().call_soon(self._peer.connection_lost, error)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing is buffered."""

    def is_closing(self) -> bool:
        return self._closed

    def close(self) -> None:
        self._closed = True
