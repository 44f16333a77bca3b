"""The comparisons themselves: what was shown and is not in the load is found, whatever it is."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.e2e.peers.checks import assert_holds, assert_same
from tests.support import fold

Json = dict[str, Any]


def _text(kind: str, text: str, message: str) -> Json:
    return {"sessionUpdate": kind, "content": {"type": "text", "text": text}, "messageId": message}


PICTURE = {"type": "content", "content": {"type": "image", "data": "aGk=", "mimeType": "image/png"}}
LIVE: list[Json] = [
    _text("agent_thought_chunk", "hm", "1"),
    {"sessionUpdate": "plan", "entries": [{"content": "a", "priority": "low", "status": "pending"}]},
    {"sessionUpdate": "tool_call", "toolCallId": "t", "title": "x", "status": "pending"},
    {"sessionUpdate": "tool_call_update", "toolCallId": "t", "status": "completed", "content": [PICTURE]},
    _text("agent_message_chunk", "one ", "2"),
    _text("agent_message_chunk", "two", "2"),
    {"sessionUpdate": "available_commands_update", "availableCommands": [{"name": "c", "description": "d"}]},
]


def _params(updates: list[Json]) -> list[Json]:
    return [{"sessionId": "s", "update": copy.deepcopy(update)} for update in updates]


SHOWN = fold.prompt("s", [{"type": "text", "text": "do it"}], "p") + _params(LIVE)


def test_what_was_folded_is_the_same() -> None:
    """A replay may fold a message into one chunk and a tool call into its last state."""
    folded = [
        LIVE[0],
        LIVE[1],
        {**LIVE[2], **LIVE[3], "sessionUpdate": "tool_call"},
        _text("agent_message_chunk", "one two", "2"),
    ]
    assert_same(SHOWN, [*SHOWN[:1], *_params([*folded, LIVE[6]])])


@pytest.mark.parametrize("number", range(len(SHOWN)))
def test_each_lost_update_is_found(number: int) -> None:
    """A load that lacks anything is not the same."""
    with pytest.raises((AssertionError, KeyError)):
        assert_same(SHOWN, SHOWN[:number] + SHOWN[number + 1 :])


@pytest.mark.parametrize("message", ["2", "3"])
def test_another_message_id_is_found(message: str) -> None:
    """Message ids are the same in every replay."""
    other = copy.deepcopy(SHOWN)
    other[-2]["update"]["messageId"] = message
    if message == "3":
        with pytest.raises(AssertionError):
            assert_same(SHOWN, other)
    else:
        assert_same(SHOWN, other)


def test_a_cut_turn_may_go_on_but_not_lose() -> None:
    """After a kill in a turn the load may have more than was shown, never less."""
    assert_holds(SHOWN[:-2], SHOWN)
    with pytest.raises(AssertionError):
        assert_holds(SHOWN, SHOWN[:-2])
    with pytest.raises(AssertionError):
        assert_holds(SHOWN, [*SHOWN[:1], *SHOWN[2:]])
