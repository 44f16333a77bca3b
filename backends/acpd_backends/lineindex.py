"""The index file of a log (`<session>.idx`): one record of 32 bytes for each line but the header. A cache, never synced.

    offset u64 | seq u32 | parent i32 | turn i32 | leaf i32 | ref i32 | kind u8 | flags u8 | check u16      (native order)

`parent`, `turn` (the `turn` entry in whose course the line was written), `leaf` (after this line) and `ref` (of an answer:
its ask; of a leaf fact: the entry) are numbers of records, -1 for none; `check` is the CRC of the id. Kinds are upper-case
letters for entries, lower-case ones for facts, so what a fold needs is found by searching bytes.

Only logs in which nothing is wrong have one: a damaged log is read whole. Whatever is in doubt counts as `Irregular`.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Callable, Iterator
from typing import TypeVar

from msgspec import UNSET

from acpd.storage.fold import Fold
from acpd.wire.lines import Stored

SIZE = 32
NONE = -1
_RECORD = struct.Struct("=QIiiiiBBH")
_INTS = SIZE // 4
_PARENT, _LEAF, _REF = 3, 5, 6
_KIND, _FLAGS = 28, 29
_SRC, _BRANCHED, _UNSORTED = 1, 2, 4
_pack = _RECORD.pack

_ENTRIES: dict[str, int] = dict(zip(("prompt", "update", "compaction", "ask", "answer", "turn"), b"PUCKNT", strict=True))
_FACTS: dict[str, int] = dict(
    zip(("leaf", "link", "config", "commands", "usage", "queue", "label", "info"), b"fkcmuqai", strict=True)
)
_UPDATES: dict[str, int] = dict(zip(("agent_message_chunk", "user_message_chunk", "plan"), b"AVL", strict=True))
_OTHER, _ANSWER, _RUNNING, _ENDED = b"UNRT"
_LOWER = bytes(range(ord("a"), ord("z") + 1))
_KINDS = b"PUCKNTALVREfkcmuqaitpbx"
_ONLY_CHUNKS = bytes(byte if byte == ord("A") else ord(" ") for byte in range(256))
_WITHOUT_SRC = bytes(flags for flags in range(8) if not flags & _SRC)
_ID = re.compile(rb'\{"type":"[^"\\]*","id":"([^"\\]*)"')


Buffer = TypeVar("Buffer", bytes, bytearray)


class Irregular(Exception):
    """This log is not one that an index can describe."""


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


def check_of(identifier: str) -> int:
    return zlib.crc32(identifier.encode()) & 0xFFFF


class LineIndex:
    """The records of a log, complete up to byte `end`; grows by `add`. 32 bytes a line, and the ids added since it was read.

    `line_at(number)` gives the bytes of a line of the log that was indexed before (not by `add`).
    """

    __slots__ = (
        "_branched",
        "_count",
        "_ids",
        "_kinds",
        "_last",
        "_last_id",
        "_leaf",
        "_line_at",
        "_old",
        "_sorted",
        "_turn",
        "data",
        "end",
        "last_id",
    )

    def __init__(self, data: bytearray, end: int, last_id: str, line_at: Callable[[int], bytes]) -> None:
        """`data` is the index's from now on."""
        self.data = data
        self.end = end
        self.last_id = last_id
        self._line_at = line_at
        self._old = self._count = len(data) // SIZE
        self._ids: dict[str, int] = {}
        self._kinds: bytes | None = None
        self._last = self._leaf = self._turn = NONE
        self._last_id: str | None = None
        """Of the last entry; None: there is none; empty: it was not read."""
        self._branched, self._sorted = False, True
        if data:
            *_, self._turn, self._leaf, _, kind, flags, _ = _RECORD.unpack_from(data, len(data) - SIZE)
            self._branched, self._sorted = bool(flags & _BRANCHED), not flags & _UNSORTED
            self._turn = NONE if kind == _ENDED else self._turn
            self._last = len(self.kinds.rstrip(_LOWER)) - 1
            self._last_id = "" if self._last != NONE else None

    def __len__(self) -> int:
        return self._count

    @property
    def old(self) -> int:
        """How many records were read from the file."""
        return self._old

    @property
    def added(self) -> memoryview:
        """The records that were added."""
        return memoryview(self.data)[self._old * SIZE :]

    @property
    def kinds(self) -> bytes:
        """The kind of every line, one byte each."""
        if self._kinds is None or len(self._kinds) != len(self):
            self._kinds = bytes(self.data[_KIND::SIZE])  # a slice: fifteen times as fast as by a memoryview
        return self._kinds

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
        return int(_RECORD.unpack_from(self.data, number * SIZE)[0])

    def add(self, line: Stored, offset: int) -> None:
        """Take the next line. Raises Irregular."""
        identifier, parent_id, number = line.id, line.parentId, self._count
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
        flags = (line.src is not None) | self._branched << 1 | (not self._sorted) << 2
        try:
            self.data += _pack(offset, line.seq, parent, self._turn, self._leaf, ref, kind, flags, check_of(identifier))
        except struct.error:
            raise Irregular from None
        if kind == _ENDED:
            self._turn = NONE
        if not line.at:
            raise Irregular
        self.last_id = identifier
        self._count = number + 1

    def _disordered(self, identifier: str) -> None:
        """An id that is not greater than the one before: whether it is new can only be told by those in memory."""
        self._sorted = False
        if self._old or identifier in self._ids:
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
        if number is not None or not self._old:
            return number
        if not self._sorted:
            raise Irregular
        low, high = 0, self._old
        while low < high:
            middle = (low + high) // 2
            at = self._id_at(middle)
            if at == identifier:
                return middle if self.data[middle * SIZE + _KIND] < _LOWER[0] else None
            low, high = (middle + 1, high) if at < identifier else (low, middle)
        return None

    def _id_at(self, number: int) -> str:
        match = _ID.match(self._line_at(number))
        if match is None:
            raise Irregular
        return match[1].decode("utf-8", "surrogatepass")

    def path(self, to: int, limit: int | None = None) -> list[int]:
        """The entries from the root, or the last `limit`, to `to`, as ascending numbers of lines."""
        ints = memoryview(self.data).cast("i")
        found: list[int] = []
        while to != NONE and (limit is None or len(found) < limit):
            found.append(to)
            to = ints[to * _INTS + _PARENT]
        found.reverse()
        return found

    def runs(self, numbers: list[int]) -> Iterator[tuple[int, int]]:
        """(start, end) in the log of numbers that stand together, facts between them not counted."""
        kinds = self.kinds
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
        if not self._count:
            return fold
        for number in sorted(self._telling()):
            fold.add(read(number))
        entries = self.kinds.translate(None, delete=_LOWER)
        fold.messages = entries.count(b"P") + len(entries.translate(_ONLY_CHUNKS).split())
        fold.prompted = b"P" in entries or b"V" in entries
        fold.leaf = read(self._leaf).id if self._leaf != NONE else None
        fold.branched = self._branched
        flags = self.data[_FLAGS::SIZE]
        spoken = len(flags.rstrip(_WITHOUT_SRC)) - 1
        fold.src = read(spoken).src if spoken >= 0 else None
        return fold

    def _telling(self) -> set[int]:
        """Lines that a fold must see itself: the last, the newest of their kind, all labels, open asks."""
        kinds = self.kinds
        found = {self._last, self._count - 1}
        found |= {kinds.rfind(kind) for kind in (b"k", b"c", b"m", b"u", b"q", b"L")}
        found |= {max(kinds.rfind(b"R"), kinds.rfind(b"T"))}
        found |= {max(kinds.rfind(b"t"), kinds.rfind(b"b")), max(kinds.rfind(b"p"), kinds.rfind(b"b"))}
        found |= {match.start() for match in re.finditer(b"a", kinds)}
        ints = memoryview(self.data).cast("i")
        answered = {ints[match.start() * _INTS + _REF] for match in re.finditer(b"N", kinds)}
        found |= {match.start() for match in re.finditer(b"K", kinds)} - answered
        return found - {NONE}


