"""A daemon where none runs: started once, detached, with nothing of the editor's; or not at all, and then it is said why."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from acpd.shim import starting
from tests.shim.conftest import Place
from tests.support.shim_daemon import Connection, Killed, ShimDaemon, echo

INITIALIZE = b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":1}}\n'


def served_alone(place: Place, command: list[str], **more: str) -> str:
    """What stands on stderr, of a shim that was no shim in the end."""
    code, out, err = place.run(command, INITIALIZE, **more)
    assert 0 == code
    assert "acpd" == json.loads(out)["result"]["agentInfo"]["name"]
    return err


@pytest.mark.e2e
def test_many_start_one(place: Place) -> None:
    """Twenty shims that are started at the same time have one daemon, and each is served."""
    shims = [place.popen(place.starting("ready")) for _ in range(20)]
    outs = [shim.communicate(b"%d\n" % number, timeout=60) for number, shim in enumerate(shims)]
    assert [(b"%d\n" % number, b"") for number in range(20)] == outs
    assert [0] * 20 == [shim.returncode for shim in shims]
    assert 1 == len(place.started())


def test_the_daemon_is_nobodys(place: Place) -> None:
    """It has a session of its own, the root folder, no descriptor and no secret of the editor's, and another parent."""
    ours, theirs = os.pipe()
    os.set_inheritable(theirs, True)
    with place.popen(place.starting("ready"), pass_fds=(theirs,)) as shim:
        assert shim.stdin is not None
        assert shim.stdout is not None
        shim.stdin.write(b"x\n")
        assert b"x\n" == shim.stdout.read(2)
        ((pid, seen),) = place.started().items()
        parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        assert parent != shim.pid
        shim.communicate(timeout=20)
    os.close(ours)
    os.close(theirs)
    assert ("/", True) == (seen["cwd"], seen["session"])
    assert [0, 1, 2, int(seen["env"][starting.READY_FD])] == seen["fds"]
    assert "SECRET" not in seen["env"]
    assert str(place.home) == seen["env"]["ACPD_HOME"]


def test_another_one_is_started_for_one_that_died(place: Place) -> None:
    """The daemon is killed: the same shim starts the next one, and its editor is served on."""
    with place.popen(place.starting("ready")) as shim:
        assert shim.stdin is not None
        assert shim.stdout is not None
        for word in (b"one\n", b"two\n"):
            shim.stdin.write(word)
            assert word == shim.stdout.read(4)
            for pid in place.started():
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
        shim.stdin.write(b"end\n")
        assert b"end\n" == shim.stdout.read(4)
        shim.stdin.close()
        assert 0 == shim.wait(20)
    assert 2 <= len(place.started()) <= 3


def test_what_a_daemon_may_know() -> None:
    """Of an environment it has what acpd and Python need, and neither what is one client's nor what is an agent's."""
    kept = {"HOME": "h", "LC_ALL": "l", "XDG_RUNTIME_DIR": "x", "ACPD_HOME": "a", "PYTHONPATH": "p", "TZ": "t"}
    others = {"API_KEY": "k", "ACPD_LINK": "l", "ACPD_USER": "u", "ACPD_STANDALONE": "0", "SSH_AUTH_SOCK": "s", "LCX": "?"}
    assert kept == starting.environment({**kept, **others})


def test_what_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """`acpd serve` with the words that choose the store, from no current folder."""
    monkeypatch.setattr(sys, "executable", "/bin/python")
    plain = ["/bin/python", "-P", "-m", "acpd", "serve"]
    assert plain == starting.serve_command({})
    assert [*plain, "--storage", "/s", "--backend", "json"] == starting.serve_command({"storage": "/s", "backend": "json"})


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("error", "the store is somebody else's"),
        ("die", "it ended at its start, see {log}"),
        ("silent", "it was not ready within 1 s"),
    ],
)
def test_alone_when_it_does_not_come_up(place: Place, how: str, why: str) -> None:
    """A daemon that cannot serve is no reason not to: the same process does it alone, and says why."""
    log = place.path.with_suffix(".log")
    err = served_alone(place, place.starting(how, seconds=1 if how == "silent" else 20))
    assert f"acpd: no daemon ({why.format(log=log)}): this process serves alone\n" == err
    assert how != "die" or "a reason for the log" in log.read_text()


