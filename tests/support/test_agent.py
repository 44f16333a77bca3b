"""The scriptable agent does what its table of verbs says: other tests lean on it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import jsonschema
import pytest

from tests.support.agent import read_wire
from tests.support.agent_verbs import VERBS
from tests.support.paths import ROOT, SHARED
from tests.support.plain_editor import PATIENCE, Json, PlainEditor, editors
from tests.support.proc import alive

Launch = Callable[..., PlainEditor]


@pytest.fixture
def launch() -> Iterator[Launch]:
    with editors() as start:
        yield lambda *options, how=("-m", "tests.support.agent"): start([sys.executable, *how, *options])


@pytest.fixture
def editor(launch: Launch) -> PlainEditor:
    started = launch()
    started.initialize()
    return started


def test_the_agent_runs_by_path_and_ends_well_with_its_input(launch: Launch) -> None:
    """Run by path it is the same program, and it exits 0 when its input ends."""
    editor = launch(how=(str(ROOT / "tests/support/agent.py"),))
    assert 1 == editor.initialize()["protocolVersion"]
    assert 0 == editor.close()


def test_a_hanging_turn_does_not_keep_the_agent(editor: PlainEditor) -> None:
    """The end of its input ends it, whatever a turn does."""
    editor.begin(editor.new(), "deaf\nsay on\nhang")
    editor.until(lambda message: message.get("method") == "session/update")
    assert 0 == editor.close()


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("say hello world", ["hello world"]),
        ("chunks 3", ["c0 ", "c1 ", "c2 "]),
        ("slow 2 1", ["c0 ", "c1 "]),
        ("sleep 1\nsay a\nsay b", ["a", "b"]),
        ("think hm\nsay done", ["done"]),
        ("tool x\nsay read", ["read"]),
        ("what is this", ["echo: what is this"]),
        ("", ["echo: "]),
        ("big 100000", ["b" * 100_000]),
        ("config verbose true\nmode code\nsay ok", ["ok"]),
        ("history", ["history 1"]),
        ("env NO_SUCH", ["NO_SUCH=None"]),
        ("where", [f"process {ROOT} session /tmp"]),
        ("servers", ["servers "]),
    ],
)
def test_a_line_of_the_prompt_is_one_verb(editor: PlainEditor, script: str, said: list[str]) -> None:
    """Lines are run in order, and a line that is no verb is echoed."""
    assert said == editor.says(editor.new(), script)


def test_chunks_with_id_are_one_message(editor: PlainEditor) -> None:
    """All chunks of `chunks N with-id` have one messageId; those of the next have another."""
    editor.says(editor.new(), "chunks 2 with-id\nchunks 2 with-id\nchunks 1")
    ids = [update.get("messageId") for update in editor.kinds("agent_message_chunk")]
    assert ids[0] == ids[1] != ids[2] == ids[3]
    assert ids[4] is None


def test_a_tool_call_is_made_once_and_ends(editor: PlainEditor) -> None:
    """`tool` is one tool_call and updates to completed; `parallel` has several open at once."""
    session = editor.new()
    editor.says(session, "tool a.txt")
    calls = editor.kinds("tool_call", "tool_call_update")
    assert [("tool_call", "pending"), ("tool_call_update", "in_progress"), ("tool_call_update", "completed")] == [
        (update["sessionUpdate"], update["status"]) for update in calls
    ]
    assert 1 == len({update["toolCallId"] for update in calls})
    editor.says(session, "parallel 3")
    order = [update["toolCallId"] for update in editor.kinds("tool_call", "tool_call_update")]
    assert order[:3] == order[3:6] == order[:5:-1]
    assert 3 == len(set(order))


def test_a_plan_is_always_complete(editor: PlainEditor) -> None:
    """`plan A|B` sends the whole list each time, to all completed (ACP v1 agent-plan)."""
    editor.says(editor.new(), "plan a|b")
    states = [[entry["status"] for entry in update["entries"]] for update in editor.kinds("plan")]
    assert [["in_progress", "pending"], ["completed", "in_progress"], ["completed", "completed"]] == states


def test_the_small_updates_have_their_fields(editor: PlainEditor) -> None:
    """commands, title, mode, config, usage, image, think and unknown send the update of their kind."""
    editor.says(editor.new(), "commands\ntitle T\nmode code\nconfig model large\nusage 7\nimage\nthink t\nunknown")
    kinds = [params["update"]["sessionUpdate"] for params in editor.updates]
    assert [
        "available_commands_update",
        "session_info_update",
        "current_mode_update",
        "config_option_update",
        "usage_update",
        "agent_message_chunk",
        "agent_thought_chunk",
        "from_the_future",
    ] == kinds
    assert "large" == editor.kinds("config_option_update")[0]["configOptions"][0]["currentValue"]
    assert "image" == editor.kinds("agent_message_chunk")[0]["content"]["type"]


def test_an_update_is_sent_byte_for_byte(launch: Launch, tmp_path: Path) -> None:
    """`update JSON` and `raw JSON` leave the spelling of their text alone; the wire file has each line."""
    editor = launch("--wire", str(tmp_path / "wire"))
    editor.initialize()
    session = editor.new()
    text = '{"content":{"type":"text","text":"\\u0041"}, "sessionUpdate":"agent_message_chunk","n":1.50e+2}'
    raw = '{"jsonrpc":"2.0","method":"_test/raw","params":{"s":"$SESSION"}}'
    editor.says(session, f"update {text}\nraw {raw}")
    got, wrote = read_wire(tmp_path / "wire")
    assert (
        f'{{"jsonrpc":"2.0","method":"session/update","params":{{"sessionId":"{session}","update":{text}}}}}'.encode() in wrote
    )
    assert raw.replace("$SESSION", session).encode() in wrote
    assert ["initialize", "session/new", "session/prompt"] == [json.loads(line)["method"] for line in got]


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        ({"result": {"outcome": {"outcome": "selected", "optionId": "yes"}}}, "chose yes"),
        ({"result": {"outcome": {"outcome": "selected", "optionId": "no"}}}, "chose no"),
        ({"result": {"outcome": {"outcome": "cancelled"}}}, "cancelled"),
        ({"error": {"code": -32603, "message": "x"}}, "error -32603"),
    ],
)
@pytest.mark.parametrize("form", ["", " diff", " bare", " four"])
def test_ask_says_which_option_was_chosen(editor: PlainEditor, outcome: Json, said: str, form: str) -> None:
    """A permission request comes back as words."""
    editor.answers["session/request_permission"] = lambda _: outcome
    assert [said] == editor.says(editor.new(), f"ask{form}")
    (request,) = editor.requests
    assert (4 if form == " four" else 2) == len(request["params"]["options"])


def test_a_withdrawn_question_says_what_came_back(editor: PlainEditor) -> None:
    """`withdraw` sends $/cancel_request for its own request (ACP v1 request-cancellation)."""
    begun = editor.begin(editor.new(), "withdraw 1")
    note = editor.until(lambda message: message.get("method") == "$/cancel_request")
    editor.send({"id": note["params"]["requestId"], "error": {"code": -32800, "message": "cancelled"}})
    editor.answer(begun)
    assert "error -32800" == editor.kinds("agent_message_chunk")[0]["content"]["text"]


def test_request_ids_are_text_when_asked(launch: Launch) -> None:
    """`--ids string` makes the agent's own request ids strings."""
    editor = launch("--ids", "string")
    editor.initialize()
    editor.answers["session/request_permission"] = lambda _: {"result": {"outcome": {"outcome": "cancelled"}}}
    editor.says(editor.new(), "ask")
    assert "agent-1" == editor.requests[0]["id"]


