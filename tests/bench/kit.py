"""The measuring kit and its anchors: where they are, how they are run, what comes back."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.paths import ROOT, SHARED

Rows = list[dict[str, Any]]
KIT = SHARED / "bench"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "acpd-bench"
LIBRARIES = ("uvloop", "msgspec", "aiofiles", "structlog", "mcp", "orjson", "agent-client-protocol==0.12.1")
TS_SDK = "@agentclientprotocol/sdk@2.4.0"


class RowFailed(Exception):
    """A row could not be measured; the text says why."""


def bench_python() -> str:
    """BENCH_PYTHON, or the interpreter of a cached venv with the anchors' libraries, made at the first use."""
    if given := os.environ.get("BENCH_PYTHON"):
        return given
    python = CACHE / "venv/bin/python"
    if not (CACHE / "venv/ready").exists():
        say(f"making {CACHE / 'venv'} with the anchors' libraries (once)")
        subprocess.run([sys.executable, "-m", "venv", CACHE / "venv"], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *LIBRARIES], check=True)
        (CACHE / "venv/ready").touch()
    return str(python)


def ts_sdk() -> str | None:
    """BENCH_TS_SDK, or the folder of the official TypeScript SDK, installed by npm at the first use; None without npm."""
    if given := os.environ.get("BENCH_TS_SDK"):
        return given
    folder = CACHE / "ts/node_modules/@agentclientprotocol/sdk"
    npm = shutil.which("npm")
    if not folder.is_dir() and npm and shutil.which("node"):
        say(f"installing {TS_SDK} (once)")
        command = [npm, "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(CACHE / "ts"), TS_SDK]
        if subprocess.run(command).returncode:
            return None
    return str(folder) if folder.is_dir() else None


def say(text: str) -> None:
    """Progress. The table alone goes to stdout."""
    sys.stderr.write(f"bench: {text}\n")
    sys.stderr.flush()


def limit_agent() -> list[str]:
    """The command of the kit's limit agent, as the kit starts it."""
    code = f"import sys; sys.path.insert(0, {str(KIT / 'agents')!r}); import raw_agent"
    return [bench_python(), "-c", code]


@dataclass
class Bench:
    """One run: what is measured, how thoroughly, and where its data lies. Results of the kit are kept by their name."""

    quick: bool = False
    acpd: str = str(Path(sys.executable).with_name("acpd"))
    folder: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="acpd-bench-")))
    seen: dict[str, Rows] = field(default_factory=dict)

    def size(self, full: int, quick: int) -> int:
        return quick if self.quick else full

    def home(self, name: str) -> Path:
        """An ACPD_HOME that is empty at the first use of this name."""
        home = self.folder / "homes" / name
        home.mkdir(parents=True, exist_ok=True)
        return home

    def env(self, name: str, sync: str, *, alone: bool = True) -> dict[str, str]:
        """`alone`: one process for one client; else by shim and daemon."""
        own = {"ACPD_STANDALONE": "1"} if alone else {"ACPD_STANDALONE": ""}
        return {"ACPD_HOME": str(self.home(name)), "ACPD_STORAGE_SYNC": sync, "ACPD_LOG_LEVEL": "error", **own}

    @contextlib.contextmanager
    def daemon(self, name: str, sync: str, *, pinned: bool = False) -> Generator[int]:
        """`acpd serve` for the home of this name: its pid. `pinned`: on the CPU that the kit's `--pin same` means."""
        ready, theirs = os.pipe()
        environment = {**os.environ, **self.env(name, sync, alone=False), "ACPD_READY_FD": str(theirs)}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        cpus = os.sched_getaffinity(0)
        if pinned:
            os.sched_setaffinity(0, {0})
        try:
            process = subprocess.Popen([self.acpd, "serve"], env=environment, pass_fds=(theirs,), stdout=subprocess.DEVNULL)
        finally:
            os.sched_setaffinity(0, cpus)
            os.close(theirs)
        try:
            with os.fdopen(ready, "rb") as said:
                if (answer := said.readline()) != b"ready\n":
                    raise RowFailed(f"acpd serve: {answer.decode().strip() or 'it ended'}")
            yield process.pid
        finally:
            process.terminate()
            process.wait(30)

    def wrap(self, agent: Sequence[str]) -> list[str]:
        """This agent behind acpd. Its sessions are kept under the name `bench`."""
        return [self.acpd, "run", "--name", "bench", "--", *agent]

    def anchors(self) -> str:
        """The limit agent and what SDKs there are, for `--anchors`."""
        return "limit,pysdk,tssdk" if ts_sdk() else "limit,pysdk"

    def kit(
        self, name: str, bench: str, *options: str, agent: Sequence[str] = (), sync: str = "process", alone: bool = True
    ) -> Rows:
        """The rows of one kit run with acpd in front of `agent`: one process, or a shim and a daemon. Raises RowFailed."""
        if alone:
            return self._kit(name, bench, options, agent, self.env(name, sync))
        name = f"{name}-daemon"
        with self.daemon(name, sync, pinned="same" in options):
            return self._kit(name, bench, options, agent, self.env(name, sync, alone=False))

    def _kit(self, name: str, bench: str, options: Sequence[str], agent: Sequence[str], env: dict[str, str]) -> Rows:
        if name in self.seen:
            return self.seen[name]
        result = self.folder / f"{name}.jsonl"
        command = [bench_python(), str(KIT / "kit.py"), bench, "--json", str(result), "--work-dir", str(self.folder / "work")]
        command += options
        if agent:
            command += ["--name", "acpd"]
            for key, value in env.items():
                command += ["--env", f"{key}={value}"]
            command += ["--", *self.wrap(agent)]
        environment = {**os.environ, "BENCH_PYTHON": bench_python(), "BENCH_TS_SDK": ts_sdk() or ""}
        say(f"{name}: kit.py {bench} {' '.join(options)}")
        done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
        sys.stderr.write(done.stdout + done.stderr)
        if done.returncode or not result.exists():
            last = done.stderr.strip().splitlines()[-1:] or ["no output"]
            raise RowFailed(f"kit.py {bench}: {last[0][:200]}")
        rows: Rows = json.loads(result.read_text().splitlines()[-1])["rows"]
        self.seen[name] = rows
        return rows

    def own(self, function: str, *arguments: object) -> dict[str, float]:
        """One measurement of acpd's own code, in an interpreter of its own."""
        command = [sys.executable, "-m", "tests.bench.own", function, json.dumps(arguments)]
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
        if done.returncode:
            raise RowFailed(f"{function}: {(done.stderr.strip().splitlines() or ['no output'])[-1][:200]}")
        result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        return result


def find(rows: Rows, key: str, name: str, **more: object) -> dict[str, Any]:
    """The row whose first column is `name`. Raises RowFailed: the kit drops what failed in a round."""
    for row in rows:
        if row.get(key) == name and all(row.get(other) == value for other, value in more.items()):
            return row
    raise RowFailed(f"{name} failed in the kit (its stderr is above)")
