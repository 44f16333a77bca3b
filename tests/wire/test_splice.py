"""Changing single members of JSON text."""

from __future__ import annotations

import json
import time
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acpd.wire import splice

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
NAMES = st.text(max_size=3) | st.sampled_from(['"', "\\", "a", "é", "{", ",", "\u2028"])
GAPS = st.text(alphabet=" \t\r\n", max_size=2)


@st.composite
def objects(draw: st.DrawFn) -> tuple[bytes, list[tuple[str, Any]]]:
    """An object's text, with names that stand twice and any white space, and its members in order."""
    pairs = draw(st.lists(st.tuples(NAMES, VALUES), max_size=5))
    ascii_only = draw(st.booleans())
    gap = [draw(GAPS) for _ in range(6)]
    body = f"{gap[0]},{gap[1]}".join(
        f"{json.dumps(name, ensure_ascii=ascii_only)}{gap[2]}:{gap[3]}{json.dumps(value, ensure_ascii=ascii_only)}"
        for name, value in pairs
    )
    return f"{gap[4]}{{{gap[1]}{body}{gap[0]}}}{gap[5]}".encode(), pairs


@given(objects())
def test_each_member_is_found_where_it_stands(given_object: tuple[bytes, list[tuple[str, Any]]]) -> None:
    """Every member is reported in order with the exact span of its value, whatever its text looks like."""
    raw, pairs = given_object
    found = splice.entries(raw)
    assert [name for name, _ in pairs] == [member.name for member in found]
    for (name, value), member in zip(pairs, found, strict=True):
        assert json.loads(raw[member.start : member.end]) == value
        assert json.loads(b"{%b}" % raw[member.key : member.end]) == {name: value}


@given(objects())
def test_of_members_with_one_name_the_last_counts(given_object: tuple[bytes, list[tuple[str, Any]]]) -> None:
    """As in every JSON reader that acpd talks to."""
    raw, pairs = given_object
    assert dict(pairs) == {name: json.loads(raw[start:end]) for name, (start, end) in splice.members(raw).items()}


@given(objects(), st.sampled_from(["a", "é", "sessionId", "0"]), VALUES)
def test_replace_changes_one_value_and_no_other_byte(
    given_object: tuple[bytes, list[tuple[str, Any]]], name: str, value: Any
) -> None:
    """The value of a member is replaced in its place; without the member it is added at the end."""
    raw, pairs = given_object
    text = json.dumps(value).encode()
    changed = splice.replace(raw, name, text)
    assert dict(pairs) | {name: value} == json.loads(changed)
    span = splice.members(raw).get(name)
    if span:
        assert raw[: span[0]] + text + raw[span[1] :] == changed


@given(objects(), st.sets(NAMES, max_size=3))
def test_remove_takes_every_member_of_a_name(given_object: tuple[bytes, list[tuple[str, Any]]], more: set[str]) -> None:
    """What is left is valid JSON with the other members in order; without the name nothing changes."""
    raw, pairs = given_object
    names = more | {name for name, _ in pairs[::2]}
    left = splice.remove(raw, names)
    kept = [(name, value) for name, value in pairs if name not in names]
    assert [name for name, _ in kept] == [member.name for member in splice.entries(left)]
    assert dict(kept) == json.loads(left)
    assert splice.remove(raw, {"no such name"}) is raw


@given(st.lists(VALUES, max_size=6), GAPS, st.data())
def test_items_can_be_taken_out_of_an_array(values: list[Any], gap: str, data: st.DataObject) -> None:
    """Each item is found where it stands, and any of them can go with one comma."""
    raw = f"{gap}[{gap}{f'{gap},{gap}'.join(json.dumps(value) for value in values)}{gap}]".encode()
    spans = splice.items(raw)
    assert values == [json.loads(raw[start:end]) for start, end in spans]
    gone = data.draw(st.sets(st.integers(0, max(len(values) - 1, 0)))) if values else set()
    left = splice.apply(raw, splice.cuts(spans, gone))
    assert [value for index, value in enumerate(values) if index not in gone] == json.loads(left)


@given(objects(), VALUES)
def test_add_puts_a_member_at_the_end(given_object: tuple[bytes, list[tuple[str, Any]]], value: Any) -> None:
    """With a comma if it is not the first; everything before stays."""
    raw, pairs = given_object
    added = splice.add(raw, b'"new":%b' % json.dumps(value).encode())
    assert dict(pairs) | {"new": value} == json.loads(added)
    assert added.startswith(raw[: raw.rindex(b"}")])


@pytest.mark.parametrize("raw", [b"[]", b"5", b'"{}"', b"null"])
def test_what_is_no_object_is_refused(raw: bytes) -> None:
    """DecodeError leaves, nothing else."""
    with pytest.raises(msgspec.DecodeError):
        splice.members(raw)


@pytest.mark.parametrize(
    "raw",
    [
        b"{" + b",".join([b'"a":1'] * 100_000 + [b'"a":"%b"' % (b"x" * 1_000_000)]) + b"}",
        b"{" + b",".join(b'"%d":[[{}]]' % n for n in range(100_000)) + b"}",
        b'{"a":"%b","a":"%b1"}' % (b"\\\\" * 1_000_000, b"\\\\" * 1_000_000),
    ],
    ids=["one name", "many names", "alike"],
)
def test_it_takes_linear_time(raw: bytes) -> None:
    """A megabyte with a hundred thousand members takes a second or so, not minutes."""
    begin = time.perf_counter()
    splice.members(raw)
    assert time.perf_counter() - begin < 10
