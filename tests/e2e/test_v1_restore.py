"""Giving an agent back the context of a session: resume, load, primed; never a silent fresh start (docs/architecture.md)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support import store
from tests.support.client import Client, Json
from tests.support.scripted import EVERYTHING, Stage, failing, prompt_params
from tests.support.wire import wrong_to_agent

pytestmark = pytest.mark.e2e


def talked(play: Stage, *options: str, kill: bool = True, script: str = "say the first words\ntool x") -> str:
    """A session with one turn, and its acpd gone: killed, or ended."""
    client = play.start(*options)
    session = client.new(play.cwd)
    client.prompt(session, script)
    if kill:
        client.kill()
    else:
        play.finish(client)
    return session


def resumed(play: Stage, client: Client, session: str) -> list[Json]:
    """Load, then a prompt that shows what the agent knows; what it was asked on the way."""
    before = len(play.agent_got())
    client.load(session, play.cwd)
    assert "end_turn" == client.prompt(session, "context\nhistory")
    return play.agent_got()[before:]


def inner(play: Stage) -> str:
    """The agent's own id of the first session."""
    return str(next(m["params"]["sessionId"] for m in play.agent_got("session/prompt")))


@pytest.mark.parametrize("kill", [True, False], ids=["killed", "ended"])
def test_an_agent_that_resumes_is_resumed_with_its_own_id(kill: bool, play: Stage) -> None:
    """The same inner session goes on; nothing is primed, nothing is told."""
    session = talked(play, kill=kill)
    client = play.start()
    asked = resumed(play, client, session)
    methods = [m["method"] for m in asked if "method" in m]
    assert ["session/resume", "session/prompt"] == methods
    assert {inner(play)} == {m["params"]["sessionId"] for m in asked if m.get("method", "").startswith("session/")}
    assert "context []" in client.text(session)
    assert "" == client.told(session)
    play.finish(client)


def test_an_agent_that_only_loads_is_loaded_and_its_replay_dropped(play: Stage) -> None:
    """Ours was sent; the agent's replay reaches nobody and is not stored again."""
    session = talked(play, "--no-resume", "--echo-prompt")
    size = len(store.log(play.home, session, torn=True).of("update"))
    client = play.start("--no-resume", "--echo-prompt")
    asked = resumed(play, client, session)
    assert "session/load" in [m.get("method") for m in asked]
    assert 1 == client.text(session).count("the first words")
    assert 1 == len(client.updates("tool_call"))
    log = play.finish(client)[session]
    assert size + 2 == len(log.of("update"))


@pytest.mark.parametrize("how", ["neither", "forgot", "wiped"])
def test_what_an_agent_forgot_it_is_told_and_the_user_too(how: str, play: Stage) -> None:
    """No way back, or the agent's own store gone: a new inner session with the conversation as text, and a visible notice."""
    options = ("--no-resume", "--no-load") if how == "neither" else ()
    session = talked(play, *options, script="say the first words\ntool x" + ("\nforget" if how == "forgot" else ""))
    if how == "wiped":
        play.state.unlink()
    client = play.start(*options)
    asked = resumed(play, client, session)
    assert "session/new" in [m.get("method") for m in asked]
    primer = asked[-1]["params"]["prompt"][0]["text"]
    assert "the first words" in primer
    assert "say the first words" in primer
    assert "context\nhistory" == asked[-1]["params"]["prompt"][-1]["text"]
    assert "could not restore" in client.told(session)
    told = next(line for line in client.updates() if "could not restore" in line.raw.decode())
    said = next(line for line in client.updates() if "context [" in line.raw.decode())
    assert told.number < said.number
    assert "end_turn" == client.prompt(session, "context")
    assert client.text(session).endswith("context []"), "told once"
    log = play.finish(client)[session]
    assert ["say the first words", "context", "context"] == [e["prompt"][0]["text"].split("\n")[0] for e in log.of("prompt")]
    client = play.start(*options)
    client.load(session, play.cwd)
    assert "could not restore" in client.told(session), "it stays in the conversation"
    play.finish(client)


def test_a_replay_does_not_need_the_agents_memory(play: Stage) -> None:
    """The agent's store is wiped: every update is replayed byte for byte, before any agent is asked."""
    session = talked(play, script="say a\ntool x\nimage\nthink b\nplan p|q")
    client = play.start()
    client.load(session, play.cwd)
    before = [line.raw for line in client.updates(session=session)]
    play.finish(client)
    play.state.unlink()
    client = play.start()
    client.load(session, play.cwd)
    assert before == [line.raw for line in client.updates(session=session)][: len(before)]
    play.finish(client)


def test_modes_and_options_survive_an_agent_that_comes_up_new(play: Stage) -> None:
    """The stored ones are set in the new inner session; the client is not told of the agent's defaults."""
    client = play.start()
    session = client.new(play.cwd)
    client.call("session/set_mode", {"sessionId": session, "modeId": "code"})
    client.prompt(session, "say x\nconfig model large")
    client.kill()
    play.state.unlink()
    client = play.start()
    answer = client.load(session, play.cwd)
    assert "code" == answer["modes"]["currentModeId"]
    assert "large" == answer["configOptions"][0]["currentValue"]
    client.prompt(session, "say y")
    assert [{"modeId": "code"}] == [{"modeId": m["params"]["modeId"]} for m in play.agent_got("session/set_mode")[1:]]
    assert [("model", "large")] == [
        (m["params"]["configId"], m["params"]["value"]) for m in play.agent_got("session/set_config_option")
    ]
    assert [] == client.updates("current_mode_update")
    play.finish(client)


