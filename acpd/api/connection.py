"""ACP v1 for an agent: requests in, answers out, and the rules that hold for every agent.

Requests are answered at once, but for: a prompt, at the end of its turn; a load, behind its replay; a close, when all is
closed. What happens to one session happens in the order of its requests; sessions do not wait for each other.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import msgspec

from acpd import errors
from acpd.api import options, shapes, state
from acpd.api.agent import Agent
from acpd.api.channel import Channel, encode
from acpd.api.conversation import DEAF, Conversation, Prompt
from acpd.api.hands import Hands
from acpd.api.session import CHOICES, Session
from acpd.errors import AcpdError, ConnectionBroken, Refused, RequestError
from acpd.peer import Peer
from acpd.rpc.protocol import Params
from acpd.tasks import Tasks
from acpd.wire import messages


class Connection:
    """One connection, as acpd.peer.Owner. Made on the loop."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.peer = Peer(self, strict=True)
        self.tasks = Tasks(self._report)
        self.ended = asyncio.Event()
        self._client = shapes.Client()
        self._hands = Hands()
        self._sessions: dict[str, Conversation] = {}
        self._prompts: dict[bytes, Prompt] = {}
        self._ready = False
        self._methods: dict[str, Callable[[bytes, Params], None]] = {
            "initialize": self._initialize,
            "authenticate": self._authenticate,
            "session/new": self._new,
            "session/load": self._load,
            "session/resume": self._resume,
            "session/close": self._close,
            "session/set_mode": self._set_mode,
            "session/set_config_option": self._set_option,
            "session/prompt": self._prompt,
        }

    # -- Owner

    def on_request(self, identifier: bytes, method: str, params: Params) -> None:
        try:
            self._handler(method)(identifier, params)
        except RequestError as error:
            self.peer.refuse(identifier, error)
        except Exception as error:  # noqa: BLE001  the agent's own code: a bug of it costs this request
            self._report(method, error)
            self.peer.refuse(identifier, self._failed())

    def _handler(self, method: str) -> Callable[[bytes, Params], None]:
        if not self._ready and method != "initialize":
            raise RequestError(errors.INVALID_REQUEST, f"initialize must come before {method[:100]}")
        handler = self._methods.get(method)
        if handler is None:
            raise RequestError(errors.METHOD_NOT_FOUND, f"unknown method {method[:100]}")
        return handler

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

    def on_bad_line(self, why: str) -> None:
        """The peer has told the client."""

    def on_batch_end(self) -> None:
        """The peer writes at the end of each tick."""

    def on_writable(self) -> None:
        """Turns wait by `drained`."""

    def on_closed(self) -> None:
        self.ended.set()

    # -- failures of the agent's own code

    def _report(self, what: str, error: BaseException) -> None:
        sys.stderr.write(f"{self.agent.name}: {what} has failed: {error!r}\n")
        if not isinstance(error, AcpdError):
            sys.stderr.write("".join(traceback.format_exception(error)))
        sys.stderr.flush()

    def _failed(self) -> RequestError:
        return RequestError(errors.INTERNAL_ERROR, f"{self.agent.title or self.agent.name} has failed; see its stderr")

    # -- methods

    def _initialize(self, identifier: bytes, params: Params) -> None:
        self._client = shapes.client(messages.parse_initialize(params).clientCapabilities)
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
            "authMethods": [each for each in agent.auth_methods if self._client.login or each.get("type") != "terminal"],
        }
        self.peer.answer(identifier, encode(result))

    def _authenticate(self, identifier: bytes, params: Params) -> None:
        """There is nothing to do here: a terminal login is a program of its own, and else the environment has the keys."""
        method = messages.parse_authenticate(params).methodId
        if all(each.get("id") != method for each in self.agent.auth_methods):
            raise RequestError(errors.INVALID_PARAMS, f"unknown auth method {method[:100]}")
        self.peer.answer(identifier, b"{}")

    def _known(self, identifier: str) -> Conversation:
        conversation = self._sessions.get(identifier)
        if conversation is None or conversation.asleep:
            raise _unknown(identifier)
        return conversation

    def _new(self, identifier: bytes, params: Params) -> None:
        request = messages.parse_new(params)
        conversation = self._made(os.urandom(16).hex(), request, new=True)
        self._answer_setup(identifier, conversation.session, {"sessionId": conversation.session.id})
        conversation.step(conversation.open())

    def _load(self, identifier: bytes, params: Params) -> None:
        conversation, opens = self._old(messages.parse_load(params))
        conversation.step(self._loaded(identifier, conversation.session))
        if opens:
            conversation.step(conversation.open())

    async def _loaded(self, identifier: bytes, session: Session) -> None:
        try:
            await session.channel.replay()
            self._answer_setup(identifier, session, {})
        except ConnectionBroken:
            return
        except Exception as error:  # noqa: BLE001  as in on_request
            self._report("session/load", error)
            self.peer.refuse(identifier, self._failed())

    def _resume(self, identifier: bytes, params: Params) -> None:
        conversation, opens = self._old(messages.parse_resume(params))
        self._answer_setup(identifier, conversation.session, {})
        if opens:
            conversation.step(conversation.open())

    def _answer_setup(self, identifier: bytes, session: Session, head: dict[str, object]) -> None:
        """Modes and options, and the commands behind the answer that names the session."""
        self.peer.answer(identifier, encode({**head, **session.setup()}))
        if self.agent.commands:
            commands = [_command(each) for each in self.agent.commands]
            session.update({"sessionUpdate": "available_commands_update", "availableCommands": commands})

    def _made(self, name: str, request: messages.NewSession, *, new: bool) -> Conversation:
        channel = Channel(name, self.peer, self.tasks, new=new)
        session = Session(self.agent, channel, self._client, self._hands, Tasks(self._report))
        session.new = new
        _set_up(session, request)
        conversation = self._sessions[name] = Conversation(session, self.agent, self.tasks)
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
            return conversation, True
        session = conversation.session
        opens = _set_up(session, request) or conversation.asleep
        conversation.asleep = session.new = False
        if values and session.channel.keeps:
            session.restore(values)
        return conversation, opens

    def _close(self, identifier: bytes, params: Params) -> None:
        name = messages.parse_close(params).sessionId
        conversation = self._sessions.get(name)
        if conversation is None or conversation.asleep:
            self.peer.answer(identifier, b"{}")
            return
        if conversation.session.channel.keeps:
            del self._sessions[name]  # all of it comes back with the next load
        conversation.asleep = True
        conversation.stop()
        closing = conversation.step(conversation.close())
        closing.add_done_callback(lambda _: self.peer.answer(identifier, b"{}"))

    # -- options

    def _set_mode(self, identifier: bytes, params: Params) -> None:
        request = messages.parse_set_mode(params)
        session = self._known(request.sessionId).session
        mode = options.mode_of(self.agent.options(session))
        if mode is None:
            raise RequestError(errors.INVALID_PARAMS, "this session has no modes")
        self._choose(session, mode.id, request.modeId)
        session.knows(mode=request.modeId)
        self.peer.answer(identifier, b"{}")
        session.changed()

    def _set_option(self, identifier: bytes, params: Params) -> None:
        request = messages.parse_set_config_option(params)
        session = self._known(request.sessionId).session
        if isinstance(request.value, bool):
            raise RequestError(errors.INVALID_PARAMS, f"the option {request.configId[:100]} is not of the type boolean")
        self._choose(session, request.configId, request.value)
        listed = options.rendered(self.agent.options(session))
        session.knows(listed=listed)
        self.peer.answer(identifier, encode({"configOptions": listed}))
        session.changed()

    def _choose(self, session: Session, option: str, value: str) -> None:
        """Raises Refused. The choice is on its way to who keeps it before it is answered."""
        before = dict(session.choices)
        self.agent.choose(session, option, value)
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
        self.tasks.spawn(self._run(identifier, prompt), name=f"prompt:{conversation.session.id}")

    async def _run(self, identifier: bytes, prompt: Prompt) -> None:
        """The one answer of a prompt, however its turn has ended."""
        try:
            result = await prompt.run(self.agent, self.tasks)
            self._end(identifier, prompt)
            self.peer.answer(identifier, result)
        except ConnectionBroken:
            return
        except Refused as error:
            self._end(identifier, prompt)
            self.peer.refuse(identifier, error)
        except Exception as error:  # noqa: BLE001  as in on_request
            self._end(identifier, prompt)
            self._report("prompt", error)
            self.peer.refuse(identifier, self._failed())

    def _end(self, identifier: bytes, prompt: Prompt) -> None:
        prompt.conversation.end()
        del self._prompts[identifier]
        prompt.answered.set()

    # -- the end

    async def finish(self) -> None:
        """The client has ended: so does everything, within a second but for what `Agent.closed` takes."""
        for conversation in self._sessions.values():
            conversation.stop()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.tasks.cancel(), DEAF / 2)
        closing = [self.tasks.spawn(each.close(), name="close") for each in self._sessions.values() if not each.asleep]
        if closing:
            await asyncio.wait(closing)
        await self._hands.close()
        self.peer.close()


def _unknown(identifier: str) -> RequestError:
    return RequestError(errors.RESOURCE_NOT_FOUND, "unknown session", {"sessionId": identifier})


def _set_up(session: Session, request: messages.NewSession) -> bool:
    """Take what a request says about where and with what to work. Whether that is something else than before."""
    cwd = Path(request.cwd)
    found = cwd, (cwd, *map(Path, request.directories)), shapes.servers(bytes(request.mcpServers))
    changed = found != (session.cwd, session.roots, session.mcp_servers)
    session.cwd, session.roots, session.mcp_servers = found
    return changed


def _command(command: shapes.Command) -> dict[str, object]:
    found: dict[str, object] = {"name": command.name, "description": command.description}
    return {**found, "input": {"hint": command.hint}} if command.hint else found
