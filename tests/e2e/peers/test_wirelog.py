"""The byte oracle itself: it finds what may not be changed, and lets pass what may."""

from __future__ import annotations

import json

import pytest

from tests.e2e.peers.wirelog import Frame, compare, members


def _frame(text: str) -> Frame:
    return Frame("session/update", text)


SAID = [
    '{"sessionId":"in","update":{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"a"}}}',
    '{"sessionId":"in","update":{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"\\u00e9"}}}',
    '{"sessionId":"in", "update": {"sessionUpdate":"tool_call","toolCallId":"t","title":"x","rawInput":{"n":1.0, "m":1e2}}}',
    '{"sessionId":"in","update":{"sessionUpdate":"plan","entries":[]},"_meta":{"source":"them"}}',
]
GOT = [
    (
        '{"sessionId":"out","update":{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"a\u00e9"},'
        '"messageId":"m1"},"_meta":{"acpd.dev/seq":3}}'
    ),
    (
        '{"sessionId":"out", "update": {"sessionUpdate":"tool_call","toolCallId":"t","title":"x","rawInput":{"n":1.0, "m":1e2}}'
        ',"_meta":{"acpd.dev/seq":4}}'
    ),
    '{"sessionId":"out","update":{"sessionUpdate":"plan","entries":[]},"_meta":{"source":"them","acpd.dev/seq":5}}',
]


def test_the_listed_changes_pass() -> None:
    """A session id, a message id where there was none, acpd's own _meta and a join are no difference."""
    assert compare(map(_frame, SAID), map(_frame, GOT)) == []


@pytest.mark.parametrize(
    ("number", "old", "new"),
    [
        (0, '"text":"a\u00e9"', '"text":"a"'),
        (0, "agent_message_chunk", "agent_thought_chunk"),
        (1, "1.0", "1"),
        (1, "1e2", "100.0"),
        (1, '"title":"x","rawInput":{"n":1.0, "m":1e2}', '"rawInput":{"n":1.0, "m":1e2},"title":"x"'),
        (1, '"title":"x"', '"title":"x","messageId":"m2"'),
        (2, '"source":"them",', ""),
        (2, '"entries":[]', '"entries": []'),
        (2, '"plan"', '"usage_update"'),
    ],
)
def test_any_other_change_is_found(number: int, old: str, new: str) -> None:
    """Another text, kind, number spelling, key order, space or member is a difference."""
    changed = list(GOT)
    changed[number] = changed[number].replace(old, new)
    assert changed != GOT
    assert len(compare(map(_frame, SAID), map(_frame, changed))) >= 1


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_lost_or_repeated_frame_is_found(number: int) -> None:
    """Each frame arrives once."""
    assert compare(map(_frame, SAID), map(_frame, GOT[:number] + GOT[number + 1 :]))
    assert compare(map(_frame, SAID), map(_frame, [*GOT[: number + 1], *GOT[number:]]))


def test_members_are_found_as_they_are_written() -> None:
    """A value is given with its own spelling, whatever stands in it."""
    text = ' { "a" : [1.0, "}\\""] ,"b":{},\t"c":null } '
    assert members(text) == [("a", '[1.0, "}\\""]'), ("b", "{}"), ("c", "null")]
    assert json.loads(text).keys() == dict(members(text)).keys()
