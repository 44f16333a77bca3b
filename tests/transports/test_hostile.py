"""Clients that do what no client should, on a daemon's socket: what they cost is bounded, and nobody else is kept waiting."""

from __future__ import annotations

import os
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.soak.crowd import AGENT
from tests.support import proc
from tests.support.serving import Plain, Serving, line

MIB = 1 << 20
AGENTS = 12
TOKEN = b"0123456789abcdef" * 2


class House:
    """A daemon, and a client that behaves: how long its prompts take tells how the others do."""

    def __init__(self, daemon: Serving) -> None:
        self.daemon = daemon
        self.good = daemon.client()
        self.session = self.good.new(daemon.home)
        self.small = self.good.new(daemon.home)
        self.good.prompt(self.small)
        self.usual = self.p50()
        self.before = 0

    def p50(self, prompts: int = 40) -> float:
        """Seconds."""
        taken: list[float] = []
        for _ in range(prompts):
            started = time.perf_counter()
            assert "end_turn" == self.good.prompt(self.session)["result"]["stopReason"]
            taken.append(time.perf_counter() - started)
        self.good.others.clear()
        return statistics.median(taken)

    def is_well(self, grown: int) -> None:
        """Prompts take about as long as ever, and memory has grown by that much at most.

        Other work on the machine makes a daemon slow for a while, what a client has done to it each time.
        """
        assert any(self.p50() < 10 * self.usual + 0.02 for _ in range(6))
        assert self.daemon.rss() - self.before < grown

    def params(self) -> dict[str, object]:
        return {"sessionId": self.small, "cwd": str(self.daemon.home), "mcpServers": []}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    home = tmp_path_factory.mktemp("hostile")
    toml = f"[daemon]\nagents = {AGENTS}\nconnections = 1500\n"
    with Serving(home, AGENT, toml=toml, env={"ACPD_LOG_LEVEL": "error", "ACPD_STORAGE_SYNC": "process"}) as daemon:
        yield House(daemon)


@pytest.fixture
def house(shared: House) -> Iterator[House]:
    """All that a test connects has left before the next one."""
    shared.before = shared.daemon.rss()
    descriptors = proc.fds(shared.daemon.pid)
    yield shared
    end = time.monotonic() + 20
    while proc.fds(shared.daemon.pid) > descriptors + 8 * AGENTS:
        shared.p50(1)
        assert time.monotonic() < end, "descriptors are left"


def pushed(sock: socket.socket, block: bytes, most: int) -> int:
    """Bytes that could be written until nobody took any for a while."""
    sock.settimeout(0.5)
    sent = 0
    try:
        while sent < most:
            sent += sock.send(block)
    except TimeoutError:
        pass
    sock.settimeout(60)
    return sent


@pytest.mark.parametrize(
    "block",
    [
        line(7, "session/list", {}),
        b"nonsense\n",
        pytest.param(line(7, "nonsense", {}), marks=pytest.mark.e2e),
        pytest.param(line(7, "_acpd/search", {"query": "chunk"}), marks=pytest.mark.e2e),
    ],
)
def test_who_asks_and_never_reads(house: House, block: bytes) -> None:
    """Its questions wait in its own socket when 1 MiB of answers does."""
    client = house.daemon.client()
    assert pushed(client.sock, block * 100, 64 * MIB) < 24 * MIB
    house.is_well(16 * MIB)
    client.close()


def test_who_asks_much_and_reads_late_is_answered(house: House) -> None:
    """Each of its questions once, also those that had to wait."""
    client = house.daemon.client()
    asked = b"".join(line(number, "_acpd/nonsense" + "x" * 500, {}) for number in range(2, 10_002))
    writer = threading.Thread(target=client.sock.sendall, args=(asked,))
    writer.start()
    house.is_well(16 * MIB)
    assert list(range(2, 10_002)) == [client.read()["id"] for _ in range(10_000)]
    writer.join()
    client.close()


def test_a_flood_of_notifications(house: House) -> None:
    """Others have their turn between them."""
    client = house.daemon.client()
    notes = b'{"jsonrpc":"2.0","method":"session/cancel","params":{"sessionId":"no such session"}}\n' * 20_000
    writer = threading.Thread(target=client.sock.sendall, args=(notes,))
    writer.start()
    house.is_well(8 * MIB)
    writer.join()
    assert "result" in client.ask("session/list", {})
    client.close()


