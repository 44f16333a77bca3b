"""kill -9 of the daemon, and of the shim, at random moments: the editor sees one unbroken stream, and nothing twice.

One chain is one editor over many kills. What it must see is said by tests/support/kills.py; that every line is valid ACP,
by tests/support/wire.py.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import commands, daemons, kills, proc, store, streamed
from tests.support.client import Client, Policy, allow
from tests.support.kills import Seat

POINTS = 10
"""Kills of one chain."""
CHAINS = 20
COUNT = 60
"""Updates of one turn, about."""
PAUSE = 2000
"""Microseconds between two of them."""
WITHIN = 40.0


def chains() -> Iterator[object]:
    """Seeds, and how many kills each: 200 with `make e2e`, a few in every run."""
    yield pytest.param(1, 2, id="some")
    for seed in range(CHAINS):
        yield pytest.param(seed, POINTS, id=str(seed), marks=[pytest.mark.e2e])


class Chain:
    """A store, one daemon after the other, the editor, and in every second chain somebody else who looks on."""

    def __init__(self, tmp: Path, seed: int, **env: str) -> None:
        """`env`: for the shims, and so for the daemons, as well."""
        self.tmp = tmp
        self.home = tmp / "home"
        self.env = {**daemons.BY_DAEMON, **env}
        self.traces = tmp / "traces"
        self.traces.mkdir()
        self.mark = proc.new_mark()
        self.rng = random.Random(seed)
        self.clients: list[Client] = []
        self.texts = 0
        self.checked = 0
        """Requests of the editor that were judged."""
        self.replied = 0
        self.loading: tuple[str, int, Any] | None = None
        """A session, the line of the editor, and the id of a load that is under way."""
        self.editor = self.connect()
        self.made = [self.editor.new(tmp), self.editor.new(tmp)]
        self.seats = {session: Seat(self.editor, session) for session in self.made}
        self.other = kills.sit(self.connect(), self.made[0], tmp) if seed % 2 else None

    def connect(self) -> Client:
        """A shim, with nobody who answers what is asked."""
        env = {**self.env, "STREAM_TRACE": str(self.traces / "%p")}
        client = Client(commands.wrapping(commands.STREAMER), self.home, mark=self.mark, env=env, policy=None)
        self.clients.append(client)
        client.initialize()
        return client

    def end(self) -> None:
        """Free everything, whatever failed."""
        daemons.kill(self.mark)
        for client in self.clients:
            client.process.kill()
            client.stop()
        proc.kill_marked(self.mark)

    def text(self, word: str, *more: object) -> str:
        """A prompt that there was not yet."""
        self.texts += 1
        return " ".join(map(str, (word, self.texts, *more)))

    def stream(self, session: str, client: Client | None = None) -> Any:
        return (client or self.editor).start_prompt(session, self.text("stream", COUNT, PAUSE))

    def watch(self) -> None:
        """Let something happen: so many lines, or so much time."""
        wanted = len(self.editor.lines) + self.rng.randint(0, COUNT)
        end = time.monotonic() + (0.5 if self.rng.random() < 0.5 else self.rng.uniform(0, 2 * COUNT * PAUSE / 1e6))
        while len(self.editor.lines) < wanted and time.monotonic() < end:
            self.editor.wait_end(0.001)

    def judge(self) -> None:
        """After a kill, what was under way and what the editor saw of it."""
        self.settle()
        self.check()

    def settle(self) -> None:
        """Until all that was asked is answered, on both sides."""
        ids = [sent.id for sent in self.editor.sent[self.checked :]]
        self.editor.wait("all answers", lambda: self._answered(ids), within=WITHIN)
        if self.loading is not None:
            session, since, ident = self.loading
            self.seats[session] = Seat(self.editor, session, since, self.editor.answer(ident))
            self.loading = None
        self.editor.call("session/list", {}, within=WITHIN)

    def _answered(self, ids: list[Any]) -> bool:
        self.say_yes()
        return all(map(self.editor.answers, ids))

    def say_yes(self) -> None:
        """To each permission that was asked for, also to one that was taken back meanwhile."""
        asks = [line for line in self.editor.lines if line.method == "session/request_permission"]
        while self.replied < len(asks):
            self.replied += 1
            self.editor.reply(asks[self.replied - 1], {"outcome": {"outcome": "selected", "optionId": "yes"}})

    def check(self) -> None:
        """Everybody has seen all that is in the logs, once; each of the editor's requests has its one answer."""
        logs = {session: store.log(self.home, session, torn=True) for session in self.made}
        sent, self.checked = self.editor.sent[self.checked :], len(self.editor.sent)
        for session, seat in self.seats.items():
            kills.check_seat(seat, logs[session], self.editor.sent)
            kills.check_answers(self.editor, sent, logs[session])
            kills.assert_in_order(logs[session], self.editor.sent)
        if self.other is not None:
            kills.catch_up(self.other, logs[self.other.session])
            kills.check_seat(self.other, logs[self.other.session], [])
        streamed.check_all_said(list(logs.values()), self.traces.iterdir())

    def finish(self) -> None:
        """The last word; then all of it ends, and nothing is left."""
        for session in self.made:
            assert "end_turn" == self.editor.prompt(session, self.text("last"), within=WITHIN)
        self.check()
        for client in {id(one): one for one in (self.editor, *([self.other.client] if self.other else []))}.values():
            client.close_stdin()
            assert 0 == client.wait_exit()
            client.stop()
            client.assert_clean()
        daemons.stop(self.mark, self.home, killed=True)
        store.check_store(self.home)


