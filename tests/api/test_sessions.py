"""The life of a session: opened, closed, opened again; where it works; its options and its mode."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from acpd.api.agent import CLOSE_TIMEOUT, Agent
from acpd.api.session import Session
from acpd.api.shapes import Choice, Command, Option, RemoteServer, StdioServer, Stop
from acpd.api.turn import Turn
from acpd.errors import INVALID_PARAMS, ConfigError, Refused
from tests.api.desk import Json, joined, keeps

STDIO: Json = {"name": "s", "command": "/bin/s", "args": ["a"], "env": [{"name": "KEY", "value": "canary"}]}
HTTP: Json = {"type": "http", "name": "h", "url": "http://x/", "headers": [{"name": "Authorization", "value": "canary"}]}


class Lively(Agent):
    """It writes down its life. `gate`: what `opened` waits for."""

    name = "lively"
    title = "Lively"
    mcp = True
    commands = (Command("do", "Do it", "what"), Command("be", "Be"))

    def __init__(self) -> None:
        self.life: list[str] = []
        self.begun = asyncio.Event()
        self.gate: asyncio.Event | None = None
        self.failure: Exception | None = None
        self.sessions: list[Session] = []

    async def opened(self, session: Session, /) -> None:
        self.life.append("opened")
        self.begun.set()
        self.sessions.append(session)
        if self.gate is not None:
            await self.gate.wait()
        if self.failure is not None:
            raise self.failure

    async def closed(self, session: Session, /) -> None:
        self.life.append("closed")

    async def prompt(self, turn: Turn, /) -> Stop | None:
        self.life.append(turn.text)
        if turn.text == "long":
            await turn.say("on")
            try:
                await asyncio.sleep(1000)
            finally:
                self.life.append("ended")
        return None


async def test_new_is_answered_before_anything_is_prepared() -> None:
    """session/new does not wait for `opened`; the first prompt does, and can be cancelled meanwhile."""
    agent = Lively()
    agent.gate = asyncio.Event()
    async with joined(agent) as (editor, _):
        name = await editor.new()
        answer = editor.begin(name, "a")
        await agent.begun.wait()
        editor.cancel(name)
        assert {"stopReason": "cancelled"} == await answer
        answer = editor.begin(name, "b")
        assert ["opened"] == agent.life
        agent.gate.set()
        assert {"stopReason": "end_turn"} == await answer
        assert ["opened", "b"] == agent.life
    assert ["opened", "b", "closed"] == agent.life


async def test_load_and_resume_do_not_wait_for_an_opening() -> None:
    """While the agent prepares a session it can be loaded and resumed; a prompt waits."""
    agent = Lively()
    agent.gate = asyncio.Event()
    async with joined(agent) as (editor, _):
        name = await editor.new()
        assert {} == await editor.load(name)
        assert {} == await editor.call("session/resume", {"sessionId": name, "cwd": "/tmp"})
        answer = editor.begin(name, "a")
        agent.gate.set()
        assert {"stopReason": "end_turn"} == await answer
        assert ["opened", "a"] == agent.life


async def test_a_failed_opening_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    """What `opened` raises is told to the user, as a notice or a message with the agent's name, and the prompt goes on."""
    able: list[Json] = [{"session": {"notices": {}}}, {}]
    for capabilities in able:
        for failure, why in ((ConfigError("no key"), "no key"), (ZeroDivisionError("private"), "see the agent's stderr")):
            agent = Lively()
            agent.failure = failure
            async with joined(agent, capabilities) as (editor, _):
                assert "end_turn" == await editor.prompt(await editor.new())
                (told,) = editor.updates("notice", "agent_message_chunk")
                if capabilities:
                    assert ("error", "This session could not be prepared", why) == (
                        told["severity"],
                        told["title"],
                        told["description"],
                    )
                else:
                    assert f"[Lively] This session could not be prepared: {why}\n" == told["content"]["text"]
    assert "ZeroDivisionError: private" in capfd.readouterr().err


async def test_closing() -> None:
    """session/close ends the turn as cancelled, the agent lets go, then it is answered; the session can be loaded again."""
    agent = Lively()
    async with joined(agent) as (editor, _):
        name = await editor.new()
        answer = editor.begin(name, "long")
        await editor.until(editor.text)
        assert {} == await editor.call("session/close", {"sessionId": name})
        assert {"stopReason": "cancelled"} == answer.result()
        assert ["opened", "long", "ended", "closed"] == agent.life
        error = await editor.refusal("session/prompt", {"sessionId": name, "prompt": [{"type": "text", "text": "a"}]})
        assert -32002 == error.code
        assert {} == await editor.call("session/close", {"sessionId": name})
        assert {} == await editor.call("session/close", {"sessionId": "nobody"})
        await editor.load(name)
        assert ("long", "onon") == (editor.text("user_message_chunk"), editor.text())
        assert "end_turn" == await editor.prompt(name, "again")
        assert ["opened", "again"] == agent.life[4:]
        assert agent.sessions[0] is agent.sessions[1]


