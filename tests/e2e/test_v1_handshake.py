"""initialize, authentication, and what is refused before and beside them (ACP v1 initialization, authentication)."""

from __future__ import annotations

import os
import subprocess
from typing import Any

import pytest

from tests.support.client import Json
from tests.support.scripted import EVERYTHING, Stage, failing, prompt_params

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize("asked", [0, 1, 2, 99, 65535])
def test_whatever_version_is_asked_for_version_one_is_answered(asked: int, play: Stage) -> None:
    """An agent that does not know the version asked for answers the latest it knows, and the connection works."""
    client = play.launch()
    assert 1 == client.call("initialize", {"protocolVersion": asked})["protocolVersion"]
    session = client.new(play.cwd)
    assert "end_turn" == client.prompt(session, "say hello")
    assert [1] == [message["params"]["protocolVersion"] for message in play.agent_got("initialize")]
    play.finish(client)


@pytest.mark.parametrize("asked", ["1", -1, 65536, 1.5, True, None, [], {}])
def test_a_version_that_is_no_small_integer_is_refused(asked: Any, play: Stage) -> None:
    """-32602 that names protocolVersion; the next initialize on the same connection may be right."""
    client = play.launch()
    error = failing(client, "initialize", {"protocolVersion": asked})
    assert -32602 == error.code
    assert "protocolVersion" in error.message
    assert 1 == client.initialize()["protocolVersion"]
    play.finish(client)


def test_nothing_is_served_before_initialize(play: Stage) -> None:
    """Requests before initialize are -32600, notifications are ignored, no agent hears of either."""
    client = play.launch()
    for method in ("session/new", "session/list", "session/prompt", "authenticate", "_test/echo", "no/such"):
        assert -32600 == failing(client, method, {"sessionId": "x", "cwd": "/", "mcpServers": []}).code
    client.notify("session/cancel", {"sessionId": "x"})
    client.notify("_test/note", {})
    client.initialize()
    client.new(play.cwd)
    assert ["initialize", "session/new"] == [message["method"] for message in play.agent_got()]
    play.finish(client)


def test_requests_right_behind_initialize_in_one_write_are_served_behind_it(play: Stage) -> None:
    """A client may pipeline: what follows initialize waits for it, in order."""
    client = play.launch()
    new = b'{"jsonrpc":"2.0","id":"n","method":"session/new","params":{"cwd":"%b","mcpServers":[]}}\n' % bytes(play.cwd)
    listed = b'{"jsonrpc":"2.0","id":"l","method":"session/list","params":{}}\n'
    client.send_bytes(b'{"jsonrpc":"2.0","id":"i","method":"initialize","params":{"protocolVersion":1}}\n' + new + listed)
    client.wait_settled(["i", "n", "l"])
    assert client.answer("i").number < min(client.answer("n").number, client.answer("l").number)
    assert client.result("n")["sessionId"]
    play.finish(client)


def test_what_is_announced_is_the_agents_own(play: Stage) -> None:
    """Prompt and MCP capabilities, logins and additionalDirectories are the agent's; what sessions can is acpd's."""
    client = play.launch("--bare", "--auth")
    said = client.initialize(auth={"terminal": True})
    able = said["agentCapabilities"]
    assert {"image": True, "audio": True, "embeddedContext": True} == able["promptCapabilities"]
    assert {"http": True, "sse": False} == able["mcpCapabilities"]
    assert {"logout": {}} == able["auth"]
    assert able["loadSession"] is True
    assert {"list", "resume", "close", "delete", "fork", "additionalDirectories"} == able["sessionCapabilities"].keys()
    assert "acpd" == said["agentInfo"]["name"]
    assert "Scriptable agent" in said["agentInfo"]["title"]
    play.finish(client)


def test_a_terminal_login_is_passed_on_and_runs_the_agent_itself(play: Stage) -> None:
    """The method has ACPD_LOGIN in its environment; acpd's command with that and the method's arguments becomes the agent."""
    client = play.launch("--auth")
    methods: list[Json] = client.initialize(auth={"terminal": True})["authMethods"]
    assert ["login", "tty"] == [method["id"] for method in methods]
    terminal = methods[1]
    assert {"type": "terminal", "id": "tty", "name": "By terminal", "args": ["--login"], "env": {"ACPD_LOGIN": "1"}} == terminal
    play.finish(client)
    show = 'import os, sys; print(sys.argv[1:], "ACPD_LOGIN" in os.environ)'
    wrapped = [*play.command()[:3], play.command()[3], "-c", show]
    environment = {**os.environ, **terminal["env"], "ACPD_HOME": str(play.home)}
    run = subprocess.run([*wrapped, *terminal["args"]], env=environment, capture_output=True, text=True, check=True)
    assert "['--login'] False" == run.stdout.strip()


