"""An agent's connection: the handshake, and who handles what comes behind it (ACP v1 initialization)."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import sys
import traceback
from typing import TYPE_CHECKING

from acpd import errors
from acpd.api import contained, shapes
from acpd.api.agent import Agent
from acpd.api.channel import encode
from acpd.errors import AcpdError, ConnectionBroken, RequestError
from acpd.peer import Peer
from acpd.rpc.protocol import Params
from acpd.tasks import Tasks, within
from acpd.wire import messages

if TYPE_CHECKING:
    from acpd.api.sessions import Sessions

LAST_WAIT = 0.3
"""Seconds, at the very end, for what does not end when it is cancelled."""


class Connection:
    """One connection, as acpd.peer.Owner. Made on the loop."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.peer = Peer(self, strict=True)
        self.tasks = Tasks(self.report)
        self.ended = asyncio.Event()
        self.client = shapes.Client()
        self._ready = False
        self._context = contained.context()

    # -- Owner

    def on_request(self, identifier: bytes, method: str, params: Params) -> None:
        try:
            self._context.run(self._handle, identifier, method, params)
        except RequestError as error:
            self.peer.refuse(identifier, error)
        except BaseException as error:  # noqa: BLE001  the agent's own code: a bug of it, or an exit, costs this request
            self.peer.refuse(identifier, self.failed(method, error))

    def _handle(self, identifier: bytes, method: str, params: Params) -> None:
        if method == "initialize":
            self._initialize(identifier, params)
        elif not self._ready:
            raise RequestError(errors.INVALID_REQUEST, f"initialize must come before {method[:100]}")
        elif method == "authenticate":
            self._authenticate(identifier, params)
        else:
            handler = self._sessions.methods.get(method)
            if handler is None:
                raise RequestError(errors.METHOD_NOT_FOUND, f"unknown method {method[:100]}")
            handler(identifier, params)

    @functools.cached_property
    def _sessions(self) -> Sessions:
        from acpd.api.sessions import Sessions  # 5 ms that the answer to initialize need not wait for

        return Sessions(self)

    def on_notification(self, method: str, params: Params) -> None:
        if self._ready:
            self._context.run(self._sessions.on_notification, method, params)

    def on_bad_line(self, why: str) -> None:
        """The peer has told the client."""

    def on_batch_end(self) -> None:
        """The peer writes at the end of each tick."""

    def on_writable(self) -> None:
        """Turns wait by `drained`."""

    def on_closed(self) -> None:
        self.ended.set()

    # -- failures of the agent's own code

    def report(self, what: str, error: BaseException) -> None:
        if self.peer.closed and isinstance(error, ConnectionBroken):
            return
        sys.stderr.write(f"{self.agent.name}: {what} has failed: {error!r}\n")
        if not isinstance(error, AcpdError):
            sys.stderr.write("".join(traceback.format_exception(error)))
        sys.stderr.flush()

    def failed(self, what: str, error: BaseException) -> RequestError:
        """The failure is told on stderr; this is the answer."""
        self.report(what, error)
        return RequestError(errors.INTERNAL_ERROR, f"{self.agent.title or self.agent.name} has failed; see its stderr")

    # -- methods

    def _initialize(self, identifier: bytes, params: Params) -> None:
        self.client = shapes.client(messages.parse_initialize(params).clientCapabilities)
        self._ready = True
        agent = self.agent
        capabilities: dict[str, object] = {
            "loadSession": True,
            "promptCapabilities": {"image": agent.images, "audio": agent.audio, "embeddedContext": agent.embedded},
            "sessionCapabilities": {"resume": {}, "close": {}, "additionalDirectories": {}},
        }
        if agent.mcp:
            capabilities["mcpCapabilities"] = {"http": True, "sse": True}
        info = {"name": agent.name, "version": agent.version}
        result = {
            "protocolVersion": 1,
            "agentCapabilities": capabilities,
            "agentInfo": {**info, "title": agent.title} if agent.title else info,
            "authMethods": [each for each in agent.auth_methods if self.client.login or each.get("type") != "terminal"],
        }
        self.peer.answer(identifier, encode(result))
        agent.connected()

    def _authenticate(self, identifier: bytes, params: Params) -> None:
        """There is nothing to do here: a terminal login is a program of its own, and else the environment has the keys."""
        method = messages.parse_authenticate(params).methodId
        if all(each.get("id") != method for each in self.agent.auth_methods):
            raise RequestError(errors.INVALID_PARAMS, f"unknown auth method {method[:100]}")
        self.peer.answer(identifier, b"{}")

    # -- the end

    async def finish(self) -> None:
        """The client has ended: so does everything, within a second but for what `Agent.closed` takes."""
        if self._ready:
            await contained.contained(self._sessions.finish())
            await self._disconnected()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.tasks.cancel(), LAST_WAIT)
        self.peer.close()

    async def _disconnected(self) -> None:
        try:
            await within(LAST_WAIT, contained.contained(self.agent.disconnected()))
        except Exception as error:  # noqa: BLE001  the agent's own code
            self.report("disconnected", error)
