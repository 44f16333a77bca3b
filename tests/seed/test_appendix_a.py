"""What a session system has to keep, row by row: each test is named after a fault that one had (docs/sessions.md).

Rows 8 to 11, 15, 21 and 22 stand with what they are about: tests/native and tests/recall. Row 29, the import of old
workspaces, has no test yet.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from acpd.errors import StoreError
from acpd.storage.contract import Key, Session
from acpd.storage.testing import ODD_NAMES
from acpd_backends.states import JsonSession, SqliteSession, WorkspaceSession
from tests.backends import journal_logs
from tests.cli import acpd
from tests.seed.stage import Stage as Native
from tests.support import daemons, store
from tests.support.client import Client, Json
from tests.support.models import STALL, answer
from tests.support.scripted import Stage, failing
from tests.support.walk import contents

pytestmark = pytest.mark.e2e

TREE = ("prompt", "update", "compaction", "ask", "answer", "turn")


def tree(log: store.Log) -> list[Json]:
    return [entry for entry in log.entries if "parentId" in entry]


def context_file(log: store.Log) -> Path:
    return log.path.with_name(f"{log.id}.jsonl")


def messages(log: store.Log) -> list[Json]:
    """The lines of the context file behind its header."""
    return [json.loads(line) for line in context_file(log).read_text().splitlines()[1:]]


def talk(client: Client, cwd: Path, *scripts: str) -> str:
    session = client.new(cwd)
    for script in scripts:
        assert "end_turn" == client.prompt(session, script)
    return session


def shown(client: Client, session: str, cwd: Path) -> str:
    """What a load shows of the agent's messages."""
    before = len(client.text(session))
    client.load(session, cwd)
    return client.text(session)[before:]


def test_a01_three_turns_of_two_messages(play: Stage) -> None:
    """Six messages, each once; one root, and each entry's parent is the one before."""
    client = play.start()
    session = talk(client, play.cwd, "say one", "say two", "say three")
    log = play.finish(client)[session]
    entries = tree(log)
    assert [None, *(entry["id"] for entry in entries[:-1])] == [entry["parentId"] for entry in entries]
    assert ["prompt", "update"] * 3 == [entry["type"] for entry in entries if entry["type"] in {"prompt", "update"}]
    six = messages(log)
    assert ["user", "assistant"] * 3 == [line["role"] for line in six]
    assert 6 == len({line["id"] for line in six})


def test_a02_s04_nothing_is_written_twice(play: Stage) -> None:
    """Opening and closing a session again leaves its messages as they are, byte for byte."""
    client = play.start()
    session = talk(client, play.cwd, "say one", "say two")
    before = play.finish(client)[session]
    context = context_file(before).read_bytes()
    client = play.start()
    client.load(session, play.cwd)
    client.call("session/close", {"sessionId": session})
    after = play.finish(client)[session]
    assert before.lines == after.lines[: len(before.lines)]
    assert tree(before) == tree(after)
    assert context == context_file(after).read_bytes()


def test_a03_a_message_that_grows_is_one_message(play: Stage) -> None:
    """Chunks and a tool call's result that come later: the log has all, a reader sees the last form once."""
    client = play.start()
    session = talk(client, play.cwd, "chunks 3 with-id\ntool look\nsay done")
    live = [line.update["status"] for line in client.updates("tool_call_update")]
    log = play.finish(client)[session]
    assert "completed" == live[-1]
    assert 5 <= len(log.of("update"))
    client = play.start()
    client.load(session, play.cwd)
    (call,) = client.updates("tool_call")
    assert "completed" == call.update["status"]
    assert 1 == len({line.update.get("messageId") for line in client.updates("agent_message_chunk")[:1]})
    play.finish(client)


def test_a04_a_kill_before_the_model_answers(native: Native) -> None:
    """The prompt is there after a reload, its turn marked as interrupted, and it is in the model's memory."""
    native.model.canned = [STALL]
    with native.client() as client:
        session = client.new(native.cwd)
        client.start_prompt(session, "remember the number 4711")
        assert native.model.stalled.wait(20)
        client.kill()
    with native.client() as client:
        client.load(session, native.cwd)
        assert "remember the number 4711" == client.text(session, "user_message_chunk")
        assert "interrupted" in client.told(session)
        client.prompt(session, "go on")
    assert ["interrupted", "ended"] == [
        line["state"] for line in native.log(session) if line["type"] == "turn" and line["state"] != "running"
    ]
    assert "4711" in native.told()


