"""Terminals that acpd has for an agent when no client can: a command on pipes, its output, its end (ACP v1 terminals).

One list for each link, which ends with it. A command has a process group of its own, and the names of its link and of itself
in its environment, by which all that it starts is found and ended. No thread waits for it: the end is a pidfd's, the output a
pipe's, read on the loop, and only its newest part is kept.
"""

from __future__ import annotations

import asyncio
import codecs
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from acpd.agents import files, process
from acpd.agents.process import KILL_WAIT, LINK_VARIABLE, Watched
from acpd.errors import INTERNAL_ERROR, INVALID_PARAMS, REQUEST_CANCELLED, RESOURCE_NOT_FOUND, AgentNotFound, RequestError
from acpd.rpc.protocol import Then
from acpd.storage.slots import OWN_TERMINAL
from acpd.wire.envelope import encode

if TYPE_CHECKING:
    from acpd.agents.guard import Guard

TERMINALS = 32
"""Terminals that an agent may have at once, those that have ended and are not released included."""
OUTPUT_LIMIT = 1024 * 1024
"""Bytes of output that are kept of one, if the agent does not want less."""
TERMINAL_VARIABLE = "ACPD_TERMINAL"
_PIECE = 64 * 1024
_LAST_PIECES = 32
"""Reads for what an ended command left in its pipe: a child that goes on writing has no end."""
_BURST = 1024 * 1024
_REST = 0.005
"""Seconds between so many bytes of output: a command that floods must not keep the loop busy. 200 MB/s are left to it."""


class _Variable(Struct, gc=False):
    name: str
    value: str


class _Create(Struct, gc=False):
    command: str
    args: list[str] | None = None
    env: list[_Variable] | None = None
    cwd: str | None = None
    outputByteLimit: int | None = None


class Output:
    """The newest text of a stream in at most `limit` bytes of UTF-8, cut between characters. What is no UTF-8 is U+FFFD."""

    __slots__ = ("_decode", "_kept", "_limit", "truncated")

    def __init__(self, limit: int) -> None:
        self.truncated = False
        self._limit = limit
        self._kept = bytearray()
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode

    def feed(self, data: bytes, *, end: bool = False) -> None:
        kept = self._kept
        kept += self._decode(data, end).encode()
        cut = len(kept) - self._limit
        if cut > 0:
            while cut < len(kept) and kept[cut] & 0xC0 == 0x80:  # within a character
                cut += 1
            del kept[:cut]
            self.truncated = True

    @property
    def text(self) -> str:
        return self._kept.decode()


