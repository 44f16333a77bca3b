"""What agents and the API hand each other: values, no behaviour."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from acpd.errors import INVALID_PARAMS, RequestError
from acpd.wire import blocks

Stop = Literal["end_turn", "max_tokens", "max_turn_requests", "refusal"]
"""Why a turn has ended, if not by a cancel (ACP v1 StopReason)."""
Severity = Literal["info", "warning", "error"]
ToolKind = blocks.ToolKind


class Choice(Struct, frozen=True, omit_defaults=True):
    """One value that an option may have."""

    value: str
    name: str
    description: str = ""


class Option(Struct, frozen=True):
    """A setting of a session, with its value now. `category`: "mode", "model", "thought_level" or a word of your own."""

    id: str
    name: str
    value: str
    choices: tuple[Choice, ...]
    category: str = ""
    description: str = ""


class Command(Struct, frozen=True):
    """A command that a client may offer as `/name`. `hint`: what may stand behind it; empty: nothing."""

    name: str
    description: str
    hint: str = ""


class PlanEntry(Struct, frozen=True):
    """A step of a plan."""

    content: str
    status: Literal["pending", "in_progress", "completed"] = "pending"
    priority: Literal["high", "medium", "low"] = "medium"


class Location(NamedTuple):
    """A file that a tool call is about. `line` counts from 1."""

    path: str
    line: int | None = None


class Exit(Struct, frozen=True):
    """How a command ended: its exit code, or the signal that ended it, e.g. "SIGKILL"."""

    code: int | None = None
    signal: str | None = None


class Verdict(NamedTuple):
    """Whether something is allowed, and how that was decided, e.g. "refused"."""

    allowed: bool
    why: str


class Client(Struct, frozen=True):
    """What the client can."""

    read: bool = False
    write: bool = False
    terminal: bool = False
    form: bool = False
    notices: bool = False
    compaction: bool = False
    """It may be sent `compaction_update`. acpd always says so."""
    login: bool = False
    """It can run an agent's terminal login."""
    meta: Mapping[str, Any] = {}
    """What it says of itself beyond ACP: `_meta` of its capabilities."""

    @property
    def tools(self) -> Collection[str]:
        """What of its store acpd answers an agent (`_acpd/...`, docs/protocol.md); another client answers none of it."""
        told = self.meta.get("acpd.dev/tools")
        return told if isinstance(told, list) else ()


class StdioServer(Struct, frozen=True):
    """An MCP server that is a program. `env`: what it is to find in its environment. Its repr shows no secret."""

    name: str
    command: str
    args: tuple[str, ...]
    env: Mapping[str, str]

    def __repr__(self) -> str:
        return f"StdioServer({self.name!r})"


class RemoteServer(Struct, frozen=True):
    """An MCP server at a URL. Its repr shows no secret."""

    name: str
    type: Literal["http", "sse"]
    url: str
    headers: tuple[tuple[str, str], ...]

    def __repr__(self) -> str:
        return f"RemoteServer({self.name!r})"


McpServer = StdioServer | RemoteServer


class _Pair(Struct, gc=False):
    name: str
    value: str


class _Server(Struct, gc=False):
    name: str
    type: Literal["stdio", "http", "sse", "acp"] = "stdio"
    command: str = ""
    args: list[str] = []
    env: list[_Pair] = []
    url: str = ""
    headers: list[_Pair] = []


_decode_servers = msgspec.json.Decoder(list[_Server]).decode


def servers(raw: bytes, *, remote: bool) -> tuple[McpServer, ...]:
    """The servers of session/new, load or resume, which are valid. Raises RequestError for a transport that the agent has not.

    `remote`: it has those at URLs, http and sse, and not only programs.
    """
    found = _decode_servers(raw)
    for index, each in enumerate(found):
        if each.type == "acp" or (each.type != "stdio" and not remote):
            raise RequestError(INVALID_PARAMS, f'params.mcpServers[{index}].type "{each.type}" is not supported')
    return tuple(_server(each) for each in found)


def _server(said: _Server) -> McpServer:
    if said.type == "http" or said.type == "sse":  # noqa: PLR1714  the type checkers narrow by this
        return RemoteServer(said.name, said.type, said.url, tuple((pair.name, pair.value) for pair in said.headers))
    return StdioServer(said.name, said.command, tuple(said.args), {pair.name: pair.value for pair in said.env})


class _Files(Struct, frozen=True, gc=False):
    readTextFile: bool = False
    writeTextFile: bool = False


class _Session(Struct, gc=False):
    notices: Raw | UnsetType = UNSET
    compaction: Raw | UnsetType = UNSET


class _Elicitation(Struct, gc=False):
    form: Raw | UnsetType = UNSET


class _Auth(Struct, frozen=True, gc=False):
    terminal: bool = False


class _Capabilities(Struct, gc=False, rename={"meta": "_meta"}):
    meta: Raw = Raw(b"null")
    fs: _Files = _Files()
    terminal: bool = False
    session: _Session | None = None
    elicitation: _Elicitation | None = None
    auth: _Auth = _Auth()


_decode_capabilities = msgspec.json.Decoder(_Capabilities).decode


def client(raw: Raw | UnsetType) -> Client:
    """What clientCapabilities say, which are mended already."""
    said = _Capabilities() if isinstance(raw, UnsetType) else _decode_capabilities(raw)
    session = said.session or _Session()
    return Client(
        read=said.fs.readTextFile,
        write=said.fs.writeTextFile,
        terminal=said.terminal,
        form=_can((said.elicitation or _Elicitation()).form),
        notices=_can(session.notices),
        compaction=_can(session.compaction),
        login=said.auth.terminal,
        meta=msgspec.json.decode(said.meta) if bytes(said.meta).startswith(b"{") else {},
    )


def _can(raw: Raw | UnsetType) -> bool:
    """An object is a yes; null and absent are a no (ACP v1 capabilities)."""
    return not isinstance(raw, UnsetType) and bytes(raw).startswith(b"{")
