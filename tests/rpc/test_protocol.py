"""JSON-RPC 2.0, sans-IO: what each line means, and one answer a request."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from acpd.errors import RequestError
from acpd.rpc import protocol
from acpd.rpc.protocol import Bad, Notification, Protocol, Request, Response


def unused(_result: bytes | None, _error: RequestError | None) -> None:
    raise AssertionError("nobody answers")


def bad(event: protocol.Event) -> Bad:
    assert isinstance(event, Bad)
    return event


def request(event: protocol.Event) -> Request:
    assert isinstance(event, Request)
    return event


def code(reply: bytes) -> tuple[object, int]:
    message = json.loads(reply)
    assert message.keys() == {"jsonrpc", "id", "error"}
    return message["id"], message["error"]["code"]


@pytest.mark.parametrize("raw", [b"1", b"0", b"-7", b'"a"', b'""', b"null", b'"\\u00e4\\n"', b"99999999999999999999999"])
@pytest.mark.parametrize("strict", [True, False])
def test_ids_of_every_kind_come_back_as_they_were_written(raw: bytes, strict: bool) -> None:
    """A string, an integer and null are ids; the answer carries the id's own text (JSON-RPC 4)."""
    side = Protocol(strict=strict)
    event = request(side.receive(b'{"jsonrpc":"2.0","id":%b,"method":"m","params":{"a":1.50}}' % raw))
    assert (raw, "m", b'{"a":1.50}') == (event.id, event.method, bytes(event.params) if event.params is not UNSET else b"")
    assert b'{"jsonrpc":"2.0","id":%b,"result":{}}\n' % raw == side.answer(event.id, b"{}")


@pytest.mark.parametrize("raw", [b"1.5", b"1e3", b"true", b"[]", b"{}"])
def test_what_is_no_id_is_refused(raw: bytes) -> None:
    """An id of another kind is answered with id null (JSON-RPC 5.1) by a strict side, and only reported by a lenient one."""
    line = b'{"jsonrpc":"2.0","id":%b,"method":"m"}' % raw
    assert (None, -32600) == code(bad(Protocol(strict=True).receive(line)).reply)
    assert b"" == bad(Protocol(strict=False).receive(line)).reply


def test_a_request_without_params_has_none() -> None:
    """Absent params are UNSET, which is not null."""
    side = Protocol(strict=True)
    assert request(side.receive(b'{"jsonrpc":"2.0","id":1,"method":"m"}')).params is UNSET
    assert request(side.receive(b'{"jsonrpc":"2.0","id":2,"method":"m","params":null}')).params is not UNSET


def test_an_id_in_flight_may_not_be_used_again() -> None:
    """A second request with an id that is not answered yet is refused with id null; the first is answered all the same."""
    side = Protocol(strict=True)
    line = b'{"jsonrpc":"2.0","id":7,"method":"m"}'
    first = request(side.receive(line))
    assert (None, -32600) == code(bad(side.receive(line)).reply)
    assert side.answer(first.id, b"{}")
    assert request(side.receive(line)).id == b"7"


def _settled(side: Protocol, how: str) -> bytes:
    return side.answer(b'"x"', b"{}") if how == "answer" else side.refuse(b'"x"', RequestError(-1, "no"))


def test_one_answer_a_request() -> None:
    """Whatever comes second, result or error, is empty."""
    for first, second in (("answer", "refuse"), ("refuse", "answer"), ("answer", "answer"), ("refuse", "refuse")):
        side = Protocol(strict=True)
        request(side.receive(b'{"jsonrpc":"2.0","id":"x","method":"m"}'))
        assert side.open_requests == 1
        assert (True, False) == (bool(_settled(side, first)), bool(_settled(side, second)))
        assert side.open_requests == 0


def test_an_answer_to_what_nobody_asked_is_empty() -> None:
    """A request that never came cannot be answered."""
    side = Protocol(strict=True)
    assert (b"", b"") == (side.answer(b"1", b"{}"), side.refuse(b"1", RequestError(-1, "no")))


def test_an_answer_finds_its_call_once() -> None:
    """A response goes to its call; a second one to the same id, and one to an unknown id, are reported and never answered."""
    side = Protocol(strict=True)
    identifier, line = side.call("m", b"{}", unused)
    assert (b"0", b'{"jsonrpc":"2.0","id":0,"method":"m","params":{}}\n') == (identifier, line)
    event = side.receive(b'{"jsonrpc":"2.0","id":0,"result":{"x":1}}')
    assert isinstance(event, Response)
    assert (unused, b'{"x":1}', None) == (event.then, event.result, event.error)
    for again in (b"0", b"1", b'"0"', b"null", b'{"a":1}', b'"' + b"x" * 200 + b'"'):
        found = bad(side.receive(b'{"jsonrpc":"2.0","id":%b,"result":{}}' % again))
        assert (True, b"") == ("not open" in found.why, found.reply)


@pytest.mark.parametrize(
    ("members", "result", "error"),
    [
        (b'"result":null', b"null", None),
        (b'"error":null', b"null", None),
        (b'"result":{"a":1},"error":null', b'{"a":1}', None),
        (b'"result":{},"error":{"code":-5,"message":"no"}', None, -5),
        (b'"error":{"code":-32800,"message":"no","data":[1]}', None, -32800),
        (b'"error":{"code":"x"}', None, -32603),
        (b'"error":"no"', None, -32603),
        (b'"error":{"message":"no"}', None, -32603),
    ],
)
def test_result_and_error(members: bytes, result: bytes | None, error: int | None) -> None:
    """Exactly one is set: an error counts before a result, null is no error, a malformed error is an internal one."""
    side = Protocol(strict=False)
    side.call("m", b"{}", unused)
    event = side.receive(b'{"jsonrpc":"2.0","id":0,%b}' % members)
    assert isinstance(event, Response)
    assert (result, error) == (event.result, event.error.code if event.error else None)


