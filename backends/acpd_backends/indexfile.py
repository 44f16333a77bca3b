"""Writing the index file of a log. It is a cache: verified when it is used, whatever it holds then."""

from __future__ import annotations

from acpd_backends import logfile
from acpd_backends.files import Files
from acpd_backends.lineindex import LineIndex
from acpd_backends.logfile import LogFile, LogPaths
from acpd_backends.records import Irregular


def update_index(paths: LogPaths, files: Files) -> None:
    """Bring the index file up to date with the log. It is a cache: what fails is not told."""
    try:
        with LogFile(paths) as log:
            if (saved := logfile.last_saved(log)) is not None and saved[0] == log.size:
                return
            try:
                index, _ = logfile.current_index(log)
            except Irregular:
                index = None
        write_index(paths, index, files)
    except OSError:
        return


def write_index(paths: LogPaths, index: LineIndex | None, files: Files) -> None:
    """Append what was added since it was read, or make the file anew; remove it where the log is damaged.

    Raises OSError; the file is verified when it is next used, whatever it holds then.
    """
    if index is None:
        files.unlink(paths.index)
    elif index.is_new:
        files.write_atomic(paths.index, index.added, sync=False)
    elif index.added:
        files.append(paths.index, index.added)
