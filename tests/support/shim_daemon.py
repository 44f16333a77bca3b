"""A daemon's side of the shim's link, for tests: a socket, one connection after the other, and a behaviour for each.

It can end a connection at any byte: `Connection.life` is how many bytes it may still take and give together.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

ENDLESS = 1 << 60


class Killed(Exception):
    """The daemon that had this connection is dead."""


class Hello(NamedTuple):
    version: int
    token: bytes
    items: list[tuple[bytes, bytes]]

    def all(self, name: bytes) -> list[bytes]:
        return [value for key, value in self.items if key == name]

    @property
    def next(self) -> int:
        return int(self.all(b"next")[0])

    @property
    def sessions(self) -> dict[bytes, tuple[bytes, bytes]]:
        """From a session to its cursor and the number of its set-up line."""
        return {name: (cursor, setup) for name, cursor, setup in (one.split(b" ") for one in self.all(b"session"))}


class Connection:
    """One shim's connection, blocking."""

    def __init__(self, sock: socket.socket, life: int = ENDLESS) -> None:
        self.sock = sock
        self.life = life
        self._held = b""

    def hello(self) -> Hello:
        """Raises Killed."""
        while b"\n" not in self._held:
            self._more()
        head, _, self._held = self._held.partition(b"\n")
        name, version, token, size = head.split(b" ")
        assert b"acpd-shim" == name
        while len(self._held) < int(size):
            self._more()
        body, self._held = self._held[: int(size)], self._held[int(size) :]
        items = [item.partition(b"=") for item in body.split(b"\0")]
        return Hello(int(version), token, [(key, value) for key, _, value in items])

    def say(self, data: bytes) -> None:
        """Raises Killed, also when the shim is gone."""
        part = data[: self.life]
        self.life -= len(part)
        try:
            self.sock.sendall(part)
        except OSError:
            raise Killed from None
        if self.life <= 0:
            raise Killed

    def ok(self) -> None:
        self.say(b"acpd-daemon 1 ok\n")

    def tell(self, cursor: str, settled: str, text: bytes = b"") -> None:
        self.say(b"%b %b %b\n" % (cursor.encode(), settled.encode(), text))

    def line(self) -> tuple[int, bytes] | None:
        """The next line of the editor with its number; None at the end of its input. Raises Killed."""
        parts = [self._held]
        while b"\n" not in parts[-1]:
            data = self._take()
            if not data:
                assert b"" == b"".join(parts), "half a line"
                return None
            parts.append(data)
        head, _, self._held = b"".join(parts).partition(b"\n")
        number, _, text = head.partition(b" ")
        return int(number), text

    def _more(self) -> None:
        data = self._take()
        if not data:
            raise Killed
        self._held += data

    def _take(self) -> bytes:
        try:
            data = self.sock.recv(min(1 << 20, max(self.life, 1)))
        except OSError:
            raise Killed from None
        self.life -= len(data)
        if self.life <= 0:
            raise Killed
        return data


Behaviour = Callable[[Connection], None]


class ShimDaemon:
    """Listens at `path`. Each connection is given to `behave`, one after the other or, with `many`, each in a thread.

    What `behave` raises but Killed is raised again by the end of the `with` block.
    """

    def __init__(self, path: Path, behave: Behaviour, *, many: bool = False) -> None:
        self._behave = behave
        self._many = many
        self._failures: list[BaseException] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._listener.bind(str(path))
        self._listener.listen(100)
        self.path = path
        self.connections = 0
        self._open: list[socket.socket] = []

    def __enter__(self) -> Self:
        self._spawn(self._accept)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        for sock in list(self._open):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in list(self._threads):
            thread.join(20)
            assert not thread.is_alive(), "the daemon's thread does not end"
        self._listener.close()
        os.unlink(self.path)
        if self._failures:
            raise self._failures[0]

    def _spawn(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._open.append(sock)
            if self._many:
                self._spawn(lambda sock=sock: self._serve(sock))  # type: ignore[misc]
            else:
                self._serve(sock)

    def _serve(self, sock: socket.socket) -> None:
        try:
            self._behave(Connection(sock))
        except Killed:
            pass
        except BaseException as error:  # noqa: BLE001  it belongs to the test
            self._failures.append(error)
        finally:
            self._open.remove(sock)
            sock.close()


def echo(connection: Connection) -> None:
    """Welcomes, answers each line with itself and settles it, and ends when the editor does."""
    connection.hello()
    connection.ok()
    while (line := connection.line()) is not None:
        connection.tell("-", str(line[0]), line[1])