@pytest.mark.parametrize("method", ["session/load", "session/new", "session/resume"])
@pytest.mark.parametrize("count", [300, pytest.param(10_000, marks=pytest.mark.e2e)])
def test_very_many_sessions_in_a_row(house: House, method: str, count: int) -> None:
    """Each request is answered, many of them by a limit that says which; there are never more agents than allowed."""
    client = house.daemon.client()
    asked = b"".join(line(number, method, house.params()) for number in range(2, count + 2))
    writer = threading.Thread(target=client.sock.sendall, args=(asked,))
    writer.start()
    house.is_well(24 * MIB)
    left = set(range(2, count + 2))
    while left:
        message = client.read()
        if "method" not in message:
            left.remove(message["id"])
            why = message.get("error", {}).get("message", "")
            assert not why or "wait for one" in why or "[daemon] agents" in why, message
    writer.join()
    assert len(proc.marked(house.daemon.mark)) <= AGENTS + 1
    client.close()


def test_a_thousand_that_say_nothing(house: House) -> None:
    """They cost a descriptor each and next to no memory."""
    silent = [house.daemon.connect() for _ in range(1000)]
    house.is_well(8 * MIB)
    for each in silent:
        each.close()


def half_a_hello(sock: socket.socket) -> None:
    sock.sendall(b"acpd-shim 1 %b 1000\narg=ru" % TOKEN)


def rubbish_for_a_hello(sock: socket.socket) -> None:
    body = os.urandom(4 * MIB)
    sock.sendall(b"acpd-shim 1 %b %d\n%b" % (TOKEN, len(body), body))


def too_big_a_hello(sock: socket.socket) -> None:
    sock.sendall(b"acpd-shim 1 %b 4194305\n" % TOKEN)
    assert b"over the limit" in sock.recv(1000)


def rubbish(sock: socket.socket) -> None:
    """A plain client, as it seems: of one line without an end."""
    assert pushed(sock, b"\xff" * 4096, 4 * MIB) >= 4 * MIB


def nothing(sock: socket.socket) -> None:
    """It leaves at once."""


@pytest.mark.parametrize(
    ("say", "count"), [(half_a_hello, 200), (rubbish_for_a_hello, 3), (too_big_a_hello, 50), (rubbish, 3), (nothing, 1000)]
)
def test_strange_beginnings(house: House, say: Callable[[socket.socket], None], count: int) -> None:
    """Whatever a connection begins with, it keeps nobody from being served, and leaves nothing behind."""
    for _ in range(count):
        sock = house.daemon.connect()
        say(sock)
        sock.close()
    house.is_well(24 * MIB)


def test_one_client_too_many(tmp_path: Path) -> None:
    """It is told the limit by name, plain client or shim; when another has left there is room again."""
    with Serving(tmp_path, AGENT, toml="[daemon]\nconnections = 2\n") as daemon:
        first, second = daemon.client(), daemon.client()
        assert "raise [daemon] connections" in Plain(daemon.connect()).ask_first()["error"]["message"]
        shim = daemon.connect()
        shim.sendall(b"acpd-shim 1 %b 0\n" % TOKEN)
        assert b"raise [daemon] connections" in shim.recv(1000)
        second.close()
        end = time.monotonic() + 20
        while "error" in Plain(daemon.connect()).ask_first():
            assert time.monotonic() < end
        assert first.new(tmp_path)


def test_a_hello_that_asks_for_help(house: House) -> None:
    """argparse would end the process: it is refused like any other command line that is wrong, and the daemon goes on."""
    body = b"arg=attach\0arg=--help"
    sock = house.daemon.connect()
    sock.sendall(b"acpd-shim 1 %b %d\n%b" % (TOKEN, len(body), body))
    assert sock.recv(1000).startswith(b"acpd-daemon 1 no 2 ")
    assert "end_turn" == house.good.prompt(house.session)["result"]["stopReason"]


def test_many_that_come_at_once_are_not_too_many(tmp_path: Path) -> None:
    """The limit holds also among shims whose words are being looked at at the same time."""
    with Serving(tmp_path, AGENT, toml="[daemon]\nconnections = 4\n") as daemon:
        kept = [daemon.client() for _ in range(3)]
        shims = [daemon.connect() for _ in range(4)]
        for number, shim in enumerate(shims):
            shim.sendall(b"acpd-shim 1 %032x 13\narg=run\0arg=x" % number)
        answers = [shim.recv(1000).split(b" ")[2].strip() for shim in shims]
        assert [b"no", b"no", b"no", b"ok"] == sorted(answers)
        assert kept
