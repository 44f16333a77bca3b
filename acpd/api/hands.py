"""Files and commands for an agent: by its client where that can, else here, inside the session's folders.

Both ways are one: the same request of ACP goes to the client, or to acpd's own answers to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

import msgspec
from msgspec import Struct

from acpd.api.channel import encode
from acpd.api.shapes import Exit
from acpd.errors import FileFailed, RequestError, TerminalFailed
from acpd.tasks import Tasks

if TYPE_CHECKING:
    from pathlib import Path

    from acpd.agents.guard import Guard
    from acpd.agents.terminals import Terminals
    from acpd.api.calls import ToolCall
    from acpd.api.session import Session

T = TypeVar("T", bound=Struct)
GRACE = 0.4
"""Seconds from SIGTERM to SIGKILL for a command of ours: all is gone within a second of the end of the connection."""
RELEASE_TIMEOUT = 5.0
"""Seconds that leaving a terminal waits for a client."""


class _Content(Struct):
    content: str


class _Created(Struct):
    terminalId: str


class _Output(Struct):
    output: str
    truncated: bool = False


class _Exit(Struct):
    exitCode: int | None = None
    signal: str | None = None


class Hands:
    """What this process does itself for one connection."""

    def __init__(self) -> None:
        self._terminals: Terminals | None = None
        self._guard: Guard | None = None
        self._releases = Tasks(lambda _name, _error: None)
        """Not the connection's: a release that is begun comes to its end, or something would be left running."""
        self._waits = itertools.count(1)

    async def do(self, method: str, params: Mapping[str, object], roots: Sequence[str]) -> bytes:
        """The result of this request. Raises RequestError."""
        if method.startswith("fs/"):
            from acpd.agents import files  # only agents that touch files

            serve: Callable[[bytes, Sequence[str]], bytes] = files.read if method == "fs/read_text_file" else files.write
            return await asyncio.to_thread(serve, encode(params), roots)
        terminals = self._own()
        name = str(params.get("terminalId", ""))
        if method == "terminal/create":
            return await terminals.create(encode(params), roots, os.environ)
        if method == "terminal/output":
            return terminals.output(name)
        if method == "terminal/wait_for_exit":
            return await self._wait(terminals, name)
        if method == "terminal/kill":
            return await terminals.kill(name)
        return await asyncio.shield(self._releases.spawn(terminals.release(name), name=f"release:{name}", watched=True))

    def _own(self) -> Terminals:
        if self._terminals is None:
            from acpd.agents.guard import Guard
            from acpd.agents.process import LINK_VARIABLE
            from acpd.agents.terminals import Terminals

            # Behind acpd they carry its link's name, by which it ends them if this process is killed.
            link = os.environ.get(LINK_VARIABLE)
            self._guard = None if link else Guard()
            self._terminals = Terminals(link or os.urandom(8).hex(), GRACE, self._guard)
        return self._terminals

    async def _wait(self, terminals: Terminals, name: str) -> bytes:
        ended: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        def then(result: bytes | None, error: RequestError | None) -> None:
            if ended.done():
                return
            if error is not None:
                ended.set_exception(error)
            else:
                ended.set_result(result or b"{}")

        request = b"%d" % next(self._waits)
        terminals.wait(name, request, then)
        try:
            return await ended
        finally:
            ended.cancel()
            terminals.withdraw(request)

    async def close(self) -> None:
        """Every command of ours is gone afterwards, with all that it started."""
        if self._terminals is not None:
            await self._terminals.close()
            await self._releases.drain()
        if self._guard is not None:
            await asyncio.to_thread(self._guard.close)


# -- files


async def read_text(session: Session, path: Path, line: int | None, limit: int | None) -> str:
    params: dict[str, object] = {"path": str(session.cwd / path)}
    if line is not None:
        params["line"] = line
    if limit is not None:
        params["limit"] = limit
    result = await _file(session, "fs/read_text_file", params, theirs=session.client.read)
    try:
        return msgspec.json.decode(result, type=_Content).content
    except msgspec.DecodeError:
        raise FileFailed(f"{params['path']}: the client's answer has no text") from None