Scene = Callable[[Chain], object]


def streaming(chain: Chain) -> None:
    """In a turn."""
    chain.stream(chain.rng.choice(chain.made))


def both(chain: Chain) -> None:
    """In a turn of each of two sessions."""
    for session in chain.made:
        chain.stream(session)


def queued(chain: Chain) -> None:
    """Prompts wait behind a turn."""
    session = chain.rng.choice(chain.made)
    for _ in range(3):
        chain.stream(session)


def asking(chain: Chain) -> None:
    """A permission is asked for, and perhaps answered at that moment."""
    session = chain.rng.choice(chain.made)
    before = len([line for line in chain.editor.lines if line.method == "session/request_permission"])
    chain.editor.start_prompt(session, chain.text("ask"))
    chain.editor.wait_request("session/request_permission", before + 1)
    if chain.rng.random() < 0.3:
        chain.say_yes()


def making(chain: Chain) -> None:
    """A session is being made."""
    chain.editor.request("session/new", {"cwd": str(chain.tmp), "mcpServers": []})


def loading(chain: Chain) -> None:
    """In the replay of a load of what the editor has open already."""
    session = chain.rng.choice(chain.made)
    since = len(chain.editor.lines)
    ident = chain.editor.request("session/load", {"sessionId": session, "cwd": str(chain.tmp), "mcpServers": []})
    chain.loading = (session, since, ident)


def idle(_: Chain) -> None:
    """Nothing is under way."""


SCENES: list[Scene] = [streaming, streaming, both, queued, asking, making, loading, loading, idle]


@pytest.mark.parametrize(("seed", "points"), list(chains()))
def test_a_daemon_that_is_killed_is_not_noticed(seed: int, points: int, tmp_path: Path) -> None:
    """The same connection goes on: each update once, in order, each request answered once, and another kill, and another."""
    chain = Chain(tmp_path, seed)
    try:
        for _ in range(points):
            pid = daemons.wait(chain.mark)
            chain.rng.choice(SCENES)(chain)
            chain.watch()
            os.kill(pid, signal.SIGKILL)
            if chain.rng.random() < 0.2:  # the next one too, while it starts or takes up what there is
                chain.editor.wait_end(chain.rng.uniform(0, 0.5))
                daemons.kill(chain.mark)
            chain.judge()
        chain.finish()
    finally:
        chain.end()


class Desk:
    """One daemon, and editors that are killed with their shims, one after the other; in every second chain one that stays."""

    def __init__(self, tmp: Path, seed: int, **env: str) -> None:
        """`env`: for the shims, and so for the daemon, as well."""
        self.tmp = tmp
        self.home = tmp / "home"
        self.env = {**daemons.BY_DAEMON, **env}
        self.trace = tmp / "trace"
        self.mark = proc.new_mark()
        self.rng = random.Random(f"shim-{seed}")
        self.clients: list[Client] = []
        self.texts = 0
        first = self.connect()
        self.session = first.new(tmp)
        self.seat = Seat(first, self.session)
        self.other = kills.sit(self.connect(), self.session, tmp) if seed % 2 else None
        self.daemon = daemons.wait(self.mark)

    def connect(self, policy: Policy | None = None) -> Client:
        """A shim of its own."""
        env = {**self.env, "STREAM_TRACE": str(self.trace)}
        client = Client(commands.wrapping(commands.STREAMER), self.home, mark=self.mark, env=env, policy=policy)
        self.clients.append(client)
        client.initialize()
        return client

    def end(self) -> None:
        """Free everything, whatever failed."""
        for client in self.clients:
            client.process.kill()
            client.stop()
        daemons.kill(self.mark)
        proc.kill_marked(self.mark)

    def start(self) -> None:
        """Something that goes on without the editor."""
        client = self.seat.client
        for _ in range(self.rng.choice([1, 1, 2])):
            self.texts += 1
            if self.rng.random() < 0.3:
                client.start_prompt(self.session, f"ask {self.texts}")
            else:
                client.start_prompt(self.session, f"stream {self.texts} {COUNT} {PAUSE}")
        if self.rng.random() < 0.2:
            client.request("session/load", {"sessionId": self.session, "cwd": str(self.tmp), "mcpServers": []})
        elif self.rng.random() < 0.1:
            client.request("session/new", {"cwd": str(self.tmp), "mcpServers": []})

    def kill(self) -> None:
        """After so many lines or so much time. What the shim had said is in order, and what it told was stored."""
        client = self.seat.client
        wanted = len(client.lines) + self.rng.randint(0, COUNT)
        end = time.monotonic() + self.rng.uniform(0, 2 * COUNT * PAUSE / 1e6)
        while len(client.lines) < wanted and time.monotonic() < end:
            client.wait_end(0.001)
        client.kill()
        client.stop()
        client.assert_clean()

    def come_back(self) -> None:
        """A new shim; it is asked what nobody has answered, its prompt waits behind what runs, and it has seen all of it."""
        client = self.connect(allow)
        self.seat = kills.sit(client, self.session, self.tmp)
        self.texts += 1
        assert "end_turn" == client.prompt(self.session, f"word {self.texts}", within=WITHIN)
        assert [self.daemon] == daemons.pids(self.mark)
        log = store.log(self.home, self.session, torn=True)
        kills.check_seat(self.seat, log, client.sent)
        if self.other is not None:
            kills.catch_up(self.other, log)
            kills.check_seat(self.other, log, [])
        assert {"end_turn"} == {turn.end["stopReason"] if turn.end else "open" for turn in store.turns(log)}

    def finish(self) -> None:
        """What was accepted was done, once; and nothing is left."""
        client = self.seat.client
        streamed.check_said(store.log(self.home, self.session), self.trace)
        for one in (client, *([self.other.client] if self.other else [])):
            one.close_stdin()
            assert 0 == one.wait_exit()
            one.stop()
            one.assert_clean()
        daemons.stop(self.mark, self.home)
        store.check_store(self.home)