def test_files_and_terminals_are_the_clients(editor: PlainEditor) -> None:
    """read, write, run and elicit use the client's methods and say what came back."""
    editor.answers = {
        "fs/read_text_file": lambda params: {"result": {"content": f"text of {params['path']}"}},
        "fs/write_text_file": lambda _: {"result": {}},
        "terminal/create": lambda _: {"result": {"terminalId": "t1"}},
        "terminal/wait_for_exit": lambda _: {"result": {"exitCode": 3}},
        "terminal/output": lambda _: {"result": {"output": "out\n", "truncated": False}},
        "terminal/release": lambda _: {"result": {}},
        "elicitation/create": lambda _: {"result": {"action": "accept", "content": {"name": "n"}}},
    }
    session = editor.new()
    assert ["text of /a", "wrote /b", "exit 3: out"] == editor.says(session, "read /a\nwrite /b c d\nrun false")
    assert ['accept {"name": "n"}', 'accept {"name": "n"}'] == editor.says(session, "elicit\nelicit url")
    assert "c d" == editor.requests[1]["params"]["content"]
    assert ["elicitation/complete"] == [note["method"] for note in editor.notes]


def test_what_the_client_has_not_is_not_called(launch: Launch) -> None:
    """Without the capability no fs/, terminal/ or elicitation/ request is made (ACP v1 F1, X1, E1)."""
    editor = launch()
    editor.initialize({})
    said = editor.says(editor.new(), "read /a\nwrite /a b\nrun ls\nelicit")
    assert ["no fs", "no fs", "no terminal", "no elicitation by form"] == said
    assert [] == editor.requests


