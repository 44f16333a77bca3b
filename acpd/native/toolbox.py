"""The tools of a session as its model sees them: offered by mode, checked, reported as ACP tool calls, asked for, bounded.

A call goes through the same steps whatever the tool is: its arguments are checked, it is reported as pending, it shows what
it would do (`prepare`), the user is asked where its scope wants that (`ask`, `code`: see `Toolbox.offered`), it runs.
Whatever goes wrong on the way is an output that tells the model what to do; only a cancelled turn raises.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import sys
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from acpd.errors import AcpdError, ConnectionBroken
from acpd.native.plain import one_line
from acpd.native.sound import LONGEST_TEXT, NO_OBJECT

if TYPE_CHECKING:
    from acpd.api.calls import ToolCall
    from acpd.api.session import Session
    from acpd.api.shapes import Location, ToolKind
    from acpd.api.turn import Turn

MAX_TEXT = 64 * 1024
"""Bytes of UTF-8 of an output that a model is given."""
WRITE = "write"
"""The scope of a change to a file inside the session's folders."""
_SCOPES = {WRITE: "changes to files in the session's folders"}
"""How the question calls a scope, where that is not its own name."""
REFUSED = "The user refused this call. Do not do it in another way: go on without it, or ask the user what to do."

SILENT = "It failed, and did not say why."


class ToolFailed(Exception):
    """A tool could not do what it was asked. The message is for the model: what is wrong, and what to do instead."""


class ToolOutput(NamedTuple):
    """What a model is told. `images`: (bytes, mime type). `structured`: a JSON value, for the client only (rawOutput).

    `shown`: the call shows already what the text says (a diff, a terminal), so that the user need not read it again.
    """

    text: str
    images: tuple[tuple[bytes, str], ...] = ()
    failed: bool = False
    structured: object = None
    shown: bool = False


