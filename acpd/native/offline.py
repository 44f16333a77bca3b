"""The offline agent: ACP v1 on stdio, deterministic, no model.

It keeps nothing on disk. Its memory (turn counter, mode, options) goes to the client by `_acpd/state` at the start of each
turn and comes back in `_meta["acpd.dev/state"]` of session/load and session/resume. A client that does not know that
method is an editor: for it the conversation is kept in this process's memory and replayed on load.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable

import msgspec
from msgspec import UNSET, Struct

from acpd import errors
from acpd.errors import RequestError
from acpd.native.memory import Memory, Session, remembered
from acpd.native.script import Turn
from acpd.native.words import VERSION
from acpd.peer import Peer
from acpd.rpc.protocol import Params
from acpd.tasks import Tasks
from acpd.transports import stdio
from acpd.wire import messages
from acpd.wire.envelope import encode

MODES = [
    {"id": "ask", "name": "Ask", "description": "A tool call that needs a permission asks for it"},
    {"id": "code", "name": "Code", "description": "Every tool call is allowed"},
]
PACES = [
    {"value": "instant", "name": "Instant"},
    {"value": "calm", "name": "Calm", "description": "Word by word"},
]
COMMANDS = [
    {"name": "say", "description": "Answer with a text", "input": {"hint": "text"}},
    {"name": "think", "description": "Think, then answer"},
    {"name": "plan", "description": "Show a plan and follow it", "input": {"hint": "first|second|third"}},
    {"name": "tool", "description": "Run a tool call", "input": {"hint": "name"}},
    {"name": "ask", "description": "Run a tool call that needs a permission", "input": {"hint": "name"}},
    {"name": "slow", "description": "Count slowly", "input": {"hint": "how far"}},
    {"name": "help", "description": "Say which words there are"},
]
INITIALIZED = {
    "protocolVersion": 1,
    "agentCapabilities": {
        "loadSession": True,
        "promptCapabilities": {"image": True, "audio": True, "embeddedContext": True},
        "sessionCapabilities": {"resume": {}, "close": {}},
    },
    "agentInfo": {"name": "acpd-agent", "title": "acpd's offline agent", "version": VERSION},
    "authMethods": [],
}
ENDS = b'{"stopReason":"end_turn"}'
CANCELLED = b'{"stopReason":"cancelled"}'


class _Block(Struct):
    type: str
    text: str = ""


_decode_blocks = msgspec.json.Decoder(list[_Block]).decode


class Offline:
    """One connection, as acpd.peer.Owner. Requests are answered at once, prompts at the ends of their tasks."""

    def __init__(self) -> None:
        self.peer = Peer(self, strict=True)
        self.tasks = Tasks(_report)
        self.sessions: dict[str, Session] = {}
        self.ended = asyncio.Event()
        self._prompts: dict[bytes, Turn] = {}
        self._ready = False
        self._methods: dict[str, Callable[[bytes, Params], None]] = {
            "initialize": self._initialize,
            "session/new": self._new,
            "session/load": self._load,
            "session/resume": self._resume,
            "session/close": self._close,
            "session/set_mode": self._set_mode,
            "session/set_config_option": self._set_option,
            "session/prompt": self._prompt,
        }

    def on_request(self, identifier: bytes, method: str, params: Params) -> None:
        try:
            self._handler(method)(identifier, params)
        except RequestError as error:
            self.peer.refuse(identifier, error)

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
                session = self.sessions.get(messages.parse_cancel(params).sessionId)
                turn = session.turn if session is not None else None
            elif method == "$/cancel_request":
                turn = self._prompts.get(bytes(messages.parse_cancel_request(params).requestId))
            else:
                return
        except RequestError:
            return  # a notification is never answered
        if turn is not None:
            turn.cancel()

    def on_bad_line(self, why: str) -> None:
        """The peer has told the client."""

    def on_batch_end(self) -> None:
        """The peer writes at the end of each tick."""

    def on_writable(self) -> None:
        """Turns wait by `drained`."""

    def on_closed(self) -> None:
        self.ended.set()

    # -- methods

    def _initialize(self, identifier: bytes, params: Params) -> None:
        messages.parse_initialize(params)
        self._ready = True
        self.peer.answer(identifier, encode(INITIALIZED))

    def _known(self, identifier: str) -> Session:
        session = self.sessions.get(identifier)
        if session is None:
            raise RequestError(errors.RESOURCE_NOT_FOUND, "unknown session", {"sessionId": identifier})
        return session

    def _new(self, identifier: bytes, params: Params) -> None:
        messages.parse_new(params)
        name = f"offline-{os.urandom(8).hex()}"
        session = self.sessions[name] = Session(name, self.peer, Memory())
        self.peer.answer(identifier, encode({"sessionId": name, **_setup(session.memory)}))
        _announce(session)

    def _load(self, identifier: bytes, params: Params) -> None:
        session = self._old(messages.parse_load(params))
        session.replay()
        self.peer.answer(identifier, encode(_setup(session.memory)))
        _announce(session)

    def _resume(self, identifier: bytes, params: Params) -> None:
        session = self._old(messages.parse_resume(params))
        self.peer.answer(identifier, encode(_setup(session.memory)))
        _announce(session)

    def _old(self, request: messages.OldSession) -> Session:
        """The session with the memory that the client brings, or our own. Raises RequestError if neither knows it."""
        brought = remembered(bytes(request.meta)) if request.meta is not UNSET else None
        if brought is None:
            return self._known(request.sessionId)
        session = self.sessions.get(request.sessionId)
        if session is None:
            session = self.sessions[request.sessionId] = Session(request.sessionId, self.peer, brought)
        else:
            session.memory = brought
        return session

    def _close(self, identifier: bytes, params: Params) -> None:
        session = self.sessions.get(messages.parse_close(params).sessionId)
        if session is not None and session.turn is not None:
            session.turn.cancel()
        self.peer.answer(identifier, b"{}")

    def _set_mode(self, identifier: bytes, params: Params) -> None:
        request = messages.parse_set_mode(params)
        session = self._known(request.sessionId)
        self._choose(session, "mode", request.modeId)
        self.peer.answer(identifier, b"{}")
        session.update({"sessionUpdate": "config_option_update", "configOptions": _options(session.memory)})

    def _set_option(self, identifier: bytes, params: Params) -> None:
        request = messages.parse_set_config_option(params)
        session = self._known(request.sessionId)
        self._choose(session, request.configId, request.value)
        self.peer.answer(identifier, encode({"configOptions": _options(session.memory)}))
        if request.configId == "mode":
            session.update({"sessionUpdate": "current_mode_update", "currentModeId": session.memory.mode})

    def _choose(self, session: Session, option: str, value: object) -> None:
        if option == "mode" and value in ("ask", "code"):
            session.memory.mode = str(value)
        elif option == "pace" and value in ("instant", "calm"):
            session.memory.pace = str(value)
        else:
            raise RequestError(errors.INVALID_PARAMS, f"no option {option[:100]} with such a value")
        session.save()

    # -- turns

    def _prompt(self, identifier: bytes, params: Params) -> None:
        request = messages.parse_prompt(params)
        session = self._known(request.sessionId)
        if session.turn is not None:
            raise RequestError(errors.INVALID_REQUEST, "a turn is running in this session")
        for block in msgspec.json.decode(request.prompt, type=list[msgspec.Raw]):
            session.keep(b'{"sessionUpdate":"user_message_chunk","content":%b}' % bytes(block))
        blocks = _decode_blocks(request.prompt)
        texts = [block.text for block in blocks if block.type == "text"]
        turn = session.turn = self._prompts[identifier] = Turn(session, texts[-1] if texts else "", len(blocks) - len(texts))
        turn.task = self.tasks.spawn(turn.run(), name=f"turn:{session.id}")
        turn.task.add_done_callback(lambda task: self._answer(identifier, turn, task))

    def _answer(self, identifier: bytes, turn: Turn, task: asyncio.Task[None]) -> None:
        """The one answer of a prompt, however its task has ended; a task cancelled before its first step too."""
        turn.session.turn = None
        del self._prompts[identifier]
        if turn.cancelled or task.cancelled():
            turn.close_calls()
            self.peer.answer(identifier, CANCELLED)
        elif task.exception() is not None:
            turn.close_calls()
            self.peer.refuse(identifier, RequestError(errors.INTERNAL_ERROR, "the offline agent has failed; see its stderr"))
        else:
            self.peer.answer(identifier, ENDS)


def _setup(memory: Memory) -> dict[str, object]:
    """Modes and options as session/new, load and resume answer them."""
    return {"modes": {"currentModeId": memory.mode, "availableModes": MODES}, "configOptions": _options(memory)}


def _options(memory: Memory) -> list[dict[str, object]]:
    modes = [{"value": mode["id"], "name": mode["name"], "description": mode["description"]} for mode in MODES]
    mode = {"id": "mode", "name": "Mode", "category": "mode", "type": "select"}
    pace = {"id": "pace", "name": "Pace", "type": "select"}
    return [
        {**mode, "currentValue": memory.mode, "options": modes},
        {**pace, "currentValue": memory.pace, "options": PACES},
    ]


def _announce(session: Session) -> None:
    """The commands, behind the answer that names the session."""
    session.peer.send(
        session.head + encode({"sessionUpdate": "available_commands_update", "availableCommands": COMMANDS}) + b"}}\n"
    )


def _report(name: str, error: BaseException) -> None:
    sys.stderr.write(f"acpd-agent: {name} has failed: {error!r}\n")


async def _serve(stdin: int, stdout: int) -> None:
    agent = Offline()
    await stdio.connect(agent.peer, stdin, stdout)
    await agent.ended.wait()
    await agent.tasks.cancel()
    agent.peer.close()


def serve() -> int:
    """Serve ACP on stdin and stdout until stdin ends: 0. What a library prints goes to stderr."""
    stdin, stdout = stdio.claim()
    try:
        asyncio.run(_serve(stdin, stdout))
    except KeyboardInterrupt:
        return 130
    return 0
