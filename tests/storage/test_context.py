"""What a model would be given: context lines."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acpd.storage import context
from acpd.storage.context import Context, Line, lines_of
from acpd.storage.primer import Primed, Primer
from acpd.wire.lines import Stored
from tests.storage.history import Log, content, dumps, text
from tests.storage.test_replay import history, turns
from tests.support.paths import SHARED

Json = dict[str, Any]


def context_lines(path: list[Stored]) -> bytes:
    fold = Context()
    return fold.feed(path) + fold.finish()


def folded(log: Log) -> list[Json]:
    return [json.loads(line) for line in context_lines(log.path()).splitlines()]


def told(lines: list[Json]) -> list[tuple[str, str]]:
    """(role, text) of each line."""
    return [
        (line.get("role", "summary"), line.get("text") or "".join(block["text"] for block in line["content"])) for line in lines
    ]


def a_turn(log: Log, question: str, answer: str) -> Log:
    return log.prompt(text(question)).turn("running").say(answer).turn("ended")


def test_messages_have_the_id_of_their_first_chunk() -> None:
    """Prompts and messages are lines with the entry id of their first chunk, each behind the one before."""
    log = (
        Log()
        .prompt(text("a"), text("b"))
        .turn("running")
        .say("c")
        .say("d")
        .say("x", kind="agent_thought_chunk")
        .say("e")
        .turn("ended")
    )
    assert folded(log) == [
        {
            "type": "message",
            "id": "e1",
            "parentId": None,
            "at": log.lines[0].at,
            "role": "user",
            "content": [text("a"), text("b")],
        },
        {"type": "message", "id": "e3", "parentId": "e1", "at": log.lines[2].at, "role": "assistant", "content": [text("cd")]},
        {"type": "message", "id": "e6", "parentId": "e3", "at": log.lines[5].at, "role": "assistant", "content": [text("e")]},
    ]


def test_blocks_are_kept_as_they_were() -> None:
    """What is not plain text is the agent's own block, between the texts around it."""
    image = {"type": "image", "mimeType": "image/png", "data": "AAAA"}
    log = Log().say("a", "m").update({"sessionUpdate": "agent_message_chunk", "messageId": "m", "content": image}).say("b", "m")
    assert folded(log)[0]["content"] == [text("a"), image, text("b")]


def test_a_line_is_one_to_everybody() -> None:
    """White space of an agent's that some take for the end of a line is none; what its texts have stays."""
    odd = "a\u2028b\x85c\r\n"
    log = Log().prompt(text(odd)).turn("running")
    log.update(
        dumps({"sessionUpdate": "agent_message_chunk", "content": text(odd) | {"annotations": {}}}).replace(b",", b",\r")
    )
    raw = context_lines(log.path())
    assert [odd, odd] == [json.loads(line)["content"][0]["text"] for line in lines_of(raw)]
    assert lines_of(raw) == raw.splitlines()


def test_parallel_calls_have_their_results_by_id() -> None:
    """Each call is matched with its result by id, whatever the order; the results stand behind their message."""
    log = Log().prompt(text("u")).turn("running").say("m").call("c1", kind="read", rawInput={"path": "a"}).call("c2")
    log.patch("c2", status="completed", content=[content("B")]).say("late").patch(
        "c1", status="completed", content=[content("A")]
    )
    lines = folded(log.turn("ended"))
    assert told(lines) == [("user", "u"), ("assistant", "m"), ("tool", "A"), ("tool", "B"), ("assistant", "late")]
    assert [line.get("toolCallId") for line in lines] == [None, None, "c1", "c2", None]
    assert lines[1]["toolCalls"] == [
        {"toolCallId": "c1", "title": "do c1", "kind": "read", "rawInput": {"path": "a"}},
        {"toolCallId": "c2", "title": "do c2"},
    ]
    assert [line["id"] for line in lines] == ["e1", "e3", "e8", "e6", "e7"]


def test_a_call_after_results_is_a_new_message() -> None:
    """A call that is made when all results are there was made with the knowledge of them."""
    log = Log().call("c1", status="completed", content=[content("A")]).call("c2", status="completed")
    assert [line["role"] for line in folded(log)] == ["assistant", "tool", "assistant", "tool"]
    assert [line["id"] for line in folded(log)] == ["e1", "e1-result", "e2", "e2-result"]