def test_a_terminal_login_is_not_offered_to_a_client_without_terminals(play: Stage) -> None:
    """The agent hears what the client can, and so offers it no terminal login."""
    client = play.launch("--auth")
    assert ["login"] == [method["id"] for method in client.initialize()["authMethods"]]
    play.finish(client)


def test_a_login_that_is_missing_is_the_agents_own_error_and_the_login_its_own(play: Stage) -> None:
    """auth_required passes through session/new; the same process then gets authenticate and the session."""
    client = play.start("--auth", "--no-load")
    for _ in range(2):
        error = failing(client, "session/new", {"cwd": str(play.cwd), "mcpServers": []})
        assert (-32000, "log in first") == (error.code, error.message)
    wrong = failing(client, "authenticate", {"methodId": "nope"})
    assert (-32602, "unknown methodId") == (wrong.code, wrong.message)
    assert -32602 == failing(client, "authenticate", {}).code
    assert {} == client.call("authenticate", {"methodId": "login"})
    session = client.new(play.cwd)
    assert "end_turn" == client.prompt(session, "say in")
    assert 1 == len(play.agent_got("initialize")), "the process that wanted the login is the one that got it"
    assert {} == client.call("logout", {})
    assert -32000 == failing(client, "session/new", {"cwd": str(play.cwd), "mcpServers": []}).code
    assert [session] == list(play.finish(client))


def test_auth_required_keeps_its_data(play: Stage) -> None:
    """The agent's error object is passed on as it is, data and all."""
    play.tmp.joinpath("picky.py").write_text(
        "import json, sys\n"
        "for line in sys.stdin:\n"
        "    m = json.loads(line)\n"
        "    if m['method'] == 'initialize': print(json.dumps({'jsonrpc':'2.0','id':m['id'],'result':{'protocolVersion':1}}))\n"
        '    else: print(\'{"jsonrpc":"2.0","id":%s,"error":{"code":-32000,"message":"who?",'
        '"data":{"authMethods":[{"id":"x","name":"X"}], "n":1e2}}}\' % json.dumps(m[\'id\']))\n'
        "    sys.stdout.flush()\n"
    )
    client = play.start(command=[*play.command()[:4], str(play.tmp / "picky.py")])
    error = failing(client, "session/new", {"cwd": str(play.cwd), "mcpServers": []})
    assert (-32000, "who?") == (error.code, error.message)
    assert {"authMethods": [{"id": "x", "name": "X"}], "n": 100.0} == error.data
    assert {} == play.finish(client)


def test_a_login_that_a_loaded_session_needs_is_told_and_then_enough(play: Stage) -> None:
    """Load works logged out, with a notice; the prompt is answered -32000; after authenticate it works, with the memory."""
    client = play.start("--auth")
    client.call("authenticate", {"methodId": "login"})
    session = client.new(play.cwd)
    client.prompt(session, "say before")
    client.call("logout", {})
    play.finish(client)
    client = play.start("--auth")
    client.load(session, play.cwd)
    client.wait("word of the login", lambda: "log in first" in client.told(session))
    assert -32000 == failing(client, "session/prompt", prompt_params(session, "say x")).code
    client.call("authenticate", {"methodId": "login"})
    assert "end_turn" == client.prompt(session, "history")
    assert "history 3" in client.text(session)  # the agent's own: prompt, chunk, prompt
    play.finish(client)


def test_an_unknown_method_is_not_found_and_an_unknown_notification_is_nothing(play: Stage) -> None:
    """-32601 names the method; a notification is never answered."""
    client = play.start()
    session = client.new(play.cwd)
    for method in ("no/such", "session/set_model", "fs/read_text_file", "session/update", "_acpd/state", "_acpd/anything"):
        error = failing(client, method, {"sessionId": session})
        assert -32601 == error.code
        assert method in error.message
    for method in ("no/such", "session/prompt", "initialize", "_acpd/x", "$/unknown"):
        client.notify(method, {"sessionId": session})
    assert "end_turn" == client.prompt(session, "notes")
    assert "" == client.text(session)
    play.finish(client)


def test_a_second_initialize_is_answered_like_the_first(play: Stage) -> None:
    """It starts no second agent and harms no session."""
    client = play.start()
    session = client.new(play.cwd)
    again = client.initialize(**EVERYTHING)
    assert again["agentCapabilities"]["loadSession"] is True
    assert "end_turn" == client.prompt(session, "say on")
    assert "on" == client.text(session)
    play.finish(client)
