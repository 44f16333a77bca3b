"""The text that an agent is told which has to begin anew: its bound, what it keeps together, what it says is missing."""

from __future__ import annotations

import re
from itertools import count
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from acpd.storage import context
from acpd.storage.context import Line, Message, Summary, text_block
from acpd.storage.primer import BYTES_PER_TOKEN, HEAD, LEAST_TOKENS, Primed, Primer
from tests.storage.test_context import context_lines, prime
from tests.storage.test_replay import history, turns

LEFT_OUT = re.compile(r"\[(\d+) earlier messages? (?:are|is) left out here\]")


def message(number: int, said: str = "", **more: Any) -> Message:
    role = more.pop("role", "user" if number % 2 == 0 else "assistant")
    return Message(id=f"m{number}", role=role, content=[text_block(said)] if said else [], **more)


def pair(number: int, result: str = "R") -> list[Message]:
    call = context.Call(f"c{number}", f"T{number}", rawInput=Raw(b'{"a":1}'))
    return [
        message(number, role="assistant", toolCalls=[call]),
        Message(id=f"r{number}", role="tool", content=[text_block(result)], toolCallId=f"c{number}"),
    ]


def test_all_is_told() -> None:
    """Messages are told oldest first, a call with its input and result in one piece, decoded or as they stand in the file."""
    lines: list[Line] = [message(0, "hello"), message(1, "hi"), *pair(2)]
    expected = f'{HEAD}\n\nUser: hello\n\nAssistant: hi\n\nTool call: T2 {{"a":1}}\nResult: R'
    assert Primed(expected, 0) == prime(lines, 10_000)
    assert Primed(expected, 0) == prime([msgspec.json.encode(line) for line in lines], 10_000)
    assert Primed("", 0) == prime([], 10_000)


def test_what_is_missing_is_named() -> None:
    """Within the bound the newest stand, and a notice says how many messages are missing before them."""
    got = prime([message(number, f"<{number}>" * 20) for number in range(100)], LEAST_TOKENS)
    assert "<99>" in got.text
    assert "<0>" not in got.text
    kept = got.text.count("User: ") + got.text.count("Assistant: ")
    assert (100 - kept, f"[{100 - kept} earlier messages are left out here]") == (got.missing, LEFT_OUT.search(got.text)[0])  # type: ignore[index]
    assert len(got.text) <= BYTES_PER_TOKEN * LEAST_TOKENS


def test_pairs_stay_whole() -> None:
    """A call is told with its result or not at all, and a result without its call never."""
    orphan = Message(id="r", role="tool", content=[text_block("orphan")], toolCallId="gone")
    for size in range(0, 4_000, 37):
        got = prime([orphan, *pair(1, "x" * 600), *pair(2, "y" * size), *pair(3, "z" * 700), *pair(4, "w" * 500)], LEAST_TOKENS)
        assert got.text.count("Tool call: ") == got.text.count("Result: ")
        assert "Tool call: T4" in got.text
        assert "orphan" not in got.text


def test_a_summary_stands_for_what_it_covers() -> None:
    """Before the lines that are kept the summary is told; what it covers is neither told nor counted as missing."""
    lines: list[Line] = [
        message(0, "u1"),
        message(1, "a1"),
        message(2, "u2"),
        Summary(id="k", text="sum", upTo="m1"),
        message(3, "a2"),
    ]
    assert Primed(f"{HEAD}\n\nSummary of what came before: sum\n\nUser: u2\n\nAssistant: a2", 0) == prime(lines, 10_000)
    lines[3] = Summary(id="k", text="sum", upTo="unknown")
    assert "u2" not in prime(lines, 10_000).text


def test_a_summary_is_no_missing_message() -> None:
    """After a compaction of all that came before nothing is missing; the newest of several summaries is the one that counts."""
    lines: list[Line] = [message(0, "u1"), Summary(id="k", text="old", upTo="m0"), message(1, "a1")]
    assert Primed(f"{HEAD}\n\nSummary of what came before: old\n\nAssistant: a1", 0) == prime(lines, 10_000)
    lines += [Summary(id="l", text="new", upTo="m1"), message(2, "u2")]
    assert Primed(f"{HEAD}\n\nSummary of what came before: new\n\nUser: u2", 0) == prime(lines, 10_000)
    assert Primed(f"{HEAD}\n\nSummary of what came before: new", 0) == prime(lines[3:4], 10_000)


def test_long_parts_are_clipped() -> None:
    """One long message does not push all others out: its middle is left out, with a word about it."""
    got = prime([message(0, "first"), message(1, "A" + "x" * 50_000 + "Z")], LEAST_TOKENS).text
    assert "first" in got
    assert "characters left out ...]" in got
    assert got.endswith("Z")