def test_text_behind_a_call_is_another_message() -> None:
    """Where nothing else says so, or the result was there; texts and results stay in the order in which they were said."""
    log = Log(named=False).prompt(text("u")).turn("running").say("a").call("c1").say("b").patch("c1", status="completed")
    log.say("b").call("c2", status="completed", content=[content("C")]).say("d", "m").turn("ended")
    assert told(folded(log)) == [
        ("user", "u"),
        ("assistant", "a"),
        ("tool", "[no output]"),
        ("assistant", "bb"),
        ("tool", "C"),
        ("assistant", "d"),
    ]
    log = Log().say("a", "m").call("c1").say("b", "m").patch("c1", status="completed").say("c", "m")
    assert told(folded(log)) == [("assistant", "ab"), ("tool", "[no output]"), ("assistant", "c")]


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ({}, "[interrupted: no result]"),
        ({"status": "in_progress", "content": [content("half")]}, "half\n[interrupted: no result]"),
        ({"status": "completed"}, "[no output]"),
        ({"status": "failed"}, "[failed: no output]"),
        ({"status": "completed", "rawOutput": "raw"}, "raw"),
        ({"status": "completed", "rawOutput": {"a": 1.50}}, '{"a":1.5}'),
        ({"status": "completed", "rawOutput": "raw", "content": [content("A"), content("B")]}, "A\nB"),
        ({"status": "completed", "content": [{"type": "diff", "path": "/a", "newText": "x"}]}, "[changed /a]"),
        ({"status": "completed", "content": [{"type": "terminal", "terminalId": "t"}]}, "[terminal output is not kept]"),
        (
            {
                "status": "completed",
                "content": [{"type": "content", "content": {"type": "image", "mimeType": "image/png", "data": "AA"}}],
            },
            "[image/png]",
        ),
    ],
)
def test_result_of_a_call(members: Json, expected: str) -> None:
    """Every call has one result: what it brought as text, or that there is none."""
    lines = folded(Log().prompt(text("u")).turn("running").call("c1", **members).turn("interrupted"))
    assert told(lines)[2:] == [("tool", expected)]


def test_no_result_without_its_call() -> None:
    """An update of a call that the turn did not make is not in the context."""
    log = (
        Log()
        .prompt(text("u"))
        .turn("running")
        .call("c1")
        .turn("ended")
        .patch("c1", status="completed")
        .patch("c9", status="failed")
    )
    assert told(folded(log)) == [("user", "u"), ("assistant", ""), ("tool", "[interrupted: no result]")]


def compacted(log: Log, summary: str | None, kept_after: str | None = None, status: str = "completed") -> Log:
    log.update(
        {"sessionUpdate": "compaction_update", "compactionId": f"k{len(log.lines)}", "status": status}
        | ({} if summary is None else {"summary": [text(summary)]})
    )
    log.lines[-1].entry = kept_after
    return log


def test_compaction_is_a_summary() -> None:
    """A completed compaction is a summary of all before it, or of what its entry says; the log's lines stay."""
    log = a_turn(Log(), "u1", "a1").prompt(text("u2")).turn("running")
    lines = folded(compacted(log, "sum").say("a2").turn("ended"))
    assert told(lines) == [("user", "u1"), ("assistant", "a1"), ("user", "u2"), ("summary", "sum"), ("assistant", "a2")]
    assert (lines[3]["upTo"], lines[4]["parentId"]) == ("e5", lines[3]["id"])
    assert folded(compacted(a_turn(Log(), "u1", "a1"), "sum", "e1"))[-1]["upTo"] == "e1"


def test_summary_in_chunks() -> None:
    """A summary that came in chunks is whole; one that was not completed, or says nothing, is none."""
    log = Log().update({"sessionUpdate": "compaction_update", "compactionId": "k", "status": "in_progress"})
    for token in "ab":
        log.update({"sessionUpdate": "compaction_summary_chunk", "compactionId": "k", "content": text(token)})
    log.update({"sessionUpdate": "compaction_update", "compactionId": "k", "status": "completed"})
    assert told(folded(log)) == [("summary", "ab")]
    assert folded(compacted(compacted(Log(), None), "x", status="failed")) == []


def test_unreadable_lines_are_left_out() -> None:
    """A stored line that is not what its kind says is left out, and the others are folded."""
    fold = Context()
    log = Log().say("a")
    log.lines.append(Stored(type="update", id="x", seq=2, parentId="e1", kind="tool_call"))
    log.lines.append(Stored(type="update", id="y", seq=3, parentId="e1", kind="tool_call_update", params=log.lines[0].params))
    assert fold.feed(log.path()) == b""
    assert json.loads(fold.finish())["id"] == "e1"


def grown(path: list[Stored], step: int) -> bytes:
    """The file of a session that is saved now and then: each time from the entries after the last that it has."""
    out, parent, seq = b"", None, 0
    for end in range(step, len(path), step):
        fold = Context(parent)
        out += fold.feed([line for line in path[:end] if line.seq > seq])
        parent, seq = fold.parent, max(seq, fold.seq)
    fold = Context(parent)
    return out + fold.feed([line for line in path if line.seq > seq]) + fold.finish()


