"""session_search and its like: what there was in earlier sessions. acpd answers, which has them; without it there are none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from acpd.native.toolbox import Tool, ToolFailed, ToolOutput
from acpd.native.tools.typed import Typed
from acpd.recall.tools import MEMORY, TOOLS, Described

if TYPE_CHECKING:
    from acpd.api.calls import ToolCall
    from acpd.api.session import Session
    from acpd.api.turn import Turn


class Recall(Typed[Struct]):
    """One tool of the table."""

    kind = "search"
    harmless = True

    def __init__(self, described: Described) -> None:
        self.name = described.name
        self.description = described.description
        self.arguments = described.arguments
        self._method = described.method
        super().__init__()

    def title(self, session: Session, arguments: Mapping[str, Any]) -> str:
        """With the name, by which a search knows what is only the finding of another one."""
        about = next((value for value in arguments.values() if isinstance(value, str)), "")
        return f"{self.name} {about[:100]}".rstrip()

    def scope(self, session: Session, arguments: Mapping[str, Any]) -> str:
        return ""

    async def run(self, turn: Turn, call: ToolCall, arguments: Mapping[str, Any]) -> ToolOutput:
        match await turn.session.request(self._method, {"arguments": arguments}):
            case {"text": str(text)}:
                return ToolOutput(text)
            case _:
                raise ToolFailed(f"{self.name}: the client has not said anything that can be read. Go on without it.")


def recalling(session: Session, *, remembers: bool) -> Sequence[Tool]:
    """Those that the session's client answers. `remembers`: also those of what is remembered beyond a session."""
    told = session.client.tools
    return [Recall(tool) for tool in TOOLS if tool.offered in told and (remembers or tool.offered != MEMORY)]
