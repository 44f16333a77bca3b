"""What an agent answers: mended as the schema says, else the agent's failure."""

from __future__ import annotations

import json

import pytest

from acpd.errors import AgentError
from acpd.wire import answers
from tests.support import schema

OPTION = b'{"id":"m","name":"M","type":"select","currentValue":"a","options":[{"value":"a","name":"A"}]}'
GROUPED = b'{"id":"m","name":"M","type":"select","currentValue":"a","options":[{"group":"g","name":"G","options":[]}]}'
MODES = b'{"currentModeId":"a","availableModes":[{"id":"a","name":"A"}]}'


@pytest.mark.parametrize(
    ("method", "result"),
    [
        ("session/new", b'{ "sessionId" : "s" , "modes":null,"x":1e2}'),
        ("session/new", b'{"sessionId":"s","modes":%b,"configOptions":[%b,%b]}' % (MODES, OPTION, GROUPED)),
        ("session/load", b"{}"),
        ("session/set_config_option", b'{"configOptions":[]}'),
        ("session/set_mode", b'{"_meta":{"k":1}}'),
        ("_zed.dev/x", b"7"),
    ],
    ids=str,
)
def test_what_is_valid_is_the_same_text(method: str, result: bytes) -> None:
    """Not a byte of it changes."""
    assert result == answers.checked(method, result)


@pytest.mark.parametrize(
    ("method", "result", "sound"),
    [
        (
            "session/new",
            b'{"modes":7,"sessionId":"s","configOptions":[1,%b]}' % OPTION,
            b'{"sessionId":"s","configOptions":[%b]}' % OPTION,
        ),
        (
            "session/load",
            b'{"modes":{"currentModeId":"a","availableModes":7}}',
            b'{"modes":{"currentModeId":"a","availableModes":[]}}',
        ),
        ("session/load", b"null", b"{}"),
        ("session/resume", b"true", b"{}"),
        ("session/set_mode", b"null", b"{}"),
        ("authenticate", b'"ok"', b"{}"),
        ("session/set_config_option", b'{"configOptions":null}', b'{"configOptions":[]}'),
    ],
    ids=str,
)
def test_what_the_schema_repairs_is_left_out(method: str, result: bytes, sound: bytes) -> None:
    """And what leaves is valid by the schema."""
    assert sound == answers.checked(method, result)
    schema.check(schema.methods()[method, "Response"][0], json.loads(sound))


@pytest.mark.parametrize(
    ("method", "result"),
    [
        ("session/new", b"{}"),
        ("session/new", b"null"),
        ("session/new", b'{"sessionId":1}'),
        ("session/set_config_option", b"null"),
    ],
    ids=str,
)
def test_what_has_no_repair_is_the_agents_failure(method: str, result: bytes) -> None:
    """The error names the method."""
    with pytest.raises(AgentError, match=method):
        answers.checked(method, result)


def test_a_malformed_usage_does_not_cost_the_stop_reason() -> None:
    """It is left out; an answer that is none stays as it is, for others to judge."""
    assert b'{"stopReason":"end_turn"}' == answers.prompted(b'{"stopReason":"end_turn","usage":{"totalTokens":-1}}')
    assert b"7" == answers.prompted(b"7")


def test_logins_by_terminal_are_for_clients_with_a_terminal() -> None:
    """ACP v1 authentication: they must not be offered to others. Malformed ones are left out."""
    methods = b'[7,{"id":"a","name":"A"},{"type":"terminal","id":"t","name":"T","env":{"A":1}},{"name":"x"}]'
    assert [b'{"id":"a","name":"A"}'] == answers.logins(methods, terminal=False)
    assert [b'{"id":"a","name":"A"}', b'{"type":"terminal","id":"t","name":"T"}'] == answers.logins(methods, terminal=True)
    assert [] == answers.logins(b'{"a":1}', terminal=True)
