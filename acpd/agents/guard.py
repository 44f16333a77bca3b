"""A small process that ends our commands where we cannot: when we are killed. Behind acpd nobody needs it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading

_SCRIPT = """
while read -r how group; do
    for each do shift; [ "$each" = "-$group" ] || set -- "$@" "$each"; done
    [ "$how" = remove ] || set -- "$@" "-$group"
done
[ $# = 0 ] || { kill -TERM "$@"; sleep 0.5; kill -KILL "$@"; }
"""
"""Keeps the groups that it is told until the end of its input, which is also ours."""


class Guard:
    """Started with the first command. Everything blocks for a millisecond or two, and may be called in any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def add(self, group: int) -> None:
        with self._lock:
            if self._process is None:
                self._process = subprocess.Popen(
                    ["/bin/sh", "-c", _SCRIPT],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env={"PATH": os.environ.get("PATH", os.defpath)},
                    cwd="/",
                    start_new_session=True,
                )
            self._tell(b"add %d\n" % group)

    def remove(self, group: int) -> None:
        """It has ended: another may have its number soon."""
        with self._lock:
            self._tell(b"remove %d\n" % group)

    def close(self) -> None:
        with self._lock:
            if self._process is not None and self._process.stdin is not None:
                with contextlib.suppress(OSError):
                    self._process.stdin.close()
                self._process.wait()
                self._process = None

    def _tell(self, line: bytes) -> None:
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError):  # it was killed
                os.write(self._process.stdin.fileno(), line)
