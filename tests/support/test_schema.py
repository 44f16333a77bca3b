"""The validator that every end-to-end test relies on has to catch what is wrong."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from tests.support.schema import WireCheck, check, fits, methods


def line(**members: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **members}).encode() + b"\n"


def update(value: object, session: object = "s") -> bytes:
    return line(method="session/update", params={"sessionId": session, "update": value})


TEXT = {"type": "text", "text": "hello"}
TOOL = {"sessionUpdate": "tool_call", "toolCallId": "t", "title": "x"}
UPDATE = {"sessionId": "s", "update": {"sessionUpdate": "agent_message_chunk", "content": TEXT}}
EMPTY = {"sessionId": "s", "prompt": []}
CHUNK = {"sessionUpdate": "agent_message_chunk", "content": TEXT}
PROMPT = line(id=1, method="session/prompt", params={"sessionId": "s", "prompt": [TEXT]})
PERMISSION = line(
    id="ask-1",
    method="session/request_permission",
    params={
        "sessionId": "s",
        "toolCall": {"toolCallId": "t"},
        "options": [{"optionId": "y", "name": "Yes", "kind": "allow_once"}],
    },
)


def prompted() -> WireCheck:
    wire = WireCheck()
    wire.seen_from_client(PROMPT)
    return wire


def test_a_whole_turn_passes() -> None:
    """A right conversation, asks and extension methods included, raises nothing."""
    wire = WireCheck()
    wire.seen_from_client(line(id=0, method="initialize", params={"protocolVersion": 1}))
    wire.sent_by_acpd_to_agent(line(id=1, method="initialize", params={"protocolVersion": 1}))
    wire.seen_from_agent(line(id=1, result={"protocolVersion": 1}))
    wire.sent_by_acpd_to_client(line(id=0, result={"protocolVersion": 1, "agentCapabilities": {"loadSession": True}}))
    wire.seen_from_client(PROMPT)
    wire.sent_by_acpd_to_agent(line(id=2, method="session/prompt", params={"sessionId": "inner", "prompt": [TEXT]}))
    wire.sent_by_acpd_to_client(update(CHUNK))
    wire.sent_by_acpd_to_client(PERMISSION)
    wire.seen_from_agent(line(id=0, method="session/request_permission", params={}))
    wire.seen_from_client(line(id="ask-1", result={"outcome": {"outcome": "selected", "optionId": "y"}}))
    wire.sent_by_acpd_to_agent(line(id=0, result={"outcome": {"outcome": "selected", "optionId": "y"}}))
    wire.sent_by_acpd_to_client(line(method="_x/note"))
    wire.sent_by_acpd_to_client(line(method="$/cancel_request", params={"requestId": 4}))
    wire.seen_from_agent(line(id=2, result={"stopReason": "end_turn"}))
    wire.sent_by_acpd_to_client(line(id=1, result={"stopReason": "end_turn"}))
    assert wire.sent == 9


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        pytest.param(line(id=1, result={"stopReason": "error"}), "stopReason", id="stop reason"),
        pytest.param(line(id=1, result={"sessionId": "s"}), "stopReason", id="result of another method"),
        pytest.param(line(id=1, result=None), "PromptResponse", id="null result"),
        pytest.param(line(id=1), "either", id="neither result nor error"),
        pytest.param(line(id=1, result={"stopReason": "end_turn"}, error={"code": 1, "message": "x"}), "either", id="both"),
        pytest.param(line(id=1, error={"code": "x", "message": "x"}), "code", id="error code"),
        pytest.param(line(id=1, error={"code": 1.0, "message": "x"}), "code", id="float error code"),
        pytest.param(line(id=1, error={"code": 1}), "message", id="error without message"),
        pytest.param(line(id=1.0, result={"stopReason": "end_turn"}), "id 1.0", id="float id"),
        pytest.param(line(id=True, result={"stopReason": "end_turn"}), "id True", id="bool id"),
        pytest.param(line(id="1", result={"stopReason": "end_turn"}), "not open", id="id as text"),
        pytest.param(line(id=2, result={"stopReason": "end_turn"}), "not open", id="id nobody asked"),
        pytest.param(line(id=None, result={}), "not open", id="result to null"),
        pytest.param(line(method="session/update", params={"update": CHUNK}), "sessionId", id="no sessionId"),
        pytest.param(update(CHUNK, session=5), "sessionId", id="sessionId a number"),
        pytest.param(update({**CHUNK, "sessionUpdate": "agent_sang"}), "SessionNotification", id="unknown kind"),
        pytest.param(update({**CHUNK, "content": {"type": "hologram"}}), "SessionNotification", id="unknown block"),
        pytest.param(update({**CHUNK, "messageId": 5}), "SessionNotification", id="messageId a number"),
        pytest.param(
            update({"sessionUpdate": "tool_call", "toolCallId": "t", "title": "x", "status": "cancelled"}), "", id="status"
        ),
        pytest.param(line(id=9, method="session/update", params=UPDATE), "no request", id="as request"),
        pytest.param(line(method="session/prompt", params=EMPTY), "no notification", id="as note"),
        pytest.param(line(id=9, method="session/prompt", params=EMPTY), "for the agent", id="direction"),
        pytest.param(line(id=9, method="session/sing", params={}), "session/sing", id="unknown method"),
        pytest.param(line(method="_x", result={}), "result", id="method and result"),
        pytest.param(line(method="_x", params=5), "params", id="params a number"),
        pytest.param(b'{"method":"_x"}\n', "jsonrpc", id="no jsonrpc"),
        pytest.param(b'{"jsonrpc":"1.0","method":"_x"}\n', "jsonrpc", id="old jsonrpc"),
        pytest.param(b'{"jsonrpc":"2.0",\n"method":"_x"}\n', "newline", id="two lines"),
        pytest.param(b'{"jsonrpc":"2.0","method":"_x","params":{"a":NaN}}\n', "NaN", id="NaN"),
        pytest.param(b"[]\n", "object", id="array"),
        pytest.param(b"{\n", "no JSON", id="torn"),
    ],
)
def test_each_bad_message_is_caught(bad: bytes, says: str) -> None:
    """What a client must never be sent raises AssertionError that says what is wrong."""
    with pytest.raises(AssertionError) as caught:
        prompted().sent_by_acpd_to_client(bad)
    assert says in str(caught.value).split("\n  to client")[0]


def test_a_second_answer_is_caught() -> None:
    """A request has one answer, also if the second one is an error."""
    wire = prompted()
    wire.sent_by_acpd_to_client(line(id=1, result={"stopReason": "end_turn"}))
    with pytest.raises(AssertionError, match="not open"):
        wire.sent_by_acpd_to_client(line(id=1, error={"code": -32603, "message": "x"}))


def test_an_id_may_be_used_again_after_its_answer() -> None:
    """An id that was answered is free again."""
    wire = prompted()
    wire.sent_by_acpd_to_client(line(id=1, result={"stopReason": "end_turn"}))
    wire.seen_from_client(line(id=1, method="session/list", params={}))
    wire.sent_by_acpd_to_client(line(id=1, result={"sessions": []}))


def test_a_client_that_uses_one_id_twice_gets_two_answers() -> None:
    """Each of two open requests with one id is answered once, in any order."""
    wire = prompted()
    wire.seen_from_client(line(id=1, method="session/list", params={}))
    wire.sent_by_acpd_to_client(line(id=1, result={"sessions": []}))
    wire.sent_by_acpd_to_client(line(id=1, result={"stopReason": "end_turn"}))
    with pytest.raises(AssertionError, match="not open"):
        wire.sent_by_acpd_to_client(line(id=1, result={"sessions": []}))


def test_acpd_must_not_use_an_open_id_again() -> None:
    """A sender must not reuse an id while a request with it awaits its answer."""
    wire = WireCheck()
    wire.sent_by_acpd_to_client(PERMISSION)
    with pytest.raises(AssertionError, match="while another"):
        wire.sent_by_acpd_to_client(PERMISSION)


def test_a_request_to_the_wrong_side_is_caught() -> None:
    """An agent must not get what is for clients."""
    with pytest.raises(AssertionError, match="for the client"):
        WireCheck().sent_by_acpd_to_agent(update(CHUNK))


def test_an_answer_to_the_agent_is_held_against_the_agents_request() -> None:
    """The outcome of a permission must be of the shape that session/request_permission asks for."""
    wire = WireCheck()
    wire.seen_from_agent(PERMISSION)
    with pytest.raises(AssertionError, match="RequestPermissionResponse"):
        wire.sent_by_acpd_to_agent(line(id="ask-1", result={"outcome": "selected"}))


def test_an_error_without_an_id_may_answer_what_cannot_be_read() -> None:
    """Parse errors and invalid requests are answered with id null; a null id that was asked is answered as any other."""
    wire = WireCheck()
    wire.sent_by_acpd_to_client(line(id=None, error={"code": -32700, "message": "x"}))
    wire.seen_from_client(line(id=None, method="session/list", params={}))
    wire.sent_by_acpd_to_client(line(id=None, result={"sessions": []}))


def test_peers_may_be_as_wrong_as_they_like() -> None:
    """What peers send is noted, never judged."""
    wire = WireCheck()
    for junk in (
        b"{",
        b"[]",
        b"\xff",
        b"[" * 100_000,
        b'{"id":[1],"method":5}',
        b'{"id":{"a":1},"result":1}',
        line(id=7, result=5),
    ):
        wire.seen_from_client(junk)
        wire.seen_from_agent(junk)
    assert wire.sent == 0


def test_every_method_has_its_definitions() -> None:
    """The names of the schema's definitions end in what they are; requests have results and a result has a request."""
    requests = {method for method, kind in methods() if kind == "Request"}
    assert requests == {method for method, kind in methods() if kind == "Response"}
    assert {"session/update", "session/cancel", "$/cancel_request"} <= {m for m, kind in methods() if kind == "Notification"}


def test_definitions_are_strict_about_what_is_inside() -> None:
    """A definition is followed through all its references, and the message says where the fault is."""
    assert fits("SessionUpdate", CHUNK)
    assert not fits("SessionUpdate", {**CHUNK, "content": {"type": "text"}})
    with pytest.raises(AssertionError, match=r"\$\.prompt"):
        check("PromptRequest", {"sessionId": "s", "prompt": "hello"})


def test_thousands_of_lines_take_seconds_at_most() -> None:
    """The check is quick enough for every line of an end-to-end run."""
    wire = WireCheck()
    wire.sent_by_acpd_to_client(update(CHUNK))
    begin = time.perf_counter()
    for _ in range(2000):
        wire.sent_by_acpd_to_client(update(CHUNK))
    assert time.perf_counter() - begin < 10
