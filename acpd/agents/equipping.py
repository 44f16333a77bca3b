"""`[sessions] tools`: every agent but our own is given `acpd mcp`, so that its model finds earlier sessions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
from msgspec import Raw, Struct

from acpd.config import BUILT_IN
from acpd.wire import splice
from acpd.wire.envelope import encode

if TYPE_CHECKING:
    from acpd.agents.link import AgentLink

NAME = "acpd"


class _Params(Struct, gc=False):
    mcpServers: list[Raw] | None = None


class _Named(Struct, gc=False):
    name: str = ""


def equipped(link: AgentLink, command: Sequence[str], params: bytes, session: str, user: str | None) -> bytes:
    """Params of session/new, load, resume or fork for this agent, whose `mcpServers` are sound: with one more server behind
    them. `command`: of `acpd mcp`, without a session; empty: none. Our own agent asks over its link.
    """
    if not command or link.said.agentInfo.name == BUILT_IN:
        return params
    servers = msgspec.json.decode(params, type=_Params).mcpServers or []
    names = {msgspec.json.decode(server, type=_Named).name for server in servers}
    name = next(each for each in (NAME, *(f"{NAME}-{number}" for number in range(2, len(names) + 3))) if each not in names)
    who = [f"--user={user}"] if user else []  # with =, as an id of an agent's own may begin with a dash
    arguments = [*command[1:], *who, f"--session={session}"]
    ours = encode({"name": name, "command": command[0], "args": arguments, "env": []})
    return splice.replace(params, "mcpServers", b"[%b]" % b",".join([*map(bytes, servers), ours]))
