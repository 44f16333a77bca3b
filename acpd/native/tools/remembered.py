"""memory_search and memory_get: what was remembered of earlier conversations. acpd has it, and says what is ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar

import msgspec
from msgspec import Meta, Struct

from acpd.native.toolbox import ToolOutput
from acpd.native.tools.typed import Typed

if TYPE_CHECKING:
    from acpd.api.calls import ToolCall
    from acpd.api.session import Session
    from acpd.api.turn import Turn

Arguments = TypeVar("Arguments", bound=Struct)


class _Answer(Struct):
    text: str


class Asked(Typed[Arguments]):
    """A tool whose work acpd does, by a request of this name."""

    kind = "search"
    harmless = True
    method: ClassVar[str]

    def scope(self, session: Session, arguments: Mapping[str, Any]) -> str:
        return ""

    async def run(self, turn: Turn, call: ToolCall, arguments: Mapping[str, Any]) -> ToolOutput:
        answer = await turn.session.channel.ask(self.method, {"arguments": self.said(arguments)})
        return ToolOutput(msgspec.json.decode(answer, type=_Answer).text)


class SearchArguments(Struct, forbid_unknown_fields=True):
    query: Annotated[str, Meta(min_length=1, max_length=500, description="The text to look for; no patterns.")]


class MemorySearch(Asked[SearchArguments]):
    name = "memory_search"
    method = "_acpd/memory/search"
    arguments = SearchArguments
    description = (
        "Search what you remember of earlier conversations with this user, MEMORY.md and the notes of each day, for a literal"
        " text, whatever its case and accents. The newest lines come first, each with its source."
    )

    def title(self, session: Session, arguments: Mapping[str, Any]) -> str:
        return f"Memory: {self.said(arguments).query[:80]}"


class GetArguments(Struct, forbid_unknown_fields=True):
    path: Annotated[str, Meta(min_length=1, max_length=200, description="As memory_search names it: memory/2026-05-01.md.")]
    startLine: Annotated[int, Meta(ge=1, description="The first line, counted from 1.")]
    endLine: Annotated[int, Meta(ge=1, description="The last line. At most 400 lines are shown.")]


class MemoryGet(Asked[GetArguments]):
    name = "memory_get"
    method = "_acpd/memory/get"
    arguments = GetArguments
    description = (
        "Read lines of MEMORY.md or of the notes of a day, with their numbers: what stands around a match of memory_search."
    )

    def title(self, session: Session, arguments: Mapping[str, Any]) -> str:
        said = self.said(arguments)
        return f"Memory: {said.path} {said.startLine}-{said.endLine}"
