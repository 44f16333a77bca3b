"""What an agent asks a person: permissions and elicitations (ACP v1 tool-calls, elicitation)."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from tests.support import store
from tests.support.client import Client, Json
from tests.support.scripted import EVERYTHING, Stage, after, until

pytestmark = pytest.mark.e2e

ASK = "session/request_permission"


def select(option: Any) -> Json:
    return {"outcome": {"outcome": "selected", "optionId": option}}


CANCELLED: Json = {"outcome": {"outcome": "cancelled"}}


def asked(play: Stage, script: str, **more: Any) -> tuple[Client, str, Any]:
    """A client that answers nothing by itself, a session, and the id of a prompt with this script."""
    client = play.start(policy=None, **more)
    session = client.new(play.cwd)
    return client, session, client.start_prompt(session, script)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (select("yes"), "chose yes"),
        (select("no"), "chose no"),
        (select("always"), "chose always"),
        (select("never"), "chose never"),
        (CANCELLED, "cancelled"),
        (select("admin"), "chose no"),
        (select(1), "cancelled"),
        (select(None), "cancelled"),
        ({"outcome": {"outcome": "selected"}}, "chose no"),
        ({"outcome": {"outcome": "granted", "optionId": "yes"}}, "chose no"),
        ({"outcome": "selected", "optionId": "yes"}, "cancelled"),
        ({}, "cancelled"),
    ],
    ids=str,
)
def test_only_an_option_that_was_offered_is_a_yes(answer: Json, said: str, play: Stage) -> None:
    """The choice passes as it is; what was not offered is a refusal, what is no answer is `cancelled`."""
    client, session, ident = asked(play, "ask four")
    request = client.wait_request(ASK)
    client.reply(request, answer)
    assert {"stopReason": "end_turn"} == client.result(ident)
    assert said == client.text(session)
    log = play.finish(client)[session]
    assert [log.of("ask")[0]["id"]] == [entry["ask"] for entry in log.of("answer")]
    assert request.message["id"] == log.of("ask")[0]["id"], "the id is the entry's"


@pytest.mark.parametrize("code", [-32601, -32603, -32800, 7])
def test_a_client_that_fails_has_not_said_yes(code: int, play: Stage) -> None:
    """An error of the client is `cancelled` to the agent."""
    client, session, ident = asked(play, "ask")
    client.reply_error(client.wait_request(ASK), code, "no dialog")
    assert {"stopReason": "end_turn"} == client.result(ident)
    assert "cancelled" == client.text(session)
    play.finish(client)


def test_what_is_asked_is_the_agents_own_words_behind_its_tool_call(play: Stage) -> None:
    """Options verbatim in their order, the diff, acpd's session id; the tool call was shown before."""
    client, session, ident = asked(play, "ask diff\nask four\nask bare")
    first = client.wait_request(ASK)
    assert session == first.session
    assert ["yes", "no"] == [option["optionId"] for option in first.params["options"]]
    assert "diff" == first.params["toolCall"]["content"][0]["type"]
    call = first.params["toolCall"]["toolCallId"]
    shown = [line for line in client.updates("tool_call", session) if line.update["toolCallId"] == call]
    assert shown[0].number < first.number
    client.reply(first, select("yes"))
    second = client.wait_request(ASK, 2)
    assert ["allow_once", "reject_once", "allow_always", "reject_always"] == [o["kind"] for o in second.params["options"]]
    client.reply(second, select("always"))
    client.reply(client.wait_request(ASK, 3), select("no"))
    assert {"stopReason": "end_turn"} == client.result(ident)
    assert "chose yeschose alwayschose no" == client.text(session)
    play.finish(client)


