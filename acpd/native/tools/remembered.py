"""memory_search and memory_get: what was remembered of earlier conversations. acpd has it, and says what is ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from acpd.native.toolbox import Tool, ToolOutput
from acpd.recall import tools

if TYPE_CHECKING:
    from acpd.api.calls import ToolCall
    from acpd.api.session import Session
    from acpd.api.turn import Turn


class _Answer(Struct):
    text: str


class Remembered(Tool):
    """A row of the table. Its arguments are checked by acpd, whose words about them are the output."""

    kind = "search"
    harmless = True

    def __init__(self, row: tools.Recalling) -> None:
        self.name, self.description, self.schema = row.name, row.description, row.schema
        self._method = row.method

    def title(self, session: Session, arguments: Mapping[str, Any]) -> str:
        return f"Memory: {str(arguments.get('query') or arguments.get('path') or '')[:80]}"

    def scope(self, session: Session, arguments: Mapping[str, Any]) -> str:
        return ""

    async def run(self, turn: Turn, call: ToolCall, arguments: Mapping[str, Any]) -> ToolOutput:
        answer = await turn.session.channel.ask(self._method, {"arguments": arguments})
        return ToolOutput(msgspec.json.decode(answer, type=_Answer).text)


def memory_tools() -> Sequence[Tool]:
    return [Remembered(row) for row in tools.TOOLS if row.group == tools.MEMORY]
