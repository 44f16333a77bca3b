"""What is wrong with the files of one session: everything is read, nothing is written. Blocking; called in threads.

A log without damage is told by making its index, with 60 bytes a line in memory; any other is read as a whole tree.
"""

from __future__ import annotations

import hashlib
import os
import re
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from acpd.storage.context import Context
from acpd.storage.cuts import Cuts
from acpd.storage.fold import Fold, moved
from acpd.storage.scan import Damage, Item
from acpd.storage.tree import load
from acpd.storage.upkeep import NEWER, Checked, Found, of_tree
from acpd.wire.lines import VERSION, Stored
from acpd_backends import logfile
from acpd_backends.blobfiles import blob_names
from acpd_backends.lineindex import LineIndex
from acpd_backends.logfile import LogFile, LogPaths
from acpd_backends.records import SIZE, Irregular, Records

_BLOCK = 1 << 20
_NAMED = re.compile(rb'"\$blob":"([0-9a-f]{64})"')
_NAMED_LENGTH = 75


class SortedIds:
    """Ascending UUIDs and a number for each, in 20 bytes, where a dict needs 200. Raises Irregular for any other id."""

    __slots__ = ("_keys", "_numbers")

    def __init__(self) -> None:
        self._keys = bytearray()
        self._numbers = array("i")

    def __setitem__(self, identifier: str, number: int, /) -> None:
        key = _key(identifier)
        if self._keys and key <= bytes(self._keys[-16:]):
            raise Irregular
        self._keys += key
        self._numbers.append(number)

    def __contains__(self, identifier: object, /) -> bool:
        return isinstance(identifier, str) and self.get(identifier) is not None

    def get(self, identifier: str, /) -> int | None:
        key = _key(identifier)
        low, high = 0, len(self._numbers)
        while low < high:
            middle = (low + high) // 2
            at = bytes(self._keys[middle * 16 : middle * 16 + 16])
            if at == key:
                return self._numbers[middle]
            low, high = (middle + 1, high) if at < key else (low, middle)
        return None


def _key(identifier: str) -> bytes:
    try:
        key = bytes.fromhex(identifier.replace("-", ""))
    except ValueError:
        raise Irregular from None
    if len(key) != 16 or len(identifier) != 36:
        raise Irregular
    return key


