"""The shim as a process: what it imports, how it begins and ends, what it costs."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest

from acpd.shim import pump
from acpd.shim.ledger import LINE
from tests.shim.conftest import Place
from tests.support import proc
from tests.support.paths import ROOT
from tests.support.shim_daemon import Connection, Hello, ShimDaemon, echo

MODULES = """
import sys
before = set(sys.modules)
sys.argv = ["acpd", *sys.argv[1:]]
from acpd.cli.entry import main
code = main()
sys.stderr.write(" ".join(sorted(set(sys.modules) - before)))
sys.exit(code)
"""
MIB = 1 << 20


def hold(connection: Connection) -> None:
    """Welcomes, and is silent until the shim goes."""
    connection.hello()
    connection.ok()
    while connection.line() is not None:
        pass


def test_it_imports_next_to_nothing(place: Place) -> None:
    """From its start to its end a shim imports `_socket`, `select` and its own modules, beyond what an interpreter has."""
    with ShimDaemon(place.path, echo):
        code, out, modules = place.run([sys.executable, "-P", "-c", MODULES, "run", "--", "x"], b"hello\n")
    assert (0, b"hello\n") == (code, out)
    ours = {"acpd", "acpd.cli", "acpd.cli.entry", "acpd.shim", "acpd.where"}
    ours |= {f"acpd.shim.{name}" for name in ("ledger", "link", "pump", "serving", "words")}
    assert ours | {"_socket", "select"} == set(modules.split())


def test_it_needs_nothing_but_what_it_says(place: Place) -> None:
    """Its modules name no others: what the interpreter of today has by itself one of tomorrow may have to import."""
    allowed = {"os", "sys", "select", "_socket", "time"}
    for name in ("where", "shim/ledger", "shim/link", "shim/pump", "shim/serving", "shim/words"):
        text = (ROOT / "acpd" / f"{name}.py").read_text().split("\n")
        lines = [line.split() for line in text if line.startswith(("import ", "from "))]
        assert {words[1] for words in lines if not words[1].startswith("acpd.")} <= allowed, name


def test_the_hello(place: Place) -> None:
    """A shim says its arguments, folder and environment, and that its first line will be number 1, before it reads stdin."""
    hellos: list[Hello] = []

    def behave(connection: Connection) -> None:
        hellos.append(connection.hello())
        connection.ok()
        assert (1, b"line") == connection.line()
        assert connection.line() is None

    with ShimDaemon(place.path, behave):
        assert (0, b"", "") == place.run([*place.command("run", "--name", "n", "--", "a b", "", "ü")], b"line")
    (hello,) = hellos
    assert (1, 1, {}) == (hello.version, hello.next, hello.sessions)
    assert 32 == len(bytes.fromhex(hello.token.decode()).hex())
    assert ["run", "--name", "n", "--", "a b", "", "ü"] == [word.decode() for word in hello.all(b"arg")]
    assert [bytes(place.home)] == hello.all(b"cwd")
    assert {b"SECRET=of the editor", b"ACPD_HOME=" + bytes(place.home)} <= set(hello.all(b"env"))


def test_a_store_that_is_named_has_a_socket_of_its_own(place: Place) -> None:
    """`--storage` leads to the daemon of that store."""
    from acpd.where import socket_path

    path = socket_path(str(place.path.parent), {"storage": str(place.home / "s")}, {})
    assert path != str(place.path)
    with ShimDaemon(place.path.with_name(os.path.basename(path)), echo):
        assert (0, b"x\n", "") == place.run(place.command("--storage", "s"), b"x\n")


def test_a_mistake_ends_it(place: Place) -> None:
    """What a daemon calls a mistake of the user's stands on stderr, and its code is the shim's."""

    def refuse(connection: Connection) -> None:
        connection.hello()
        connection.say(b"acpd-daemon 1 no 2 there is no agent named 'x' (configured: y)\n")

    with ShimDaemon(place.path, refuse):
        said = "acpd: there is no agent named 'x' (configured: y)\n"
        assert (2, b"", said) == place.run(place.command("--agent", "x"), b"x\n")


def test_everything_is_sent_before_the_end(place: Place) -> None:
    """A file as stdin, of which the last line has no newline, comes back whole; then the daemon's end is the shim's."""
    lines = [b"%d" % number for number in range(50_000)]
    file = place.home / "in"
    file.write_bytes(b"\n".join(lines))
    with ShimDaemon(place.path, echo), file.open("rb") as stdin:
        done = subprocess.run(place.command(), stdin=stdin, capture_output=True, env=place.env, timeout=60)
    assert (0, lines) == (done.returncode, done.stdout.split(b"\n")[:-1])


def test_a_file_as_stdout_gets_everything(place: Place) -> None:
    """Where the system cannot write without waiting (a file), the shim asks before each write, and nothing is lost."""
    lines = [b"%d" % number for number in range(5_000)]
    file = place.home / "out"
    with ShimDaemon(place.path, echo), file.open("wb") as stdout:
        done = subprocess.run(place.command(), input=b"\n".join(lines), stdout=stdout, env=place.env, timeout=60)
    assert (0, lines) == (done.returncode, file.read_bytes().split(b"\n")[:-1])


@pytest.mark.e2e
def test_stdout_stays_as_the_editor_made_it(place: Place) -> None:
    """The shim makes no descriptor of the editor's non-blocking, however late that reads, and nothing is lost by it."""
    lines = [b"%d " % number + b"x" * 1000 for number in range(2_000)]

    def talk(connection: Connection) -> None:
        connection.hello()
        connection.ok()
        for line in lines:
            connection.tell("-", "-", line)

    read, write = os.pipe()
    pipe = subprocess.PIPE
    with ShimDaemon(place.path, talk), os.fdopen(read, "rb") as out:
        shim = subprocess.Popen(place.command(), stdin=pipe, stdout=write, env=place.env, cwd=place.home)
        assert shim.stdin is not None
        with shim, shim.stdin:
            got = out.read(1)
            while proc.cpu(shim.pid, 0.1):
                pass  # until the pipe is full
            assert os.get_blocking(write)
            os.close(write)
            got += b"".join(out.readline() for _ in lines)
    assert lines == got.split(b"\n")[:-1]


