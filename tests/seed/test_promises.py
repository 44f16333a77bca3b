"""What the seed says of its sessions, statement by statement, kept (docs/sessions.md has the table).

Statements 1 and 3 are in test_tracks.py; 4 and 15 are rows 2 and 14 of test_appendix_a.py; 8, 10, 17 and 20 stand with what
they are about: tests/native and tests/recall.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from acpd.errors import StateUnreadable
from acpd.storage.contract import Key, Session
from acpd_backends.states import JsonSession, SqliteSession, WorkspaceSession
from tests.cli import acpd
from tests.seed.stage import Stage as Native
from tests.support import store
from tests.support.models import answer
from tests.support.scripted import Stage, failing
from tests.support.walk import contents

pytestmark = pytest.mark.e2e


def test_s02_a_state_is_loaded_by_who_has_the_session(play: Stage) -> None:
    """A second acpd that asks for a session in use is refused before its agent hears of it; what is kept stays the first's."""
    client = play.start()
    session = client.new(play.cwd)
    client.prompt(session, "counter")
    other = play.start()
    asked = len(play.agent_got("session/resume"))
    params = {"sessionId": session, "cwd": str(play.cwd), "mcpServers": []}
    assert f"pid {client.process.pid}" in failing(other, "session/load", params).message
    client.prompt(session, "counter")
    assert asked == len(play.agent_got("session/resume"))
    other.close_stdin()
    other.wait_exit()
    play.finish(client)
    (kept,) = [data for path, data in contents(play.home / "data").items() if path.name == "counter.json"]
    assert 2 == json.loads(kept)


def test_s05_the_index_says_what_a_session_is_about(play: Stage) -> None:
    """After each turn: title, folder, how many messages, when."""
    client = play.start()
    session = client.new(play.cwd)
    for count, script in enumerate(("say one", "title The blue key\nsay two"), 1):
        client.prompt(session, script)
        (row,) = client.call("session/list", {})["sessions"]
        assert 2 * count == row["_meta"]["acpd.dev/messages"]
    log = play.finish(client)[session]
    entry = json.loads(log.path.with_name("sessions.json").read_bytes())["sessions"][session]
    assert ("The blue key", str(play.cwd)) == (entry["title"], entry["cwd"])
    assert entry["updatedAt"] == log.entries[-1]["at"]


def test_s06_one_documented_layout(native: Native) -> None:
    """Both tracks of a session lie where docs/storage.md says, under names that say what they are."""
    with native.client() as client:
        session = client.new(native.cwd)
        client.prompt(session, "say one")
    data = native.home / "data/agents/native"
    assert {"memory.json", "usage.json"} <= {path.name for path in (data / "context" / session).iterdir()}
    names = {path.name for path in (data / "sessions").iterdir()}
    assert {"sessions.json", f"{session}.jsonl", f"{session}.log.jsonl"} <= names


def test_s07_what_was_allowed_is_kept(native: Native) -> None:
    """The tool context is a state of its own: "always" holds in the next process."""
    native.model.canned = [answer("chat", calls=[("c1", "run", {"command": "true"})]), answer("chat", "Done.")]
    with native.client(lambda _: {"outcome": {"outcome": "selected", "optionId": "always"}}) as client:
        session = client.new(native.cwd)
        client.prompt(session, "go")
    assert {"run true": "allow"} == native.value(session, "tool_context")["always"]
    native.model.canned = [answer("chat", calls=[("c2", "run", {"command": "true"})]), answer("chat", "Done.")]
    with native.client() as client:
        client.load(session, native.cwd)
        client.prompt(session, "again")
        assert [] == [line for line in client.lines if line.method == "session/request_permission"]


def test_s09_nothing_is_removed_by_itself(play: Stage) -> None:
    """A session of years ago is there after starts and after `acpd gc`, which removes old ones only if it is told how old."""
    client = play.start()
    session = client.new(play.cwd)
    client.prompt(session, "say one")
    log = play.finish(client)[session]
    log.path.write_bytes(log.path.read_bytes().replace(log.header["createdAt"][:4].encode(), b"2001"))
    os.utime(log.path, (0, 0))
    for path in (play.home / "data/.acpd").glob("catalog*"):
        path.unlink()
    assert 0 == acpd.run(play.home, "gc")[0]
    client = play.start()
    assert [session] == [
        each["sessionId"] for each in client.call("session/list", {})["sessions"] if session == each["sessionId"]
    ]
    play.finish(client)
    assert 0 == acpd.run(play.home, "gc", "--older-than", "365d")[0]
    assert {} == store.logs(play.home)


def test_s11_a_tree_and_its_leaf(play: Stage) -> None:
    """One root, every parent an earlier entry, and a leaf that is written down, not guessed from the last line."""
    client = play.start()
    session = client.new(play.cwd)
    client.prompt(session, "say one")
    first = client.call("_acpd/tree", {"sessionId": session})["leaf"]
    client.prompt(session, "say two")
    client.call("_acpd/branch", {"sessionId": session, "entry": first})
    log = play.finish(client)[session]
    store.check(log)
    assert first == log.of("leaf")[-1]["entry"] != log.entries[-2]["id"]
    client = play.start()
    client.load(session, play.cwd)
    assert first == client.call("_acpd/tree", {"sessionId": session})["leaf"]
    play.finish(client)


