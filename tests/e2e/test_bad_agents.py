"""Every misbehaving agent of the corpus behind acpd: what its first line promises of acpd, no more and no less.

Beside it, in the same acpd, lives a witness: a session made with a healthy agent in an earlier process and loaded
here. Whatever the bad agent does, the witness goes on.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import commands, daemons, proc, store
from tests.support.client import Client, Json, RpcError
from tests.support.walk import sizes

pytestmark = pytest.mark.e2e

MIB = 1 << 20


class Stage:
    """A store with the witness in it, and an acpd around the bad agent, by itself or by a daemon."""

    def __init__(self, tmp: Path, way: str) -> None:
        self.tmp = tmp
        self.home = tmp / "home"
        self.mark = proc.new_mark()
        self.by_daemon = way == "daemon"
        self.env = {
            **daemons.BY[way],
            "ACP_STATE": str(tmp / "witness.json"),
        }  # so that the healthy agent knows its session again
        with Client(commands.wrapping("good_agent"), self.home, mark=self.mark, env=self.env) as client:
            client.initialize()
            self.witness = client.new(tmp)
            assert "end_turn" == client.prompt(self.witness, "say before")
        if self.by_daemon:
            daemons.stop(self.mark, self.home)
        self.client: Client | None = None

    def start(self, agent: str, **env: str) -> Client:
        """An acpd around `agent`, initialized."""
        self.client = Client(commands.wrapping(agent), self.home, mark=self.mark, env=self.env | env)
        self.client.initialize()
        return self.client

    @property
    def pid(self) -> int:
        """Of the process that has the agents."""
        assert self.client is not None
        return daemons.wait(self.mark) if self.by_daemon else self.client.pid

    def load_witness(self) -> None:
        assert self.client is not None
        self.client.load(self.witness, self.tmp)
        self.ask_witness("first")

    def ask_witness(self, word: str) -> None:
        """The healthy session answers, and only with its own words."""
        assert self.client is not None
        before = self.client.text(self.witness)
        assert "end_turn" == self.client.prompt(self.witness, f"say {word}")
        assert word == self.client.text(self.witness)[len(before) :]

    def finish(self) -> dict[str, store.Log]:
        """End acpd: exit code 0, wire clean, no process left, store whole."""
        assert self.client is not None
        self.client.close_stdin()
        assert 0 == self.client.wait_exit()
        self.client.stop()
        self.client.assert_clean()
        if self.by_daemon:
            assert "" == self.client.stderr(), "this was no shim"
            daemons.stop(self.mark, self.home)
        proc.assert_none_left(self.mark)
        return store.check_store(self.home)


@pytest.fixture(params=["standalone", "daemon"])
def stage(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Stage]:
    made = Stage(tmp_path, request.param)
    yield made
    if made.client is not None:
        made.client.stop()
    proc.kill_marked(made.mark)


def outcome(client: Client, ident: Any, within: float = 20.0) -> Json:
    return client.answer(ident, within=within).message


@pytest.mark.parametrize("agent", ["good_agent", "minimal_agent", "junk_before_init", "wrong_ids", "unknown_session"])
def test_a_session_beside_another_of_the_same_agent_works(agent: str, stage: Stage) -> None:
    """Noise, foreign ids and updates for strangers harm neither the session, nor its neighbour, nor the witness."""
    client = stage.start(agent)
    stage.load_witness()
    sessions = [client.new(stage.tmp), client.new(stage.tmp)]
    for session in (*sessions, *sessions):
        assert "end_turn" == client.prompt(session, "hello")
    stage.ask_witness("after")
    logs = stage.finish()
    assert set(sessions) | {stage.witness} == set(logs)
    assert ["end_turn"] * 2 == [turn.end and turn.end["stopReason"] for turn in store.turns(logs[sessions[0]])]


def test_updates_for_strangers_are_dropped(stage: Stage) -> None:
    """Updates without a session, for unknown sessions or of unknown shape reach nobody; none crosses to a neighbour."""
    client = stage.start("unknown_session")
    one, two = client.new(stage.tmp), client.new(stage.tmp)
    assert "end_turn" == client.prompt(one, "hello")
    assert "end_turn" == client.prompt(two, "hello")
    assert "mine" == client.text(one).replace("LATE", "")
    assert "mine" == client.text(two).replace("LATE", "")
    stage.finish()
    said = b"".join(line.raw for line in client.lines)
    assert b"LEAK" not in said
    assert b"for the other one" not in said
    assert b"hologram" not in said


def test_work_after_the_end_of_a_turn_is_stored_and_shown(stage: Stage) -> None:
    """A chunk that comes after the turn's answer is shown live and comes again on load."""
    client = stage.start("unknown_session")
    session = client.new(stage.tmp)
    client.prompt(session, "hello")
    client.wait("the late chunk", lambda: client.text(session).endswith("LATE"))
    stage.finish()
    again = stage.start("unknown_session")
    again.load(session, stage.tmp)
    assert "mineLATE" == again.text(session)
    stage.finish()


def test_a_prompt_is_answered_once_whatever_ids_the_agent_uses(stage: Stage) -> None:
    """Answers with a foreign id, an id as text, id null or a second answer change nothing: the right one counts."""
    client = stage.start("wrong_ids")
    session = client.new(stage.tmp)
    ident = client.start_prompt(session, "hello")
    assert {"stopReason": "end_turn"} == client.result(ident)
    assert "end_turn" == client.prompt(session, "again")  # whatever followed the first answer has been read by now
    assert 1 == len(client.answers(ident))
    stage.finish()


