"""run: a command line for the shell, in a terminal of the client's where it has them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta, Struct

from acpd.native.toolbox import ToolFailed, ToolOutput, bounded
from acpd.native.tools import shellwords
from acpd.native.tools.places import kind, place, shown
from acpd.native.tools.reading import location
from acpd.native.tools.typed import Typed

if TYPE_CHECKING:
    from acpd.api.calls import ToolCall
    from acpd.api.hands import Terminal
    from acpd.api.session import Session
    from acpd.api.shapes import Exit, Location
    from acpd.api.turn import Turn

TIMEOUT = 120
MAX_TIMEOUT = 3600
KEPT = 256 * 1024
"""Bytes of output that are kept, the newest; a model is told less."""
TOLD = 32 * 1024
NOBODY_THERE = {"PAGER": "cat", "GIT_PAGER": "cat", "MANPAGER": "cat", "GIT_EDITOR": "true", "GIT_TERMINAL_PROMPT": "0"}
"""In a terminal of the client's these would wait for keys: pagers, an editor for a message, a question for a password."""


class RunArguments(Struct, forbid_unknown_fields=True):
    command: Annotated[str, Meta(min_length=1, description="Command line for the shell.")]
    cwd: Annotated[str, Meta(description="Folder to run it in, inside the session's folders.")] = "."
    timeout: Annotated[int, Meta(ge=1, le=MAX_TIMEOUT, description="Seconds after which it is ended.")] = TIMEOUT


class Run(Typed[RunArguments]):
    name = "run"
    kind = "execute"
    arguments = RunArguments
    description = (
        "Run a command line with the shell; you get its output and exit status. Nobody can type into it. All that it started"
        " ends with it, so a server is of use only within the same command. For files use read, edit, glob and grep instead."
    )

    def title(self, session: Session, arguments: Mapping[str, Any]) -> str:
        command = self.said(arguments).command.strip()
        return shown(command if len(command) <= 300 else f"{command[:300]}...")

    def locations(self, session: Session, arguments: Mapping[str, Any]) -> Sequence[Location]:
        said = self.said(arguments)
        return () if said.cwd == "." else location(place(session, said.cwd))

    def scope(self, session: Session, arguments: Mapping[str, Any]) -> str:
        return shellwords.scope(self.said(arguments).command)

    async def prepare(self, turn: Turn, call: ToolCall, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Nobody is asked about what cannot be run."""
        said = self.said(arguments)
        if "\0" in said.command:
            raise ToolFailed("A command line cannot have NUL characters in it.")
        await asyncio.to_thread(_folder, turn.session, said.cwd)
        return arguments

    async def run(self, turn: Turn, call: ToolCall, arguments: Mapping[str, Any]) -> ToolOutput:
        said = self.said(arguments)
        cwd = await asyncio.to_thread(_folder, turn.session, said.cwd)
        shell = await asyncio.to_thread(_shell)
        async with turn.terminal(shell, ["-c", said.command], cwd=Path(cwd), env=NOBODY_THERE, limit=KEPT) as terminal:
            await call.embed(terminal)
            ended = await _ended(terminal, said.timeout)
            text, cut = await terminal.output()
        how = _how(ended, said.timeout)
        beginning = "[the beginning of the output is cut off]\n" if cut else ""
        output = bounded(f"{beginning}{text.rstrip()}", TOLD)
        failed = ended is None or ended.code != 0
        if failed:
            await call.text(f"[{how}]")
        told = f"{output}\n[{how}]" if output else f"[no output; {how}]"
        return ToolOutput(told, failed=failed, structured=_told(ended), shown=True)


def _folder(session: Session, cwd: str) -> str:
    where = place(session, cwd)
    if not where.root:
        raise ToolFailed(
            f"cwd: {shown(where.path)} is outside of the session's folders; use one inside, and `cd` in the command."
        )
    if kind(where.real) != "folder":
        raise ToolFailed(f"cwd: {shown(where.path)} is no folder")
    return where.path


def _shell() -> str:
    """What models write is for bash; where there is none, the shell that is everywhere."""
    return next((shell for shell in ("/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash") if os.path.exists(shell)), "/bin/sh")


async def _ended(terminal: Terminal, timeout: int) -> Exit | None:
    """How it ended; None: it had to be ended."""
    try:
        async with asyncio.timeout(timeout):
            return await terminal.wait()
    except TimeoutError:
        await terminal.kill()
        return None


def _how(ended: Exit | None, timeout: int) -> str:
    if ended is None:
        return f"it took longer than {timeout} s and was ended; give it more time with `timeout`, or do less at once"
    if ended.signal:
        return f"ended by {ended.signal}"
    return "exit status unknown" if ended.code is None else f"exit status {ended.code}"


def _told(ended: Exit | None) -> object:
    return {"timedOut": True} if ended is None else {"exitCode": ended.code, "signal": ended.signal}