def test_an_agent_that_comes_up_different_is_told_to_the_client(play: Stage) -> None:
    """It no longer knows the stored mode: current_mode_update follows with what it has, and the next load says so too."""
    client = play.start()
    session = client.new(play.cwd)
    client.prompt(session, 'say x\nupdate {"sessionUpdate":"current_mode_update","currentModeId":"yolo"}')
    assert "yolo" == client.updates("current_mode_update")[0].update["currentModeId"]
    play.finish(client)
    client = play.start()
    assert "yolo" == client.load(session, play.cwd)["modes"]["currentModeId"]
    update = client.wait_update("current_mode_update")[0]
    assert "ask" == update.update["currentModeId"]
    play.finish(client)
    client = play.start()
    assert "ask" == client.load(session, play.cwd)["modes"]["currentModeId"]
    play.finish(client)


def test_commands_and_usage_come_again_after_a_crash(play: Stage) -> None:
    """The newest of each, once, behind the conversation."""
    session = talked(play, script="commands a\ncommands b c\nusage 1\nusage 2\ntitle T")
    client = play.start()
    client.load(session, play.cwd)
    assert [["b", "c"]] == [
        [c["name"] for c in line.update["availableCommands"]] for line in client.updates("available_commands_update")
    ]
    assert [2] == [line.update["used"] for line in client.updates("usage_update")]
    assert ["T"] == [line.update["title"] for line in client.updates("session_info_update")]
    play.finish(client)


def test_an_agent_whose_load_fails_otherwise_is_not_quietly_replaced(play: Stage) -> None:
    """It dies at session/load: the user is told, the prompt is an error that names the agent; when it is well, all is there."""
    session = talked(play, "--no-resume")
    client = play.start("--no-resume", "--die-at", "session/load")
    client.load(session, play.cwd)
    client.wait("a notice", lambda: client.told(session))
    assert "exit code 9" in failing(client, "session/prompt", prompt_params(session, "say x")).message
    assert [] == play.agent_got("session/new")[1:]
    play.finish(client)
    client = play.start("--no-resume")
    asked = resumed(play, client, session)
    assert "session/load" in [m.get("method") for m in asked]
    play.finish(client)


def test_servers_and_directories_are_those_of_the_newest_client(play: Stage) -> None:
    """Nothing is restored from earlier requests: what load brings is what the agent gets (ACP v1 session-setup)."""
    client = play.start()

    def server(name: str) -> Json:
        return {"name": name, "command": "/bin/x", "args": [], "env": [{"name": "K", "value": "v"}]}

    session = client.call(
        "session/new", {"cwd": str(play.cwd), "mcpServers": [server("one")], "additionalDirectories": [str(play.tmp)]}
    )["sessionId"]
    client.prompt(session, "servers")
    assert "servers one" == client.text(session)
    play.finish(client)
    client = play.start()
    client.call("session/load", {"sessionId": session, "cwd": str(play.cwd), "mcpServers": [server("two"), server("three")]})
    client.prompt(session, "servers")
    assert client.text(session).endswith("servers two three")
    assert "additionalDirectories" not in play.agent_got("session/resume")[-1]["params"]
    play.finish(client)


def agents_lines_are_right(play: Stage) -> None:
    """Everything that acpd sent to the agent validates."""
    lines = play.wire.read_bytes().split(b"\n")[:-1]
    assert [] == wrong_to_agent((b">" if line.startswith(b"< ") else b"<") + line[2:] for line in lines)


@pytest.mark.parametrize(
    "more",
    [
        {"mcpServers": None},
        {"mcpServers": [{"name": "x", "command": "/bin/x", "args": None, "env": None}]},
        {"mcpServers": [], "additionalDirectories": None},
        {"mcpServers": [], "_meta": 7},
    ],
    ids=json.dumps,
)
def test_what_is_mended_reaches_the_agent_mended(more: Json, play: Stage) -> None:
    """Null lists are empty ones; the agent, which is strict, gets params that validate."""
    client = play.start()
    session = client.call("session/new", {"cwd": str(play.cwd), **more})["sessionId"]
    assert "end_turn" == client.prompt(session, "say x")
    client.call("session/close", {"sessionId": session})
    client.call("session/load", {"sessionId": session, "cwd": str(play.cwd), **more})
    assert "end_turn" == client.prompt(session, "say x")
    agents_lines_are_right(play)
    play.finish(client)


def test_a_malformed_option_of_a_prompt_is_mended_for_the_agent_too(play: Stage) -> None:
    """Annotations that are none are left out, in the log and to the agent."""
    client = play.start()
    session = client.new(play.cwd)
    blocks: list[Any] = [{"type": "text", "text": "say x", "annotations": 7}]
    assert {"stopReason": "end_turn"} == client.call("session/prompt", {"sessionId": session, "prompt": blocks, "_meta": 7})
    agents_lines_are_right(play)
    play.finish(client)


def test_a_session_made_with_another_agent_is_driven_by_it(play: Stage) -> None:
    """Whatever connection loads it: by the stored command, under the name it was made with."""
    client = play.start("--name", "first-agent")
    session = client.new(play.cwd)
    client.prompt(session, "say x")
    play.finish(client)
    client = play.start("--name", "second-agent", capabilities=EVERYTHING)
    client.load(session, play.cwd)
    client.prompt(session, "history\nsay y")
    assert client.text(session).startswith("xhistory ")
    other = client.new(play.cwd)
    client.prompt(other, "say z")
    logs = play.finish(client)
    assert ["first-agent", "second-agent"] == [logs[one].header["agent"] for one in (session, other)]
