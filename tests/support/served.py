"""`acpd serve` as a process with a home of its own, editors that reach it by their shims, and commands beside them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support import proc
from tests.support.client import Client
from tests.support.paths import ROOT

ACPD = [sys.executable, "-P", "-m", "acpd"]
AGENT = [sys.executable, "-m", "tests.support.agent"]
_CONFIG = """
[agents]
default = "scripted"
stop_grace = 0.3
[agents.scripted]
command = [{command}]
"""


class Served:
    """Use it as a context manager: afterwards no process of it is left."""

    def __init__(self, home: Path, *options: str) -> None:
        """`options`: of the scriptable agent."""
        self.home = home
        self.mark = proc.new_mark()
        self.work = home / "work"
        self.work.mkdir(parents=True)
        self.socket = home / "run" / "acpd.sock"
        (home / "config").mkdir()
        command = ", ".join(f'"{word}"' for word in [*AGENT, *options])
        (home / "config" / "acpd.toml").write_text(_CONFIG.format(command=command))
        kept = {name: os.environ[name] for name in ("PATH", "LANG", "HOME") if name in os.environ}
        path = os.pathsep.join((str(ROOT), str(ROOT / "backends")))
        self.env = {**kept, "PYTHONPATH": path, "ACPD_HOME": str(home), "TERM": "dumb", proc.MARK: self.mark}
        self._daemons: list[subprocess.Popen[bytes]] = []

    def serve(self, *before: str) -> int:
        """Start the daemon; it can be reached then. Its pid. `before`: words of a command that becomes it."""
        ready, theirs = os.pipe()
        env = {**self.env, "ACPD_READY_FD": str(theirs)}
        log = (self.home / "serve.log").open("ab")
        with log:
            self._daemons.append(subprocess.Popen([*before, *ACPD, "serve"], env=env, stderr=log, pass_fds=(theirs,), cwd="/"))
        os.close(theirs)
        said = os.read(ready, 4096)
        os.close(ready)
        assert b"ready\n" == said
        return self._daemons[-1].pid

    def kill(self) -> None:
        """The daemon, as by kill -9."""
        self._daemons[-1].kill()
        self._daemons[-1].wait()

    def stop(self) -> int:
        """The daemon, as by SIGTERM. Its exit code."""
        self._daemons[-1].send_signal(signal.SIGTERM)
        return self._daemons[-1].wait(20)

    def run(self, *words: str, stdin: str = "", **more: str) -> tuple[int, str, str]:
        """`acpd WORDS`: exit code, stdout, stderr."""
        ran = subprocess.run(
            [*ACPD, *words], env={**self.env, **more}, input=stdin.encode(), capture_output=True, timeout=60, cwd=self.work
        )
        return ran.returncode, ran.stdout.decode(), ran.stderr.decode()

    def editor(self, **more: Any) -> Client:
        """An editor that has started `acpd` and said initialize. `env`: what it has beside the usual."""
        env = {**self.env, "ACPD_STANDALONE": "", **more.pop("env", {})}
        made = Client(ACPD, self.home, env=env, mark=self.mark, check=False, **more)
        made.initialize()
        return made

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for daemon in self._daemons:
            daemon.terminate()
        for daemon in self._daemons:
            daemon.wait(20)
        left = proc.wait_none_left(self.mark)
        proc.kill_marked(self.mark)
        assert [] == left
