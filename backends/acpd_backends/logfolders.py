"""The folders of logs: which logs there are, removing one, and what killed processes left. Everything here blocks."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from acpd.storage.contract import Key
from acpd_backends.files import Files, is_abandoned
from acpd_backends.logfile import LogFile, LogPaths
from acpd_backends.names import Layout, recall

PIECE = 500
"""Names that are looked at in one go: a millisecond or two."""
_LOG_SUFFIX, _TEMP_SUFFIX = ".log.jsonl", ".tmp"
_LOG = re.compile(r"(.+)\.log\.jsonl\Z")
_TEMP = re.compile(r"([^.]+)\.(log\.jsonl|log\.jsonl\.(?:torn|damaged)-\d+|jsonl|idx|name)\.\d+(?:-\d+)?\.tmp\Z")


def scan(layout: Layout, user: str | None) -> Iterator[list[Key]]:
    """The keys of each folder of sessions. Files that are none of ours, and links, are left out."""
    for agent, place in layout.places(user):
        folder = place / "sessions"
        found = []
        for name in _files_in(folder, _LOG_SUFFIX):
            match = _LOG.match(name)
            if match is not None and (session := recall(folder, match[1])) is not None:
                found.append(Key(agent=agent or _agent_of(LogPaths(folder, match[1])), session=session, user=user))
        yield found


def sweep(layout: Layout, user: str | None, files: Files) -> Iterator[set[str]]:
    """The ids of all logs, by their names alone, in pieces of PIECE names at most. Raises OSError.

    Temporary files that nobody writes any more are removed.
    """
    for _, place in layout.places(user):
        folder = place / "sessions"
        names = _files_in(folder, _LOG_SUFFIX, _TEMP_SUFFIX)
        for start in range(0, len(names), PIECE):
            yield _swept(folder, names[start : start + PIECE], files)


def _swept(folder: Path, names: list[str], files: Files) -> set[str]:
    for name in names:
        if name.endswith(_TEMP_SUFFIX) and (match := _TEMP.match(name)) and is_abandoned(folder / name):
            with contextlib.suppress(OSError):  # of a store that may only be read, or removed by another's sweep
                _clear(LogPaths(folder, match[1]), folder / name, files, of_log=match[2] == "log.jsonl")
    stems = (match[1] for name in names if (match := _LOG.match(name)))
    return {session for stem in stems if (session := recall(folder, stem)) is not None}


def has_log(names: set[str], stem: str) -> bool:
    """Whether there is a log among these names of one folder, or one is on its way (a fork is made blobs first)."""
    log = f"{stem}{_LOG_SUFFIX}"
    return log in names or any(name.startswith(f"{log}.") and name.endswith(_TEMP_SUFFIX) for name in names)


def remove(paths: LogPaths, last: Path, files: Files) -> None:
    """Everything whose name begins with the session's; `last` last, so that a broken-off attempt can be repeated."""
    prefix = f"{paths.stem}."
    try:
        names = [name for name in os.listdir(paths.folder) if name.startswith(prefix)]
    except FileNotFoundError:
        return
    for name in sorted(names, key=lambda name: (paths.folder / name == last, name)):
        path = paths.folder / name
        if path.is_dir() and not path.is_symlink():
            files.remove_tree(path)
        else:
            files.unlink(path)
    files.sync_folder(paths.folder)  # also when nothing is left: the last attempt may have been broken off before this


def _clear(paths: LogPaths, temp: Path, files: Files, *, of_log: bool) -> None:
    """A temporary file that nobody writes any more; of a log, which was to be a fork, its blobs too."""
    if of_log and not os.path.lexists(paths.log):
        remove(paths, temp, files)
    else:
        files.unlink(temp)


def _files_in(folder: Path, *suffixes: str) -> list[str]:
    """Names of the files here that end so; links are none of ours."""
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries if entry.name.endswith(suffixes) and entry.is_file(follow_symlinks=False)]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _agent_of(paths: LogPaths) -> str:
    """The agent that the header names; "" if it cannot be told."""
    try:
        with LogFile(paths) as log:
            header = log.any_header()
    except OSError:
        return ""
    return header.agent if header else ""
