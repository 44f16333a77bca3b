"""Socket activation and notification, with the real systemd-socket-activate; a service manager is not needed for it."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.acpd import environment

pytestmark = pytest.mark.e2e

_ANSWERS = """
import os, signal, socket, sys
from acpd.systemd import listen_fds, notify
def stop(*_):
    notify("STOPPING=1")
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
(fd,) = listen_fds(os.environ, os.getpid())
notify("READY=1")
listener = socket.socket(fileno=fd)
while True:
    with listener.accept()[0] as client, client.makefile("rb") as lines:
        number = lines.readline().split(b'"id":')[1].split(b",")[0]
        client.sendall(b'{"jsonrpc":"2.0","id":%s,"result":{}}\\n' % number)
"""
DAEMON = [sys.executable, "-c", _ANSWERS]
"""Takes its socket from whoever starts it, answers a line of JSON-RPC, ends on SIGTERM with 0."""


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    """What systemd would hear."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.settimeout(20)
        yield listener


@pytest.fixture
def activated(tmp_path: Path, manager: socket.socket) -> Iterator[subprocess.Popen[bytes]]:
    """systemd-socket-activate, listening; it becomes the daemon when the first client comes."""
    tool = shutil.which("systemd-socket-activate")
    assert tool, "needs systemd-socket-activate, of the package systemd"
    env = environment(tmp_path / "home", NOTIFY_SOCKET=str(tmp_path / "notify"))
    passed = [word for name in env for word in ("-E", name)]
    command = [tool, "-l", str(tmp_path / "socket"), "--fdname=acpd", *passed, *DAEMON]
    with subprocess.Popen(command, env=env, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith(b"Listening on")
        yield process
        process.kill()


def ask(path: Path, number: int) -> bytes:
    """The line that answers `initialize`."""
    with socket.socket(socket.AF_UNIX) as client, client.makefile("rb") as lines:
        client.settimeout(20)
        client.connect(str(path))
        client.sendall(b'{"jsonrpc":"2.0","id":%d,"method":"initialize","params":{"protocolVersion":1}}\n' % number)
        return lines.readline()


def test_a_client_starts_the_daemon(tmp_path: Path, activated: subprocess.Popen[bytes], manager: socket.socket) -> None:
    """The first client waits while the daemon starts and is answered by it; so is the next. It says when it is ready and when
    it stops, and the socket is left to whoever made it.
    """
    assert b'"id":7' in ask(tmp_path / "socket", 7)
    assert b"READY=1" in manager.recv(1000).splitlines()
    assert b'"id":8' in ask(tmp_path / "socket", 8)
    os.kill(activated.pid, signal.SIGTERM)
    assert 0 == activated.wait(20)
    heard = manager.recv(1000)
    while b"STOPPING=1" not in heard.splitlines():  # STATUS= and WATCHDOG= may come between
        heard = manager.recv(1000)
    assert (tmp_path / "socket").is_socket()