class Terminal:
    """One command. Made on the loop, which it uses until `release`."""

    def __init__(self, name: str, limit: int, running: subprocess.Popen[bytes], pipe: int) -> None:
        """`pipe`: the readable end of its output, which does not block and is this object's from now on."""
        self.name = name
        self.output = Output(limit)
        self.waiting: dict[bytes, Then] = {}
        """Who is told of its end, by the id of the request."""
        self._pipe = pipe
        self._burst = 0
        self._loop = asyncio.get_running_loop()
        self._resting: asyncio.TimerHandle | None = None
        self._loop.add_reader(pipe, self._read)
        self._process = Watched(running, self._exited)

    def _read(self) -> bool:
        """A piece of its output. Whether there was one."""
        try:
            data = os.read(self._pipe, _PIECE)
        except BlockingIOError:
            return False
        self.output.feed(data, end=not data)
        self._burst += len(data)
        if not data:
            self._close()
        elif self._burst >= _BURST and self._resting is None:
            self._burst = 0
            self._loop.remove_reader(self._pipe)
            self._resting = self._loop.call_later(_REST, self._go_on)
        return bool(data)

    def _go_on(self) -> None:
        self._resting = None
        self._loop.add_reader(self._pipe, self._read)

    def _close(self) -> None:
        if self._resting is not None:
            self._resting.cancel()
            self._resting = None
        if self._pipe >= 0:
            self._loop.remove_reader(self._pipe)
            os.close(self._pipe)
            self._pipe = -1

    def _exited(self, _code: int) -> None:
        """All that the command itself wrote is in the pipe by now."""
        for _ in range(_LAST_PIECES):
            if self._pipe < 0 or not self._read():
                break
        waiting, self.waiting = self.waiting, {}
        for then in waiting.values():
            then(self.status, None)

    @property
    def pid(self) -> int:
        """That of its group, too."""
        return self._process.pid

    @property
    def status(self) -> bytes:
        """How it ended, `{"exitCode","signal"}`; empty: it runs."""
        code = self._process.code
        if code is None:
            return b""
        return b'{"exitCode":%b,"signal":%b}' % (encode(code if code >= 0 else None), encode(_signal(-code)))

    def wait(self, request: bytes, then: Then) -> None:
        if self.status:
            then(self.status, None)
        else:
            self.waiting[request] = then

    async def kill(self, grace: float) -> None:
        """SIGTERM to its group, after `grace` seconds SIGKILL to all that it started. Its output stays."""
        running = self._process
        below: set[tuple[int, int]] = set()
        if running.code is None:
            below = await asyncio.to_thread(process.descendants, running.pid)
            process.signal_group(running.pid, signal.SIGTERM)
            await running.exited(grace)
        ended = running.code is not None
        kill = partial(process.kill_rest, running.pid, self.name, TERMINAL_VARIABLE, ended=ended, known=below)
        await asyncio.to_thread(kill)
        await running.exited(KILL_WAIT)

    async def release(self, grace: float) -> None:
        """As `kill`, and nothing of it stays. Who waits for its end is told."""
        try:
            await self.kill(grace)
        finally:
            self._close()
            waiting, self.waiting = self.waiting, {}
            for then in waiting.values():  # the kernel does not let it go
                then(None, RequestError(INTERNAL_ERROR, f"terminal {self.name} was released before its command ended"))


def _signal(number: int) -> str | None:
    try:
        return signal.Signals(number).name if number > 0 else None
    except ValueError:
        return f"SIG{number}"


class Terminals:
    """Those of one link. `grace`: seconds from SIGTERM to SIGKILL. `guard`: who ends them if this process is killed."""

    def __init__(self, link: str, grace: float, guard: Guard | None = None) -> None:
        self._guard = guard
        self._link = link
        self._grace = grace
        self._made = 0
        self._open: dict[str, Terminal] = {}
        self._starting: set[asyncio.Future[tuple[subprocess.Popen[bytes], int]]] = set()
        self._closed = False

    def __contains__(self, name: object) -> bool:
        return name in self._open

    async def create(self, params: bytes, roots: Sequence[str], env: Mapping[str, str]) -> bytes:
        """The result of terminal/create for params that are sound. `roots`: the first is where it runs, if it says nothing.

        Raises RequestError. Cancelling it does not stop the start; what was started is ended with the link.
        """
        if self._closed:
            raise RequestError(INTERNAL_ERROR, "terminal/create: the agent is being stopped")
        if len(self._open) + len(self._starting) >= TERMINALS:
            raise RequestError(INTERNAL_ERROR, f"terminal/create: {TERMINALS} terminals are open; release one first")
        said = msgspec.json.decode(params, type=_Create)
        self._made += 1
        name = f"{OWN_TERMINAL}{self._link}-{self._made}"
        wanted = {each.name: each.value for each in said.env or ()}
        whole = {**env, **wanted, LINK_VARIABLE: self._link, TERMINAL_VARIABLE: name}
        starting = asyncio.get_running_loop().run_in_executor(None, self._start, said, tuple(roots), whole)
        self._starting.add(starting)
        limit = said.outputByteLimit
        kept = min(limit, OUTPUT_LIMIT) if isinstance(limit, int) else OUTPUT_LIMIT
        starting.add_done_callback(partial(self._started, name, kept))
        await asyncio.shield(starting)
        return b'{"terminalId":%b}' % encode(name)

    def _start(self, said: _Create, roots: tuple[str, ...], env: Mapping[str, str]) -> tuple[subprocess.Popen[bytes], int]:
        running, pipe = _start(said, roots, env)
        if self._guard is not None:
            self._guard.add(running.pid)
        return running, pipe

    async def _release(self, terminal: Terminal) -> None:
        await terminal.release(self._grace)
        if self._guard is not None:
            await asyncio.to_thread(self._guard.remove, terminal.pid)

    def _started(self, name: str, limit: int, starting: asyncio.Future[tuple[subprocess.Popen[bytes], int]]) -> None:
        """On the loop, before `create` goes on, and also if nobody waits for it any more."""
        self._starting.discard(starting)
        if not starting.cancelled() and starting.exception() is None:
            self._open[name] = Terminal(name, limit, *starting.result())

    def _named(self, name: str) -> Terminal:
        found = self._open.get(name)
        if found is None:
            raise unknown(name)
        return found

    def output(self, name: str) -> bytes:
        """The result of terminal/output. Raises RequestError, as the others do, if there is no such terminal."""
        terminal = self._named(name)
        ended = b',"exitStatus":%b' % terminal.status if terminal.status else b""
        kept = terminal.output
        return b'{"output":%b,"truncated":%b%b}' % (encode(kept.text), encode(kept.truncated), ended)

    def wait(self, name: str, request: bytes, then: Then) -> None:
        """`then` gets the result of terminal/wait_for_exit, at once if it has ended."""
        self._named(name).wait(request, then)

    def withdraw(self, request: bytes) -> None:
        """The agent does not wait for an end any more."""
        for terminal in self._open.values():
            if then := terminal.waiting.pop(request, None):
                then(None, RequestError(REQUEST_CANCELLED, "cancelled"))

    async def kill(self, name: str) -> bytes:
        await self._named(name).kill(self._grace)
        return b"{}"

    async def release(self, name: str) -> bytes:
        """The name means nothing any more, from the first moment on."""
        terminal = self._named(name)
        del self._open[name]
        await self._release(terminal)
        return b"{}"

    async def close(self) -> None:
        """The link has ended: so does everything here, and nothing is started any more."""
        self._closed = True
        if self._starting:
            await asyncio.wait(self._starting)
        left, self._open = self._open, {}
        await asyncio.gather(*(self._release(terminal) for terminal in left.values()))


