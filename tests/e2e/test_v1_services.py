"""What an agent asks its client's machine: files, terminals, extensions, `_acpd/` (ACP v1 file-system, terminals)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.client import Json
from tests.support.scripted import Stage, failing
from tests.support.walk import below

pytestmark = pytest.mark.e2e

TERMINAL: dict[str, Json] = {
    "terminal/create": {"terminalId": "t-1"},
    "terminal/wait_for_exit": {"exitCode": 3, "signal": None},
    "terminal/output": {"output": "out\n", "truncated": False},
    "terminal/release": {},
    "terminal/kill": {},
}


def test_files_are_the_clients(play: Stage) -> None:
    """Path, line and content go through unchanged under acpd's session id; the result goes back as it is."""

    def policy(request: Json) -> Json:
        return {"content": f"text of {request['params']['path']} ☃ \u2028"} if "read" in request["method"] else {}

    client = play.start(policy=policy)
    session = client.new(play.cwd)
    assert "end_turn" == client.prompt(session, "read /x/ä b.txt\nwrite /y.txt some text")
    assert "text of /x/ä b.txt ☃ \u2028wrote /y.txt" == client.text(session)
    read, write = (client.wait_request(f"fs/{name}_text_file") for name in ("read", "write"))
    assert {"sessionId": session, "path": "/x/ä b.txt"} == read.params
    assert {"sessionId": session, "path": "/y.txt", "content": "some text"} == write.params
    play.finish(client)


def test_a_null_where_an_object_belongs_is_made_one(play: Stage) -> None:
    """Older clients answer fs/write_text_file, terminal/kill and release with null; the agent gets {}."""
    client = play.start(policy=None)
    session = client.new(play.cwd)
    ident = client.start_prompt(session, "write /y.txt text")
    client.send({"id": client.wait_request("fs/write_text_file").message["id"], "result": None})
    assert {"stopReason": "end_turn"} == client.result(ident)
    assert {} == [message["result"] for message in play.agent_got() if "result" in message][-1]
    play.finish(client)


def test_a_clients_error_is_the_agents_to_see(play: Stage) -> None:
    """Code and message reach the agent, which says them."""
    client = play.start(policy=None)
    session = client.new(play.cwd)
    ident = client.start_prompt(session, "read /x")
    client.reply_error(client.wait_request("fs/read_text_file"), -32002, "no such file")
    assert "-32002 no such file" in client.answer(ident).message["error"]["message"]
    play.finish(client)


def test_a_terminal_goes_through_and_its_id_is_the_clients(play: Stage) -> None:
    """create, wait, output, release in the agent's order; live the terminal id is shown, in a replay it is a text."""
    client = play.start(policy=lambda request: TERMINAL.get(request["method"]))
    session = client.new(play.cwd)
    assert "end_turn" == client.prompt(session, "run ls -l")
    assert "exit 3: out" == client.text(session)
    asked = [line.method for line in client.lines if line.method.startswith("terminal/")]
    assert ["create", "wait_for_exit", "output", "release"] == [method.split("/")[1] for method in asked]
    assert ["-c", "ls -l"] == client.wait_request("terminal/create").params["args"]
    assert {"type": "terminal", "terminalId": "t-1"} == client.updates("tool_call")[0].update["content"][0]
    play.finish(client)
    client = play.start()
    client.load(session, play.cwd)
    tool = client.updates("tool_call")[0]
    assert b"t-1" not in tool.raw
    assert "content" == tool.update["content"][0]["type"]
    play.finish(client)


@pytest.mark.parametrize("method", ["fs/read_text_file", "fs/write_text_file", "terminal/create", "terminal/kill"])
def test_what_the_client_cannot_do_never_reaches_it(method: str, play: Stage) -> None:
    """An agent that asks all the same gets -32601."""
    client = play.start(capabilities={"fs": {"readTextFile": method != "fs/read_text_file"}})
    session = client.new(play.cwd)
    ask = f'{{"sessionId":"x","path":"/x","content":"c","command":"ls","terminalId":"t","mine":"{session}"}}'
    assert "end_turn" == client.prompt(session, f"ext {method} {ask}")
    assert "error -32601" == client.text(session)
    assert [] == [line for line in client.lines if line.method == method]
    play.finish(client)


def test_extensions_pass_both_ways(play: Stage) -> None:
    """Requests and notifications that begin with `_`: only the top-level sessionId is translated; errors pass too."""

    def policy(request: Json) -> Json | None:
        return {"you": request["params"]} if request["method"] == "_zed.dev/ask" else None

    client = play.start(policy=policy)
    session = client.new(play.cwd)
    raw = '{"sessionId":"$SESSION","deep":{"sessionId":"$SESSION"},"n":1e2,"big":123456789012345678901234567890}'
    script = f'raw {{"jsonrpc":"2.0","method":"_zed.dev/note","params":{raw}}}\next _zed.dev/ask {{"a":[1, 2]}}'
    assert "end_turn" == client.prompt(session, script)
    assert '{"you": {"a": [1, 2]}}' == client.text(session)
    note = next(line for line in client.lines if line.method == "_zed.dev/note")
    assert session == note.session
    assert note.params["deep"]["sessionId"] not in {session, "$SESSION"}
    assert b'"n":1e2,"big":123456789012345678901234567890}' in note.raw

    echo = client.call("_test/echo", {"sessionId": session, "deep": {"sessionId": session}, "n": 1})["echo"]
    assert {"sessionId": session} == echo["deep"]
    assert session != echo["sessionId"]
    assert {"echo": {"free": 1}} == client.call("_test/echo", {"free": 1}), "no session: the connection's agent"
    assert -32601 == failing(client, "_no/such", {"sessionId": session}).code
    assert -32601 == failing(client, "_no/such", {}).code
    client.notify("_test/note", {"sessionId": session, "x": 1})
    assert "end_turn" == client.prompt(session, "notes")
    assert '"x":1' in client.text(session)
    play.finish(client)


