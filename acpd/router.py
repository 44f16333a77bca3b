"""One client's connection: method name -> handler. The only file that knows both sides.

Prompts, cancels and notifications are handled in place, in the order of the stream. Requests that need the store or an
agent run in a task each; a session's own order is kept by its queue.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable
from functools import partial

from msgspec import UNSET

from acpd import adoption, attaching, audience, cursors, errors, extensions, listing, searching, trees
from acpd.agents.capabilities import of_client
from acpd.agents.equipping import equipped
from acpd.agents.link import AgentLink
from acpd.agents.pool import AgentPool, Host
from acpd.agents.restore import inner_id
from acpd.agents.warm import WarmAgent
from acpd.announce import for_agent, initialize_answer, starts_agents
from acpd.attachment import ClientCapabilities
from acpd.config import without_secrets
from acpd.errors import AcpdError, AgentError, ConnectionBroken, EntryNotFound, RequestError, SessionNotFound
from acpd.peer import Peer
from acpd.registry import Registry
from acpd.rejoin import Earlier, reattach
from acpd.rpc.protocol import Params, Then
from acpd.session import LiveSession
from acpd.tasks import Tasks
from acpd.turn import Prompt
from acpd.wire import messages, splice, updates
from acpd.wire.envelope import encode

Handler = Callable[["Connection", bytes, Params], Awaitable[bytes | None]]
"""The raw result; None: the handler answers, or has answered, itself. Raises RequestError, AcpdError."""


NOTHING = Earlier()
REQUESTS = 256
"""Requests of one client that may be under way at once, running and waiting prompts not counted."""


class Connection:
    """Implements acpd.attachment.Client and is the owner of its peer."""

    def __init__(
        self,
        registry: Registry,
        pool: AgentPool,
        host: Host,
        tasks: Tasks,
        on_closed: Callable[[], None],
        *,
        peer: Callable[[Connection], Peer] | None = None,
        earlier: Earlier = NOTHING,
    ) -> None:
        self.peer = peer(self) if peer is not None else Peer(self, strict=True, polite=True)
        self.token = earlier.token
        self.runs = False
        self.reading = asyncio.Lock()
        self.kinds: frozenset[str] = frozenset()
        self.capabilities = ClientCapabilities()
        self.registry = registry
        self.pool = pool
        self.host = host
        self.log: Callable[..., None] = lambda _event, **_values: None
        self.tasks = tasks
        self._closed = on_closed
        self._earlier = earlier
        self._initialized = False
        self.warm = WarmAgent(pool, host, tasks)
        self._running: dict[bytes, asyncio.Task[None]] = {}
        self.number = 0
        """By which the log and a status name it."""
        self.own: dict[str, Handler] = {}
        """Requests that are whoever's who made this connection; they need no initialize before them."""
        self.eager = True
        """Whether agents are started for it before something needs one."""
        self._unattached: list[Prompt] = []
        """Prompts whose session is still being opened, so that a cancel finds them."""

    # -- acpd.attachment.Client

    @property
    def paused(self) -> bool:
        return self.peer.paused

    def send(self, data: bytes, /) -> None:
        self.peer.send(data)

    def call(self, method: str, params: bytes, then: Then, identifier: bytes | None = None, place: bytes = b"", /) -> bytes:
        return self.peer.call(method, params, then, identifier, place)

    def expect(self, identifier: bytes, then: Then, /) -> None:
        self.peer.expect(identifier, then)

    def forget(self, identifier: bytes, /) -> None:
        self.peer.forget(identifier)

    def notify(self, method: str, params: bytes, /) -> None:
        self.peer.notify(method, params)

    def settle(self, identifier: bytes, result: bytes | None, error: RequestError | None, /) -> bytes:
        return self.peer.settle(identifier, result, error)

    async def drained(self) -> None:
        await self.peer.drained()

    # -- acpd.peer.Owner

    def on_bad_line(self, why: str, /) -> None:
        self.log("dropped a line of the client", text=why)

    def on_batch_end(self) -> None:
        """Nothing is buffered here."""

    def on_writable(self) -> None:
        """Who fell behind waits for `drained` itself."""

    def on_closed(self) -> None:
        running = list(self._running.values())
        for task in running:
            task.cancel()
        for session in self.registry.live.values():
            session.detach(self)
        self.warm.leave()
        self.tasks.spawn(self._close(running), name="leave")

    async def _close(self, running: list[asyncio.Task[None]]) -> None:
        """Who closed only its own half still gets the answers to what was cancelled."""
        if running:
            await asyncio.wait(running)
        self.peer.close()
        self._closed()

    def on_notification(self, method: str, params: Params, /) -> None:
        try:
            if method == "session/cancel" and self._initialized:
                self._cancel(messages.parse_cancel(params).sessionId)
            elif method == "$/cancel_request":
                self._cancel_request(bytes(messages.parse_cancel_request(params).requestId))
            elif method.startswith("_") and not method.startswith("_acpd/"):
                extensions.notify(self, method, params)
        except RequestError as error:
            self.log("bad notification", text=f"{method[:100]}: {error}")

    def _cancel(self, session_id: str) -> None:
        for prompt in self._unattached:
            if prompt.session == session_id:
                prompt.cancelled = True
        session = self.registry.live.get(session_id)
        if attaching.observes(session, self):
            self.log("cancel of an observer ignored", session=session_id)
        elif session is not None:
            session.cancel()

    def _cancel_request(self, request: bytes) -> None:
        """ACP v1 cancellation: exactly one answer, a result or -32800; unknown ids are nothing."""
        if any(session.cancel_prompt(self, request) for session in list(self.registry.live.values())):
            return
        if task := self._running.get(request):
            task.cancel()

    def on_request(self, identifier: bytes, method: str, params: Params, /) -> None:
        if self._initialized and (handler := self._earlier.again(self.peer.number(identifier), method)) is not None:
            self._spawn(identifier, handler, params, method)
            self._hold_for(identifier)
            return
        if method == "session/prompt" and self._initialized:
            try:
                self._prompt(identifier, params)
            except RequestError as error:
                self.peer.refuse(identifier, error)
            return
        try:
            handler = self._handler(method)
            self._check_room()
            if method in attaching.STEERING:
                attaching.check_steering(extensions.named(self.registry, params), self, method)
        except RequestError as error:
            self.peer.refuse(identifier, error)
            return
        self._spawn(identifier, handler, params, method)
        if method == "session/close":  # before the next line is looked at: its cancel must not hit a prompt behind it
            with contextlib.suppress(RequestError):
                self.registry.begin_close(messages.parse_close(params).sessionId)
        if method == "initialize":
            self._hold_for(identifier)

    def _hold_for(self, request: bytes) -> None:
        """What comes behind it is handled behind it."""
        self.peer.hold()
        self._running[request].add_done_callback(lambda _: self.peer.release())

    def _spawn(self, identifier: bytes, handler: Handler, params: Params, name: str) -> None:
        task = self.tasks.spawn(self._serve(identifier, handler, params), name=f"serve:{name}")
        self._running[identifier] = task
        task.add_done_callback(partial(self._served, identifier))

    def _served(self, identifier: bytes, task: asyncio.Task[None]) -> None:
        if self._running.get(identifier) is task:  # once answered, an id may be used again
            del self._running[identifier]
        if task.cancelled():  # before its first step, so that nothing of it ran
            self.peer.refuse(identifier, RequestError(errors.REQUEST_CANCELLED, "cancelled"))

    def _check_room(self) -> None:
        if len(self._running) >= REQUESTS:
            raise RequestError(errors.INTERNAL_ERROR, f"{REQUESTS} requests of this client are under way: wait for one of them")

    def _handler(self, method: str) -> Handler:
        if method == "initialize":
            return Connection.initialize
        if (own := self.own.get(method)) is not None:
            return own
        if not self._initialized:
            raise RequestError(errors.INVALID_REQUEST, f"the connection must be initialized before {method}")
        handler = _HANDLERS.get(method)
        if handler is not None:
            return handler
        if method.startswith("_") and not method.startswith("_acpd/"):
            return partial(extensions.ask, method)
        raise RequestError(errors.METHOD_NOT_FOUND, f"unknown method {method[:100]}")

    async def _serve(self, identifier: bytes, handler: Handler, params: Params) -> None:
        try:
            result = await handler(self, identifier, params)
        except asyncio.CancelledError:
            self.peer.refuse(identifier, RequestError(errors.REQUEST_CANCELLED, "cancelled"))
        except RequestError as error:
            self.peer.refuse(identifier, error)
        except SessionNotFound as error:
            self.peer.refuse(identifier, RequestError(errors.RESOURCE_NOT_FOUND, str(error), {"sessionId": error.session_id}))
        except EntryNotFound as error:
            self.peer.refuse(identifier, RequestError(errors.INVALID_PARAMS, str(error), {"entry": error.entry}))
        except ConnectionBroken:
            return
        except AcpdError as error:
            self.peer.refuse(identifier, RequestError(errors.INTERNAL_ERROR, str(error)))
        except Exception:
            self.peer.refuse(identifier, RequestError(errors.INTERNAL_ERROR, "internal error, see acpd's log"))
            raise
        else:
            if result is not None:
                self.peer.answer(identifier, result)

    # -- handshake and agent

    async def initialize(self, _identifier: bytes, params: Params) -> bytes:
        """Starts the agent, so that what is announced is true. One that does not start is told at session/new."""
        said = messages.parse_initialize(params)
        self.eager = starts_agents(said)
        capabilities = None if said.clientCapabilities is UNSET else bytes(said.clientCapabilities)
        self.capabilities = of_client(capabilities)
        self.kinds = updates.allowed_kinds(capabilities)
        self.host.initialize = for_agent(said)
        self._initialized = True
        self.tasks.spawn(asyncio.to_thread(audience.import_replay), name="import:replay")  # while the agent starts
        try:
            link = await self.warm.get() if self.eager else None
        except (AcpdError, OSError) as error:
            link = None
            self.log("agent did not start", text=str(error))
        for session_id, (cursor, line) in self._earlier.sessions.items():
            if line is None and not cursor.replay:
                await reattach(self, session_id, cursor, None)
        return initialize_answer(link.said if link else None, link.name if link else "", self.capabilities)

    async def authenticate(self, _identifier: bytes, params: Params) -> bytes:
        return await self._ask_warm("authenticate", messages.passed_on(messages.parse_authenticate(params), params))

    async def logout(self, _identifier: bytes, params: Params) -> bytes:
        return await self._ask_warm("logout", messages.passed_on(messages.parse_logout(params), params))

    async def _ask_warm(self, method: str, params: bytes) -> bytes:
        try:
            link = await self.warm.get()
        except AgentError as error:
            raise RequestError(errors.INTERNAL_ERROR, str(error)) from None
        return await link.ask(method, params)

    # -- sessions

    async def new(self, identifier: bytes, params: Params) -> None:
        """The agent's session, then ours, then the answer; updates of the session follow it."""
        said = messages.parse_new(params)
        if not await asyncio.to_thread(os.path.isdir, said.cwd):
            raise RequestError(errors.INVALID_PARAMS, f"the working directory does not exist: {said.cwd}", {"cwd": said.cwd})
        raw = messages.passed_on(said, params)
        link = await self.warm.take()
        try:
            name, settings = self.registry.new_id(), self.pool.settings
            told = equipped(link, settings.tools, raw, name, self.registry.user)
            result = await link.ask_held("session/new", told, settings.start_timeout)
            session = await self._record_new(said, name, link, result)
        except RequestError:
            self.warm.give_back(link)  # an agent that wants a login first is still good
            raise
        except BaseException:
            self.tasks.spawn(link.stop(), name="stop:unused")
            raise
        session.setup = raw
        session.host = self.host
        try:
            await session.scribe.settled()
        except BaseException:  # nobody knows its id
            self.tasks.spawn(self.registry.delete(session.id), name=f"delete:{session.id}")
            raise
        attachment = session.attach(self, raw)
        answer = splice.replace(result, "sessionId", session.id_json)
        self.peer.answer(identifier, answer, attachment.place(), sets_up=True)
        session.audience.start(attachment)
        link.bind(session, link.inner)
        link.release()

    async def _record_new(self, said: messages.NewSession, name: str, link: AgentLink, result: bytes) -> LiveSession:
        link.inner = inner_id(result)
        header = await self.registry.header(name, link.name, said.cwd, without_secrets(link.command), said.directories)
        session = await self.registry.create(header)
        session.link = link
        link.session = session
        session.remember_link(link)
        session.recorder.config(result)
        session.scribe.commit()
        return session

    async def load(self, identifier: bytes, params: Params) -> None:
        said = messages.parse_load(params)
        how = attaching.wanted(said, params, replay=True, eager=self.eager)
        session = await self._open(said, how)
        attachment = await attaching.attach(
            self, session, how, self._earlier.replayed(session.id, self.peer.number(identifier))
        )
        with attaching.reading_on(session, attachment):
            await session.scribe.settled()
        self.peer.answer(identifier, session.setup_answer(), attachment.place(), sets_up=True)
        session.audience.start(attachment)
        if how.starts:
            self._start_behind(session)

    async def resume(self, identifier: bytes, params: Params) -> None:
        """No replay by itself; the agent is there when the answer leaves, or has had its time. An observer needs none."""
        said = messages.parse_resume(params)
        how = attaching.wanted(said, params, replay=False, eager=self.eager)
        session = await self._open(said, how)
        attachment = await attaching.attach(self, session, how)
        with attaching.reading_on(session, attachment):
            try:
                async with asyncio.timeout(self.pool.settings.start_timeout):
                    if how.starts:
                        await session.ensure_agent()
            except (AcpdError, OSError, TimeoutError) as error:
                self.log("agent did not start", text=str(error))
            session.scribe.commit()
            await session.scribe.settled()
        self.peer.answer(identifier, session.setup_answer(), attachment.place(), sets_up=True)
        session.audience.start(attachment)

    async def _open(self, said: messages.OldSession, how: attaching.Wanted) -> LiveSession:
        """The caller attaches before it waits for anything."""
        session = None
        while session is None or self.registry.at_hand(session.id) is not session:  # somebody else closed it meanwhile
            try:
                session = await self.registry.open(said.sessionId)
            except SessionNotFound:
                session = await adoption.adopt(self, said, how.params)
            if not await listing.same_folder(said.cwd, session.header):
                raise RequestError(
                    errors.INVALID_PARAMS,
                    f"session {session.id} has the working directory {session.header.cwd}",
                    {"expected": session.header.cwd},
                )
        if how.starts or (session.host is None and not how.observer):  # agents get the environment of this client
            session.host = self.host
        return session

    def _start_behind(self, session: LiveSession) -> None:
        if session.link is None and not session.closed:
            self.tasks.spawn(self._try_start(session), name=f"behind:{session.id}")

    async def _try_start(self, session: LiveSession) -> None:
        """A failing start is a notice now and the answer of the next prompt."""
        try:
            await session.ensure_agent()
        except (AcpdError, OSError) as error:
            self.log("agent did not start", text=str(error))
            session.audience.notice("error", "The agent did not start", str(error))

    async def fork(self, identifier: bytes, params: Params) -> None:
        said = messages.parse_fork(params)
        entry = trees.fork_entry(said.meta)
        session = await self.registry.fork(said.sessionId, said.cwd, said.directories, entry)
        session.host = self.host
        attachment = session.attach(self, messages.passed_on(said, params))
        answer = session.setup_answer()
        self.peer.answer(identifier, splice.replace(answer, "sessionId", session.id_json), attachment.place(), sets_up=True)
        session.audience.start(attachment)

    async def list(self, _identifier: bytes, params: Params) -> bytes:
        return await listing.page(self, messages.parse_list(params))

    async def close(self, identifier: bytes, params: Params) -> None:
        """ACP v1: as session/cancel, then free. Closing what is not open is fine."""
        session_id = messages.parse_close(params).sessionId
        await self.registry.close(session_id)
        self._answer_left(identifier, session_id)

    async def delete(self, identifier: bytes, params: Params) -> None:
        session_id = messages.parse_delete(params).sessionId
        await self.registry.delete(session_id, partial(listing.delete_inner, self))
        self._answer_left(identifier, session_id)

    def _answer_left(self, identifier: bytes, session_id: str) -> None:
        """The client is no longer in this session."""
        self.peer.answer(identifier, b"{}", b"%b:%b" % (cursors.name(session_id), cursors.GONE))

    # -- turns and settings

    def accepted(self, identifier: bytes, params: Params) -> Prompt:
        """Raises RequestError for what is no prompt."""
        said = messages.parse_prompt(params)
        return Prompt(
            params=messages.passed_on(said, params),
            blocks=bytes(said.prompt),
            meta=bytes(said.meta) if said.meta is not UNSET else None,
            client=self,
            request=identifier,
            session=said.sessionId,
            by=f"{self.token}:{self.peer.number(identifier)}" if self.token else "",
        )

    def _prompt(self, identifier: bytes, params: Params) -> None:
        prompt = self.accepted(identifier, params)
        session = self.registry.at_hand(prompt.session)
        attachment = session.audience.attachment(self) if session is not None else None
        if session is not None and attachment is not None:
            attaching.check_role(session, attachment, "session/prompt")
            session.prompt(prompt)
        else:
            self._check_room()
            self._unattached.append(prompt)
            self._spawn(identifier, partial(_prompt_unattached, prompt), params, "session/prompt")
            self._running[identifier].add_done_callback(lambda _: self._unattached.remove(prompt))

    async def attached(self, session_id: str) -> LiveSession:
        """For a prompt: a session that this client did not load is resumed first."""
        session = await self.registry.open(session_id)
        if session.audience.attachment(self) is None:
            session.host = self.host
            session.audience.start(session.attach(self))
        attaching.check_steering(session, self, "session/prompt")  # it may have come to observe meanwhile
        return session

    async def set_mode(self, _identifier: bytes, params: Params) -> bytes:
        said = messages.parse_set_mode(params)
        mode = b'{"currentModeId":%b}' % encode(said.modeId)
        return await self._set(said.sessionId, "session/set_mode", messages.passed_on(said, params), mode)

    async def set_config_option(self, _identifier: bytes, params: Params) -> bytes:
        said = messages.parse_set_config_option(params)
        return await self._set(said.sessionId, "session/set_config_option", messages.passed_on(said, params))

    async def _set(self, session_id: str, method: str, params: bytes, now: bytes | None = None) -> bytes:
        """Ask the agent; then `now` holds, else what it has answered."""
        session = await self.registry.open(session_id)
        if session.host is None:
            session.host = self.host
        link = await session.ensure_agent()
        if not isinstance(link, AgentLink):
            raise AgentError(f"session {session.id} has no agent")
        result = await link.ask(method, link.translated(params))
        session.recorder.config(result if now is None else now)
        session.scribe.commit()
        await session.scribe.settled()
        return result


async def _prompt_unattached(prompt: Prompt, connection: Connection, _identifier: bytes, _params: Params) -> None:
    session = await connection.attached(prompt.session)
    session.prompt(prompt)


_HANDLERS: dict[str, Handler] = {
    "authenticate": Connection.authenticate,
    "logout": Connection.logout,
    "session/new": Connection.new,
    "session/load": Connection.load,
    "session/resume": Connection.resume,
    "session/fork": Connection.fork,
    "session/list": Connection.list,
    "session/close": Connection.close,
    "session/delete": Connection.delete,
    "session/set_mode": Connection.set_mode,
    "session/set_config_option": Connection.set_config_option,
    **trees.HANDLERS,
    **searching.HANDLERS,
}
