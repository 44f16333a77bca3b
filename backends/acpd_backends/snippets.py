"""Where in a text a search matched, what of it is shown, and how good it is. Pure.

It looks at the text itself, not at the index: the stretch that is shown is the one with the most of the terms. Of a match that
only the index can see, the beginning of the text is shown, without a mark.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from acpd.storage.queries import Scope, Term
from acpd_backends import tokens

WIDTH = 160
"""Characters of a snippet."""
BEFORE = 40
"""Characters of it before the first match."""
COUNTED = 20
"""Matches of one term that are looked at."""

_APART = r"[\W_]*"


class Wanted(NamedTuple):
    """One term: its renderings as tokens (acpd_backends.tokens), and whether the last token may go on."""

    renderings: tuple[tuple[str, ...], ...]
    prefix: bool


class Seen(NamedTuple):
    """A text, folded character for character. `starts`: where each raw character begins in it; None: at its own place."""

    raw: str
    folded: str
    lowered: str
    starts: list[int] | None


class Look(NamedTuple):
    """Where a document matches: the places of each term in its text or, where only they match (`path`), in its paths."""

    seen: Seen
    places: Sequence[list[tuple[int, int]]]
    path: bool

    @property
    def score(self) -> float:
        """How much it is about the terms: occurrences, saturating, less in long texts (as BM25 without rarity, since every
        term occurs in each text that is compared)."""
        return sum(map(self._share, map(len, self.places)))

    def _share(self, count: int) -> float:
        return share(count, len(self.seen.raw))


def share(count: int, length: int) -> float:
    return count / (count + 1.2 * (0.25 + 0.75 * length / 1000))


def look(text: str, paths: str, terms: Sequence[tuple[Wanted, Scope | None]]) -> Look:
    """At the text; at the paths where nothing of it matches, or may."""
    one = seen(text)
    places = [[] if scope == "path" else matches(one, term) for term, scope in terms]
    if paths and not any(places):
        other = seen(paths)
        found = [matches(other, term) for term, _ in terms]
        if any(found):
            return Look(other, found, path=True)
    return Look(one, places, path=False)


def glance(text: str, terms: Sequence[tuple[Wanted, Scope | None]]) -> float:
    """About the score, in a few microseconds: what only looks like a match counts as well."""
    lowered = tokens.lower(text)
    counts = (max(1, lowered.count(max(term.renderings[0], key=len))) for term, _ in terms if term.renderings)
    return sum(share(min(count, COUNTED), len(text)) for count in counts)


def wanted(term: Term) -> Wanted:
    """A phrase is looked for part by part; the tail of a run (see tokens) is no token of its own here."""
    chunks = [tokens.chunk(word) for word in term.words]
    split = tuple(token for chunk in chunks for token in _joined(chunk.split.split()))
    whole = tuple(chunks[0].whole.split()) if len(chunks) == 1 else ()
    return Wanted(tuple(each for each in (split, whole) if each), term.prefix or (bool(chunks) and chunks[-1].open))


def _joined(parts: list[str]) -> list[str]:
    """Pairs of a run back to the run."""
    found: list[str] = []
    paired = False
    for part in parts:
        if paired and found[-1][-1] == part[0]:
            found[-1] += part[1:]
        else:
            found.append(part)
        paired = len(part) == 2 and tokens.is_run(part)
    return found


def seen(raw: str) -> Seen:
    if raw.isascii():
        return Seen(raw, raw, raw.lower(), None)
    folded = tokens.fold(raw)
    starts = None
    if any(len(tokens.fold(each)) != 1 for each in set(raw)):
        starts, at = [], 0
        for character in raw:
            starts.append(at)
            at += len(tokens.fold(character))
    return Seen(raw, folded, tokens.lower(folded), starts)


def matches(text: Seen, term: Wanted) -> list[tuple[int, int]]:
    """Places in the folded text, ascending; at most COUNTED."""
    found: list[tuple[int, int]] = []
    for rendering in term.renderings:
        found += _matches(text, rendering, prefix=term.prefix)
        if len(found) >= COUNTED:
            break
    return sorted(found)[:COUNTED] or _joined_up(text, term)


def _joined_up(text: Seen, term: Wanted) -> list[tuple[int, int]]:
    """A name that was asked for without the `_` and `-` that it is written with."""
    if not term.renderings or len(term.renderings[0]) != 1:
        return []
    (name,) = term.renderings[0]
    spans = (match.span() for match in re.finditer("[_-]*".join(map(re.escape, name)), text.lowered))
    found = ((one, two) for one, two in spans if _bounds(text.folded, one) and (term.prefix or _bounds(text.folded, two)))
    return [span for _, span in zip(range(COUNTED), found, strict=False)]


def _matches(text: Seen, rendering: tuple[str, ...], *, prefix: bool) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    token, at = rendering[0], -1
    pattern = re.compile(_APART.join(map(re.escape, rendering))) if len(rendering) > 1 else None
    while len(found) < COUNTED:
        at = text.lowered.find(token, at + 1)
        if at < 0:
            break
        if not _bounds(text.folded, at):
            continue
        match = pattern.match(text.lowered, at) if pattern is not None else None
        end = at + len(token) if pattern is None else match.end() if match is not None else -1
        if end >= 0 and (prefix or _bounds(text.folded, end)):
            found.append((at, end))
    return found


def _bounds(text: str, at: int) -> bool:
    """Whether a token may end and another begin here, as in acpd_backends.tokens."""
    if at <= 0 or at >= len(text):
        return True
    one, two = text[at - 1], text[at]
    if not (one.isalnum() and two.isalnum()) or one.isdigit() != two.isdigit() or tokens.is_run(one) or tokens.is_run(two):
        return True
    if two.isupper():
        return not one.isupper() or text[at + 1 : at + 2].islower()
    return False


def snippet(looked: Look) -> tuple[str, ...]:
    """Before, match, between, match, ..., after."""
    text = looked.seen
    places = sorted({place for each in looked.places for place in each})
    first = _best(places, looked.places)
    start = max(0, first - BEFORE)
    end = min(len(text.folded), start + WIDTH)
    raw_start, raw_end = _raw(text, start), _raw(text, end)
    shown = on_one_line(text.raw[raw_start:raw_end])
    parts = ["…" if raw_start else ""]
    at = 0
    for one, two in places:
        begin, stop = _raw(text, one) - raw_start, min(_raw(text, two), raw_end) - raw_start
        if begin < at or begin >= len(shown):
            continue
        parts[-1] += shown[at:begin]
        parts += [shown[begin:stop], ""]
        at = stop
    parts[-1] += shown[at:] + ("…" if raw_end < len(text.raw) else "")
    return tuple(parts)


def on_one_line(text: str) -> str:
    """As long as it was."""
    return text.replace("\n", " ").replace("\t", " ").replace("\r", " ")


def _best(places: list[tuple[int, int]], found: Sequence[list[tuple[int, int]]]) -> int:
    """Where the stretch with the most terms has its first match; the earliest of them."""
    if len(found) < 2:
        return places[0][0] if places else 0
    reach = WIDTH - BEFORE
    scores = [(sum(any(at <= one < at + reach for one, _ in each) for each in found), -at) for at, _ in places]
    return -max(scores)[1] if scores else 0


def _raw(text: Seen, at: int) -> int:
    """The place in the raw text of one in the folded text."""
    if text.starts is None:
        return at
    from bisect import bisect_left

    return bisect_left(text.starts, at)
