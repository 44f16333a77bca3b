"""What a client says beyond ACP: methods that begin with `_`, but for acpd's own, are its agent's business."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET

from acpd import attaching
from acpd.agents.link import AgentLink
from acpd.errors import METHOD_NOT_FOUND, RequestError
from acpd.registry import Registry
from acpd.rpc.protocol import Params
from acpd.session import LiveSession

if TYPE_CHECKING:
    from acpd.router import Connection


def named(registry: Registry, params: Params) -> LiveSession | None:
    """The live session that these params name, if they do."""
    if params is UNSET:
        return None
    try:
        found = msgspec.json.decode(params, type=dict[str, msgspec.Raw]).get("sessionId")
        return registry.live.get(msgspec.json.decode(found, type=str)) if found is not None else None
    except msgspec.DecodeError:
        return None


def _extended(connection: Connection) -> AgentLink | None:
    """An agent of this connection that announces extensions: one that waits, else that of a session."""
    host = connection.host
    links = (host.warm, *(each.link for each in connection.registry.live.values() if each.host is host))
    able = (link for link in links if isinstance(link, AgentLink) and not link.ended)
    return next((link for link in able if link.said.agentCapabilities.meta is not UNSET), None)


def notify(connection: Connection, method: str, params: Params) -> None:
    """A notification goes to the agent of the session that it names. Raises RequestError for an observer."""
    session = named(connection.registry, params)
    attaching.check_steering(session, connection, method)
    if session is not None and isinstance(session.link, AgentLink) and params is not UNSET:
        session.link.pass_on(method, bytes(params))


async def ask(method: str, connection: Connection, _identifier: bytes, params: Params) -> bytes:
    """A request goes to the agent of the session that it names, else to one that announces extensions."""
    session = named(connection.registry, params)
    attaching.check_steering(session, connection, method)
    if session is not None and isinstance(session.link, AgentLink) and params is not UNSET:
        return await session.link.ask(method, session.link.translated(bytes(params)))
    link = _extended(connection)
    if link is None:
        raise RequestError(METHOD_NOT_FOUND, f"unknown method {method[:100]}")
    return await link.ask(method, b"{}" if params is UNSET else bytes(params))
