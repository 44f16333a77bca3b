"""What acpd does for an agent where no client can: its files and terminals, inside the session's roots."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from acpd import errors
from acpd.agents import files, terminals
from acpd.errors import ConnectionBroken, RequestError

if TYPE_CHECKING:
    from acpd.agents.link import AgentLink
    from acpd.session import LiveSession

WAITING = 64 * 1024 * 1024
"""Bytes of requests about files that may wait behind others; what would be more is refused, so that a flood costs no memory."""
_FILES = {"fs/read_text_file": files.read, "fs/write_text_file": files.write}


class _Named(Struct, gc=False):
    terminalId: str


class _Setup(Struct, gc=False):
    """What of session/new, load or resume says where a session may work."""

    additionalDirectories: tuple[str, ...] | None = None


class Local:
    """For one link. Files are read and written one after another, in the agent's order."""

    def __init__(self, link: AgentLink, grace: float) -> None:
        self.terminals = terminals.Terminals(link.id, grace)
        self._link = link
        self._order = asyncio.Lock()
        self._waiting = 0

    def serve(self, session: LiveSession, identifier: bytes, method: str, params: bytes) -> None:
        """Answer a request whose params are sound, now or later. Raises RequestError."""
        link = self._link
        if method in _FILES:
            self._answer(identifier, method, self._file(method, params, roots(session)))
        elif method == "terminal/create":
            self._answer(identifier, method, self.terminals.create(params, roots(session), environment(session)))
        else:
            self._terminal(link, identifier, method, msgspec.json.decode(params, type=_Named).terminalId)

    def _terminal(self, link: AgentLink, identifier: bytes, method: str, name: str) -> None:
        if method == "terminal/output":
            link.reply(identifier)(self.terminals.output(name), None)
        elif method == "terminal/wait_for_exit":
            self.terminals.wait(name, identifier, link.reply(identifier))
        elif method == "terminal/kill":
            self._answer(identifier, method, self.terminals.kill(name))
        else:
            self._answer(identifier, method, self.terminals.release(name))

    def _answer(self, identifier: bytes, method: str, work: Coroutine[Any, Any, bytes]) -> None:
        reply = self._link.reply(identifier)

        async def serve() -> None:
            try:
                result = await work
            except RequestError as error:
                reply(None, error)
            except ConnectionBroken:
                return
            except Exception:
                reply(None, RequestError(errors.INTERNAL_ERROR, "internal error, see acpd's log"))
                raise
            else:
                reply(result, None)

        self._link.tasks.spawn(serve(), name=f"{method}:{self._link.id}")

    async def _file(self, method: str, params: bytes, where: tuple[str, ...]) -> bytes:
        if self._waiting and self._waiting + len(params) > WAITING:
            raise RequestError(errors.INTERNAL_ERROR, f"{method}: {self._waiting} bytes of files wait already; try again")
        self._waiting += len(params)
        try:
            async with self._order:
                await self._link.peer.drained()  # an agent that does not read what it asked for costs no more memory
                return await asyncio.to_thread(_FILES[method], params, where)
        finally:
            self._waiting -= len(params)


def roots(session: LiveSession) -> tuple[str, ...]:
    """The folders in which the session works: its own, then those that its newest client added."""
    more: tuple[str, ...] | None = session.header.additionalDirectories
    if session.setup is not None:
        more = msgspec.json.decode(session.setup, type=_Setup).additionalDirectories
    return (session.header.cwd, *(more or ()))


def environment(session: LiveSession) -> Mapping[str, str]:
    """Of the client for which the session's agent is started."""
    from acpd.agents.pool import Host  # it imports the link, and that this

    return session.host.env if isinstance(session.host, Host) else {}
