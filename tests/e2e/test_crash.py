"""kill -9 of acpd at random moments: what a client has seen is in the log, and the next acpd shows it again.

One chain is one session over many crashes: each start recovers from the kill before it, and is killed in its turn.
What "shows it again" means is said by tests/support/fold.py alone, from ACP v1.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import commands, proc, store, streamed
from tests.support.client import Client, Line
from tests.support.fold import fold

POINTS = 10
"""Kills of one chain."""
COUNT = 60
"""Updates of one turn, about."""
PAUSE = 500
"""Microseconds between two of them."""

Json = dict[str, Any]


def chains() -> Iterator[object]:
    """20 kill points a backend in every run, 200 in all with `make e2e`, 200 a backend by hand."""
    for backend in ("workspace", "json", "sqlite"):
        for seed in range(20):
            often = 8 if backend == "workspace" else 6
            marks = [] if seed < 2 else [pytest.mark.e2e] if seed < often else [pytest.mark.slow]
            yield pytest.param(backend, seed, id=f"{backend}-{seed}", marks=marks)


class Chain:
    """A session, what its clients were shown so far, and what the agent says it did."""

    def __init__(self, tmp: Path, backend: str) -> None:
        self.tmp = tmp
        self.home = tmp / "home"
        self.trace = tmp / "trace"
        self.mark = proc.new_mark()
        self.env = {"ACPD_STORAGE_BACKEND": backend, "STREAM_TRACE": str(self.trace)}
        self.session = ""
        self.before: store.Log | None = None
        self.exchanges: list[store.Exchange] = []
        self.clients: list[Client] = []

    def start(self) -> Client:
        """A new acpd; the session is made, or loaded and compared."""
        client = self.connect()
        if self.session:
            client.load(self.session, self.tmp)
            self.check_loaded(client)
        else:
            self.session = client.new(self.tmp)
        return client

    def connect(self) -> Client:
        client = Client(commands.wrapping(commands.STREAMER), self.home, mark=self.mark, env=self.env)
        self.clients.append(client)
        client.initialize()
        return client

    def end(self) -> None:
        """Free everything, whatever failed."""
        for client in self.clients:
            client.stop()
        proc.kill_marked(self.mark)

    def killed(self, client: Client) -> None:
        """After the kill: what was seen is stored, what was answered is stored, nothing was stored that was not said."""
        assert [] == client.violations
        log = store.log(self.home, self.session, torn=True)
        check_shown(log, client.lines, after=len(self.before.entries) if self.before else 0)
        for sent in client.sent:
            for answer in client.answers(sent.id):
                self.exchanges.append(store.Exchange(sent.method, sent.params, answer.message))
        store.check_answered({self.session: log}, self.exchanges)
        streamed.check_said(log, self.trace)
        self.before = log

    def check_loaded(self, client: Client) -> None:
        """The replay is the whole log; the turn that was open is interrupted and the user is told."""
        assert self.before is not None
        log = store.log(self.home, self.session)
        store.check(log)
        assert self.before.lines == log.lines[: len(self.before.lines)], "the log before the crash was changed"
        frames = [line for line in client.updates(session=self.session) if not line.is_notice]
        streamed.assert_same_view(streamed.view_of_log(log), fold(line.params for line in frames))
        assert_turns_settled(log)
        if open_turn(self.before):
            assert log.of("turn")[-1]["state"] == "interrupted"
            assert "interrupted" in client.told(self.session), client.story()


def check_shown(log: store.Log, lines: list[Line], *, after: int) -> None:
    """Every update that was shown live is in the log, byte for byte; they came in its order and without a gap.

    What a load showed before (up to `after`) was folded; it is compared by what it looks like.
    """
    seen = [(line.seq or 0, line.raw) for line in lines if line.kind and not line.is_notice and (line.seq or 0) > after]
    store.check_received(log, seen)
    live = [seq for seq, _ in seen]
    stored = [
        entry["seq"]
        for entry in log.of("update")
        if not streamed.is_notice(entry) and after < entry["seq"] <= max(live, default=0)
    ]
    live_updates = [seq for seq in live if log.entries[seq - 1]["type"] == "update"]
    assert stored == live_updates


def open_turn(log: store.Log) -> bool:
    turns = log.of("turn")
    return bool(turns) and turns[-1]["state"] == "running"


def assert_turns_settled(log: store.Log) -> None:
    assert len(log.of("prompt")) == len([entry for entry in log.of("turn") if entry["state"] != "running"])


@pytest.mark.parametrize(("backend", "seed"), list(chains()))
def test_nothing_that_was_seen_is_lost(backend: str, seed: int, tmp_path: Path) -> None:
    """After any kill -9: all that was seen is stored, all that is stored comes again, nothing is re-run."""
    rng = random.Random(f"{backend}-{seed}")
    chain = Chain(tmp_path, backend)
    try:
        for point in range(POINTS):
            client = chain.start()
            start = len(client.lines)
            client.start_prompt(chain.session, f"stream {seed * 1000 + point} {COUNT} {PAUSE}")
            kill_somewhere(client, rng, start)
            chain.killed(client)
            client.stop()
        with chain.start() as client:
            assert "end_turn" == client.prompt(chain.session, "the last word")
            client.close_stdin()
            assert 0 == client.wait_exit()
        proc.assert_none_left(chain.mark)
        log = store.check_store(chain.home)[chain.session]
        assert "the last word" in json.dumps(log.of("prompt")[-1])
        streamed.check_said(log, chain.trace)
    finally:
        chain.end()


def kill_somewhere(client: Client, rng: random.Random, start: int) -> None:
    """After so many updates, or after so much time: from "the prompt has just been sent" to "the turn is over"."""
    if rng.random() < 0.5:
        wanted = rng.randint(0, COUNT)
        client.wait(
            "updates or the end of the turn", lambda: len(client.lines) - start >= wanted or client.answers(client.sent[-1].id)
        )
    else:
        client.wait_end(rng.uniform(0, 2 * COUNT * PAUSE / 1e6))
    client.kill()


@pytest.mark.e2e
@pytest.mark.parametrize("seed", range(3))
def test_killed_while_it_replays(seed: int, tmp_path: Path) -> None:
    """A load that is cut off by kill -9 changes nothing: the next load shows all."""
    rng = random.Random(seed)
    chain = Chain(tmp_path, "workspace")
    try:
        client = chain.start()
        for turn in range(4):
            assert "end_turn" == client.prompt(chain.session, f"stream {turn} 100 0")
        client.kill()
        chain.killed(client)
        client.stop()
        whole = (chain.before or store.log(chain.home, chain.session)).lines
        for _ in range(3):
            client = chain.connect()
            client.request("session/load", {"sessionId": chain.session, "cwd": str(tmp_path), "mcpServers": []})
            client.wait_end(rng.uniform(0, 0.05))
            client.kill()
            client.stop()
            assert whole == store.log(chain.home, chain.session, torn=True).lines[: len(whole)]
        chain.start().stop()
        proc.assert_none_left(chain.mark)
    finally:
        chain.end()


def test_a_pending_permission_is_cancelled_by_the_crash(tmp_path: Path) -> None:
    """After kill -9 with a question open: the turn is interrupted, the ask is answered `cancelled`, nobody is asked again."""
    home, mark = tmp_path / "home", proc.new_mark()
    client = Client(commands.wrapping("good_agent"), home, mark=mark, policy=None)
    client.initialize()
    session = client.new(tmp_path)
    client.start_prompt(session, "ask")
    client.wait_request("session/request_permission")
    client.kill()
    client.stop()
    before = store.log(home, session, torn=True)
    assert 1 == len(before.of("ask"))
    with Client(commands.wrapping("good_agent"), home, mark=mark, policy=None) as again:
        again.initialize()
        again.load(session, tmp_path)
        assert "interrupted" in again.told(session), again.story()
        tools = [line.update for line in again.updates(session=session) if "toolCallId" in line.update]
        assert tools[-1].get("status") == "failed", "a tool call of the interrupted turn is left open"
        assert "end_turn" == again.prompt(session, "say fine")
        assert [] == [line for line in again.lines if line.method == "session/request_permission"]
    proc.assert_none_left(mark)
    log = store.check_store(home)[session]
    (answer,) = log.of("answer")
    assert log.of("ask")[0]["id"] == answer["ask"]
    assert "acpd" == answer["by"]
    assert "cancelled" in json.dumps(answer) or -32800 == answer["error"]["code"]  # ACP v1: either says it
    assert ["interrupted", "ended"] == [entry["state"] for entry in log.of("turn") if entry["state"] != "running"]


def test_an_agent_left_over_by_a_killed_acpd_is_ended_at_the_next_start(tmp_path: Path) -> None:
    """An agent that is deaf to the end of stdin, to SIGTERM and to broken pipes does not outlive the next start."""
    home, mark = tmp_path / "home", proc.new_mark()
    client = Client(commands.wrapping(commands.STREAMER), home, mark=mark, env={"STREAM_DEAF": "1"})
    try:
        client.initialize()
        session = client.new(tmp_path)
        client.start_prompt(session, "stream 1 1000 1000")
        client.wait_update(count=20)
        client.kill()
        client.stop()
        left = proc.marked(mark)
        assert [] != left, "the agent ended by itself: this test proves nothing"
        with Client(commands.wrapping(commands.STREAMER), home, mark=proc.new_mark()) as again:
            again.initialize()
            again.load(session, tmp_path)
            proc.assert_none_left(mark, within=10)
            assert "end_turn" == again.prompt(session, "hello")
    finally:
        proc.kill_marked(mark)


@pytest.mark.e2e
@pytest.mark.parametrize("seed", range(4))
def test_killed_while_it_starts(seed: int, tmp_path: Path) -> None:
    """A kill -9 anywhere between the start and the answer to session/new leaves a store that works."""
    rng = random.Random(seed)
    home, mark = tmp_path / "home", proc.new_mark()
    made: list[str] = []
    for _ in range(4):
        client = Client(commands.wrapping("minimal_agent"), home, mark=mark)
        client.request("initialize", {"protocolVersion": 1, "clientCapabilities": {}})
        new = client.request("session/new", {"cwd": str(tmp_path), "mcpServers": []})
        client.wait_end(rng.uniform(0, 0.6))
        client.kill()
        client.stop()
        made += [answer.message["result"]["sessionId"] for answer in client.answers(new) if "result" in answer.message]
    with Client(commands.wrapping("minimal_agent"), home, mark=mark) as client:
        client.initialize()
        for session in made:
            client.load(session, tmp_path)
            assert "end_turn" == client.prompt(session, "hello")
        assert set(made) == {row["sessionId"] for row in client.call("session/list", {})["sessions"]}
    proc.assert_none_left(mark)
    assert set(made) <= set(store.check_store(home))
