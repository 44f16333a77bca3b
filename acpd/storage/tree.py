"""The id/parentId tree of a session. Pure.

What may be wrong with a log, and what the tree makes of it (docs/architecture.md, "Damage"):

| finding | what was found | what the tree does |
|---|---|---|
| json, nul, utf8, depth, record, torn-tail | a line that is no record | the others count |
| missing-parent | a parent that no line has | hangs on the last readable entry before it, with a gap mark |
| cycle | a parent that is the entry itself or stands later in the file | the same |
| duplicate-id | an id that an earlier entry has | it is `id#2`; later children hang on it; twins of one parent are a chain |
| repeated-line | an id, a `seq` and a parent that an earlier entry has | it is `id#2`, aside of its twin, and moves nothing |
| missing-leaf | a leaf fact that names no entry before it | it does not count |
| missing-blob | a big string whose file is gone (told by who can see files) | its reference stays in the text |
| empty, header-missing, newer-version | no or no known first line | may be read, not written |

Types that nobody knows are links of the chain like any other.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable
from typing import NamedTuple

from msgspec import UNSET

from acpd.storage.fold import Fold
from acpd.storage.scan import Damage, Item
from acpd.wire.lines import VERSION, Header, Stored

ROOT = -1
"""In the place of a position: before the first entry."""

_MOST_WARNINGS = 100
_SEQS = 1 << 32
"""Enough of a `seq` to tell two lines apart; an edited log may have one of any size."""


class Finding(NamedTuple):
    """Something wrong at a line (1-based); kinds as in the module's table."""

    line: int
    kind: str
    detail: str = ""

    def __str__(self) -> str:
        return f"line {self.line}: {self.kind}" + (f" ({self.detail})" if self.detail else "")


