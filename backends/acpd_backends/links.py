"""The runtime folder of agent links: what an agent process writes to stderr, and who it is.

    <link>.stderr   opened with O_APPEND by us, written by the agent and its children, shortened in place
    <link>.json     pid, start time, boot id, ... for the sweep at the next start; atomic, not synced: it means nothing
                    after a reboot

Blocking; called in threads. No process is looked at here.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import msgspec

from acpd.errors import StoreError
from acpd_backends.files import FILES, Files, failed
from acpd_backends.names import decode, encode

KEEP = 256 * 1024
"""Bytes of stderr that are left when it is shortened."""
WHEN = 1024 * 1024
"""Bytes of stderr from which on it is."""
OLD_STDERR = 20
"""Files of agents that have ended that stay for people to read."""
_RECORD = ".json"
_STDERR = ".stderr"


class LinkFolder:
    """The files of all links of one store. All methods raise StoreError."""

    def __init__(self, path: Path, *, files: Files = FILES) -> None:
        self.path = path
        self._files = files

    def _at(self, link_id: str, suffix: str) -> Path:
        return self.path / (encode(link_id) + suffix)

    def open_stderr(self, link_id: str) -> tuple[int, str]:
        """(descriptor for the agent's stderr, its path). The caller closes it. Old files of ended agents go."""
        path = self._at(link_id, _STDERR)
        try:
            self._files.make_folders(self.path, sync=False)
            self._prune()
            return self._files.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), str(path)
        except OSError as error:
            raise failed("open", str(path), error) from error

    def _prune(self) -> None:
        known = {name.removesuffix(_RECORD) for name in os.listdir(self.path) if name.endswith(_RECORD)}
        old: list[tuple[int, str]] = []
        for name in os.listdir(self.path):
            if name.endswith(_STDERR) and name.removesuffix(_STDERR) not in known:
                with contextlib.suppress(FileNotFoundError):  # another agent starts at the same time and removed it
                    old.append(((self.path / name).lstat().st_mtime_ns, name))
        for _, name in sorted(old)[: -OLD_STDERR or None]:
            self._files.unlink(self.path / name)

    def trim_stderr(self, link_id: str, keep: int = KEEP, when: int = WHEN) -> None:
        """Shorten a file of at least `when` bytes to its last whole lines of at most `keep`. Absent is no error."""
        path = self._at(link_id, _STDERR)
        try:
            if path.stat().st_size >= when:
                self._files.keep_tail(path, keep)
        except FileNotFoundError:
            return
        except OSError as error:
            raise failed("shorten", str(path), error) from error

    def tail(self, link_id: str, size: int) -> bytes:
        """The last `size` bytes of stderr at most; empty if there are none."""
        path = self._at(link_id, _STDERR)
        try:
            with path.open("rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - size))
                return file.read(size)
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise failed("read", str(path), error) from error

    def record(self, link_id: str, data: dict[str, object]) -> None:
        """Keep what is known of a link's process, in the place of what was."""
        path = self._at(link_id, _RECORD)
        if len(path.name) > len(_RECORD) and path.name.startswith("~"):
            raise StoreError("record", f"link {link_id}", cause="its id is too long")
        try:
            self._files.make_folders(self.path, sync=False)
            self._files.write_atomic(path, msgspec.json.encode(data), sync=False)
        except OSError as error:
            raise failed("record", f"link {link_id}", error) from error

    def forget(self, link_id: str) -> None:
        """The process is gone. Its stderr stays for a while. Absent is no error."""
        try:
            self._files.unlink(self._at(link_id, _RECORD))
        except OSError as error:
            raise failed("forget", f"link {link_id}", error) from error

    def recorded(self) -> list[tuple[str, dict[str, object]]]:
        """Every link that was recorded and not forgotten. Files that cannot be read as one are left alone and out."""
        try:
            names = sorted(os.listdir(self.path))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise failed("read", str(self.path), error) from error
        found = []
        for name in names:
            try:
                link_id = decode(name.removesuffix(_RECORD)) if name.endswith(_RECORD) else None
                data = msgspec.json.decode((self.path / name).read_bytes(), type=dict[str, object]) if link_id else {}
            except (OSError, ValueError):
                continue
            if link_id:
                found.append((link_id, data))
        return found
