"""The two directions of a shim: stdin to the daemon, the daemon to stdout, whole lines each. Neither waits for the other.

What is read is bounded by what is not yet written: nothing more comes from stdin while something waits to go up, and
nothing from the daemon while something waits for the editor. The editor's descriptors may be shared with others, so they
are never made non-blocking: see `Writer`.
"""

import _socket
import os
import select

from acpd.shim.ledger import KEPT, LINE, Ledger

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

READ = 64 * 1024
RECEIVE = 64 * 1024
PIECE = select.PIPE_BUF
_KINDS, _PIPE, _SOCKET = 0o170000, 0o010000, 0o140000
DOWN_LINE = LINE + 64 * 1024
"""Bytes of a line of the daemon, with its prefix."""
END_SECONDS = 5.0
"""How long the daemon is listened to after the end of stdin."""
_WRONG = select.POLLERR | select.POLLHUP | select.POLLNVAL


class Broken(Exception):
    """What came from the daemon is not the link's protocol: another connection would not help."""


class Pump:
    """All that is under way. `sock` is None while there is no daemon."""

    def __init__(self, ledger: Ledger, stdin: int = 0, stdout: int = 1) -> None:
        self.ledger = ledger
        self.sock: _socket.socket | None = None
        self.ended = False
        """stdin has ended, and all that it had is in the ledger."""
        self.gone = False
        """Nobody reads stdout any more."""
        self._stdin = stdin
        self._stdout = stdout
        self._line: list[bytes] = []
        self._line_size = 0
        self._dropping = False
        """In the rest of a line that is too long."""
        self._up = memoryview(b"")
        self._again: Iterator[bytes] = iter(())
        self._down: list[bytes] = []
        self._down_size = 0
        self._out = memoryview(b"")
        self._writer: Writer | None = None
        self._shut = False
        self._deadline = 0.0
        self._poll = select.poll()
        self._masks: dict[int, int] = {}

    def join(self, sock: _socket.socket, received: bytes) -> None:
        """Go on with this connection: first what was not settled on the one before. `received`: what came on it already."""
        self.sock = sock
        self._up = memoryview(b"")
        self._again = self.ledger.again()
        self._down, self._down_size, self._shut = [], 0, False
        if received:
            self._take(received)

    def run(self) -> None:
        """Until the connection is lost and all that came on it is with the editor, or there is nothing more to do (`done`).

        Raises Broken.
        """
        while not self.gone and (self.sock is not None or self._out):
            if self.ended and not self._finish():
                return
            for fd, what in self._wait():
                if fd == self._stdout:
                    self._write(what)
                elif fd == self._stdin:
                    self._read()
                elif self.sock is not None:
                    self._exchange(self.sock)

    def look(self, seconds: float) -> None:
        """Wait for that long, or until nobody reads stdout any more. For the time without a daemon."""
        self._watch(self._stdin, None)
        self._watch(self._stdout, 0)
        self.gone = self.gone or bool(self._poll.poll(seconds * 1000))

    def close(self) -> None:
        """Nothing more is written."""
        if self._writer is not None:
            self._writer.close()

    @property
    def done(self) -> bool:
        """Whether the end is a good one: the editor went away, or all that it said was sent."""
        return self.gone or self._shut

    def _wait(self) -> list[tuple[int, int]]:
        waits = self._more_up()
        reading = not (waits or self.ended or self.ledger.unsettled > KEPT)
        self._watch(self._stdin, select.POLLIN if reading else None)
        self._watch(self._stdout, select.POLLOUT if self._out else 0)
        if self.sock is not None:
            down = 0 if self._out else select.POLLIN
            self._watch(self.sock.fileno(), (select.POLLOUT if waits else 0) | down or None)
        return self._poll.poll(_left(self._deadline) if self.ended else None)

    def _watch(self, fd: int, mask: int | None) -> None:
        """None: not even for errors, which would be told again and again."""
        if self._masks.get(fd) == mask:
            return
        if mask is None:
            self._poll.unregister(fd)
            del self._masks[fd]
        else:
            self._poll.register(fd, mask)
            self._masks[fd] = mask

    # From the editor

    def _read(self) -> None:
        try:
            data = os.read(self._stdin, READ)
        except OSError:
            data = b""  # what cannot be read has ended
        if not data:
            self.ended = True
            if self._line:
                self._send([self._whole(b"")])
            return
        lines = data.split(b"\n")
        tail = lines.pop()
        if lines:
            if self._dropping:
                del lines[0]
                self._dropping = False
            elif self._line:
                lines[0] = self._whole(lines[0])
            if lines:
                self._send(lines)
        if tail and not self._dropping:
            self._line.append(tail)
            self._line_size += len(tail)
            if self._line_size > LINE:  # so much of it that the daemon sees that it is too long
                self._send([self._whole(b"")[: LINE + 1]])
                self._dropping = True

    def _whole(self, end: bytes) -> bytes:
        line = b"".join((*self._line, end))
        self._line, self._line_size = [], 0
        return line

    def _send(self, lines: list[bytes]) -> None:
        numbered = self.ledger.up(lines)
        if self.sock is not None:  # else it is sent again with the others
            self._up = memoryview(numbered)
            self._exchange_up(self.sock)

    # With the daemon

    def _more_up(self) -> bool:
        if not self._up:
            self._up = memoryview(next(self._again, b""))
        return bool(self._up)

    def _exchange(self, sock: _socket.socket) -> None:
        if self._more_up():
            self._exchange_up(sock)
        if self.sock is None or self._out:
            return
        try:
            data = sock.recv(RECEIVE)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if data:
            self._take(data)
        else:
            self._lose()

    def _exchange_up(self, sock: _socket.socket) -> None:
        try:
            while self._more_up():
                self._up = self._up[sock.send(self._up) :]
                self._deadline = 0.0
        except (BlockingIOError, InterruptedError):
            return
        except OSError:  # it takes nothing more; what it said before comes first, then the end
            self._up, self._again = memoryview(b""), iter(())

    def _take(self, data: bytes) -> None:
        """Raises Broken."""
        self._down.append(data)
        self._down_size += len(data)
        if b"\n" in data:
            try:
                self._out = memoryview(self.ledger.down(b"".join(self._down)))
            except ValueError:
                raise Broken("the daemon sent a line without its prefix") from None
            if self._out and self._open().at_once:
                self._write(0)
            rest = self.ledger.rest
            self._down, self._down_size = [rest], len(rest)
        if self._down_size > DOWN_LINE:
            raise Broken("the daemon sent a line that is too long")

    def _lose(self) -> None:
        if self.sock is not None:
            self._watch(self.sock.fileno(), None)
            self.sock.close()
        self.sock = None
        self._up, self._again = memoryview(b""), iter(())
        self._down, self._down_size = [], 0

    def _finish(self) -> bool:
        """After the end of stdin: tell the daemon once all is sent. Whether there is time left."""
        if self._deadline == 0.0:
            self._deadline = _now() + END_SECONDS
        if self.sock is not None and not self._shut and not self._more_up():
            self._shut = True
            self._deadline = _now() + END_SECONDS
            try:  # noqa: SIM105  contextlib would be imported for it
                self.sock.shutdown(_socket.SHUT_WR)
            except OSError:
                pass  # it went away before: recv will say so
        return _now() < self._deadline

    # To the editor

    def _write(self, what: int) -> None:
        if what & _WRONG:
            self.gone = True
            return
        try:
            self._out = self._out[self._open().write(self._out) :]
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self.gone = True

    def _open(self) -> "Writer":
        if self._writer is None:
            self._writer = Writer(self._stdout)
        return self._writer


