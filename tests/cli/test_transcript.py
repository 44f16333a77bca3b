"""A conversation as people read it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from acpd.cli import transcript
from acpd.wire import lines
from acpd.wire.lines import Stored


class Script:
    """Entries in a row."""

    def __init__(self) -> None:
        self.stored: list[Stored] = []

    def add(self, kind: str, /, **members: Any) -> Script:
        number = len(self.stored) + 1
        value = {
            "type": kind,
            "id": f"e{number}",
            "parentId": f"e{number - 1}" if number > 1 else None,
            "seq": number,
            **members,
        }
        self.stored.append(lines.decode(msgspec.json.encode(value)))
        return self

    def prompt(self, text: str) -> Script:
        return self.add("prompt", prompt=[{"type": "text", "text": text}])

    def update(self, kind: str, message: str = "", /, **members: Any) -> Script:
        params = {"sessionId": "s", "update": {"sessionUpdate": kind, **members}}
        return self.add("update", kind=kind, params=params, messageId=message)

    def said(self, text: str, message: str = "", kind: str = "agent_message_chunk") -> Script:
        return self.update(kind, message, content={"type": "text", "text": text})

    def turn(self, state: str, **members: Any) -> Script:
        return self.add("turn", state=state, **members)

    def told(self) -> list[str]:
        return tell(self.stored)


def tell(stored: Iterable[Stored]) -> list[str]:
    told = transcript.Transcript()
    return [text for line in stored for text in told.feed(line)] + told.finish()


def test_messages_are_joined() -> None:
    """Adjacent chunks of one speaker and message are one message; a turn ends with its reason."""
    script = (
        Script().prompt("hello").turn("running").said("Good ").said("day.\nHow are you?").turn("ended", stopReason="end_turn")
    )
    assert ["you:", "  hello", "agent:", "  Good day.", "  How are you?", "turn ended: end_turn", ""] == script.told()


def test_messages_are_told_apart() -> None:
    """Another messageId or another speaker begins another message."""
    script = Script().said("a", "1").said("b", "2").said("c", "2", "agent_thought_chunk")
    assert ["agent:", "  a", "agent:", "  b", "thought:", "  c"] == script.told()


def test_a_tool_call_is_told_once() -> None:
    """A tool call stands where it began, in its last state, with its output."""
    script = (
        Script()
        .update("tool_call", toolCallId="t", title="Read", kind="read", status="pending")
        .said("meanwhile")
        .update("tool_call_update", toolCallId="t", status="completed", title=None)
        .update("tool_call_update", toolCallId="t", content=[{"type": "content", "content": {"type": "text", "text": "1\n2"}}])
        .turn("ended", stopReason="end_turn")
    )
    assert ["tool: Read (read): completed", "  1", "  2", "agent:", "  meanwhile"] == script.told()[:5]


def test_a_tool_call_without_an_end() -> None:
    """A call that was open when its turn ended says so; one of a running turn does not."""
    script = Script().update("tool_call", toolCallId="t", title="Build", status="in_progress")
    assert ["tool: Build: in_progress"] == script.told()
    assert "tool: Build: in_progress, never ended" == script.turn("interrupted").told()[0]


def test_long_output_is_cut() -> None:
    """Of a tool's output the first lines are shown, and how many are not."""
    text = "\n".join(map(str, range(100)))
    content = [{"type": "content", "content": {"type": "text", "text": text}}]
    told = Script().update("tool_call", toolCallId="t", title="x", content=content).told()
    assert ["  19", "  ... and 80 more lines"] == told[-2:]


def test_asks() -> None:
    """An ask says what was asked and which option was taken, by name."""
    options = [{"optionId": "y", "name": "Allow", "kind": "allow_once"}]
    params = {"sessionId": "s", "toolCall": {"toolCallId": "t", "title": "rm -rf build"}, "options": options}
    script = Script().add("ask", method="session/request_permission", params=params)
    assert ["ask: rm -rf build -> no answer yet"] == script.told()
    chosen = {"outcome": {"outcome": "selected", "optionId": "y"}}
    script.add("answer", ask="e1", result=chosen, by="client")
    assert ["ask: rm -rf build -> Allow (allow_once)"] == script.told()


def test_an_ask_names_its_tool_call() -> None:
    """An ask that only names a tool call is told with that call's title."""
    script = Script().update("tool_call", toolCallId="t", title="Delete all")
    script.add("ask", method="session/request_permission", params={"toolCall": {"toolCallId": "t"}})
    assert ["tool: Delete all: pending", "ask: Delete all -> no answer yet"] == script.told()


def test_empty_lines_at_the_end_are_left_out() -> None:
    """Of a text that ends in empty lines these are not told; those within it are."""
    assert ["agent:", "  a", "", "  b"] == Script().said("a\n\nb\n\n").told()