@pytest.mark.e2e
def test_the_end_does_not_wait_for_ever(place: Place) -> None:
    """A daemon that does not close after the end of stdin is waited for 5 seconds, no longer."""

    def stay(connection: Connection) -> None:
        hold(connection)
        connection.tell("-", "-", b"late")
        gone.wait(30)

    gone = threading.Event()
    with ShimDaemon(place.path, stay):
        began = time.monotonic()
        assert (0, b"late\n", "") == place.run(place.command(), b"x\n")
        gone.set()
    assert pump.END_SECONDS <= time.monotonic() - began < pump.END_SECONDS + 10


def test_signals_end_it(place: Place) -> None:
    """SIGTERM ends a shim as it ends any program, SIGINT without a traceback."""
    for number, code in ((signal.SIGTERM, -signal.SIGTERM), (signal.SIGINT, 130)):
        with ShimDaemon(place.path, echo), place.popen(place.command()) as shim:
            assert shim.stdin is not None
            assert shim.stdout is not None
            shim.stdin.write(b"x\n")
            assert b"x\n" == shim.stdout.read(2)
            shim.send_signal(number)
            _, err = shim.communicate(timeout=20)
            assert (code, b"") == (shim.returncode, err)


def test_it_ends_with_its_reader(place: Place) -> None:
    """An editor that closes the shim's stdout and nothing else has gone: the shim ends."""
    with ShimDaemon(place.path, echo), place.popen(place.command()) as shim:
        assert shim.stdin is not None
        assert shim.stdout is not None
        shim.stdin.write(b"x\n")
        assert b"x\n" == shim.stdout.read(2)
        shim.stdout.close()
        assert 0 == shim.wait(20)
        shim.stdin.close()


