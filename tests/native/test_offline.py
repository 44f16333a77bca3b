"""The offline agent, as a process: what an editor sees of it, and what acpd does."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path

import jsonschema
import pytest

from acpd.api.connection import Connection
from acpd.native.offline import Offline
from acpd.native.script import BLOCK
from acpd.native.words import VERBS as TABLE
from acpd.peer import HIGH_WATER
from tests.support.paths import ROOT, SHARED
from tests.support.plain_editor import PATIENCE, Json, PlainEditor, editors

COMMAND = [sys.executable, "-m", "acpd.native.entry", "--offline"]
Launch = Callable[[], PlainEditor]


@pytest.fixture
def launch() -> Iterator[Launch]:
    with editors() as start:
        yield lambda: start(COMMAND)


@pytest.fixture
def editor(launch: Launch) -> PlainEditor:
    """An editor that is no acpd: `_acpd/state` is -32601 to it."""
    started = launch()
    started.answers["_acpd/state"] = lambda _: {"error": {"code": -32601, "message": "unknown"}}
    started.initialize()
    return started


@pytest.fixture
def session(editor: PlainEditor) -> str:
    """A session that has had its first turn."""
    name = editor.new()
    editor.prompt(name, "say hello")
    return name


def said(editor: PlainEditor, session: str, text: str) -> str:
    return "".join(editor.says(session, text))


def cancel(editor: PlainEditor, session: str) -> None:
    editor.send({"method": "session/cancel", "params": {"sessionId": session}})


def permit(option: str) -> Callable[[Json], Json]:
    return lambda _: {"result": {"outcome": {"outcome": "selected", "optionId": option}}}


def test_the_first_words_say_that_there_is_no_model(editor: PlainEditor) -> None:
    """The first turn says that no model is configured and how to use another agent; the second does not."""
    name = editor.new()
    first = said(editor, name, "say hello")
    assert first.startswith("(turn 1) No model is configured")
    assert "acpd run -- COMMAND" in first
    assert 'command = ["COMMAND", "ARG"]' in first
    assert first.endswith("hello\n")
    assert "(turn 2) hello\n" == said(editor, name, "say hello")


def test_the_same_words_get_the_same_answer(editor: PlainEditor) -> None:
    """It is deterministic: two sessions with the same prompts get the same updates."""
    heard: list[list[Json]] = []
    for _ in range(2):
        name = editor.new()
        said(editor, name, "think\nplan a|b\ntool t\n/slow 2 1\nwhat else")
        heard.append([params["update"] for params in editor.updates])
    assert heard[0] == heard[1]
    assert len(heard[0]) > 10


@pytest.mark.parametrize(
    ("script", "answer"),
    [
        ("say hello", "hello\n"),
        ("/say  hello\n\n  say you", "hello\nyou\n"),
        ("good morning", "You said: good morning\n"),
        ("think", "I have thought about it.\n"),
        ("tool", "I look at example.\n"),
        ("slow 3 1", "1 2 3 "),
        ("slow three", "I understand only `slow N [MS]`.\n"),
        ("stream 3 2", "0 xx1 xx2 xx"),
        ("title T", "This session is called: T\n"),
        ("", ""),
    ],
)
def test_each_line_is_a_verb(editor: PlainEditor, session: str, script: str, answer: str) -> None:
    """Lines are followed in order, with or without a slash; what is no verb is repeated."""
    assert "(turn 2) " + answer == said(editor, session, script)


def test_help_names_every_verb(editor: PlainEditor, session: str) -> None:
    """`help` and --help have the whole table."""
    shown = subprocess.run([*COMMAND, "--help"], capture_output=True, text=True, cwd=ROOT, check=True).stdout
    words = said(editor, session, "help")
    for verb in TABLE:
        assert verb in words
        assert verb in shown


def test_a_long_text_is_streamed(editor: PlainEditor, session: str) -> None:
    """A text comes in several chunks, and they are the text."""
    text = "word " * 40
    pieces = editor.says(session, f"say {text}")
    assert len(pieces) > 5
    assert f"(turn 2) {text.strip()}\n" == "".join(pieces)


def test_thoughts_plans_and_tool_calls(editor: PlainEditor, session: str) -> None:
    """Think sends thought chunks, plan the whole plan each time, tool one call that completes."""
    said(editor, session, "think deep\nplan a|b\ntool t")
    assert "deep" == "".join(update["content"]["text"] for update in editor.kinds("agent_thought_chunk"))
    assert [2, 2, 2] == [len(update["entries"]) for update in editor.kinds("plan")]
    assert ["pending", "in_progress", "completed"] == [
        update["status"] for update in editor.kinds("tool_call", "tool_call_update")
    ]


@pytest.mark.parametrize(
    ("outcome", "verdict", "status"),
    [
        ({"result": {"outcome": {"outcome": "selected", "optionId": "yes"}}}, "allowed", "completed"),
        ({"result": {"outcome": {"outcome": "selected", "optionId": "no"}}}, "refused", "failed"),
        ({"result": {"outcome": {"outcome": "selected", "optionId": "what"}}}, "refused", "failed"),
        ({"result": {"outcome": "yes"}}, "not answered in a way that I understand", "failed"),
        ({"result": None}, "not answered in a way that I understand", "failed"),
        ({"error": {"code": -32601, "message": "no such thing"}}, "not answered: no such thing", "failed"),
    ],
)
def test_only_a_clear_yes_is_one(editor: PlainEditor, session: str, outcome: Json, verdict: str, status: str) -> None:
    """An unknown option, a malformed answer or an error is not approved (ACP v1 T4)."""
    editor.answers["session/request_permission"] = lambda _: outcome
    assert f"(turn 2) It was {verdict}.\n" == said(editor, session, "ask")
    assert status == editor.kinds("tool_call_update")[-1]["status"]


def test_always_is_remembered(editor: PlainEditor, session: str) -> None:
    """After allow_always the session is not asked again; in the mode `code` it never is."""
    editor.answers["session/request_permission"] = permit("always")
    said(editor, session, "ask\nask")
    other = editor.new()
    editor.call("session/set_mode", {"sessionId": other, "modeId": "code"})
    said(editor, other, "ask")
    assert 1 == sum(request["method"] == "session/request_permission" for request in editor.requests)


@pytest.mark.parametrize("script", ["slow 1000 50", "think\nslow 1000", "ask", "stream 90000000 20"])
def test_cancel_ends_any_turn(editor: PlainEditor, session: str, script: str) -> None:
    """session/cancel ends the turn as `cancelled`, open tool calls fail, and the next turn works."""
    begun = editor.begin(session, script)
    wanted = "session/request_permission" if script == "ask" else "session/update"
    editor.until(lambda message: message.get("method") == wanted)
    cancel(editor, session)
    editor.updates.clear()
    assert {"stopReason": "cancelled"} == editor.answer(begun)["result"]
    assert (["failed"] if script == "ask" else []) == [update["status"] for update in editor.kinds("tool_call_update")]
    assert "(turn 3) on\n" == said(editor, session, "say on")


def test_cancel_before_the_first_step(editor: PlainEditor, session: str) -> None:
    """A cancel in the same breath as the prompt is not lost."""
    prompt = {"sessionId": session, "prompt": [{"type": "text", "text": "slow 1000"}]}
    lines = [
        {"jsonrpc": "2.0", "id": "p", "method": "session/prompt", "params": prompt},
        {"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": session}},
    ]
    assert editor.process.stdin is not None
    editor.process.stdin.write(b"".join(json.dumps(line).encode() + b"\n" for line in lines))
    assert {"stopReason": "cancelled"} == editor.until(lambda message: message.get("id") == "p")["result"]


def test_a_cancelled_permission_ends_the_turn(editor: PlainEditor, session: str) -> None:
    """The outcome `cancelled` alone, its session/cancel still under way, ends the turn as `cancelled`."""
    editor.answers["session/request_permission"] = lambda _: {"result": {"outcome": {"outcome": "cancelled"}}}
    assert {"stopReason": "cancelled"} == editor.prompt(session, "ask\nsay never")["result"]
    cancel(editor, session)
    assert "(turn 3) on\n" == said(editor, session, "say on")


def test_a_late_answer_to_a_permission_is_dropped(editor: PlainEditor, session: str) -> None:
    """The answer that comes after the cancelled turn changes nothing."""
    begun = editor.begin(session, "ask")
    asked = editor.until(lambda message: message.get("method") == "session/request_permission")
    cancel(editor, session)
    editor.answer(begun)
    editor.send({"id": asked["id"], "result": {"outcome": {"outcome": "cancelled"}}})
    assert "(turn 3) on\n" == said(editor, session, "say on")


def test_request_cancel_of_a_prompt(editor: PlainEditor, session: str) -> None:
    """$/cancel_request for a prompt counts as session/cancel; for an unknown id it is nothing."""
    begun = editor.begin(session, "slow 1000 50")
    editor.until(lambda message: message.get("method") == "session/update")
    for identifier in (None, "nobody", begun):
        editor.send({"method": "$/cancel_request", "params": {"requestId": identifier}})
    assert {"stopReason": "cancelled"} == editor.answer(begun)["result"]


def test_one_turn_at_a_time(editor: PlainEditor, session: str) -> None:
    """A second prompt in a session with a turn is refused; another session goes on."""
    begun = editor.begin(session, "slow 1000 50")
    assert -32600 == editor.prompt(session, "say b")["error"]["code"]
    assert said(editor, editor.new(), "say b").endswith("b\n")
    cancel(editor, session)
    editor.answer(begun)


def test_modes_and_options_are_in_step(editor: PlainEditor, session: str) -> None:
    """`set_mode` moves the option too, `set_config_option` the mode; the unknown is -32602 and changes nothing (O2, O4, O6)."""
    assert {} == editor.call("session/set_mode", {"sessionId": session, "modeId": "code"})["result"]
    choice = {"sessionId": session, "configId": "pace", "value": "calm"}
    options = editor.call("session/set_config_option", choice)["result"]["configOptions"]
    assert {"mode": "code", "pace": "calm"} == {option["id"]: option["currentValue"] for option in options}
    assert "code" == editor.kinds("config_option_update")[-1]["configOptions"][0]["currentValue"]
    editor.call("session/set_config_option", {"sessionId": session, "configId": "mode", "value": "ask"})
    for wrong in ({"configId": "pace", "value": "x"}, {"configId": "x", "value": "calm"}):
        assert -32602 == editor.call("session/set_config_option", {"sessionId": session} | wrong)["error"]["code"]
    assert -32602 == editor.call("session/set_mode", {"sessionId": session, "modeId": "x"})["error"]["code"]
    loaded = editor.call("session/load", {"sessionId": session, "cwd": "/tmp", "mcpServers": []})["result"]
    assert "ask" == loaded["modes"]["currentModeId"]
    assert "ask" == editor.kinds("current_mode_update")[-1]["currentModeId"]


def test_new_load_and_resume_name_the_commands(editor: PlainEditor) -> None:
    """available_commands_update comes after the answer that names the session, never before it."""
    name = editor.new()
    assert [] == editor.updates
    params = {"sessionId": name, "cwd": "/tmp", "mcpServers": []}
    for method in ("session/load", "session/resume"):
        editor.until(lambda message: message.get("method") == "session/update")
        assert ["available_commands_update"] == [params["update"]["sessionUpdate"] for params in editor.updates]
        editor.updates.clear()
        assert "modes" in editor.call(method, params)["result"]


def test_title_and_usage(editor: PlainEditor) -> None:
    """The first turn names the session after its prompt; each turn reports its usage."""
    name = editor.new()
    said(editor, name, "say hello")
    assert ["say hello"] == [update["title"] for update in editor.kinds("session_info_update")]
    first = editor.kinds("usage_update")[0]
    said(editor, name, "say more\ntitle Other")
    assert ["Other"] == [update["title"] for update in editor.kinds("session_info_update")]
    assert 0 < first["used"] < editor.kinds("usage_update")[0]["used"] <= first["size"]


def test_alone_it_replays_what_it_remembers(editor: PlainEditor, session: str) -> None:
    """For an editor load replays the conversation and then answers; resume replays nothing."""
    said(editor, session, "tool t\nstream 3 2")
    editor.updates.clear()
    params = {"sessionId": session, "cwd": "/tmp", "mcpServers": []}
    assert "result" in editor.call("session/load", params)
    prompts = [update["content"]["text"] for update in editor.kinds("user_message_chunk")]
    assert ["say hello", "tool t\nstream 3 2"] == prompts
    assert "completed" == editor.kinds("tool_call_update")[-1]["status"]
    texts = "".join(update["content"]["text"] for update in editor.kinds("agent_message_chunk"))
    assert "(turn 2) I look at t.\n(3 updates of 2 characters)\n" in texts
    editor.until(lambda message: message.get("method") == "session/update")
    editor.updates.clear()
    assert "result" in editor.call("session/resume", params)
    assert [] == editor.updates


def test_alone_an_unknown_session_is_unknown(editor: PlainEditor) -> None:
    """Without a memory brought by the client, load and resume of an unknown session are -32002."""
    params = {"sessionId": "x", "cwd": "/tmp", "mcpServers": []}
    for method in ("session/load", "session/resume", "session/prompt"):
        error = editor.call(method, params | {"prompt": [{"type": "text", "text": "a"}]})["error"]
        assert (-32002, {"sessionId": "x"}) == (error["code"], error["data"])


def test_the_turn_counter_is_kept_by_acpd(launch: Launch) -> None:
    """The memory goes out by `_acpd/state` in each turn and is found again in `_meta` by a new process."""
    kept: Json = {}

    def keep(params: Json) -> Json:
        kept[params["name"]] = params["value"]
        return {"result": {}}

    first = launch()
    first.answers["_acpd/state"] = keep
    first.initialize()
    name = first.new()
    said(first, name, "say a")
    first.call("session/set_mode", {"sessionId": name, "modeId": "code"})
    said(first, name, "say b")
    assert (2, "code") == (kept["offline"]["turns"], kept["choices"]["mode"])
    first.process.kill()
    for method in ("session/load", "session/resume"):
        second = launch()
        second.answers["_acpd/state"] = keep
        second.initialize()
        params: Json = {"sessionId": name, "cwd": "/tmp", "mcpServers": [], "_meta": {"acpd.dev/state": dict(kept)}}
        assert "code" == second.call(method, params)["result"]["modes"]["currentModeId"]
        assert [] == second.updates
        assert f"(turn {params['_meta']['acpd.dev/state']['offline']['turns'] + 1}) c\n" == said(second, name, "say c")
    assert 4 == kept["offline"]["turns"]


def test_the_counter_is_out_before_the_turn_says_anything(launch: Launch) -> None:
    """The new count leaves before the first update, so that it is kept whatever becomes of the turn."""
    editor = launch()
    editor.initialize()
    name = editor.new()
    editor.until(lambda message: message.get("method") == "session/update")
    editor.begin(name, "slow 1000")
    first = editor.next()
    assert ("_acpd/state", 1) == (first["method"], first["params"]["value"]["turns"])


def test_a_client_that_keeps_the_state_keeps_the_conversation(launch: Launch) -> None:
    """Behind acpd nothing is replayed: acpd has it, and here it would only take memory."""
    editor = launch()
    editor.answers["_acpd/state"] = lambda _: {"result": {}}
    editor.initialize()
    name = editor.new()
    said(editor, name, "say a")
    editor.updates.clear()
    editor.call("session/load", {"sessionId": name, "cwd": "/tmp", "mcpServers": []})
    assert [] == editor.updates


def test_a_memory_that_cannot_be_read_is_no_memory(editor: PlainEditor, session: str) -> None:
    """Malformed state counts as absent: the session's own memory goes on."""
    for state in (None, 7, {"offline": 7}, {"offline": {"turns": "many"}}, {"other": 1}):
        params = {"sessionId": session, "cwd": "/tmp", "_meta": {"acpd.dev/state": state}}
        assert "result" in editor.call("session/resume", params)
    assert "(turn 2) a\n" == said(editor, session, "say a")


