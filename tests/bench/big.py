"""Row 16: one session of a million entries and a gigabyte, resumed, looked at, and checked, each by a fresh acpd."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.bench.kit import RowFailed
from tests.support.paths import ROOT
from tests.support.plain_editor import PlainEditor, editors

MIB = 1 << 20


class Run(NamedTuple):
    """Seconds, and the most memory that was resident at any time."""

    seconds: float
    mib: float


def resume(command: Sequence[str], env: Mapping[str, str], session: str, cwd: str) -> Run:
    """From session/resume to its answer, in an acpd that has started and whose agent is warm."""
    with editors() as start:
        editor: PlainEditor = start(["env", *(f"{name}={value}" for name, value in env.items()), *command])
        editor.initialize()
        editor.call("session/list", {})  # the start's own work is over
        began = time.perf_counter()
        answer = editor.call("session/resume", {"sessionId": session, "cwd": cwd, "mcpServers": []})
        seconds = time.perf_counter() - began
        if "error" in answer:
            raise RowFailed(str(answer["error"])[:200])
        status = Path(f"/proc/{editor.process.pid}/status").read_text()
        peak = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:"))
        return Run(seconds, peak / 1024)


def run(command: Sequence[str], env: Mapping[str, str]) -> Run:
    """A command, from its start to its end. Raises RowFailed unless it succeeds."""
    environment = {**os.environ, **env}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    began = time.perf_counter()
    with subprocess.Popen(command, env=environment, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RowFailed(f"{' '.join(command[1:])} ended with exit code {process.returncode}")
    return Run(time.perf_counter() - began, usage.ru_maxrss / 1024)


def median(runs: Sequence[Run]) -> Run:
    """The median of the times, the greatest of the memories."""
    return Run(statistics.median(each.seconds for each in runs), max(each.mib for each in runs))


def listed(acpd: str, env: Mapping[str, str]) -> str:
    """The one session of the store. Makes its catalog."""
    done = subprocess.run([acpd, "ls", "--all", "--json"], env={**os.environ, **env}, capture_output=True, check=True)
    (row,) = json.loads(done.stdout)
    return str(row["id"])
