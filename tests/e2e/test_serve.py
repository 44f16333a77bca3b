"""The daemon as a process: how it begins beside others, and that nothing is left when it ends."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import commands, daemons, proc, store
from tests.support.client import Client, allow
from tests.support.scripted import AGENT, EVERYTHING, prompt_params, until


class Place:
    """A home, the shims that are started there, and daemons that the test starts itself."""

    def __init__(self, tmp: Path) -> None:
        self.tmp = tmp
        self.home = tmp / "home"
        self.mark = proc.new_mark()
        self.path = self.home / "run" / "acpd.sock"
        self.clients: list[Client] = []
        self.served: list[subprocess.Popen[bytes]] = []

    def shim(self, **more: Any) -> Client:
        """An acpd around the scriptable agent, initialized with every capability."""
        env = {**daemons.BY_DAEMON, **more.pop("env", {})}
        command = commands.acpd("run", "--", sys.executable, str(AGENT))
        client = Client(command, self.home, mark=self.mark, env=env, cwd=self.tmp, **more)
        self.clients.append(client)
        client.initialize(**EVERYTHING)
        return client

    def serve(self, *words: str, **env: str) -> subprocess.Popen[bytes]:
        """`acpd serve`, starting."""
        self.home.mkdir(exist_ok=True)
        full = {**os.environ, "ACPD_HOME": str(self.home), proc.MARK: self.mark, **env}
        process = subprocess.Popen(commands.acpd("serve", *words), env=full, stderr=subprocess.PIPE)
        self.served.append(process)
        return process

    def listening(self) -> None:
        """Until somebody takes connections."""
        until("a daemon that listens", self.listens)

    def listens(self) -> bool:
        """Whether somebody takes connections."""
        with socket.socket(socket.AF_UNIX) as one:
            return self.path.exists() and one.connect_ex(str(self.path)) == 0

    def stopped(self, process: subprocess.Popen[bytes]) -> tuple[int, str]:
        """Exit code and stderr of one that ends by itself, or was told to."""
        _, err = process.communicate(timeout=20)
        return process.returncode, err.decode()

    def assert_nothing_left(self) -> None:
        proc.assert_none_left(self.mark)
        found = daemons.left(self.home)
        assert [] == found, f"left over: {found}"

    def end(self) -> None:
        """Free everything, whatever failed."""
        for client in self.clients:
            client.process.kill()
            client.stop()
        for process in self.served:
            process.kill()
            process.communicate()
        proc.kill_marked(self.mark)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.end()


def test_nothing_is_left_of_a_daemon_that_was_busy(place: Place) -> None:
    """SIGTERM with a running turn, an open question, a client that does not read, a terminal of acpd's own and an agent that
    is deaf: all of it ends, the turns are recorded as interrupted.
    """
    clients = [place.shim(policy=None, env={"ACPD_DAEMON_DRAIN": "0.2", "ACPD_AGENTS_STOP_GRACE": "0.5"}) for _ in range(4)]
    sessions = [client.new(place.tmp) for client in clients]
    clients[0].start_prompt(sessions[0], "say x\nask two")
    clients[0].wait_request("session/request_permission")
    clients[1].pause_reading()
    clients[1].start_prompt(sessions[1], "say x\nbig 8000000\nslow 1000 10")
    clients[2].start_prompt(sessions[2], "say x\nsleep 300\nrun sleep 1000")
    clients[2].wait_update(session=sessions[2])
    clients[2].kill()
    clients[3].start_prompt(sessions[3], "deaf\nsay x\nhang")
    clients[3].wait_update(session=sessions[3])
    until("the terminal", lambda: [each for each in proc.marked(place.mark) if "sleep 1000" in each.command])
    (daemon,) = daemons.pids(place.mark)
    until("the full socket", lambda: len(store.log(place.home, sessions[1], torn=True).of("update")) > 5)
    for client in clients:
        client.process.send_signal(signal.SIGSTOP)  # a shim that runs on would start the next daemon
    os.kill(daemon, signal.SIGTERM)
    proc.assert_gone(daemon, within=10)
    for client in clients:
        client.process.kill()
    place.assert_nothing_left()
    for session in sessions:
        (turn,) = store.turns(store.log(place.home, session))
        assert turn.end is not None
        assert "interrupted" == turn.end["state"]


@pytest.mark.e2e
def test_nothing_is_left_of_a_daemon_that_was_starting(place: Place) -> None:
    """SIGTERM at any moment of its start: no socket, no lock is left, and the next one serves."""
    rng = random.Random(1)
    for _ in range(12):
        process = place.serve()
        try:
            process.wait(rng.uniform(0.0, 0.6))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGTERM)
        code, err = place.stopped(process)
        assert code in (0, -signal.SIGTERM), err
        assert "Traceback" not in err
        place.assert_nothing_left()
    assert "end_turn" == place.shim().prompt(place.clients[0].new(place.tmp), "say x")
    place.clients[0].close_stdin()
    assert 0 == place.clients[0].wait_exit()
    daemons.stop(place.mark, place.home)


def test_a_second_daemon_names_the_first(place: Place) -> None:
    """It ends with an error that has the pid, and the first one serves on; when that has ended nothing is left."""
    first = place.serve()
    place.listening()
    code, err = place.stopped(place.serve())
    assert 1 == code
    assert f"acpd serve with pid {first.pid} has it" in err
    client = place.shim()
    assert "end_turn" == client.prompt(client.new(place.tmp), "say x")
    assert [first.pid] == daemons.pids(place.mark)
    client.close_stdin()
    assert 0 == client.wait_exit()
    first.terminate()
    assert 0 == place.stopped(first)[0]
    place.assert_nothing_left()


@pytest.mark.e2e
def test_the_socket_of_a_killed_daemon_is_replaced(place: Place) -> None:
    """What kill -9 left is no hindrance, to a daemon that somebody starts and to one that a shim starts."""
    first = place.serve()
    place.listening()
    first.kill()
    first.wait()
    assert place.path.is_socket()
    second = place.serve()
    place.listening()
    second.kill()
    second.wait()
    client = place.shim()
    assert "end_turn" == client.prompt(client.new(place.tmp), "say x")
    client.close_stdin()
    assert 0 == client.wait_exit()
    daemons.stop(place.mark, place.home)


@pytest.mark.e2e
def test_a_file_in_the_place_of_the_socket(place: Place) -> None:
    """It is not removed: the daemon names it and ends, and the shim serves alone."""
    place.path.parent.mkdir(mode=0o700, parents=True)
    place.path.write_text("mine")
    code, err = place.stopped(place.serve())
    assert 1 == code
    assert str(place.path) in err
    client = place.shim()
    assert "serves alone" in client.stderr()
    assert str(place.path) in client.stderr()
    assert "end_turn" == client.prompt(client.new(place.tmp), "say x")
    client.close_stdin()
    assert 0 == client.wait_exit()
    assert "mine" == place.path.read_text()
    place.path.unlink()
    place.assert_nothing_left()


@pytest.mark.e2e
def test_twenty_editors_at_once_have_one_daemon(place: Place) -> None:
    """However many are opened at the same time, one daemon is started, and all are served by it."""
    told: list[str] = []

    def work() -> None:
        client = place.shim()
        told.append(client.prompt(client.new(place.tmp), "say x"))

    threads = [threading.Thread(target=work) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ["end_turn"] * 20 == told
    assert 1 == len(daemons.pids(place.mark))
    assert {""} == {client.stderr() for client in place.clients}
    for client in place.clients:
        client.close_stdin()
    assert {0} == {client.wait_exit() for client in place.clients}
    daemons.stop(place.mark, place.home)
    assert 20 == len(store.check_store(place.home))


@pytest.mark.e2e
def test_a_store_is_handed_over(place: Place) -> None:
    """While one daemon still ends its agents, an editor that is opened starts the next one, which waits for the store; so does
    the editor that was there, in its session.
    """
    first = place.shim(env={"ACPD_DAEMON_DRAIN": "0", "ACPD_AGENTS_STOP_GRACE": "1"})
    session = first.new(place.tmp)
    running = first.start_prompt(session, "deaf\nsay x\nhang")
    first.wait_update(session=session)
    (daemon,) = daemons.pids(place.mark)
    os.kill(daemon, signal.SIGTERM)
    until("the end of listening", lambda: not place.listens())
    assert proc.alive(daemon)
    second = place.shim()
    assert not proc.alive(daemon)
    assert "" == second.stderr()
    assert 1 == len(daemons.pids(place.mark))
    assert "error" in first.answer(running).message
    second.load(session, place.tmp)
    assert "x" == second.text(session)
    assert "end_turn" == second.prompt(session, "say on")
    first.wait("the other's words", lambda: first.text(session) == "xon")
    for client in (first, second):
        client.close_stdin()
        assert 0 == client.wait_exit()
        client.stop()
        client.assert_clean()
    daemons.stop(place.mark, place.home)


@pytest.mark.e2e
def test_beside_the_daemon_of_another_store(place: Place) -> None:
    """Where the configuration has another store than when the daemon began, the shim says so and serves alone, in that one."""
    config = place.home / "config" / "acpd.toml"
    config.parent.mkdir(parents=True)
    config.write_text(f'[storage]\npath = "{place.tmp / "one"}"\n')
    daemon = place.serve()
    place.listening()
    config.write_text(f'[storage]\npath = "{place.tmp / "two"}"\n')
    client = place.shim(policy=allow)
    assert "this daemon has " + str(place.tmp / "one") in client.stderr()
    assert "serves alone" in client.stderr()
    session = client.new(place.tmp)
    assert "end_turn" == client.call("session/prompt", prompt_params(session, "say x"))["stopReason"]
    client.close_stdin()
    assert 0 == client.wait_exit()
    daemon.terminate()
    assert 0 == place.stopped(daemon)[0]
    assert [session] == list(store.check_store(place.tmp / "two"))
    place.assert_nothing_left()