def test_closing_ends_the_turn(editor: PlainEditor, session: str) -> None:
    """session/close answers the running prompt `cancelled`; the session can be loaded again."""
    begun = editor.begin(session, "slow 1000 50")
    answers = {editor.start("session/close", {"sessionId": session}): {}, begun: {"stopReason": "cancelled"}}
    while answers:
        done = editor.until(lambda message: "method" not in message)
        assert answers.pop(done["id"]) == done["result"]
    assert "result" in editor.call("session/load", {"sessionId": session, "cwd": "/tmp", "mcpServers": []})


def test_only_the_last_text_is_the_script(editor: PlainEditor, session: str) -> None:
    """Text before it, such as the context of a primed session, is not followed; other blocks are counted."""
    image = {"type": "image", "data": "AA==", "mimeType": "image/png"}
    blocks = [{"type": "text", "text": "say no"}, image, {"type": "text", "text": "say yes"}]
    editor.updates.clear()
    editor.call("session/prompt", {"sessionId": session, "prompt": blocks})
    texts = "".join(update["content"]["text"] for update in editor.kinds("agent_message_chunk"))
    assert "(turn 2) yes\nAnd 1 that is not text.\n" == texts


@pytest.mark.parametrize(
    ("method", "params", "code"),
    [
        ("session/new", {"cwd": "tmp", "mcpServers": []}, -32602),
        ("session/new", {"cwd": "/tmp"}, -32602),
        ("session/prompt", {"sessionId": "x", "prompt": []}, -32602),
        ("session/list", {}, -32601),
        ("_nobody/knows", {}, -32601),
        ("initialize", {"protocolVersion": "1"}, -32602),
    ],
)
def test_what_is_wrong_is_answered(editor: PlainEditor, method: str, params: Json, code: int) -> None:
    """Wrong params and unknown methods are one error each, and the connection goes on."""
    assert code == editor.call(method, params)["error"]["code"]
    assert said(editor, editor.new(), "say on").endswith("on\n")


