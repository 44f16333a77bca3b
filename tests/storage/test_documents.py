"""From the lines of a log to documents."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acpd.storage import documents as module
from acpd.storage.documents import LONGEST, Documents
from acpd.storage.hits import Document
from acpd.wire.lines import Stored, decode

Json = dict[str, Any]


class Log:
    """Lines with dense seq, as they would be read back."""

    def __init__(self) -> None:
        self.lines: list[Stored] = []

    def add(self, type_: str, /, **members: Any) -> Log:
        seq = len(self.lines) + 1
        line = {"type": type_, "id": f"e{seq}", "seq": seq, "at": f"2026-11-30T12:00:{seq % 60:02}.000Z", "parentId": None}
        self.lines.append(decode(json.dumps(line | members).encode()))
        return self

    def prompt(self, *blocks: str | Json) -> Log:
        said = [{"type": "text", "text": each} if isinstance(each, str) else each for each in blocks]
        self.add("prompt", prompt=said)
        return self.add("turn", state="running", entry=f"e{len(self.lines)}")

    def end(self) -> Log:
        return self.add("turn", state="ended", stopReason="end_turn")

    def update(self, kind: str, /, *, message: str = "", **members: Any) -> Log:
        params = {"sessionId": "i", "update": {"sessionUpdate": kind, **members}}
        return self.add("update", kind=kind, params=params, **({"messageId": message} if message else {}))

    def say(self, text: str, message: str = "", kind: str = "agent_message_chunk") -> Log:
        return self.update(kind, message=message, content={"type": "text", "text": text})

    def think(self, text: str, message: str = "") -> Log:
        return self.say(text, message, "agent_thought_chunk")

    def call(self, name: str, **members: Any) -> Log:
        return self.update("tool_call", toolCallId=name, **{"title": name, **members})

    def patch(self, name: str, **members: Any) -> Log:
        return self.update("tool_call_update", toolCallId=name, **members)


def text(words: str) -> Json:
    return {"type": "content", "content": {"type": "text", "text": words}}


def all_of(lines: Sequence[Stored]) -> list[Document]:
    taken = Documents()
    return [document for part in taken.feed(lines) for document in part.documents] + taken.rest()


def short(found: list[Document]) -> list[tuple[str, ...]]:
    return [(each.entry, each.scope, each.text, *each.paths.splitlines()) for each in found]


def test_a_turn() -> None:
    """A prompt, a thought, a message and a call are one document each, whole, with the id of its first entry."""
    log = Log().prompt("Fix ", "the login").think("Let me ").think("see").say("I ", "m1").say("did it", "m1")
    log.call("Edit", locations=[{"path": "/src/a.py"}], status="in_progress")
    log.patch("Edit", status="completed", content=[text("ok"), {"type": "diff", "path": "/src/b.py", "newText": "secret"}])
    log.say(" well", "m1").end()
    assert [
        ("e1", "prompt", "Fix \nthe login"),
        ("e3", "thought", "Let me see"),
        ("e5", "answer", "I did it well"),
        ("e7", "tool", "Edit\nok", "/src/a.py", "/src/b.py"),
    ] == short(all_of(log.lines))
    assert (5, "2026-11-30T12:00:05.000Z") == (all_of(log.lines)[2].seq, all_of(log.lines)[2].at)


def test_text_behind_a_call() -> None:
    """Is a message of its own where nothing says that both are one; so no words are made of two."""
    log = Log().say("I ").say("see").call("Edit").patch("Edit", status="completed").say("done")
    assert [("e1", "answer", "I see"), ("e3", "tool", "Edit"), ("e5", "answer", "done")] == short(all_of(log.lines))


def test_what_a_prompt_links_to() -> None:
    """Files that a prompt names are its paths; the text of an embedded one is its own."""
    link = {"type": "resource_link", "name": "login.py", "uri": "file:///src/login.py"}
    embedded = {"type": "resource", "resource": {"uri": "file:///a.md", "text": "inside"}}
    log = Log().prompt("See", link, {"type": "image", "data": "AAAA", "mimeType": "image/png"}, embedded)
    assert [("e1", "prompt", "See\nlogin.py\ninside", "file:///src/login.py", "file:///a.md")] == short(all_of(log.lines))


def test_what_is_not_searched() -> None:
    """Plans, modes, notices of acpd, asks, what a tool was given, and what cannot be read."""
    log = Log().update("plan", entries=[{"content": "plan", "priority": "high", "status": "pending"}])
    log.add("ask", method="session/request_permission", params={"toolCall": {"title": "ask"}})
    params = {
        "sessionId": "i",
        "update": {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "[acpd] x"}},
    }
    log.add("update", kind="agent_message_chunk", params=params | {"_meta": {"acpd.dev/notice": True}})
    log.update("agent_message_chunk", content=7).update("tool_call", title="no id").add("prompt", prompt=[{"type": "?"}])
    log.add("update", kind="agent_message_chunk").add("info", title="t").add("gap")
    log.call("", rawInput={"text": "given"})
    assert [] == short(all_of(log.lines))


@pytest.mark.parametrize(
    ("output", "expected"), [("plain", "plain"), ({"a": 1}, '{"a": 1}'), (None, ""), ("x" * (LONGEST + 5), "x" * (LONGEST - 5))]
)
def test_the_output_of_a_tool(output: object, expected: str) -> None:
    """Where a call has no content of text, what came out of it raw; a bounded stretch of it."""
    log = Log().call("call", rawOutput=output)
    assert f"call\n{expected}".rstrip() == all_of(log.lines)[0].text
    assert "call\nsaid" == all_of(log.call("call", content=[text("said")], rawOutput=output).lines)[0].text


def test_a_message_that_is_long() -> None:
    """Has its beginning searched."""
    log = Log().say("x" * LONGEST, "m").say("y", "m")
    assert ["x" * LONGEST] == [each.text for each in all_of(log.lines)]


def test_a_call_that_goes_on_behind_its_turn() -> None:
    """What is said of it then is a document of its own; the old one stays as it was, as in the log."""
    log = Log().prompt("go").call("build", status="in_progress").end()
    log.patch("build", status="completed", content=[text("built")])
    assert [("e1", "prompt", "go"), ("e3", "tool", "build"), ("e5", "tool", "built")] == short(all_of(log.lines))


def test_a_log_without_turns() -> None:
    """An agent's own conversation, recorded: what the user said begins a turn."""
    log = Log()
    for number in range(3):
        log.say(f"ask {number} ", kind="user_message_chunk").say("more", kind="user_message_chunk").say(f"answer {number}")
    taken = Documents()
    parts = taken.feed(log.lines)
    assert [(3, 2), (6, 2)] == [(part.settled, len(part.documents)) for part in parts]
    assert [("e7", "prompt", "ask 2 more"), ("e9", "answer", "answer 2")] == short(taken.rest())


