"""The index of a log in which nothing is wrong: what a fold and a path need of its lines, without reading them.

A damaged log is read whole. Whatever is in doubt counts as `Irregular`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Protocol

from msgspec import UNSET

from acpd.storage.fold import Fold
from acpd.wire.lines import Stored
from acpd_backends.records import BRANCHED, LOWER, NONE, Irregular, Records, check_of

_STRIDE = 8
"""Numbers of 4 bytes in a record."""
_SRC, _UNSORTED = 1, 4

_ENTRIES: dict[str, int] = dict(zip(("prompt", "update", "compaction", "ask", "answer", "turn"), b"PUCKNT", strict=True))
_FACTS: dict[str, int] = dict(
    zip(("leaf", "link", "config", "commands", "usage", "queue", "label", "info"), b"fkcmuqai", strict=True)
)
_UPDATES: dict[str, int] = dict(zip(("agent_message_chunk", "user_message_chunk", "plan"), b"AVL", strict=True))
_OTHER, _ANSWER, _RUNNING, _ENDED = b"UNRT"
_ONLY_CHUNKS = bytes(byte if byte == ord("A") else ord(" ") for byte in range(256))
_WITHOUT_SRC = bytes(flags for flags in range(8) if not flags & _SRC)
_ID = re.compile(rb'\{"type":"[^"\\]*","id":"([^"\\]*)"')


def kind_of(line: Stored) -> int:
    """The kind byte of a line. Raises Irregular where Fold would take it for two things."""
    if line.parentId is UNSET:
        if line.type in _ENTRIES:
            raise Irregular
        if line.type == "info":
            return b"itpb"[(line.title is not None) + 2 * (line.params is not UNSET)]
        return _FACTS.get(line.type, ord("x"))
    if line.type == "update":
        return _UPDATES.get(line.kind, _OTHER)
    if line.type in _FACTS or line.kind in _UPDATES:
        raise Irregular
    if line.type == "turn" and line.state == "running":
        return _RUNNING
    return _ENTRIES.get(line.type, ord("E"))


class Numbers(Protocol):
    """The ids of entries, and the number of the line of each."""

    def get(self, identifier: str, /) -> int | None: ...
    def __setitem__(self, identifier: str, number: int, /) -> None: ...
    def __contains__(self, identifier: object, /) -> bool: ...


class LineIndex:
    """The records of a log, complete up to byte `end`; grows by `add`. In memory: 2 bytes a line, and the ids added."""

    __slots__ = (
        "_branched",
        "_ids",
        "_last",
        "_last_id",
        "_leaf",
        "_line_at",
        "_records",
        "_seq",
        "_sorted",
        "_turn",
        "end",
        "last_id",
    )

    def __init__(self, records: Records, end: int, last_id: str, line_at: Callable[[int], bytes]) -> None:
        """`records` are the index's from now on; `line_at(offset)` gives a line of the log."""
        self.end = end
        self.last_id = last_id
        self._records = records
        self._line_at = line_at
        self._ids: Numbers = {}
        self._last = self._leaf = self._turn = NONE
        self._seq = -1
        self._last_id: str | None = None
        """Of the last entry; None: there is none; empty: it was not read."""
        self._branched, self._sorted = False, True
        if records:
            last = records[len(records) - 1]
            self._turn = NONE if last.kind == _ENDED else last.turn
            self._leaf = last.leaf
            self._seq = last.seq
            self._branched, self._sorted = bool(last.flags & BRANCHED), not last.flags & _UNSORTED
            self._last = len(records.kinds.rstrip(LOWER)) - 1
            self._last_id = "" if self._last != NONE else None

    def __len__(self) -> int:
        return len(self._records)

    @property
    def is_new(self) -> bool:
        """Whether nothing of it was read from a file."""
        return not self._records.old

    @property
    def added(self) -> bytes:
        """The records that were added, as they stand in a file."""
        return bytes(self._records.added)

    @property
    def branched(self) -> bool:
        """As Fold.branched."""
        return self._branched

    @property
    def leaf(self) -> int:
        return self._leaf

    def offset(self, number: int) -> int:
        """Where line `number` begins; of the one after the last: the end."""
        if number == len(self):
            return self.end
        return self._records[number].offset

    def add(self, line: Stored, offset: int) -> None:
        """Take the next line. Raises Irregular."""
        identifier, parent_id, number = line.id, line.parentId, len(self._records)
        if line.seq <= self._seq:
            raise Irregular
        if identifier <= self.last_id and number:
            self._disordered(identifier)
        if parent_id is UNSET:
            kind, parent, ref = kind_of(line), NONE, self._fact(line)
        else:
            kind = _UPDATES.get(line.kind, _OTHER) if line.type == "update" else kind_of(line)
            ref = self._asked(line) if kind == _ANSWER else NONE
            parent = self._last
            if parent_id != self._last_id:
                parent = self._known(parent_id)
                self._branched |= parent != self._last
            if parent == self._leaf:
                self._leaf = number
            self._last, self._last_id = number, identifier
            self._ids[identifier] = number
            if kind == _RUNNING:
                self._turn = number
        flags = (line.src is not None) * _SRC | self._branched * BRANCHED | (not self._sorted) * _UNSORTED
        self._records.append((offset, line.seq, parent, self._turn, self._leaf, ref, kind, flags, check_of(identifier)))
        if kind == _ENDED:
            self._turn = NONE
        if not line.at:
            raise Irregular
        self.last_id = identifier
        self._seq = line.seq

    def _disordered(self, identifier: str) -> None:
        """An id that is not greater than the one before: whether it is new can only be told by those in memory."""
        self._sorted = False
        if self._records.old or identifier in self._ids:
            raise Irregular

    def _asked(self, line: Stored) -> int:
        number = self.find(line.ask)
        return NONE if number is None else number

    def _fact(self, line: Stored) -> int:
        """The entry that a leaf fact names; moves the leaf as Fold does."""
        if line.type != "leaf":
            return NONE
        entry = self._known(line.entry)
        self._branched |= entry != self._leaf
        self._leaf = entry
        return entry

    def _known(self, identifier: str | None) -> int:
        if identifier is None:
            return NONE
        number = self.find(identifier)
        if number is None:
            raise Irregular
        return number

    def find(self, identifier: str) -> int | None:
        """The entry with this id, None if there is none. Ids ascend in file order, so a few reads tell. Raises Irregular."""
        number = self._ids.get(identifier)
        if number is not None or not self._records.old:
            return number
        if not self._sorted:
            raise Irregular
        low, high = 0, self._records.old
        while low < high:
            middle = (low + high) // 2
            at = self._id_at(middle)
            if at == identifier:
                return middle if self._records.kinds[middle] < LOWER[0] else None
            low, high = (middle + 1, high) if at < identifier else (low, middle)
        return None

    def _id_at(self, number: int) -> str:
        match = _ID.match(self._line_at(self.offset(number)))
        if match is None:
            raise Irregular
        return match[1].decode("utf-8", "surrogatepass")

    def path(self, to: int, limit: int | None = None) -> list[int]:
        """The entries from the root, or the last `limit`, to `to`, as ascending numbers of lines. Raises Irregular."""
        parents = self._records.parents()
        found: list[int] = []
        after = len(self)
        while to != NONE and (limit is None or len(found) < limit):
            if not NONE < to < after:
                raise Irregular
            found.append(to)
            to, after = parents[to * _STRIDE], to
        found.reverse()
        return found

    def runs(self, numbers: list[int]) -> Iterator[tuple[int, int]]:
        """(start, end) in the log of numbers that stand together, facts between them not counted."""
        kinds = self._records.kinds
        first = last = NONE
        for number in numbers:
            if first != NONE and number != last + 1 and not kinds[last + 1 : number].islower():
                yield self.offset(first), self.offset(last + 1)
                first = NONE
            if first == NONE:
                first = number
            last = number
        if first != NONE:
            yield self.offset(first), self.offset(last + 1)

    def fold(self, read: Callable[[int], Stored]) -> Fold:
        """What Fold makes of all lines, from those few that matter. `read(number)` decodes a line."""
        fold = Fold()
        if not self._records:
            return fold
        for number in sorted(self._telling()):
            fold.add(read(number))
        entries = self._records.kinds.translate(None, delete=LOWER)
        chunks = entries.translate(_ONLY_CHUNKS)
        fold.messages = entries.count(b"P") + chunks.count(b" A") + chunks.startswith(b"A")
        fold.prompted = b"P" in entries or b"V" in entries
        fold.leaf = read(self._leaf).id if self._leaf != NONE else None
        fold.branched = self._branched
        spoken = len(self._records.flags.rstrip(_WITHOUT_SRC)) - 1
        fold.src = read(spoken).src if spoken >= 0 else None
        return fold

    def _telling(self) -> set[int]:
        """Lines that a fold must see itself: the last, the newest of their kind, all labels, open asks."""
        kinds = self._records.kinds
        found = {self._last, len(kinds) - 1}
        found |= {kinds.rfind(kind) for kind in (b"k", b"f", b"c", b"m", b"u", b"q", b"L")}
        found |= {max(kinds.rfind(b"R"), kinds.rfind(b"T"))}
        found |= {max(kinds.rfind(b"t"), kinds.rfind(b"b")), max(kinds.rfind(b"p"), kinds.rfind(b"b")), kinds.rfind(b"i")}
        found |= {match.start() for match in re.finditer(b"a", kinds)}
        answered = {self._records[match.start()].ref for match in re.finditer(b"N", kinds)}
        found |= {match.start() for match in re.finditer(b"K", kinds)} - answered
        return found - {NONE}