def test_a05_a_torn_end(play: Stage) -> None:
    """Old lines and new ones are readable; the torn bytes are put aside."""
    client = play.start()
    session = talk(client, play.cwd, "say one")
    log = play.finish(client)[session]
    with log.path.open("ab") as file:
        file.write(torn := b'{"type":"update","id":"half of a li')
    client = play.start()
    assert "one" == shown(client, session, play.cwd)
    client.prompt(session, "say two")
    again = play.finish(client)[session]
    assert log.lines == again.lines[: len(log.lines)]
    assert 2 == len(again.of("prompt"))
    assert [torn] == [data for path, data in contents(play.home).items() if torn in data and path != log.path]


def test_a06_a_bad_line_in_the_middle(play: Stage) -> None:
    """The session loads without it and goes on; it is reported; what was written is not written again."""
    client = play.start()
    session = talk(client, play.cwd, "say one", "say two", "say three")
    log = play.finish(client)[session]
    lines = log.path.read_bytes().split(b"\n")
    at = next(n for n, line in enumerate(lines) if b'"two' in line and b'"update"' in line)
    lines[at] = b'{"type":"update", broken'
    log.path.write_bytes(damaged := b"\n".join(lines))
    client = play.start()
    assert "one[A part of the history could not be read.]three" == shown(client, session, play.cwd)
    client.prompt(session, "say four")
    client.close_stdin()
    client.wait_exit()
    assert log.path.read_bytes().startswith(damaged)
    code, out, _ = acpd.run(play.home, "fsck", session)
    assert 1 == code
    assert f"{log.path}:{at + 1}: " in out


def test_a07_a_cancel_while_a_tool_runs(native: Native) -> None:
    """Snapshot and log are saved, the call has a result, and a strict provider takes the next prompt."""
    native.model.canned = [answer("chat", calls=[("c1", "run", {"command": "sleep 60"}), ("c2", "list", {})])]
    with native.client() as client:
        session = client.new(native.cwd)
        ident = client.start_prompt(session, "go")
        client.wait(
            "the command runs", lambda: any(u.update.get("status") == "in_progress" for u in client.updates("tool_call_update"))
        )
        client.notify("session/cancel", {"sessionId": session})
        assert "cancelled" == client.result(ident)["stopReason"]
        assert "end_turn" == client.prompt(session, "go on")
    results = [m for m in native.model.bodies[-1]["messages"] if m["role"] == "tool"]
    assert ["c1", "c2"] == [m["tool_call_id"] for m in results]
    assert "interrupted" in results[0]["content"]
    assert native.value(session, "memory") is not None


def test_a12_two_prompts_at_once(play: Stage) -> None:
    """The second waits for the first; what they are answered is never mixed."""
    client = play.start()
    session = client.new(play.cwd)
    idents = [client.start_prompt(session, f"slow 5 1\nsay {word}") for word in ("one", "two")]
    client.wait_settled(idents)
    log = play.finish(client)[session]
    words = [
        entry["type"] if entry["type"] == "prompt" else entry["state"]
        for entry in log.entries
        if entry["type"] in {"prompt", "turn"}
    ]
    assert 2 == words.count("ended")
    ends = [n for n, entry in enumerate(log.entries) if entry["type"] == "turn" and entry["state"] == "ended"]
    text = [json.dumps(entry) for entry in log.entries if entry["type"] == "update"]
    assert [True, False] == ["one" in line for line in text if '"one' in line or '"two' in line]
    assert all(
        entry["type"] != "update" or entry["seq"] < log.entries[ends[0]]["seq"] or "one" not in json.dumps(entry)
        for entry in log.entries
    )


def test_a13_two_users(play: Stage) -> None:
    """No path of one has anything of the other, and neither finds the other's session."""
    made: dict[str, str] = {}
    for user in ("alice", "bob"):
        client = play.start(flags=("--user", user))
        made[user] = talk(client, play.cwd, f"say secret of {user}")
        listed = client.call("session/list", {})["sessions"]
        ours = [each["sessionId"] for each in listed if "acpd.dev/adopt" not in each["_meta"]]  # what the agent has is its own
        assert [made[user]] == ours
        for other in set(made) - {user}:
            assert (
                -32002
                == failing(client, "session/load", {"sessionId": made[other], "cwd": str(play.cwd), "mcpServers": []}).code
            )
            assert [] == client.call("_acpd/search", {"query": f"secret of {other}"})["hits"]
        play.finish(client)
    for path, data in contents(play.home / "data").items():
        assert not (b"secret of alice" in data and b"secret of bob" in data), path
        assert made["alice"] not in str(path) or made["bob"] not in str(path)


def test_a14_s15_a_new_session_is_empty(native: Native) -> None:
    """The model is told nothing of the session before it, of the same agent in the same process."""
    with native.client() as client:
        talk(client, native.cwd, "remember the number 4711")
        talk(client, native.cwd, "which number?")
    assert "4711" not in native.told()


