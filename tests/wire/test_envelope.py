"""The JSON-RPC envelope of one line."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import UNSET, Raw

from acpd import errors
from acpd.wire import envelope

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
MEMBERS = ("jsonrpc", "id", "method", "params", "result", "error")


def code_of(line: bytes) -> int:
    with pytest.raises(errors.RequestError) as caught:
        envelope.decode(line)
    return caught.value.code


@given(st.dictionaries(st.sampled_from([*MEMBERS, "other"]), VALUES), st.booleans())
def test_members_are_taken_out_as_they_were_written(message: dict[str, Any], ascii_only: bool) -> None:
    """The envelope has the exact bytes of each member, and UNSET where there is none."""
    decoded = envelope.decode(json.dumps(message, ensure_ascii=ascii_only).encode())
    for name in MEMBERS:
        raw = getattr(decoded, name)
        if name in message:
            assert json.dumps(message[name], ensure_ascii=ascii_only).encode() == bytes(raw)
        else:
            assert raw is UNSET


@given(st.binary(max_size=60))
@example(b'{"id":1}\xff')
@example(b"\x00")
def test_any_line_is_an_envelope_or_one_error(line: bytes) -> None:
    """Nothing but RequestError with -32700 or -32600 leaves the decoder."""
    code = None
    try:
        envelope.decode(line)
    except errors.RequestError as error:
        code = error.code
    assert code in {None, errors.PARSE_ERROR, errors.INVALID_REQUEST}


@given(
    st.lists(
        st.sampled_from([b"{", b"}", b"[", b"]", b",", b":", b'"', b"1", b"null", b"\\ud83d", b"\\", b'"id"', b"\xf0\x9f"])
    )
)
def test_any_line_of_json_tokens_is_an_envelope_or_one_error(parts: list[bytes]) -> None:
    """Nearly valid JSON is as safe as noise."""
    test_any_line_is_an_envelope_or_one_error.hypothesis.inner_test(b"".join(parts))  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{",
        b'{"id":1',
        b'{"id":1}}',
        b'{"id":01}',
        b'{"params":NaN}',
        b'{"params":"\x00"}',
        b'{"params":"\xff"}',
        b'{"params":"\xed\xa0\xbd"}',
        b'{"params":"\\q"}',
        b"\xef\xbb\xbf{}",
        b'{"params":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
)
def test_what_is_no_json_is_a_parse_error(line: bytes) -> None:
    """Torn, doubled, not UTF-8, encoded surrogates, NUL, NaN, a BOM, too deep: -32700, and the process lives."""
    assert code_of(line) == errors.PARSE_ERROR


@pytest.mark.parametrize("line", [b"[]", b'[{"jsonrpc":"2.0"}]', b"5", b'"x"', b"null", b"true"])
def test_json_that_is_no_object_is_an_invalid_request(line: bytes) -> None:
    """ACP has no batches."""
    assert code_of(line) == errors.INVALID_REQUEST


def test_long_numbers_are_left_alone() -> None:
    """A number of 5,000 digits passes as it was written."""
    assert bytes(envelope.decode(b'{"params":[%b]}' % (b"9" * 5000)).params) == b"[%b]" % (b"9" * 5000)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (rb"\ud83d", rb"\ufffd"),
        (rb"\udE00", rb"\ufffd"),
        (rb"\ud83d\ude00", rb"\ud83d\ude00"),
        (rb"\ud83d\ud83d\ude00", rb"\ufffd\ud83d\ude00"),
        (rb"\ude00\ud83d", rb"\ufffd\ufffd"),
        (rb"\\ud83d", rb"\\ud83d"),
        (rb"\\\ud83dx", rb"\\\ufffdx"),
        (rb"\ud83d\n", rb"\ufffd\n"),
        (rb"\ud83d\\ude00", rb"\ufffd\\ude00"),
        (rb"\ud83dude00", rb"\ufffdude00"),
    ],
)
def test_a_lone_surrogate_becomes_a_replacement_character(before: bytes, after: bytes) -> None:
    """Half a pair is no text that strict peers accept; whole pairs and escaped backslashes stay."""
    assert after == envelope.mend_surrogates(before)
    decoded = envelope.decode(b'{"method":"m","params":{"a":"%b"}}' % before)
    assert b'{"a":"%b"}' % after == bytes(decoded.params)  # type: ignore[arg-type]
    json.loads(bytes(decoded.params)).get("a").encode()  # type: ignore[arg-type]


@given(st.text(alphabet=st.characters(categories=["Cs", "Ll"]), max_size=6))
def test_what_comes_in_has_an_encoding(text: str) -> None:
    """Whatever a peer escaped, each string that is decoded later can be written as UTF-8."""
    decoded = envelope.decode(json.dumps({"params": [text]}).encode())
    assert json.loads(bytes(decoded.params))[0].encode() is not None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("raw", "valid"),
    [(b'"x"', True), (b'""', True), (b"0", True), (b"-7", True), (b"null", True), (b"1.0", False), (b"1e3", False)]
    + [(raw, False) for raw in (b"true", b"[]", b"{}", b"nullx", b"-")],
)
def test_ids_are_strings_integers_or_null(raw: bytes, valid: bool) -> None:
    """ACP v1 RequestId; a float is no id."""
    assert envelope.valid_id(raw) is valid


def test_what_is_composed_reads_back() -> None:
    """Each builder makes one line with its newline."""
    lines: list[tuple[bytes, dict[str, Any]]] = [
        (envelope.request(b"1", "a/b", b"{}"), {"id": 1, "method": "a/b", "params": {}}),
        (envelope.notification("a/b", b"[1]"), {"method": "a/b", "params": [1]}),
        (envelope.result(b'"x"', b"null"), {"id": "x", "result": None}),
        (
            envelope.error(b"null", errors.RequestError(-32700, "bad")),
            {"id": None, "error": {"code": -32700, "message": "bad"}},
        ),
    ]
    for line, members in lines:
        assert line.endswith(b"}\n")
        assert line.count(b"\n") == 1
        assert {"jsonrpc": "2.0", **members} == json.loads(line)


def test_an_agents_own_error_passes_as_it_was_written() -> None:
    """`raw` stands in the answer byte for byte; else code, message with its hint, and data."""
    raw = b'{ "code":-1,"message":"\\u0041","x":1e2}'
    assert raw in envelope.error(b"1", errors.RequestError(-1, "A", raw=raw))
    failure = errors.RequestError(-32002, "no session", {"sessionId": "s"})
    failure.hint = "look at 'acpd ls'"
    assert json.loads(envelope.error_object(failure)) == {
        "code": -32002,
        "message": "no session (look at 'acpd ls')",
        "data": {"sessionId": "s"},
    }
    assert isinstance(envelope.decode(b'{"id":1}').id, Raw)
