"""What an agent asks of its client: asks, files, terminals, extensions, what it keeps in acpd and what it finds there."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import msgspec
from msgspec import Raw, Struct

from acpd import asks, errors
from acpd.attachment import Client, ClientCapabilities
from acpd.errors import RequestError, Unanswered
from acpd.wire import splice
from acpd.wire.envelope import encode

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


class _Named(Struct, gc=False):
    """A request about a terminal, and the answer to terminal/create."""

    terminalId: str


def serve(link: AgentLink, session: LiveSession, identifier: bytes, method: str, params: bytes) -> None:
    """Answer one request of the agent, now or later. Raises RequestError when it cannot be served."""
    if method in (asks.PERMISSION, asks.ELICITATION):
        session.asks.open(method, params, identifier, link.reply(identifier), (link.id, link.peer.position))
    elif method == "_acpd/state":
        _keep_state(link, session, identifier, params)
    elif method in _NEEDS:
        _file_or_terminal(link, session, identifier, method, params)
    elif method.startswith("_acpd/"):
        from acpd.agents import recalling  # of no use to a start

        recalling.serve(link, session, identifier, method, params)
    elif method.startswith("_"):
        _extension(link, session, identifier, method, params)
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


def _file_or_terminal(link: AgentLink, session: LiveSession, identifier: bytes, method: str, params: bytes) -> None:
    """A client's business, else acpd's own. A terminal stays where it was made."""
    from acpd.wire import asking  # 2 ms that a start need not pay

    params = asking.checked(method, params)
    if not method.startswith("terminal/") or method == "terminal/create":
        _ask_who_can(link, session, identifier, method, params)
        return
    name = msgspec.json.decode(params, type=_Named).terminalId
    owner = link.terminals.get(name)
    if owner is None:
        _serve_here(link, session, identifier, method, params)
    elif session.audience.attachment(owner) is not None:
        _ask(link, session, owner, identifier, method, params, partial(_left, link, identifier, method))
    elif method == "terminal/release":
        del link.terminals[name]
        link.reply(identifier)(b"{}", None)
    else:
        raise RequestError(errors.RESOURCE_NOT_FOUND, f"{method}: the client that had terminal {name[:100]} has left")


def _serve_here(link: AgentLink, session: LiveSession, identifier: bytes, method: str, params: bytes) -> None:
    """What the agent was never told that its client can, it may not ask for (ACP v1 initialization)."""
    if not _NEEDS[method](link.told):
        raise RequestError(errors.METHOD_NOT_FOUND, f"{method}: no client can do that")
    link.local.serve(session, identifier, method, params)


def _ask_who_can(
    link: AgentLink, session: LiveSession, identifier: bytes, method: str, params: bytes, but: tuple[Client, ...] = ()
) -> None:
    """Ask a client, none of `but`; serve it here if none can. Raises RequestError."""
    client = _client_for(session, method, but)
    if client is None:
        _serve_here(link, session, identifier, method, params)
    else:
        _ask_and_go_on(link, session, client, identifier, method, params, but)


def _ask_and_go_on(
    link: AgentLink,
    session: LiveSession,
    client: Client,
    identifier: bytes,
    method: str,
    params: bytes,
    but: tuple[Client, ...],
) -> None:
    """Where this client leaves before it has answered the next one is asked for a file; a command is not run twice."""

    def again() -> None:
        try:
            if not link.ended:
                _ask_who_can(link, session, identifier, method, params, (*but, client))
        except RequestError as error:
            link.reply(identifier)(None, error)

    left = partial(_left, link, identifier, method) if method == "terminal/create" else again
    _ask(link, session, client, identifier, method, params, left)


def _ask(
    link: AgentLink,
    session: LiveSession,
    client: Client,
    identifier: bytes,
    method: str,
    params: bytes,
    left: Callable[[], None],
) -> None:
    """Pass a request on to this client and its answer back. `left` is called if it leaves before it answers."""
    reply = link.reply(identifier)

    def then(result: bytes | None, error: RequestError | None) -> None:
        if isinstance(error, Unanswered):
            link.forwarded.pop(identifier, None)
            left()
            return
        if result is not None:
            error = _note_terminal(link, session, client, method, params, result)
        reply(b"{}" if result == b"null" and method in _EMPTY_RESULTS else result, error)

    call = client.call(method, _outward(params, session), then)
    link.forwarded[identifier] = (client, call)


def _left(link: AgentLink, identifier: bytes, method: str) -> None:
    link.reply(identifier)(None, RequestError(errors.INTERNAL_ERROR, f"{method}: the client left before it answered"))


def _note_terminal(
    link: AgentLink, session: LiveSession, client: Client, method: str, params: bytes, result: bytes
) -> RequestError | None:
    """Remember whose the terminal is. Two clients may give one name: the later terminal is let go, and this is the error."""
    if method == "terminal/release":
        link.terminals.pop(msgspec.json.decode(params, type=_Named).terminalId, None)
    if method != "terminal/create":
        return None
    try:
        name = msgspec.json.decode(result, type=_Named).terminalId
    except msgspec.DecodeError:
        return None  # the agent is told what the client said
    owner = link.terminals.get(name)
    if owner in (None, client) or session.audience.attachment(owner) is None:
        link.terminals[name] = client
        return None
    params = b'{"sessionId":%b,"terminalId":%b}' % (session.id_json, encode(name))
    client.call("terminal/release", params, lambda _result, _error: None)
    return RequestError(errors.INTERNAL_ERROR, f"terminal/create: two clients call their terminals {name[:100]}; try again")


def _extension(link: AgentLink, session: LiveSession, identifier: bytes, method: str, params: bytes) -> None:
    client = _client_for(session, method)
    if client is None:
        raise RequestError(errors.METHOD_NOT_FOUND, f"{method}: no client is attached")
    _ask(link, session, client, identifier, method, params, partial(_left, link, identifier, method))


def _client_for(session: LiveSession, method: str, but: tuple[Client, ...] = ()) -> Client | None:
    """Who prompted, else the longest attached that can; never an observer. `but`: who is leaving, and may be attached still."""
    needs = _NEEDS.get(method)
    attached = (each.client for each in session.audience.controllers)
    clients = [each for each in attached if each not in but and (needs is None or needs(each.capabilities))]
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
    if method.startswith("_acpd/memory/"):
        from acpd.agents import recalling

        recalling.heard(link, session, method, params)
        return
    if method.startswith("_acpd/"):
        link.on_noise(f"notification {method}")
        return
    session.on_batch_end()
    outward = _outward(params, session)
    for attachment in session.audience.attachments:
        if attachment.live and not attachment.client.paused:
            attachment.client.notify(method, outward)
