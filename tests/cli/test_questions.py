"""Questions of an agent on a terminal."""

from __future__ import annotations

import json
from typing import Any

import pytest

from acpd.cli.questions import Form, Permission

OPTIONS = [{"optionId": "y", "name": "Yes", "kind": "allow_once"}, {"optionId": "n", "name": "No\nno", "kind": "reject_once"}]


def test_a_permission() -> None:
    """The tool call, what it would do, and its options with the numbers that choose them."""
    diff = {"type": "diff", "path": "/a.txt", "oldText": "a", "newText": "b"}
    asked = Permission({"toolCall": {"toolCallId": "t", "content": [diff]}, "options": OPTIONS}, "Write a.txt")
    assert ["ask: Write a.txt", "  [diff /a.txt]", "  1) Yes (allow_once)", "  2) No no (reject_once)"] == asked.shown()
    assert b'{"outcome":{"outcome":"selected","optionId":"n"}}' == asked.take(" 2 ")


@pytest.mark.parametrize("line", ["", "0", "3", "yes", "-1", "²", "1 2"])
def test_what_is_no_answer_grants_nothing(line: str) -> None:
    """Anything but the number of an option is refused, with what would be one."""
    with pytest.raises(ValueError, match="a number from 1 to 2 answers"):
        Permission({"options": OPTIONS}, "").take(line)


def form(properties: Any, *required: str) -> Form:
    return Form({"message": "Who\nare you?", "requestedSchema": {"properties": properties, "required": list(required)}})


def filled(asked: Form, *lines: str) -> Any:
    *before, last = [asked.take(line) for line in lines]
    assert {None} >= set(before)
    return json.loads(last) if last else None


def test_a_form() -> None:
    """One line for each field, in order: text, choice, yes or no, numbers; an empty one is the default, or nothing."""
    asked = form(
        {
            "name": {"type": "string", "title": "Your name"},
            "size": {"type": "string", "enum": ["small", "big"]},
            "color": {"type": "string", "oneOf": [{"const": "red"}, {"const": "blue"}], "default": "red"},
            "sure": {"type": "boolean"},
            "age": {"type": "integer"},
            "rest": {"type": "array"},
            "ratio": {"type": "number"},
        },
        "name",
    )
    assert ["ask: Who are you?", "  name (Your name: string):"] == asked.shown()
    assert asked.take(" Bob ") is None
    assert ["  size (small/big, may be empty):"] == asked.shown()
    for line, wrong in (("huge", "one of small, big"),):
        with pytest.raises(ValueError, match=wrong):
            asked.take(line)
    assert asked.take("big") is None
    assert ["  color (red/blue, empty: red):"] == asked.shown()
    content = {"name": " Bob ", "size": "big", "color": "red", "sure": True, "ratio": 0.5}
    assert {"action": "accept", "content": content} == filled(asked, "", "Y", "", "0.5")


@pytest.mark.parametrize(
    ("field", "line", "wrong"),
    [
        ({"type": "boolean"}, "maybe", "yes or no"),
        ({"type": "integer"}, "1.5", "a whole number"),
        ({"type": "number"}, "x", "a number"),
        ({"type": "string"}, "", "a is needed"),
    ],
)
def test_a_value_that_does_not_fit(field: Any, line: str, wrong: str) -> None:
    """It is said what is wanted, and asked again."""
    with pytest.raises(ValueError, match=wrong):
        form({"a": field}, "a").take(line)


def test_refusing_a_form() -> None:
    """Declining and dismissing are two answers, at any field; what cannot be filled in here can only be refused."""
    assert {"action": "decline"} == filled(form({"a": {"type": "string"}, "b": {"type": "string"}}), "x", "/decline")
    asked = form({"a": {"type": "array"}}, "a")
    assert "cannot be answered here" in asked.shown()[1]
    with pytest.raises(ValueError, match="/decline"):
        asked.take("x")
    assert {"action": "cancel"} == filled(asked, "/dismiss")


@pytest.mark.parametrize("schema", [None, {}, {"properties": 3}, {"properties": {"a": 3}}])
def test_a_form_without_fields(schema: Any) -> None:
    """An empty line agrees."""
    assert {"action": "accept", "content": {}} == filled(Form({"message": "?", "requestedSchema": schema}), "")
