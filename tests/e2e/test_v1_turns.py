"""Prompts, their queue, cancelling, modes and options, `$/cancel_request` (ACP v1 prompt-turn, cancellation)."""

from __future__ import annotations

import json
import os
import signal
import time
from typing import Any

import pytest

from tests.support import proc, store
from tests.support.client import Json, RpcError
from tests.support.scripted import EVERYTHING, Stage, after, failing, prompt_params, until

pytestmark = pytest.mark.e2e


def cancel(client: Any, session: str) -> None:
    client.notify("session/cancel", {"sessionId": session})


@pytest.mark.parametrize("reason", ["end_turn", "max_tokens", "max_turn_requests", "refusal"])
def test_each_stop_reason_is_passed_on_and_kept(reason: str, play: Stage) -> None:
    """The agent's own stop reason answers the prompt and stands in the log."""
    client = play.start()
    session = client.new(play.cwd)
    assert reason == client.prompt(session, f"say x\nstop {reason}")
    turn = store.turns(play.finish(client)[session])[0]
    assert turn.end is not None
    assert reason == turn.end["stopReason"]


def test_an_invented_stop_reason_is_an_error_that_quotes_it(play: Stage) -> None:
    """ACP v1's enum is closed: -32603, and the next prompt works."""
    client = play.start()
    session = client.new(play.cwd)
    error = failing(client, "session/prompt", prompt_params(session, "stop error"))
    assert -32603 == error.code
    assert '"error"' in error.message
    assert "end_turn" == client.prompt(session, "say on")
    play.finish(client)


def test_an_agents_error_passes_and_the_next_prompt_works(play: Stage) -> None:
    """Code and message are the agent's; the words before it stay."""
    client = play.start()
    session = client.new(play.cwd)
    error = failing(client, "session/prompt", prompt_params(session, "say half\nfail -32042 the model is away"))
    assert (-32042, "the model is away") == (error.code, error.message)
    assert "end_turn" == client.prompt(session, "say whole")
    assert "halfwhole" == client.text(session)
    assert "the model is away" in json.dumps(store.turns(play.finish(client)[session])[0].end)


@pytest.mark.parametrize(
    "prompt",
    [[], None, "hi", {}, [{"type": "text"}], [{"type": "video", "url": "x"}], ["hi"], [{"type": "image", "data": "x"}]],
    ids=json.dumps,
)
def test_a_bad_prompt_is_refused(prompt: Any, play: Stage) -> None:
    """-32602; no turn begins and the agent hears nothing."""
    client = play.start()
    session = client.new(play.cwd)
    assert -32602 == failing(client, "session/prompt", {"sessionId": session, "prompt": prompt}).code
    assert -32602 == failing(client, "session/prompt", {"prompt": [{"type": "text", "text": "x"}]}).code
    assert [] == play.agent_got("session/prompt")
    assert [] == play.finish(client)[session].of("prompt")


def test_prompts_wait_in_order_and_each_is_answered(play: Stage) -> None:
    """A second prompt waits for the first; the answers come in order, each behind the updates of its own turn."""
    client = play.start()
    session = client.new(play.cwd)
    idents = [client.start_prompt(session, f"say <{n}>\nsleep 20\nsay ;") for n in range(5)]
    numbers = [client.answer(ident).number for ident in idents]
    assert numbers == sorted(numbers)
    assert "<0>;<1>;<2>;<3>;<4>;" == client.text(session)
    for n, number in enumerate(numbers):
        assert f"<{n}>" in b"".join(line.raw for line in client.lines[:number]).decode()
        assert f"<{n + 1}>" not in b"".join(line.raw for line in client.lines[:number]).decode()
    log = play.finish(client)[session]
    assert 5 == len(store.turns(log))
    assert [] == log.of("queue")[-1]["prompts"]


def test_a_full_queue_refuses_and_loses_nothing(play: Stage) -> None:
    """Over sessions.queue a prompt is -32603 that says how many wait; those that wait are run."""
    client = play.start(env={"ACPD_SESSIONS_QUEUE": "2"})
    session = client.new(play.cwd)
    running = client.start_prompt(session, "say 0\nsleep 300")
    waiting = [client.start_prompt(session, f"say {n}") for n in (1, 2)]
    error = failing(client, "session/prompt", prompt_params(session, "say 3"))
    assert -32603 == error.code
    assert "2" in error.message
    for ident in (running, *waiting):
        assert {"stopReason": "end_turn"} == client.result(ident)
    assert "012" == client.text(session)
    play.finish(client)