@pytest.mark.parametrize("make", [WorkspaceSession, JsonSession, SqliteSession])
async def test_a16_odd_ids(tmp_path: Path, make: type[WorkspaceSession]) -> None:
    """Every id is told apart from every other, is given back as it was, and leaves nothing outside of the store."""
    odd = {*ODD_NAMES, "..", ".", "a/b", "a b", "YSBiL2M", "A", "a", "x.log", "CON", "x" * 300, "\U0001f600"}
    root = tmp_path / "store"
    states: Session = make(root, sync=False)
    for name in odd:
        await states.save(Key("agent", name), "memory", json.dumps(ascii(name)).encode())
    assert odd == {key.session for key in await states.keys()}
    for name in odd:
        assert json.dumps(ascii(name)).encode() == await states.load(Key("agent", name), "memory")
    await states.close()
    assert ["store"] == [path.name for path in tmp_path.iterdir()]


def test_a17_a_deleted_session_is_gone(play: Stage) -> None:
    """Log, context, states, blobs and its place in every list; others stay; to delete it again is no error."""
    client = play.start()
    other = talk(client, play.cwd, "say stays")
    session = talk(client, play.cwd, "image 200000\nstate memory 7")
    assert any(session in str(path) for path in contents(play.home))
    for _ in range(2):
        client.call("session/delete", {"sessionId": session})
    assert [other] == [each["sessionId"] for each in client.call("session/list", {})["sessions"]]
    left = play.finish(client)
    assert {other} == set(left)
    assert [] == [
        str(path)
        for path, data in contents(play.home / "data").items()
        if session in str(path) or (session.encode() in data and path.suffix == ".json")
    ]


@pytest.mark.parametrize("make", [WorkspaceSession, JsonSession])
async def test_a18_folders_of_others_are_left_alone(tmp_path: Path, make: type[WorkspaceSession]) -> None:
    """What the store has not made is neither listed nor removed."""
    states: Session = make(tmp_path, sync=False)
    await states.save(Key("agent", "s"), "memory", b"1")
    mine = [
        "skills/x.md",
        "memory/2026-01-01.md",
        "agents/agent/context/notes.txt",
        "agents/agent/sessions/other/file",
        "context/readme",
    ]
    for name in mine:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("mine")
    assert ["s"] == [key.session for key in await states.keys()]
    for key in await states.keys():
        await states.delete(key)
    assert [] == await states.keys()
    assert all((tmp_path / name).read_text() == "mine" for name in mine)


def test_a19_a_corrupt_index_is_made_again(play: Stage) -> None:
    """No session vanishes from sessions.json, whatever stood in it."""
    client = play.start()
    made = {talk(client, play.cwd, "say one"), talk(client, play.cwd, "say two")}
    log = next(iter(play.finish(client).values()))
    index = log.path.with_name("sessions.json")
    for broken in (b'{"sessions": {', b"[]", b""):
        index.write_bytes(broken)
        client = play.start()
        made.add(talk(client, play.cwd, "say more"))
        play.finish(client)
        assert made == set(json.loads(index.read_bytes())["sessions"])


def test_a20_many_writers_of_one_index(play: Stage) -> None:
    """Two processes with 25 sessions each: the index has fifty."""
    clients = [play.start(), play.start()]
    made: set[str] = set()
    for _ in range(25):
        sessions = [client.new(play.cwd) for client in clients]
        idents = [client.start_prompt(session, "say x") for client, session in zip(clients, sessions, strict=True)]
        for client, ident in zip(clients, idents, strict=True):
            client.result(ident)
        made |= set(sessions)
    for client in clients:
        client.close_stdin()
    for client in clients:
        client.wait_exit()
    index = next(iter(store.logs(play.home).values())).path.with_name("sessions.json")
    assert (50, made) == (len(made), set(json.loads(index.read_bytes())["sessions"]))


def test_a23_a_client_that_leaves_in_a_turn(tmp_path: Path) -> None:
    """The turn goes on in the daemon, is recorded to its end, and a later load shows all of it."""
    play = Stage(tmp_path, "daemon")
    try:
        client = play.start()
        session = client.new(play.cwd)
        client.start_prompt(session, "slow 20 20\nsay the end")
        client.wait_update("agent_message_chunk")
        os.kill(client.process.pid, 9)
        other = play.start()
        other.load(session, play.cwd)
        other.wait("the end", lambda: "the end" in other.text(session))
        other.wait("its turn", lambda: store.turns(store.log(play.home, session, torn=True))[0].end)
        play.finish(other)
    finally:
        play.end()
        daemons.kill(play.mark)


