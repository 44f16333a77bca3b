"""session/list: ours by pages from the catalog, newest first; behind them what only the agent knows."""

from __future__ import annotations

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
from acpd.wire.envelope import encode

if TYPE_CHECKING:
    from acpd.router import Connection
    from acpd.wire.messages import ListSessions

PAGE = 100
AGENT_TIMEOUT = 5.0
_ADOPT = b'{"acpd.dev/adopt":true}'


class _Cursor(Struct, array_like=True):
    """Either after a row of ours, or (agent) the agent's own cursor."""

    at: str = ""
    id: str = ""
    agent: str | None = None


class _Listed(Struct, gc=False):
    sessions: list[dict[str, Raw]] = []
    nextCursor: str | None = None


def normal_folder(path: str) -> str:
    """A folder's real path, so that `/x/.`, `/x/` and a link to it are the same; gone folders too."""
    return os.path.realpath(path)


def same_folder(one: str, other: str) -> bool:
    return one == other or normal_folder(one) == normal_folder(other)


async def page(connection: Connection, said: ListSessions) -> bytes:
    """The result of session/list. Raises RequestError(INVALID_PARAMS) for a cursor that is not ours."""
    cursor = _decoded(said.cursor) if said.cursor is not None else None
    if cursor is not None and cursor.agent is not None:
        return await _agents_page(connection, said.cwd, cursor.agent)
    after = After(cursor.at, cursor.id) if cursor is not None else None
    cwd = said.cwd
    await connection.registry.refresh()
    rows = await connection.registry.store.catalog.page(
        agent=connection.host.agent_name or None, cwd=cwd, after=after, limit=PAGE
    )
    found = [_info(row) for row in rows]
    if after is None:
        found = _unprompted(connection, cwd) + found
    if len(rows) == PAGE:
        return _result(found, _Cursor(rows[-1].updatedAt, rows[-1].id))
    if _lister(connection) is None:
        return _result(found, None)
    more = msgspec.json.decode(await _agents_page(connection, said.cwd, ""), type=_Listed)
    return _result([*found, *(encode(one) for one in more.sessions)], _decoded(more.nextCursor) if more.nextCursor else None)


def _unprompted(connection: Connection, cwd: str | None) -> list[bytes]:
    """Sessions that this client holds open and has not prompted yet. They are listed to nobody else."""
    return [
        encode({"sessionId": session.id, "cwd": session.header.cwd, "updatedAt": session.header.createdAt})
        for session in connection.registry.live.values()
        if not session.fold.prompted
        and session.audience.attachment(connection)
        and (cwd is None or same_folder(cwd, session.header.cwd))
    ]


def _info(row: Row) -> bytes:
    value: dict[str, object] = {"sessionId": row.id, "cwd": row.cwd, "updatedAt": row.updatedAt}
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
        return msgspec.json.decode(base64.urlsafe_b64decode(text.encode()), type=_Cursor)
    except (ValueError, binascii.Error, msgspec.DecodeError):
        raise RequestError(errors.INVALID_PARAMS, "cursor is not one that session/list gave") from None


def _lister(connection: Connection) -> AgentLink | None:
    """An agent of this connection that lists sessions of its own."""
    links = [connection.host.warm, *(each.link for each in connection.registry.live.values())]
    for link in links:
        if isinstance(link, AgentLink) and not link.ended and link.said.agentCapabilities.sessionCapabilities.has("list"):
            return link
    return None


async def _agents_page(connection: Connection, cwd: str | None, cursor: str) -> bytes:
    """A page of what the agent lists and acpd does not know, marked. An agent that fails or is slow lists nothing."""
    link = _lister(connection)
    if link is None:
        return _result([], None)
    params = {**({"cwd": cwd} if cwd is not None else {}), **({"cursor": cursor} if cursor else {})}
    try:
        listed = msgspec.json.decode(await link.ask("session/list", encode(params), timeout=AGENT_TIMEOUT), type=_Listed)
    except (AcpdError, msgspec.DecodeError):
        return _result([], None)
    known = await connection.registry.store.catalog.inner_ids(link.name)
    known |= {session.fold.inner for session in connection.registry.live.values()}
    found = [encode({**one, "_meta": Raw(_ADOPT)}) for one in listed.sessions if _is_new(one, known, cwd)]
    return _result(found, _Cursor(agent=listed.nextCursor) if listed.nextCursor else None)


def _is_new(one: dict[str, Raw], known: set[str], cwd: str | None) -> bool:
    try:
        session_id = msgspec.json.decode(one["sessionId"], type=str)
        folder = msgspec.json.decode(one["cwd"], type=str)
    except (KeyError, msgspec.DecodeError):
        return False
    return session_id not in known and (cwd is None or same_folder(folder, cwd))


async def delete_inner(link: AgentLink, inner: str, timeout: float) -> None:
    """Ask the agent to delete its own session too, else it would be listed again. Its failure changes nothing."""
    if inner:
        try:
            await link.ask("session/delete", b'{"sessionId":%b}' % encode(inner), timeout=timeout)
        except AcpdError:
            return
