"""Shims as processes, with and without a daemon."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import proc
from tests.support.paths import ROOT

_SCRIPT = """
import sys
from acpd.cli.entry import main
sys.exit(main())
"""
_WITH_SERVE = """
import sys
from acpd.shim import starting
starting.START_SECONDS = float({seconds!r})
starting.serve_command = lambda words: {command!r}
from acpd.cli.entry import main
sys.exit(main())
"""


class Place:
    """A home of its own, and the shims that are started there."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.mark = proc.new_mark()
        self.path = home / "run" / "acpd.sock"
        self.daemons = home / "daemons"
        self.daemons.mkdir()
        kept = {name: os.environ[name] for name in ("PATH", "LANG", "HOME") if name in os.environ}
        path = os.pathsep.join((str(ROOT), str(ROOT / "backends")))
        self.env = {**kept, "PYTHONPATH": path, "ACPD_HOME": str(home), proc.MARK: self.mark, "SECRET": "of the editor"}

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-P", "-c", _SCRIPT, *words]

    def starting(self, how: str, *, seconds: float = 20.0) -> list[str]:
        """A shim that starts this kind of tests.support.fake_serve."""
        serve = [sys.executable, "-m", "tests.support.fake_serve", str(self.path), str(self.daemons), how]
        return [sys.executable, "-P", "-c", _WITH_SERVE.format(seconds=seconds, command=serve)]

    def run(self, command: list[str], stdin: bytes = b"", **more: str) -> tuple[int, bytes, str]:
        """Exit code, stdout, stderr."""
        done = subprocess.run(command, input=stdin, capture_output=True, env={**self.env, **more}, timeout=60, cwd=self.home)
        return done.returncode, done.stdout, done.stderr.decode()

    def popen(
        self, command: list[str], *, pass_fds: tuple[int, ...] = (), stdout: int = subprocess.PIPE
    ) -> subprocess.Popen[bytes]:
        pipe = subprocess.PIPE
        return subprocess.Popen(
            command, stdin=pipe, stdout=stdout, stderr=pipe, bufsize=0, env=self.env, cwd=self.home, pass_fds=pass_fds
        )

    def started(self) -> dict[int, dict[str, Any]]:
        """What each daemon wrote down about itself."""
        return {int(file.name): json.loads(file.read_text()) for file in self.daemons.iterdir()}


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """Afterwards no process of it is left."""
    made = Place(tmp_path)
    yield made
    for pid in made.started():
        try:
            os.kill(pid, signal.SIGTERM)
        except ProcessLookupError:
            continue
    left = proc.wait_none_left(made.mark)
    proc.kill_marked(made.mark)
    assert [] == left