def test_a_failed_request_fails_the_prompt(editor: PlainEditor) -> None:
    """An error of the client's is in the prompt's error."""
    editor.answers["fs/read_text_file"] = lambda _: {"error": {"code": -32002, "message": "gone"}}
    assert "fs/read_text_file: -32002 gone" == editor.prompt(editor.new(), "read /a")["error"]["message"]


@pytest.mark.parametrize("script", ["slow 1000 10", "say a\nhang", "say a\nsleep 100000"])
def test_cancel_ends_a_turn(editor: PlainEditor, script: str) -> None:
    """session/cancel ends the turn as `cancelled`, and the next one works."""
    session = editor.new()
    begun = editor.begin(session, script)
    editor.until(lambda message: message.get("method") == "session/update")
    editor.send({"method": "session/cancel", "params": {"sessionId": session}})
    assert {"stopReason": "cancelled"} == editor.answer(begun)["result"]
    assert ["next"] == editor.says(session, "say next")


def test_cancel_with_a_question_open(editor: PlainEditor) -> None:
    """The agent waits for the answer that it is owed, fails its tool call, and ends `cancelled`."""
    session = editor.new()
    begun = editor.begin(session, "ask")
    asked = editor.until(lambda message: message.get("method") == "session/request_permission")
    editor.send({"method": "session/cancel", "params": {"sessionId": session}})
    editor.send({"id": asked["id"], "result": {"outcome": {"outcome": "cancelled"}}})
    assert {"stopReason": "cancelled"} == editor.answer(begun)["result"]
    assert "failed" == editor.kinds("tool_call_update")[-1]["status"]


def test_a_request_cancel_counts_as_a_cancel(editor: PlainEditor) -> None:
    """$/cancel_request for the prompt ends the turn as `cancelled`."""
    begun = editor.begin(editor.new(), "say a\nhang")
    editor.until(lambda message: message.get("method") == "session/update")
    editor.send({"method": "$/cancel_request", "params": {"requestId": begun}})
    assert {"stopReason": "cancelled"} == editor.answer(begun)["result"]


def test_a_cancelled_terminal_is_killed_and_released(editor: PlainEditor) -> None:
    """A cancel while a command runs kills and releases its terminal."""
    editor.answers = {"terminal/create": lambda _: {"result": {"terminalId": "t1"}}}
    editor.answers |= {name: lambda _: {"result": {}} for name in ("terminal/kill", "terminal/release")}
    session = editor.new()
    begun = editor.begin(session, "run sleep 100")
    editor.until(lambda message: message.get("method") == "terminal/wait_for_exit")
    editor.send({"method": "session/cancel", "params": {"sessionId": session}})
    assert {"stopReason": "cancelled"} == editor.answer(begun)["result"]
    assert ["terminal/kill", "terminal/release"] == [request["method"] for request in editor.requests[2:]]


def test_a_deaf_turn_goes_on(editor: PlainEditor) -> None:
    """After `deaf` a cancel changes nothing."""
    session = editor.new()
    begun = editor.begin(session, "deaf\nsay a\nsleep 30\nsay b")
    editor.until(lambda message: message.get("method") == "session/update")
    editor.send({"method": "session/cancel", "params": {"sessionId": session}})
    assert {"stopReason": "end_turn"} == editor.answer(begun)["result"]
    assert "b" == editor.kinds("agent_message_chunk")[-1]["content"]["text"]


