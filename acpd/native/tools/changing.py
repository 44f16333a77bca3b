"""write and edit: a change is made as a draft, shown as a diff, asked for, and done if the file is still what it was."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar

from msgspec import Meta, Struct

from acpd.errors import AcpdError
from acpd.native.toolbox import ToolFailed, ToolOutput
from acpd.native.tools import local, nearest
from acpd.native.tools.places import Place, from_root, kind, place, shown
from acpd.native.tools.reading import location
from acpd.native.tools.typed import Placed

if TYPE_CHECKING:
    from acpd.api.calls import ToolCall
    from acpd.api.session import Session
    from acpd.api.shapes import Location
    from acpd.api.turn import Turn

Arguments = TypeVar("Arguments", bound=Struct)


UNREAD = "This is outside of the session's folders: what the file has now is read only once you allow the change."


class Draft(NamedTuple):
    """What the file had when the diff was made (None: there was none), what it is to have, and what the model is told then."""

    place: Place
    old: str | None
    new: str
    done: str


class Changing(Placed[Arguments]):
    kind = "edit"

    def __init__(self, seen: local.Seen) -> None:
        super().__init__()
        self._seen = seen

    def locations(self, session: Session, arguments: Mapping[str, Any]) -> Sequence[Location]:
        return location(self.place(arguments))

    def scope(self, session: Session, arguments: Mapping[str, Any]) -> str:
        return self.place(arguments).to_write

    @abstractmethod
    def wanted(self, arguments: Mapping[str, Any]) -> tuple[str | None, str]:
        """What the arguments alone say of the change: the text that goes (None: nothing is said of it), the text that comes."""

    @abstractmethod
    def draft(self, where: Place, old: str | None, arguments: Mapping[str, Any]) -> Draft:
        """In a thread. Raises ToolFailed."""

    async def prepare(self, turn: Turn, call: ToolCall, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Outside of the session's folders nothing is looked at before the user has allowed it: they see what is wanted."""
        where = self.place(arguments)
        if where.root:
            return {"draft": await self._shown(turn, call, arguments)}
        await call.diff(Path(where.path), *self.wanted(arguments))
        await call.text(UNREAD)
        return arguments

    async def _shown(self, turn: Turn, call: ToolCall, arguments: Mapping[str, Any]) -> Draft:
        where = self.place(arguments)
        draft = await asyncio.to_thread(self.draft, where, await _current(turn, where), arguments)
        await call.diff(Path(where.path), draft.old, draft.new, alone=True)
        return draft

    async def run(self, turn: Turn, call: ToolCall, arguments: Mapping[str, Any]) -> ToolOutput:
        draft: Draft | None = arguments.get("draft")
        if draft is None:
            draft = await self._shown(turn, call, arguments)
        if await _current(turn, draft.place) != draft.old:
            raise ToolFailed(f"{shown(draft.place.path)} changed meanwhile; nothing was written. Read it again, then decide.")
        await asyncio.to_thread(_still_there, turn.session, draft.place)
        await local.write_text(turn, draft.place, draft.new)
        await asyncio.to_thread(self._seen.note, draft.place.real)
        return ToolOutput(draft.done, shown=True)


def _still_there(session: Session, where: Place) -> None:
    """A client is told the path, not where it leads: that must be what was asked for. Raises ToolFailed."""
    if place(session, where.path).real != where.real:
        raise ToolFailed(f"{shown(where.path)} leads to another place now; nothing was written. Read it again, then decide.")


async def _current(turn: Turn, where: Place) -> str | None:
    """The whole text; None if there is no such file."""
    try:
        return await local.read_text(turn, where)
    except (AcpdError, OSError):
        if await asyncio.to_thread(kind, where.real) == "nothing":
            return None
        raise


class WriteArguments(Struct, forbid_unknown_fields=True):
    path: Annotated[str, Meta(description="File to write, absolute or from the working directory. Folders are made.")]
    content: Annotated[str, Meta(description="All that the file is to have.")]


