"""`acpd-agent` with a model, as a process: what an editor sees of it, and what comes back in another process."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.native.turns import CHOSEN, KEY
from tests.support.models import STALL, Json, ModelServer, answer, http, model_server
from tests.support.plain_editor import PATIENCE, PlainEditor, editors

ENTRY = [sys.executable, "-m", "acpd.native.entry"]
Launch = Callable[..., PlainEditor]


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with model_server() as made:
        yield made
        assert [] == made.wrong


@pytest.fixture
def launch(server: ModelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Launch]:
    """Starts an agent on the model server; `keeps`: a dict that gets what the agent keeps, as acpd would."""
    for name in list(os.environ):
        if name.endswith("_API_KEY") or name.startswith("ACPD_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("ACPD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    monkeypatch.setenv("GOOGLE_API_KEY", KEY)
    monkeypatch.setenv("OLLAMA_HOST", "127.0.0.1:9")
    with editors() as start:

        def launched(dialect: str = "chat", keeps: Json | None = None, *more: str) -> PlainEditor:
            provider, name, path = CHOSEN[dialect]
            # the usual variables, as a base_url of its own would need a key of its own
            for variable in ("OPENAI_BASE_URL", "ANTHROPIC_BASE_URL", "GOOGLE_GEMINI_BASE_URL"):
                monkeypatch.setenv(variable, server.url + path)
            editor = start([*ENTRY, "--model", f"{provider}:{name}", *more])

            def kept(params: Json) -> Json:
                if keeps is None:
                    return {"error": {"code": -32601, "message": "unknown"}}
                keeps[params["name"]] = params["value"]
                return {"result": {}}

            editor.answers["_acpd/state"] = kept
            editor.initialize()
            return editor

        yield launched


@pytest.mark.parametrize(
    "dialect", ["chat", *(pytest.param(each, marks=pytest.mark.e2e) for each in ("responses", "anthropic", "gemini"))]
)
def test_a_conversation_with_a_tool(launch: Launch, dialect: str, tmp_path: Path) -> None:
    """A prompt is answered by the model with the tools of the agent, whatever provider it is."""
    (tmp_path / "a.txt").write_text("canary in a file")
    editor = launch(dialect)
    name = editor.call("session/new", {"cwd": str(tmp_path), "mcpServers": []})["result"]["sessionId"]
    editor.answers["fs/read_text_file"] = lambda _: {"result": {"content": "canary in a file"}}
    said = "".join(editor.says(name, '[[tool read {"path":"a.txt"}]]'))
    assert "canary in a file" in said
    assert ["pending"] == [call.get("status", "pending") for call in editor.kinds("tool_call")]
    assert "completed" == editor.kinds("tool_call_update")[-1]["status"]
    assert (dialect == "chat") == (editor.kinds("usage_update") == [])  # of that model nobody knows the size of its context


@pytest.mark.e2e
def test_memory_comes_back_in_another_process(launch: Launch, server: ModelServer) -> None:
    """What acpd keeps of a session is what the model remembers after a restart, for load and resume alike."""
    kept: Json = {}
    editor = launch("anthropic", kept)
    name = editor.new()
    editor.says(name, "[[say the first answer]]")
    editor.call("session/set_config_option", {"sessionId": name, "configId": "thought_level", "value": "high"})
    editor.call("session/set_mode", {"sessionId": name, "modeId": "plan"})
    editor.close()
    for method in ("session/load", "session/resume"):
        again = launch("anthropic", kept)
        params = {"sessionId": name, "cwd": "/tmp", "mcpServers": [], "_meta": {"acpd.dev/state": kept}}
        result = again.call(method, params)["result"]
        assert "plan" == result["modes"]["currentModeId"]
        assert {"mode": "plan", "thought_level": "high"}.items() <= values(result).items()
        assert "more" == "".join(again.says(name, "[[say more]]")).strip()
        assert "the first answer" in json.dumps(server.bodies[-1])
        assert "write" not in [tool["name"] for tool in server.bodies[-1]["tools"]]


def test_the_configured_mode_is_left_by_nobody(launch: Launch, server: ModelServer) -> None:
    """A client that loads an open session with a state without a mode: the option, the tools and the instructions agree."""
    editor = launch("chat", {}, "--mode", "plan")
    name = editor.new()
    editor.says(name, "[[say one]]")
    params = {"sessionId": name, "cwd": "/tmp", "mcpServers": [], "_meta": {"acpd.dev/state": {"choices": {}}}}
    assert "plan" == editor.call("session/load", params)["result"]["modes"]["currentModeId"]
    said = "".join(editor.says(name, '[[tool write {"path":"/tmp/never","text":"x"}]]'))
    assert "not available in the mode `plan`" in said
    assert "write" not in [tool["function"]["name"] for tool in server.bodies[-1]["tools"]]
    assert "Mode `plan`" in json.dumps(server.bodies[-1])


@pytest.mark.e2e
def test_compact_is_a_command(launch: Launch, server: ModelServer) -> None:
    """`/compact WORDS` makes a summary, which another process goes on with; with the memory of before it all is as it was."""
    kept: Json = {}
    editor = launch("chat", kept)
    name = editor.new()
    for number in range(3):
        editor.says(name, f"number {number} {'q' * 100}")
    before = json.loads(json.dumps(kept))
    server.canned = [answer("chat", "SUMMARY")]
    assert "summarised now" in "".join(editor.says(name, "/compact the colours"))
    assert "the colours" in json.dumps(server.bodies[-1])
    assert "SUMMARY" == kept["memory"]["summary"]
    assert [] == editor.kinds("compaction_update")  # this client knows none
    editor.says(name, "on")
    assert_goes_on(server, summary=True)
    editor.close()
    for state, summary in ((kept, True), (before, False)):
        again = launch("chat", {})
        params = {"sessionId": name, "cwd": "/tmp", "mcpServers": [], "_meta": {"acpd.dev/state": state}}
        again.call("session/load", params)
        again.says(name, "on")
        assert_goes_on(server, summary=summary)
        params["_meta"] = {"acpd.dev/state": before}
        again.call("session/load", params)
        again.says(name, "on")
        assert_goes_on(server, summary=False)


def assert_goes_on(server: ModelServer, *, summary: bool) -> None:
    sent = json.dumps(server.bodies[-1]["messages"])
    assert [summary, not summary, False] == [text in sent for text in ("SUMMARY", "number 0", "/compact")]


def test_its_commands_are_announced(launch: Launch) -> None:
    """A client is told of `/compact` behind the answer to session/new."""
    editor = launch()
    editor.new()
    editor.until(lambda message: "available_commands_update" in json.dumps(message))
    (command,) = editor.kinds("available_commands_update")[-1]["availableCommands"]
    assert ("compact", "what matters in it") == (command["name"], command["input"]["hint"])


def values(result: Json) -> dict[str, str]:
    return {option["id"]: option["currentValue"] for option in result["configOptions"]}


@pytest.mark.e2e
def test_an_error_is_in_the_conversation_and_in_the_answer(launch: Launch, server: ModelServer) -> None:
    """A wrong key is told in the conversation, answered with -32000, and shown nowhere; the next prompt works."""
    editor = launch("chat")
    name = editor.new()
    server.canned = [http(401, {"error": {"message": f"Incorrect API key provided: {KEY}"}})]
    error = editor.prompt(name, "x")["error"]
    assert -32000 == error["code"]
    told = "".join(update["content"]["text"] for update in editor.kinds("agent_message_chunk"))
    assert "did not accept the key" in told
    assert KEY not in told + json.dumps(error)
    assert "well" in "".join(editor.says(name, "[[say well]]"))


@pytest.mark.e2e
def test_a_cancel_stops_the_model(launch: Launch, server: ModelServer) -> None:
    """A cancelled prompt is answered `cancelled`, and what was seen of its answer is remembered."""
    whole = answer("anthropic", "half of it")
    at = whole.index(b"event: content_block_stop")
    server.canned = [whole[:at] + STALL + whole[at:]]
    editor = launch("anthropic")
    name = editor.new()
    prompt = editor.begin(name, "x")
    editor.until(lambda message: "half of it" in json.dumps(message))
    editor.send({"method": "session/cancel", "params": {"sessionId": name}})
    assert {"stopReason": "cancelled"} == editor.answer(prompt)["result"]
    editor.says(name, "[[say on]]")
    assert "half of it" in json.dumps(server.bodies[-1])


@pytest.mark.e2e
@pytest.mark.parametrize("prompts", [[], ["[[say earlier]]", "[[tool nothing {}]]"]])
def test_what_was_said_before_a_kill_is_remembered(launch: Launch, server: ModelServer, prompts: list[str]) -> None:
    """After kill -9 in an answer the model knows what the user has seen of it, once, and after further restarts too."""
    kept: Json = {}
    editor = launch("chat", kept)
    name = editor.new()
    for prompt in prompts:
        editor.says(name, prompt)
    whole = answer("chat", "half of it")
    at = whole.index(b"\n\n", whole.index(b"half of it")) + 2
    server.canned = [whole[:at] + STALL + whole[at:]]
    editor.begin(name, "x")
    editor.until(lambda message: message.get("method") == "_acpd/state" and message["params"]["name"] == "saying")
    editor.process.kill()
    params = {"sessionId": name, "cwd": "/tmp", "mcpServers": [], "_meta": {"acpd.dev/state": kept}}
    for prompt in ("[[say on]]", "[[say further]]"):
        again = launch("chat", kept)
        again.call("session/load", params)
        again.says(name, prompt)
        assert 1 == json.dumps(server.bodies[-1]).count("half of it")
        assert kept["saying"] is None
        again.close()


@pytest.mark.e2e
def test_the_model_is_an_option(launch: Launch, server: ModelServer) -> None:
    """A model that the provider has not spoken of yet can be chosen too, and is asked from then on; what is none cannot."""
    server.silent = True
    editor = launch("anthropic")
    name = editor.new()
    wrong = editor.call("session/set_config_option", {"sessionId": name, "configId": "model", "value": "nonsense"})
    assert -32602 == wrong["error"]["code"]
    assert "the option model cannot be nonsense: it may be anthropic:" in wrong["error"]["message"]
    params = {"sessionId": name, "configId": "model", "value": "anthropic:claude-haiku-5-5"}
    assert "anthropic:claude-haiku-5-5" == values(editor.call("session/set_config_option", params)["result"])["model"]
    editor.says(name, "[[say x]]")
    assert "claude-haiku-5-5" == server.bodies[-1]["model"]


@pytest.mark.e2e
@pytest.mark.parametrize("dialect", ["chat", "anthropic", "gemini"])
def test_the_models_of_a_provider_are_offered(launch: Launch, dialect: str) -> None:
    """What the provider says that it has is in the option `model` a moment later, and a name that it has not is refused."""
    editor = launch(dialect)
    name = editor.new()
    provider = CHOSEN[dialect][0]
    update = editor.until(lambda message: f"{provider}:fake-model" in json.dumps(message))["params"]["update"]
    assert "config_option_update" == update["sessionUpdate"]
    params = {"sessionId": name, "configId": "model", "value": f"{provider}:fake-model"}
    assert f"{provider}:fake-model" == values(editor.call("session/set_config_option", params)["result"])["model"]
    editor.says(name, "[[say x]]")
    wrong = editor.call("session/set_config_option", {**params, "value": f"{provider}:another"})
    assert -32602 == wrong["error"]["code"]


def test_without_a_model_it_is_the_offline_agent(launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    """No model configured, no key, no Ollama: it says so, and follows the words of the offline agent."""
    with editors() as start:
        for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GOOGLE_API_KEY"):
            monkeypatch.delenv(name)
        editor = start(ENTRY)
        editor.answers["_acpd/state"] = lambda _: {"error": {"code": -32601, "message": "unknown"}}
        editor.initialize()
        session = editor.new()
        assert "hello" in "".join(editor.says(session, "say hello"))


@pytest.mark.e2e
def test_what_cannot_be_used_is_told(launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    """A configured model without its key is an error of the prompt that names the variable, and no crash."""
    monkeypatch.delenv("OPENAI_API_KEY")
    with editors() as start:
        editor = start([*ENTRY, "--model", "openai:gpt-5"])
        editor.answers["_acpd/state"] = lambda _: {"error": {"code": -32601, "message": "unknown"}}
        editor.initialize()
        error = editor.prompt(editor.new(), "x")["error"]
        assert -32000 == error["code"]
        assert "OPENAI_API_KEY" in error["message"]


def setup(tmp_path: Path, server: ModelServer) -> None:
    """What `acpd-agent --setup` writes."""
    folder = tmp_path / "home" / "config"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "keys.toml").touch(0o600)
    (folder / "keys.toml").write_text(f'MODEL_API_KEY = "{KEY}"\n')
    table = f'[agents.native]\nmodel = "openai:m"\nbase_url = "{server.url}/v1"\napi_key_env = "MODEL_API_KEY"\n'
    (folder / "acpd.toml").write_text(table)


@pytest.mark.parametrize(
    "before", ["nothing", *(pytest.param(name, marks=pytest.mark.e2e) for name in ("no key", "a wrong key"))]
)
def test_a_setup_reaches_the_agent_that_runs(
    launch: Launch, server: ModelServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, before: str
) -> None:
    """After a prompt without a model, without its key or with a wrong one, the same session works once the setup has been run.

    A prompt that was refused for its key is not in the model's memory when it is sent again.
    """
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GOOGLE_API_KEY"):
        monkeypatch.delenv(name)
    if before != "nothing":
        setup(tmp_path, server)
        keys = tmp_path / "home" / "config" / "keys.toml"
        keys.write_text('MODEL_API_KEY = "wrong"\n' if before == "a wrong key" else "")
        server.canned = [http(401, {"error": {"message": "no"}})]
    with editors() as start:
        editor = start(ENTRY)
        editor.answers["_acpd/state"] = lambda _: {"error": {"code": -32601, "message": "unknown"}}
        editor.initialize()
        name = editor.new()
        first = editor.prompt(name, "say before")
        assert (before == "nothing") == ("result" in first)
        assert before == "nothing" or first["error"]["code"] == -32000
        server.canned = []
        setup(tmp_path, server)
        assert "well" in "".join(editor.says(name, "[[say well]]"))
        assert f"Bearer {KEY}" == server.headers[-1]["authorization"]
        assert "say before" not in json.dumps(server.bodies[-1])


@pytest.mark.e2e
def test_session_new_is_answered_before_any_model_is_imported(launch: Launch) -> None:
    """session/new does not wait for the model's library: it is not there yet when the answer is."""
    editor = launch("anthropic")
    editor.new()
    maps = Path(f"/proc/{editor.process.pid}/maps").read_text()
    assert "pydantic_core" not in maps


