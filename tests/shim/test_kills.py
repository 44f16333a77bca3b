"""A daemon that dies at any byte: the editor sees each line once and in order, the daemon gets what is not settled again."""

from __future__ import annotations

import os
import select
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acpd.shim import pump, serving
from acpd.shim.ledger import OVERHEAD, Ledger
from acpd.shim.link import Link, NoDaemon, Refused
from acpd.shim.pump import Pump
from acpd.shim.serving import Shim
from tests.support.shim_daemon import ENDLESS, Connection, Hello, Killed, ShimDaemon

WITHIN = 30.0
OK = len(b"acpd-daemon 1 ok\n")
SAY = st.tuples(st.sampled_from("ab"), st.integers(0, 4))


class World:
    """What daemons share that die and follow each other: their logs, and which lines of the shim they know.

    The lines are `init`, `new S`, `say S COUNT` (adds so many entries to the log of S), `note` and `close S`.
    """

    def __init__(self, lives: list[int | None]) -> None:
        self.lives = lives
        self.tokens: set[bytes] = set()
        self.seen: dict[int, bytes] = {}
        self.logs: dict[str, list[bytes]] = {}
        self.hellos: list[Hello] = []

    def behave(self, connection: Connection) -> None:
        life = self.lives.pop(0) if self.lives else ENDLESS
        if life is None:
            raise Killed
        hello = connection.hello()
        connection.life = life if self.hellos else life + OK
        self.hellos.append(hello)
        self.tokens.add(hello.token)
        places = {name.decode(): int(cursor) for name, (cursor, _) in hello.sessions.items()}
        assert all({b"a": b"2", b"b": b"3"}[name] == setup for name, (_, setup) in hello.sessions.items())
        connection.ok()
        for session in places:
            self.tell_all(connection, session, places)
        self.serve(connection, hello, places)

    def serve(self, connection: Connection, hello: Hello, places: dict[str, int]) -> None:
        before = 0
        again: set[int] = set()
        while (line := connection.line()) is not None:
            number, text = line
            assert number > before, "not in the order of the numbers"
            assert number < hello.next or number == before + 1 or before < hello.next == number, "a gap"
            assert text == self.seen.get(number, text), "another line under an old number"
            before = number
            if number < hello.next:
                again.add(number)
            else:
                setups = {int(setup) for _, setup in hello.sessions.values() if setup != b"-"}
                assert setups <= again, "a set-up line is missing"
            fresh = number not in self.seen
            self.seen[number] = text
            self.act(connection, number, text.decode().split(), places, fresh=fresh)

    def act(self, connection: Connection, number: int, words: list[str], places: dict[str, int], *, fresh: bool) -> None:
        session = words[1] if len(words) > 1 else ""
        match words[0]:
            case "init":
                connection.tell("-", f"{number}*", b"init")
            case "new":
                self.logs.setdefault(session, [])
                place = places.setdefault(session, 0)
                connection.tell(f"{session}:{place}", f"{number}+", b"made %b" % session.encode())
            case "say":
                log = self.logs[session]
                log += [b"%b %d" % (session.encode(), len(log) + at) for at in range(int(words[2]))] if fresh else []
                self.tell_all(connection, session, places)
                connection.tell("-", str(number), b"said %d" % number)
            case "close":
                connection.tell(f"{session}:x", str(number), b"closed %b" % session.encode())
            case _:
                connection.tell("-", str(number))

    def tell_all(self, connection: Connection, session: str, places: dict[str, int]) -> None:
        """Of session b as a run, if there is anything."""
        entries = self.logs[session][places[session] :]
        if session == "b" and entries:
            data = b"".join(entry + b"\n" for entry in entries)
            places[session] += len(entries)
            connection.say(b"b:%d =%d \n%b" % (places[session], len(data), data))
            return
        for entry in entries:
            places[session] += 1
            connection.tell(f"{session}:{places[session]}", "-", entry)


class Editor:
    """Both pipes of a shim that runs in a thread of its own, and never starts a daemon."""

    def __init__(self, path: Path) -> None:
        env = {"ACPD_HOME": str(path.parent.parent), "ACPD_DAEMON_AUTOSTART": "false"}
        theirs, self._stdin = os.pipe()
        self._stdout, ours = os.pipe()
        self._ends = [theirs, ours, self._stdout]
        self.shim = Shim(Link(str(path), ["--agent", "x"]), Pump(Ledger(), theirs, ours), {}, env)
        self.code: int | None = None
        self.error: NoDaemon | Refused | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        assert self.shim.first() is None
        try:
            self.code = self.shim.run()
        except (NoDaemon, Refused) as error:
            self.error = error

    def write(self, data: bytes) -> None:
        os.write(self._stdin, data)

    def read(self, lines: int) -> list[bytes]:
        """So many lines. Fails if they do not come in time."""
        got = b""
        end = time.monotonic() + WITHIN
        while got.count(b"\n") < lines:
            ready, _, _ = select.select([self._stdout], [], [], max(0.0, end - time.monotonic()))
            assert ready, f"nothing more comes than {got!r}"
            got += os.read(self._stdout, 1 << 16)
        return got.split(b"\n")[:-1]

    def end(self) -> list[bytes]:
        """Close stdin; what still comes."""
        os.close(self._stdin)
        return self._rest()

    def wait(self) -> list[bytes]:
        """What still comes until the shim ends by itself."""
        rest = self._rest()
        os.close(self._stdin)
        return rest

    def _rest(self) -> list[bytes]:
        self._thread.join(WITHIN)
        assert not self._thread.is_alive()
        os.close(self._ends.pop(1))
        rest = os.read(self._stdout, 1 << 16)
        for fd in self._ends:
            os.close(fd)
        return rest.split(b"\n")[:-1]


