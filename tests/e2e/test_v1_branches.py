"""Branches, labels and forks at an entry, by real processes: what is answered is there after kill -9, and nothing is lost."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from acpd.wire.ids import Ids
from acpd.wire.lines import Header, entry, header_line
from tests.cli import acpd
from tests.support import store
from tests.support.client import Client
from tests.support.scripted import Stage, failing

pytestmark = pytest.mark.e2e

BIG = 100_000
"""Entries of a long log."""


def talked(client: Client, cwd: Path, *scripts: str) -> tuple[str, list[str]]:
    """A session with a turn for each script; the last entry of each turn."""
    session = client.new(cwd)
    ends: list[str] = []
    for script in scripts:
        assert "end_turn" == client.prompt(session, script)
        ends.append(client.call("_acpd/tree", {"sessionId": session})["leaf"])
    return session, ends


def shown(client: Client, session: str, cwd: Path) -> str:
    """What a load shows of the agent's messages."""
    before = len(client.text(session))
    client.load(session, cwd)
    return client.text(session)[before:]


def test_a_branch_and_a_label_outlive_a_kill(play: Stage) -> None:
    """When they are answered they are there: kill -9, and a load shows the branch; the agent is told it, and nothing else."""
    client = play.start()
    session, ends = talked(client, play.cwd, "say one.", "say two.", "say three.")
    assert {"entry": ends[1], "label": "second"} == client.call(
        "_acpd/label", {"sessionId": session, "entry": ends[1], "label": "second"}
    )
    assert {"leaf": ends[0]} == client.call("_acpd/branch", {"sessionId": session, "entry": ends[0]})
    assert "goes on at another point" in client.told(session)
    client.kill()
    client = play.start()
    assert "one." == shown(client, session, play.cwd)
    rows = client.call("_acpd/tree", {"sessionId": session})["rows"]
    assert ["second"] == [row["label"] for row in rows if "label" in row]
    asked = len(play.agent_got())
    assert "end_turn" == client.prompt(session, "say four.\ncontext")
    methods = [m.get("method") for m in play.agent_got()[asked:]]
    assert "session/resume" not in methods
    assert "session/load" not in methods
    told = play.agent_got("session/prompt")[-1]["params"]["prompt"][0]["text"]
    assert "say one" in told
    assert "say two" not in told
    assert "cannot take its own memory" in client.told(session)
    assert {"leaf": ends[1]} == client.call("_acpd/branch", {"sessionId": session, "entry": "second"})
    assert "one.two." == shown(client, session, play.cwd)
    log = play.finish(client)[session]
    assert 4 == len(log.of("prompt"))
    assert [ends[0], ends[1]] == [fact["entry"] for fact in log.of("leaf")]


def test_commands_and_an_editor(play: Stage) -> None:
    """While an editor has the session open a command is told its pid; a fork only reads; afterwards the command works."""
    client = play.start()
    session, ends = talked(client, play.cwd, "say one.", "say two.")
    for words in (("branch", f"{session}@{ends[0]}"), ("label", f"{session}@{ends[0]}", "L")):
        code, out, err = acpd.run(play.home, *words)
        assert (1, "") == (code, out)
        assert f"cannot open session {session}: open in pid {client.process.pid}" in err
    code, out, err = acpd.run(play.home, "fork", f"{session}@{ends[0]}")
    assert (0, "") == (code, err)
    fork = out.strip()
    assert "end_turn" == client.prompt(session, "say three.")
    play.finish(client)
    assert (0, f"session {session} goes on at {ends[0]}\n", "") == acpd.run(play.home, "branch", f"{session}@{ends[0]}")
    assert 0 == acpd.run(play.home, "label", f"{session}@{ends[1]}", "before three").code
    tree = acpd.run(play.home, "tree", session).out
    assert "[before three]" in tree
    assert '"say one.", 4 entries, end_turn <- leaf' in tree
    client = play.start()
    assert "one." == shown(client, session, play.cwd)
    assert "one." == shown(client, fork, play.cwd)
    assert "end_turn" == client.prompt(fork, "say more")
    assert "could not fork its own memory" in client.told(fork)
    logs = play.finish(client)
    assert {"sessionId": session, "entryId": ends[0]} == logs[fork].header["parent"]
    assert [ends[1]] == [fact["entry"] for fact in logs[session].of("label")]


