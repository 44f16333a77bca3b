"""What an agent may ask of a client: repaired as the schema says, else refused."""

from __future__ import annotations

import json

import pytest

from acpd.errors import INVALID_PARAMS, RequestError
from acpd.wire import asking
from tests.support import schema

PERMISSION = b'{"sessionId":"s","toolCall":{"toolCallId":"t"},"options":[{"optionId":"a","name":"A","kind":"allow_once"}]}'
GOOD = [
    ("session/request_permission", PERMISSION),
    (
        "session/request_permission",
        b' { "options" : [ ] , "toolCall":{"toolCallId":"t","rawInput":1e2,"x":[null]},"sessionId":"s"} ',
    ),
    (
        "elicitation/create",
        b'{"sessionId":"s","mode":"form","message":"m","requestedSchema":{"type":"object","properties":{}}}',
    ),
    ("elicitation/create", b'{"sessionId":"s","mode":"url","message":"m","elicitationId":"e","url":"https://example.org"}'),
    ("fs/read_text_file", b'{"sessionId":"s","path":"/x","line":null,"limit":4294967295,"_meta":null}'),
    ("fs/write_text_file", b'{"sessionId":"s","path":"/x","content":""}'),
    ("terminal/create", b'{"sessionId":"s","command":"x","args":[],"env":[{"name":"A","value":""}],"outputByteLimit":0}'),
    ("terminal/output", b'{"sessionId":"s","terminalId":"t"}'),
]
BAD = [
    ("session/request_permission", PERMISSION.replace(b'"toolCallId":"t"', b'"toolCallId":1'), "params.toolCall.toolCallId"),
    ("session/request_permission", PERMISSION.replace(b"allow_once", b"allow"), "params.options"),
    ("elicitation/create", b'{"sessionId":"s","mode":"url","message":"m","elicitationId":"e"}', "params.url"),
    ("fs/read_text_file", b'{"sessionId":"s","path":"/x","limit":4294967296}', "params.limit"),
    ("terminal/create", b'{"sessionId":"s","command":"rm","args":["-r",null]}', "params.args"),
    ("terminal/create", b'{"sessionId":"s","command":"x","outputByteLimit":18446744073709551616}', "outputByteLimit"),
    ("terminal/kill", b"[]", "params"),
]


@pytest.mark.parametrize(("method", "params"), GOOD, ids=str)
def test_what_is_valid_is_the_same_text(method: str, params: bytes) -> None:
    """Valid params go on byte for byte, and they are valid by the schema."""
    assert params == asking.checked(method, params)
    schema.check(schema.methods()[method, "Request"][0], json.loads(params))


@pytest.mark.parametrize(("method", "params", "words"), BAD, ids=str)
def test_what_has_no_repair_is_refused_by_its_name(method: str, params: bytes, words: str) -> None:
    """-32602 that names the member and not its value; nothing of a command is left out."""
    with pytest.raises(RequestError, match=words) as caught:
        asking.checked(method, params)
    assert INVALID_PARAMS == caught.value.code


@pytest.mark.parametrize(
    ("method", "params", "sound"),
    [
        ("terminal/create", b'{"sessionId":"s","args":null,"command":"x","env":null}', b'{"sessionId":"s","command":"x"}'),
        ("terminal/kill", b'{"sessionId":"s","_meta":1,"terminalId":"t"}', b'{"sessionId":"s","terminalId":"t"}'),
        (
            "session/request_permission",
            PERMISSION.replace(b'"t"', b'"t","kind":"?","status":null,"locations":[1,{"path":"/a"}]'),
            PERMISSION.replace(b'"t"', b'"t","status":null,"locations":[{"path":"/a"}]'),
        ),
    ],
    ids=str,
)
def test_what_the_schema_repairs_is_left_out(method: str, params: bytes, sound: bytes) -> None:
    """A malformed optional member counts as absent, a null list of a command as none."""
    assert sound == asking.checked(method, params)
    schema.check(schema.methods()[method, "Request"][0], json.loads(sound))


def test_a_method_that_nobody_knows_is_not_looked_at() -> None:
    """Extensions bring whatever they like."""
    assert b"[1]" == asking.checked("_zed.dev/x", b"[1]")