def test_a_cancel_answers_what_is_open_and_a_late_answer_is_nothing(play: Stage) -> None:
    """The agent hears `cancelled` at once, the client gets `$/cancel_request`; what it answers later changes nothing."""
    client, session, ident = asked(play, "deaf\nask\nsay on")
    request = client.wait_request(ASK)
    client.notify("session/cancel", {"sessionId": session})
    assert {"stopReason": "cancelled"} == client.result(ident)
    assert "cancelledon" == client.text(session)
    told = [line for line in client.lines if line.method == "$/cancel_request"]
    assert [request.message["id"]] == [line.params["requestId"] for line in told]
    client.reply(request, select("yes"))
    client.reply(request, select("yes"))
    assert "end_turn" == client.prompt(session, "say next")
    assert "cancelledonnext" == client.text(session)
    play.finish(client)


def test_an_answer_twice_counts_once(play: Stage) -> None:
    """The first answer wins; a second, another or one to an unknown id reaches no agent."""
    client, session, ident = asked(play, "ask\nsleep 100")
    request = client.wait_request(ASK)
    client.reply(request, select("no"))
    client.reply(request, select("yes"))
    client.send({"id": "unknown", "result": select("yes")})
    client.send({"id": 4711, "result": select("yes")})
    assert {"stopReason": "end_turn"} == client.result(ident)
    assert "chose no" == client.text(session)
    assert 1 == len(play.finish(client)[session].of("answer"))


def test_what_an_agent_withdraws_is_withdrawn(play: Stage) -> None:
    """`$/cancel_request` of the agent: -32800 to it, `$/cancel_request` with our id to the client, a late yes is nothing."""
    client, session, ident = asked(play, "withdraw 50\nsay on", capabilities={})
    request = client.wait_request(ASK)
    assert {"stopReason": "end_turn"} == client.result(ident)
    assert "error -32800on" == client.text(session)
    assert [request.message["id"]] == [line.params["requestId"] for line in client.lines if line.method == "$/cancel_request"]
    client.reply(request, select("yes"))
    assert "end_turn" == client.prompt(session, "say next")
    play.finish(client)


def test_what_is_open_is_asked_again_of_who_loads(play: Stage) -> None:
    """Load in a turn: the same question with the same id behind the answer, and it can be answered."""
    client, session, ident = asked(play, "ask")
    request = client.wait_request(ASK)
    loading = client.request("session/load", {"sessionId": session, "cwd": str(play.cwd), "mcpServers": []})
    client.result(loading)
    again = [line for line in after(client, client.answer(loading)) if line.method == ASK]
    assert [] == again, "the same connection has it open already"
    client.reply(request, select("yes"))
    assert {"stopReason": "end_turn"} == client.result(ident)
    assert client.text(session).endswith("chose yes")
    play.finish(client)


def test_a_question_open_at_kill_is_cancelled_at_the_next_open(play: Stage) -> None:
    """kill -9: the ask is in the log; the next open records its end, asks nobody, and its call is closed in the replay."""
    client, session, _ = asked(play, "ask")
    client.wait_request(ASK)
    client.kill()
    assert 1 == len(store.log(play.home, session, torn=True).of("ask"))
    client = play.start(policy=None)
    client.load(session, play.cwd)
    assert "failed" == [line.update["status"] for line in client.updates() if "tool_call" in line.kind][-1]
    assert "end_turn" == client.prompt(session, "say on")
    assert [] == [line for line in client.lines if line.method == ASK]
    log = play.finish(client)[session]
    assert [log.of("ask")[0]["id"]] == [entry["ask"] for entry in log.of("answer")]


def test_a_question_open_when_the_agent_dies_is_closed(play: Stage) -> None:
    """The client is told to take its dialog away, and its late answer is nothing."""
    client, session, ident = asked(play, "pid\nask")
    request = client.wait_request(ASK)
    pid = int(client.text(session).split()[1])
    os.kill(pid, signal.SIGKILL)
    assert "signal 9" in client.answer(ident).message["error"]["message"]
    client.wait("word to the dialog", lambda: [line for line in client.lines if line.method == "$/cancel_request"])
    client.reply(request, select("yes"))
    assert "end_turn" == client.prompt(session, "say on")
    play.finish(client)