def test_asks_that_were_not_answered() -> None:
    """A cancelled ask says that nobody said yes, and who ended it."""
    script = Script().add("ask", method="elicitation/create", params={"sessionId": "s", "message": "Which branch?"})
    script.add("answer", ask="e1", result={"action": "cancel"}, by="acpd").add(
        "answer", ask="gone", error={"code": 1, "message": "no"}
    )
    assert ["ask: Which branch? -> cancel, by acpd", "answer: error: no"] == script.told()


def test_compactions() -> None:
    """One line of each, where it began, in the state in which it ended: with its summary, or with the reason."""
    text = {"type": "text", "text": "We talk\nof ports."}
    script = (
        Script()
        .prompt("/compact")
        .update("compaction_update", compactionId="a", status="in_progress")
        .said("meanwhile")
        .update("compaction_update", compactionId="a", status="completed", summary=[text])
        .update("compaction_update", compactionId="b", status="in_progress", summary=[text])
        .update("compaction_update", compactionId="b", status="failed", error="it was\nblank")
        .update("compaction_update", compactionId="c", status="completed")
        .update("compaction_summary_chunk", compactionId="c", content={"type": "text", "text": "Of "})
        .update("compaction_summary_chunk", compactionId="c", content={"type": "text", "text": "tea."})
        .update("compaction_update", compactionId="d", status="in_progress")
    )
    assert [
        "you:",
        "  /compact",
        "compaction: completed",
        "  We talk",
        "  of ports.",
        "agent:",
        "  meanwhile",
        "compaction: failed: it was blank",
        "compaction: completed",
        "  Of tea.",
        "compaction: in_progress",
    ] == script.told()


def test_plans_gaps_and_the_unknown() -> None:
    """Of the plans of a turn the last one is told; a gap is visible; what is unknown is named."""
    script = (
        Script()
        .update("plan", entries=[{"content": "one", "status": "pending"}])
        .update("plan", entries=[{"content": "one", "status": "completed"}, {"content": "two", "status": "in_progress"}])
        .add("gap")
        .update("hologram_update")
        .add("ritual")
    )
    assert [
        "plan:",
        "  [x] one",
        "  [>] two",
        "gap: a part of the history could not be read",
        "update: hologram_update",
        "ritual: not known to this version",
    ] == script.told()


def test_other_content_is_named() -> None:
    """Images, links and resources stand in brackets, each on its own line."""
    blocks = [
        {"type": "text", "text": "look"},
        {"type": "image", "mimeType": "image/png", "data": "AAAA"},
        {"type": "resource_link", "name": "a.py", "uri": "file:///a.py"},
        {"type": "resource", "resource": {"uri": "file:///b", "text": "body"}},
        {"type": "smell"},
    ]
    told = Script().add("prompt", prompt=blocks).told()
    assert ["  look", "  [image image/png, 3 bytes]", "  [a.py: file:///a.py]", "  [file:///b]", "  body", "  [smell]"] == told[
        1:
    ]


def test_text_cannot_pass_for_a_heading() -> None:
    """What was said is indented, line by line."""
    told = Script().prompt("x\nturn ended: end_turn\nagent:").told()
    assert ["you:"] == [line for line in told if line and not line.startswith("  ")]


def test_memory_is_bounded() -> None:
    """A turn without an end is told in pieces."""
    told = transcript.Transcript()
    script = Script()
    for number in range(transcript.HELD + 1):
        script.said("x", str(number))
    fed = [told.feed(line) for line in script.stored]
    assert [] == fed[-2]
    assert 2 * (transcript.HELD + 1) == len(fed[-1])


_NAMES = st.sampled_from(
    ["type", "text", "content", "toolCallId", "status", "entries", "title", "options", "outcome", "sessionUpdate", "resource"]
)
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(_NAMES, inner, max_size=4),
    max_leaves=8,
)
_KINDS = st.sampled_from(["agent_message_chunk", "tool_call", "tool_call_update", "plan", "compaction_update", "other", ""])


@given(st.lists(st.tuples(_KINDS, st.dictionaries(_NAMES, _VALUES, max_size=4), _VALUES), max_size=6))
def test_nothing_that_an_agent_wrote_fails(entries: list[tuple[str, Any, Any]]) -> None:
    """Whatever shape an update, prompt, ask or answer has, it is told as text."""
    script = Script()
    for kind, members, value in entries:
        script.add("update", kind=kind, params={"update": members}).add("prompt", prompt=value).add(
            "update", kind=kind, params=value
        )
        script.add("ask", method="m", params=value).add("answer", ask=script.stored[-1].id, result=members, error=value)
        script.turn("ended", error=value)
    assert all(isinstance(line, str) for line in script.told())


def test_a_notice_is_acpds() -> None:
    """What acpd put into the conversation is not the agent's, beside what the agent said."""
    script = Script().prompt("go").said("Good.")
    update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "[acpd] anew"}}
    params = {"sessionId": "s", "update": update, "_meta": {"acpd.dev/notice": True}}
    script.add("update", kind="agent_message_chunk", params=params, messageId="n")
    assert ["you:", "  go", "agent:", "  Good.", "acpd:", "  [acpd] anew"] == script.told()
