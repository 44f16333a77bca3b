"""An agent that does the tool calls of a test, on the real API, and the client at the other end of its stream.

Everything is in this process: what a tool does wrong on the event loop is seen by blockbuster.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

from acpd.api.agent import Agent
from acpd.api.connection import Connection
from acpd.api.session import Session
from acpd.api.shapes import Stop
from acpd.api.turn import Turn
from acpd.errors import METHOD_NOT_FOUND, RequestError
from acpd.native.toolbox import Toolbox, ToolOutput
from acpd.native.tools.kit import kit
from acpd.peer import Peer
from acpd.rpc.protocol import Params
from acpd.wire.envelope import encode

PATIENCE = 20.0
Json = dict[str, Any]


class ToolAgent(Agent):
    """A prompt is the list of calls to make, `[[name, arguments], ...]`, one after another."""

    name = "bench"

    def __init__(self, toolbox: Toolbox) -> None:
        self.toolbox = toolbox
        self.outputs: list[ToolOutput] = []
        self.running = asyncio.Event()
        self.session: Session | None = None

    async def opened(self, session: Session, /) -> None:
        self.session = session

    async def prompt(self, turn: Turn, /) -> Stop | None:
        for name, arguments in json.loads(turn.text):
            self.running.set()
            self.outputs.append(await self.toolbox.call(turn, name, arguments))
        return None


class Client:
    """What an editor answers. `can`: its clientCapabilities. It has no files and terminals unless a test gives it some."""

    def __init__(self) -> None:
        self.peer = Peer(self, strict=True)
        self.updates: list[Json] = []
        self.asked: list[Json] = []
        self.decide: Callable[[Json], str | None] = lambda _: "yes"
        """The option chosen for a permission; None: no answer."""
        self.handlers: dict[str, Callable[[Json], Json]] = {}
        self.seen: list[str] = []
        """The order of what came: "call", "ask", status words."""
        self.changed = asyncio.Event()

    def on_request(self, identifier: bytes, method: str, params: Params, /) -> None:
        said = json.loads(bytes(params))  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
        if method == "session/request_permission":
            self.asked.append(said)
            self.seen.append("ask")
            deciding = asyncio.get_running_loop().run_in_executor(None, self.decide, said)
            deciding.add_done_callback(lambda decided: self._decided(identifier, decided.result()))
        elif method in self.handlers:
            try:
                self.peer.answer(identifier, encode(self.handlers[method](said)))
            except RequestError as error:
                self.peer.refuse(identifier, error)
        else:
            self.peer.refuse(identifier, RequestError(METHOD_NOT_FOUND, f"unknown method {method}"))
        self.changed.set()

    def _decided(self, identifier: bytes, option: str | None) -> None:
        if option is not None:
            self.peer.answer(identifier, encode({"outcome": {"outcome": "selected", "optionId": option}}))

    def on_notification(self, method: str, params: Params, /) -> None:
        if method == "session/update":
            update = json.loads(bytes(params))["update"]  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
            self.updates.append(update)
            self.seen.append(update.get("status") or update["sessionUpdate"])
            self.changed.set()

    def on_bad_line(self, why: str, /) -> None:
        raise AssertionError(why)

    def on_batch_end(self) -> None: ...
    def on_writable(self) -> None: ...
    def on_closed(self) -> None: ...


class Bench:
    """One session in a folder of the test's."""

    def __init__(self, agent: ToolAgent, connection: Connection, client: Client, root: Path) -> None:
        self.agent = agent
        self.connection = connection
        self.client = client
        self.root = root
        self.id = ""

    async def ask(self, method: str, **params: object) -> Json:
        answer = await asyncio.wait_for(self.client.peer.ask(method, encode(params)), PATIENCE)
        found: Json = json.loads(answer)
        return found

    async def open(self, can: Json, *more: Path) -> None:
        await self.ask("initialize", protocolVersion=1, clientCapabilities=can)
        directories = [str(each) for each in more]
        answer = await self.ask("session/new", cwd=str(self.root), mcpServers=[], additionalDirectories=directories)
        self.id = answer["sessionId"]

    @property
    def session(self) -> Session:
        assert self.agent.session is not None
        return self.agent.session

    def mode(self, mode: str) -> None:
        self.session.choices["mode"] = mode

    async def call(self, name: str, arguments: str | Json | None = None, **more: object) -> ToolOutput:
        """One turn with one call: what the model is told."""
        given = arguments if arguments is not None else more
        await self.prompt([[name, given]])
        return self.agent.outputs[-1]

    async def prompt(self, calls: list[list[object]]) -> str:
        prompt = [{"type": "text", "text": json.dumps(calls)}]
        stop: str = (await self.ask("session/prompt", sessionId=self.id, prompt=prompt))["stopReason"]
        return stop

    def begin(self, calls: list[list[object]]) -> asyncio.Task[str]:
        """A turn that goes on while the test does."""
        return self.connection.tasks.spawn(self.prompt(calls), name="turn", watched=True)

    def cancel(self) -> None:
        self.client.peer.notify("session/cancel", encode({"sessionId": self.id}))

    def shown(self) -> Json:
        """The last tool call as the client has it: one update folded over the other."""
        begun = max(index for index, update in enumerate(self.client.updates) if update["sessionUpdate"] == "tool_call")
        whole: Json = {}
        for update in self.client.updates[begun:]:
            if update.get("toolCallId") == self.client.updates[begun]["toolCallId"]:
                whole |= update
        return whole


@contextlib.asynccontextmanager
async def bench(root: Path, can: Json | None = None, *more: Path, toolbox: Toolbox | None = None) -> AsyncGenerator[Bench]:
    root.mkdir(exist_ok=True)
    agent = ToolAgent(toolbox or Toolbox(kit()))
    connection = Connection(agent)
    client = Client()
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair()
    for peer, end in ((connection.peer, ours), (client.peer, theirs)):
        end.setblocking(False)
        transport, _ = await loop.create_connection(lambda peer=peer: peer, sock=end)  # type: ignore[misc]
        peer.use_writer(transport)
        peer.use_reader(transport)
    made = Bench(agent, connection, client, root)
    try:
        await made.open(can or {}, *more)
        yield made
    finally:
        client.peer.close()
        await asyncio.wait_for(connection.ended.wait(), PATIENCE)
        await connection.finish()
