"""A new log that holds one path of another: the same entries under the same ids, numbered anew."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import Raw

from acpd.errors import StoreError
from acpd.storage.scan import SPLICED, blocks, parse
from acpd.storage.tree import ROOT, SessionTree, load
from acpd.wire import splice
from acpd.wire.ids import Ids
from acpd.wire.lines import Header, Stored, encode, header_line
from acpd_backends.blobfiles import blob_names
from acpd_backends.files import Files, failed
from acpd_backends.logfile import LogFile, LogPaths

_BATCH = 1 << 20
_decode_values = msgspec.json.Decoder(Raw).decode_lines


def write_fork(log: LogFile, target: LogPaths, header: Header, entry: str | None, files: Files) -> None:
    """The path up to `entry` (default: the leaf), its labels, the newest config, commands and info facts.

    Durable when it returns. Ids stay; parents are those that the tree found; `src` goes, because it speaks of another
    session's agent. Raises KeyError for an entry that is not there, StoreError if the target exists, OSError.
    """
    if target.log.exists():
        raise StoreError("fork to", f"session {header.id}", cause="there is a log of it already")
    _, _, tree = load(log.items())
    path = tree.path(entry)
    temp = target.log.with_name(f"{target.log.name}.{os.getpid()}.tmp")
    fd = files.open(temp, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        try:
            files.write_all(fd, header_line(header))
            for batch in batches(_lines(log, tree, path, target, files)):
                files.write_all(fd, batch)
            files.fdatasync(fd)
        finally:
            files.close(fd)
        files.replace(temp, target.log)
    except (OSError, StoreError):
        files.unlink(temp)
        raise
    files.sync_folder(target.folder)


def batches(lines: Iterator[bytes]) -> Iterator[bytes]:
    batch: list[bytes] = []
    size = 0
    for line in lines:
        batch.append(line)
        size += len(line)
        if size >= _BATCH:
            yield b"".join(batch)
            batch, size = [], 0
    yield b"".join(batch)


def _lines(log: LogFile, tree: SessionTree, path: list[int], target: LogPaths, files: Files) -> Iterator[bytes]:
    """The lines of the new log behind its header. Blobs are in place before the line that names them."""
    ids = Ids()
    wanted = set(path)
    facts: dict[str, tuple[bytes, Stored]] = {}
    position, seq = 0, 0
    link = _BlobLinks(log.paths.blobs, target.blobs, files)
    for raw, line in records_of(log):
        if not line.is_entry:
            if (name := _carried(line)) is not None and (line.entry is None or tree.position(line.entry) in wanted):
                facts[name] = (raw, line)
            continue
        if position in wanted:
            seq += 1
            link(line)
            parent = tree.parents[position]
            above = None if parent == ROOT else tree.ids[parent]
            ids.after(line.id)
            yield _renumbered(raw, {"seq": encode(seq), "id": encode(tree.ids[position]), "parentId": encode(above)})
        position += 1
    for raw, line in facts.values():
        seq += 1
        link(line)
        yield _renumbered(raw, {"seq": encode(seq), "id": encode(ids.new())})


def _carried(line: Stored) -> str | None:
    """Which of the facts that a fork takes along this is."""
    if line.type == "info":
        if line.cwd:  # where the source's project has gone; a fork has a folder of its own
            return None
        return "title" if line.title is not None else "info"
    if line.type == "label" and line.entry is not None:
        return f"label {line.entry}"
    return line.type if line.type in {"config", "commands"} else None


def records_of(log: LogFile) -> Iterator[tuple[bytes, Stored]]:
    """Every record with its text; of two on one line each has its own."""
    for block in blocks(log.chunks()):
        for _, group in itertools.groupby(parse(block), key=lambda found: found[1]):
            found = list(group)
            stored = [item for _, _, item in found if isinstance(item, Stored)]
            at = found[0][1] - block.offset
            raw = block.data[at : block.data.find(b"\n", at) + 1 or len(block.data)].strip()
            if len(found) == 1 and stored:
                yield raw, stored[0]
            else:
                yield from zip(own_texts(raw, stored), stored, strict=True)


def own_texts(raw: bytes, stored: list[Stored]) -> list[bytes]:
    """The text of each of the records that stand on one line, as they were written where that can be told."""
    if not stored:
        return []
    for start in (0, *(match.start() for match in SPLICED.finditer(raw, 1))):
        with contextlib.suppress(msgspec.DecodeError, RecursionError, ValueError):
            texts = [bytes(text) for text in _decode_values(raw[start:].strip(b"\0 \t\r"))][-len(stored) :]
            if len(texts) == len(stored):
                return texts
    return [encode(_slim(item)) for item in stored]


def _slim(line: Stored) -> dict[str, object]:
    """The members that say something: for a record whose own text cannot be cut out of a broken line."""
    default = Stored(type="", id="")
    names = {"meta": "_meta"}
    values = {names.get(name, name): getattr(line, name) for name in Stored.__struct_fields__}
    return {name: value for name, value in values.items() if value != getattr(default, "meta" if name == "_meta" else name)}


_HEAD = re.compile(
    rb'\{"type":("[^"\\]*"),"id":"[^"\\]*"(,"parentId":(?:"[^"\\]*"|null))?,"seq":[0-9]+(,"at":"[^"\\]*")(?:,"src":\["[^"\\]*",[0-9]+\])?'
)


def _renumbered(raw: bytes, members: dict[str, bytes]) -> bytes:
    """The line with these members, without `src`; every other byte stays."""
    head = _HEAD.match(raw)
    if head is not None and b'"src":' not in raw[head.end() : head.end() + 200]:
        parent = b',"parentId":%b' % members["parentId"] if "parentId" in members else b""
        start = b'{"type":%b,"id":%b%b,"seq":%b%b' % (head[1], members["id"], parent, members["seq"], head[3])
        return start + raw[head.end() :] + b"\n"
    spans = splice.members(raw)
    edits = [(*spans[name], value) for name, value in members.items() if name in spans]
    if "src" in spans:
        edits.append((*spans["src"], b"null"))
    return splice.apply(raw, edits) + b"\n"


class _BlobLinks:
    """Puts the blobs that a line names into the new session's folder."""

    def __init__(self, source: Path, target: Path, files: Files) -> None:
        self._source, self._target, self._files = source, target, files
        self._done: set[str] = set()

    def __call__(self, line: Stored) -> None:
        names = [name for name, _ in blob_names(line) if name not in self._done and (self._source / name).exists()]
        if not names:
            return
        self._files.make_folders(self._target, sync=True)
        for name in names:
            try:
                self._files.link(self._source / name, self._target / name)
            except OSError as error:
                raise failed("fork", f"the blob {self._source / name}", error) from error
        self._done.update(names)
        self._files.sync_folder(self._target)