class SessionTree:
    """The entries of one log by position, in file order. About 250 bytes an entry; no walk recurses; all take linear time."""

    __slots__ = (
        "_awaited",
        "_children",
        "_copies",
        "_leaf",
        "_line",
        "_lost",
        "_newest",
        "_seqs",
        "findings",
        "gaps",
        "ids",
        "parents",
        "types",
    )

    def __init__(self) -> None:
        self.ids: list[str] = []
        """Unique: the second entry with one id is `id#2`."""
        self.parents: array[int] = array("i")
        """Positions, always smaller than the child's; ROOT: none."""
        self.types: list[str] = []
        self.gaps: set[int] = set()
        """Positions of entries that hang where a line was lost."""
        self.findings: list[Finding] = []
        self._newest: dict[str, int] = {}
        self._seqs: array[int] = array("Q")
        self._lost: dict[int, str] = {}
        """The parents that the entries in `gaps` name."""
        self._copies: dict[str, int] = {}
        self._awaited: dict[str, list[int]] = {}
        self._children: dict[int, list[int]] | None = None
        self._leaf = ROOT
        self._line = 0

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def leaf(self) -> str | None:
        """The id of the entry at which the conversation goes on (docs/architecture.md, "Leaf"; the same as Fold's)."""
        return None if self._leaf == ROOT else self.ids[self._leaf]

    def position(self, identifier: str) -> int | None:
        """Where the newest entry with this id stands."""
        return self._newest.get(identifier)

    def add(self, line: Stored, number: int = 0) -> Stored | None:
        """Take the next line in file order; `number` is its line number (default: one after the last).

        Its id, parentId and entry are changed in place to what the tree made of them, so that Fold can be fed with it.
        None: it must not count (a leaf fact that names nothing, a line that stands twice).
        """
        self._line = number or self._line + 1
        if line.parentId is UNSET:
            return self._fact(line) if line.type == "leaf" else line
        position = len(self.ids)
        twin = self._newest.get(line.id)
        if twin is not None and self._stands_at(twin, line):
            self._put(line, self._copy(line.id, position, "repeated-line"), twin)
            return None
        parent = self._parent(line.id, line.parentId)
        if twin is not None and self.parents[twin] == parent:  # twins part no branch
            parent = twin
        self._put(line, self._identify(line.id, position), parent)
        if parent == self._leaf:
            self._leaf = position
        return line

    def _stands_at(self, position: int, line: Stored) -> bool:
        """Whether this line, whose id is known, is the one at `position`, once more."""
        if self._seqs[position] != line.seq % _SEQS:
            return False
        parent = self.parents[position]
        said = self._lost.get(position) if position in self.gaps else None if parent == ROOT else self.ids[parent]
        return line.parentId == said

    def _put(self, line: Stored, identifier: str, parent: int) -> None:
        line.id = identifier
        line.parentId = None if parent == ROOT else self.ids[parent]
        self.ids.append(identifier)
        self.parents.append(parent)
        self.types.append(sys.intern(line.type))
        self._seqs.append(line.seq % _SEQS)
        self._children = None

    def damaged(self, number: int, kind: str, detail: str = "") -> None:
        """Line `number` holds no record, or something is wrong that the tree cannot see itself."""
        self._line = max(self._line, number)
        self.findings.append(Finding(number, kind, detail))

    def _parent(self, identifier: str, parent: str | None) -> int:
        if parent is None:
            return ROOT
        found = self._newest.get(parent)
        if found is not None:
            return found
        self.gaps.add(len(self.ids))
        self._lost[len(self.ids)] = parent
        if parent == identifier:
            self.findings.append(Finding(self._line, "cycle", parent))
        else:
            self._awaited.setdefault(parent, []).append(len(self.findings))
            self.findings.append(Finding(self._line, "missing-parent", parent))
        return len(self.ids) - 1

    def _identify(self, identifier: str, position: int) -> str:
        """A unique id for the entry at `position`, which is the newest of its id from now on."""
        for finding in self._awaited.pop(identifier, ()):  # it was missed above: those two are each other's ancestors
            self.findings[finding] = self.findings[finding]._replace(kind="cycle")
        inner = self._copy(identifier, position, "duplicate-id") if identifier in self._newest else identifier
        self._newest[identifier] = position
        return inner

    def _copy(self, identifier: str, position: int, kind: str) -> str:
        """An inner id for another entry with this id."""
        count = self._copies.get(identifier, 1) + 1
        while (inner := f"{identifier}#{count}") in self._newest:
            count += 1
        self._copies[identifier] = count
        self._newest[inner] = position
        self.findings.append(Finding(self._line, kind, identifier))
        return inner

    def _fact(self, line: Stored) -> Stored | None:
        if line.entry is None:
            self._leaf = ROOT
            return line
        position = self._newest.get(line.entry)
        if position is None:
            self.findings.append(Finding(self._line, "missing-leaf", line.entry))
            return None
        self._leaf = position
        line.entry = self.ids[position]
        return line

    def path(self, to: str | None = None) -> list[int]:
        """Positions from the root to the entry `to` (default: the leaf), ascending. Raises KeyError for an unknown id."""
        at = self._leaf if to is None else self._newest[to]
        found = []
        while at != ROOT:
            found.append(at)
            at = self.parents[at]
        found.reverse()
        return found

    def children(self, position: int = ROOT) -> list[int]:
        """The entries that hang on this one, in file order; of ROOT: the roots."""
        if self._children is None:
            self._children = {}
            for child, parent in enumerate(self.parents):
                self._children.setdefault(parent, []).append(child)
        return self._children.get(position, [])

    def leaves(self) -> list[int]:
        """Entries on which nothing hangs, in file order: one for each branch."""
        inner = set(self.parents)
        return [position for position in range(len(self.ids)) if position not in inner]


def load(lines: Iterable[tuple[int, Item]]) -> tuple[Header | None, Fold, SessionTree]:
    """Header, fold and tree of a whole log, from `scan.read_lines`. The findings are the fold's first warnings."""
    header: Header | None = None
    fold, tree = Fold(), SessionTree()
    add_tree, add_fold = tree.add, fold.add
    number = 0
    for number, item in lines:
        if type(item) is Stored:
            seen = add_tree(item, number)
            if seen is not None:
                add_fold(seen)
        elif isinstance(item, Header):
            header = item
        elif isinstance(item, Damage):
            tree.damaged(number, item.kind)
    check_header(header, tree, empty=number == 0)
    if header is not None:
        fold.created_at = header.createdAt
    fold.warnings += warnings(tree.findings)
    return header, fold, tree


def check_header(header: Header | None, tree: SessionTree, *, empty: bool) -> None:
    """Note what is wrong with a log's first line."""
    if empty:
        tree.damaged(1, "empty")
    elif header is None:
        tree.damaged(1, "header-missing")
    elif header.version > VERSION:
        tree.damaged(1, "newer-version", str(header.version))


def warnings(findings: list[Finding]) -> list[str]:
    """The findings as text, at most 100 and a count of the others."""
    shown = [str(finding) for finding in findings[:_MOST_WARNINGS]]
    if len(findings) > _MOST_WARNINGS:
        shown.append(f"and {len(findings) - _MOST_WARNINGS} more")
    return shown