@pytest.mark.parametrize("mode", ["form", "url"])
@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"action": "accept", "content": {"name": "Ada"}}, 'accept {"name": "Ada"}'),
        ({"action": "decline"}, "decline null"),
        ({"action": "cancel"}, "cancel null"),
        ({"action": "sure"}, "cancel null"),
        ({}, "cancel null"),
    ],
    ids=str,
)
def test_an_elicitation_is_the_clients_to_answer(mode: str, answer: Json, said: str, play: Stage) -> None:
    """accept, decline and cancel pass; what is none of them is a cancel; completion by url is told."""
    client, session, ident = asked(play, f"elicit {mode}")
    request = client.wait_request("elicitation/create")
    assert (session, mode, "Who are you?") == (request.session, request.params["mode"], request.params["message"])
    client.reply(request, answer)
    assert {"stopReason": "end_turn"} == client.result(ident)
    assert said == client.text(session)
    assert (mode == "url") == any(line.method == "elicitation/complete" for line in client.lines)
    play.finish(client)


def test_an_elicitation_that_the_client_did_not_declare_never_reaches_it(play: Stage) -> None:
    """The agent is told what the client can; if it asks all the same, it waits, and a cancel answers it."""
    form: Json = {"elicitation": {"form": {}}}
    client, session, ident = asked(play, "elicit url", capabilities=form)
    assert {"stopReason": "end_turn"} == client.result(ident)
    assert "no elicitation by url" == client.text(session)
    rude = (
        'raw {"jsonrpc":"2.0","id":"rude","method":"elicitation/create","params":'
        '{"sessionId":"$SESSION","mode":"url","message":"m","elicitationId":"e","url":"https://example.org"}}'
    )
    ident = client.start_prompt(session, f"{rude}\nhang")
    until("the question in the log", lambda: store.log(play.home, session).of("ask"))
    client.notify("session/cancel", {"sessionId": session})
    assert {"stopReason": "cancelled"} == client.result(ident)
    assert [] == [line for line in client.lines if line.method == "elicitation/create"]
    answers = [message for message in play.agent_got() if message.get("id") == "rude"]
    assert [{"action": "cancel"}] == [message["result"] for message in answers]
    play.finish(client)


@pytest.mark.parametrize(
    "params",
    ['{"sessionId":"$SESSION"}', '{"sessionId":"$SESSION","options":[],"toolCall":null}', '{"options":1}', "[]", '"x"', "{}"],
)
def test_a_question_that_nobody_could_understand_is_refused(params: str, play: Stage) -> None:
    """-32602 to the agent, or a question that validates; never a line that breaks the client."""
    client = play.start(policy=None)
    session = client.new(play.cwd)
    raw = f'raw {{"jsonrpc":"2.0","id":"bad","method":"{ASK}","params":{params}}}'
    assert "end_turn" == client.prompt(session, f"{raw}\nsay on")
    assert "end_turn" == client.prompt(session, "say on")
    answers = [message for message in play.agent_got() if message.get("id") == "bad"]
    assert [-32602] == [message["error"]["code"] for message in answers]
    assert [] == [line for line in client.lines if line.method == ASK]
    play.finish(client)


def test_capabilities_are_told_to_the_agent_as_they_are(play: Stage) -> None:
    """What the client declared, without what acpd cannot pass on yet, and with what acpd does itself: compactions are recorded,
    values kept, earlier sessions looked up.
    """
    ours = {"acpd.dev/state": {}, "acpd.dev/tools": ["search", "list", "history", "memory"]}
    some: list[Json] = [EVERYTHING, {}, {"fs": {"readTextFile": True}, "_meta": {"x": 1}}]
    for capabilities in some:
        client = play.start(capabilities=capabilities)
        client.new(play.cwd)
        told: Json = play.agent_got("initialize")[-1]["params"]["clientCapabilities"]
        declared: Json = capabilities.get("session", {})
        meta: Json = {**capabilities.get("_meta", {}), **ours}
        assert {**capabilities, "session": {"compaction": {}, **declared}, "_meta": meta} == told
        play.finish(client)
