"""Giving an agent back the context of a session: resume, else load, else a new inner session that is told about it.

Never a silent fresh start (docs/architecture.md, "Restoring an agent's own context").
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.structs import replace

from acpd import errors
from acpd.agents.equipping import equipped
from acpd.agents.link import AgentLink, Mode
from acpd.agents.pool import AgentPool, Host
from acpd.config import HIDDEN, AgentChoice
from acpd.errors import AgentError, RequestError, StoreError
from acpd.session import LiveSession
from acpd.wire import frames, splice
from acpd.wire.envelope import encode

RESTORES = 2
"""Tries in a row to resume or load in which the agent dies or says nothing; then it is primed, or it was of no use any more."""


CARRIED = frozenset({"tool_context", "usage"})
"""What an agent keeps in acpd that holds wherever the conversation goes on: an agent that begins anew is told it."""
LOST = CARRIED | {"plan"}
"""The same where the conversation is still the one that it was."""


class _Setup(Struct, gc=False):
    """What a client said in session/new, load or resume that an agent must hear."""

    mcpServers: Raw = Raw(b"[]")
    additionalDirectories: Raw | UnsetType = UNSET
    systemPrompt: Raw | UnsetType = UNSET


class _New(Struct, gc=False):
    sessionId: Raw


class _Mode(Struct, gc=False):
    currentModeId: str


class _Option(Struct, gc=False):
    id: str
    type: str = "select"
    currentValue: str | bool = ""


class _Config(Struct, gc=False):
    modes: _Mode | None = None
    configOptions: list[_Option] | None = None


class Restorer:
    """Implements acpd.session.Agents on a pool."""

    def __init__(self, pool: AgentPool) -> None:
        self._pool = pool
        self._timeout = pool.settings.start_timeout

    async def bring_up(self, session: LiveSession, /) -> AgentLink:
        """See acpd.session.Agents. The stored mode and options are the agent's then.

        The log has a `link` fact, but for an agent that must be primed: that gets one with the primer.
        """
        host = session.host
        if not isinstance(host, Host):
            raise AgentError(f"no client has opened session {session.id} yet, so its agent cannot be started")
        cwd = session.header.cwd
        if not await asyncio.to_thread(os.path.isdir, cwd):
            raise AgentError(
                f"the working directory of session {session.id} is gone: {cwd}", hint="make it again, then prompt again"
            )
        await self._pool.end_leftovers()  # a dead acpd's agent of this session, which another one had open
        link = await self._link(session, host)
        try:
            await self._restore(session, link)
        except BaseException:
            link.session = None
            await link.stop()
            raise
        if link.ended:
            raise await link.cause()
        return link

    async def _link(self, session: LiveSession, host: Host) -> AgentLink:
        """The connection's agent if the session was made with it, else the agent of the stored command."""
        if host.agent_name == session.key.agent:
            return host.take_warm() or await self._pool.start(host, host.choice, session.header.cwd)
        known = self._pool.known.get(session.key.agent)
        if known is not None:
            return await self._pool.start(host, known, session.header.cwd)
        hidden = any(argument.endswith(HIDDEN) for argument in session.header.command)
        if not session.header.command or hidden:
            raise AgentError(
                f"session {session.id} was made with agent {session.key.agent}, whose command is not known here",
                hint=f"open it with that agent, or name its command in [agents.{session.key.agent}]",
            )
        return await self._pool.start(host, AgentChoice(session.key.agent, session.header.command), session.header.cwd)

    async def _restore(self, session: LiveSession, link: AgentLink) -> None:
        session.primer = session.primer_notice = ""  # of an agent that ended before it was told
        result = None
        if session.fold.inner and session.restores_failed < RESTORES:
            try:
                result = await self._old(session, link, encode(session.fold.inner))
            except AgentError:
                session.restores_failed += 1
                raise
        session.restores_failed = 0
        if result is None:
            result = await self._new(session, link)
        link.mode = Mode.LIVE
        if not session.primer:  # else it is remembered when it is told
            session.remember_link(link)
        link.release()
        await self._config(session, link, result)

    async def _old(self, session: LiveSession, link: AgentLink, inner: bytes) -> bytes | None:
        """Resume or load the agent's own session; None: it cannot."""
        said = link.said.agentCapabilities
        link.bind(session, inner, Mode.DROP)
        params = await self._params(session, link, b'"sessionId":%b,' % inner, None)
        for method, able in (("session/resume", said.sessionCapabilities.has("resume")), ("session/load", said.loadSession)):
            if not able:
                continue
            try:
                return await link.ask_held(method, params, self._timeout)
            except RequestError as error:
                if error.code == errors.AUTH_REQUIRED:
                    raise
        return None

    async def _new(self, session: LiveSession, link: AgentLink) -> bytes:
        link.mode = Mode.EARLY
        result = await self._fork(session, link)
        if result is None:
            elsewhere = not session.fold.inner
            carried = CARRIED if elsewhere else LOST
            result = await link.ask_held("session/new", await self._params(session, link, b"", carried), self._timeout)
            if session.fold.prompted:
                if elsewhere:  # else whoever dies before the new one has kept its own resumes it with another branch's
                    await session.kept.forget(carried)
                await self._prime(session, link)
        link.bind(session, inner_id(result), Mode.LIVE)
        return result

    async def _fork(self, session: LiveSession, link: AgentLink) -> bytes | None:
        """The agent's own fork of the session that this one was forked from, if it has one."""
        able = link.said.agentCapabilities.sessionCapabilities.has("fork")
        inner = await _forked_from(session) if able else ""
        if not inner:
            return None
        params = await self._params(session, link, b'"sessionId":%b,' % encode(inner), ())
        try:
            return await link.ask_held("session/fork", params, self._timeout)
        except RequestError:
            return None

    async def _params(self, session: LiveSession, link: AgentLink, head: bytes, carried: Collection[str] | None) -> bytes:
        params = await _params(session, head, carried)
        return equipped(link, self._pool.settings.tools, params, session.id, session.key.user)

    async def _prime(self, session: LiveSession, link: AgentLink) -> None:
        """A new inner session is told the conversation with its first prompt, and the user is told so then."""
        from acpd.agents.priming import primed

        session.primer, missing = await primed(session)
        if session.primer:
            session.primer_notice = _primed(session, link, missing)

    async def _config(self, session: LiveSession, link: AgentLink, result: bytes) -> None:
        """The stored mode and options win over what the agent came up with; what it refuses is told to the clients."""
        stored = _config_of(session.setup_answer())
        found = _config_of(result)
        if stored.modes is None and stored.configOptions is None:
            session.recorder.config(result)
            return
        if stored.modes and found.modes and stored.modes.currentModeId != found.modes.currentModeId:
            await self._set_mode(session, link, stored.modes.currentModeId, found.modes.currentModeId)
        now = {option.id: option.currentValue for option in found.configOptions or []}
        for option in stored.configOptions or []:
            if option.id in now and now[option.id] != option.currentValue:
                await self._set_option(session, link, option, result)

    async def _set_mode(self, session: LiveSession, link: AgentLink, wanted: str, found: str) -> None:
        try:
            await link.ask(
                "session/set_mode", b'{"sessionId":%b,"modeId":%b}' % (link.inner, encode(wanted)), timeout=self._timeout
            )
        except RequestError:
            _say(session, link, b'{"sessionUpdate":"current_mode_update","currentModeId":%b}' % encode(found))

    async def _set_option(self, session: LiveSession, link: AgentLink, option: _Option, result: bytes) -> None:
        kind = b',"type":"boolean"' if isinstance(option.currentValue, bool) else b""
        value = encode(option.currentValue)
        params = b'{"sessionId":%b,"configId":%b,"value":%b%b}' % (link.inner, encode(option.id), value, kind)
        try:
            session.recorder.config(await link.ask("session/set_config_option", params, timeout=self._timeout))
        except RequestError:
            start, end = splice.members(result)["configOptions"]
            _say(session, link, b'{"sessionUpdate":"config_option_update","configOptions":%b}' % result[start:end])