def test_initialize_comes_first(launch: Launch) -> None:
    """Any request before initialize is -32600; a line that is no JSON is -32700 with id null (ACP v1 I7)."""
    editor = launch()
    assert -32600 == editor.call("session/new", {"cwd": "/tmp", "mcpServers": []})["error"]["code"]
    assert editor.process.stdin is not None
    editor.process.stdin.write(b"{nonsense\n")
    answer = editor.next()
    assert (None, -32700) == (answer["id"], answer["error"]["code"])
    assert 1 == editor.initialize()["protocolVersion"]


def test_it_ends_with_its_input(editor: PlainEditor, session: str) -> None:
    """At EOF it exits 0, in the middle of a turn too."""
    editor.begin(session, "slow 1000")
    editor.until(lambda message: message.get("method") == "session/update")
    assert 0 == editor.close()


async def test_a_client_that_does_not_read_costs_no_memory() -> None:
    """A stream waits while the pipe and one buffer are full, and goes on when they are read."""
    there, here = os.pipe()
    os.set_blocking(there, False)
    agent = Connection(Offline())
    writer, _ = await asyncio.get_running_loop().connect_write_pipe(lambda: agent.peer, os.fdopen(here, "wb", buffering=0))
    agent.peer.use_writer(writer)
    heard: list[Json] = []

    async def ask(method: str, params: Json) -> None:
        line = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
        agent.peer.data_received(line.encode() + b"\n")
        await asyncio.sleep(0)
        with contextlib.suppress(BlockingIOError):
            heard.append(json.loads(os.read(there, 1 << 16).partition(b"\n")[0]))

    await ask("initialize", {"protocolVersion": 1})
    await ask("session/new", {"cwd": "/tmp", "mcpServers": []})
    name = heard[-1]["result"]["sessionId"]
    await ask("session/prompt", {"sessionId": name, "prompt": [{"type": "text", "text": "stream 200000 20"}]})
    while not agent.peer.paused:
        await asyncio.sleep(0)
    for _ in range(1000):
        await asyncio.sleep(0)
    assert writer.get_write_buffer_size() < HIGH_WATER + 2 * BLOCK
    assert 1 == agent.peer.open_requests
    lines = 0
    while lines < 200_000:
        with contextlib.suppress(BlockingIOError):
            lines += os.read(there, 1 << 16).count(b"\n")
        await asyncio.sleep(0)
    await agent.finish()
    os.close(there)