async def test_closing_ends_an_opening() -> None:
    """An `opened` that hangs is cancelled by session/close, and what comes behind works."""
    agent = Lively()
    agent.gate = asyncio.Event()
    async with joined(agent) as (editor, _):
        name = await editor.new()
        await agent.begun.wait()
        assert {} == await editor.call("session/close", {"sessionId": name})
        assert ["opened", "closed"] == agent.life
        agent.gate.set()
        await editor.load(name)
        assert "end_turn" == await editor.prompt(name, "a")


async def test_close_and_load_in_one_breath() -> None:
    """A load right behind a close waits for it: the agent is opened after it was closed, never the other way round."""
    agent = Lively()
    async with joined(agent) as (editor, _):
        name = await editor.new()
        closing = editor.start("session/close", {"sessionId": name})
        loading = editor.start("session/load", {"sessionId": name, "cwd": "/tmp", "mcpServers": []})
        assert [{}, {}] == [await closing, await loading]
        assert "end_turn" == await editor.prompt(name, "a")
        assert ["opened", "closed", "opened", "a"] == agent.life


async def test_close_load_and_prompt_in_one_breath() -> None:
    """The close waits for the turn that it stopped, and not for the prompt behind it."""
    agent = Lively()
    async with joined(agent) as (editor, _):
        name = await editor.new()
        began = time.monotonic()
        closing = editor.start("session/close", {"sessionId": name})
        loading = editor.start("session/load", {"sessionId": name, "cwd": "/tmp", "mcpServers": []})
        assert "end_turn" == await editor.prompt(name, "hello")
        assert ({}, {}) == (await closing, await loading)
        assert time.monotonic() - began < CLOSE_TIMEOUT / 2
        assert ["opened", "closed", "opened", "hello"] == agent.life