def _primed(session: LiveSession, link: AgentLink, missing: int) -> str:
    """What the user is told of an agent that has to begin anew: why, and what it does not know."""
    if session.fold.inner:
        why = "could not restore its own memory of this session"
    elif session.fold.link is not None:
        why = "cannot take its own memory of this session to where it goes on now"
    elif session.header.parent is not None:
        why = "could not fork its own memory of the session that this one was forked from"
    else:
        why = "has no memory of this session"
    left_out = f" without its {missing} oldest messages" if missing > 1 else " without its oldest message" if missing else ""
    return (
        f"{link.name} {why}, so it was started anew and is told the conversation as text{left_out}."
        " Attachments and its own notes are not part of that."
    )


async def _forked_from(session: LiveSession) -> str:
    """The agent's own id of the session that this one was forked from, if that still ends where it was forked; else empty."""
    parent = session.header.parent
    if parent is None or session.fold.link is not None:
        return ""
    try:
        _, fold = await session.store.journals.peek(replace(session.key, session=parent.sessionId))
    except StoreError:  # it is gone
        return ""
    return fold.inner if fold.leaf == parent.entryId else ""


def inner_id(result: bytes) -> bytes:
    """The agent's id of its new session, raw. Raises AgentError if the answer has none."""
    try:
        found = bytes(msgspec.json.decode(result, type=_New).sessionId)
    except msgspec.DecodeError:
        found = b""
    if not found.startswith(b'"') or found == b'""':
        raise AgentError(f"the agent answered session/new without a sessionId: {result[:200]!r}")
    return found


async def _params(session: LiveSession, head: bytes, carried: Collection[str] | None) -> bytes:
    """Params of session/new, load, resume, fork for the agent: the stored cwd, and what the newest client asked for.

    `carried`: the names of what is told of that which the agent keeps in acpd; None: all of it.
    """
    setup = msgspec.json.decode(session.setup, type=_Setup) if session.setup else _Setup()
    servers = b"[]" if setup.mcpServers == Raw(b"null") else bytes(setup.mcpServers)
    members = [b'%b"cwd":%b,"mcpServers":%b' % (head, encode(session.header.cwd), servers)]
    if setup.additionalDirectories not in (UNSET, Raw(b"null")):
        members.append(b'"additionalDirectories":%b' % bytes(setup.additionalDirectories))
    if setup.systemPrompt is not UNSET:
        members.append(b'"systemPrompt":%b' % bytes(setup.systemPrompt))
    known = set(session.kept.unreadable)
    kept = await session.kept.all(carried)
    for name, error in session.kept.unreadable.items():
        if name not in known:
            session.audience.notice("warning", f"What the agent keeps as {name} cannot be read; it goes on without", str(error))
    if kept:
        values = b",".join(b"%b:%b" % (encode(name), value) for name, value in kept.items())
        members.append(b'"_meta":{"acpd.dev/state":{%b}}' % values)
    return b"{%b}" % b",".join(members)


def _config_of(result: bytes) -> _Config:
    try:
        return msgspec.json.decode(result, type=_Config)
    except msgspec.DecodeError:
        return _Config()


def _say(session: LiveSession, link: AgentLink, update: bytes) -> None:
    params = b'{"sessionId":%b,"update":%b}' % (link.inner, update)
    session.on_update(params, frames.decode_params(params), (link.id, link.peer.position))
    session.on_batch_end()