@pytest.mark.parametrize("character", ["%", "ß", "語", "𝄞"])
def test_every_script_keeps_the_bound(character: str) -> None:
    """Tokens are counted by bytes of UTF-8: what has more bytes a character is told in fewer characters, and none is cut."""
    got = prime([message(number, character * 400) for number in range(200)], LEAST_TOKENS).text
    assert 0.6 * BYTES_PER_TOKEN * LEAST_TOKENS < len(got.encode()) <= BYTES_PER_TOKEN * LEAST_TOKENS
    clipped = prime([message(0, character * 9_000)], LEAST_TOKENS).text
    assert "\ufffd" not in clipped
    assert f"[... {9_000 - clipped.count(character)} characters left out ...]" in clipped


def test_there_is_a_least_bound() -> None:
    """Below it not even the newest message would have room."""
    with pytest.raises(ValueError, match=str(LEAST_TOKENS - 1)):
        Primer(LEAST_TOKENS - 1)


texts = st.text(st.sampled_from("aä語𝄞 \n"), max_size=12).flatmap(lambda text: st.sampled_from([text, text * 50, text * 700]))


@st.composite
def conversations(draw: st.DrawFn) -> list[Line]:
    """Messages, calls with results, results without calls, calls without results, summaries of a part, in any order."""
    lines: list[Line] = []
    for number in count():
        kind = draw(st.sampled_from(["end", "say", "say", "pair", "pair", "orphan", "open", "summary"]))
        if kind == "end" or number > 40:
            return lines
        if kind == "say":
            lines.append(message(number, f"#{number}# {draw(texts)}"))
        elif kind == "pair":
            lines += pair(number, f"#{number}# {draw(texts)}")
        elif kind == "orphan":
            lines.append(Message(id=f"o{number}", role="tool", content=[text_block("orphan")], toolCallId="none"))
        elif kind == "open":
            lines.append(message(number, f"#{number}#", role="assistant", toolCalls=[context.Call(f"c{number}", "open")]))
        else:
            known: list[str | None] = [line.id for line in lines[-6:]]
            lines.append(Summary(id=f"k{number}", text=draw(texts) or "sum", upTo=draw(st.sampled_from([*known, None]))))
    raise AssertionError


@settings(max_examples=300, deadline=None)
@given(conversations(), st.sampled_from([LEAST_TOKENS, LEAST_TOKENS + 333, 5_000]))
def test_properties(lines: list[Line], tokens: int) -> None:
    """Never over the bound; the newest message always; a gapless end of the conversation; pairs whole; always the same."""
    got = prime(lines, tokens)
    assert got == prime(lines, tokens)
    assert len(got.text.encode()) <= tokens * BYTES_PER_TOKEN
    assert got.text.count("Tool call: ") == got.text.count("\nResult: ")
    assert "orphan" not in got.text
    marks = [mark[1].decode() for line in _kept(lines) for mark in re.finditer(rb"#(\d+)#", b"".join(map(bytes, line.content)))]
    told = re.findall(r"#(\d+)#", got.text)
    assert told == marks[len(marks) - len(told) :]
    assert not marks or told, "the newest is always there"
    assert bool(got.missing) == bool(LEFT_OUT.search(got.text))
    if got.missing:
        assert str(got.missing) == LEFT_OUT.search(got.text)[1]  # type: ignore[index]
        assert got.missing >= len(marks) - len(told)
    elif len(told) < len(marks):
        pytest.fail("what is missing is not said")


def _kept(lines: list[Line]) -> list[Message]:
    """The messages that the newest summary does not stand for, but for results whose call it does."""
    covered = 0
    for place, line in enumerate(lines):
        if isinstance(line, Summary):
            names = [one.id for one in lines[:place]]
            if line.upTo is not None:
                covered = max(covered, names.index(line.upTo) + 1 if line.upTo in names else place)
    kept = [line for line in lines[covered:] if isinstance(line, Message)]
    called = {call.toolCallId for line in kept for call in line.toolCalls or ()}
    return [line for line in kept if line.role != "tool" or line.toolCallId in called]


@settings(max_examples=100, deadline=None)
@given(turns, st.integers(LEAST_TOKENS, 3_000))
def test_whatever_was_stored_keeps_its_bound(parts: Any, tokens: int) -> None:
    """Whatever the context, the primer has at most the bytes that it may have."""
    got = prime(context_lines(history(parts).path()).splitlines(), tokens)
    assert len(got.text.encode()) <= tokens * BYTES_PER_TOKEN