def a_socket() -> tuple[int, int]:
    one, other = socket.socketpair()
    return one.detach(), other.detach()


@pytest.mark.parametrize("ends", [os.pipe, a_socket], ids=["pipe", "socket"])
def test_the_editors_descriptor_is_left_as_it_is(place: Place, ends: Callable[[], tuple[int, int]]) -> None:
    """However much is written at once, who shares the descriptor finds it blocking, and a pipe's end is the shim's end."""
    reader, writer = ends()
    line = b"y" * MIB

    def run(connection: Connection) -> None:
        connection.hello()
        connection.ok()
        connection.say(b"s:1 =%d \n%b\n" % (len(line) + 1, line))
        while connection.line() is not None:
            pass

    with ShimDaemon(place.path, run), place.popen(place.command(), stdout=writer) as shim, os.fdopen(reader, "rb") as out:
        assert line + b"\n" == out.readline()
        assert os.get_blocking(writer)
        os.close(writer)
        assert shim.stdin is not None
        shim.stdin.close()
        assert (b"", 0) == (out.read(), shim.wait(20))


def test_an_editor_that_does_not_read_costs_no_memory(place: Place) -> None:
    """What the daemon has for an editor that does not read stays in the daemon; stdin is served meanwhile."""
    sent: list[int] = []
    heard = threading.Event()

    def flood(connection: Connection) -> None:
        connection.hello()
        connection.ok()
        line = b"- - " + b"x" * (1 << 16) + b"\n"
        connection.sock.settimeout(0.5)
        try:
            while sum(sent) < 200 * MIB:
                sent.append(connection.sock.send(line))
        except TimeoutError:
            connection.sock.settimeout(None)
        assert (1, b"hello") == connection.line()
        heard.set()

    with ShimDaemon(place.path, flood), place.popen(place.command()) as shim:
        assert shim.stdin is not None
        shim.stdin.write(b"hello\n")
        assert heard.wait(30)
        assert sum(sent) < 4 * MIB
        assert proc.rss(shim.pid) < 40 * MIB
        shim.kill()


def test_a_daemon_that_does_not_read_costs_no_memory(place: Place) -> None:
    """What an editor writes for a daemon that does not read stays in the editor; what the daemon says passes meanwhile."""
    full, heard = threading.Event(), threading.Event()

    def deaf(connection: Connection) -> None:
        connection.hello()
        connection.ok()
        assert full.wait(30)
        connection.tell("-", "-", b"a word")
        assert heard.wait(30)

    with ShimDaemon(place.path, deaf), place.popen(place.command()) as shim:
        assert shim.stdin is not None
        assert shim.stdout is not None
        os.set_blocking(shim.stdin.fileno(), False)
        end = time.monotonic() + 30
        written = 0
        while (took := shim.stdin.write(b"y" * 4095 + b"\n")) or proc.cpu(shim.pid, 0.2):
            written += took or 0
            assert time.monotonic() < end
        full.set()
        assert b"a word\n" == shim.stdout.read(7)
        assert written < 4 * MIB
        assert proc.rss(shim.pid) < 40 * MIB
        heard.set()
        shim.kill()


def test_a_line_without_end_is_cut(place: Place) -> None:
    """Of a line over the limit so much goes up that the daemon sees it, the rest is dropped, and the next line is whole."""
    got: list[tuple[int, bytes] | None] = []

    def take(connection: Connection) -> None:
        connection.hello()
        connection.ok()
        while (line := connection.line()) is not None:
            got.append((line[0], line[1][-10:] if len(line[1]) == LINE + 1 else line[1][:100]))
            connection.tell("-", str(line[0]))

    with ShimDaemon(place.path, take), place.popen(place.command()) as shim:
        assert shim.stdin is not None
        for _ in range(80):
            shim.stdin.write(b"z" * MIB)
        shim.stdin.write(b"\nnext\n")
        shim.stdin.close()
        assert 0 == shim.wait(60)
    assert [(1, b"z" * 10), (2, b"next")] == got