@pytest.mark.parametrize(("seed", "points"), list(chains()))
def test_a_shim_that_is_killed_takes_nothing_with_it(seed: int, points: int, tmp_path: Path) -> None:
    """The daemon and the turn go on; a new editor loads the session and sees all of it, once, while it still runs."""
    desk = Desk(tmp_path, seed)
    try:
        for _ in range(points):
            desk.start()
            desk.kill()
            desk.come_back()
        desk.finish()
    finally:
        desk.end()


# The judge: each of these bugs is seen

_REATTACH = """
from acpd import rejoin, router
right = rejoin.reattach
async def reattach(connection, session_id, cursor, how):
    return await right(connection, session_id, cursor._replace(seq=0), how)
rejoin.reattach = router.reattach = reattach
"""
_AGAIN = """
from acpd import rejoin
async def none(*_):
    return None
rejoin._end_of = none
"""
_OUT = """
from acpd.shim.ledger import Ledger
right = Ledger.down
def down(self, block):
    told = right(self, block)
    return b"" if b'"acpd.dev/seq":15,' in told else told
Ledger.down = down
"""
_FORGETS = """
from acpd.shim.ledger import Ledger
Ledger.again = lambda self: iter(())
"""
PLANTED = {
    "a daemon that begins at the beginning": ("serve", _REATTACH, "an entry twice"),
    "a daemon that runs a prompt again": ("serve", _AGAIN, "begun"),
    "a shim that books what it never wrote": ("run", _OUT, "never shown"),
    "a shim that forgets what it sent": ("run", _FORGETS, "all answers"),
}
"""Which processes have it, the bug, and what the judge says."""


def planted(folder: Path, where: str, bug: str) -> dict[str, str]:
    """An environment in which every such process has the bug: the module that Python looks for at its start has it."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(f"import sys\nif {where!r} in sys.orig_argv:\n    exec({bug!r})\n")
    return {"PYTHONPATH": str(folder)}


@pytest.mark.e2e
@pytest.mark.parametrize("name", PLANTED)
def test_the_judge_sees(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With this bug the test of killed daemons fails, and says why."""
    where, bug, seen = PLANTED[name]
    monkeypatch.setattr(f"{__name__}.WITHIN", 5.0)
    chain = Chain(tmp_path, 0, **planted(tmp_path / "site", where, bug))
    try:
        pid = daemons.wait(chain.mark)
        chain.stream(chain.made[0])
        chain.editor.wait_update(count=20)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(AssertionError, match=seen):
            chain.judge()
    finally:
        chain.end()


_LEAVES = """
from acpd.presence import Presence
Presence.left = Presence._cancel
"""
_STEPS_BACK = """
from acpd.audience import Audience
right = Audience.start
def start(self, attachment):
    attachment.cursor = max(0, attachment.cursor - 8)
    right(self, attachment)
Audience.start = start
"""
LEFT = {
    "a turn that ends with its editor": (_LEAVES, "cancelled"),
    "a load whose end comes twice": (_STEPS_BACK, "a client shows"),
}
"""Bugs of the daemon, and what the judge says."""


@pytest.mark.e2e
@pytest.mark.parametrize("name", LEFT)
def test_the_judge_of_shims_sees(name: str, tmp_path: Path) -> None:
    """With this bug the test of killed shims fails."""
    bug, seen = LEFT[name]
    desk = Desk(tmp_path, 0, ACPD_AGENTS_CANCEL_TIMEOUT="1", **planted(tmp_path / "site", "serve", bug))
    try:
        desk.seat.client.start_prompt(desk.session, "stream 0 800 2000")
        desk.seat.client.wait_update(count=20)
        desk.kill()
        with pytest.raises(AssertionError, match=seen):
            desk.come_back()
    finally:
        desk.end()
