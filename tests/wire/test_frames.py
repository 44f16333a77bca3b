"""From a stored update to the frame that a client gets."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from acpd.wire import frames
from acpd.wire.framer import Framer
from acpd.wire.lines import Stored
from tests.support.schema import WireCheck
from tests.wire.shapes import valid

AT = "2026-11-30T09:57:03.234Z"
OURS = {"acpd.dev/seq": 7, "acpd.dev/at": AT}
CHUNK = b'{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"\\u0041 1"}}'


def params_of(frame: bytes) -> Any:
    assert frame.endswith(b"}\n")
    assert frame.count(b"\n") == 1
    message = json.loads(frame)
    assert message.pop("jsonrpc") == "2.0"
    assert message.pop("method") == "session/update"
    return message.pop("params")


def line_of(raw: bytes, cut: int, *, background: bool = False) -> Stored:
    return Stored(type="update", id="e", seq=7, at=AT, params=Raw(raw), cut=cut, background=background)


@given(
    valid("SessionUpdate"),
    st.permutations(["sessionId", "update", "_meta", "extra"]),
    st.integers(2, 4),
    st.one_of(st.none(), st.dictionaries(st.sampled_from(["a", "acpd.dev/seq"]), st.integers(), max_size=2)),
    st.sampled_from([(",", ":"), (" , ", " : ")]),
)
def test_only_the_listed_members_change(
    value: Any, order: list[str], count: int, meta: Any, separators: tuple[str, str]
) -> None:
    """The session id is acpd's, our two keys stand in `_meta`, all else is the agent's; and the frame is valid."""
    names = {"sessionId", "update"} | set(order[:count])
    written = {"sessionId": "inner", "update": value, "_meta": meta, "extra": [1]}
    params = json.dumps({name: written[name] for name in order if name in names}, separators=separators).encode()
    frame = frames.update(params, b'"outer"', 7, AT)
    WireCheck().sent_by_acpd_to_client(frame)
    wanted = {name: written[name] for name in names} | {
        "sessionId": "outer",
        "_meta": ((meta or {}) if "_meta" in names else {}) | OURS,
    }
    assert wanted == params_of(frame)
    assert json.dumps(value, separators=separators).encode() in frame


SHAPES = (b'{"sessionId":%b,"update":%b}', b'{"sessionId": %b, "update": %b}', b'{"update":%b,"sessionId":%b}')


@pytest.mark.parametrize("session", [b'"inner"', b'"in\\"ner"', b'""'])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_cut_at_any_place_gives_the_same_frame(shape: bytes, session: bytes) -> None:
    """The log says where the update begins; one that was edited may say it wrongly. The agent's own id never gets out."""
    raw = shape % ((session, CHUNK) if shape.index(b"session") == 2 else (CHUNK, session))
    wanted = params_of(frames.update(raw, b'"o"', 7, AT))
    framer = Framer(b'"o"')
    for cut in (*range(len(raw) + 3), -1, 10**9, *range(len(raw) + 3)):
        assert wanted == params_of(framer.frame(line_of(raw, cut))), cut


@pytest.mark.parametrize("raw", [b"5", b"{}", b'""', b"[]", b"}}", b'{"sessionId":"s"}'])
def test_a_cut_of_other_params_is_refused(raw: bytes) -> None:
    """DecodeError leaves for a line that was edited so that it says nothing."""
    framer = Framer(b'"o"')
    framer.frame(line_of(b'{"sessionId":"s","update":%b}' % CHUNK, 26))
    for cut in (0, 1, 10, 26, 27):
        with pytest.raises(msgspec.DecodeError):
            framer.frame(line_of(raw, cut))


@pytest.mark.parametrize("mark", [b"", frames.BACKGROUND])
def test_the_mark_of_background_work_is_acpds(mark: bytes) -> None:
    """It is there if the line says so, whichever way the frame is made; one that the agent wrote there does not count."""
    plain = b'{"sessionId":"s","update":%b}' % CHUNK
    own = b'{"sessionId":"s","update":%b,"_meta":{"acpd.dev/background":true}}' % CHUNK
    cut = frames.cut_of(plain, frames.decode_params(plain))
    wanted = OURS | ({"acpd.dev/background": True} if mark else {})
    for frame in (
        frames.update(plain, b'"o"', 7, AT, mark=mark),
        frames.update(own, b'"o"', 7, AT, mark=mark),
        Framer(b'"o"').frame(line_of(plain, cut, background=bool(mark))),
        Framer(b'"o"').frame(line_of(own, cut, background=bool(mark))),
    ):
        assert wanted == params_of(frame)["_meta"]