def test_fork_at_an_entry(play: Stage) -> None:
    """`acpd.dev/entry` forks there, labelled as told; an unknown one is -32602 and named; without one the agent's own fork."""
    client = play.start()
    session, ends = talked(client, play.cwd, "say one.", "say two.")
    params = {"sessionId": session, "cwd": str(play.cwd), "mcpServers": []}
    error = failing(client, "session/fork", {**params, "_meta": {"acpd.dev/entry": "nowhere"}})
    assert (-32602, {"entry": "nowhere"}) == (error.code, error.data)
    at = client.call("session/fork", {**params, "_meta": {"acpd.dev/entry": ends[0]}})["sessionId"]
    leaf = client.call("session/fork", {**params, "_meta": {"acpd.dev/entry": ends[1]}})["sessionId"]
    assert "end_turn" == client.prompt(at, "say more")
    assert "could not fork its own memory" in client.told(at)
    assert "end_turn" == client.prompt(leaf, "history")
    assert "" == client.told(leaf), "at the leaf the agent can do it itself"
    assert 1 == len(play.agent_got("session/fork"))
    assert "one.two." == shown(client, session, play.cwd)
    play.finish(client)


def test_a_branch_is_refused_in_a_turn(play: Stage) -> None:
    """-32600, nothing changed, and the turn goes on; after a kill in that turn nothing of a branch is there."""
    client = play.start()
    session, ends = talked(client, play.cwd, "say one.")
    client.start_prompt(session, "say half\nhang")
    client.wait("half", lambda: client.text(session).endswith("half"))
    assert -32600 == failing(client, "_acpd/branch", {"sessionId": session, "entry": ends[0]}).code
    client.kill()
    assert not store.log(play.home, session, torn=True).of("leaf")
    assert 0 == acpd.run(play.home, "branch", f"{session}@{ends[0]}").code
    client = play.start()
    assert "one." == shown(client, session, play.cwd)
    log = play.finish(client)[session]
    assert ["ended", "interrupted"] == [turn["state"] for turn in log.of("turn") if turn["state"] != "running"]


def test_a_long_session(play: Stage) -> None:
    """A branch of a log of 100,000 entries takes a second or two of one core, as does its tree, which stays a page long."""
    folder = play.home / "data" / "agents" / "agent" / "sessions"
    folder.mkdir(parents=True)
    middle = _long_log(folder / "long.log.jsonl", "long")
    for words in (("branch", f"long@{middle}"), ("tree", "long"), ("branch", f"long@{middle}")):
        began = time.monotonic()
        code, out, err = acpd.run(play.home, *words)
        assert (0, "") == (code, err)
        assert len(out.splitlines()) < 40
        assert time.monotonic() - began < 20, "measured: 0.8 s, 1.0 s, 0.5 s"
    assert f"* {middle[:18]}" in acpd.run(play.home, "tree", "long").out
    with play.start() as client:
        began = time.monotonic()
        tree = client.call("_acpd/tree", {"sessionId": "long"})
        assert time.monotonic() - began < 20, "measured: 0.6 s"
        assert (BIG, middle) == (tree["entries"], tree["leaf"])


def _long_log(path: Path, session: str) -> str:
    """A log of turns of 20 entries; the id of an entry in the middle."""
    ids, at = Ids(), "2026-11-30T10:00:00.000Z"
    header = Header(version=1, id=session, cwd="/", agent="agent", command=("agent",), createdAt=at)
    lines, names = [header_line(header)], list[str]()
    update = b'{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"word "}}'
    chunk = b',"kind":"agent_message_chunk","messageId":"m","cut":31,"params":{"sessionId":"inner","update":%b}' % update
    bodies = [
        ("prompt", b',"prompt":[{"type":"text","text":"a question"}]'),
        ("turn", b',"state":"running"'),
        *[("update", chunk)] * 17,
        ("turn", b',"state":"ended","stopReason":"end_turn"'),
    ]
    for seq in range(1, BIG + 1):
        kind, body = bodies[(seq - 1) % len(bodies)]
        parent = names[-1] if names else None
        names.append(ids.new())
        lines.append(entry(kind, names[-1], parent, seq, at, body))
    path.write_bytes(b"".join(lines))
    return names[BIG // 2 - 1]