class Tool(ABC):
    """What a model can call. `schema`: the JSON schema of its arguments, an object.

    `settled`, `title`, `locations` and `scope` are called in a thread and may look at the disk.
    """

    name: str
    description: str
    schema: Mapping[str, object]
    kind: ToolKind = "other"
    harmless: bool = False
    """Whether it changes nothing, whatever its arguments are: those are offered in the mode `plan`, and may run in parallel."""

    def check(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """The arguments, sound. Raises ToolFailed, which names the wrong one."""
        return arguments

    def settled(self, session: Session, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """What all methods below get as their arguments: what is known by looking, looked at once, so that what is asked for
        is what is done. Raises ToolFailed.
        """
        return arguments

    def title(self, session: Session, arguments: Mapping[str, Any]) -> str:
        return self.name

    def locations(self, session: Session, arguments: Mapping[str, Any]) -> Sequence[Location]:
        return ()

    @abstractmethod
    def scope(self, session: Session, arguments: Mapping[str, Any]) -> str:
        """What an answer "always" is about: "write", "run git", "mcp:server/tool". Empty: nobody need be asked."""

    async def prepare(self, turn: Turn, call: ToolCall, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """What `run` gets as its arguments. Shows what would be done, before the user is asked. Raises ToolFailed."""
        return arguments

    @abstractmethod
    async def run(self, turn: Turn, call: ToolCall, arguments: Mapping[str, Any]) -> ToolOutput:
        """Do it. Raises ToolFailed. Cancelling it ends whatever it has started."""


class Toolbox:
    """The tools of one session. `more` gives those of the moment that come and go; a built-in one of the same name wins.
    `usual`: the mode of a session in which none was chosen.
    """

    def __init__(self, builtin: Sequence[Tool], more: Callable[[], Sequence[Tool]] = tuple, usual: str = "ask") -> None:
        self._builtin = {tool.name: tool for tool in builtin}
        self._more = more
        self._usual = usual

    def mode_of(self, session: Session) -> str:
        """At this moment: a client may bring other choices at any time, or none."""
        return session.choices.get("mode", self._usual)

    def offered(self, mode: str) -> Sequence[Tool]:
        """`ask`: all, and each change is asked for. `code`: all, files inside the session's folders are changed without
        asking. `plan`: only those that change nothing.
        """
        tools = [*self._builtin.values(), *(tool for tool in self._more() if tool.name not in self._builtin)]
        return [tool for tool in tools if tool.harmless] if mode == "plan" else tools

    async def call(self, turn: Turn, name: str, arguments: str | Mapping[str, Any]) -> ToolOutput:
        """Run a tool for the model, reported to the client as a tool call. `arguments`: JSON as the model wrote it, or decoded.

        Raises CancelledError, and ConnectionBroken when there is no client any more; all else is an output with `failed`.
        """
        mode = self.mode_of(turn.session)
        tool = next((tool for tool in self.offered("code") if tool.name == name), None)
        try:
            if tool is None:
                raise ToolFailed(_unknown(name, self.offered(mode)))
            if mode == "plan" and not tool.harmless:
                raise ToolFailed(f"{name} is not available in the mode `plan`: nothing may be changed. Say what you would do.")
            given = tool.check(_decoded(name, arguments))
            about = await asyncio.to_thread(_described, tool, turn.session, given)
        except ToolFailed as failed:
            return await _reported(turn, tool, name, arguments, str(failed))
        return await _called(turn, tool, given, about, free=mode == "code" and about.scope == WRITE)


class _About(NamedTuple):
    settled: Mapping[str, Any]
    title: str
    locations: Sequence[Location]
    scope: str


def _described(tool: Tool, session: Session, given: Mapping[str, Any]) -> _About:
    """In a thread: where a path leads is known by looking at the disk."""
    settled = tool.settled(session, given)
    return _About(settled, tool.title(session, settled), tool.locations(session, settled), tool.scope(session, settled))


async def _called(turn: Turn, tool: Tool, given: Mapping[str, Any], about: _About, *, free: bool) -> ToolOutput:
    """`free`: nobody need be asked, whatever the scope is."""
    settled, title, where, scope = about
    async with turn.tool(one_line(title), kind=tool.kind, name=tool.name, input=given, locations=where) as call:
        try:
            ready = await tool.prepare(turn, call, settled)
            if scope and not free and not await turn.allowed(call, scope, one_line(_SCOPES.get(scope, scope))):
                raise ToolFailed(REFUSED)
            await call.start()
            output = await tool.run(turn, call, ready)
        except (asyncio.CancelledError, ConnectionBroken):
            raise
        except (ToolFailed, AcpdError) as failed:
            output = ToolOutput(str(failed), failed=True)
        except OSError as error:
            output = ToolOutput(f"{tool.name} failed: {error.strerror or error}", failed=True)
        except Exception as error:  # noqa: BLE001  a bug of one tool, or of a server's, costs that call and not the turn
            traceback.print_exception(error, file=sys.stderr)
            output = ToolOutput(
                f"{tool.name} failed by an internal error ({type(error).__name__}). Go on without it.", failed=True
            )
        output = output._replace(text=bounded(output.text))
        await _end(call, output)
    return output


async def _end(call: ToolCall, output: ToolOutput) -> None:
    if output.failed:
        await call.fail("" if output.shown else output.text or SILENT, output.structured)
        return
    if output.text and not output.shown:
        await call.text(output.text)
    for data, mime in output.images:
        await call.content({"type": "image", "data": base64.b64encode(data).decode(), "mimeType": mime})
    await call.finish(output.structured)


async def _reported(turn: Turn, tool: Tool | None, name: str, arguments: object, why: str) -> ToolOutput:
    """A call that cannot be made, for the user too: else nobody sees why a model goes in circles."""
    kind = "other" if tool is None else tool.kind
    output = ToolOutput(bounded(why), failed=True)
    name = one_line(name[:100])
    async with turn.tool(f"{name} (not possible)", kind=kind, name=name, input=_object(arguments)) as call:
        await call.fail(output.text)
    return output


def _object(arguments: object) -> object:
    """Arguments as the client is shown them: an object, what is none as a text in one."""
    if not isinstance(arguments, str):
        return arguments
    with contextlib.suppress(msgspec.DecodeError, RecursionError):
        return msgspec.json.decode(arguments or "{}", type=dict[str, Any])
    return {NO_OBJECT: arguments[:LONGEST_TEXT]}


def _decoded(name: str, arguments: str | Mapping[str, Any]) -> Mapping[str, Any]:
    """Raises ToolFailed."""
    if not isinstance(arguments, str):
        return arguments
    try:
        return msgspec.json.decode(arguments or "{}", type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as error:
        raise ToolFailed(f"The arguments of {name} must be one JSON object: {error}. Call it again with valid JSON.") from None


def _unknown(name: str, offered: Sequence[Tool]) -> str:
    return f"There is no tool {name[:100]!r}. There are: {', '.join(tool.name for tool in offered)}."


def bounded(text: str, limit: int = MAX_TEXT) -> str:
    """The text in at most `limit` bytes of UTF-8: beginning and end, and between them a line that says what was cut.

    What is no text (lone surrogates of file names) is written as an escape.
    """
    data = text.encode("utf-8", "backslashreplace")
    if len(data) <= limit:
        return data.decode()
    room = max(0, limit - 100)
    head, tail = room // 2, room - room // 2
    first = data[:head].decode("utf-8", "ignore")
    last = data[len(data) - tail :].decode("utf-8", "ignore")
    cut = len(data) - len(first.encode()) - len(last.encode())
    return f"{first}\n[... {cut} bytes were cut here: ask for less at once ...]\n{last}"
