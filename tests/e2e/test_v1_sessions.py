"""session/new, load, resume, list, close, delete, and the errors of each (ACP v1 session-setup, session-list)."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cli.acpd import run
from tests.support import fold, store
from tests.support.client import Client, Json
from tests.support.scripted import Stage, after, failing, prompt_params, until
from tests.support.walk import below

pytestmark = pytest.mark.e2e

METHODS_OF_A_SESSION = ["load", "resume", "fork", "prompt", "set_mode", "set_config_option"]


def params(session: str, cwd: Path | str) -> Json:
    """Params that every method of a session takes something from."""
    more = {"prompt": [{"type": "text", "text": "say x"}], "modeId": "code", "configId": "model", "value": "large"}
    return {"sessionId": session, "cwd": str(cwd), "mcpServers": [], **more}


def listed(client: Client, **query: Any) -> list[Json]:
    sessions: list[Json] = client.call("session/list", query)["sessions"]
    return sessions


def test_an_unknown_session_is_not_found_everywhere(play: Stage) -> None:
    """-32002 with the id in data; close and delete of it succeed; cancel of it is nothing."""
    client = play.start("--bare")
    for session in ("none", "", "../../etc/passwd", "a/b", "ü ☃ \u2028", "%2e%2e", "x" * 5000):
        for method in METHODS_OF_A_SESSION:
            error = failing(client, f"session/{method}", params(session, play.cwd))
            assert (-32002, {"sessionId": session}) == (error.code, error.data), (method, session[:50])
        assert {} == client.call("session/close", {"sessionId": session})
        assert {} == client.call("session/delete", {"sessionId": session})
        client.notify("session/cancel", {"sessionId": session})
    assert {} == play.finish(client)


@pytest.mark.parametrize(
    "bad",
    [
        {"cwd": None},
        {"cwd": ""},
        {"cwd": "work"},
        {"cwd": 1},
        {"mcpServers": {}},
        {"mcpServers": [{"name": "x"}]},
        {"mcpServers": [{"name": "x", "command": "/bin/x", "args": [], "env": [{"name": "A"}]}]},
        {"mcpServers": [{"type": "http", "name": "x"}]},
        {"additionalDirectories": ["relative"]},
        {"additionalDirectories": [1]},
        {"additionalDirectories": "/x"},
    ],
    ids=json.dumps,
)
def test_bad_params_are_refused_and_nothing_is_made(bad: Json, play: Stage) -> None:
    """-32602 by new, load, resume and fork; no agent hears of it and no log is written."""
    client = play.start()
    session = client.new(play.cwd)
    for method in ("new", "load", "resume", "fork"):
        if method == "resume" and bad == {"mcpServers": {}}:
            continue  # optional there: what is malformed counts as absent
        error = failing(client, f"session/{method}", {"sessionId": session, "cwd": str(play.cwd), "mcpServers": [], **bad})
        assert -32602 == error.code, method
        assert next(iter(bad)) in error.message
    assert 1 == len(play.agent_got("session/new"))
    assert [session] == list(play.finish(client))


def test_an_agents_session_id_is_never_shown_and_two_sessions_never_mix(play: Stage) -> None:
    """Every id that a client sees is acpd's; two sessions work at once, each with an agent process of its own."""
    client = play.start()
    one, two = client.new(play.cwd), client.new(play.cwd)
    running = client.start_prompt(one, "say one\nslow 3 30\npid")
    assert "end_turn" == client.prompt(two, "say two\npid")
    assert {"stopReason": "end_turn"} == client.result(running)
    assert client.text(one).startswith("onec0 c1 c2 pid")
    assert client.text(two).startswith("twopid")
    assert client.text(one).split("pid")[1] != client.text(two).split("pid")[1]
    inner = [
        store_id["sessionId"] for store_id in (json.loads(line)["result"] for line in play.agent_wrote() if b"modes" in line)
    ]
    assert 2 == len(set(inner))
    said = b"".join(line.raw.replace(b"call-", b"") for line in client.lines)
    assert [] == [name for name in inner if name.encode() in said]
    play.finish(client)


