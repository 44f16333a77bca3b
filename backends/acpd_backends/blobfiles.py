"""The blobs of one session as files, named by their SHA-256. Blocking; called in threads."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import Raw

from acpd.errors import StoreError
from acpd.wire import blobs
from acpd.wire.lines import Stored
from acpd_backends.files import Files

_PAYLOADS = ("params", "prompt", "result", "prompts")
_NAME = re.compile(r"[0-9a-f]{64}\Z")


def put_blobs(files: Files, folder: Path, values: Sequence[tuple[str, bytes]], sync: bool) -> None:  # noqa: FBT001 - passed on by to_thread
    """Store each once, `sync`: durably, with its name. Raises StoreError for a name that is no hash, OSError."""
    files.make_folders(folder, sync=sync)
    for name, data in values:
        if _NAME.match(name) is None:
            raise StoreError("store", f"a blob named {name!r}", cause="not a SHA-256 in hex")
        path = folder / name
        if not path.exists() or path.stat().st_size != len(data):
            files.write_atomic(path, data, sync=sync)
        elif sync:
            files.sync_folder(folder)  # whoever wrote it may have died before this


def absent(folder: Path, line: Stored) -> list[str]:
    """The blobs that a line names and that are not there, or not whole."""
    return [name for name, size in blob_names(line) if not _has(folder / name, size)]


def _has(path: Path, size: int) -> bool:
    try:
        return path.stat().st_size == size
    except OSError:
        return False


def payload(line: Stored) -> Raw | None:
    """The text that the offsets of a line's `blobs` are in."""
    return next((text for name in _PAYLOADS if isinstance(text := getattr(line, name), Raw)), None)


def blob_names(line: Stored) -> list[tuple[str, int]]:
    """(sha256, bytes) of each blob that a line names."""
    text = payload(line) if line.blobs else None
    return [] if text is None else [(name, size) for _, _, name, size in blobs.places(bytes(text), line.blobs)]


class Restore:
    """Puts the blobs of lines back. `missing`: those that could not be; words stand for them, so that a client can read it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.missing: list[str] = []

    def __call__(self, line: Stored) -> Stored:
        """The line with its blobs; itself if it names none."""
        text = payload(line) if line.blobs else None
        if text is None:
            return line
        whole = Raw(blobs.restore(bytes(text), line.blobs, self._get))
        name = next(name for name in _PAYLOADS if getattr(line, name) is text)
        return msgspec.structs.replace(line, blobs=(), **{name: whole})

    def _get(self, name: str, size: int) -> bytes:
        try:
            data = (self._folder / name).read_bytes()
        except OSError:
            data = b""
        if len(data) != size:
            self.missing.append(name)
            return b"[acpd has lost these %d bytes, blob %b]" % (size, name.encode())
        return data