def sound(data: Buffer) -> Buffer | None:
    """What an index file holds, without a last record that was not written whole; None if it cannot be one."""
    if len(data) % SIZE:
        data = data[: len(data) - len(data) % SIZE]
    return None if data[_KIND::SIZE].translate(None, delete=_KINDS) else data


def walk_back(data: bytes, first: int, count: int) -> list[int] | None:
    """Where the last `count` entries of the path to the leaf begin in the log, in order, by the index file's last records.

    `first`: the number of the first of them. None: they do not reach back far enough.
    """
    ints = memoryview(data).cast("i")
    at = ints[len(ints) - _INTS + _LEAF]
    found: list[int] = []
    while at != NONE and len(found) < count:
        if at < first:
            return None
        found.append(int(_RECORD.unpack_from(data, (at - first) * SIZE)[0]))
        at = ints[(at - first) * _INTS + _PARENT]
    found.reverse()
    return found


def is_branched(data: bytes) -> bool:
    """Whether the log had branched by the last of these records."""
    return bool(data[len(data) - SIZE + _FLAGS] & _BRANCHED)


def last_record(data: bytes | memoryview) -> tuple[int, int, int]:
    """(offset, seq, check) of the last record."""
    offset, seq, *_, check = _RECORD.unpack_from(data, len(data) - SIZE)
    return offset, seq, check