@settings(max_examples=150, deadline=None)
@given(turns, st.integers(1, 9))
def test_turn_by_turn_is_all_at_once(parts: Any, window: int) -> None:
    """A file that grows turn by turn is the file that is written anew; ids are unique; every call has one result."""
    path = history(parts).path()
    whole = context_lines(path)
    fold = Context()
    windows = [fold.feed(path[start : start + window]) for start in range(0, len(path), window)]
    assert whole == b"".join([*windows, fold.finish()])
    assert whole == grown(path, window)
    lines = [json.loads(line) for line in whole.splitlines()]
    assert len({line["id"] for line in lines}) == len(lines)
    for line, after in pairwise([*lines, {}]):
        if line.get("toolCalls"):
            assert after["toolCallId"] == line["toolCalls"][0]["toolCallId"]
    made = [call["toolCallId"] for line in lines for call in line.get("toolCalls", [])]
    assert made == [line["toolCallId"] for line in lines if line.get("role") == "tool"]


# The corpus: session trees of another program, turned into lines of ours


def converted(name: str) -> Log:
    """The entries of one corpus file along its only branch, as acpd would have stored them."""
    log = Log()
    ours: dict[str, str | None] = {}
    for raw in (SHARED / "corpus" / "trees" / f"{name}.jsonl").read_text().splitlines()[1:]:
        entry = json.loads(raw)
        before = log.leaf
        if entry["type"] == "compaction":
            compacted(log, entry["summary"], ours[entry["firstKeptEntryId"]])
        elif entry["type"] == "message":
            said(log, entry["message"], entry["id"])
        ours[entry["id"]] = before
    return log


def said(log: Log, message: Json, name: str) -> None:
    if message["role"] == "user":
        log.prompt(*message["content"])
    elif message["role"] == "toolResult":
        log.patch(
            message["toolCallId"],
            status="completed",
            content=[{"type": "content", "content": block} for block in message["content"]],
        )
    else:
        for block in message["content"]:
            if block["type"] == "text":
                log.say(block["text"], name)
            elif block["type"] == "toolCall":
                log.call(block["id"], rawInput=block["arguments"])
            elif block.get("thinking"):
                log.say(block["thinking"], f"{name}-thought", "agent_thought_chunk")


def expectation(name: str) -> Json:
    source = (SHARED / "corpus" / "trees" / f"{name}.expect.md").read_text()
    loaded: Json = json.loads(source.split("```json")[1].split("```")[0])
    return loaded


HEALTHY = ["01_linear", "03_parallel_tools", "04_compaction", "22_open_call", "25_clock_back"]


@pytest.mark.parametrize("name", HEALTHY)
def test_corpus(name: str) -> None:
    """Replay, context, call and result pairs, and open calls of the healthy trees are as the corpus says."""
    log, expected = converted(name), expectation(name)
    lines = folded(log)
    results = {line["toolCallId"]: line["content"][0]["text"] for line in lines if line.get("role") == "tool"}
    if "context" in expected:
        assert primed(lines) == expected["context"]
    if "pairs" in expected:
        assert results == expected["pairs"]
    if "open_calls" in expected:
        assert [name for name, result in results.items() if result == context.INTERRUPTED] == expected["open_calls"]
    if "replay" in expected:
        assert [update["content"]["text"] for update in replayed(log) if "messageId" in update] == expected["replay"]


def test_corpus_compaction_cut_inside_a_batch() -> None:
    """Where a compaction was cut inside a batch of calls, no result without its call goes to the model."""
    got = prime(context_lines(converted("23_cut_in_batch").path()).splitlines(), 10_000).text
    assert got.count("Tool call: ") == got.count("Result: ")
    assert got.index("Summary of") < got.index("User: u2") < got.index("Assistant: a2")


def replayed(log: Log) -> list[Json]:
    return [json.loads(frame)["params"]["update"] for frame in log.replay()]


def prime(lines: Iterable[bytes | Line], tokens: int) -> Primed:
    """What a primer tells of these lines."""
    primer = Primer(tokens)
    for line in lines:
        primer.add(line)
    return primer.told()


def primed(lines: list[Json]) -> list[str]:
    """The texts that a model is sent, by the rule of the summary."""
    out: list[tuple[str, str]] = []
    for line in lines:
        if line["type"] == "summary":
            names = [name for name, _ in out]
            out = [("", "<summary>"), *out[names.index(line["upTo"]) + 1 :]]
        else:
            out.append((line["id"], line["content"][0]["text"]))
    return [said for _, said in out]
