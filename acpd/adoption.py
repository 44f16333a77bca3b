"""Sessions that only the agent knows: the agent's own load, recorded as a new log.

The log says "adopting" until all of it is there. One that was cut off - acpd killed, the request cancelled, the agent
gone - is no session: it is removed when somebody asks for it again, and the agent, which still has all, is asked anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET, Raw, Struct

from acpd import errors
from acpd.agents.equipping import equipped
from acpd.config import without_secrets
from acpd.errors import AgentError, RequestError, SessionNotFound
from acpd.session import LiveSession
from acpd.wire.envelope import encode
from acpd.wire.titles import first_line_title, is_command

if TYPE_CHECKING:
    from acpd.router import Connection
    from acpd.wire.messages import OldSession


class _Update(Struct, gc=False):
    content: Raw


class _Params(Struct, gc=False):
    update: _Update


_decode = msgspec.json.Decoder(_Params).decode


async def adopt(connection: Connection, said: OldSession, params: bytes) -> LiveSession:
    """Raises SessionNotFound if the agent does not know it either, RequestError if it wants a login first, AgentError."""
    try:
        link = await connection.warm.get()
    except (AgentError, RequestError):
        raise SessionNotFound(said.sessionId) from None
    if not link.said.agentCapabilities.loadSession or not said.sessionId:
        raise SessionNotFound(said.sessionId)
    try:
        return await connection.registry.once(said.sessionId, lambda: _record(connection, said, params))
    except RequestError as error:
        if error.code == errors.AUTH_REQUIRED:
            raise
        raise SessionNotFound(said.sessionId) from None


async def _record(connection: Connection, said: OldSession, params: bytes) -> LiveSession:
    """The live session, whole; or nothing is left of it. Raises RequestError, AgentError, StoreError."""
    registry = connection.registry
    link = await connection.warm.take()
    session: LiveSession | None = None
    try:
        header = await registry.header(said.sessionId, link.name, said.cwd, without_secrets(link.command), said.directories)
        session = await registry.create(header)
        session.host = connection.host
        session.setup = params
        link.bind(session, encode(said.sessionId))
        session.remember_link(link, state=b"adopting")
        settings = connection.pool.settings
        told = equipped(link, settings.tools, params, session.id, registry.user)
        result = await link.ask_held("session/load", told, settings.start_timeout)
        await _name(session)
    except BaseException:
        link.session = None
        connection.tasks.spawn(link.stop(), name="stop:unused")
        if session is not None:
            await registry.abandon(session)
        raise
    session.link = link
    session.remember_link(link)
    session.recorder.end_message()  # what it says from now on is none of what it told
    session.recorder.config(result)
    session.scribe.commit()
    link.release()
    return session


async def _name(session: LiveSession) -> None:
    """The agent's title, else the first line of what the user said first, and was no command if there is such."""
    session.scribe.commit()
    if session.fold.title:
        return
    title = ""
    async for window in session.store.journals.read(session.key, until=session.scribe.flushed):
        for line in window:
            if line.kind == "user_message_chunk" and line.params is not UNSET and (found := _first_line(line.params)):
                title = title or found
                if not is_command(found):
                    session.scribe.fact("info", b',"title":%b' % encode(found))
                    return
    if title:
        session.scribe.fact("info", b',"title":%b' % encode(title))


def _first_line(params: bytes | Raw) -> str:
    """Of what the user said; empty if it is not text, or not what its kind says."""
    try:
        return first_line_title(b"[%b]" % bytes(_decode(params).update.content))
    except msgspec.DecodeError:
        return ""