async def write_text(session: Session, path: Path, text: str) -> None:
    params = {"path": str(session.cwd / path), "content": text}
    await _file(session, "fs/write_text_file", params, theirs=session.client.write)


async def _file(session: Session, method: str, params: Mapping[str, object], *, theirs: bool) -> bytes:
    roots = [str(root) for root in session.roots]
    try:
        if theirs:
            await asyncio.to_thread(_inside, str(params["path"]), roots)
            return await session.channel.ask(method, params)
        return await session.hands.do(method, params, roots)
    except RequestError as error:
        raise FileFailed(str(error)) from None


def _inside(path: str, roots: Sequence[str]) -> None:
    """Raises RequestError if the path leads out of the folders; the client may be less careful."""
    from acpd.agents import files

    files.resolved(path, roots)


# -- commands


class Terminal:
    """A running command, or one that has ended and is still looked at."""

    def __init__(self, session: Session, identifier: str) -> None:
        self.id = identifier
        self.theirs = session.client.terminal
        self.shown_by: list[ToolCall] = []
        self._session = session

    async def _do(self, method: str) -> bytes:
        return await _terminal(self._session, method, {"terminalId": self.id})

    async def wait(self) -> Exit:
        """Until it has ended. Raises TerminalFailed. Cancelling it leaves the command alone."""
        found = _decoded(await self._do("terminal/wait_for_exit"), _Exit)
        return Exit(found.exitCode, found.signal)

    async def output(self) -> tuple[str, bool]:
        """What it has written so far, and whether its beginning is cut off. Raises TerminalFailed."""
        found = _decoded(await self._do("terminal/output"), _Output)
        return found.output, found.truncated

    async def kill(self) -> None:
        """End it; its output stays. Raises TerminalFailed."""
        await self._do("terminal/kill")

    async def release(self) -> None:
        """It is gone afterwards. A terminal of ours is shown by the calls that have embedded it. Never fails."""
        with contextlib.suppress(TerminalFailed):
            if self.shown_by:
                text, truncated = await self.output()
                for call in self.shown_by:
                    call.show_output(f"[the beginning is cut off]\n{text}" if truncated else text)
            await self._do("terminal/release")


def _decoded(result: bytes, shape: type[T]) -> T:
    try:
        return msgspec.json.decode(result, type=shape)
    except msgspec.DecodeError as error:
        raise TerminalFailed(f"the client's answer is none: {error}") from None


@contextlib.asynccontextmanager
async def terminal(
    session: Session, command: str, args: Sequence[str], cwd: Path | None, env: Mapping[str, str], limit: int
) -> AsyncGenerator[Terminal]:
    """See Turn.terminal. However it is left, a cancel while it is being made included, the terminal is released."""
    params = {
        "command": command,
        "args": list(args),
        "env": [{"name": name, "value": value} for name, value in env.items()],
        "cwd": str(session.cwd / cwd if cwd is not None else session.cwd),
        "outputByteLimit": limit,
    }
    tasks = session.channel.tasks
    making = tasks.spawn(_create(session, params), name=f"terminal:{session.id}", watched=True)
    try:
        made = await asyncio.shield(making)
    except asyncio.CancelledError:
        tasks.spawn(_release_once_made(making), name=f"release:{session.id}")
        raise
    try:
        yield made
    finally:
        releasing = tasks.spawn(made.release(), name=f"release:{session.id}")
        await asyncio.wait([releasing], timeout=RELEASE_TIMEOUT)


async def _create(session: Session, params: Mapping[str, object]) -> Terminal:
    found = _decoded(await _terminal(session, "terminal/create", params), _Created)
    return Terminal(session, found.terminalId)


async def _release_once_made(making: asyncio.Task[Terminal]) -> None:
    await asyncio.wait([making])
    if not making.cancelled() and making.exception() is None:
        await making.result().release()


async def _terminal(session: Session, method: str, params: Mapping[str, object]) -> bytes:
    try:
        if session.client.terminal:
            return await session.channel.ask(method, params)
        return await session.hands.do(method, params, [str(root) for root in session.roots])
    except RequestError as error:
        raise TerminalFailed(str(error)) from None