class Writer:
    """Writes what fits to a descriptor that others may have too, and which therefore stays as it is. Raises OSError.

    A pipe can be opened a second time, so that only we do not wait; a socket can be told so at each write. Of anything else
    poll says that it has room for PIPE_BUF bytes at least. So few at once would be half the time of a big replay.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._pipe = -1
        self._sock: _socket.socket | None = None
        kind = os.fstat(fd).st_mode & _KINDS
        if kind == _SOCKET:
            self._sock = _socket.socket(fileno=os.dup(fd))
        elif kind == _PIPE:
            try:  # noqa: SIM105  contextlib would be imported for it
                self._pipe = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            except OSError:
                pass  # no such folder, or another user's pipe

    @property
    def at_once(self) -> bool:
        """Whether it may be written to without asking poll before."""
        return self._sock is not None or self._pipe >= 0

    def write(self, data: memoryview) -> int:
        """How much of it was written. Raises BlockingIOError for nothing."""
        if self._sock is not None:
            return self._sock.send(data, _socket.MSG_DONTWAIT)
        if self._pipe >= 0:
            return os.write(self._pipe, data)
        return os.write(self._fd, data[:PIECE])

    def close(self) -> None:
        if self._sock is not None:
            self._sock.close()
        if self._pipe >= 0:
            os.close(self._pipe)


def _now() -> float:
    import time  # most interpreters have it, and only an end needs it

    return time.monotonic()


def _left(deadline: float) -> float:
    """Milliseconds."""
    return max(0.0, deadline - _now()) * 1000
