"""Resources and prompts of all servers, each kind by one harmless tool: without a uri or a name it lists, with one it reads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from msgspec import Meta, Struct

from acpd.native.mcp import results
from acpd.native.toolbox import ToolFailed, ToolOutput
from acpd.native.tools.typed import Arguments, Typed

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


class ResourceArguments(Struct, forbid_unknown_fields=True):
    server: Annotated[str, Meta(description="Whose. Not needed where there is one.")] = ""
    uri: Annotated[str, Meta(description="Read this one; without it they are listed.")] = ""
    cursor: Annotated[str, Meta(description="Go on with a long list, as it said at its end.")] = ""


class PromptArguments(Struct, forbid_unknown_fields=True):
    server: Annotated[str, Meta(description="Whose. Not needed where there is one.")] = ""
    name: Annotated[str, Meta(description="Read this one; without it they are listed.")] = ""
    arguments: Annotated[dict[str, str], Meta(description="Its arguments.")] = {}
    cursor: Annotated[str, Meta(description="Go on with a long list, as it said at its end.")] = ""


class _Reading(Typed[Arguments]):
    """`servers`: those that have what it reads, at this moment."""

    harmless = True
    kind = "read"

    def __init__(self, servers: Sequence[Server], timeout: float) -> None:
        super().__init__()
        self._servers = {server.label: server for server in servers}
        self._timeout = timeout

    def scope(self, session: Session, arguments: Mapping[str, Any]) -> str:  # noqa: ARG002  Tool's signature
        return ""

    def _server(self, name: str) -> Server:
        """Raises ToolFailed."""
        if not name and len(self._servers) == 1:
            name = next(iter(self._servers))
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


class ReadResources(_Reading[ResourceArguments]):
    """Lists the resources of a server, and reads one."""

    name = RESOURCES
    arguments = ResourceArguments
    description = (
        "Resources (documents, data) that MCP servers offer: list those of a server, or read one by its uri."
        " A template's {parts} are to be filled in."
    )

    def title(self, session: Session, arguments: Mapping[str, Any]) -> str:  # noqa: ARG002  Tool's signature
        uri = self.said(arguments).uri
        return f"Read {uri}"[:200] if uri else "List MCP resources"

    async def run(self, turn: Turn, call: ToolCall, arguments: Mapping[str, Any]) -> ToolOutput:  # noqa: ARG002
        said = self.said(arguments)
        server = self._server(said.server)
        if said.uri:
            read = await self._ask(server, lambda link: link.read_resource(said.uri))
            return results.of_contents(read.contents, server.spec.secrets)
        page = await self._ask(server, lambda link: link.list_resources(said.cursor))
        found = [results.link(resource) for resource in page.resources]
        if not said.cursor:
            found += [f"template {results.link(template)}" for template in await self._templates(server)]
        return results.lines([*found, *_more(page.next_cursor)], server.spec.secrets, "It has no resources.")

    async def _templates(self, server: Server) -> Sequence[types.ResourceTemplate]:
        try:
            return (await self._ask(server, lambda link: link.list_templates())).resource_templates
        except ToolFailed:
            return ()  # servers need not have them


class ReadPrompts(_Reading[PromptArguments]):
    """Lists the prompts of a server, and reads one."""

    name = PROMPTS
    arguments = PromptArguments
    description = "Prompts (instructions for a task) that MCP servers offer: list those of a server, or read one by its name."

    def title(self, session: Session, arguments: Mapping[str, Any]) -> str:  # noqa: ARG002  Tool's signature
        name = self.said(arguments).name
        return f"Read the prompt {name}"[:200] if name else "List MCP prompts"

    async def run(self, turn: Turn, call: ToolCall, arguments: Mapping[str, Any]) -> ToolOutput:  # noqa: ARG002
        said = self.said(arguments)
        server = self._server(said.server)
        if said.name:
            read = await self._ask(server, lambda link: link.get_prompt(said.name, said.arguments))
            return results.of_prompt(read, server.spec.secrets)
        page = await self._ask(server, lambda link: link.list_prompts(said.cursor))
        found = [_prompt(prompt) for prompt in page.prompts]
        return results.lines([*found, *_more(page.next_cursor)], server.spec.secrets, "It has no prompts.")


def _prompt(prompt: types.Prompt) -> str:
    given = ", ".join(f"{each.name}{'' if each.required else '?'}" for each in prompt.arguments or ())
    return f"{prompt.name}({given}): {' '.join((prompt.description or prompt.title or '').split())[:300]}"


def _more(cursor: str | None) -> list[str]:
    return [f"There are more: call it again with cursor {cursor!r}."] if cursor else []