def test_a_late_update_comes_after_the_answer(editor: PlainEditor) -> None:
    """`late` sends its text after the end of the turn."""
    session = editor.new()
    assert ["now"] == editor.says(session, "late 1 later\nsay now")
    found = editor.until(lambda message: message.get("method") == "session/update")
    assert "later" == found["params"]["update"]["content"]["text"]


def test_failing_stopping_and_dying(editor: PlainEditor) -> None:
    """Fail answers an error, stop chooses the stop reason, a bad script is an error, die exits with its code."""
    session = editor.new()
    assert {"code": -32000, "message": "no key"} == editor.prompt(session, "fail -32000 no key")["error"]
    assert {"stopReason": "max_tokens"} == editor.prompt(session, "stop max_tokens")["result"]
    assert -32602 == editor.prompt(session, "chunks many")["error"]["code"]
    editor.updates.clear()
    editor.begin(session, "die 7 after 2")
    with pytest.raises(EOFError):
        editor.until(lambda _: False)
    assert 2 == len(editor.updates)
    assert 7 == editor.process.wait(PATIENCE)


def test_dying_at_a_method(launch: Launch) -> None:
    """`--die-at METHOD` exits before it answers that method."""
    editor = launch("--die-at", "initialize", "--die-code", "4")
    with pytest.raises(EOFError):
        editor.initialize()
    assert 4 == editor.process.wait(PATIENCE)


def test_sessions_outlive_the_agent_with_a_state_file(launch: Launch, tmp_path: Path) -> None:
    """With --state a new process loads the session: every update again, in order, then the answer with its mode."""
    first = launch("--state", str(tmp_path / "state"))
    first.initialize()
    session = first.new()
    first.says(session, "say a\ntool b\nmode code\ntitle T")
    seen = [params["update"] for params in first.updates]
    first.process.kill()
    second = launch("--state", str(tmp_path / "state"))
    second.initialize()
    loaded = second.call("session/load", {"sessionId": session, "cwd": "/tmp", "mcpServers": []})
    assert "code" == loaded["result"]["modes"]["currentModeId"]
    user = {"sessionUpdate": "user_message_chunk", "content": {"type": "text", "text": "say a\ntool b\nmode code\ntitle T"}}
    assert [user, *seen] == [params["update"] for params in second.updates]
    assert ["T"] == [row["title"] for row in second.call("session/list", {})["result"]["sessions"]]
    second.updates.clear()
    assert "result" in second.call("session/resume", {"sessionId": session, "cwd": "/tmp"})
    assert [] == second.updates


def test_without_a_state_file_a_new_agent_knows_nothing(launch: Launch) -> None:
    """Otherwise sessions end with the process: -32002."""
    editor = launch()
    editor.initialize()
    assert -32002 == editor.call("session/load", {"sessionId": "s1", "cwd": "/tmp", "mcpServers": []})["error"]["code"]


def test_forgotten_sessions_cannot_be_loaded(editor: PlainEditor) -> None:
    """After `forget` load and resume answer -32002, and a prompt still works."""
    session = editor.new()
    editor.prompt(session, "forget")
    params = {"sessionId": session, "cwd": "/tmp", "mcpServers": []}
    assert [-32002, -32002] == [editor.call(f"session/{name}", params)["error"]["code"] for name in ("load", "resume")]
    assert [] == editor.call("session/list", {})["result"]["sessions"]
    assert ["here"] == editor.says(session, "say here")


def test_the_counter_is_kept_by_the_client(editor: PlainEditor) -> None:
    """Counter lives in `_acpd/state` and comes back in `_meta` of load and resume, nowhere else."""
    kept: Json = {}

    def keep(params: Json) -> Json:
        kept[params["name"]] = params["value"]
        return {"result": {}}

    editor.answers["_acpd/state"] = keep
    session = editor.new()
    assert ["counter 1 kept"] == editor.says(session, "counter")
    assert ["counter 2 kept", "x kept"] == editor.says(session, 'counter\nstate x {"a": 1}')
    assert {"counter": 2, "x": {"a": 1}} == kept
    params = {"sessionId": session, "cwd": "/tmp", "mcpServers": [], "_meta": {"acpd.dev/state": {"counter": 40}}}
    editor.call("session/resume", params)
    assert ["counter 41 kept"] == editor.says(session, "counter")
    del params["_meta"]
    editor.call("session/resume", params)
    assert ["counter 1 kept"] == editor.says(session, "counter")