def test_everything_it_sends_validates(editor: PlainEditor) -> None:
    """initialize, session/new and all updates are valid by the protocol's schema."""
    definitions = json.loads((SHARED / "acp-schema/schema.unstable.json").read_text())["$defs"]

    def valid(name: str, value: Json) -> bool:
        return bool(jsonschema.Draft202012Validator({"$ref": f"#/$defs/{name}", "$defs": definitions}).is_valid(value))

    assert valid("InitializeResponse", editor.initialize())
    answer = editor.call("session/new", {"cwd": "/tmp", "mcpServers": []})["result"]
    assert valid("NewSessionResponse", answer)
    editor.answers["session/request_permission"] = permit("yes")
    name = answer["sessionId"]
    editor.call("session/set_config_option", {"sessionId": name, "configId": "mode", "value": "code"})
    editor.call("session/set_mode", {"sessionId": name, "modeId": "ask"})
    assert {"stopReason": "end_turn"} == editor.prompt(name, "think\nplan\ntool\nask\nslow 2 1\ntitle T\nhelp")["result"]
    kinds = {params["update"]["sessionUpdate"] for params in editor.updates}
    assert len(kinds) == 10
    assert [] == [params for params in editor.updates if not valid("SessionNotification", params)]
    (asked,) = [each["params"] for each in editor.requests if each["method"] == "session/request_permission"]
    assert valid("RequestPermissionRequest", asked)
    assert not valid("SessionNotification", {"sessionId": name, "update": {"sessionUpdate": "plan"}})


