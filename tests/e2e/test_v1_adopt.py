"""Sessions that only the agent knows: listed, marked, adopted on load (docs/architecture.md, "Layout on disk")."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from typing import Any

import pytest

from tests.support import fold, store
from tests.support.client import Client, Json
from tests.support.scripted import AGENT, Stage, failing
from tests.support.walk import below

pytestmark = pytest.mark.e2e


def talk_without_acpd(play: Stage, *scripts: str) -> str:
    """A session that the agent made with somebody else: its id."""
    lines: list[Json] = [
        {"id": 1, "method": "initialize", "params": {"protocolVersion": 1}},
        {"id": 2, "method": "session/new", "params": {"cwd": str(play.cwd), "mcpServers": []}},
    ]
    with subprocess.Popen(
        [sys.executable, str(AGENT), "--state", str(play.state)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    ) as agent:
        assert agent.stdin is not None
        assert agent.stdout is not None
        stdout = iter(agent.stdout.readline, b"")

        def ask(message: Json) -> Any:
            assert agent.stdin is not None
            agent.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
            for line in stdout:
                answer = json.loads(line)
                if answer.get("id") == message["id"]:
                    return answer["result"]
            raise AssertionError("the agent ended")

        ask(lines[0])
        session = str(ask(lines[1])["sessionId"])
        for number, script in enumerate(scripts):
            prompt = [{"type": "text", "text": script}]
            ask({"id": 10 + number, "method": "session/prompt", "params": {"sessionId": session, "prompt": prompt}})
        agent.stdin.close()
    return session


def rows(client: Client, **query: Any) -> list[Json]:
    found: list[Json] = client.call("session/list", query)["sessions"]
    return found


def test_a_session_of_the_agents_is_listed_marked_and_adopted(play: Stage) -> None:
    """Behind ours, with acpd.dev/adopt; its replay is shown and stored; prompts work; then it is listed once, unmarked."""
    foreign = talk_without_acpd(play, "say outside\ntool x", "say again")
    client = play.start()
    own = client.new(play.cwd)
    client.prompt(own, "say inside")
    listed = rows(client)
    assert [own, foreign] == [row["sessionId"] for row in listed]
    assert [False, True] == ["acpd.dev/adopt" in row.get("_meta", {}) for row in listed]
    assert [own, foreign] == [row["sessionId"] for row in rows(client, cwd=str(play.cwd))]
    assert [] == rows(client, cwd=str(play.tmp))

    answer = client.load(foreign, play.cwd)
    assert "ask" == answer["modes"]["currentModeId"]
    assert "outsideagain" == client.text(foreign)
    assert ["say outside\ntool x", "say again"] == [
        u.update["content"]["text"] for u in client.updates("user_message_chunk", foreign)
    ]
    assert "end_turn" == client.prompt(foreign, "history\nsay more")
    assert 1 == [row["sessionId"] for row in rows(client)].count(foreign)
    assert not any("acpd.dev/adopt" in row.get("_meta", {}) for row in rows(client))
    shown = fold.fold([line.params for line in client.updates(session=foreign)])
    play.finish(client)

    play.state.unlink()  # from here on the log is all there is
    client = play.start()
    client.load(foreign, play.cwd)
    again = fold.fold([line.params for line in client.updates(session=foreign)])
    assert [text for _, text in zip(shown.texts, shown.texts, strict=True)][:4] == again.texts[:4]
    assert shown.tools == again.tools
    play.finish(client)


@pytest.mark.parametrize("method", ["session/load", "session/resume", "session/prompt", "session/fork"])
def test_an_id_that_neither_knows_is_not_found_and_leaves_nothing(method: str, play: Stage) -> None:
    """-32002; no log, no folder, no row, and the connection's agent is still of use."""
    client = play.start()
    for session in ("nobody-knows", "../up", "s1-0"):
        params = {"sessionId": session, "cwd": str(play.cwd), "mcpServers": [], "prompt": [{"type": "text", "text": "x"}]}
        error = failing(client, method, params)
        assert (-32002, {"sessionId": session}) == (error.code, error.data)
    assert [] == rows(client)
    session = client.new(play.cwd)
    assert "end_turn" == client.prompt(session, "say x")
    assert [session] == list(play.finish(client))