def test_an_error_is_passed_on_byte_for_byte() -> None:
    """The peer's error object, with members that nobody knows, is what goes out for it."""
    side = Protocol(strict=False)
    side.call("m", b"{}", unused)
    raw = b'{"message":"no",  "code":-5,"data":1.50,"more":{}}'
    event = side.receive(b'{"jsonrpc":"2.0","id":0,"error":%b}' % raw)
    assert isinstance(event, Response)
    request(side.receive(b'{"id":9,"method":"m"}'))
    assert event.error is not None
    assert b'{"jsonrpc":"2.0","id":9,"error":%b}\n' % raw == side.refuse(b"9", event.error)


def test_numbered_ids_are_never_used_twice() -> None:
    """Forgotten and answered ids are not given out again; a caller's own id is used as it is."""
    side = Protocol(strict=True)
    first, _ = side.call("m", b"{}", unused)
    assert unused is side.forget(first)
    own, line = side.call("m", b"{}", unused, b'"ask"')
    second, _ = side.call("m", b"{}", unused)
    assert (b"0", b'"ask"', b"1", True) == (first, own, second, b'"id":"ask"' in line)
    assert "not open" in bad(side.receive(b'{"id":0,"result":{}}')).why
    assert None is side.forget(first)


def test_the_end_of_the_stream_hands_out_the_open_calls_once() -> None:
    """What will never be answered is known, in the order of the calls, and only once."""
    side = Protocol(strict=True)
    names: list[int] = []
    for number in range(3):
        side.call("m", b"{}", lambda _result, _error, number=number: names.append(number))  # type: ignore[misc]
    for then in side.broken():
        then(None, None)
    assert ([0, 1, 2], []) == (names, side.broken())


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"nonsense", -32700),
        (b'{"a":', -32700),
        (b'{"method":"\xff"}', -32700),
        (b'{"a":NaN}', -32700),
        (b'{"a":' * 100_000, -32700),
        (b"[]", -32600),
        (b'[{"jsonrpc":"2.0","id":1,"method":"m"}]', -32600),
        (b"1", -32600),
        (b"{}", -32600),
        (b'{"jsonrpc":"2.0","id":1}', -32600),
        (b'{"jsonrpc":"2.0","result":{}}', -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":7}', -32600),
    ],
)
def test_a_bad_line_is_answered_once_by_a_strict_side_and_never_by_a_lenient_one(line: bytes, expected: int) -> None:
    """A client is told what was wrong with its line; an agent's noise is only reported."""
    assert expected == code(bad(Protocol(strict=True).receive(line)).reply)[1]
    assert b"" == bad(Protocol(strict=False).receive(line)).reply


@pytest.mark.parametrize("line", [b'{"jsonrpc":"1.0","id":1,"method":"m"}', b'{"id":1,"method":"m"}'])
def test_only_a_strict_side_insists_on_the_version(line: bytes) -> None:
    """A client's request must say "jsonrpc":"2.0", and is told so under its id; agents that leave it out are understood."""
    assert (1, -32600) == code(bad(Protocol(strict=True).receive(line)).reply)
    assert isinstance(Protocol(strict=False).receive(line), Request)


def test_a_bad_notification_is_never_answered() -> None:
    """A notification has no id to answer to, so it is reported at most."""
    side = Protocol(strict=True)
    assert b"" == bad(side.receive(b'{"jsonrpc":"2.0","method":7}')).reply
    assert isinstance(side.receive(b'{"method":"m"}'), Notification)


def test_the_last_of_two_members_counts() -> None:
    """Of several members with one name the last one counts, here as everywhere."""
    assert b"2" == request(Protocol(strict=False).receive(b'{"id":1,"method":"m","id":2}')).id


def test_a_line_that_is_too_long_is_answered_like_a_bad_one() -> None:
    """The message has both numbers."""
    event = Protocol(strict=True).too_long(100, 64)
    assert (None, -32600) == code(event.reply)
    assert ("100" in event.why, "64" in event.why) == (True, True)
    assert b"" == Protocol(strict=False).too_long(100, 64).reply


def test_a_method_with_quotes_and_newlines_goes_out_as_one_line() -> None:
    """A peer's method name is data: it can neither break out of its string nor begin a line of its own."""
    side = Protocol(strict=False)
    name = '_x","params":{}}\n{"id":1'
    event = side.receive(json.dumps({"id": 1, "method": name}).encode())
    _, line = side.call(request(event).method, b"{}", unused)
    assert (1, name) == (line.count(b"\n"), json.loads(line)["method"])


def test_long_method_names_are_not_kept() -> None:
    """The names that are remembered are few and short, so that a peer cannot fill the memory."""
    side = Protocol(strict=False)
    for number in range(1000):
        side.receive(b'{"method":"m%d%b"}' % (number, b"x" * (200 if number % 2 else 0)))
    assert len(protocol._METHOD_NAMES) <= 256
    assert max(map(len, protocol._METHOD_NAMES)) <= 100


@given(
    st.binary(max_size=60) | st.text(max_size=30).map(str.encode) | st.from_regex(rb'\{"(id|method|error)":.{0,9}\}'),
    st.booleans(),
)
def test_no_line_raises(line: bytes, strict: bool) -> None:
    """Whatever comes, it is an event, and a lenient side has nothing to say to it."""
    event = Protocol(strict=strict).receive(line)
    assert strict or not isinstance(event, Bad) or not event.reply