def test_extensions_both_ways(editor: PlainEditor) -> None:
    """Ext and note call the client; `_test/echo` is answered; an unknown method is -32601; notifications are kept."""
    editor.answers["_x/y"] = lambda params: {"result": {"got": params}}
    editor.answers["_x/z"] = lambda _: {"error": {"code": -32601, "message": "no"}}
    session = editor.new()
    assert ['{"got": {"a": 1}}', "error -32601"] == editor.says(session, 'ext _x/y {"a":1}\next _x/z\nnote _x/n {}')
    assert ["_x/n"] == [note["method"] for note in editor.notes]
    assert {"echo": {"b": 2}} == editor.call("_test/echo", {"b": 2})["result"]
    assert -32601 == editor.call("_nobody/knows", {})["error"]["code"]
    editor.send({"method": "_test/hello", "params": {"c": 3}})
    assert ['_test/hello {"c":3}'] == editor.says(session, "notes")


@pytest.mark.parametrize("name", ["load", "resume", "fork", "list", "close", "delete"])
def test_a_capability_that_is_off_is_not_announced_and_not_there(launch: Launch, name: str) -> None:
    """`--no-X` takes the capability and its method away; `--bare --X` leaves only that one."""
    without, alone = launch(f"--no-{name}"), launch("--bare", f"--{name}")
    for editor, there in ((without, False), (alone, True)):
        announced = editor.initialize()["agentCapabilities"]
        assert there is (announced["loadSession"] if name == "load" else name in announced["sessionCapabilities"])
        answer = editor.call(f"session/{name}", {"sessionId": "none", "cwd": "/tmp", "mcpServers": []})
        assert there is (answer.get("error", {}).get("code") != -32601)


def test_login(launch: Launch) -> None:
    """With --auth nothing opens before authenticate: -32000; after logout the same."""
    editor = launch("--auth")
    assert ["login"] == [method["id"] for method in editor.initialize()["authMethods"]]
    params: Json = {"cwd": "/tmp", "mcpServers": []}
    assert -32000 == editor.call("session/new", params)["error"]["code"]
    assert {} == editor.call("authenticate", {"methodId": "login"})["result"]
    assert "sessionId" in editor.call("session/new", params)["result"]
    editor.call("logout", {})
    assert -32000 == editor.call("session/new", params)["error"]["code"]


def test_it_is_strict(launch: Launch) -> None:
    """What is wrong by the protocol is an error: no initialize, relative cwd, a second prompt, an unknown mode or option."""
    editor = launch()
    assert -32600 == editor.call("session/list", {})["error"]["code"]
    editor.initialize()
    assert -32602 == editor.call("session/new", {"cwd": "tmp", "mcpServers": []})["error"]["code"]
    assert -32602 == editor.call("session/new", {"cwd": "/tmp"})["error"]["code"]
    session = editor.new()
    editor.begin(session, "hang")
    assert -32600 == editor.prompt(session, "say b")["error"]["code"]
    assert -32602 == editor.call("session/set_mode", {"sessionId": session, "modeId": "fly"})["error"]["code"]
    wrong = {"sessionId": session, "configId": "model", "value": "huge"}
    assert -32602 == editor.call("session/set_config_option", wrong)["error"]["code"]
    assert "result" in editor.call("session/set_config_option", wrong | {"value": "large"})


def test_listing_by_pages_and_folder(launch: Launch) -> None:
    """session/list pages by cursor and filters by exact cwd."""
    editor = launch("--page", "2")
    editor.initialize()
    made = [editor.new() for _ in range(5)]
    found: list[str] = []
    params: Json = {"cwd": "/tmp", "cursor": "0"}
    while params["cursor"]:
        page = editor.call("session/list", params)["result"]
        found += [row["sessionId"] for row in page["sessions"]]
        params["cursor"] = page.get("nextCursor")
    assert made == found
    assert [] == editor.call("session/list", {"cwd": "/"})["result"]["sessions"]
    assert -32602 == editor.call("session/list", {"cursor": "x"})["error"]["code"]


