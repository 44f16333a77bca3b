"""session/list: ours by pages from the catalog, newest first; behind them what only the agent knows."""

from __future__ import annotations

import asyncio
import base64
import binascii
import os
from typing import TYPE_CHECKING

import msgspec
from msgspec import Raw, Struct

from acpd import errors
from acpd.agents.link import AgentLink
from acpd.errors import AcpdError, RequestError
from acpd.storage.contract import After, Row
from acpd.turn import Turn
from acpd.wire import splice
from acpd.wire.envelope import encode
from acpd.wire.lines import Header
from acpd.wire.titles import plain_title

if TYPE_CHECKING:
    from acpd.router import Connection
    from acpd.wire.messages import ListSessions

PAGE = 100
AGENT_TIMEOUT = 5.0
BUSY_TIMEOUT = 0.5
"""Seconds for an agent that is in a turn: some answer nothing else meanwhile, and a list must not wait for a model."""
_ADOPT = b'{"acpd.dev/adopt":true}'


class _Cursor(Struct, array_like=True):
    """Either after a row of ours, or (agent) the agent's own cursor."""

    at: str = ""
    id: str = ""
    agent: str | None = None


class _Titled(Struct, gc=False):
    title: str | None = None


class _Named(Struct, gc=False):
    sessionId: str
    cwd: str


class _Listed(Struct, gc=False):
    sessions: list[Raw] = []
    nextCursor: str | None = None


def normal_folder(path: str) -> str:
    """A folder's real path, so that `/x/.`, `/x/` and a link to it are the same; gone folders too."""
    return os.path.realpath(path)


async def same_folder(cwd: str, header: Header) -> bool:
    """Whether a client means the folder of this session, by another spelling or not, the folder being there or not."""
    if cwd in (header.cwd, header.folder):
        return True
    return await asyncio.to_thread(normal_folder, cwd) == (header.folder or header.cwd)


async def page(connection: Connection, said: ListSessions) -> bytes:
    """The result of session/list. Raises RequestError(INVALID_PARAMS) for a cursor that is not ours."""
    cursor = _decoded(said.cursor) if said.cursor is not None else None
    if cursor is not None and cursor.agent is not None:
        return await _agents_page(connection, said.cwd, cursor.agent)
    after = After(cursor.at, cursor.id) if cursor is not None else None
    cwd = await asyncio.to_thread(normal_folder, said.cwd) if said.cwd is not None else None
    rows, following = await connection.registry.page(agent=connection.host.agent_name or None, cwd=cwd, after=after, limit=PAGE)
    found = [_info(row, said.cwd or row.cwd) for row in rows]
    if after is None:
        found = _unprompted(connection, cwd) + found
    if following is not None:
        return _result(found, _Cursor(*following))
    if _lister(connection) is None:
        return _result(found, None)
    more = msgspec.json.decode(await _agents_page(connection, said.cwd, ""), type=_Listed)
    return _result([*found, *map(bytes, more.sessions)], _decoded(more.nextCursor) if more.nextCursor else None)


def _unprompted(connection: Connection, cwd: str | None) -> list[bytes]:
    """Sessions that this client holds open and has not prompted yet. They are listed to nobody else."""
    return [
        encode({"sessionId": session.id, "cwd": session.header.cwd, "updatedAt": session.header.createdAt})
        for session in connection.registry.live.values()
        if not session.fold.prompted
        and session.audience.attachment(connection)
        and cwd in (None, session.header.folder or session.header.cwd)
    ]


def _info(row: Row, cwd: str) -> bytes:
    """`cwd`: the client's own spelling where it named one, so that it knows it again."""
    value: dict[str, object] = {"sessionId": row.id, "cwd": cwd, "updatedAt": row.updatedAt}
    if row.title:
        value["title"] = row.title
    if row.dirs:
        value["additionalDirectories"] = row.dirs
    value["_meta"] = {"acpd.dev/agent": row.agent, "acpd.dev/messages": row.messages}
    return encode(value)


def _result(sessions: list[bytes], cursor: _Cursor | None) -> bytes:
    following = b',"nextCursor":%b' % encode(_encoded(cursor)) if cursor is not None else b""
    return b'{"sessions":[%b]%b}' % (b",".join(sessions), following)


def _encoded(cursor: _Cursor) -> str:
    return base64.urlsafe_b64encode(encode(cursor)).decode()