def test_alone_where_it_is_told_so(place: Place) -> None:
    """With `autostart = false` nothing is started, and nothing is said about it; one that runs is used."""
    assert "" == served_alone(place, place.starting("ready"), ACPD_DAEMON_AUTOSTART="false")
    assert {} == place.started()
    with ShimDaemon(place.path, echo):
        assert (0, b"x\n", "") == place.run(place.command(), b"x\n", ACPD_DAEMON_AUTOSTART="false")


def test_alone_by_a_wrong_configuration(place: Place) -> None:
    """A configuration that cannot be read starts nothing; it is the error that it is without a daemon."""
    code, out, err = place.run(place.starting("ready"), INITIALIZE, ACPD_LOG_LEVEL="loud")
    assert (2, b"", "acpd: ACPD_LOG_LEVEL") == (code, out, err[:20])
    assert {} == place.started()


def test_alone_where_the_daemon_has_no_use_for_it(place: Place) -> None:
    """One that answers `no -` has another store, or another version; its reason is passed on."""

    def refuse(connection: Connection) -> None:
        connection.hello()
        connection.say(b"acpd-daemon 1 no - it is stopping\n")

    with ShimDaemon(place.path, refuse):
        assert "acpd: no daemon (it is stopping): this process serves alone\n" == served_alone(place, place.command())


def test_alone_beside_one_that_breaks_off(place: Place) -> None:
    """A daemon that dies in its answer is not there; another one is tried, and if that is no better nobody waits."""

    def die(connection: Connection) -> None:
        connection.hello()
        connection.life = 9
        connection.ok()
        raise Killed

    with ShimDaemon(place.path, die):
        assert "the store is somebody else's" in served_alone(place, place.starting("error"))


def test_alone_in_a_folder_that_cannot_be_had(place: Place) -> None:
    """Where the runtime folder cannot be made the reason names it."""
    (place.home / "run").write_text("a file")
    _, _, err = place.run(place.starting("ready"), INITIALIZE)
    assert f"acpd: no daemon ({place.path}: Not a directory): this process serves alone\n" == err.splitlines(keepends=True)[0]
    assert {} == place.started()


def test_a_socket_with_a_long_path(place: Place) -> None:
    """The length of the runtime folder's path does not matter."""
    place.env["ACPD_HOME"] = str(place.home / ("x" * 150))
    folder = Path(place.env["ACPD_HOME"], "run")
    folder.mkdir(parents=True)
    opened = os.open(folder, os.O_PATH)
    with ShimDaemon(Path(f"/proc/self/fd/{opened}/acpd.sock"), echo):
        assert (0, b"x\n", "") == place.run(place.command(), b"x\n")
    os.close(opened)


@pytest.mark.parametrize("closed", ["<&-", "2>&-"])
def test_closed_descriptors(place: Place, closed: str) -> None:
    """Without stdin there is nothing to serve, and without stderr nothing to say: the link's socket takes neither's place."""
    command = ["sh", "-c", f'exec "$@" {closed}', "sh", *place.command()]
    with ShimDaemon(place.path, echo):
        code, out, err = place.run(command, b"x\n")
    assert (0, b"" if closed == "<&-" else b"x\n", "") == (code, out, err)


def test_without_stdout_there_is_no_shim(place: Place) -> None:
    """A closed stdout is the error that it is without a daemon."""
    code, _, err = place.run(["sh", "-c", 'exec "$@" >&-', "sh", *place.command()], b"x\n")
    assert (2, "acpd: stdout is closed\n") == (code, err)


def test_stdin_may_be_a_socket(place: Place) -> None:
    """Some editors give their children sockets instead of pipes; they are left as they are, blocking."""
    ours, theirs = socket.socketpair()
    shim = subprocess.Popen(place.command(), stdin=theirs.fileno(), stdout=theirs.fileno(), env=place.env)
    with ours, theirs, shim, ShimDaemon(place.path, echo):
        ours.sendall(b"x\n")
        assert b"x\n" == ours.recv(10)
        assert os.get_blocking(theirs.fileno())
        theirs.close()
        ours.shutdown(socket.SHUT_WR)
        assert b"" == ours.recv(10)
        assert 0 == shim.wait(20)