def unknown(name: str) -> RequestError:
    return RequestError(RESOURCE_NOT_FOUND, f"there is no terminal {name[:100]}; it was released, or never made")


def _start(said: _Create, roots: tuple[str, ...], env: Mapping[str, str]) -> tuple[subprocess.Popen[bytes], int]:
    """The running command and the readable end of its output. Blocks. Raises RequestError."""
    cwd = said.cwd or roots[0]
    files.resolved(cwd, roots)
    if not os.path.isdir(cwd):
        raise RequestError(INVALID_PARAMS, f"terminal/create: the working directory does not exist: {cwd}")
    program, command = _command(said.command, said.args or [], env, cwd)
    ours, theirs = os.pipe()
    try:
        running = subprocess.Popen(
            command,
            executable=program,
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
            env=dict(env),
            cwd=cwd,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:  # ValueError: a NUL or a `=` where there may be none
        os.close(ours)
        cause = error.strerror if isinstance(error, OSError) else str(error)
        raise RequestError(INVALID_PARAMS, f"terminal/create: cannot run {said.command}: {cause}") from None
    finally:
        os.close(theirs)
    process.as_we_began(running.pid)
    os.set_blocking(ours, False)
    return running, ours


def _command(name: str, args: Sequence[str], env: Mapping[str, str], cwd: str) -> tuple[str, list[str]]:
    """The program and its arguments. A command that names no program and has no arguments is a line for the shell.

    Clients run it so, and agents count on that (`{"command": "ls -l | head"}`).
    """
    try:
        return process.find_program(name, env.get("PATH", os.defpath), cwd), [name, *args]
    except (AgentNotFound, ValueError) as error:  # ValueError: a NUL in the name
        if not args and "\0" not in name:
            return "/bin/sh", ["/bin/sh", "-c", name]
        cause = error.hint if isinstance(error, AgentNotFound) else str(error)
        raise RequestError(INVALID_PARAMS, f"terminal/create: cannot run {name}: {cause}") from None