def test_a_fork_has_the_same_past_and_a_future_of_its_own(editor: PlainEditor) -> None:
    """session/fork copies the updates; afterwards the two do not know each other."""
    source = editor.new()
    editor.says(source, "say a")
    fork = editor.call("session/fork", {"sessionId": source, "cwd": "/tmp"})["result"]["sessionId"]
    editor.says(fork, "say b")
    assert ["history 3"] == editor.says(source, "history")
    assert ["history 5"] == editor.says(fork, "history")


def test_closing_and_deleting_end_the_turn(editor: PlainEditor) -> None:
    """session/close and session/delete answer the running prompt `cancelled`; deleting twice is fine."""
    for method in ("session/close", "session/delete"):
        session = editor.new()
        begun = editor.begin(session, "say a\nhang")
        editor.until(lambda message: message.get("method") == "session/update")
        answers = {editor.start(method, {"sessionId": session}): {}, begun: {"stopReason": "cancelled"}}
        while answers:
            done = editor.until(lambda message: "method" not in message)
            assert answers.pop(done["id"]) == done["result"]
        assert {} == editor.call("session/delete", {"sessionId": session})["result"]
        assert -32002 == editor.prompt(session, "say x")["error"]["code"]


def test_the_prompt_is_echoed_when_asked(launch: Launch) -> None:
    """`--echo-prompt` sends each block of the prompt back first."""
    editor = launch("--echo-prompt")
    editor.initialize()
    editor.says(editor.new(), "say a")
    assert ["user_message_chunk", "agent_message_chunk"] == [params["update"]["sessionUpdate"] for params in editor.updates]


def test_only_the_last_text_block_is_the_script(editor: PlainEditor) -> None:
    """What stands before it, such as the context of a primed session, is not run."""
    blocks = [{"type": "text", "text": text} for text in ("die 3", "context")]
    answer = editor.call("session/prompt", {"sessionId": editor.new(), "prompt": blocks})
    assert {"stopReason": "end_turn"} == answer["result"]
    assert 'context ["die 3"]' == editor.kinds("agent_message_chunk")[0]["content"]["text"]


def test_noise_is_no_message(launch: Launch) -> None:
    """`--noise` and `noise` put lines on stdout that are no JSON."""
    editor = launch("--noise")
    with pytest.raises(json.JSONDecodeError):
        editor.next()


def test_commands_follow_the_answer(launch: Launch) -> None:
    """With --commands the list comes after the answer of session/new, not before it."""
    editor = launch("--commands")
    editor.initialize()
    session = editor.new()
    assert [] == editor.updates
    editor.until(lambda message: message.get("method") == "session/update")
    assert session == editor.updates[0]["sessionId"]


def test_a_child_is_left_behind_in_the_group(editor: PlainEditor) -> None:
    """`child` starts a process of the agent's own group that outlives the agent."""
    (said,) = editor.says(editor.new(), "child 60")
    pid = int(said.removeprefix("child "))
    editor.close()
    try:
        assert alive(pid)
    finally:
        subprocess.run(["kill", str(pid)], check=True)


def test_every_verb_is_in_the_table() -> None:
    """The head of agent_verbs.py names every verb."""
    text = sys.modules[VERBS["ask"].__module__].__doc__ or ""
    words = set(text.replace("·", " ").split())
    assert [] == sorted(set(VERBS) - words)


def test_what_it_sends_validates(editor: PlainEditor) -> None:
    """Every update of a turn with all kinds of verbs is valid by the protocol's schema."""
    schema = json.loads((SHARED / "acp-schema/schema.unstable.json").read_text())
    validator = jsonschema.Draft202012Validator({"$ref": "#/$defs/SessionNotification", "$defs": schema["$defs"]})
    editor.answers["session/request_permission"] = lambda _: {"result": {"outcome": {"outcome": "selected", "optionId": "yes"}}}
    verbs = "say a,think b,plan x|y,tool t,parallel 2,ask diff,image,commands,title T,mode code,usage 3,config model large"
    editor.says(editor.new(), verbs.replace(",", "\n"))
    assert len(editor.updates) > 20
    for params in editor.updates:
        validator.validate(params)
    assert not validator.is_valid(editor.updates[0] | {"update": {"sessionUpdate": "plan"}})
