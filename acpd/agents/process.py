"""One agent process: started in a group of its own, watched by a pidfd, ended with everything it started."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from acpd.errors import AgentError, AgentNotFound

LINK_VARIABLE = "ACPD_LINK"
KILL_WAIT = 2.0


class Pipes(NamedTuple):
    """Our ends of a new process."""

    process: subprocess.Popen[bytes]
    stdin: int
    stdout: int


def find_program(name: str, path: str, cwd: str) -> str:
    """The file that this command means. Raises AgentNotFound, which says where was searched."""
    if os.sep in name:
        candidates = [os.path.join(cwd, name)]
    else:
        candidates = [os.path.join(folder, name) for folder in path.split(os.pathsep) if folder]
    for candidate in candidates:
        if os.path.isfile(candidate) and os.access(candidate, os.X_OK):
            return candidate
    for candidate in candidates:
        if os.path.isfile(candidate):
            raise AgentNotFound(f"agent command may not be executed: {candidate}", hint=f"chmod +x {candidate}")
    where = (
        f"no such program: {candidates[0]}"
        if os.sep in name
        else f"PATH searched: {path or '(empty)'}; install it, or give its whole path"
    )
    raise AgentNotFound(f"agent command not found: {name}", hint=where)


_descriptors: list[tuple[int, int]] = []
"""The limit that this process was started with, if it has raised its own."""


def allow_many_descriptors() -> None:
    """Raise our own limit as far as we may: each client is one, each agent two or three."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard and not _descriptors:
        with contextlib.suppress(OSError, ValueError):  # macOS says "unlimited" and means less
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard if sys.platform == "linux" else min(hard, 10240), hard))
            _descriptors.append((soft, hard))


def as_we_began(pid: int) -> None:
    """What we start has the limit of descriptors that we began with: some programs close all that they may have."""
    if _descriptors and sys.platform == "linux":
        with contextlib.suppress(OSError):  # it has ended
            resource.prlimit(pid, resource.RLIMIT_NOFILE, _descriptors[0])


