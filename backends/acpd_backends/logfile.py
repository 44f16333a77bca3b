"""Reading a log: blocking, with one descriptor, in windows; nothing here writes. Called in threads.

A log in which nothing is wrong is described by its index (`lineindex`): the file's, if it is sound, with what was
appended since, else a new one. Any other log is read whole (`acpd.storage.tree`), twice where a path is asked for.
All functions raise OSError as it comes.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from msgspec import UNSET, Struct

from acpd.storage.fold import Fold, moved
from acpd.storage.scan import Block, Item, any_records, blocks, ends_whole, parse, parse_line, pieces, records
from acpd.storage.tree import SessionTree, load
from acpd.wire.lines import VERSION, Header, Stored
from acpd_backends.blobfiles import Restore, absent, payload
from acpd_backends.lineindex import LineIndex
from acpd_backends.records import BRANCHED, KIND, NONE, SIZE, Irregular, Record, Records, check_of, known, last_of, walk_back

WINDOW_LINES = 2000
WINDOW_BYTES = 1 << 20
_FIRST = 1 << 16
_CHUNK = 1 << 17
"""Bytes of one read, and so of most windows. Four times as much saves a tenth of a read's time and costs each client that is
behind 3 MiB more."""
_LINE = 1 << 12
_KEPT = ("config", "commands", "usage", "info", "plan", "link")


class LogPaths(Struct, frozen=True):
    """The files of one session in its folder."""

    folder: Path
    stem: str

    @property
    def log(self) -> Path:
        return self.folder / f"{self.stem}.log.jsonl"

    @property
    def context(self) -> Path:
        return self.folder / f"{self.stem}.jsonl"

    @property
    def index(self) -> Path:
        return self.folder / f"{self.stem}.idx"

    @property
    def blobs(self) -> Path:
        return self.folder / f"{self.stem}.blobs"

    def torn(self, number: int) -> Path:
        return self.folder / f"{self.stem}.log.jsonl.torn-{number}"

    def damaged(self, number: int) -> Path:
        """What a repaired copy took the place of."""
        return self.folder / f"{self.stem}.log.jsonl.damaged-{number}"


class LogFile:
    """One log, open for reading. What is appended meanwhile is seen by the next read."""

    def __init__(self, paths: LogPaths) -> None:
        """Raises FileNotFoundError."""
        self.paths = paths
        self._fd = os.open(paths.log, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe must not be waited for
        mode = os.fstat(self._fd).st_mode
        if not stat.S_ISREG(mode):
            os.close(self._fd)
            raise (
                IsADirectoryError(errno.EISDIR, "Is a directory")
                if stat.S_ISDIR(mode)
                else OSError(errno.EINVAL, "it is no file")
            )
        self._index = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        os.close(self._fd)
        if self._index >= 0:
            os.close(self._index)

    def open_index(self) -> int | None:
        """A descriptor of the index file, good as long as the log is open; None if there is no such file."""
        if self._index < 0:
            with contextlib.suppress(FileNotFoundError):
                self._index = os.open(self.paths.index, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        return self._index if self._index >= 0 else None

    @property
    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def chunks(self, start: int = 0, end: int = sys.maxsize) -> Iterator[bytes]:
        """The bytes from `start` on; the first chunk is a small one, so that the first window is there soon."""
        length = _FIRST
        while start < end and (chunk := os.pread(self._fd, min(length, end - start), start)):
            start += len(chunk)
            length = _CHUNK
            yield chunk

    def line_at(self, offset: int) -> bytes:
        """The line that begins here, without its end."""
        length = _LINE
        while True:
            data = os.pread(self._fd, length, offset)
            end = data.find(b"\n")
            if end >= 0 or len(data) < length:
                return data[:end] if end >= 0 else data
            length *= 4

    def stored_at(self, offset: int) -> Stored:
        """The record that begins here. Raises Irregular if there is none."""
        items = parse_line(self.line_at(offset))
        if len(items) != 1 or not isinstance(items[0], Stored):
            raise Irregular
        return items[0]

    def header(self) -> tuple[Header | None, int]:
        """The header, or None if line 1 holds no usable one, and where line 2 begins."""
        first = self.line_at(0)
        items = parse_line(first, first=True)
        header = items[0] if len(items) == 1 and isinstance(items[0], Header) else None
        return header, len(first) + 1

    def any_header(self) -> Header | None:
        """The header on line 1, whatever else stands there."""
        items = parse_line(self.line_at(0), first=True)
        return next((item for item in items if isinstance(item, Header)), None)

    def tail(self) -> tuple[int, bytes]:
        """(offset, bytes) of what follows the last newline."""
        end, length = self.size, _LINE
        while True:
            start = max(0, end - length)
            data = os.pread(self._fd, end - start, start)
            newline = data.rfind(b"\n")
            if newline >= 0 or start == 0:
                return start + newline + 1, data[newline + 1 :]
            length *= 4

    def items(self, start: int = 0, line: int = 1) -> Iterator[tuple[int, Item]]:
        """(line number, what stands there) to the end of the file."""
        for block in blocks(self.chunks(start), offset=start, line=line):
            found = records(block.data) if block.line > 1 else None
            if found is not None:
                yield from enumerate(found, block.line)
            else:
                yield from ((number, item) for number, _, item in parse(block))

    def lists(self, start: int = 0, end: int = sys.maxsize) -> Iterator[list[Stored]]:
        """The records between two places, as many at once as a chunk holds."""
        line = 1 if start == 0 else 2
        for data in pieces(self.chunks(start, end), first=line == 1):
            found = any_records(data) if line > 1 else None
            yield [item for _, _, item in parse(Block(0, line, data)) if isinstance(item, Stored)] if found is None else found
            line = 2

    def seek(self, after: int) -> int:
        """A place before the first line whose seq is greater than `after`, near it: seq ascends in file order."""
        low, high = self.header()[1], self.size
        while after > 0 and high - low > 2 * _FIRST:
            middle = (low + high) // 2
            data = os.pread(self._fd, _FIRST, middle)
            start = data.find(b"\n") + 1
            end = data.find(b"\n", start)
            items = parse_line(data[start:end]) if 0 < start < end else []
            if len(items) != 1 or not isinstance(items[0], Stored):
                break
            low, high = (middle + start, high) if items[0].seq <= after else (low, middle)
        return low


def last_saved(log: LogFile) -> tuple[int, bool] | None:
    """(end, branched) by the last record of the index file alone; None if there is no such file or it is not of this log."""
    try:
        last = last_of(_last_records(log, 1)[1])
        return _verified(log, last)[0], bool(last.flags & BRANCHED)
    except Irregular:
        return None


def _last_records(log: LogFile, count: int) -> tuple[int, bytes]:
    """(number of the first, records) of the last `count` records of the index file; empty if there is none.

    Raises Irregular if it cannot be an index file.
    """
    source = log.open_index()
    size = 0 if source is None else os.fstat(source).st_size
    start = max(0, size - count * SIZE)
    data = b"" if source is None else os.pread(source, size - start, start)
    if size % SIZE or not known(data[KIND::SIZE]):
        raise Irregular
    return start // SIZE, data


def _recent(log: LogFile, count: int) -> list[Stored] | None:
    """The last entries by the end of the index file, at the same cost however long the log is; None if that does not do."""
    saved = last_saved(log)
    if saved is None or saved[0] != log.size:
        return None
    try:
        first, data = _last_records(log, 4 * count + 64)
        places = walk_back(data, first, count)
        return None if places is None else [log.stored_at(place) for place in places]
    except Irregular:
        return None


def read_index(log: LogFile) -> LineIndex | None:
    """The index file, if there is one that belongs to this log; what was appended to the log since is not in it."""
    try:
        source = log.open_index()
        if source is None:
            return None
        records = Records(source, os.fstat(source).st_size)
        _verified(log, records[len(records) // 2])
        end, last_id = _verified(log, records[len(records) - 1])
        return LineIndex(records, end, last_id, log.line_at)
    except (Irregular, OSError):
        return None


def _verified(log: LogFile, record: Record) -> tuple[int, str]:
    """Where the line of this record ends, and its id. Raises Irregular if it is another line."""
    text = log.line_at(record.offset)
    items = parse_line(text)
    end = record.offset + len(text) + 1
    if end > log.size or len(items) != 1 or not isinstance(items[0], Stored):
        raise Irregular
    if items[0].seq != record.seq or check_of(items[0].id) != record.check:
        raise Irregular
    return end, items[0].id


def complete_index(log: LogFile, index: LineIndex | None = None) -> tuple[LineIndex, bool]:
    """The index of all whole lines (continued from `index`), and whether a torn line follows. Raises Irregular."""
    if index is None:
        header, start = log.header()
        if header is None or header.version > VERSION:
            raise Irregular
        index = LineIndex(Records(), start, "", log.line_at)
    for block in blocks(log.chunks(index.end), offset=index.end, line=2):
        if not _indexed(index, block):
            return index, True
    return index, False


def _indexed(index: LineIndex, block: Block) -> bool:
    """Add the lines of a block. False: it is a torn last line, and was left out."""
    found = records(block.data)
    if found is not None:
        offset = block.offset
        for line, text in zip(found, block.data.split(b"\n"), strict=False):
            index.add(line, offset)
            offset += len(text) + 1
        index.end = offset
        return True
    if not block.whole:
        if ends_whole(block.data):
            raise Irregular
        return False
    for _, offset, item in parse(block):
        if not isinstance(item, Stored) or offset < index.end:
            raise Irregular
        index.add(item, offset)
        index.end = offset + 1  # a second record at the same place is irregular
    index.end = block.offset + len(block.data)
    return True


def current_index(log: LogFile) -> tuple[LineIndex, bool]:
    """The index of all whole lines, from the file where that is possible. Raises Irregular."""
    saved = read_index(log)
    if saved is not None:
        try:
            return complete_index(log, saved)
        except Irregular:  # it may only be that the end cannot be added to a saved index
            pass
    return complete_index(log)


class Opened(Struct):
    """What a log says. `header`: with the folder where the project is now. `index` None: something is wrong with it."""

    header: Header | None
    fold: Fold
    index: LineIndex | None
    torn: bool


def fold_log(log: LogFile) -> Opened:
    """Header and fold, blobs put back, by the index where that is possible."""
    try:
        index, torn = current_index(log)
        header, _ = log.header()
        fold = index.fold(lambda number: log.stored_at(index.offset(number)))
        if header is not None:
            fold.created_at = header.createdAt
        if torn:
            fold.warnings.append("the last line is torn")
        opened = Opened(header, fold, index, torn)
    except Irregular:
        header, fold, tree = load(log.items())
        opened = Opened(header, fold, None, any(finding.kind == "torn-tail" for finding in tree.findings))
    if opened.header is not None:
        opened.header = moved(opened.header, fold)
    restore = Restore(log.paths.blobs)
    for name in _KEPT:
        line = getattr(fold, name)
        setattr(fold, name, line and restore(line))
    fold.asks = {name: restore(line) for name, line in fold.asks.items()}
    fold.warnings += [f"blob {name} is missing" for name in restore.missing]
    return opened


def load_tree(log: LogFile) -> SessionTree:
    """The whole tree. Lines whose blobs are gone are among its findings."""
    missing: list[tuple[int, str]] = []

    def watched() -> Iterator[tuple[int, Item]]:
        for number, item in log.items():
            if isinstance(item, Stored) and item.blobs:
                missing.extend((number, name) for name in absent(log.paths.blobs, item))
            yield number, item

    _, _, tree = load(watched())
    for number, name in missing:
        tree.damaged(number, "missing-blob", name)
    return tree


def windows(lists: Iterable[list[Stored]], restore: Callable[[Stored], Stored]) -> Iterator[list[Stored]]:
    """The same lines, blobs put back, at most 2,000 at once and no more once 1 MiB has been put back."""
    for found in lists:
        if not any([line.blobs for line in found]):  # noqa: C419 - a list is faster than a generator
            for start in range(0, len(found), WINDOW_LINES):
                yield found[start : start + WINDOW_LINES]
            continue
        window: list[Stored] = []
        weight = 0
        for line in found:
            whole = restore(line)
            if whole is not line:
                weight += len(payload(whole) or b"")
            window.append(whole)
            if weight >= WINDOW_BYTES or len(window) == WINDOW_LINES:
                yield window
                window, weight = [], 0
        if window:
            yield window


def read_lines(paths: LogPaths, after: int, until: int | None) -> Iterator[list[Stored]]:
    """The readable lines with `after < seq <= until`."""
    last = sys.maxsize if until is None else until
    with LogFile(paths) as log:
        lists = ([line for line in found if after < line.seq <= last] for found in log.lists(log.seek(after) if after else 0))
        yield from windows(lists, Restore(paths.blobs))


def read_path(paths: LogPaths, leaf: str | None, until: int | None) -> Iterator[list[Stored]]:
    """The entries from the root to `leaf` with `seq <= until`. Raises KeyError for an entry that is not there."""
    last = sys.maxsize if until is None else until
    with LogFile(paths) as log:
        kept = ([line for line in found if line.seq <= last] for found in _path(log, leaf))
        yield from windows(kept, Restore(paths.blobs))


def read_entries(paths: LogPaths, until: int | None) -> Iterator[list[Stored]]:
    """As `read_path`, of a log whose holder knows that it never branched and that nothing is wrong with it."""
    last = sys.maxsize if until is None else until
    with LogFile(paths) as log:
        found = _entries(log.lists(log.header()[1]))
        lists = (each if each and each[-1].seq <= last else [line for line in each if line.seq <= last] for each in found)
        yield from windows(lists, Restore(paths.blobs))


def _path(log: LogFile, leaf: str | None) -> Iterator[list[Stored]]:
    """The path by the index; from where that proves to be wrong, by a whole read. Raises KeyError."""
    given = 0
    with contextlib.suppress(Irregular):
        for found in _indexed_path(log, leaf):
            yield found
            given += len(found)
        return
    for found in _walked_path(log, leaf):
        yield found[given:]
        given = max(0, given - len(found))


def _indexed_path(log: LogFile, leaf: str | None) -> Iterator[list[Stored]]:
    """The path by the index. Of a log that never branched its last record is enough. Raises Irregular, KeyError."""
    if leaf is None and last_saved(log) == (log.size, False):
        return _entries(log.lists(log.header()[1]))
    index, _ = current_index(log)
    to = index.leaf if leaf is None else index.find(leaf)
    if to is None:
        raise KeyError(leaf)
    if leaf is None and not index.branched:
        return _entries(log.lists(index.offset(0), index.end))
    return entries_of(log, index, index.path(to))


def _entries(lists: Iterable[list[Stored]]) -> Iterator[list[Stored]]:
    for found in lists:
        yield [line for line in found if line.parentId is not UNSET]


def entries_of(log: LogFile, index: LineIndex, numbers: list[int]) -> Iterator[list[Stored]]:
    """The entries with these numbers, read together where they stand together."""
    window: list[Stored] = []
    weight = 0
    for start, end in index.runs(numbers):
        for found in _entries(log.lists(start, end)):
            window += found
            weight += min(end - start, _CHUNK)
            if weight >= _CHUNK or len(window) >= WINDOW_LINES:
                yield window
                window, weight = [], 0
    if window:
        yield window


def _walked_path(log: LogFile, leaf: str | None) -> Iterator[list[Stored]]:
    """The path by a whole read for the tree and a second one for the lines."""
    _, _, tree = load(log.items())
    yield from picked(log, tree, tree.path(leaf))


def picked(log: LogFile, tree: SessionTree, path: list[int]) -> Iterator[list[Stored]]:
    """The entries at these ascending positions of the tree, with ids and parents as the tree has them, and gap marks."""
    wanted = iter([*path, NONE])
    next_wanted = next(wanted)
    position = 0
    for found in _entries(log.lists()):
        chosen: list[Stored] = []
        for line in found:
            if position == next_wanted:
                if position in tree.gaps:
                    chosen.append(_gap(tree, position, line))
                line.id = tree.ids[position]
                parent = tree.parents[position]
                line.parentId = None if parent == NONE else tree.ids[parent]
                chosen.append(line)
                next_wanted = next(wanted)
            position += 1
        if chosen:
            yield chosen
        if next_wanted == NONE:
            return


def _gap(tree: SessionTree, position: int, line: Stored) -> Stored:
    """The mark before an entry that hangs where a line was lost."""
    parent = tree.parents[position]
    above = None if parent == NONE else tree.ids[parent]
    return Stored(type="gap", id=f"gap:{tree.ids[position]}", parentId=above, seq=line.seq, at=line.at)


def last_entries(paths: LogPaths, count: int) -> list[Stored]:
    """The last `count` entries of the path to the leaf; only these are read where the log has a sound index."""
    with LogFile(paths) as log:
        found = _recent(log, count)
        if found is None:
            found = _last(log, count)
        return [line for window in windows([found], Restore(paths.blobs)) for line in window]


def _last(log: LogFile, count: int) -> list[Stored]:
    try:
        index, _ = current_index(log)
        lists = list(entries_of(log, index, index.path(index.leaf, count)))
    except Irregular:
        _, _, tree = load(log.items())
        lists = list(picked(log, tree, tree.path()[-count:] if count > 0 else []))
    return [line for found in lists for line in found]


def torn_tail(log: LogFile) -> tuple[int, bool] | None:
    """Where the last line begins, if it is not ended, and whether it only lacks the newline. None: all is well."""
    offset, tail = log.tail()
    return (offset, ends_whole(tail, first=offset == 0)) if tail else None
