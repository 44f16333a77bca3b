"""What an agent asks of its client: asks, files, terminals, extensions, and `_acpd/state`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
from msgspec import Raw, Struct

from acpd import asks, errors
from acpd.attachment import Client, ClientCapabilities
from acpd.errors import RequestError
from acpd.wire import splice

if TYPE_CHECKING:
    from acpd.agents.link import AgentLink
    from acpd.session import LiveSession

_NEEDS: dict[str, Callable[[ClientCapabilities], bool]] = {
    "fs/read_text_file": lambda can: can.read_text_file,
    "fs/write_text_file": lambda can: can.write_text_file,
    "terminal/create": lambda can: can.terminal,
    "terminal/output": lambda can: can.terminal,
    "terminal/wait_for_exit": lambda can: can.terminal,
    "terminal/kill": lambda can: can.terminal,
    "terminal/release": lambda can: can.terminal,
}
_EMPTY_RESULTS = frozenset({"fs/write_text_file", "terminal/kill", "terminal/release"})
"""Older clients answer these with null; the schema wants an object (ACP v1 contradictions)."""


class StateParams(Struct, gc=False):
    """`_acpd/state`: a JSON value that the agent keeps in acpd under a name, whole."""

    sessionId: str
    name: str
    value: Raw


def serve(link: AgentLink, session: LiveSession, identifier: bytes, method: str, params: bytes) -> None:
    """Answer one request of the agent, now or later. Raises RequestError when it cannot be served."""
    if method in (asks.PERMISSION, asks.ELICITATION):
        session.asks.open(method, params, identifier, link.reply(identifier), (link.id, link.peer.position))
    elif method == "_acpd/state":
        _keep_state(link, session, identifier, params)
    elif method in _NEEDS or (method.startswith("_") and not method.startswith("_acpd/")):
        _forward(link, session, identifier, method, params)
    else:
        raise RequestError(errors.METHOD_NOT_FOUND, f"unknown method {method}")


def _keep_state(link: AgentLink, session: LiveSession, identifier: bytes, params: bytes) -> None:
    try:
        said = msgspec.json.decode(params, type=StateParams)
    except msgspec.DecodeError as error:
        raise RequestError(errors.INVALID_PARAMS, f"_acpd/state: {error}") from None
    if not said.name or said.name.startswith("acpd."):
        raise RequestError(errors.INVALID_PARAMS, "_acpd/state: name is empty or begins with acpd., which is acpd's own")
    session.kept.keep(said.name, bytes(said.value), link.reply(identifier))


def _forward(link: AgentLink, session: LiveSession, identifier: bytes, method: str, params: bytes) -> None:
    client = _client_for(session, method)
    if client is None:
        raise RequestError(errors.METHOD_NOT_FOUND, f"{method}: no attached client can do that")
    from acpd.wire import asking  # 2 ms that a start need not pay

    outward = _outward(asking.checked(method, params), session)
    reply = link.reply(identifier)

    def then(result: bytes | None, error: RequestError | None) -> None:
        reply(b"{}" if result == b"null" and method in _EMPTY_RESULTS else result, error)

    call = client.call(method, outward, then)
    link.forwarded[identifier] = (client, call)


def _client_for(session: LiveSession, method: str) -> Client | None:
    """Who prompted, else the longest attached that can. Never an observer."""
    needs = _NEEDS.get(method)
    clients = [each.client for each in session.audience.controllers if needs is None or needs(each.client.capabilities)]
    if session.current is not None and session.current.client in clients:
        return session.current.client
    return clients[0] if clients else None


def _outward(params: bytes, session: LiveSession) -> bytes:
    """Only the top-level sessionId is translated."""
    try:
        has = "sessionId" in splice.members(params)
    except msgspec.DecodeError:
        return params
    return splice.replace(params, "sessionId", session.id_json) if has else params


def forward_notification(link: AgentLink, session: LiveSession, method: str, params: bytes) -> None:
    """An extension's notification, to every client; `_acpd/` never passes through."""
    if method.startswith("_acpd/"):
        link.on_noise(f"notification {method}")
        return
    session.on_batch_end()
    outward = _outward(params, session)
    for attachment in session.audience.attachments:
        if attachment.live and not attachment.client.paused:
            attachment.client.notify(method, outward)
