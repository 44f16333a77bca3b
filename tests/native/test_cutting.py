"""Where a conversation may be cut, when it is too long, and that no call is ever without its result. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai.messages import (
    BinaryContent,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.usage import RequestUsage

from acpd.native import cutting, summarising
from acpd.native.cutting import Rules
from acpd.native.history import History, Memory, paired


def asked(text: str = "q") -> ModelRequest:
    return ModelRequest(parts=[UserPromptPart(content=[text])])


def answered(text: str = "a", calls: Sequence[str] = (), used: int = 0) -> ModelResponse:
    parts: list[Any] = [TextPart(text), *(ToolCallPart("read", {"path": name}, tool_call_id=name) for name in calls)]
    return ModelResponse(parts=parts, usage=RequestUsage(input_tokens=used, output_tokens=used // 10))


def results(calls: Sequence[str], text: str = "r", prompt: str = "") -> ModelRequest:
    parts: list[Any] = [ToolReturnPart("read", text, tool_call_id=name) for name in calls]
    return ModelRequest(parts=[*parts, UserPromptPart(prompt)] if prompt else parts)


@st.composite
def conversations(draw: st.DrawFn) -> list[ModelMessage]:
    """As a history makes them: turns with rounds of parallel calls, some cancelled, some prompts without an answer, a beginning
    in the middle of a turn.
    """
    messages: list[ModelMessage] = []
    count = 0
    middle = draw(st.booleans())
    for turn in range(draw(st.integers(1, 8))):
        size = draw(st.sampled_from([1, 10, 4_000]))
        if turn or not middle:
            if messages and isinstance(messages[-1], ModelRequest):
                last: Any = messages.pop()
                messages.append(ModelRequest(parts=[*last.parts, UserPromptPart("q" * size)]))
            else:
                messages.append(asked("q" * size))
        for calls in draw(st.lists(st.integers(1, 4), max_size=4)):
            names = [f"c{count + number}" for number in range(calls)]
            count += calls
            messages += [answered("a", names), results(names, "r" * size)]
        if draw(st.booleans()):
            messages.append(answered("a" * size))
    return messages or [asked()]


@given(conversations(), st.integers(1, 25), st.integers(0, 3_000))
def test_a_cut_keeps_pairs_whole(messages: list[ModelMessage], keep: int, room: int) -> None:
    """On either side every call has its result and no result is alone; a prompt stays with its answer; what is kept is the end,
    as long as may be, and something is left that is asked now; each cut makes progress.
    """
    at = cutting.cut(messages, keep, room)
    legal = cutting.boundaries(messages)
    if not legal:
        assert 0 == at
        return
    assert 0 < at < len(messages)
    for side in (messages[:at], messages[at:]):
        assert side == paired(side)
    assert not (isinstance(messages[at], ModelResponse) and isinstance(messages[at - 1].parts[-1], UserPromptPart))
    most = min(keep, len(messages) // 2)

    def fits(place: int) -> bool:
        return len(messages) - place <= most and sum(map(cutting.size, messages[place:])) <= room * 4

    assert at == next(filter(fits, legal), legal[-1])


@given(conversations())
def test_every_place_that_is_no_boundary_would_break_something(messages: list[ModelMessage]) -> None:
    """No place is left out without a reason."""
    legal = cutting.boundaries(messages)
    for at in set(range(1, len(messages))) - set(legal):
        whole = all(side == paired(side) for side in (messages[:at], messages[at:]))
        assert not whole or isinstance(messages[at - 1].parts[-1], UserPromptPart)


def test_a11_a_batch_of_parallel_calls_stays_together() -> None:
    """A cut that would fall on the results of three parallel calls takes or leaves all of them; one batch alone is not cut."""
    batch: list[ModelMessage] = [answered("", ["a", "b", "c"]), results(["a", "b", "c"])]
    before: list[ModelMessage] = [asked(), answered(), asked()]
    assert 0 == cutting.cut(batch, 1, 0)
    assert 0 == cutting.cut([asked(), *batch], 1, 10**6)
    assert 2 == cutting.cut([*before, *batch], 1, 10**6)
    assert 4 == cutting.cut([*before[:2], *batch, *before], 3, 10**6)


def test_of_long_messages_fewer_are_kept() -> None:
    """However few messages there are, what is kept has its room; the newest stay in any case."""
    messages: list[ModelMessage] = [part for _ in range(5) for part in (asked("q" * 4_000), answered("a" * 4_000))]
    assert 6 == cutting.cut([*messages, asked()], 20, 5_000)
    assert 10 == cutting.cut([*messages, asked()], 20, 10)


@pytest.mark.parametrize(
    ("rules", "window", "expected"),
    [
        (Rules(), 0, 80_000),
        (Rules(), 200_000, 80_000),
        (Rules(), 90_000, 70_000),
        (Rules(), 8_000, 6_000),
        (Rules(tokens=0), 8_000, 0),
        (Rules(tokens=10**6), 200_000, 180_000),
    ],
)
def test_the_limit_leaves_room_for_the_answer(rules: Rules, window: int, expected: int) -> None:
    """The configured tokens, bounded by the model's window without room for the answer; 0 switches it off."""
    assert expected == rules.limit(window)


