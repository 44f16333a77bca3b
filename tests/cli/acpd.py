"""Running the command as a process, on pipes or on a terminal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.support.paths import ROOT

ACPD = [sys.executable, "-P", "-m", "acpd"]
"""As the console script does it, and also where none is installed."""


class Ran(NamedTuple):
    code: int
    out: str
    err: str


def environment(home: Path, **more: str) -> dict[str, str]:
    """Nothing of the environment that the tests run in, but what Python needs."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "HOME") if name in os.environ}
    path = os.pathsep.join((str(ROOT), str(ROOT / "backends")))
    return {**kept, "PYTHONPATH": path, "ACPD_HOME": str(home), "ACPD_STANDALONE": "1", **more}


def run(home: Path, *words: str, cwd: Path | None = None, env: Mapping[str, str] = {}, closed: str = "") -> Ran:
    """`acpd WORDS` with stdin closed by end of file. `closed`: a shell's words for descriptors that are not there at all."""
    command = ["sh", "-c", f'exec "$@" {closed}', "sh", *ACPD, *words] if closed else [*ACPD, *words]
    ran = subprocess.run(
        command, env=environment(home, **env), cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, timeout=60
    )
    return Ran(ran.returncode, ran.stdout.decode(), ran.stderr.decode())


def on_terminal(home: Path, *words: str, env: Mapping[str, str] = {}, say: str = "") -> Ran:
    """`acpd WORDS` with a terminal as stdin, stdout and stderr; what it wrote is in `out`. `say`: what the person types."""
    ours, theirs = os.openpty()
    with subprocess.Popen([*ACPD, *words], env=environment(home, **env), stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        os.write(ours, say.encode())
        out = b""
        while chunk := _read(ours):
            out += chunk
        code = process.wait(60)
    os.close(ours)
    return Ran(code, out.decode().replace("\r\n", "\n"), "")


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # Linux: EIO when the other side has closed
        return b""


_MANY = """
import contextlib, io, json, os, sys
from acpd.cli.program import program
for words in json.load(sys.stdin):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = program(words, os.environ)
    print(json.dumps([code, out.getvalue(), err.getvalue()]))
"""


def run_many(home: Path, *commands: Sequence[str], env: Mapping[str, str] = {}) -> list[Ran]:
    """As `run`, one after the other in a single process: starting one takes longer than most of them."""
    ran = subprocess.run(
        [sys.executable, "-P", "-c", _MANY],
        env=environment(home, **env),
        input=json.dumps(commands).encode(),
        capture_output=True,
        timeout=120,
    )
    assert (0, b"") == (ran.returncode, ran.stderr)
    return [Ran(*json.loads(line)) for line in ran.stdout.splitlines()]