@pytest.mark.parametrize("method", ["_acpd/x", "_acpd/attach", "_acpd/", "_acpd/memory/x"])
def test_names_of_acpd_never_pass_through(method: str, play: Stage) -> None:
    """-32601 to either side for `_acpd/` names that acpd does not serve; notifications of them are nothing."""
    client = play.start()
    session = client.new(play.cwd)
    assert -32601 == failing(client, method, {"sessionId": session}).code
    client.notify(method, {"sessionId": session})
    assert "end_turn" == client.prompt(session, f"ext {method} {{}}\nnote {method} {{}}\nnotes")
    assert "error -32601" == client.text(session)
    assert [] == [line for line in client.lines if line.method == method]
    assert [] == play.agent_got(method)
    play.finish(client)


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"name": "x"},
        {"name": "", "value": 1},
        {"name": 1, "value": 1},
        {"value": 1},
        {"sessionId": 1, "name": "x", "value": 1},
    ],
    ids=json.dumps,
)
def test_state_that_is_malformed_is_refused(params: Json, play: Stage) -> None:
    """-32602 to the agent, and nothing is kept."""
    client = play.start()
    session = client.new(play.cwd)
    assert "end_turn" == client.prompt(session, f"ext _acpd/state {json.dumps({'sessionId': 's', **params})}")
    assert "error -32602" == client.text(session)
    play.finish(client)


@pytest.mark.parametrize(
    ("name", "value"),
    [("memory", [1, {"a": None}]), ("../../etc", "x"), ("a/b", 0), ("ü ☃", False), ("x" * 3000, {}), ("CON.json", "y" * 70000)],
    ids=["json", "path", "slash", "unicode", "long", "big"],
)
def test_state_comes_back_after_a_crash_whatever_its_name(name: str, value: Any, play: Stage) -> None:
    """Answered is durable: kill -9 right behind it, and the agent finds the value, whole, under its name."""
    client = play.start()
    session = client.new(play.cwd)
    params = json.dumps({"sessionId": "s", "name": name, "value": value}, ensure_ascii=False)
    ident = client.start_prompt(session, f"ext _acpd/state {params}\nhang")
    client.wait("the state is kept", lambda: client.text(session) == "{}")
    client.kill()
    assert [] == client.answers(ident)
    client = play.start()
    client.call("session/resume", {"sessionId": session, "cwd": str(play.cwd), "mcpServers": []})
    assert {name: value} == play.agent_got("session/resume")[-1]["params"]["_meta"]["acpd.dev/state"]
    assert [] == [str(path) for path in below(play.tmp, "etc*")], "nothing outside of the store's names"
    play.finish(client)


def test_a_counter_kept_in_acpd_counts_on_over_crashes(play: Stage) -> None:
    """`_acpd/state` in each of several processes, each killed: never lost, never doubled."""
    session = ""
    for count in range(1, 4):
        client = play.start("--no-resume")
        session = session or client.new(play.cwd)
        assert "end_turn" == client.prompt(session, "counter")
        assert client.text(session).endswith(f"counter {count} kept")
        client.kill()


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("fs/read_text_file", {}),
        ("fs/read_text_file", {"path": 1}),
        ("fs/read_text_file", {"path": "/x", "line": -1}),
        ("fs/write_text_file", {"path": "/x"}),
        ("terminal/create", {"command": ["ls"]}),
        ("terminal/create", {"command": "ls", "args": ["-l", 1]}),
        ("terminal/create", {"command": "ls", "env": [{"name": "A"}]}),
        ("terminal/output", {"terminalId": None}),
        ("session/request_permission", {"options": [], "toolCall": None}),
        ("session/request_permission", {"options": [{"optionId": "y"}], "toolCall": {"toolCallId": "t"}}),
        ("elicitation/create", {"message": "m", "mode": "form"}),
        ("elicitation/create", {"message": "m", "mode": "telepathy"}),
    ],
    ids=str,
)
def test_a_client_is_never_asked_what_it_could_not_read(method: str, params: Json, play: Stage) -> None:
    """A malformed request of the agent is -32602 to it and reaches nobody; nothing of a command is quietly left out."""
    client = play.start(policy=None)
    session = client.new(play.cwd)
    assert "end_turn" == client.prompt(session, f"ext {method} {json.dumps({'sessionId': 's', **params})}")
    assert "error -32602" == client.text(session)
    assert [] == [line for line in client.lines if line.method == method]
    play.finish(client)


def test_what_the_schema_repairs_is_repaired_in_a_question(play: Stage) -> None:
    """A malformed optional member is left out, null for a list means none; the rest goes through byte for byte."""
    client = play.start(policy=lambda _: {"outcome": {"outcome": "cancelled"}, "terminalId": "t"})
    session = client.new(play.cwd)
    ask = '{"sessionId":"s","options":[],"toolCall":{"toolCallId":"t","kind":"?","rawInput":{"n":1e2},"locations":[1]}}'
    made = '{"sessionId":"s","command":"ls","args":null,"cwd":null}'
    assert "end_turn" == client.prompt(session, f"ext session/request_permission {ask}\next terminal/create {made}")
    call = client.wait_request("session/request_permission").params["toolCall"]
    assert {"toolCallId": "t", "rawInput": {"n": 100.0}, "locations": []} == call
    assert {"sessionId": session, "command": "ls", "cwd": None} == client.wait_request("terminal/create").params
    play.finish(client)