def test_when_it_is_due() -> None:
    """By messages, by tokens, each for itself, neither if both are switched off."""
    many: list[ModelMessage] = [asked(), answered()] * 25
    large: list[ModelMessage] = [asked("q" * 400_000)]
    assert [True, False] == [cutting.due(many[:count], "", Rules(), 0) for count in (50, 49)]
    assert [False, True] == [cutting.due(large, "", rules, 0) for rules in (Rules(tokens=0), Rules(messages=0))]
    assert not any(cutting.due(each, "", Rules(0, 0), 8_000) for each in (many, large))
    assert cutting.due([asked()], "s" * 320_000, Rules(), 0)


def test_tokens_are_what_the_provider_has_counted() -> None:
    """The newest count of the provider, and by its size what followed; without one all by size: bytes, and a sum for a file."""
    counted: list[ModelMessage] = [asked("q" * 10**6), answered(used=1_000), asked("q" * 400)]
    assert 1_200 == cutting.tokens(counted, "s" * 10_000)
    assert 200 == cutting.tokens([asked("q" * 400)], "s" * 400)
    assert 300 == cutting.tokens([asked("\u6f22" * 400)], "")
    file = BinaryContent(b"x" * 10**6, media_type="image/png")
    assert 1_500 == cutting.tokens([ModelRequest(parts=[UserPromptPart(content=[file])])], "")


def test_what_is_restored_is_mended() -> None:
    """A memory with calls that have no result, some or none, and with results that have no call, is taken by every provider."""
    broken: list[ModelMessage] = [
        results(["lost"]),
        asked(),
        answered("", ["a", "b"]),
        results(["b", "lost"], prompt="and"),
        answered("", ["c"]),
        answered("", ["d"]),
    ]
    history = History()
    history.messages = broken
    mended = History.restored(Memory(messages=history.dump().messages)).messages
    told = [
        [(part.tool_call_id, part.outcome) for part in message.parts if isinstance(part, ToolReturnPart)] for message in mended
    ]
    assert [[], [], [("b", "success"), ("a", "interrupted")], [], [("c", "interrupted")], [], [("d", "interrupted")]] == told
    assert isinstance(mended[2].parts[-1], UserPromptPart)
    assert mended == paired(mended)


