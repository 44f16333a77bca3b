"""A conversation as text while it goes on."""

from __future__ import annotations

from typing import Any

import pytest

from acpd.cli import live
from acpd.cli.live import Live


def chunk(text: str, kind: str = "agent_message_chunk", message: str = "m") -> dict[str, Any]:
    update = {"sessionUpdate": kind, "messageId": message, "content": {"type": "text", "text": text}}
    return {"update": update}


def call(**members: Any) -> dict[str, Any]:
    return {"update": {"sessionUpdate": "tool_call", "toolCallId": "t", **members}}


def told(*params: dict[str, Any]) -> list[str]:
    shown = Live()
    return [shown.update(each) for each in params]


def test_chunks_appear_as_they_come() -> None:
    """What a chunk adds to its message, indented below who says it; newlines at the end of a message are not told."""
    assert ["agent:\n  He", "llo\n  you", "", "\n\n  there", ""] == told(
        *(chunk(text) for text in ("He", "llo\nyou", "\n\n", "there", "\n"))
    )


def test_the_end_of_a_compaction_is_one_line() -> None:
    """It stands below what is being said; its beginning and its summary are not told."""
    compaction = {"sessionUpdate": "compaction_update", "compactionId": "c"}
    assert ["agent:\n  a", "", "\ncompaction: completed\n", "compaction: failed: blank\n"] == told(
        chunk("a"),
        {"update": {**compaction, "status": "in_progress"}},
        {"update": {**compaction, "status": "completed", "summary": [{"type": "text", "text": "s"}]}},
        {"update": {**compaction, "status": "failed", "error": "blank"}},
    )


def test_who_speaks_has_a_heading() -> None:
    """Each message has one, also the next one of the same speaker; acpd's own words are acpd's."""
    assert ["you:\n  hi", "\nagent:\n  a", "\nagent:\n  b", "\nthought:\n  c", "\nacpd:\n  [acpd] d\n"] == told(
        chunk("hi", "user_message_chunk", "p"),
        chunk("a"),
        chunk("b", message="n"),
        chunk("c", "agent_thought_chunk", "o"),
        {**chunk("[acpd] d", message="q"), "_meta": {"acpd.dev/notice": True}},
    )


def test_no_text_can_pass_for_a_heading() -> None:
    """However it is cut, every line of a message is indented."""
    assert ["agent:\n  a", "", "\n  you:", "\n  b"] == told(*(chunk(text) for text in ("a", "\n", "you:\n", "b")))


def test_what_is_no_text_has_a_line_of_its_own() -> None:
    """An image between texts."""
    image = chunk("")
    image["update"]["content"] = {"type": "image", "mimeType": "image/png", "data": "AAAA"}
    assert ["agent:\n  a", "\n  [image image/png, 3 bytes]"] == told(chunk("a"), image)


def test_tool_calls_are_told_twice() -> None:
    """When they begin and when they have ended, with what came out; not in between, and not again."""
    output = [{"type": "content", "content": {"type": "text", "text": "out"}}]
    begun = call(title="Read a", kind="read")
    moved, ended = call(status="in_progress"), call(status="completed", content=output)
    lines = ["tool: Read a (read): pending\n", "", "\n", "tool: Read a (read): completed\n  out\n", ""]
    shown = Live()
    said = [shown.update(begun), shown.update(moved)]
    shown.update(chunk("x"))
    assert [*lines[:2], "\n" + lines[3], ""] == [*said, shown.update(ended), shown.update(ended)]
    assert "Read a" == shown.title("t")


def test_few_tool_calls_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest; of an older one only the id is known when it ends."""
    monkeypatch.setattr(live, "KNOWN", 2)
    shown = Live()
    for name in "abc":
        shown.update(call(toolCallId=name, title=f"Title {name}"))
    assert ["", "Title b", "Title c"] == [shown.title(name) for name in "abc"]
    assert "tool: a: failed\n" == shown.update(call(toolCallId="a", status="failed"))


def test_plans_and_lines() -> None:
    """A plan is told whole; whatever is told ends the message before it."""
    shown = Live()
    shown.update(chunk("a"))
    plan = {"update": {"sessionUpdate": "plan", "entries": [{"content": "One", "status": "completed"}, {"content": "Two"}]}}
    assert "\nplan:\n  [x] One\n  [ ] Two\n" == shown.update(plan)
    assert "turn ended: end_turn\n" == shown.lines(["turn ended: end_turn"])
    assert ["agent:\n  b", "\n", ""] == [shown.update(chunk("b")), shown.over(), shown.over()]
    shown.update(chunk("c"))
    shown.typed()
    assert "agent:\n  d" == shown.update(chunk("d"))


@pytest.mark.parametrize("params", [None, {}, {"update": 3}, {"update": {"sessionUpdate": "usage_update", "used": 1}}])
def test_what_has_no_place_here(params: Any) -> None:
    """Facts for a client with a place for them, and what is no update, are not shown."""
    assert "" == Live().update(params)
