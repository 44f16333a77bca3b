"""Resources and prompts of all servers, each kind by one harmless tool: without a uri or a name it lists, with one it reads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from acpd.native.mcp import results
from acpd.native.toolbox import Tool, ToolFailed, ToolOutput

if TYPE_CHECKING:
    import mcp_types as types

    from acpd.api.calls import ToolCall
    from acpd.api.session import Session
    from acpd.api.turn import Turn
    from acpd.native.mcp.link import Link
    from acpd.native.mcp.server import Server

T = TypeVar("T")
WAIT = 60.0
"""Seconds for an answer."""
RESOURCES = "mcp_resources"
PROMPTS = "mcp_prompts"


class _Reading(Tool):
    """`servers`: those that have what it reads, at this moment."""

    harmless = True
    kind = "read"

    def __init__(self, servers: Sequence[Server], timeout: float) -> None:
        self._servers = {server.label: server for server in servers}
        self._timeout = timeout
        names = {"type": "string", "enum": list(self._servers)}
        self.schema = {"type": "object", "properties": {"server": names, **self.members}, "additionalProperties": False}

    members: Mapping[str, object]

    def scope(self, session: Session, arguments: Mapping[str, Any]) -> str:
        return ""

    def _server(self, arguments: Mapping[str, Any]) -> Server:
        """Raises ToolFailed."""
        name = arguments.get("server") or (next(iter(self._servers)) if len(self._servers) == 1 else "")
        if name not in self._servers:
            raise ToolFailed(f"Say the server: one of {', '.join(self._servers)}.")
        return self._servers[name]

    async def _ask(self, server: Server, make: Callable[[Link], Coroutine[Any, Any, T]]) -> T:
        """Raises ToolFailed."""
        asked = server.begin(make, self._timeout)
        try:
            async with asyncio.timeout(WAIT):
                return await asyncio.shield(asked)
        except TimeoutError:
            raise server.failed(f"no answer within {WAIT:g} seconds") from None
        finally:
            asked.cancel()


class ReadResources(_Reading):
    """Lists the resources of a server, and reads one."""

    name = RESOURCES
    description = (
        "Resources (documents, data) that MCP servers offer. With `server` alone it lists them, `cursor` goes on in a long "
        "list; with `uri` it reads one. A template's {parts} are to be filled in."
    )
    members = {"uri": {"type": "string"}, "cursor": {"type": "string"}}

    def title(self, session: Session, arguments: Mapping[str, Any]) -> str:
        return f"Read {arguments['uri']}"[:200] if arguments.get("uri") else "List MCP resources"

    async def run(self, turn: Turn, call: ToolCall, arguments: Mapping[str, Any]) -> ToolOutput:
        server = self._server(arguments)
        secrets = server.spec.secrets
        if uri := arguments.get("uri"):
            read = await self._ask(server, lambda link: link.read_resource(str(uri)))
            return results.of_contents(read.contents, secrets)
        page = await self._ask(server, lambda link: link.list_resources(arguments.get("cursor")))
        found = [results.link(resource) for resource in page.resources]
        if not arguments.get("cursor"):
            found += [f"template {results.link(template)}" for template in await self._templates(server)]
        return results.lines([*found, *_more(page.next_cursor)], secrets, "It has no resources.")

    async def _templates(self, server: Server) -> Sequence[types.ResourceTemplate]:
        try:
            return (await self._ask(server, lambda link: link.list_templates())).resource_templates
        except ToolFailed:
            return ()  # servers need not have them


class ReadPrompts(_Reading):
    """Lists the prompts of a server, and reads one."""

    name = PROMPTS
    description = (
        "Prompts (instructions for a task) that MCP servers offer. With `server` alone it lists them with their arguments, "
        "`cursor` goes on in a long list; with `name` and `arguments` it reads one."
    )
    members = {
        "name": {"type": "string"},
        "arguments": {"type": "object", "additionalProperties": {"type": "string"}},
        "cursor": {"type": "string"},
    }

    def title(self, session: Session, arguments: Mapping[str, Any]) -> str:
        return f"Read the prompt {arguments['name']}"[:200] if arguments.get("name") else "List MCP prompts"

    async def run(self, turn: Turn, call: ToolCall, arguments: Mapping[str, Any]) -> ToolOutput:
        server = self._server(arguments)
        if name := arguments.get("name"):
            given = {str(key): str(value) for key, value in (arguments.get("arguments") or {}).items()}
            read = await self._ask(server, lambda link: link.get_prompt(str(name), given))
            return results.of_prompt(read, server.spec.secrets)
        page = await self._ask(server, lambda link: link.list_prompts(arguments.get("cursor")))
        found = [_prompt(prompt) for prompt in page.prompts]
        return results.lines([*found, *_more(page.next_cursor)], server.spec.secrets, "It has no prompts.")


def _prompt(prompt: types.Prompt) -> str:
    given = ", ".join(f"{each.name}{'' if each.required else '?'}" for each in prompt.arguments or ())
    return f"{prompt.name}({given}): {' '.join((prompt.description or prompt.title or '').split())[:300]}"


def _more(cursor: str | None) -> list[str]:
    return [f"There are more: call it again with cursor {cursor!r}."] if cursor else []