def test_what_is_given_takes_turns() -> None:
    """The summary is the beginning of the first prompt, or a prompt before an answer; it is given again after a restart."""
    history = History()
    history.messages = [
        asked("q1"),
        answered("a1"),
        asked("q2"),
        answered("", ["a"]),
        results(["a"]),
        answered("a2"),
        asked("q3"),
    ]
    assert history.messages is history.given()
    history.compact(2, "SUM")
    restored = History.restored(history.dump())
    for each in (history, restored):
        first = each.given()[0].parts[0]
        assert isinstance(first, UserPromptPart)
        assert ("SUM" in str(first.content[0]), "q2") == (True, first.content[1])
        assert 5 == len(each.given())
    history.compact(2, "SUM2")
    given = history.given()
    assert "SUM2" in str(given[0].parts[0])


def test_a_running_prompt_is_given_word_for_word() -> None:
    """However often its turn is compacted; an earlier one is not, nor is it once the next prompt has begun."""
    history = History()
    history.begin(["first of all"])
    history.messages.append(answered())
    history.begin(["mend the parser " + "q" * 10_000, "and nothing else"])
    for summary in ("SUM", "SUM2"):
        history.messages += [answered("", ["a"]), results(["a"]), answered("", ["b"]), results(["b"])]
        history.compact(len(history.messages) - 2, summary)
        said = str(history.given()[0].parts[0])
        assert [True] * 3 == [text in said for text in (summary, "<prompt>\\nmend the parser", "and nothing else")]
        assert "first of all" not in said
        assert 6_000 > len(said)
    history.messages.append(answered("done"))
    history.begin(["next"])
    assert "mend the parser" not in str(history.given())


def test_a_count_of_the_longer_conversation_does_not_stay() -> None:
    """After a compaction what the provider has counted before counts no more."""
    history = History()
    history.messages = [asked(), answered(used=90_000), asked(), answered(used=91_000), asked()]
    history.compact(2, "SUM")
    assert 100 > cutting.tokens(history.messages, history.summary)


def test_a_prompt_is_forgotten_after_a_compaction_too() -> None:
    """What is refused is dropped, and what was before it stays, also if the conversation was compacted meanwhile."""
    history = History()
    history.messages = [asked(), answered(), asked("old"), answered()]
    history.begin(["new"])
    history.compact(2, "SUM")
    history.forget()
    assert ["old", "a"] == [str(getattr(message.parts[0], "content", ""))[-5:].strip("[]'") for message in history.messages]
    history.begin(["long"])
    history.messages += [answered("", ["a"]), results(["a"]), answered("", ["b"]), results(["b"])]
    history.compact(5, "SUM")
    history.forget()
    assert [] == history.messages


def test_a_long_text_is_told_in_pieces() -> None:
    """What a user has said is told whole where it does not fit into one part, up to a bound; of a result the ends are."""
    text = "".join(f"{number:05}\u6f22" for number in range(4_000))
    parts = summarising.parts([asked(text), answered("", ["a"]), results(["a"], text)], 2_000)
    assert all(cutting.length(part) <= 8_000 for part in parts)
    assert text == "".join(
        piece.partition(": ")[2] for part in parts for piece in part.split("\n\n") if piece.startswith("User")
    )
    assert "characters left out" in parts[-1]
    assert 3_000 > sum(cutting.length(piece) for piece in parts[-1].split("\n\n") if piece.startswith("Result"))


@given(st.lists(st.integers(0, 30_000), min_size=1, max_size=12), st.sampled_from([2_000, 8_000]))
def test_a_part_fits_into_its_room(sizes: list[int], room: int) -> None:
    """Whatever the messages are: no part is longer than its room, and all of them say something of each message."""
    messages: list[ModelMessage] = []
    for number, each in enumerate(sizes):
        messages += [
            asked(f"<{number}>" + "q" * each),
            answered("", [f"c{number}"]),
            results([f"c{number}"], f"<r{number}>" + "r" * each),
        ]
    parts = summarising.parts(messages, room)
    assert all(cutting.length(part) <= room * 4 for part in parts)
    whole = "".join(parts)
    assert all(f"<{number}>" in whole and f"<r{number}>" in whole for number in range(len(sizes)))