@pytest.mark.parametrize("options", [("--die-at", "session/load"), ("--no-load",)], ids=["dies", "cannot"])
def test_a_failing_adoption_leaves_nothing_behind(options: tuple[str, ...], play: Stage) -> None:
    """An error to the client; no log, no row, no process; another try with an agent that can works."""
    foreign = talk_without_acpd(play, "say outside")
    client = play.start(*options)
    failing(client, "session/load", {"sessionId": foreign, "cwd": str(play.cwd), "mcpServers": []})
    assert [] == below(play.home, "*.log.jsonl")  # before the answer
    assert not [row for row in rows(client) if "acpd.dev/adopt" not in row["_meta"]]
    play.finish(client)
    client = play.start()
    client.load(foreign, play.cwd)
    assert "outside" == client.text(foreign)
    play.finish(client)


def test_a_wrong_cwd_does_not_adopt(play: Stage) -> None:
    """An agent that refuses the folder refuses the load; a relative one is refused before it is asked."""
    foreign = talk_without_acpd(play, "say outside")
    client = play.start()
    assert -32602 == failing(client, "session/load", {"sessionId": foreign, "cwd": "work", "mcpServers": []}).code
    assert {} == store.logs(play.home)
    client.load(foreign, play.cwd)
    play.finish(client)


def test_two_loads_at_once_adopt_once(play: Stage) -> None:
    """Pipelined loads of a foreign session: one log, one agent process for it, each answered."""
    foreign = talk_without_acpd(play, "say outside")
    client = play.start()
    params = {"sessionId": foreign, "cwd": str(play.cwd), "mcpServers": []}
    line = json.dumps({"jsonrpc": "2.0", "id": "N", "method": "session/load", "params": params}) + "\n"
    client.send_bytes("".join(line.replace('"N"', f'"{n}"') for n in "abc").encode())
    client.wait_settled(["a", "b", "c"])
    assert list("abc") == [ident for ident in "abc" if "result" in client.answer(ident).message]
    assert "end_turn" == client.prompt(foreign, "say on")
    log = play.finish(client)[foreign]
    assert 1 == sum(b'"outside"' in line for line in log.lines)


def test_an_adopted_session_can_be_deleted_and_stays_so(play: Stage) -> None:
    """Its log and the agent's own session go; it is in no list any more."""
    foreign = talk_without_acpd(play, "say outside")
    client = play.start()
    client.load(foreign, play.cwd)
    assert {} == client.call("session/delete", {"sessionId": foreign})
    assert [] == rows(client)
    assert -32002 == failing(client, "session/load", {"sessionId": foreign, "cwd": str(play.cwd), "mcpServers": []}).code
    assert {} == play.finish(client)


def test_a_store_that_was_lost_is_found_again_through_the_agent(play: Stage) -> None:
    """acpd's home is gone, the agent's own is there: what was said is listed and can be adopted under the agent's ids."""
    client = play.start()
    session = client.new(play.cwd)
    client.prompt(session, "say kept by the agent")
    play.finish(client)
    shutil.rmtree(play.home)
    play.home.mkdir()
    client = play.start()
    (row,) = rows(client)
    client.load(row["sessionId"], play.cwd)
    assert "kept by the agent" == client.text(row["sessionId"])
    play.finish(client)


def test_an_agents_pages_come_behind_ours(play: Stage) -> None:
    """Its cursor is wrapped in ours; every session comes once; a foreign one more than a page is reached too."""
    foreign = [talk_without_acpd(play, "say x") for _ in range(3)]
    client = play.start("--page", "2")
    seen: list[str] = []
    query: Json = {}
    for _ in range(5):
        page = client.call("session/list", query)
        seen += [row["sessionId"] for row in page["sessions"]]
        if "nextCursor" not in page:
            break
        query = {"cursor": page["nextCursor"]}
    assert sorted(foreign) == sorted(seen)
    play.finish(client)