class Write(Changing[WriteArguments]):
    name = "write"
    arguments = WriteArguments
    description = "Write a whole file: a new one, or one that you have read before. To change a part of a file use `edit`."

    def title(self, session: Session, arguments: Mapping[str, Any]) -> str:
        return f"Write {from_root(session, self.place(arguments).path)}"

    def wanted(self, arguments: Mapping[str, Any]) -> tuple[str | None, str]:
        return None, self.said(arguments).content

    def draft(self, where: Place, old: str | None, arguments: Mapping[str, Any]) -> Draft:
        said = self.said(arguments)
        if old and not self._seen.knows(where.real):
            why = (
                "has changed since you read it" if self._seen.has(where.real) else "is there already, and you have not read it"
            )
            raise ToolFailed(f"{shown(where.path)} {why}: read it, then write it, or change a part of it with `edit`.")
        lines = said.content.removesuffix("\n").count("\n") + bool(said.content)
        size = len(said.content.encode())
        done = "Wrote" if old is None else "Replaced"
        length = f"{lines} line{'s' * (lines != 1)}, {size} byte{'s' * (size != 1)}"
        return Draft(where, old, said.content, f"{done} {shown(where.path)}: {length}.")


class EditArguments(Struct, forbid_unknown_fields=True):
    path: Annotated[str, Meta(description="File to change, absolute or from the working directory.")]
    old: Annotated[
        str, Meta(min_length=1, description="The text to replace, exactly as the file has it, without line numbers.")
    ]
    new: Annotated[str, Meta(description="What stands in its place.")]
    all: Annotated[bool, Meta(description="Replace it everywhere; else it must occur exactly once.")] = False


class Edit(Changing[EditArguments]):
    name = "edit"
    arguments = EditArguments
    description = (
        "Replace a text in a file by another, exactly: blanks and indentation count. `old` must occur once, so take enough"
        " lines around it, or set `all`."
    )

    def title(self, session: Session, arguments: Mapping[str, Any]) -> str:
        return f"Edit {from_root(session, self.place(arguments).path)}"

    def wanted(self, arguments: Mapping[str, Any]) -> tuple[str | None, str]:
        said = self.said(arguments)
        return said.old, said.new

    def draft(self, where: Place, old: str | None, arguments: Mapping[str, Any]) -> Draft:
        said = self.said(arguments)
        if old is None:
            raise ToolFailed(f"{shown(where.path)} is not there. Look for it with `glob`, or make it with `write`.")
        before, after = _as_in(old, said.old), _as_in(old, said.new)
        count = old.count(before)
        if not count:
            raise ToolFailed(f"`old` does not occur in {shown(where.path)}; nothing was changed. {nearest.told(old, said.old)}")
        if before == after:
            raise ToolFailed("`old` and `new` are the same; nothing was changed.")
        if count > 1 and not said.all:
            raise ToolFailed(
                f"`old` occurs {count} times in {shown(where.path)}, at the lines {_lines(old, before)}; nothing was changed."
                " Take more lines around the one you mean, or set `all` to true."
            )
        new = old.replace(before, after)
        places = "once" if count == 1 else f"{count} times"
        done = f"Edited {shown(where.path)}: replaced {places}.\n{_around(new, old.find(before), after)}"
        return Draft(where, old, new, done)


def _as_in(text: str, part: str) -> str:
    """With the line ends of a file that has no others than CRLF: a model does not see them."""
    crlf = text.count("\r\n")
    return part if not crlf or text.count("\n") != crlf or "\r" in part else part.replace("\n", "\r\n")


def _lines(text: str, part: str) -> str:
    found: list[str] = []
    at = text.find(part)
    while at >= 0 and len(found) < 10:
        found.append(str(text.count("\n", 0, at) + 1))
        at = text.find(part, at + len(part))
    return ", ".join(found) + (", ..." if at >= 0 else "")


def _around(text: str, at: int, part: str) -> str:
    """The lines that have changed, and two before and after them, numbered: the model need not read them again."""
    first = text.count("\n", 0, at) + 1
    last = first + min(part.count("\n"), 40)
    lines = text.removesuffix("\n").split("\n")
    start = max(1, first - 2)
    return "\n".join(f"{start + number}\t{line[:400].rstrip()}" for number, line in enumerate(lines[start - 1 : last + 2]))
