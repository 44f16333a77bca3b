"""The records of an index file (`<session>.idx`): 32 bytes for each line of the log but the header.

    offset u64 | seq u32 | parent i32 | turn i32 | leaf i32 | ref i32 | kind u8 | flags u8 | check u16      (native order)

`parent`, `turn` (the `turn` entry in whose course the line was written), `leaf` (after this line) and `ref` (of an answer:
its ask; of a leaf fact: the entry) are numbers of records, -1 for none; `check` is the CRC of the id. Kinds are upper-case
letters for entries, lower-case ones for facts, so what a fold needs is found by searching bytes.

Of a file only the kinds and flags are held, 2 bytes a line; other fields are read when they are wanted.
"""

from __future__ import annotations

import os
import struct
import zlib
from typing import NamedTuple

SIZE = 32
NONE = -1
BRANCHED = 2
"""In the flags: the log had branched by this line."""
LOWER = bytes(range(ord("a"), ord("z") + 1))
KINDS = b"PUCKNTALVREfkcmuqaitpbx"
_RECORD = struct.Struct("=QIiiiiBBH")
KIND = 28
_PARENT, _FLAGS = 12, 29
_STEP = 1 << 16
_LARGEST = 1 << 63
_UNKNOWN = bytes(kind not in KINDS for kind in range(256))


class Irregular(Exception):
    """This log is not one that an index can describe."""


class Record(NamedTuple):
    """One line of the log."""

    offset: int
    seq: int
    parent: int
    turn: int
    leaf: int
    ref: int
    kind: int
    flags: int
    check: int


def check_of(identifier: str) -> int:
    return zlib.crc32(identifier.encode()) & 0xFFFF


class Records:
    """The records that a file holds, and those added since. The file is read while its descriptor is open."""

    __slots__ = ("_count", "_flags", "_kinds", "_source", "added", "old")

    def __init__(self, source: int = -1, size: int = 0) -> None:
        """`source`: descriptor of a file of `size` bytes. Raises OSError; Irregular if it cannot be an index file."""
        self._source = source
        self.old = self._count = size // SIZE
        """How many are the file's."""
        self.added = bytearray()
        kinds, flags = bytearray(), bytearray()
        buffer = bytearray(min(size, _STEP))
        for start in range(0, size, _STEP):
            length = min(_STEP, size - start)
            if os.preadv(source, [memoryview(buffer)[:length]], start) != length:
                raise Irregular
            kinds += buffer[KIND:length:SIZE]
            flags += buffer[_FLAGS:length:SIZE]
        self._kinds, self._flags = bytes(kinds), bytes(flags)
        if size % SIZE or not known(self._kinds):
            raise Irregular

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> Record:
        """Raises Irregular if the file has lost it."""
        if number >= self.old:
            return _unpack(self.added, number - self.old)
        return _unpack(os.pread(self._source, SIZE, number * SIZE), 0)

    @property
    def kinds(self) -> bytes:
        """The kind of every line, one byte each."""
        if len(self._kinds) != self._count:
            self._kinds += self.added[(len(self._kinds) - self.old) * SIZE + KIND :: SIZE]
        return self._kinds

    @property
    def flags(self) -> bytes:
        """The flags of every line, one byte each."""
        return self._flags + self.added[_FLAGS::SIZE]

    def parents(self) -> memoryview:
        """The parents of all lines: of line n at `n * 8`. Raises Irregular. Reads the whole file."""
        data = os.pread(self._source, self.old * SIZE, 0) if self.old else b""
        if len(data) != self.old * SIZE:
            raise Irregular
        return memoryview(data + self.added)[_PARENT:].cast("i")

    def append(self, record: tuple[int, ...]) -> None:
        """The fields in order. Raises Irregular if one of them does not fit."""
        try:
            self.added += _RECORD.pack(*record)
        except struct.error:
            raise Irregular from None
        self._count += 1


def known(kinds: bytes) -> bool:
    """Whether these are kinds that an index file may hold."""
    return b"\1" not in kinds.translate(_UNKNOWN)


def last_of(data: bytes) -> Record:
    """The last of these records. Raises Irregular if there is none."""
    return _unpack(data, len(data) // SIZE - 1)


def _unpack(data: bytes | bytearray, number: int) -> Record:
    try:
        record = Record._make(_RECORD.unpack_from(data, number * SIZE))
    except struct.error:
        raise Irregular from None
    if record.offset >= _LARGEST:
        raise Irregular
    return record


def walk_back(data: bytes, first: int, count: int) -> list[int] | None:
    """Where the last `count` entries of the path to the leaf begin in the log, in order, by the index file's last records.

    `first`: the number of the first of them. None: they do not reach back far enough. Raises Irregular.
    """
    at, after = last_of(data).leaf, first + len(data) // SIZE
    found: list[int] = []
    while at != NONE and len(found) < count:
        if not NONE < at < after:
            raise Irregular
        if at < first:
            return None
        record = _unpack(data, at - first)
        found.append(record.offset)
        at, after = record.parent, at
    found.reverse()
    return found
