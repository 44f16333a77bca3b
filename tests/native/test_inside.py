"""`acpd-agent` with a model in this process, where its limits can be moved and its tasks be seen."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from acpd.api import state
from acpd.errors import RESOURCE_NOT_FOUND
from acpd.native.agent import NativeAgent
from acpd.native.settings import Settings
from tests.api.desk import ABLE, Editor, joined, keeps
from tests.core.world import until
from tests.native.turns import KEY
from tests.support.models import Json, ModelServer, model_server


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with model_server() as made:
        yield made


@pytest.fixture
def agent(server: ModelServer, tmp_path: Path) -> NativeAgent:
    environ = {"ACPD_HOME": str(tmp_path), "OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": f"{server.url}/v1"}
    return NativeAgent(Settings(model="openai:m", file=str(tmp_path / "acpd.toml")), environ)


async def test_a_memory_that_is_too_big_costs_no_turn(
    agent: NativeAgent, server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told once, the session goes on with all of it, and what was kept before stays kept."""
    monkeypatch.setattr(state, "SMALL", 100)
    kept: Json = {}
    async with joined(agent, ABLE) as (editor, _):
        editor.answers[state.METHOD] = keeps(kept)
        session = await editor.new()
        assert "end_turn" == await editor.prompt(session, "[[say one]]")
        before = json.dumps(kept["memory"])
        monkeypatch.setattr(state, "LIMIT", len(before))
        for word in ("two", "three"):
            assert "end_turn" == await editor.prompt(session, f"[[say {word}]]")
        assert before == json.dumps(kept["memory"])
        assert 1 == len(_notices(editor))
        sent = json.dumps(server.bodies[-1])
        assert ("one" in sent, "two" in sent) == (True, True)
        monkeypatch.undo()
        assert "end_turn" == await editor.prompt(session, "[[say four]]")
        assert "three" in json.dumps(kept["memory"])


async def test_a_first_memory_that_is_too_big(agent: NativeAgent, server: ModelServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was never kept is remembered as long as the agent runs."""
    monkeypatch.setattr(state, "SMALL", 0)
    monkeypatch.setattr(state, "LIMIT", 0)
    async with joined(agent, ABLE) as (editor, _):
        editor.answers[state.METHOD] = keeps({})
        session = await editor.new()
        for word in ("one", "two"):
            assert "end_turn" == await editor.prompt(session, f"[[say {word}]]")
        assert "one" in json.dumps(server.bodies[-1])
        assert 1 == len(_notices(editor))


def _notices(editor: Editor) -> list[Json]:
    return [each for each in editor.updates("notice") if "too large to be kept" in each["title"]]


@pytest.mark.parametrize("name", ["plan", "usage", "tool_context", "choices"])
async def test_what_cannot_be_read_beside_the_memory_costs_itself(
    agent: NativeAgent, server: ModelServer, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user is told once, turns go on with all else, and no other value is put in its place."""
    kept: Json = {}
    async with joined(agent, ABLE) as (editor, _):
        editor.answers[state.METHOD] = keeps(kept)
        session = await editor.new()
        await editor.prompt(session, "[[say one]]")
    kept[name] = 7
    async with joined(agent, ABLE) as (editor, _):
        editor.answers[state.METHOD] = keeps(kept)
        editor.answers["session/request_permission"] = lambda _: {"outcome": {"outcome": "selected", "optionId": "always"}}
        await editor.load(session, state=kept)
        await editor.call("session/set_mode", {"sessionId": session, "modeId": "code"})
        for _ in range(2):
            for call in ('run {"command":"true"}', 'plan {"steps":[{"content":"a"}]}'):
                assert "end_turn" == await editor.prompt(session, f"[[tool {call}]]")
        assert "one" in json.dumps(server.bodies[-1])
        told = [each["description"] for each in editor.updates("notice") if "cannot be read" in each["title"]]
        assert [True] == [f"state '{name}'" in each for each in told]
    assert {"plan", "usage", "tool_context", "choices"} <= kept.keys()
    assert [name] == [each for each, value in kept.items() if value == 7]


@pytest.mark.parametrize("empty", [{}, {"messages": []}, {"version": 1, "messages": [], "summary": ""}])
async def test_a_memory_without_messages_is_none(agent: NativeAgent, empty: Json) -> None:
    """The session is not known by it, so that acpd begins it anew and tells it from the log; one that has a summary is."""
    params: Json = {"sessionId": "x", "cwd": "/tmp", "mcpServers": []}
    async with joined(agent, ABLE) as (editor, _):
        for method in ("session/load", "session/resume"):
            meta = {"acpd.dev/state": {"memory": empty, "usage": {}, "offline": {}}}
            error = await editor.refusal(method, {**params, "_meta": meta})
            assert RESOURCE_NOT_FOUND == error.code
        await editor.load("x", state={"memory": {**empty, "summary": "what was"}})


async def test_connections_end_with_what_they_are_for(agent: NativeAgent) -> None:
    """Those to a model that is not chosen any more when no turn uses it, all others when the client has gone."""
    async with joined(agent, ABLE) as (editor, connection):
        one, other = await editor.new(), await editor.new()
        await editor.prompt(one, "[[say a]]")

        async def http(model: str) -> httpx2.AsyncClient:
            return (await agent._offers.loaded(agent._offers.named(model))).http

        async def choose(session: str, model: str) -> None:
            await editor.call("session/set_config_option", {"sessionId": session, "configId": "model", "value": model})

        usual = await http("openai:m")
        await choose(one, "openai-chat:n")
        await choose(other, "openai-chat:n")
        await editor.prompt(one, "[[say b]]")
        second = await http("openai-chat:n")
        running = editor.begin(one, "[[slow 1000 50]]")
        await editor.until(lambda: len(editor.updates("agent_message_chunk")) > 3)
        await choose(one, "openai:fake-model")
        await editor.call("session/close", {"sessionId": other})
        assert not second.is_closed
        editor.cancel(one)
        await running
        await until(lambda: second.is_closed)
        await editor.prompt(one, "[[say c]]")
        third = await http("openai:fake-model")
        assert (False, False) == (usual.is_closed, third.is_closed)
        editor.peer.close()
        await asyncio.wait_for(connection.ended.wait(), 10)
        await connection.finish()
        assert (True, True) == (usual.is_closed, third.is_closed)


async def test_no_task_outlives_its_connection(agent: NativeAgent) -> None:
    """What the agent does in the background is over, awaited, when its connection has ended."""
    async with joined(agent, ABLE) as (editor, connection):
        tasks = [agent._tasks.spawn(asyncio.Event().wait(), name=f"hang {number}") for number in range(3)]
        editor.peer.close()
        await asyncio.wait_for(connection.ended.wait(), 10)
        await connection.finish()
        assert all(task.done() for task in tasks)