@pytest.mark.e2e
def test_an_agent_that_waits_for_a_session_has_its_model(launch: Launch) -> None:
    """One that was started ahead imports its model's library before there is a session."""
    editor = launch("chat")
    maps, end = Path(f"/proc/{editor.process.pid}/maps"), time.monotonic() + PATIENCE
    while "pydantic_core" not in maps.read_text() and time.monotonic() < end:
        editor.call("session/close", {"sessionId": "none"})  # it goes on answering meanwhile
    assert "pydantic_core" in maps.read_text()


@pytest.mark.e2e
def test_the_end_of_the_client_ends_it_at_once(launch: Launch) -> None:
    """EOF ends the agent while it imports a model's library."""
    editor = launch("anthropic")
    editor.new()
    assert 0 == editor.close()


RECALL = {"terminal": True, "_meta": {"acpd.dev/tools": ["search", "list", "something newer"]}}


def test_earlier_sessions_are_offered_if_the_client_has_them(launch: Launch, server: ModelServer) -> None:
    """The tools that the client announces, in every mode and without a question; the text of its answer is the model's."""
    editor = launch("chat")
    editor.initialize(RECALL)
    asked: list[Json] = []

    def found(params: Json) -> Json:
        asked.append(params)
        return {"result": {"text": "Found 1 match: canary"}}

    editor.answers["_acpd/search"] = found
    editor.answers["_acpd/list"] = lambda _: {"error": {"code": -32602, "message": "there is no such thing"}}
    name = editor.new()
    editor.call("session/set_mode", {"sessionId": name, "modeId": "plan"})
    said = "".join(editor.says(name, '[[tool session_search {"query":"port","maxResults":3}]]'))
    assert "Found 1 match: canary" in said
    assert [{"sessionId": name, "arguments": {"query": "port", "maxResults": 3}}] == asked
    assert ["session_search port"] == [call["title"] for call in editor.kinds("tool_call")]
    assert "there is no such thing" in "".join(editor.says(name, "[[tool session_list {}]]"))
    assert "maxResults" in "".join(editor.says(name, '[[tool session_search {"query":"port","maxResults":0}]]'))
    offered = {tool["function"]["name"] for tool in server.bodies[0]["tools"]}
    assert {"session_search", "session_list"} == {each for each in offered if each.startswith("session_")}
    assert 1 == len(asked)


def test_no_earlier_sessions_without_acpd(launch: Launch, server: ModelServer) -> None:
    """A client that says nothing of them is offered nothing that would ask it."""
    editor = launch("chat")
    editor.says(editor.new(), "[[say hi]]")
    assert not [tool for tool in server.bodies[0]["tools"] if tool["function"]["name"].startswith("session_")]
