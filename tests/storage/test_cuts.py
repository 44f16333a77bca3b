"""Compactions: the context begins with the newest summary, and goes on where that ends."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acpd.storage.context import Context, Line, Message, Summary, decode_line
from acpd.storage.cuts import Cuts
from tests.storage.history import Log, text


def context(log: Log, window: int = 1000) -> list[Line]:
    """As `acpd fsck` and a save make it."""
    path = log.path()
    windows = [path[at : at + window] for at in range(0, len(path), window)]
    cuts = Cuts()
    for each in windows:
        cuts.feed(each)
    fold = Context(cut=cuts.newest)
    return [decode_line(line) for each in windows for line in fold.feed(each).splitlines()]


def compact(log: Log, summary: str, up_to: str | None = None, status: str = "completed") -> Log:
    meta = {} if up_to is None else {"_meta": {"acpd.dev/upTo": up_to}}
    said = {"sessionUpdate": "compaction_update", "compactionId": f"k{len(log.lines)}", "status": status}
    return log.update({**said, "summary": [text(summary)], **meta})


def turn(log: Log, number: int, calls: int = 0, between: Any = None) -> Log:
    """`u1`, then `m1`, calls of it with their results, and `n1`, which is the answer; `between` is said before the answer."""
    log.prompt(text(f"u{number}")).turn("running").say(f"m{number}", f"m{number}")
    for call in range(calls):
        log.call(f"c{number}.{call}")
    for call in range(calls):
        log.patch(f"c{number}.{call}", status="completed")
    if between is not None:
        between(log)
    return log.say(f"n{number}", f"n{number}").turn("ended") if calls else log.turn("ended")


def told(lines: list[Line]) -> list[str]:
    return [f"<{line.text}>" if isinstance(line, Summary) else line.toolCallId or _text(line) for line in lines]


def _text(line: Message) -> str:
    import json

    return "".join(json.loads(bytes(block))["text"] for block in line.content)


@pytest.mark.parametrize(
    ("up_to", "expected"),
    [
        ("m1", ["<sum>", "u2", "m2", "c2.0", "c2.1", "n2", "u3", "m3", "u4"]),
        ("c2.1", ["<sum>", "n2", "u3", "m3", "u4"]),
        ("c2.0", ["<sum>", "n2", "u3", "m3", "u4"]),
        ("m2", ["<sum>", "n2", "u3", "m3", "u4"]),
        ("n2", ["<sum>", "u3", "m3", "u4"]),
        (None, ["<sum>"]),
        ("unknown", ["<sum>"]),
    ],
)
def test_s08_a_context_begins_with_the_summary(up_to: str | None, expected: list[str]) -> None:
    """What the summary covers is not in the context: up to what the agent names with all of its calls, else all before it."""
    log = turn(turn(turn(Log(), 1), 2, calls=2), 3)
    whole = context(log)
    log.prompt(text("u4")).turn("running")
    compact(log, "sum", up_to).turn("ended")
    lines = context(log)
    assert expected == told(lines)
    summary = lines[0]
    assert isinstance(summary, Summary)
    before = [*(line.id for line in whole), log.lines[-4].id]
    assert before[-len(expected)] == summary.upTo
    assert [line.id for line in lines[:-1]] == [line.parentId for line in lines[1:] if isinstance(line, Message)]


def test_s08_a_name_that_was_used_again_is_the_newest() -> None:
    """An agent that had to begin anew, as after a branch, counts its messages from one again."""
    log = Log()
    for number in range(4):
        log.prompt(text(f"u{number}")).turn("running").say(f"m{number}", f"message-{number % 2}").turn("ended")
    compact(log.prompt(text("u4")).turn("running"), "sum", "message-0").say("m4").turn("ended")
    for window in (1, 5, 1000):
        assert ["<sum>", "u3", "m3", "u4", "m4"] == told(context(log, window))


def test_a_compaction_within_a_turn() -> None:
    """In the middle of a turn the summary may end with a call of that turn; what follows it is kept."""
    log = turn(turn(Log(), 1), 2, calls=2, between=lambda log: compact(log, "sum", "c2.1"))
    assert ["<sum>", "n2"] == told(context(log))


def test_only_a_turn_that_is_over_counts() -> None:
    """As long as the turn of a compaction runs the context is what it was."""
    log = turn(Log(), 1).prompt(text("u2")).turn("running")
    compact(log, "sum", "m1")
    assert ["u1", "m1"] == told(context(log))
    assert ["<sum>", "u2"] == told(context(log.turn("interrupted")))


def test_the_newest_of_several_counts() -> None:
    """An older summary is not in the context, wherever it stands; one that failed or is blank is none."""
    log = turn(turn(turn(Log(), 1), 2), 3)
    compact(log, "old", "m2")
    turn(compact(compact(log, "new", "m1"), "", "m3"), 4)
    turn(compact(log, "bad", "m3", status="failed"), 5)
    assert ["<new>", "u2", "m2", "u3", "m3", "u4", "m4", "u5", "m5"] == told(context(log))


def test_one_that_was_not_told_is_noticed() -> None:
    """Whoever goes on with a context is told that there is a compaction, so that it is made anew."""
    log = turn(Log(), 1)
    fold = Context()
    fold.feed(log.path())
    assert not fold.compacted
    fold.feed(turn(compact(log, "sum"), 2).path()[-5:])
    assert fold.compacted


said = st.lists(
    st.tuples(st.integers(0, 3), st.none() | st.integers(0, 8).map(str) | st.just("n0") | st.just("c1.0")),
    min_size=1,
    max_size=8,
)


@given(said, st.integers(1, 30))
def test_no_result_is_without_its_call(turns: list[tuple[int, str | None]], window: int) -> None:
    """Whatever agents name and wherever the windows end: one summary at most, pairs whole, the newest lines kept in order."""
    log = Log()
    for number, (calls, up_to) in enumerate(turns):
        turn(log, number, calls, None if up_to is None else lambda log, up_to=up_to: compact(log, "sum", f"m{up_to}"))
    lines = context(log, window)
    made: list[str] = []
    done: list[str] = []
    for line in lines[isinstance(lines[0], Summary) :]:
        assert isinstance(line, Message)
        made += [call.toolCallId for call in line.toolCalls or []]
        done += [line.toolCallId] if line.toolCallId else []
    assert made == done
    every = map(decode_line, Context().feed(log.path()).splitlines())
    whole = [line.id for line in every if isinstance(line, Message)]
    kept = [line.id for line in lines if isinstance(line, Message)]
    assert kept == whole[len(whole) - len(kept) :]
    assert lines == context(log)
