"""A stream of text by its shape, against the long way: the same lines in the log, the same frames, whatever the text."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acpd.agents import textrun
from acpd.agents.link import AgentLink
from acpd.recorder import Shape
from acpd.tasks import Tasks
from tests.core.world import Editor, World

TEXTS = st.one_of(
    st.text(max_size=20),
    st.sampled_from(["", '"', "\\", "a\\", '\\"', "\u2028", "\x00", "é", "😀", '","type":"text"}', "}}}", "\\u0041", "%d %%"]),
)
NAMES = st.sampled_from([None] * 8 + ["m1"] + ["100%d"] * 4)
SPACED = st.sampled_from([False] * 8 + [True])
TEXT = st.tuples(st.just("text"), TEXTS, NAMES, SPACED)
RAW = st.tuples(st.just("raw"), st.sampled_from(["\\ud83d", "\\q", "\t", "\xff", "\\"]), NAMES, SPACED)
STEPS = st.one_of(TEXT, TEXT, RAW, st.just(("plan", "", None, False)))


def frame(step: tuple[str, str, str | None, bool]) -> bytes:
    """One line of an agent. A "raw" text stands in its JSON string as it is, right or wrong."""
    what, text, name, spaced = step
    if what == "plan":
        update: dict[str, Any] = {"sessionUpdate": "plan", "entries": []}
    else:
        update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text if what == "text" else "@"}}
        if name:
            update["messageId"] = name
    message = {"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": "inner-1", "update": update}}
    separators = (", ", ": ") if spaced else (",", ":")
    line = json.dumps(message, separators=separators, ensure_ascii=bool(len(text) % 2)).encode("utf-8", "surrogatepass")
    return (line.replace(b"@", text.encode("latin-1")) if what == "raw" else line) + b"\n"


async def told(data: bytes, *, short: bool) -> tuple[list[bytes], list[bytes], int]:
    """(lines of the log, frames of a client, warnings) after an agent wrote this; ids and times made the same."""
    with tempfile.TemporaryDirectory() as folder:
        async with World(Path(folder)) as world:
            session = await world.new()
            session.audience.start(session.attach(editor := Editor()))
            runtime: Any = NoRuntime()
            link = AgentLink("link-1", "agent", ("agent",), runtime, Tasks(lambda *_: None), 1.0)
            link.bind(session, b'"inner-1"')
            if not short:
                link.peer.shortcut = None
            link.peer.data_received(data)
            lines = Path(world.store.journals.log_path(session.key)).read_bytes().splitlines()
            return [same(line) for line in lines[1:]], [same(line) for line in editor.raw], session.recorder.warnings


class NoRuntime:
    """Nothing of it is used: there is no process."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(name)


def same(line: bytes) -> bytes:
    """Without what differs from run to run: ids by the order of their first use are told apart by `order`, times are gone."""
    line = re.sub(rb'"[0-9]{4}-[0-9-]+T[0-9:.]+Z"', b'"at"', line)
    return re.sub(rb"01[0-9a-f]{6}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}", b"id", line)


@settings(max_examples=60, deadline=None)
@given(st.lists(STEPS, max_size=12))
def test_both_ways_say_the_same(steps: list[tuple[str, str, str | None, bool]]) -> None:
    """A chunk that is known by its text alone is stored and sent byte for byte as one that was looked at."""
    data = b"".join(map(frame, steps))
    assert asyncio.run(told(data, short=False)) == asyncio.run(told(data, short=True))


def taken(*texts: str) -> list[int]:
    """How many lines were handled by their texts alone, each time, where these follow two chunks of a message."""
    counts: list[int] = []
    whole = textrun.TextRun.texts

    def seen(run: textrun.TextRun, lines: Iterable[object]) -> list[bytes]:
        found = whole(run, lines)
        counts.append(len(found))
        return found

    first = frame(("text", "a", None, False))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(textrun.TextRun, "texts", seen)
        asyncio.run(told(first * 2 + b"".join(first.replace(b'"a"', b'"%b"' % text.encode()) for text in texts), short=True))
    return counts


def test_the_short_way_is_taken() -> None:
    """The chunks of a message from the third on are known by their texts, all at once, whatever is in these strings."""
    assert [1] == taken("plain")
    assert [3] == taken("one", 'a quote \\" in it', "a backslash at its end\\\\")
    assert [textrun.MOST, 44] == taken(*["x"] * (textrun.MOST + 44))
    assert [2, 0] == taken("one", "two", 'no end "')
    assert [1, 1, 0] == taken("one", "two", "no escape \\q")


@settings(max_examples=300, deadline=None)
@given(st.lists(st.text(alphabet='\\",a', max_size=4), min_size=1, max_size=5))
def test_texts_that_are_looked_at_together(texts: list[str]) -> None:
    """What is taken for the insides of several strings is that: no quote and no backslash moves from one to the next."""
    run = textrun.TextRun(cast("Shape", None), b"<", b">")
    found = run.texts([b"<%b>" % text.encode() for text in texts])
    inside = [text.encode() for text in texts]
    sound = list(itertools.takewhile(is_inside, inside))
    assert found == sound[: len(found)]
    assert found or not sound


def is_inside(text: bytes) -> bool:
    try:
        return isinstance(json.loads(b'"%b"' % text), str)
    except ValueError:
        return False
