"""The editor's pipes: stdin and stdout of this process, kept for the protocol alone."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import stat
import threading

from acpd.peer import Peer, pipe_end

READ = 64 * 1024
PIPE = 1024 * 1024


def claim() -> tuple[int, int]:
    """Descriptors for the protocol. From now on fd 0 is empty and fd 1 is stderr, whatever a library prints or reads.

    Call it before anything else can write. Raises OSError if fd 0 or 1 is closed.
    """
    # From 3 on: a standard one that is closed leaves its number free, and what took it would be overwritten below.
    stdin, stdout = (fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3) for fd in (0, 1))
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    if null != 2:  # else stderr was closed, and is that now
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
        peer.use_reader(_FileReader(stdin, peer))
    else:
        reader, _ = await loop.connect_read_pipe(lambda: peer, pipe_end(stdin, "rb"))
        peer.use_reader(reader)


def _is_file(fd: int) -> bool:
    mode = os.fstat(fd).st_mode
    return stat.S_ISREG(mode) or (stat.S_ISCHR(mode) and not os.isatty(fd))  # /dev/null cannot be polled either


class _FileReader(asyncio.ReadTransport):
    """A thread reads, a chunk at a time: the next one when the last is handled and the peer holds nothing."""

    def __init__(self, fd: int, peer: Peer) -> None:
        super().__init__()
        self._fd = fd
        self._peer = peer
        self._loop = asyncio.get_running_loop()
        self._wanted = threading.Event()
        self._wanted.set()
        self._paused = False
        self._closed = False
        threading.Thread(target=self._run, daemon=True, name="stdin").start()

    def _run(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            try:
                while self._wanted.wait() and not self._closed and (data := os.read(self._fd, READ)):
                    self._wanted.clear()
                    self._loop.call_soon_threadsafe(self._received, data)
            except OSError:
                pass  # what cannot be read has ended
            finally:
                self._loop.call_soon_threadsafe(self._peer.eof_received)

    def _received(self, data: bytes) -> None:
        self._peer.data_received(data)
        if not self._paused:
            self._wanted.set()

    def pause_reading(self) -> None:
        self._paused = True
        self._wanted.clear()

    def resume_reading(self) -> None:
        self._paused = False
        self._wanted.set()

    def is_closing(self) -> bool:
        return self._closed

    def close(self) -> None:
        self._closed = True
        self._wanted.set()


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
