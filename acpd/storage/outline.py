"""The tree of a session as people look at it: turns in the order of the branches, and entries by their short names. Pure.

Of several entries that hang on one, that on the way to the leaf (else the newest) goes on at the same depth; the others are
told before it, one step deeper. So a long conversation that was branched now and then stays near the margin.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from itertools import pairwise

from msgspec import UNSET, Struct

from acpd.errors import EntryNotFound
from acpd.storage.tree import ROOT, SessionTree
from acpd.wire.lines import Stored
from acpd.wire.titles import first_line_title

SHORTEST_NAME = 8
MANY_BRANCHES = 40
"""With more branches than that, where one begins is not worth a line of its own any more."""
_NAMED = 5
"""Entries that an error names."""


class Notes(Struct):
    """What the tree does not hold, by entry id: the first line of each prompt, and how each turn ended."""

    prompts: dict[str, str]
    ends: dict[str, str]

    def add(self, lines: Iterable[Stored]) -> None:
        for line in lines:
            if line.type == "prompt":
                self.prompts[line.id] = "" if line.prompt is UNSET else first_line_title(bytes(line.prompt))
            elif line.type == "turn" and line.state != "running":
                self.ends[line.id] = line.stopReason or ("error" if line.state == "ended" else line.state)


class Stretch(Struct):
    """Entries in a row: from a prompt or where a branch begins to the next one, to the leaf, or to a label.

    `first` and `last` are positions in the tree; `depth` counts the branches that it is away from the main one.
    """

    first: int
    last: int
    depth: int
    entries: int = 1
    compactions: int = 0
    on_path: bool = False
    """Whether it is on the way to the leaf."""
    begins: bool = False
    """Whether a branch begins with it that is not the main one there."""
    is_leaf: bool = False
    """Whether the conversation goes on behind it."""
    forks: bool = False
    """Whether several entries hang on its last one, or on the one before it."""
    ends: bool = False
    """Whether nothing hangs on it."""
    prompt: str | None = None
    """The first line of the prompt that it begins with."""
    end: str = ""
    """How the turn ended, if it did here."""
    label: str = ""


class Hidden(Struct):
    """What stands in the place of stretches that are not shown."""

    turns: int
    entries: int
    branches: int
    """How many branches end there."""


def stretches(tree: SessionTree, labels: dict[str, str], notes: Notes) -> list[Stretch]:
    """All entries, depth first, without recursion: a chain may have a million entries."""
    path = set(tree.path())
    done: list[Stretch] = []
    todo = _children(tree, ROOT, 0, path)
    while todo:
        stretch = todo.pop()
        children = _follow(tree, labels, notes, stretch)
        last = tree.ids[stretch.last]
        stretch.on_path = stretch.first in path
        stretch.is_leaf = last == tree.leaf
        stretch.label = labels.get(last, "")
        stretch.prompt = notes.prompts.get(tree.ids[stretch.first])
        stretch.forks |= len(children) > 1
        stretch.ends = not children
        done.append(stretch)
        todo += _children(tree, stretch.last, stretch.depth, path)
    return done


def _children(tree: SessionTree, position: int, depth: int, path: set[int]) -> list[Stretch]:
    """What begins behind this entry, the one that is told first at the end."""
    children = tree.children(position)
    is_leaf = position != ROOT and tree.ids[position] == tree.leaf  # behind it everything is another branch
    main = next((child for child in children if child in path), ROOT if is_leaf or not children else children[-1])
    many = len(children) > 1
    begun = [Stretch(child, child, depth + (child != main), begins=child != main, forks=many) for child in children]
    begun.sort(key=lambda one: (one.first != main, -one.first))
    return begun


def _follow(tree: SessionTree, labels: dict[str, str], notes: Notes, stretch: Stretch) -> list[int]:
    """Let the stretch reach as far as it goes; what hangs on its last entry."""
    at = stretch.first
    while True:
        stretch.last = at
        stretch.compactions += tree.types[at] == "compaction"
        children = tree.children(at)
        name = tree.ids[at]
        stretch.end = notes.ends.get(name, stretch.end)
        if len(children) != 1 or tree.types[children[0]] == "prompt" or name in labels or name == tree.leaf:
            return children
        at = children[0]
        stretch.entries += 1


def shortened(found: list[Stretch], run: int) -> list[Stretch | Hidden]:
    """Of more than `run` stretches in a row of which nothing is remarkable only those at both ends."""
    many = sum(stretch.ends for stretch in found) > MANY_BRANCHES
    kept: list[Stretch | Hidden] = []
    plain: list[Stretch] = []
    for stretch in found:
        if stretch.label or stretch.is_leaf or stretch.compactions or (stretch.forks and not many):
            kept += _run(plain, run)
            plain = []
            kept.append(stretch)
        else:
            plain.append(stretch)
    return kept + _run(plain, run)


def _run(plain: list[Stretch], run: int) -> list[Stretch | Hidden]:
    if len(plain) <= run + 1:
        return [*plain]
    hidden = plain[run // 2 : len(plain) - run // 2]
    mark = Hidden(
        turns=sum(stretch.prompt is not None for stretch in hidden),
        entries=sum(stretch.entries for stretch in hidden),
        branches=sum(stretch.ends for stretch in hidden),
    )
    return [*plain[: run // 2], mark, *plain[len(plain) - run // 2 :]]


def find(tree: SessionTree, labels: dict[str, str], text: str, session: str) -> str:
    """The id of the entry that has this id, else this label, else an id that begins so.

    Raises EntryNotFound if there is none, or more than one.
    """
    position = tree.position(text)
    if position is not None:
        return tree.ids[position]
    found = [name for name, label in labels.items() if label == text and tree.position(name) is not None]
    if not found and text:
        found = [name for name in tree.ids if name.startswith(text)]
    if len(found) == 1:
        return found[0]
    if not found:
        raise EntryNotFound(session, text)
    more = " and more" if len(found) > _NAMED else ""
    raise EntryNotFound(session, text, f"{', '.join(found[:_NAMED])}{more} are called so or begin so")


def before_turn(tree: SessionTree, turn: str | None) -> str | None:
    """The entry behind which the prompt of this turn (the id of its `running` entry) was written; None: there is none."""
    position = tree.position(turn or "")
    while position is not None and position != ROOT and tree.types[position] != "prompt":
        position = tree.parents[position]
    above = ROOT if position is None or position == ROOT else tree.parents[position]
    return None if above == ROOT else tree.ids[above]


def name_length(tree: SessionTree, positions: Iterable[int]) -> int:
    """How many characters of these entries' ids tell each of them from every other entry; SHORTEST_NAME at least."""
    ordered = sorted(tree.ids)
    length = SHORTEST_NAME
    for position in positions:
        at = bisect_left(ordered, tree.ids[position])
        for one, other in pairwise(ordered[max(0, at - 1) : at + 2]):
            length = max(length, _common(one, other) + 1)
    return length


def _common(one: str, other: str) -> int:
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
