"""A server's process: in a group of its own, its stderr drained, ended with all that it started, whatever becomes of us."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from acpd.agents import process
from acpd.agents.process import KILL_WAIT, Pipes, Watched, descendants, kill_rest, signal_group
from acpd.errors import AgentError, AgentNotFound
from acpd.native.mcp.failed import ServerFailed
from acpd.peer import pipe_end

GRACE = 0.5
"""Seconds after EOF, and again after SIGTERM. An agent has to end within a second or two itself."""
TAIL = 8 * 1024
"""Bytes of stderr that are kept."""
VARIABLE = "ACPD_MCP_SERVER"
"""By its value what a server has started is found, in whatever group it is."""
LINGER = 0.2
"""Seconds for what a server wrote before its end, where something that it started still has its stdout."""
GUARD = (
    'read -r group && [ "$group" != done ] && ! read -r word && '
    f'sleep {GRACE} && kill -TERM "-$group" && sleep {GRACE} && kill -KILL "-$group"'
)
"""Waits for the end of our pipe, which comes also when we are killed, and ends the group then. `done` is a normal end."""


class Started(NamedTuple):
    """A process that was started, and what belongs to it."""

    pipes: Pipes
    guard: subprocess.Popen[bytes]
    """Ends the group where we cannot."""
    stderr: int
    mark: str
    """The value of its VARIABLE."""


class Child:
    """One process. `pipes`: our ends of its stdin and stdout, in this order; who talks to it takes them."""

    def __init__(self, started: Started) -> None:
        """On the loop."""
        self.pipes = [started.pipes.stdin, started.pipes.stdout]
        self.code: int | None = None
        self._when_exited: Callable[[], object] | None = None
        self._watched = Watched(started.pipes.process, self._on_exit)
        self._started = started
        self._stderr = [started.stderr]
        self._tail = _Tail()
        self._drain: asyncio.ReadTransport | None = None
        self._below: asyncio.Future[set[tuple[int, int]]] | None = None

    def look(self) -> asyncio.Future[set[tuple[int, int]]]:
        """What it has started, as of the first call: to be known before it is told to end, for it may end at once."""
        if self._below is None:
            found = set[tuple[int, int]]()
            looking = (lambda: found) if self.code is not None else partial(descendants, self.pid)
            self._below = asyncio.get_running_loop().run_in_executor(None, looking)
        return self._below

    async def drain(self) -> None:
        """Read its stderr from now on, whatever it writes."""
        loop = asyncio.get_running_loop()
        self._drain, _ = await loop.connect_read_pipe(lambda: self._tail, pipe_end(self._stderr.pop(), "rb"))

    @property
    def pid(self) -> int:
        return self._watched.pid

    def _on_exit(self, code: int) -> None:
        self.code = code
        if self._when_exited is not None:
            self._when_exited()

    def when_exited(self, callback: Callable[[], object]) -> None:
        """Called once, on the loop, when the process ends or has ended."""
        self._when_exited = callback
        if self.code is not None:
            callback()

    def last_words(self) -> str:
        """How it ended, and the end of what it wrote to stderr, not hidden yet."""
        how = "" if self.code is None else f"exit code {self.code}" if self.code >= 0 else _signal_name(-self.code)
        words = self._tail.text()
        return "; ".join(filter(None, (how, f"its last words: {words}" if words else "")))

    async def ended(self, timeout: float) -> bool:
        """Whether it has ended within so many seconds."""
        return await self._watched.exited(timeout)

    async def stop(self) -> None:
        """EOF, SIGTERM to the group after GRACE, SIGKILL to all that is left after another. To be called once, in a task
        that nobody cancels.
        """
        below = await self.look()
        self._close(self.pipes)
        if not await self._watched.exited(GRACE):
            signal_group(self.pid, signal.SIGTERM)
            await self._watched.exited(GRACE)
        ended = self.code is not None
        await asyncio.to_thread(partial(kill_rest, self.pid, self._started.mark, VARIABLE, ended=ended, known=below))
        await self._watched.exited(KILL_WAIT)
        await asyncio.to_thread(_dismiss, self._started.guard)
        self._close(self._stderr)
        if self._drain is not None:
            self._drain.close()

    def _close(self, descriptors: list[int]) -> None:
        while descriptors:
            os.close(descriptors.pop())

    def kill(self) -> None:
        """At once, where there is no time for more."""
        if self.code is None:
            signal_group(self.pid, signal.SIGKILL)


def _signal_name(number: int) -> str:
    try:
        return f"ended by {signal.Signals(number).name}"
    except ValueError:
        return f"ended by signal {number}"


def spawn(command: Sequence[str], env: Mapping[str, str], cwd: str) -> Started:
    """Start it, for a `Child`. Blocks for some milliseconds. Raises ServerFailed; nothing is left then."""
    mark = uuid.uuid4().hex
    ours, theirs = os.pipe()
    try:
        guard = subprocess.Popen(
            ["/bin/sh", "-c", GUARD],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={name: env[name] for name in ("PATH", process.LINK_VARIABLE) if name in env},
            cwd="/",
            start_new_session=True,
        )
        try:
            pipes = process.start(command, {**env, VARIABLE: mark}, cwd, theirs)
        except BaseException:
            _dismiss(guard)
            raise
    except (AgentError, OSError) as error:
        os.close(ours)
        raise ServerFailed(_why(error, command[0])) from None
    finally:
        os.close(theirs)
    assert guard.stdin is not None
    guard.stdin.write(b"%d\n" % pipes.process.pid)
    guard.stdin.flush()
    return Started(pipes, guard, ours, mark)


def _why(error: AgentError | OSError, program: str) -> str:
    """Without the PATH that was searched: it may be one of the values that nobody shows."""
    if isinstance(error, AgentNotFound):
        return f"{program} was not found, or may not be executed"
    if isinstance(error, OSError):
        return f"{program}: {error.strerror}"
    return error.message.removeprefix("cannot start agent ")


def _dismiss(guard: subprocess.Popen[bytes]) -> None:
    """It ends without doing anything, and is fetched."""
    assert guard.stdin is not None
    with contextlib.suppress(OSError):  # it was killed
        guard.stdin.write(b"done\n")
        guard.stdin.close()
    guard.wait()


class _Tail(asyncio.Protocol):
    """Keeps the end of what comes."""

    def __init__(self) -> None:
        self._kept = bytearray()
        self._cut = False

    def data_received(self, data: bytes) -> None:
        self._kept += data
        if len(self._kept) > 2 * TAIL:
            del self._kept[:-TAIL]
            self._cut = True

    def text(self) -> str:
        """Its last three lines that are not empty. A line whose beginning is gone is not shown: it may begin within a value."""
        lines = self._kept.decode(errors="replace").splitlines()[1 if self._cut else 0 :]
        return " | ".join([line.strip() for line in lines if line.strip()][-3:])
