"""A turn of an agent in this process: for programs that have no editor. What it keeps stands in a storage `Session`.

Whose it is and where it is kept is resolved by `bind` (acpd.storage.binding), anew for each call; nothing of a session lives
outside of its call. The conversation itself is recorded by acpd only, which runs agents as processes.
"""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw, Struct

from acpd.api.agent import Agent
from acpd.api.channel import encode
from acpd.api.connection import Connection
from acpd.errors import INTERNAL_ERROR, METHOD_NOT_FOUND, AcpdError, RequestError, StateUnreadable
from acpd.peer import Peer
from acpd.rpc.protocol import Params
from acpd.storage.binding import Binding, bind
from acpd.storage.contract import SPARED, Key, Session
from acpd.tasks import Tasks
from acpd.transports import stdio
from acpd.wire.envelope import in_line

Update = Mapping[str, Any]
"""A session/update as ACP has it."""
_REFUSE = ("reject_once", "reject_always")
_ALLOW = ("allow_once", "allow_always")
CAPABILITIES: dict[str, Any] = {"session": {"notices": {}}, "_meta": {"acpd.dev/state": {}}}
_locks: weakref.WeakValueDictionary[Key, asyncio.Lock] = weakref.WeakValueDictionary()
"""Of the states that calls of this process work on at the moment, by their names: two objects may be of one store."""


class RuntimeContext(Struct, frozen=True, kw_only=True):
    """Whose call it is, and where its state is kept. `session`: of the storage, for this call instead of the usual one.
    `session_key`: the state's name there; without it the `session_id`, without that the agent's name.
    """

    session_id: str = ""
    user_id: str | None = None
    session_key: str = ""
    session: Session | None = None


NOBODY = RuntimeContext()


class Reply(NamedTuple):
    """`text`: what the agent has said. `stop`: the stop reason of ACP."""

    text: str
    stop: str


async def call(
    agent: Agent,
    prompt: str | Sequence[Update],
    context: RuntimeContext = NOBODY,
    *,
    configured: Session | None = None,
    cwd: Path | None = None,
    allowed: Callable[[Update], bool] = lambda _: False,
    shown: Callable[[Update], None] = lambda _: None,
) -> Reply:
    """One prompt, to its end. `agent`: a new one for each call. `configured`: where its state is kept if the call does not
    say; without it in the store of acpd's configuration.

    `allowed` answers requests for permission (their params); `shown` gets every update. Calls on one state wait for each
    other. However it ends, cancelled too, what the agent keeps is saved before. Raises RequestError for the agent's own error,
    StateUnreadable (of choices, permissions and the like not: they are left as they are, the call goes on), StoreError.
    """
    async with _bound(agent, context, configured) as bound, _lock(bound):
        client = _Client(bound, allowed, shown)
        async with _joined(agent, client):
            return await client.turn(prompt, cwd)


@asynccontextmanager
async def _bound(agent: Agent, context: RuntimeContext, configured: Session | None) -> AsyncGenerator[Binding]:
    given = context.session or configured
    usual = given if given is not None else await asyncio.to_thread(_usual)
    try:
        yield bind(
            agent.name,
            default=usual,
            configured=configured,
            session=context.session,
            session_key=context.session_key,
            session_id=context.session_id,
            user=context.user_id,
        )
    finally:
        if given is None:
            await usual.close()


def _usual() -> Session:
    from acpd.config import Config, Flags, Paths
    from acpd.stores import open_store

    return open_store(Config.load(Paths.find(os.environ), os.environ, Flags())).session


def _lock(bound: Binding) -> asyncio.Lock:
    return _locks.setdefault(bound.key, asyncio.Lock())


@asynccontextmanager
async def _joined(agent: Agent, client: _Client) -> AsyncGenerator[None]:
    """The agent's connection and the client on two pipes. In the end the agent has ended, and what it kept is saved: whoever
    cancels this waits for it too.
    """
    to_agent, to_client = os.pipe(), os.pipe()
    connection = Connection(agent)
    await stdio.connect(connection.peer, to_agent[0], to_client[1])
    await stdio.connect(client.peer, to_client[0], to_agent[1])
    try:
        yield
    finally:
        ending = client.tasks.spawn(connection.finish(), name="end", watched=True)
        cancelled: asyncio.CancelledError | None = None
        while len(client.tasks):
            try:
                await client.tasks.drain()
            except asyncio.CancelledError as error:
                cancelled = error
        client.peer.close()
        ending.result()
        if cancelled is not None:
            raise cancelled


