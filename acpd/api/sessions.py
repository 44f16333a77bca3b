"""All sessions of one connection: the requests about them, and the rules of ACP that hold for every agent.

Requests are answered at once, but for: a prompt, at the end of its turn; a load, behind its replay; a close, when all is
closed. What happens to one session happens in the order of its requests; sessions do not wait for each other.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from acpd import errors
from acpd.api import options, state
from acpd.api.agent import CLOSE_TIMEOUT
from acpd.api.channel import Channel, Keeper, encode
from acpd.api.conversation import LEAVE, Conversation, Prompt
from acpd.api.hands import Hands
from acpd.api.session import CHOICES, Session
from acpd.errors import ConnectionBroken, Refused, RequestError
from acpd.rpc.protocol import Params
from acpd.tasks import Tasks
from acpd.wire import messages

if TYPE_CHECKING:
    from acpd.api.connection import Connection


class Sessions:
    """`methods`: handlers by name. They raise RequestError; what else they raise is the agent's failure."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._agent = connection.agent
        self._peer = connection.peer
        self._tasks = connection.tasks
        self._hands = Hands()
        # an acpd that does not announce it yet names itself in the environment of its agents
        self._keeper = Keeper(asked=isinstance(connection.client.meta.get("acpd.dev/state"), dict) or "ACPD_LINK" in os.environ)
        self._sessions: dict[str, Conversation] = {}
        self._prompts: dict[bytes, Prompt] = {}
        self.methods: dict[str, Callable[[bytes, Params], None]] = {
            "session/new": self._new,
            "session/load": self._load,
            "session/resume": self._resume,
            "session/close": self._close,
            "session/set_mode": self._set_mode,
            "session/set_config_option": self._set_option,
            "session/prompt": self._prompt,
        }

    def __getitem__(self, identifier: str) -> Conversation:
        return self._sessions[identifier]

    def on_notification(self, method: str, params: Params) -> None:
        try:
            if method == "session/cancel":
                conversation = self._sessions.get(messages.parse_cancel(params).sessionId)
                prompt = conversation.prompt if conversation is not None else None
            elif method == "$/cancel_request":
                prompt = self._prompts.get(bytes(messages.parse_cancel_request(params).requestId))
            else:
                return
        except RequestError:
            return  # a notification is never answered
        if prompt is not None:
            prompt.cancel()

    async def finish(self) -> None:
        """The connection has ended: so does all of this."""
        for conversation in self._sessions.values():
            conversation.stop()
            if not conversation.asleep:
                conversation.life.add(conversation.close(conversation.prompt, LEAVE), name="close")
        waits = [self._tasks.spawn(each.life.done(), name="finish") for each in self._sessions.values()]
        if waits:
            await asyncio.wait(waits, timeout=CLOSE_TIMEOUT + LEAVE)
        await self._hands.close()

    # -- sessions

    def _known(self, identifier: str) -> Conversation:
        conversation = self._sessions.get(identifier)
        if conversation is None or conversation.asleep:
            raise _unknown(identifier)
        return conversation

    def _new(self, identifier: bytes, params: Params) -> None:
        request = messages.parse_new(params)
        conversation = self._made(os.urandom(16).hex(), request, new=True)
        if values := state.brought(request.meta):  # of the session for which this one is begun
            conversation.session.restore(values)
        self._answer_setup(identifier, conversation.session, {"sessionId": conversation.session.id})
        conversation.life.add(conversation.open(), name="open")

    def _load(self, identifier: bytes, params: Params) -> None:
        conversation, opens = self._old(messages.parse_load(params))
        conversation.replays.add(self._loaded(identifier, conversation.session), name="replay")
        if opens:
            conversation.life.add(conversation.open(), name="open")

    async def _loaded(self, identifier: bytes, session: Session) -> None:
        try:
            await session.channel.replay()
            self._answer_setup(identifier, session, {})
        except ConnectionBroken:
            return
        except Exception as error:  # noqa: BLE001  the agent's own code
            self._peer.refuse(identifier, self._connection.failed("session/load", error))

    def _resume(self, identifier: bytes, params: Params) -> None:
        conversation, opens = self._old(messages.parse_resume(params))
        self._answer_setup(identifier, conversation.session, {})
        if opens:
            conversation.life.add(conversation.open(), name="open")

    def _answer_setup(self, identifier: bytes, session: Session, head: dict[str, object]) -> None:
        """Modes and options, and the commands behind the answer that names the session."""
        self._peer.answer(identifier, encode({**head, **session.setup()}))
        if self._agent.commands:
            session.offer()

    def _made(self, name: str, request: messages.NewSession, *, new: bool) -> Conversation:
        channel = Channel(name, self._peer, self._tasks, self._keeper, new=new)
        session = Session(self._agent, channel, self._connection.client, self._hands, Tasks(self._connection.report))
        session.new = new
        session.set_up(request)
        conversation = self._sessions[name] = Conversation(session, self._agent, self._tasks)
        return conversation

    def _old(self, request: messages.OldSession) -> tuple[Conversation, bool]:
        """The session, by what the client brings or by what we have, and whether it is to be opened (again).

        Raises RequestError if neither knows it. What a client brings that keeps nothing of ours is not ours.
        """
        values = state.brought(request.meta)
        conversation = self._sessions.get(request.sessionId)
        if conversation is None:
            if not values:
                raise _unknown(request.sessionId)
            conversation = self._made(request.sessionId, request, new=False)
            conversation.session.restore(values)
            if not self._agent.remembers(conversation.session):
                del self._sessions[request.sessionId]
                raise _unknown(request.sessionId)
            return conversation, True
        session = conversation.session
        opens = session.set_up(request) or conversation.asleep
        conversation.asleep = session.new = False
        if values and session.channel.keeper.keeps is not False:
            session.restore(values)
        return conversation, opens

    def _close(self, identifier: bytes, params: Params) -> None:
        name = messages.parse_close(params).sessionId
        conversation = self._sessions.get(name)
        if conversation is None or conversation.asleep:
            self._peer.answer(identifier, b"{}")
            return
        conversation.asleep = True
        conversation.stop()
        closing = conversation.life.add(conversation.close(conversation.prompt), name="close")
        closing.add_done_callback(lambda _: self._closed(identifier, conversation))

    def _closed(self, identifier: bytes, conversation: Conversation) -> None:
        if conversation.asleep and conversation.session.channel.keeper.keeps:
            del self._sessions[conversation.session.id]  # all of it comes back with the next load
        self._peer.answer(identifier, b"{}")

    # -- options

    def _set_mode(self, identifier: bytes, params: Params) -> None:
        request = messages.parse_set_mode(params)
        session = self._known(request.sessionId).session
        mode = options.mode_of(self._agent.options(session))
        if mode is None:
            raise RequestError(errors.INVALID_PARAMS, "this session has no modes")
        self._choose(session, mode.id, request.modeId)
        session.knows(mode=request.modeId)
        self._peer.answer(identifier, b"{}")
        session.changed()

    def _set_option(self, identifier: bytes, params: Params) -> None:
        request = messages.parse_set_config_option(params)
        session = self._known(request.sessionId).session
        if isinstance(request.value, bool):
            raise RequestError(errors.INVALID_PARAMS, f"the option {request.configId[:100]} is not of the type boolean")
        self._choose(session, request.configId, request.value)
        listed = options.rendered(self._agent.options(session))
        session.knows(listed=listed)
        self._peer.answer(identifier, encode({"configOptions": listed}))
        session.changed()

    def _choose(self, session: Session, option: str, value: str) -> None:
        """Raises Refused. The choice is on its way to who keeps it before it is answered."""
        before = dict(session.choices)
        self._agent.choose(session, option, value)
        if session.choices != before:
            session.state.put(CHOICES, session.choices)

    # -- turns

    def _prompt(self, identifier: bytes, params: Params) -> None:
        request = messages.parse_prompt(params)
        conversation = self._known(request.sessionId)
        if conversation.prompt is not None:
            raise RequestError(errors.INVALID_REQUEST, "a turn is running in this session")
        for block in msgspec.json.decode(request.prompt, type=list[msgspec.Raw]):
            conversation.session.channel.keep(b'{"sessionUpdate":"user_message_chunk","content":%b}' % bytes(block))
        prompt = self._prompts[identifier] = conversation.begin(msgspec.json.decode(request.prompt))
        self._tasks.spawn(self._run(identifier, prompt), name=f"prompt:{conversation.session.id}")

    async def _run(self, identifier: bytes, prompt: Prompt) -> None:
        """The one answer of a prompt, however its turn has ended."""
        try:
            result, error = await self._outcome(prompt)
        finally:
            prompt.conversation.end()
            del self._prompts[identifier]
            prompt.answered.set()
        self._peer.send(self._peer.settle(identifier, result, error))
        if not prompt.conversation.asleep:
            self._agent.answered(prompt.conversation.session)

    async def _outcome(self, prompt: Prompt) -> tuple[bytes | None, RequestError | None]:
        try:
            return await prompt.run(self._agent, self._tasks), None
        except Refused as error:
            return None, error
        except Exception as error:  # noqa: BLE001  the agent's own code: a bug of it costs this request
            return None, self._connection.failed("prompt", error)


def _unknown(identifier: str) -> RequestError:
    return RequestError(errors.RESOURCE_NOT_FOUND, "unknown session", {"sessionId": identifier})