def test_a_long_turn_is_settled_in_parts() -> None:
    """Where no call is open; or where too many are held back."""
    log = Log().prompt("go")
    for number in range(100):
        log.call(f"call {number}", status="in_progress").patch(f"call {number}", status="completed", content=[text("ok")])
    parts = Documents().feed(log.lines)
    assert [32] * 3 == [len(part.documents) for part in parts]
    assert all(each.text.endswith("\nok") for part in parts for each in part.documents if each.scope == "tool")
    stuck = Log().prompt("go").call("never ends")
    for number in range(260):
        stuck.call(f"call {number}", status="completed")
    assert [256] == [len(part.documents) for part in Documents().feed(stuck.lines)]


STEPS = st.lists(
    st.sampled_from(
        [
            "prompt",
            "end",
            "say m1",
            "say m2",
            "say",
            "think",
            "user",
            "call a",
            "call b",
            "patch a",
            "patch b",
            "done a",
            "info",
            "bad",
        ]
    ),
    max_size=60,
)


def written(steps: list[str]) -> list[Stored]:
    log = Log()
    for number, step in enumerate(steps):
        word, _, name = step.partition(" ")
        match word:
            case "prompt":
                log.prompt(f"p{number}")
            case "end":
                log.end()
            case "say":
                log.say(f"s{number} ", name)
            case "think":
                log.think(f"t{number} ")
            case "user":
                log.say(f"u{number} ", kind="user_message_chunk")
            case "call":
                log.call(name, status="pending")
            case "patch":
                log.patch(name, content=[text(f"c{number}")])
            case "done":
                log.patch(name, status="completed")
            case "info":
                log.add("info", title="x")
            case _:
                log.update("agent_message_chunk", content=1)
    return log.lines


@settings(max_examples=200)
@given(STEPS, st.lists(st.integers(0, 80), max_size=6))
def test_any_parts_give_what_the_whole_gives(steps: list[str], cuts: list[int]) -> None:
    """A log that is taken in parts, each from where the last one settled, gives the documents of the whole log."""
    lines = written(steps)
    kept: list[Document] = []
    at = 0
    for end in [*sorted(min(cut, len(lines)) for cut in cuts), len(lines)]:
        taken = Documents(at)
        kept = [each for each in kept if each.seq <= at]
        kept += [document for part in taken.feed(lines[at:end]) for document in part.documents]
        kept += taken.rest()
        at = taken.settled
    assert all_of(lines) == kept


@given(STEPS)
def test_held_back_or_not(steps: list[str]) -> None:
    """Parts of a long turn have what the turn has, and each document is in one part."""
    lines = written(steps)
    taken = Documents()
    parts = taken.feed(lines)
    assert [part.settled for part in parts] == sorted({part.settled for part in parts})
    seqs = [each.seq for part in parts for each in part.documents] + [each.seq for each in taken.rest()]
    assert seqs == sorted(set(seqs))


def test_a_small_bound_changes_no_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    """The property above holds where a turn is settled in parts."""
    monkeypatch.setattr(module, "HELD", 2)
    test_any_parts_give_what_the_whole_gives()