def test_load_equals_what_was_shown(play: Stage) -> None:
    """Messages, thoughts, tools, plan, image, title, commands, mode, usage: the view after load is the view before."""
    script = "think hm\nsay a\ntool x\nsay b\nimage\nparallel 3\nplan p|q\ntitle Name\ncommands go\nusage 5\nmode code"
    script += "\nchunks 5 with-id"
    client = play.start()
    session = client.new(play.cwd)
    client.prompt(session, script)
    client.prompt(session, "say second")
    shown = [
        *fold.prompt(session, [{"type": "text", "text": script}], "1"),
        *(line.params for line in client.updates(session=session)),
    ]
    second = next(i for i, p in enumerate(shown) if p["update"].get("content") == {"type": "text", "text": "second"})
    shown[second:second] = fold.prompt(session, [{"type": "text", "text": "say second"}], "2")
    play.finish(client)
    client = play.start()
    answer = client.call("session/load", {"sessionId": session, "cwd": str(play.cwd), "mcpServers": []})
    replayed = [line.params for line in client.updates(session=session)]
    before, now = fold.fold(shown), fold.fold(replayed)
    assert before.timeline == now.timeline
    assert before.tools == now.tools
    assert (before.plan, before.commands, before.title, before.usage) == (now.plan, now.commands, now.title, now.usage)
    assert "code" == answer["modes"]["currentModeId"]
    fold.check_ids(replayed)
    live_ids = [pair for pair in fold.message_ids(shown) if not str(pair[1]).startswith("prompt:")]
    assert live_ids == [pair for pair in fold.message_ids(replayed) if pair[0] != "user"]
    play.finish(client)


def test_no_line_of_the_replay_comes_behind_the_answer_and_none_twice(play: Stage) -> None:
    """Load answers when all was sent; loading again on the same connection replays all again; the log does not grow by it."""
    client = play.start()
    session = client.new(play.cwd)
    client.prompt(session, "chunks 500 with-id\ntool x")
    play.finish(client)
    client = play.start()
    texts = []
    for _ in range(2):
        seen = len(client.lines)
        ident = client.request("session/load", {"sessionId": session, "cwd": str(play.cwd), "mcpServers": []})
        assert isinstance(client.result(ident), dict), "never null"
        texts.append([line.raw for line in client.lines[seen:] if line.kind])
        assert client.answer(ident).number == seen + len(texts[-1])
    assert texts[0] == texts[1]
    until("the agent", lambda: 2 == len(store.log(play.home, session, torn=True).of("link")))
    size = os.path.getsize(store.log(play.home, session).path)
    client.load(session, play.cwd)
    assert os.path.getsize(store.log(play.home, session).path) == size
    assert "end_turn" == client.prompt(session, "say live")
    assert 1 == sum(b'"live"' in line.raw for line in client.lines)
    assert 1 == len(play.agents())
    play.finish(client)


def test_resume_replays_nothing_and_the_agent_is_there(play: Stage) -> None:
    """The answer has the stored modes and options, no update comes before it, and the next prompt has the memory."""
    client = play.start()
    session = client.new(play.cwd)
    client.prompt(session, "say a\nmode code")
    play.finish(client)
    client = play.start()
    answer = client.call("session/resume", {"sessionId": session, "cwd": str(play.cwd)})
    assert [] == client.updates()
    assert "code" == answer["modes"]["currentModeId"]
    assert "model" == answer["configOptions"][0]["id"]
    assert "end_turn" == client.prompt(session, "history")
    assert client.text(session).startswith("history ")
    assert [] == client.updates("user_message_chunk")
    play.finish(client)


def test_another_cwd_is_refused_with_the_right_one(play: Stage) -> None:
    """-32602 with data.expected; the same folder by a link, `/.` or a slash at the end is the same."""
    client = play.start()
    session = client.new(play.cwd)
    client.prompt(session, "say x")
    link = play.tmp / "link"
    link.symlink_to(play.cwd)
    for method in ("session/load", "session/resume"):
        error = failing(client, method, {"sessionId": session, "cwd": str(play.tmp), "mcpServers": []})
        assert (-32602, {"expected": str(play.cwd)}) == (error.code, error.data)
        for same in (f"{play.cwd}/", f"{play.cwd}/.", f"{play.tmp}/../{play.tmp.name}/work", str(link)):
            client.call(method, {"sessionId": session, "cwd": same, "mcpServers": []})
    play.finish(client)


def test_a_project_that_moved(play: Stage) -> None:
    """After `acpd cwd` a session is listed, loaded and gone on with in the new folder; the old one is refused, naming it."""
    client = play.start()
    session = client.new(play.cwd)
    client.prompt(session, "say x")
    play.finish(client)
    new = play.tmp / "moved"
    play.cwd.rename(new)
    assert 0 == run(play.home, "cwd", str(play.cwd), str(new)).code
    client = play.start()
    assert [session] == [each["sessionId"] for each in listed(client, cwd=str(new))]
    error = failing(client, "session/load", {"sessionId": session, "cwd": str(play.cwd), "mcpServers": []})
    assert (-32602, {"expected": str(new)}) == (error.code, error.data)
    client.call("session/load", {"sessionId": session, "cwd": str(new), "mcpServers": []})
    assert "end_turn" == client.prompt(session, "say y")
    assert client.text(session).endswith("y")
    play.finish(client)