def test_an_agent_that_dies_in_a_turn_ends_the_turn_within_a_second(stage: Stage) -> None:
    """The error names the exit code and the agent's last words; the chunks stay; the next prompt is answered at once."""
    client = stage.start("dies_mid_prompt")
    stage.load_witness()
    session = client.new(stage.tmp)
    for turn in range(2):
        ident = client.start_prompt(session, f"turn {turn}")
        client.wait_update("agent_message_chunk", len(client.updates("agent_message_chunk", session)) + 1, session=session)
        died = time.monotonic()
        error = outcome(client, ident)["error"]
        assert time.monotonic() - died < 1.0
        assert "3" in error["message"]
        assert "out of luck" in error["message"]
    stage.ask_witness("after")
    log = stage.finish()[session]
    assert 2 == len(log.of("prompt"))
    ends = [turn.end for turn in store.turns(log)]
    assert all(end and "out of luck" in str(end["error"]) for end in ends), ends
    again = stage.start("dies_mid_prompt")
    again.load(session, stage.tmp)
    assert "one two one two " == "".join(
        line.update["content"]["text"]
        for line in again.updates("agent_message_chunk", session)
        if line.seq and line.update["content"]["text"] in {"one ", "two ", "one two "}
    )
    stage.finish()


def test_a_flood_on_stderr_is_drained_and_bounded(stage: Stage) -> None:
    """1 MiB on stderr at start and in each turn: no deadlock, bounded files, bounded memory, little in acpd's own log."""
    client = stage.start("floods_stderr")
    session = client.new(stage.tmp)
    client.prompt(session, "first")
    before = proc.rss(stage.pid)
    for turn in range(8):
        assert "end_turn" == client.prompt(session, f"turn {turn}")
    assert "still here" * 9 == client.text(session)
    assert proc.rss(stage.pid) - before < 8 * MIB
    stage.finish()
    assert client.stderr_path.stat().st_size < 64 << 10
    held = sizes(stage.home)
    assert sum(held.values()) < 4 * MIB, held


def test_big_updates_come_whole(stage: Stage) -> None:
    """Lines of 70 KiB, 1 MiB and 24 MiB reach the client whole, and the reader is in step afterwards."""
    client = stage.start("huge_update")
    stage.load_witness()
    session = client.new(stage.tmp)
    assert "end_turn" == client.prompt(session, "go", within=60)
    live = client.text(session)
    assert "h" * (70_000 + MIB + 24 * MIB) + "end" == live
    stage.ask_witness("after")
    stage.finish()
    again = stage.start("huge_update")
    again.load(session, stage.tmp, within=60)
    assert live == again.text(session)
    stage.finish()


def test_a_deaf_agent_is_stopped_after_the_cancel_timeout(stage: Stage) -> None:
    """Cancel is answered within the configured bound; no later chunk comes; the session can be used again."""
    client = stage.start("ignores_cancel", ACPD_AGENTS_CANCEL_TIMEOUT="1")
    stage.load_witness()
    session = client.new(stage.tmp)
    for turn in range(2):
        ident = client.start_prompt(session, f"turn {turn}")
        client.wait_update("agent_message_chunk", len(client.updates("agent_message_chunk")) + 3)
        asked = time.monotonic()
        client.notify("session/cancel", {"sessionId": session})
        answer = client.answer(ident)
        assert {"stopReason": "cancelled"} == answer.message["result"]
        assert answer.at - asked < 4.0
        stage.ask_witness(f"after {turn}")
        late = [
            line.raw
            for line in client.lines[answer.number :]
            if line.session == session and line.kind == "agent_message_chunk" and line.update["content"]["text"].startswith("c")
        ]
        assert [] == late
    stage.finish()


def test_an_answer_behind_an_escape_sequence_is_found_or_named(stage: Stage) -> None:
    """An initialize answer behind an escape sequence is recovered, or the start fails with a message in the start limit."""
    client = stage.start("ansi_prefix", ACPD_AGENTS_START_TIMEOUT="2")
    answer = outcome(client, client.request("session/new", {"cwd": str(stage.tmp), "mcpServers": []}))
    if "result" in answer:
        assert "end_turn" == client.prompt(answer["result"]["sessionId"], "hello")
    else:
        assert "initialize" in answer["error"]["message"]
    stage.load_witness()
    stage.finish()


def test_an_agent_that_never_initializes_is_given_up(stage: Stage) -> None:
    """Even so initialize is answered, session/new says clearly that the agent did not start, the process is ended."""
    started = time.monotonic()
    client = stage.start("never_init", ACPD_AGENTS_START_TIMEOUT="2")
    assert time.monotonic() - started < 6
    with pytest.raises(RpcError, match=r"(?i)initialize|start") as caught:
        client.new(stage.tmp)
    assert "never_init" in caught.value.message or "python" in caught.value.message
    stage.load_witness()
    stage.finish()


def test_noise_on_stdout_is_skipped_and_logged_within_bounds(stage: Stage) -> None:
    """Logs, blank lines, window titles and JSON that is no message reach nobody; acpd's stderr stays small."""
    client = stage.start("junk_before_init")
    session = client.new(stage.tmp)
    for turn in range(20):
        assert "end_turn" == client.prompt(session, f"turn {turn}")
    assert "hello" * 20 == client.text(session)
    stage.finish()
    assert client.stderr_path.stat().st_size < 64 << 10


def test_every_agent_of_the_corpus_is_played() -> None:
    """A new agent in the corpus needs a test here."""
    here = Path(__file__).read_text(encoding="utf-8")
    assert [] == [path.stem for path in commands.AGENTS.glob("*.py") if f'"{path.stem}"' not in here]