def _decoded(text: str) -> _Cursor:
    try:
        found = msgspec.json.decode(base64.urlsafe_b64decode(text.encode()), type=_Cursor)
    except (ValueError, binascii.Error, msgspec.DecodeError):
        found = _Cursor()
    if not found.id and found.agent is None:
        raise RequestError(errors.INVALID_PARAMS, "cursor is not one that session/list gave")
    return found


def _lister(connection: Connection) -> AgentLink | None:
    """An agent of this connection's kind that lists sessions of its own; one in a turn only if there is no other."""
    live = sorted(connection.registry.live.values(), key=lambda each: each.state is not Turn.IDLE)
    live = [each for each in live if connection.host.agent_name in ("", each.header.agent)]
    links = [connection.host.warm, *(each.link for each in live)]
    for link in links:
        if isinstance(link, AgentLink) and not link.ended and link.said.agentCapabilities.sessionCapabilities.has("list"):
            return link
    return None


async def _agents_page(connection: Connection, cwd: str | None, cursor: str) -> bytes:
    """A page of what the agent lists and acpd does not know, marked. An agent that fails or is slow lists nothing."""
    link = _lister(connection)
    if link is None:
        return _result([], None)
    busy = link.session is not None and link.session.state is not Turn.IDLE
    timeout = BUSY_TIMEOUT if busy else AGENT_TIMEOUT
    params = {**({"cwd": cwd} if cwd is not None else {}), **({"cursor": cursor} if cursor else {})}
    try:
        listed = msgspec.json.decode(await link.ask("session/list", encode(params), timeout=timeout), type=_Listed)
    except (AcpdError, msgspec.DecodeError):
        return _result([], None)
    folder = await asyncio.to_thread(normal_folder, cwd) if cwd is not None else None
    found = await _new_ones(connection, link, listed.sessions, folder)
    return _result(found, _Cursor(agent=listed.nextCursor) if listed.nextCursor else None)


async def _new_ones(connection: Connection, link: AgentLink, listed: list[Raw], cwd: str | None) -> list[bytes]:
    """Those that acpd does not know, in this folder, marked. What is no SessionInfo is left out."""
    from acpd.wire import answers

    sound = [one for each in listed if (one := answers.listed(bytes(each))) is not None]
    said = [msgspec.json.decode(one, type=_Named) for one in sound]
    folders = await asyncio.to_thread(lambda: [normal_folder(one.cwd) for one in said])
    known = await connection.registry.store.catalog.known_inner(link.name, [one.sessionId for one in said])
    for session in connection.registry.live.values():
        known.add(session.fold.last_inner)
        if session.link is not None:  # one that is not remembered yet because it is not primed yet
            known.add(msgspec.json.decode(session.link.inner, type=str))
    return [
        _marked(text)
        for text, one, folder in zip(sound, said, folders, strict=True)
        if one.sessionId not in known and cwd in (None, folder)
    ]


def _marked(session: bytes) -> bytes:
    """The agent's own row, with our mark beside what it says in `_meta`, and a title as ours are."""
    title = msgspec.json.decode(session, type=_Titled).title
    if title and (plain := plain_title(title)) != title:
        session = splice.replace(session, "title", encode(plain or None))
    span = splice.members(session).get("_meta")
    meta = session[slice(*span)] if span is not None else b""
    return splice.replace(
        session, "_meta", splice.replace(meta, "acpd.dev/adopt", b"true") if meta.startswith(b"{") else _ADOPT
    )


async def delete_inner(connection: Connection, agent: str, inner: str) -> None:
    """Ask the agent to delete its own session too, else it would be listed again. Its failure changes nothing."""
    if not inner:
        return
    try:
        link = await _deleter(connection, agent)
        if link is not None:
            await link.ask("session/delete", b'{"sessionId":%b}' % encode(inner), timeout=AGENT_TIMEOUT)
    except (AcpdError, OSError):
        return


async def _deleter(connection: Connection, agent: str) -> AgentLink | None:
    """A running agent of this name that can delete; the connection's own is started for it."""
    links = [connection.host.warm, *(each.link for each in connection.registry.live.values())]
    for link in links:
        if isinstance(link, AgentLink) and not link.ended and link.name == agent:
            return link if link.said.agentCapabilities.sessionCapabilities.has("delete") else None
    if connection.host.agent_name != agent:
        return None
    link = await connection.warm.get()
    return link if link.said.agentCapabilities.sessionCapabilities.has("delete") else None
