"""A file of lines that is begun anew when it has its size; a few old ones stay: NAME.1 is the newest of them.

For acpd's own log, not for those of sessions: nothing is synced, and what cannot be written is lost.
"""

from __future__ import annotations

import os
from pathlib import Path

from acpd_backends.files import FILES, Files


class RotatedFile:
    """Opened with the first line. One thread uses it. All methods block, and raise OSError; then the next line tries again."""

    def __init__(self, path: str, *, size: int, keep: int, files: Files = FILES) -> None:
        """`size` in bytes, of one file; a line that is longer has a file of its own. `keep`: how many old ones."""
        self._path = Path(path)
        self._size = size
        self._keep = keep
        self._files = files
        self._fd = -1
        self._filled = 0

    def write(self, data: bytes) -> None:
        if self._fd < 0:
            self._open()
        if self._filled and self._filled + len(data) > self._size:
            self.close()
            self._rotate()
            self._open()
        self._filled += len(data)
        self._files.write_all(self._fd, data)

    def reopen(self) -> None:
        """The next line goes to the file that has the name then."""
        self.close()

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self._files.close(fd)

    def _open(self) -> None:
        self._files.make_folders(self._path.parent, sync=False)
        self._fd = self._files.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._filled = os.fstat(self._fd).st_size

    def _old(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}") if number else self._path

    def _rotate(self) -> None:
        extra = self._keep + 1
        while self._old(extra).exists():  # more were kept once
            self._files.unlink(self._old(extra))
            extra += 1
        for number in range(self._keep - 1, -1, -1):
            if self._old(number).exists():
                self._files.replace(self._old(number), self._old(number + 1))
        self._files.unlink(self._path)