def test_a_list_shows_what_was_prompted_newest_first_by_folder(play: Stage) -> None:
    """title, updatedAt, cwd; the filter is exact after normalising; a session never prompted is listed to its holder alone."""
    other = play.tmp / "work2"
    other.mkdir()
    client = play.start("--no-list")
    first, second, elsewhere = client.new(play.cwd), client.new(play.cwd), client.new(other)
    ghost = client.new(play.cwd)
    for session in (first, elsewhere, second):
        client.prompt(session, f"title T-{session[-4:]}")
    rows = listed(client)
    assert [ghost, second, elsewhere, first] == [row["sessionId"] for row in rows]
    assert f"T-{first[-4:]}" == rows[-1]["title"]
    assert all(row["updatedAt"].endswith("Z") and row["cwd"] for row in rows)
    link = play.tmp / "link"
    link.symlink_to(play.cwd)
    for cwd in (str(play.cwd), f"{play.cwd}/", f"{play.cwd}/.", str(link)):
        assert [ghost, second, first] == [row["sessionId"] for row in listed(client, cwd=cwd)], cwd
    assert [] == listed(client, cwd=str(play.tmp))
    assert [elsewhere] == [row["sessionId"] for row in listed(client, cwd=str(other))]
    for bad in ({"cwd": "work"}, {"cursor": "x"}, {"cursor": "e30="}, {"cursor": 'WyIiLCIiXQ=="'}):
        assert -32602 == failing(client, "session/list", bad).code, bad
    play.finish(client)
    client = play.start("--no-list")
    assert [second, elsewhere, first] == [row["sessionId"] for row in listed(client)]
    play.finish(client)


def test_a_title_is_the_agents_else_the_first_line(play: Stage) -> None:
    """Tags are cut, 80 characters at most; what the agent says later wins, in the list and in the replay."""
    client = play.start()
    session = client.new(play.cwd)
    client.prompt(session, f"<context>no</context>say hello {'x' * 100}\nsay more")
    title = listed(client)[0]["title"]
    assert title.startswith("say hello xxx")
    assert len(title) <= 80
    client.prompt(session, "title Mine")
    client.prompt(session, "say again")
    assert "Mine" == listed(client)[0]["title"]
    play.finish(client)
    client = play.start()
    client.load(session, play.cwd)
    assert "Mine" == client.updates("session_info_update")[-1].update["title"]
    play.finish(client)


def test_close_in_a_turn_ends_it_and_keeps_the_session(play: Stage) -> None:
    """The running prompt and the waiting one answer `cancelled` before close answers; the agent is ended; a prompt resumes."""
    client = play.start()
    session = client.new(play.cwd)
    running = client.start_prompt(session, "say in\nhang")
    waiting = client.start_prompt(session, "say never")
    client.wait_update("agent_message_chunk")
    closing = client.request("session/close", {"sessionId": session})
    assert {} == client.result(closing)
    for ident in (running, waiting):
        assert {"stopReason": "cancelled"} == client.result(ident)
        assert client.answer(ident).number < client.answer(closing).number
    assert [] == play.agents()
    assert [session] == [row["sessionId"] for row in listed(client)]
    assert {} == client.call("session/close", {"sessionId": session})
    assert "end_turn" == client.prompt(session, "history")
    assert "never" not in client.text(session)
    play.finish(client)


def test_delete_in_a_turn_removes_everything(play: Stage) -> None:
    """The prompt answers `cancelled`, no file names the session any more, its id is -32002, deleting again is fine."""
    client = play.start("--no-list")
    session, kept = client.new(play.cwd), client.new(play.cwd)
    client.prompt(kept, "say kept")
    running = client.start_prompt(session, 'say in\nimage 100000\nstate note {"a":1}\nhang')
    client.wait("the state is kept", lambda: "kept" in client.text(session))
    assert {} == client.call("session/delete", {"sessionId": session})
    assert {"stopReason": "cancelled"} == client.result(running)
    assert [] == [str(path) for path in below(play.home) if session in path.name]
    assert -32002 == failing(client, "session/load", params(session, play.cwd)).code
    assert -32002 == failing(client, "session/prompt", prompt_params(session, "say x")).code
    assert {} == client.call("session/delete", {"sessionId": session})
    assert [kept] == [row["sessionId"] for row in listed(client)]
    assert 1 == len(play.agent_got("session/delete")), "the agent was asked to delete its own too"
    assert [kept] == list(play.finish(client))


