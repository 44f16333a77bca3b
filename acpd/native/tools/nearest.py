"""What of a file comes nearest to a text that it has not got, for the error of an edit. Bounded in time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from difflib import SequenceMatcher

LINES = 50_000
SECONDS = 1.0
LEAST = 0.6
"""Of likeness, between 0 and 1: what is less like it than this would mislead."""
_LONG = 300


def told(text: str, wanted: str) -> str:
    """One or more lines for a model. Blocks for `SECONDS` at most."""
    lines, looked_for = text.split("\n"), wanted.strip("\n").split("\n")
    bare = [line.strip() for line in looked_for]
    first = _same(lines, bare)
    if first is not None:
        return f"But for blanks it is at line {first + 1}; there it is exactly:\n{_numbered(lines, first, len(bare))}"
    first = _likest(lines, bare)
    if first is None:
        return "Nothing in it is like it: read the file again."
    return f"The nearest is at line {first + 1}:\n{_numbered(lines, first, len(bare))}"


def _same(lines: Sequence[str], bare: Sequence[str]) -> int | None:
    """The first line from which on all are the same but for blanks at their beginnings and ends."""
    stripped = [line.strip() for line in lines[:LINES]]
    for first, line in enumerate(stripped):
        if line == bare[0] and stripped[first : first + len(bare)] == list(bare):
            return first
    return None


def _likest(lines: Sequence[str], bare: Sequence[str]) -> int | None:
    """The line where the text would begin whose most telling line is most like the one that was looked for."""
    telling = max(range(len(bare)), key=lambda index: len(bare[index]))
    matcher = SequenceMatcher(None, "", bare[telling][:_LONG], autojunk=False)
    best, at, end = LEAST, None, time.monotonic() + SECONDS
    for number, line in enumerate(lines[:LINES]):
        if time.monotonic() > end:
            break
        matcher.set_seq1(line.strip()[:_LONG])
        if matcher.real_quick_ratio() > best and matcher.quick_ratio() > best and (ratio := matcher.ratio()) > best:
            best, at = ratio, max(0, number - telling)
    return at


def _numbered(lines: Sequence[str], first: int, count: int) -> str:
    part = lines[first : first + min(count, 40)]
    return "\n".join(f"{number}\t{line[:_LONG].rstrip()}" for number, line in enumerate(part, first + 1))