def test_the_fast_way_and_the_slow_way_agree() -> None:
    """White space or another order of members makes no difference to what a client reads."""
    fast = frames.update(b'{"sessionId":"s","update":%b}' % CHUNK, b'"o"', 7, AT)
    slow = frames.update(b'{"update":%b, "sessionId":"s"}' % CHUNK, b'"o"', 7, AT)
    assert params_of(fast) == params_of(slow) == {"sessionId": "o", "update": json.loads(CHUNK), "_meta": OURS}
    assert CHUNK in fast
    assert CHUNK in slow


@pytest.mark.parametrize(
    "params",
    [
        b'{"sessionId":"inner","sessionId":"inner-2","update":%b}',
        b'{"sessionId":"inner","update":{},"update":%b}',
        b'{"session\\u0049d":"inner","update":%b}',
        b'{"sessionId":"inner","update":%b,"_meta":5}',
        b'{"sessionId":"inner","update":%b,"_meta":null}',
        b'{"sessionId":"inner","_meta":{"x":1},"update":%b,"_meta":{}}',
        b'{"sessionId":"inner","update":%b,"_meta":{"acpd.dev/seq":1,"acpd.dev/at":"x"}}',
    ],
)
def test_odd_params_become_one_clean_frame(params: bytes) -> None:
    """Doubled members, escaped names, a malformed _meta, an agent that is an acpd: no inner id and no doubled key gets out."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        assert len(pairs) == len(dict(pairs))
        return dict(pairs)

    frame = frames.update(params % CHUNK, b'"outer"', 7, AT)
    got = json.loads(frame, object_pairs_hook=unique)["params"]
    assert {"sessionId": "outer", "update": json.loads(CHUNK), "_meta": OURS} == got
    assert b"inner" not in frame


def test_a_repaired_update_stands_in_the_place_of_the_agents() -> None:
    """What the schema made of it is sent, with the rest of the params."""
    params = b'{"sessionId":"s","update":{"sessionUpdate":"plan","entries":5},"x":1}'
    got = params_of(frames.update(params, b'"o"', 7, AT, changed=b'{"sessionUpdate":"plan","entries":[]}'))
    assert {"sessionId": "o", "update": {"sessionUpdate": "plan", "entries": []}, "x": 1, "_meta": OURS} == got


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b'{"a":1}', b'{"a":1,"messageId":"m"}'),
        (b'{"messageId":null,"a":1}', b'{"messageId":"m","a":1}'),
        (b'{"a":{"messageId":"inside"}}', b'{"a":{"messageId":"inside"},"messageId":"m"}'),
        (b'{"a":"\\"messageId\\""}', b'{"a":"\\"messageId\\"","messageId":"m"}'),
        (b'{"a":"messageId"}', b'{"a":"messageId","messageId":"m"}'),
    ],
)
def test_a_message_id_is_added_or_takes_the_place_of_null(before: bytes, after: bytes) -> None:
    """Only the update's own member counts, and no other byte changes."""
    assert after == frames.with_message_id(before, "m")


@pytest.mark.parametrize("params", [b'{"sessionId":"s","update":%b}', b'{ "update":%b,"sessionId":"s"}'])
def test_a_payload_above_the_limit_names_its_blobs(monkeypatch: pytest.MonkeyPatch, params: bytes) -> None:
    """Its big strings are replaced by a text that names the blob; a payload below the limit goes out unchanged."""
    big = "x" * 100_000
    text = params % json.dumps({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": big}}).encode()
    assert params_of(frames.update(text, b'"o"', 7, AT))["update"]["content"]["text"] == big
    monkeypatch.setattr(frames, "MAX_OUT", len(text) - 1)
    frame = frames.update(text, b'"o"', 7, AT)
    WireCheck().sent_by_acpd_to_client(frame)
    assert params_of(frame)["update"]["content"]["text"].startswith("[acpd keeps ")
    assert len(frame) < 1000


def test_a_composed_chunk_is_valid() -> None:
    """A block of a stored prompt becomes a user_message_chunk of its own."""
    frame = frames.text_chunk(b'"o"', "user_message_chunk", b'{"type":"text","text":"x"}', 7, AT, "m")
    WireCheck().sent_by_acpd_to_client(frame)
    update = {"sessionUpdate": "user_message_chunk", "content": {"type": "text", "text": "x"}, "messageId": "m"}
    assert {"sessionId": "o", "update": update, "_meta": OURS} == params_of(frame)


@pytest.mark.parametrize("params", [b"{}", b"[]", b'{"sessionId":"s"}', b'{"update":{}}'])
def test_other_params_are_refused(params: bytes) -> None:
    """DecodeError leaves for params that are not of session/update."""
    with pytest.raises(msgspec.DecodeError):
        frames.update(params, b'"o"', 7, AT)