def test_a24_a_clock_that_goes_back(play: Stage) -> None:
    """The order is that of the log, whatever the times in it say."""
    client = play.start()
    session = talk(client, play.cwd, "say one", "say two", "say three")
    log = play.finish(client)[session]
    lines = log.path.read_bytes().splitlines(keepends=True)
    times = iter(range(59, 0, -1))
    back = [
        line if n == 0 else line.replace(json.loads(line)["at"].encode(), b"2026-01-01T00:00:%02d.000Z" % next(times))
        for n, line in enumerate(lines)
    ]
    log.path.write_bytes(b"".join(back))
    os.utime(log.path, (0, 0))
    client = play.start()
    assert "onetwothree" == shown(client, session, play.cwd)
    client.prompt(session, "say four")
    assert 4 == len(play.finish(client)[session].of("prompt"))


def test_a25_a_log_of_a_newer_version(play: Stage) -> None:
    """It is refused with a word on what to do, and stays byte for byte."""
    client = play.start()
    session = talk(client, play.cwd, "say one")
    log = play.finish(client)[session]
    newer = log.path.read_bytes().replace(b'"version":1', b'"version":99', 1)
    log.path.write_bytes(newer)
    client = play.start()
    error = failing(client, "session/load", {"sessionId": session, "cwd": str(play.cwd), "mcpServers": []})
    assert "it was written by a newer version" in error.message
    assert "nothing was changed" in error.message
    client.close_stdin()
    client.wait_exit()
    assert newer == log.path.read_bytes()


def test_a26_a_branch(play: Stage) -> None:
    """The leaf is where it was put after a restart, the other branch is there, and labels and titles move nothing."""
    client = play.start()
    session = client.new(play.cwd)
    ends = []
    for script in ("say one", "say two", "say three"):
        client.prompt(session, script)
        ends.append(client.call("_acpd/tree", {"sessionId": session})["leaf"])
    client.call("_acpd/branch", {"sessionId": session, "entry": ends[0]})
    client.prompt(session, "say other\ntitle A title")
    leaf = client.call("_acpd/tree", {"sessionId": session})["leaf"]
    client.call("_acpd/label", {"sessionId": session, "entry": ends[2], "label": "old"})
    play.finish(client)
    client = play.start()
    assert "oneother" == shown(client, session, play.cwd)
    assert leaf == client.call("_acpd/tree", {"sessionId": session})["leaf"]
    client.call("_acpd/branch", {"sessionId": session, "entry": "old"})
    assert "onetwothree" == shown(client, session, play.cwd)
    play.finish(client)


def test_a27_a_fork(play: Stage) -> None:
    """Every parent of it is there, labels and compactions too, a big image is stored once, and it names where it is from."""
    client = play.start()
    session = talk(client, play.cwd, "image 200000", "say two")
    leaf = client.call("_acpd/tree", {"sessionId": session})["leaf"]
    client.call("_acpd/label", {"sessionId": session, "entry": leaf, "label": "here"})
    summary = [{"type": "text", "text": "so far"}]
    update = {"sessionUpdate": "compaction_update", "compactionId": "k", "status": "completed", "summary": summary}
    client.prompt(session, f"update {json.dumps(update)}\nsay three")
    fork = client.call("session/fork", {"sessionId": session, "cwd": str(play.cwd), "mcpServers": []})["sessionId"]
    logs = play.finish(client)
    store.check(logs[fork], forked=True)
    assert session == logs[fork].header["parent"]["sessionId"]
    for kind in ("compaction", "label"):
        assert [len(logs[session].of(kind))] == [len(logs[fork].of(kind))] == [1]
    blobs = [path for path in contents(play.home / "data") if "blobs" in str(path)]
    assert 1 == len({path.stat().st_ino for path in blobs})


async def test_a28_a_full_disk(tmp_path: Path) -> None:
    """The append is an error that may be tried again; nothing is lost by it, and each entry is written once."""
    files = journal_logs.FaultyFiles()
    journals = journal_logs.store(tmp_path, files)
    journal = await journals.create(journal_logs.KEY, journal_logs.HEADER)
    journal.append(journal_logs.update(1, None))
    journal.flush()
    files.writes = [None]
    journal.append(journal_logs.update(2, 1))
    with pytest.raises(StoreError) as failed:
        journal.flush()
    assert failed.value.retryable
    journal.append(journal_logs.update(3, 2))
    journal.flush()
    await journal.close()
    assert ["e000001", "e000002", "e000003"] == [line.id for line in await journal_logs.read(journals)]


@pytest.mark.parametrize("make", [WorkspaceSession, JsonSession, SqliteSession])
async def test_a30_what_was_emptied_stays_empty(tmp_path: Path, make: type[WorkspaceSession]) -> None:
    """An empty list is a value like another, after a restart too."""
    for value in (b'["one"]', b"[]"):
        states: Session = make(tmp_path, sync=False)
        await states.save(Key("agent", "s"), "memory", value)
        await states.close()
    again: Session = make(tmp_path, sync=False)
    assert b"[]" == await again.load(Key("agent", "s"), "memory")
    await again.close()