class _Watch:
    """Sees every record of a log in file order, with its line number."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.found: list[Found] = []
        self.blobs: dict[str, tuple[int, int]] = {}
        """By name: the size that a line says, and the first line that names it."""
        self._seq = 0
        self._roots = 0
        self._line = 0
        self._lost = False
        self._whole = False

    def damage(self, number: int) -> None:
        """What is lost explains a gap in the numbers."""
        self._lost, self._line, self._whole = True, number, False

    def record(self, line: Stored, number: int) -> None:
        if line.blobs:
            for name, size in blob_names(line):
                self.blobs.setdefault(name, (size, number))
        if line.seq != self._seq + 1 and not (self._lost and line.seq > self._seq):
            self._add("seq", number, f"{line.seq} after {self._seq}")
        if number == self._line and self._whole:
            self._add("two-records", number)
        if line.parentId is None:
            self._roots += 1
            if self._roots > 1:
                self._add("second-root", number, line.id)
        self._seq, self._lost, self._line, self._whole = line.seq, False, number, True

    def _add(self, kind: str, number: int, detail: str = "") -> None:
        self.found.append(Found(kind=kind, path=self.path, line=number, detail=detail))


class _Watched(LineIndex):
    """An index that is made to look at the lines, not to be kept."""

    __slots__ = ("said", "watch")

    def __init__(self, log: LogFile, start: int, watch: _Watch) -> None:
        super().__init__(Records(), start, "", log.line_at)
        self._ids = SortedIds()
        self.said = Fold()
        self.watch = watch

    def add(self, line: Stored, offset: int) -> None:
        super().add(line, offset)
        self.watch.record(line, len(self) + 1)
        self.said.add(line)

    def compared(self, source: int) -> str:
        """How an index file looks beside it: "", "behind" or "wrong"."""
        size = os.fstat(source).st_size
        if size % SIZE or size > len(self) * SIZE:
            return "wrong"
        records = memoryview(self._records.added)
        for start in range(0, size, _BLOCK):
            if os.pread(source, min(_BLOCK, size - start), start) != bytes(records[start : min(start + _BLOCK, size)]):
                return "wrong"
        return "behind" if size < len(self) * SIZE else ""


def check(paths: LogPaths, *, live: bool) -> Checked:
    """See Upkeep.check. Raises OSError."""
    with LogFile(paths) as log:
        size = log.size
        checked, watch = _regular(log, live=live) or _damaged(log, live=live)
    found = [*checked.found, *watch.found, *_blobs(paths.blobs, watch)]
    if not live and not any(each.kind == NEWER for each in found):
        found += _context(paths)
    header = checked.header and moved(checked.header, checked.fold)
    return Checked(header, checked.fold, size, sorted(found, key=lambda each: (each.path != watch.path, each.line)))


def _regular(log: LogFile, *, live: bool) -> tuple[Checked, _Watch] | None:
    """Of a log that an index can describe; None: of this one it cannot."""
    watch = _Watch(str(log.paths.log))
    header, start = log.header()
    if header is None or header.version > VERSION or log.size < start:
        return None
    index = _Watched(log, start, watch)
    try:
        _, torn = logfile.complete_index(log, index)
    except Irregular:
        return None
    index.said.created_at = header.createdAt
    tail = [Found(kind="torn-tail", path=watch.path, line=len(index) + 2)] if torn else []
    return Checked(header, index.said, log.size, [] if live else [*tail, *_index(log, index)]), watch


def _index(log: LogFile, index: _Watched | None) -> list[Found]:
    source = log.open_index()
    if source is None:
        return []
    said = index.compared(source) if index is not None else "wrong"
    return [Found(kind=f"index-{said}", path=str(log.paths.index))] if said else []


def _damaged(log: LogFile, *, live: bool) -> tuple[Checked, _Watch]:
    """Of any log. 250 bytes an entry."""
    watch = _Watch(str(log.paths.log))

    def watched() -> Iterator[tuple[int, Item]]:
        for number, item in log.items():
            if isinstance(item, Stored):
                watch.record(item, number)
            elif isinstance(item, Damage):
                watch.damage(number)
            yield number, item

    header, fold, tree = load(watched())
    findings = [each for each in tree.findings if not (live and each.kind == "torn-tail")]
    newer = any(each.kind == NEWER for each in findings)
    index = [] if live or newer or not findings else _index(log, None)
    return Checked(header, fold, log.size, [*of_tree(watch.path, findings), *index]), watch


def _blobs(folder: Path, watch: _Watch) -> list[Found]:
    found: list[Found] = []
    for name, (size, line) in watch.blobs.items():
        fault = _blob_fault(folder / name, name, size)
        if fault:
            found.append(Found(kind=fault, path=watch.path, line=line, detail=str(folder / name)))
    return found


def _blob_fault(path: Path, name: str, size: int) -> str:
    digest = hashlib.sha256()
    length = 0
    try:
        with path.open("rb") as file:
            while data := file.read(_BLOCK):
                digest.update(data)
                length += len(data)
    except FileNotFoundError:
        return "missing-blob"
    return "" if (length, digest.hexdigest()) == (size, name) else "wrong-blob"


def context_of(paths: LogPaths) -> Iterator[bytes]:
    """The lines of the context file behind its header, made anew."""
    cuts = Cuts()
    for window in logfile.read_path(paths, None, None):
        cuts.feed(window)
    context = Context(cut=cuts.newest)
    for window in logfile.read_path(paths, None, None):
        yield context.feed(window)


def _context(paths: LogPaths) -> list[Found]:
    """A context file that is not there is made when it is wanted."""
    try:
        with paths.context.open("rb") as file:
            file.readline()
            fault = _difference(file, context_of(paths))
    except FileNotFoundError:
        return []
    return [Found(kind=fault, path=str(paths.context))] if fault else []


def _difference(file: BinaryIO, wanted: Iterator[bytes]) -> str:
    for lines in wanted:
        data = file.read(len(lines))
        if data != lines:
            return "context-behind" if lines.startswith(data) and not file.read(1) else "context-wrong"
    return "context-wrong" if file.read(1) else ""


def named_blobs(paths: LogPaths) -> set[str]:
    """Every blob that anything names that is, or was, of this log; whether it is a record or not."""
    found: set[str] = set()
    for name in sorted(os.listdir(paths.folder)):
        if name.startswith(paths.log.name):
            rest = b""
            with (paths.folder / name).open("rb") as file:
                while data := file.read(_BLOCK):
                    found.update(match[1].decode() for match in _NAMED.finditer(rest + data))
                    rest = data[-_NAMED_LENGTH:]
    return found