def test_the_command_line() -> None:
    """--version and --help end at once; an unknown argument is 2; without --offline it says that there is no model yet."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "acpd.native.entry", *arguments]
        return subprocess.run(
            command, capture_output=True, text=True, cwd=ROOT, timeout=PATIENCE, stdin=subprocess.PIPE, check=False
        )

    assert f"acpd-agent {version('acpd')}\n" == run("--version").stdout
    assert "usage: acpd-agent" in run("--help").stdout
    assert (2, "") == (run("--model").returncode, run("--model").stdout)
    assert "--model" in run("--model").stderr


def test_without_offline_it_is_the_same_program() -> None:
    """It answers before it knows whether there is a model, and says nothing on stderr."""
    ask = b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":1}}\n'
    done = subprocess.run([sys.executable, "-m", "acpd.native.entry"], input=ask, capture_output=True, cwd=ROOT, check=True)
    assert "acpd-agent" == json.loads(done.stdout)["result"]["agentInfo"]["name"]
    assert b"" == done.stderr


def test_files_serve_as_well_as_pipes(tmp_path: Path) -> None:
    """Input and output may be files: what was asked is answered, then it ends."""
    ask = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": 1}}
    (tmp_path / "in").write_text(json.dumps(ask) + "\n")
    with (tmp_path / "in").open("rb") as stdin, (tmp_path / "out").open("wb") as stdout:
        done = subprocess.run(COMMAND, stdin=stdin, stdout=stdout, cwd=ROOT, timeout=PATIENCE, check=False)
    assert 0 == done.returncode
    assert 1 == json.loads((tmp_path / "out").read_text())["result"]["protocolVersion"]


def test_it_starts_without_what_is_heavy() -> None:
    """Start-up time is a feature: after the import none of these modules is loaded."""
    code = "import acpd.native.offline, sys; print(*sys.modules)"
    loaded = set(
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True).stdout.split()
    )
    heavy = {"mcp", "pydantic", "structlog", "sqlite3", "aiofiles", "argparse", "importlib.metadata", "rich", "platformdirs"}
    assert set() == heavy & loaded
