"""Speaking with a service manager: a notify socket of the test's own, and descriptors as systemd passes them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from acpd import systemd
from tests.support.paths import ROOT


def hears(address: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    listener.bind("\0" + address[1:] if address.startswith("@") else address)
    listener.settimeout(5)
    return listener


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, socket.socket]]:
    """The address of a notify socket, and who listens there."""
    address = f"@acpd-{uuid.uuid4().hex}" if request.param == "abstract" else str(tmp_path / "notify")
    with hears(address) as listener:
        yield address, listener


# -- notify


def test_the_manager_hears_a_state(manager: tuple[str, socket.socket], monkeypatch: pytest.MonkeyPatch) -> None:
    """One datagram to the socket that NOTIFY_SOCKET names, a path or an abstract one, as it was said."""
    address, listener = manager
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    assert systemd.notify("READY=1\nSTATUS=2 sessions")
    assert b"READY=1\nSTATUS=2 sessions" == listener.recv(100)


@pytest.mark.parametrize("address", ["", "notify", "/", "/nowhere/notify", "@", "/" + "x" * 200, "vsock:2:1234"])
def test_without_a_manager_nothing_is_said(address: str) -> None:
    """Nobody there, or an address that is none: no failure."""
    assert not systemd.notify("READY=1", {"NOTIFY_SOCKET": address})
    assert not systemd.notify("READY=1", {})


def test_a_manager_that_does_not_listen_stops_nothing(tmp_path: Path) -> None:
    """Where its queue is full the state is dropped, and that is told."""
    with hears(str(tmp_path / "notify")):
        env = {"NOTIFY_SOCKET": str(tmp_path / "notify")}
        taken = [systemd.notify("WATCHDOG=1" * 1000, env) for _ in range(2000)]
    assert {True, False} == set(taken)
    assert taken[0]


# -- watchdog


@pytest.mark.parametrize(
    ("env", "seconds"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "30000000"}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "7"}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "8"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "-1"}, None),
        ({"WATCHDOG_USEC": "soon", "WATCHDOG_PID": "7"}, None),
        ({"WATCHDOG_USEC": "9" * 5000}, None),
    ],
)
def test_the_watchdogs_interval(env: dict[str, str], seconds: float | None) -> None:
    """Half of the manager's time, if it watches this process; what makes no sense is not watched."""
    assert seconds == systemd.watchdog_interval(env, 7)


# -- descriptors

_CHILD = """
import json, os, sys
from acpd import systemd
from acpd.errors import ConfigError
env = dict(os.environ, LISTEN_PID=os.environ.get("SAID_PID") or str(os.getpid()))
try:
    fds = systemd.listen_fds(env, os.getpid())
except ConfigError as error:
    print(error)
else:
    print(fds, [os.get_inheritable(fd) for fd in fds], [name for name in env if name.startswith("LISTEN_")])
"""


def given(*passed: socket.socket | int, env: Mapping[str, str] = {}) -> str:
    """What a process says of these descriptors, which it has from number 3 on."""
    numbers = [one if isinstance(one, int) else one.fileno() for one in passed]

    def place() -> None:  # above all of them first: they may have each other's numbers
        high = [os.dup2(fd, 100 + at, inheritable=True) for at, fd in enumerate(numbers)]
        for at, fd in enumerate(high):
            os.dup2(fd, 3 + at, inheritable=True)
            os.close(fd)

    own = {"LISTEN_FDS": str(len(numbers)), "PYTHONPATH": str(ROOT), **env}
    done = subprocess.run(
        [sys.executable, "-c", _CHILD], preexec_fn=place, close_fds=False, env=own, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.fixture
def listening(tmp_path: Path) -> Iterator[list[socket.socket]]:
    made = [socket.socket(socket.AF_UNIX) for _ in range(2)]
    for at, one in enumerate(made):
        one.bind(str(tmp_path / f"socket{at}"))
        one.listen()
    yield made
    for one in made:
        one.close()


def test_sockets_that_were_passed(listening: list[socket.socket]) -> None:
    """They are ours, agents inherit neither them nor the variables."""
    assert "[3, 4] [False, False] []" == given(*listening)


def test_sockets_of_somebody_else(listening: list[socket.socket]) -> None:
    """Variables that were meant for another process count for nothing, and are not passed on either."""
    assert "[] [] []" == given(*listening, env={"SAID_PID": "1"})


@pytest.mark.parametrize("count", ["", "0", "-1", "two"])
def test_no_sockets(count: str) -> None:
    """No number of them, or none: no sockets."""
    assert "[] [] []" == given(env={"LISTEN_FDS": count})


def test_what_is_no_listening_unix_socket(tmp_path: Path, listening: list[socket.socket]) -> None:
    """The error names the descriptor, the name it has in the unit, what is wrong and what to write there."""
    names = {"LISTEN_FDNAMES": "first:second"}
    with socket.socket() as tcp, socket.socket(socket.AF_UNIX) as idle, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as one:
        tcp.listen()
        for wrong, what in ((tcp, "is not a Unix stream"), (one, "is not a Unix stream"), (idle, "does not listen")):
            said = given(listening[0], wrong, env=names)
            assert said.startswith(f"descriptor 4 (second) that acpd was started with {what}")
            assert said.endswith("(in the socket unit: ListenStream= with a path, and Accept=no)")
    null = os.open(os.devnull, os.O_RDONLY)
    assert given(null).startswith("descriptor 3 that acpd was started with is no socket")
    os.close(null)
    for count in ("1", "9" * 15):
        assert given(env={"LISTEN_FDS": count}).startswith("descriptor 3 that acpd was started with is no socket")


def test_what_agents_are_given() -> None:
    """No program that acpd starts can speak to the manager in acpd's name, or takes its sockets for its own."""
    env = {**dict.fromkeys(systemd.OURS, "1"), "PATH": "/bin"}
    assert {"PATH": "/bin"} == systemd.without_ours(env)