class _Value(Struct):
    name: str
    value: Raw


class _Client:
    """What an editor with acpd is to the agent, as acpd.peer.Owner."""

    def __init__(self, bound: Binding, allowed: Callable[[Update], bool], shown: Callable[[Update], None]) -> None:
        self.peer = Peer(self, strict=False)
        self.tasks = Tasks(lambda what, error: None)  # noqa: ARG005  the agent is told
        """What is being saved."""
        self._bound = bound
        self._allowed = allowed
        self._shown = shown
        self._text: list[str] = []
        self._unreadable: dict[str, StateUnreadable] = {}

    async def turn(self, prompt: str | Sequence[Update], cwd: Path | None) -> Reply:
        await self._ask("initialize", {"protocolVersion": 1, "clientCapabilities": CAPABILITIES})
        meta = {"acpd.dev/state": await self._kept()}
        folder = str(cwd or await asyncio.to_thread(Path.cwd))
        made = await self._ask("session/new", {"cwd": folder, "mcpServers": [], "_meta": meta})
        blocks = [{"type": "text", "text": prompt}] if isinstance(prompt, str) else list(prompt)
        self._text.clear()
        ended = await self._ask("session/prompt", {"sessionId": made["sessionId"], "prompt": blocks})
        return Reply("".join(self._text), str(ended["stopReason"]))

    async def _kept(self) -> dict[str, Raw]:
        session, key, _ = self._bound
        names = [name for name in await session.names(key) if not name.startswith("acpd.")]
        values = {name: await self._loaded(session, key, name) for name in names}
        return {name: Raw(in_line(value)) for name, value in values.items() if value is not None}

    async def _loaded(self, session: Session, key: Key, name: str) -> bytes | None:
        """None also for what is SPARED and cannot be read, and is not replaced. Raises StateUnreadable, StoreError."""
        try:
            return await session.load(key, name)
        except StateUnreadable as error:
            if name not in SPARED:
                raise
            self._unreadable[name] = error
            return None

    async def _ask(self, method: str, params: Mapping[str, object]) -> dict[str, Any]:
        result: dict[str, Any] = msgspec.json.decode(await self.peer.ask(method, encode(params)))
        return result

    def on_request(self, identifier: bytes, method: str, params: Params) -> None:
        params = params if isinstance(params, Raw) else Raw(b"{}")
        said: dict[str, Any] = msgspec.json.decode(params)
        if method == "_acpd/state":
            value = msgspec.json.decode(params, type=_Value)
            self.tasks.spawn(self._save(identifier, value.name, bytes(value.value)), name=f"state:{value.name}")
        elif method == "session/request_permission":
            wanted = _ALLOW if self._allowed(said) else _REFUSE
            chosen = next((each["optionId"] for kind in wanted for each in said["options"] if each["kind"] == kind), None)
            outcome = {"outcome": "cancelled"} if chosen is None else {"outcome": "selected", "optionId": chosen}
            self.peer.answer(identifier, encode({"outcome": outcome}))
        else:
            self.peer.refuse(identifier, RequestError(METHOD_NOT_FOUND, f"unknown method {method[:100]}"))

    async def _save(self, identifier: bytes, name: str, value: bytes) -> None:
        try:
            if name in self._unreadable:
                raise self._unreadable[name]
            await self._bound.session.save(self._bound.key, name, value)
        except AcpdError as error:
            self.peer.refuse(identifier, RequestError(INTERNAL_ERROR, str(error)))
        else:
            self.peer.answer(identifier, b"{}")

    def on_notification(self, method: str, params: Params) -> None:
        if method != "session/update" or not isinstance(params, Raw):
            return
        update = msgspec.json.decode(params)["update"]
        if update["sessionUpdate"] == "agent_message_chunk":
            self._text.append(update["content"].get("text", ""))
        self._shown(update)

    def on_bad_line(self, why: str) -> None: ...

    def on_batch_end(self) -> None: ...

    def on_writable(self) -> None: ...

    def on_closed(self) -> None: ...
