"""A tool call as ACP reports it: pending, in progress, completed or failed (ACP v1 tool-calls)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from acpd.api.shapes import Location, ToolKind
from acpd.errors import AcpdError

if TYPE_CHECKING:
    from pathlib import Path

    from acpd.api.hands import Terminal
    from acpd.api.turn import Turn

CANCELLED = "It was cancelled."


class ToolCall:
    """Use it with `async with`: entering reports it, leaving completes it, an exception fails it and says why. The last word
    counts.
    """

    def __init__(self, turn: Turn, title: str, kind: ToolKind, name: str, given: object, locations: Sequence[Location]) -> None:
        self.id = turn.session.channel.name("call")
        self._turn = turn
        self._content: list[Mapping[str, object]] = []
        self._status = ""
        about: dict[str, object] = {"title": title, "kind": kind}
        if name:
            about["name"] = name
        if given is not None:
            about["rawInput"] = given
        if locations:
            about["locations"] = [_location(each) for each in locations]
        self._about = about

    def described(self) -> dict[str, object]:
        """As a permission request names it, with what it shows: a client may ask in a window that has nothing else."""
        shown = {"content": self._content} if self._content else {}
        return {"toolCallId": self.id, **self._about, **shown}

    async def __aenter__(self) -> Self:
        self._status = "pending"
        self._turn.open.append(self)
        self._turn.session.channel.send({"sessionUpdate": "tool_call", **self.described(), "status": "pending"})
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing waits here, so that a cancel cannot leave a call open."""
        if kind is not None and self._status != "failed":
            self._settle("failed", text=_why(error))
        elif self._status not in {"completed", "failed"}:
            self._settle("completed")

    def close(self) -> None:
        """It failed, if nothing else was said."""
        if self._status not in {"completed", "failed"}:
            self._settle("failed", text=CANCELLED if self._turn.cancelled else "It did not come to an end.")

    def _settle(self, status: str, output: object = None, text: str = "") -> None:
        self._status = status
        if self in self._turn.open:
            self._turn.open.remove(self)
        said: dict[str, object] = {"status": status}
        if text:
            self._content.append(_text(text))
            said["content"] = self._content
        if output is not None:
            said["rawOutput"] = output
        self._send(said)

    def _send(self, said: Mapping[str, object]) -> None:
        self._turn.session.channel.send({"sessionUpdate": "tool_call_update", "toolCallId": self.id, **said})

    async def _say(self, said: Mapping[str, object]) -> None:
        self._send(said)
        await self._turn.session.channel.room()

    async def start(self) -> None:
        """It is being done now."""
        self._status = "in_progress"
        await self._say({"status": "in_progress"})

    async def rename(self, title: str) -> None:
        self._about["title"] = title
        await self._say({"title": title})

    async def finish(self, output: object = None, text: str = "") -> None:
        """It is done. `output`: what it gave, any JSON (rawOutput); `text` is shown, as by `text`, in the same update."""
        self._settle("completed", output, text)
        await self._turn.session.channel.room()

    async def fail(self, why: str, output: object = None) -> None:
        """It failed; `why` is shown."""
        self._settle("failed", output, why)
        await self._turn.session.channel.room()

    # -- what it shows. ACP has no "append": each update has the whole list

    def _add(self, item: Mapping[str, object]) -> None:
        self._content.append(item)
        self._send({"content": self._content})

    async def text(self, text: str) -> None:
        """Show a text, below what is shown already."""
        await self.content({"type": "text", "text": text})

    async def content(self, block: Mapping[str, object]) -> None:
        """Show any content block."""
        self._add({"type": "content", "content": block})
        await self._turn.session.channel.room()

    async def diff(self, path: Path, old: str | None, new: str, *, alone: bool = False) -> None:
        """Show a change of a file; `old` None: it was not there. `alone`: in the place of all that was shown before."""
        where = self._turn.session.cwd / path
        if alone:
            self._content.clear()
        self._add({"type": "diff", "path": str(where), "oldText": old, "newText": new})
        await self._turn.session.channel.room()

    async def embed(self, terminal: Terminal) -> None:
        """Show a terminal. One that is not the client's is shown when it ends, as text."""
        if terminal.theirs:
            self._add({"type": "terminal", "terminalId": terminal.id})
        else:
            terminal.shown_by.append(self)
        await self._turn.session.channel.room()

    def show_output(self, text: str) -> None:
        """The output of a terminal that has ended."""
        self._add(_text(text))


def _why(error: BaseException | None) -> str:
    """In words for the user. What an exception of a program's own says may be secret."""
    if isinstance(error, asyncio.CancelledError):
        return CANCELLED
    return str(error) if isinstance(error, AcpdError) else f"It failed by an internal error ({type(error).__name__})."


def _text(text: str) -> dict[str, object]:
    return {"type": "content", "content": {"type": "text", "text": text}}


def _location(location: Location) -> dict[str, object]:
    found: dict[str, object] = {"path": str(location.path)}
    return found if location.line is None else {**found, "line": location.line}