def test_a_folder_that_is_gone_stops_neither_list_nor_load_nor_delete(play: Stage) -> None:
    """The user is told with the path; the prompt says the next step; made again, it goes on."""
    client = play.start()
    session, other = client.new(play.cwd), client.new(play.cwd)
    client.prompt(session, "say before")
    client.prompt(other, "say x")
    play.finish(client)
    shutil.rmtree(play.cwd)
    client = play.start()
    assert 2 == len(listed(client, cwd=str(play.cwd)))
    client.load(session, play.cwd)
    assert "before" == client.text(session)
    client.wait("word of the folder", lambda: str(play.cwd) in client.told(session))
    error = failing(client, "session/prompt", prompt_params(session, "say x"))
    assert str(play.cwd) in error.message
    assert {} == client.call("session/delete", {"sessionId": other})
    play.cwd.mkdir()
    assert "end_turn" == client.prompt(session, "say back")
    play.finish(client)


def test_everything_in_one_write_is_answered(play: Stage) -> None:
    """Load and a prompt right behind it, list, close of another: pipelined requests are all answered, the prompt is run."""
    client = play.start()
    session, other = client.new(play.cwd), client.new(play.cwd)
    client.prompt(session, "say one")
    client.prompt(other, "say two")
    play.finish(client)
    client = play.start()
    load = {"sessionId": session, "cwd": str(play.cwd), "mcpServers": []}
    calls: list[tuple[str, str, Json]] = [
        ("load", "session/load", load),
        ("prompt", "session/prompt", prompt_params(session, "say three\nhistory")),
        ("other", "session/prompt", prompt_params(other, "say four")),
        ("list", "session/list", {}),
        ("mode", "session/set_mode", {"sessionId": session, "modeId": "code"}),
        ("again", "session/load", load),
        ("bad", "session/close", {}),
    ]
    lines = [json.dumps({"jsonrpc": "2.0", "id": i, "method": m, "params": p}) + "\n" for i, m, p in calls]
    client.send_bytes("".join(lines).encode())
    client.wait_settled([ident for ident, _, _ in calls])
    assert {"stopReason": "end_turn"} == client.result("prompt") == client.result("other")
    assert -32602 == client.answer("bad").message["error"]["code"]
    assert any("history" in line.update["content"]["text"] for line in client.updates("agent_message_chunk", session))
    assert 2 == len(client.result("list")["sessions"])
    assert 2 == len(play.agent_got("session/resume")), "one agent for each session"
    play.finish(client)


def test_a_prompt_to_a_session_that_was_not_loaded_resumes_it(play: Stage) -> None:
    """No replay, the memory is there, and the client gets the turn."""
    client = play.start()
    session = client.new(play.cwd)
    client.prompt(session, "say before")
    play.finish(client)
    client = play.start()
    assert "end_turn" == client.prompt(session, "say after\nhistory")
    assert "afterhistory 4" == client.text(session)
    assert [] == client.updates("user_message_chunk")
    play.finish(client)


def test_a_session_made_and_never_prompted_leaves_no_ghost(play: Stage) -> None:
    """A thousandth editor window that was only opened is in nobody's list."""
    client = play.start("--no-list")
    sessions = [client.new(play.cwd) for _ in range(3)]
    play.finish(client)
    client = play.start("--no-list")
    assert [] == listed(client)
    started = time.monotonic()
    client.load(sessions[0], play.cwd)
    assert time.monotonic() - started < 10
    assert [] == [line for line in client.updates(session=sessions[0]) if line.kind.endswith("message_chunk")]
    assert "end_turn" == client.prompt(sessions[0], "say now")
    assert [sessions[0]] == [row["sessionId"] for row in listed(client)]
    play.finish(client)


def test_an_update_never_comes_before_the_answer_that_names_its_session(play: Stage) -> None:
    """What the agent says before or right behind its answer to session/new follows acpd's answer, in order."""
    client = play.start("--commands")
    ident = client.request("session/new", {"cwd": str(play.cwd), "mcpServers": []})
    session = client.result(ident)["sessionId"]
    update = client.wait_update("available_commands_update", session=session)[0]
    assert update in after(client, client.answer(ident))
    play.finish(client)
