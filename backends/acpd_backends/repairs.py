"""A repaired copy of a damaged log: every readable record, as a reader sees it. Blocking; called in threads.

A record keeps its bytes where nothing is wrong with it. Else its `id`, `parentId`, `entry` become what the tree makes of
them (docs/architecture.md, "Damage"), and `seq` rises by one from line to line. Where something was lost stands an entry
of type "gap", so that the copy is shown as the damaged log was.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from acpd.storage.scan import BOM, parse_line
from acpd.storage.tree import ROOT, SessionTree
from acpd.wire import splice
from acpd.wire.envelope import mend_surrogates
from acpd.wire.lines import Header, Stored, encode, entry, header_line
from acpd_backends.files import Files
from acpd_backends.forks import batches, records_of
from acpd_backends.logfile import LogFile, LogPaths


def repair(paths: LogPaths, header: Header, files: Files) -> Path:
    """Put the copy in the log's place and give the original its name with `.damaged-<n>`: the path of that.

    Whatever happens, the log's name stands for the one or the other, whole. The index goes first, because it is of the
    original. Raises OSError.
    """
    with LogFile(paths) as log:
        kept = _keep(paths, files)
        files.unlink(paths.index)
        files.write_pieces(paths.log, batches(_lines(log, header)), sync=True)
    return kept


def _keep(paths: LogPaths, files: Files) -> Path:
    """Another name for the log, on disk; the one of an attempt that was cut off, if there is one."""
    number = 1
    while (kept := paths.damaged(number)).exists() and not os.path.samefile(kept, paths.log):
        number += 1
    files.link(paths.log, kept)
    files.sync_folder(paths.folder)
    return kept


def _lines(log: LogFile, header: Header) -> Iterator[bytes]:
    yield _first(log, header)
    tree = SessionTree()
    seq = 0
    for raw, line in records_of(log):
        was: dict[str, object] = {"id": line.id, "parentId": line.parentId, "entry": line.entry, "seq": line.seq}
        position = len(tree)
        if tree.add(line) is None:
            continue
        if position in tree.gaps:
            seq += 1
            mark = f"gap:{tree.ids[position]}"
            above = tree.parents[position]
            yield entry("gap", _text(mark), None if above == ROOT else tree.ids[above], seq, _text(line.at), b"")
            line.parentId = mark
        seq += 1
        line.seq = seq
        yield _mended(raw, line, was) + b"\n"


def _first(log: LogFile, header: Header) -> bytes:
    """The header as it was written, if it stands alone on its line, with the id of `header`."""
    text = log.line_at(0).removeprefix(BOM).strip()
    items = parse_line(text, first=True)
    if len(items) == 1 and isinstance(items[0], Header):
        return (text if items[0].id == header.id else splice.replace(text, "id", encode(header.id))) + b"\n"
    found = log.any_header()
    return header_line(replace(found, id=header.id) if found is not None else header)


def _text(value: str) -> str:
    """As the inside of a JSON string: a damaged log may hold any."""
    return encode(value).decode()[1:-1]


def _mended(raw: bytes, line: Stored, was: dict[str, object]) -> bytes:
    for name, old in was.items():
        new = getattr(line, name)
        if new != old and new is not UNSET:
            try:
                raw = splice.replace(raw, name, encode(new))
            except msgspec.DecodeError:  # an escaped lone surrogate, which is read as U+FFFD
                raw = splice.replace(mend_surrogates(raw), name, encode(new))
    return raw