def test_s12_one_id_for_all_parts(play: Stage) -> None:
    """Log, context, states and index name a session alike, and only those of that session."""
    client = play.start()
    made = [client.new(play.cwd) for _ in range(2)]
    for session in made:
        client.prompt(session, "counter")
    play.finish(client)
    for session in made:
        parts = {
            path.name.removeprefix(session) if session in path.name else path.name
            for path in contents(play.home / "data")
            if session in str(path)
        }
        assert {".jsonl", ".log.jsonl", "counter.json"} <= parts
        index = next(data for path, data in contents(play.home / "data").items() if path.name == "sessions.json")
        assert session in json.loads(index)["sessions"]


def test_s13_turns_at_once_know_their_own_session(native: Native) -> None:
    """Two turns in one process of the agent: each has its own memory, its own plan and its own permissions."""
    with native.client() as client:
        made = [client.new(native.cwd) for _ in range(2)]
        for again in range(2):
            words = [f"word{number}{again} [[slow 10 10]]" for number in range(2)]
            client.wait_settled([client.start_prompt(session, text) for session, text in zip(made, words, strict=True)])
    for number, session in enumerate(made):
        memory = json.dumps(native.value(session, "memory"))
        assert f"word{number}0" in memory
        assert f"word{number}1" in memory
        assert f"word{1 - number}" not in memory


def test_s14_every_path_of_a_user_is_theirs(play: Stage) -> None:
    """States, logs, context, blobs and index of a user lie below one folder, with nothing of another's beside them."""
    for user in ("alice", "bob"):
        client = play.start(flags=("--user", user))
        client.prompt(client.new(play.cwd), f"counter\nsay of {user}\nimage 200000")
        play.finish(client)
    paths = [path.relative_to(play.home / "data") for path in contents(play.home / "data") if ".acpd" not in str(path)]
    folders = {user: {path.parts[0] for path in paths if f"u-{user}" in path.parts} for user in ("alice", "bob")}
    assert {"alice": {"u-alice"}, "bob": {"u-bob"}} == folders
    assert {"u-alice", "u-bob"} == {path.parts[0] for path in paths}


async def test_s16_users_of_one_store_do_not_meet(tmp_path: Path) -> None:
    """The same session id and the same name of two users are two states, in every backend, whatever is written at once."""
    for make in (WorkspaceSession, JsonSession, SqliteSession):
        states: Session = make(tmp_path / make.__name__, sync=False)
        keys = {user: Key("agent", "s", user) for user in (None, "alice", "bob")}
        for user, key in keys.items():
            await states.save(key, "memory", json.dumps(user).encode())
        assert [json.dumps(user).encode() for user in keys] == [await states.load(key, "memory") for key in keys.values()]
        await states.delete(keys["alice"])
        assert [b"null", None, b'"bob"'] == [await states.load(key, "memory") for key in keys.values()]
        await states.close()


async def test_s18_a_session_at_a_path_of_ones_own(tmp_path: Path) -> None:
    """A JsonSession anywhere; for one call, it wins over the usual one (tests/api/test_calling.py has the rest)."""
    from acpd import Agent, RuntimeContext, Turn, call

    class Counter(Agent):
        async def prompt(self, turn: Turn, /) -> None:
            turn.session.state.put("n", 1 + (turn.session.state.get("n", int) or 0))

    usual, own = WorkspaceSession(tmp_path / "usual", sync=False), JsonSession(tmp_path / "custom/sessions", sync=False)
    for session in (None, own, own):
        await call(Counter(), "x", RuntimeContext(session_id="s", session=session), configured=usual)
    key = Key("agent", "s")
    assert (b"1", b"2") == (await usual.load(key, "n"), await own.load(key, "n"))


async def test_s19_absent_and_unreadable_are_two_things(tmp_path: Path) -> None:
    """What is not there is None, and a session that is not there an error; what cannot be read is never taken for absent."""
    for make, pattern in ((WorkspaceSession, "**/memory.json"), (JsonSession, "**/memory.json")):
        states: Session = make(tmp_path / make.__name__, sync=False)
        assert await states.load(Key("agent", "s"), "memory") is None
        await states.save(Key("agent", "s"), "memory", b"1")
        (file,) = (tmp_path / make.__name__).glob(pattern)
        file.write_bytes(b"{")
        with pytest.raises(StateUnreadable):
            await states.load(Key("agent", "s"), "memory")
        assert b"{" == file.read_bytes()


def test_s19_a_session_that_is_not_there(play: Stage) -> None:
    """To load it is an error, and makes none."""
    client = play.start()
    error = failing(client, "session/load", {"sessionId": "nobody", "cwd": str(play.cwd), "mcpServers": []})
    assert -32002 == error.code
    assert {} == play.finish(client)