def test_a_cancel_ends_the_running_and_the_waiting_prompts(play: Stage) -> None:
    """All answer `cancelled`, the agent gets the one that ran and one cancel; the next prompt is untouched."""
    client = play.start()
    session = client.new(play.cwd)
    running = client.start_prompt(session, "say a\nhang")
    waiting = [client.start_prompt(session, f"say w{n}") for n in range(3)]
    client.wait_update("agent_message_chunk")
    cancel(client, session)
    cancel(client, session)
    for ident in (running, *waiting):
        assert {"stopReason": "cancelled"} == client.result(ident)
    cancel(client, session)  # late: nothing runs
    assert "end_turn" == client.prompt(session, "say next")
    assert "anext" == client.text(session)
    assert 2 == len(play.agent_got("session/prompt"))
    play.finish(client)


def test_a_cancel_in_the_same_write_as_its_prompt_finds_it(play: Stage) -> None:
    """Before the agent has a word of it: `cancelled`."""
    client = play.start()
    session = client.new(play.cwd)
    prompt = {"jsonrpc": "2.0", "id": "p", "method": "session/prompt", "params": prompt_params(session, "say a\nhang")}
    stop = {"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": session}}
    client.send_bytes((json.dumps(prompt) + "\n" + json.dumps(stop) + "\n").encode())
    assert {"stopReason": "cancelled"} == client.result("p")
    assert "end_turn" == client.prompt(session, "say b")
    play.finish(client)


@pytest.mark.parametrize("script", ["tool x\nsleep 5000", "parallel 1\nthink x\nhang", "run sleep 60", "hang"])
def test_a_cancelled_turn_ends_with_cancelled_behind_its_updates(script: str, play: Stage) -> None:
    """In a tool, in a terminal, before the first word: the answer is `cancelled` and nothing follows it."""

    def policy(request: Json) -> Json | None:
        return {"terminal/create": {"terminalId": "t"}, "terminal/kill": {}, "terminal/release": {}}.get(request["method"])

    client = play.start(policy=policy)
    session = client.new(play.cwd)
    ident = client.start_prompt(session, script)
    play.wait_agent_got("session/prompt")
    if script.startswith("run"):
        client.wait_request("terminal/wait_for_exit")
    cancel(client, session)
    assert {"stopReason": "cancelled"} == client.result(ident)
    assert "end_turn" == client.prompt(session, "say b")
    assert [] == [line for line in after(client, client.answer(ident)) if "tool_call" in line.kind]
    play.finish(client)


def test_an_agent_that_answers_a_cancel_with_an_error_is_translated(play: Stage) -> None:
    """ACP v1: `cancelled`, never an error and never end_turn."""
    client = play.start()
    session = client.new(play.cwd)
    for end in ("fail -32603 aborted", "stop end_turn"):
        ident = client.start_prompt(session, f"deaf\nsay a\nsleep 300\n{end}")
        client.wait_update("agent_message_chunk", len(client.updates("agent_message_chunk")) + 1)
        cancel(client, session)
        assert {"stopReason": "cancelled"} == client.result(ident)
    play.finish(client)


def test_a_request_cancel_of_a_prompt_is_a_cancel_of_that_one(play: Stage) -> None:
    """The running one ends `cancelled`; a waiting one alone is taken out and the others run; unknown ids are nothing."""
    client = play.start()
    session = client.new(play.cwd)
    running = client.start_prompt(session, "say a\nsleep 300")
    gone = client.start_prompt(session, "say b")
    kept = client.start_prompt(session, "say c")
    client.notify("$/cancel_request", {"requestId": gone})
    strange: list[Any] = [4711, "x", None, [1], {}]
    for unknown in strange:
        client.notify("$/cancel_request", {"requestId": unknown})
    client.notify("$/cancel_request", {})
    assert {"stopReason": "cancelled"} == client.result(gone)
    assert [{"stopReason": "end_turn"}] * 2 == [client.result(running), client.result(kept)]
    assert "ac" == client.text(session)
    hanging = client.start_prompt(session, "say d\nhang")
    client.wait("d", lambda: client.text(session) == "acd")
    client.notify("$/cancel_request", {"requestId": hanging})
    assert {"stopReason": "cancelled"} == client.result(hanging)
    client.notify("$/cancel_request", {"requestId": hanging})
    assert 1 == len(client.answers(hanging))
    play.finish(client)