@given(
    st.lists(SAY, min_size=1, max_size=12),
    st.lists(st.none() | st.integers(1, 40) | st.integers(1, 500), max_size=8),
    st.integers(1, 60),
)
def test_any_schedule_of_deaths(
    tmp_path_factory: pytest.TempPathFactory, says: list[tuple[str, int]], lives: list[int | None], piece: int
) -> None:
    """Whenever daemons die, each entry, each answer comes once, entries in order and before the answer that follows them."""
    lives[:1] = [life or 1 for life in lives[:1]]  # one that never answers is no reason to wait, at a first start
    lines = ["init", "new a", "new b", "note", *(f"say {session} {count}" for session, count in says), "close a"]
    world = World(lives)
    expected = [b"init", b"made a", b"made b", b"closed a"]
    counts = dict.fromkeys("ab", 0)
    for number, (session, count) in enumerate(says, 5):
        expected += [b"%b %d" % (session.encode(), counts[session] + at) for at in range(count)]
        expected.append(b"said %d" % number)
        counts[session] += count
    with ShimDaemon(tmp_path_factory.mktemp("d") / "run" / "acpd.sock", world.behave) as daemon:
        editor = Editor(daemon.path)
        data = "".join(f"{line}\n" for line in lines).encode()
        for at in range(0, len(data), piece):
            editor.write(data[at : at + piece])
        got = editor.read(len(expected))
        got += editor.end()
    assert sorted(expected) == sorted(got)
    for head in (b"a ", b"b "):
        assert [line for line in expected if line.startswith(head)] == [line for line in got if line.startswith(head)]
    for number, (session, count) in enumerate(says, 5):
        end = got.index(b"said %d" % number)
        told = sum(many for name, many in says[: number - 4] if name == session)
        assert count == 0 or got.index(b"%b %d" % (session.encode(), told - 1)) < end
    assert (0, 1) == (editor.code, len(world.tokens))
    assert set(range(1, len(lines) + 1)) == set(world.seen)


def test_a_daemon_that_stays_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a time without a daemon the shim gives up and says what it waited for."""
    monkeypatch.setattr(serving, "AGAIN_SECONDS", 0.2)

    def once(connection: Connection) -> None:
        connection.hello()
        connection.ok()
        os.rename(daemon.path, tmp_path / "away")
        daemon.path = tmp_path / "away"

    with ShimDaemon(tmp_path / "run" / "acpd.sock", once) as daemon:
        editor = Editor(daemon.path)
        assert [] == editor.wait()
    assert "the daemon was lost, and for 0 s there was no other: none is running" == str(editor.error)


def test_a_mistake_that_the_next_daemon_finds(tmp_path: Path) -> None:
    """A mistake of the user's that the next daemon finds ends the shim; a daemon that only cannot serve does not."""
    answers = [b"acpd-daemon 1 ok\n", b"acpd-daemon 1 no - it is stopping\n", b"acpd-daemon 1 no 2 no agent\n"]

    def behave(connection: Connection) -> None:
        connection.hello()
        connection.say(answers.pop(0))

    with ShimDaemon(tmp_path / "run" / "acpd.sock", behave) as daemon:
        editor = Editor(daemon.path)
        assert [] == editor.wait()
    assert isinstance(editor.error, Refused)
    assert (2, "no agent", []) == (editor.error.code, str(editor.error), answers)


def test_a_daemon_that_settles_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the limit of unsettled lines nothing more is read of stdin, until some are settled; all of them arrive."""
    monkeypatch.setattr(pump, "KEPT", 100_000)
    monkeypatch.setattr(pump, "READ", 1_000)
    line = b"x" * 999 + b"\n"
    held: list[int] = []

    def slow(connection: Connection) -> None:
        connection.hello()
        connection.ok()
        connection.sock.settimeout(0.3)
        taken = 0
        try:
            while connection.line() is not None:
                taken += 1
        except Killed:  # here: nothing came
            held.append(taken)
        connection.sock.settimeout(None)
        connection.say(b"".join(b"- %d \n" % number for number in range(1, taken + 1)))
        while (more := connection.line()) is not None:
            taken += 1
            connection.tell("-", str(more[0]), b"all" if taken == 200 else b"")

    with ShimDaemon(tmp_path / "run" / "acpd.sock", slow) as daemon:
        editor = Editor(daemon.path)
        for _ in range(200):
            editor.write(line)
        assert [b"all"] == editor.read(1) + editor.end()
    assert held[0] == 100_000 // (999 + OVERHEAD) + 1