async def test_closed_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent that does not come to the end of `closed` is given up."""
    monkeypatch.setattr("acpd.api.conversation.CLOSE_TIMEOUT", 0.05)

    class Stubborn(Lively):
        async def closed(self, session: Session, /) -> None:
            await asyncio.sleep(1000)

    async with joined(Stubborn()) as (editor, _):
        name = await editor.new()
        await editor.prompt(name)
        assert {} == await editor.call("session/close", {"sessionId": name})


async def test_what_acpd_keeps_is_forgotten_here() -> None:
    """A session that is closed behind acpd leaves nothing in this process; it comes back with what acpd brings."""
    kept: Json = {}
    agent = Lively()
    async with joined(agent) as (editor, _):
        editor.answers["_acpd/state"] = keeps(kept)
        name = await editor.new()
        await editor.prompt(name)
        agent.sessions[0].state.put("n", 1)
        await agent.sessions[0].state.saved()
        await editor.call("session/close", {"sessionId": name})
        assert -32002 == (await editor.refusal("session/load", {"sessionId": name, "cwd": "/tmp", "mcpServers": []})).code
        await editor.load(name, state=kept)
        await editor.prompt(name)
        assert 1 == agent.sessions[1].state.get("n", int)
        assert not agent.sessions[1].new


async def test_servers_and_folders() -> None:
    """The session has what new, load and resume say; other servers or folders open it anew, the same ones do not."""
    agent = Lively()
    async with joined(agent) as (editor, _):
        name = await editor.new("/tmp", mcpServers=[STDIO, HTTP], additionalDirectories=["/usr"])
        await editor.prompt(name, "a")
        (session,) = agent.sessions
        assert [
            StdioServer("s", "/bin/s", ("a",), {"KEY": "canary"}),
            RemoteServer("h", "http", "http://x/", (("Authorization", "canary"),)),
        ] == list(session.mcp_servers)
        assert (Path("/tmp"), Path("/usr")) == session.roots
        assert "canary" not in repr(session.mcp_servers)
        await editor.load(name, mcpServers=[STDIO, HTTP], additionalDirectories=["/usr"])
        await editor.prompt(name, "b")
        assert ["opened", "a", "b"] == agent.life
        await editor.call("session/resume", {"sessionId": name, "cwd": "/tmp", "mcpServers": [STDIO]})
        await editor.prompt(name, "c")
        assert ["opened", "a", "b", "closed", "opened", "c"] == agent.life
        assert [Path("/tmp")] == list(session.roots)
        assert 1 == len(session.mcp_servers)


async def test_a_server_that_the_agent_cannot_have_is_refused() -> None:
    """Without `mcp` a server at a URL is refused by new, load and resume, with the member."""
    agent = Lively()
    agent.mcp = False
    async with joined(agent) as (editor, _):
        name = await editor.new(mcpServers=[STDIO])
        for method in ("session/new", "session/load", "session/resume"):
            error = await editor.refusal(method, {"sessionId": name, "cwd": "/tmp", "mcpServers": [STDIO, HTTP]})
            assert (INVALID_PARAMS, 'params.mcpServers[1].type "http" is not supported') == (error.code, error.message)
        assert "end_turn" == await editor.prompt(name, "a")
        assert ["opened", "a"] == agent.life


@pytest.mark.parametrize(
    ("method", "params", "member"),
    [
        ("session/new", {"cwd": "tmp", "mcpServers": []}, "params.cwd"),
        ("session/new", {"cwd": "/tmp"}, "params.mcpServers"),
        ("session/new", {"cwd": "/tmp", "mcpServers": [], "additionalDirectories": ["x"]}, "params.additionalDirectories[0]"),
        ("session/new", {"cwd": "/tmp", "mcpServers": [{"name": "x"}]}, "params.mcpServers[0]"),
        (
            "session/new",
            {"cwd": "/tmp", "mcpServers": [{"type": "acp", "name": "x", "serverId": "s"}]},
            "params.mcpServers[0].type",
        ),
        ("session/prompt", {"sessionId": "x", "prompt": []}, "params.prompt"),
        ("session/prompt", {"sessionId": "x", "prompt": [{"type": "text"}]}, "params.prompt[0].text"),
        ("session/set_mode", {"sessionId": "x"}, "modeId"),
    ],
)
async def test_bad_params_name_the_member(method: str, params: Json, member: str) -> None:
    """What is wrong with params is -32602, and says which member it is."""
    async with joined(Lively()) as (editor, _):
        error = await editor.refusal(method, params)
        assert INVALID_PARAMS == error.code
        assert member in error.message


async def test_the_commands_come_behind_the_answer() -> None:
    """available_commands_update comes behind the answer that names the session."""
    async with joined(Lively()) as (editor, _):
        name = await editor.new()
        commands = [{"name": "do", "description": "Do it", "input": {"hint": "what"}}, {"name": "be", "description": "Be"}]
        await editor.until(editor.updates)
        assert [{"sessionUpdate": "available_commands_update", "availableCommands": commands}] == editor.updates()
        assert ("answer", {"method": "session/new"}) == editor.story[-2]
        del editor.story[:]
        await editor.load(name)
        await editor.until(editor.updates)
        assert 1 == len(editor.updates())


# -- options


class Choosy(Agent):
    """Its models have different thought levels."""

    async def prompt(self, turn: Turn, /) -> Stop | None:
        if turn.text == "plan":
            turn.session.choices["mode"] = "plan"
            turn.session.changed()
            turn.session.changed()
        return None

    def options(self, session: Session, /) -> Sequence[Option]:
        model = session.choices.get("model", "small")
        levels = ("low", "high") if model == "big" else ("low",)
        level = session.choices.get("level", "low")
        return (
            Option("model", "Model", model, (Choice("small", "S"), Choice("big", "B", "Costs more")), category="model"),
            Option("level", "Thinking", level if level in levels else "low", tuple(Choice(each, each) for each in levels)),
            Option(
                "mode",
                "Mode",
                session.choices.get("mode", "ask"),
                (Choice("ask", "Ask"), Choice("plan", "Plan")),
                "mode",
                "How",
            ),
        )

    def choose(self, session: Session, option: str, value: str, /) -> None:
        if value == "forbidden":
            raise Refused(-32000, "pay first")
        super().choose(session, option, value)


def values(options: list[Json]) -> Json:
    return {option["id"]: option["currentValue"] for option in options}


async def test_options_and_modes() -> None:
    """Options are told by new and load, the one of the category mode as modes too; a choice may change the others."""
    async with joined(Choosy()) as (editor, _):
        told = await editor.call("session/new", {"cwd": "/tmp", "mcpServers": []})
        name = told["sessionId"]
        assert {"model": "small", "level": "low", "mode": "ask"} == values(told["configOptions"])
        assert {
            "currentModeId": "ask",
            "availableModes": [{"id": "ask", "name": "Ask"}, {"id": "plan", "name": "Plan"}],
        } == told["modes"]
        assert ("select", "How", "mode") == tuple(told["configOptions"][2][key] for key in ("type", "description", "category"))
        choice = {"sessionId": name, "configId": "model", "value": "big"}
        changed = (await editor.call("session/set_config_option", choice))["configOptions"]
        assert ["low", "high"] == [each["value"] for each in changed[1]["options"]]
        assert [] == editor.updates()
        await editor.call("session/set_config_option", {"sessionId": name, "configId": "mode", "value": "plan"})
        assert {} == await editor.call("session/set_mode", {"sessionId": name, "modeId": "ask"})
        assert ["current_mode_update", "config_option_update"] == [update["sessionUpdate"] for update in editor.updates()]
        loaded = await editor.load(name)
        assert {"model": "big", "level": "low", "mode": "ask"} == values(loaded["configOptions"])


@pytest.mark.parametrize(
    ("method", "params", "code", "says"),
    [
        (
            "config_option",
            {"configId": "model", "value": "none"},
            -32602,
            "the option model cannot be none: it may be small, big",
        ),
        (
            "config_option",
            {"configId": "none", "value": "big"},
            -32602,
            "there is no option none: there are model, level, mode",
        ),
        ("config_option", {"configId": "model", "value": True, "type": "boolean"}, -32602, "the option model is not"),
        ("config_option", {"configId": "model", "value": "forbidden"}, -32000, ""),
        ("mode", {"modeId": "none"}, -32602, "the option mode cannot be none: it may be ask, plan"),
    ],
)
async def test_a_choice_that_is_none(method: str, params: Json, code: int, says: str) -> None:
    """An unknown option or value is an error, names what there is, changes nothing; an agent may have errors of its own."""
    async with joined(Choosy()) as (editor, _):
        name = await editor.new()
        refused = await editor.refusal(f"session/set_{method}", {"sessionId": name, **params})
        assert (code, says) == (refused.code, refused.message[: len(says)])
        assert {"model": "small", "level": "low", "mode": "ask"} == values((await editor.load(name))["configOptions"])
        assert [] == editor.said("_acpd/state") + editor.updates()


async def test_no_modes() -> None:
    """An agent without options tells none, and set_mode is -32602."""
    async with joined(Lively()) as (editor, _):
        told = await editor.call("session/new", {"cwd": "/tmp", "mcpServers": []})
        assert {"sessionId"} == set(told)
        assert -32602 == (await editor.refusal("session/set_mode", {"sessionId": told["sessionId"], "modeId": "x"})).code


async def test_a_choice_is_durable() -> None:
    """What was chosen is kept, and is there again in another process."""
    kept: Json = {}
    async with joined(Choosy()) as (editor, _):
        editor.answers["_acpd/state"] = keeps(kept)
        name = await editor.new()
        await editor.call("session/set_config_option", {"sessionId": name, "configId": "model", "value": "big"})
        await editor.call("session/set_mode", {"sessionId": name, "modeId": "plan"})
        assert {"choices": {"model": "big", "mode": "plan"}} == kept
    async with joined(Choosy()) as (editor, _):
        loaded = await editor.load(name, state=kept)
        assert ("big", "plan") == (values(loaded["configOptions"])["model"], loaded["modes"]["currentModeId"])


async def test_the_agent_changes_its_mode() -> None:
    """`changed` tells the mode and the options, once."""
    async with joined(Choosy()) as (editor, _):
        await editor.prompt(await editor.new(), "plan")
        mode, options = editor.updates()
        assert ("plan", "plan") == (mode["currentModeId"], values(options["configOptions"])["mode"])


# -- the handshake


async def test_the_handshake() -> None:
    """initialize tells what the agent is; terminal logins only to a client that can; before it everything is -32600."""

    class Known(Lively):
        version = "7"
        images = False
        auth_methods = ({"id": "key", "name": "Key"}, {"id": "setup", "name": "Setup", "type": "terminal", "args": ["--setup"]})

    async with joined(Known()) as (editor, _):
        told = await editor.initialize({"auth": {"terminal": True}})
        assert {"name": "lively", "title": "Lively", "version": "7"} == told["agentInfo"]
        assert {"image": False, "audio": False, "embeddedContext": True} == told["agentCapabilities"]["promptCapabilities"]
        assert {"http": True, "sse": True} == told["agentCapabilities"]["mcpCapabilities"]
        assert ["key", "setup"] == [each["id"] for each in told["authMethods"]]
        assert ["key"] == [each["id"] for each in (await editor.initialize())["authMethods"]]
        assert {} == await editor.call("authenticate", {"methodId": "key"})
        assert -32602 == (await editor.refusal("authenticate", {"methodId": "other"})).code
        assert -32601 == (await editor.refusal("session/list", {})).code