def test_a_cancelled_load_is_answered_once_and_the_session_can_be_used(play: Stage) -> None:
    """A result or -32800; a prompt behind it is answered, and a new load replays all."""
    client = play.start()
    session = client.new(play.cwd)
    client.prompt(session, "parallel 500\nsay end")
    play.finish(client)
    client = play.start()
    params = {"sessionId": session, "cwd": str(play.cwd), "mcpServers": []}
    for _ in range(3):
        ident = client.request("session/load", params)
        client.notify("$/cancel_request", {"requestId": ident})
        answer = client.answer(ident).message
        assert "result" in answer or -32800 == answer["error"]["code"]
    assert "end_turn" == client.prompt(session, "say after")
    seen = len(client.lines)
    client.load(session, play.cwd)
    assert any(b"end" in line.raw and line.kind for line in client.lines[seen:])
    assert "end_turn" == client.prompt(session, "say again")
    play.finish(client)


def test_a_cancelled_extension_request_is_answered_cancelled(play: Stage) -> None:
    """-32800 at once, though the agent works on; its late answer reaches nobody."""
    client = play.start()
    session = client.new(play.cwd)
    client.prompt(session, "pid")
    pid = int(client.text(session).split()[1])
    os.kill(pid, signal.SIGSTOP)
    ident = client.request("_test/echo", {"sessionId": session, "n": 1})
    client.notify("$/cancel_request", {"requestId": ident})
    assert -32800 == client.answer(ident).message["error"]["code"]
    os.kill(pid, signal.SIGCONT)
    assert "end_turn" == client.prompt(session, "say on")
    assert 1 == len(client.answers(ident))
    play.finish(client)


def test_modes_and_options_are_the_agents_and_kept(play: Stage) -> None:
    """The agent judges; what it took is in the next load's answer, also after kill -9, and the new agent is told."""
    client = play.start()
    session = client.new(play.cwd)
    assert {} == client.call("session/set_mode", {"sessionId": session, "modeId": "code"})
    chosen = client.call("session/set_config_option", {"sessionId": session, "configId": "model", "value": "large"})
    assert "large" == chosen["configOptions"][0]["currentValue"]
    on = {"sessionId": session, "configId": "verbose", "type": "boolean", "value": True}
    assert client.call("session/set_config_option", on)["configOptions"][1]["currentValue"] is True
    for bad in ({"modeId": "nope"}, {"modeId": 1}, {}):
        assert -32602 == failing(client, "session/set_mode", {"sessionId": session, **bad}).code
    for bad in ({"configId": "nope", "value": "x"}, {"configId": "model", "value": "huge"}, {"configId": "model"}):
        assert -32602 == failing(client, "session/set_config_option", {"sessionId": session, **bad}).code
    client.kill()
    play.state.unlink()  # so that the agent comes up with its defaults
    client = play.start()
    answer = client.load(session, play.cwd)
    assert "code" == answer["modes"]["currentModeId"]
    assert ["large", True] == [option["currentValue"] for option in answer["configOptions"]]
    client.prompt(session, "say there")
    told = [m["params"] for m in play.agent_got() if str(m.get("method")).startswith("session/set_")]
    assert {"modeId": "code"}.items() <= told[-3].items()
    assert [("model", "large"), ("verbose", True)] == [(p["configId"], p["value"]) for p in told[-2:]]
    assert "boolean" == told[-1]["type"]
    play.finish(client)


def test_a_mode_set_while_a_turn_runs_does_not_wait_for_it(play: Stage) -> None:
    """Settings are not queued behind the prompt."""
    client = play.start()
    session = client.new(play.cwd)
    ident = client.start_prompt(session, "say a\nhang")
    client.wait_update("agent_message_chunk")
    assert {} == client.call("session/set_mode", {"sessionId": session, "modeId": "code"})
    assert [] == client.answers(ident)
    cancel(client, session)
    assert {"stopReason": "cancelled"} == client.result(ident)
    play.finish(client)


def test_an_agent_that_dies_is_named_and_the_next_prompt_has_the_memory(play: Stage) -> None:
    """Exit code and last words in the error; open tool calls are closed in the replay; the inner session is resumed."""
    client = play.start()
    session = client.new(play.cwd)
    call = '{"sessionUpdate":"tool_call","toolCallId":"t","title":"T","status":"in_progress"}'
    ident = client.start_prompt(session, f"say a\nstderr out of luck\nupdate {call}\ndie 7")
    with pytest.raises(RpcError, match=r"(?s)7.*out of luck") as caught:
        client.result(ident)
    assert -32603 == caught.value.code
    assert "end_turn" == client.prompt(session, "history")
    assert 1 == len(play.agent_got("session/resume"))
    seen = len(client.lines)
    client.load(session, play.cwd)
    tools = [line.update for line in client.lines[seen:] if "tool_call" in line.kind]
    assert "failed" == tools[-1]["status"]
    play.finish(client)