def start(command: Sequence[str], env: Mapping[str, str], cwd: str | None, stderr: int) -> Pipes:
    """Start it; blocks for some milliseconds, so call it in a thread. It inherits fds 0, 1, 2 and nothing else.

    Raises AgentNotFound, AgentError; OSError where no descriptor is free.
    """
    here = cwd or _current_folder(env)
    if not os.path.isdir(here):
        raise AgentError(f"cannot start agent {command[0]}: its working directory does not exist: {here}")
    program = find_program(command[0], env.get("PATH", os.defpath), here)
    theirs_in, ours_in = os.pipe()
    try:
        ours_out, theirs_out = os.pipe()
    except OSError:
        os.close(theirs_in)
        os.close(ours_in)
        raise
    try:
        process = subprocess.Popen(
            list(command),
            executable=program,
            stdin=theirs_in,
            stdout=theirs_out,
            stderr=stderr,
            env=dict(env),
            cwd=here,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:  # ValueError: a NUL in an argument or in the environment
        os.close(ours_in)
        os.close(ours_out)
        cause = error.strerror if isinstance(error, OSError) else str(error)
        raise AgentError(f"cannot start agent {command[0]}: {cause}", hint=f"program: {program}") from None
    finally:
        os.close(theirs_in)
        os.close(theirs_out)
    as_we_began(process.pid)
    return Pipes(process, ours_in, ours_out)


def _current_folder(env: Mapping[str, str]) -> str:
    """Ours; where that was removed meanwhile, one that is there: each session brings a folder of its own."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return env.get("HOME", "/")


def start_time(pid: int) -> int:
    """When the process started, in clock ticks since boot; 0: there is none. With the pid it names a process for ever.

    One that has ended and was not fetched by its parent is none: an editor may never fetch an acpd that was killed.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            fields = stat.read().rsplit(b")", 1)[1].split()
        return 0 if fields[0] in {b"Z", b"X"} else int(fields[19])
    except (OSError, IndexError, ValueError):
        return 0


def boot_id() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""


def with_variable(value: str, variable: str = LINK_VARIABLE) -> list[int]:
    """The processes of ours whose environment has this value, e.g. names this link."""
    wanted = f"{variable}={value}".encode()
    found = []
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if name.isdigit() and int(name) != os.getpid():
            try:
                with open(f"/proc/{name}/environ", "rb") as environ:
                    if wanted in environ.read().split(b"\0"):
                        found.append(int(name))
            except OSError:
                continue  # gone meanwhile, or not ours
    return found


def signal_group(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def signal_process(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def descendants(*pids: int) -> set[tuple[int, int]]:
    """Pid and start time of all that these have started, as long as their parents live: those too that have left their group
    and their environment. Blocks for milliseconds.
    """
    below: dict[int, list[tuple[int, int]]] = {}
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError), open(f"/proc/{name}/stat", "rb") as stat:
                fields = stat.read().rsplit(b")", 1)[1].split()
                below.setdefault(int(fields[1]), []).append((int(name), int(fields[19])))
    found: set[tuple[int, int]] = set()
    left = [*pids]
    while left:
        new = [each for each in below.get(left.pop(), ()) if each not in found]
        found.update(new)
        left += [pid for pid, _ in new]
    return found


def kill_rest(
    group: int,
    value: str,
    variable: str = LINK_VARIABLE,
    *,
    ended: bool = False,
    known: Iterable[tuple[int, int]] = (),
) -> None:
    """SIGKILL to what is left of the group, to every process that carries the link's name, and to all that they have started.
    Blocks for milliseconds.

    `ended`: the group's first process was fetched. If there is one with its number all the same, that is somebody else's, and
    so is its group: a number is not given out again while a group has it. `known`: what `descendants` said before it ended.
    """
    marked = with_variable(value, variable)
    below = descendants(*marked, *(() if ended else (group,)))
    if not (ended and exists(group)):
        signal_group(group, signal.SIGKILL)
    for pid in marked:
        signal_process(pid, signal.SIGKILL)
    for pid, began in {*below, *known}:
        if start_time(pid) == began:
            signal_process(pid, signal.SIGKILL)


def exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


class Watched:
    """A process whose end is noticed at once. `on_exit(code)` is called once, on the loop; negative: -signal."""

    def __init__(self, process: subprocess.Popen[bytes], on_exit: Callable[[int], None]) -> None:
        self.pid = process.pid
        self.code: int | None = None
        self._process = process
        self._on_exit = on_exit
        self._loop = asyncio.get_running_loop()
        self._exited = asyncio.Event()
        self._pidfd = -1
        try:
            self._pidfd = os.pidfd_open(process.pid)
        except (AttributeError, OSError):  # not Linux
            self._loop.run_in_executor(None, self._wait)
        else:
            self._loop.add_reader(self._pidfd, self._reap)

    def _wait(self) -> None:
        self._process.wait()
        self._loop.call_soon_threadsafe(self._reap)

    def _reap(self) -> None:
        code = self._process.poll()
        if code is None:
            return
        if self._pidfd >= 0:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1
        self.code = code
        self._exited.set()
        self._on_exit(code)

    async def exited(self, timeout: float) -> bool:
        """Whether it has ended within so many seconds."""
        try:
            await asyncio.wait_for(self._exited.wait(), timeout)
        except TimeoutError:
            return False
        return True

    async def stop(self, link: str, grace: float) -> None:
        """Its stdin is closed already. Wait, SIGTERM to the group, wait, SIGKILL to all that is left."""
        if not await self.exited(grace):
            signal_group(self.pid, signal.SIGTERM)
            await self.exited(grace)
        await asyncio.to_thread(kill_rest, self.pid, link, ended=self.code is not None)
        await self.exited(KILL_WAIT)
