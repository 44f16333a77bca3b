"""Starting a daemon where none runs, once however many want one. What it imports is paid for only then.

Who starts one has the lock `acpd.start` in the runtime folder until the daemon says that it is ready. The daemon gets a
session of its own, no descriptor of the editor's, and of the editor's environment only what acpd itself needs: whoever
may look into a process must not find an editor's secrets in one that outlives it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import subprocess
import sys
import time
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

from acpd.config import Config, Flags, Paths
from acpd.errors import ConfigError
from acpd.stores import resolve
from acpd.where import store_words

START_SECONDS = 20.0
"""For getting the lock and hearing that the daemon is ready."""
READY_FD = "ACPD_READY_FD"
"""Names the descriptor on which a daemon writes `ready`, or `error CODE TEXT`, and a newline; then it closes it."""
LOCK = "acpd.start"
_PAUSE = 0.02
_LOG_SIZE = 1 << 20
_FILES = "acpd_backends.files:FILES"
_NAMES = {"HOME", "PATH", "USER", "LOGNAME", "SHELL", "LANG", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH"}
_PREFIXES = ("LC_", "XDG_", "ACPD_", "PYTHON")
_OTHERS = {"ACPD_USER", "ACPD_LINK", "ACPD_STANDALONE", "ACPD_LOGIN", READY_FD}
"""Of one client, or of the agent that started this shim: a daemon with that agent's ACPD_LINK would be ended with it."""


class CannotStart(Exception):
    """There will be no daemon, for the reason that `str()` gives; "" if it is as the user wants it, or told elsewhere."""


def may_start(flags: Mapping[str, str], env: Mapping[str, str]) -> bool:
    """Whether `[daemon] autostart` allows it. Raises CannotStart if the configuration is wrong, which who serves then tells."""
    said = Flags(config=flags.get("config"), storage=flags.get("storage"), backend=flags.get("backend"))
    try:
        return Config.load(Paths.find(env), env, said).daemon.autostart
    except ConfigError:
        raise CannotStart("") from None


@contextlib.contextmanager
def only_one(path: str, seconds: float) -> Generator[None]:
    """The right to start a daemon at the socket `path`. Makes its folder. Raises CannotStart."""
    folder = os.path.dirname(path)
    files: Any = resolve(_FILES)
    end = time.monotonic() + seconds
    try:
        files.make_folders(Path(folder), sync=False)
        lock = files.open_lock(Path(folder, LOCK))
    except OSError as error:
        raise CannotStart(f"{error.filename or folder}: {error.strerror or error}") from None
    try:
        while not _locked(lock):
            if time.monotonic() > end:
                raise CannotStart(f"another acpd has been starting one for {seconds:.0f} s")
            time.sleep(_PAUSE)
        yield
    finally:
        os.close(lock)


def _locked(lock: int) -> bool:
    """Raises CannotStart where there are no locks."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise CannotStart(f"{LOCK}: {error.strerror}") from None
    return True


def start(path: str, flags: Mapping[str, str], env: Mapping[str, str]) -> None:
    """Start a daemon at the socket `path`, and wait until it is ready. Raises CannotStart."""
    command = serve_command(store_words(flags, env))
    log = f"{os.path.splitext(path)[0]}.log"
    try:
        output = _open_log(log)
    except OSError as error:
        raise CannotStart(f"{log}: {error.strerror}") from None
    ready, theirs = os.pipe()
    try:
        try:
            _detach(command, {**environment(env), READY_FD: str(theirs)}, output, theirs)
        finally:
            os.close(theirs)
        answer = _answer(ready, time.monotonic() + START_SECONDS)
    except OSError as error:
        raise CannotStart(f"{command[0]}: {error.strerror}") from None
    finally:
        os.close(output)
        os.close(ready)
    if answer != "ready":
        words = answer.split(" ", 2)
        raise CannotStart(words[2] if words[0] == "error" and len(words) > 2 else answer or f"it ended at its start, see {log}")


def serve_command(words: Mapping[str, str]) -> list[str]:
    """`acpd serve` for the store of these words. -P: no module of the current folder can take acpd's place."""
    chosen = [text for name, value in words.items() for text in (f"--{name}", value)]
    return [sys.executable, "-P", "-m", "acpd", "serve", *chosen]


def environment(env: Mapping[str, str]) -> dict[str, str]:
    """What of it a daemon is given."""
    return {
        name: value for name, value in env.items() if (name in _NAMES or name.startswith(_PREFIXES)) and name not in _OTHERS
    }


def _open_log(log: str) -> int:
    """Where the daemon's stdout and stderr go: appended to, and begun anew above 1 MiB. Raises OSError."""
    files: Any = resolve(_FILES)
    opened: int = files.open(Path(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW)
    if os.fstat(opened).st_size > _LOG_SIZE:
        files.truncate(opened, 0)
    return opened


def _detach(command: list[str], env: dict[str, str], output: int, ready: int) -> None:
    """Start the command as nobody's child: a shim that lives longer would have to wait for it. Raises OSError."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            subprocess.Popen(
                command,
                env=env,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(ready,),
                start_new_session=True,
            )
            code = 0
        finally:
            os._exit(code)
    os.waitpid(child, 0)


def _answer(ready: int, end: float) -> str:
    """The line that the daemon writes; "" if it closes the pipe without one."""
    said = b""
    poll = select.poll()
    poll.register(ready, select.POLLIN)
    while b"\n" not in said:
        if not poll.poll(max(0.0, end - time.monotonic()) * 1000):
            return f"it was not ready within {START_SECONDS:.0f} s"
        data = os.read(ready, 4096)
        if not data:
            break
        said += data
    return said.partition(b"\n")[0].decode(errors="replace")