def test_a_stopped_agent_harms_no_other_session_and_wakes(play: Stage) -> None:
    """SIGSTOP of one agent: list, load and another session answer meanwhile; SIGCONT, and its turn ends."""
    client = play.start()
    asleep, awake = client.new(play.cwd), client.new(play.cwd)
    client.prompt(asleep, "pid")
    pid = int(client.text(asleep).split()[1])
    os.kill(pid, signal.SIGSTOP)
    ident = client.start_prompt(asleep, "say woken")
    assert "end_turn" == client.prompt(awake, "say fine")
    assert client.call("session/list", {})["sessions"]
    client.load(awake, play.cwd)
    assert [] == client.answers(ident)
    os.kill(pid, signal.SIGCONT)
    assert {"stopReason": "end_turn"} == client.result(ident)
    play.finish(client)


def test_a_prompt_in_flight_when_input_ends_is_interrupted_and_said_so(play: Stage) -> None:
    """EOF in a turn: exit 0, the turn is `interrupted`, the next load shows it and the session goes on."""
    client = play.start()
    session = client.new(play.cwd)
    client.start_prompt(session, "say half\nhang")
    client.start_prompt(session, "say queued")
    client.wait_update("agent_message_chunk")
    logs = play.finish(client)
    turn = store.turns(logs[session])[0]
    assert turn.end is not None
    assert "interrupted" == turn.end["state"]
    client = play.start()
    client.load(session, play.cwd)
    assert "interrupted" in client.told(session)
    assert "end_turn" == client.prompt(session, "say on")
    play.finish(client)


def test_a_turn_cut_by_kill_is_interrupted_never_run_again(play: Stage) -> None:
    """kill -9 with a running and a waiting prompt: both are shown, both marked, neither is sent again, all can go on."""
    client = play.start()
    session = client.new(play.cwd)
    client.start_prompt(session, "say half\nhang")
    client.wait_update("agent_message_chunk")
    waiting = client.start_prompt(session, "say queued")
    until("the queue in the log", lambda: store.log(play.home, session, torn=True).of("queue"))
    client.kill()
    assert [] == client.answers(waiting)
    client = play.start()
    client.load(session, play.cwd)
    asked = [line.update["content"]["text"] for line in client.updates("user_message_chunk")]
    assert ["say half\nhang", "say queued"] == asked
    assert "interrupted" in client.told(session)
    assert "never got it" in client.told(session)
    assert "end_turn" == client.prompt(session, "say on")
    texts = [m["params"]["prompt"][-1]["text"] for m in play.agent_got("session/prompt")]
    assert ["say half\nhang", "say on"] == texts
    assert ["interrupted", "interrupted", "ended"] == [
        t.end["state"] for t in store.turns(play.finish(client)[session]) if t.end
    ]
    assert [] == proc.marked(play.mark)


def test_the_user_is_told_by_a_notice_or_by_a_marked_message(play: Stage) -> None:
    """A client that declared notices gets `notice` for what is passing; another gets a message, marked, with [acpd]."""
    client = play.start()
    session = client.new(play.cwd)
    client.prompt(session, "say kept")
    play.finish(client)
    play.cwd.rmdir()
    kinds: list[tuple[Json, str]] = [(EVERYTHING, "notice"), ({}, "agent_message_chunk")]
    for capabilities, kind in kinds:
        client = play.start(capabilities=capabilities)
        client.load(session, play.cwd)
        told = client.wait("a notice", lambda: [line for line in client.updates() if line.is_notice])  # noqa: B023
        assert [kind] == [line.kind for line in told]
        assert kind == "notice" or told[0].update["content"]["text"].startswith("[acpd]")
        assert "kept" == client.text(session)
        play.finish(client)


def test_a_list_does_not_wait_for_an_agent_that_is_in_a_turn(play: Stage) -> None:
    """The only agent sleeps in its turn: acpd's own sessions are listed all the same, long before the agent's time is up."""
    client = play.start()
    session = client.new(play.cwd)
    client.prompt(session, "pid")
    pid = int(client.text(session).split()[1])
    ident = client.start_prompt(session, "say b\nhang")
    client.wait("b", lambda: client.text(session).endswith("b"))
    os.kill(pid, signal.SIGSTOP)
    sent = time.monotonic()
    assert [session] == [row["sessionId"] for row in client.call("session/list", {})["sessions"]]
    assert time.monotonic() - sent < 3.0
    os.kill(pid, signal.SIGCONT)
    cancel(client, session)
    assert {"stopReason": "cancelled"} == client.result(ident)
    play.finish(client)
