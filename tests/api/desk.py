"""An editor on two real pipes, and the agent at their other ends: two real machines, joined."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from typing import Any, TypeVar

from msgspec import UNSET, Raw

from acpd.api.agent import Agent
from acpd.api.connection import Connection
from acpd.api.shapes import Stop
from acpd.api.turn import Turn
from acpd.errors import METHOD_NOT_FOUND, RequestError
from acpd.peer import Peer
from acpd.rpc.protocol import Params
from acpd.transports import stdio

Json = dict[str, Any]
Answer = Callable[[Json], Json | None]
"""From params to the result; None: the test answers itself, or never. Raises RequestError."""
T = TypeVar("T")
PATIENCE = 10
ABLE: Json = {
    "fs": {"readTextFile": True, "writeTextFile": True},
    "terminal": True,
    "elicitation": {"form": {}},
    "session": {"notices": {}},
}


class Editor:
    """Everything that came is in `story`, in order: ("update", update), (method, params), ("answer", method)."""

    def __init__(self) -> None:
        self.peer = Peer(self, strict=False)
        self.story: list[tuple[str, Json]] = []
        self.answers: dict[str, Answer] = {}
        self.open: list[tuple[str, bytes]] = []
        """Requests that the test answers itself: method, id."""
        self.ended = False
        self._news = asyncio.Event()
        self._made = 0

    # -- Owner

    def on_request(self, identifier: bytes, method: str, params: Params) -> None:
        said = json.loads(bytes(params)) if params is not UNSET else {}
        self._told(method, said)
        answer = self.answers.get(method)
        if answer is None:
            self.peer.refuse(identifier, RequestError(METHOD_NOT_FOUND, f"unknown method {method}"))
            return
        try:
            result = answer(said)
        except RequestError as error:
            self.peer.refuse(identifier, error)
            return
        if result is None:
            self.open.append((method, identifier))
        else:
            self.peer.answer(identifier, json.dumps(result).encode())

    def on_notification(self, method: str, params: Params) -> None:
        said = json.loads(bytes(params)) if params is not UNSET else {}
        self._told("update" if method == "session/update" else method, said.get("update", said))

    def on_bad_line(self, why: str) -> None:
        self._told("bad", {"why": why})

    def on_batch_end(self) -> None:
        """Nothing is buffered."""

    def on_writable(self) -> None:
        """Nothing waits for it."""

    def on_closed(self) -> None:
        self.ended = True
        self._news.set()

    def _told(self, what: str, said: Json) -> None:
        self.story.append((what, said))
        self._news.set()

    # -- what tests do

    def start(self, method: str, params: Json) -> asyncio.Future[Json]:
        """The answer to come: a result, or RequestError."""
        future: asyncio.Future[Json] = asyncio.get_running_loop().create_future()

        def then(result: bytes | None, error: RequestError | None) -> None:
            self._told("answer", {"method": method})
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(json.loads(result or b"null"))

        self._made += 1
        self.peer.call(method, json.dumps(params).encode(), then, b"%d" % (1000 + self._made))
        return future

    async def call(self, method: str, params: Json) -> Json:
        return await asyncio.wait_for(self.start(method, params), PATIENCE)

    async def refusal(self, method: str, params: Json) -> RequestError:
        """The error that is the answer."""
        try:
            result = await self.call(method, params)
        except RequestError as error:
            return error
        raise AssertionError(f"{method} was answered: {result}")

    async def initialize(self, capabilities: Json | None = None) -> Json:
        """As a client that keeps state, unless the capabilities say something else in `_meta`."""
        able = {"_meta": {"acpd.dev/state": {}}, **(capabilities or {})}
        return await self.call("initialize", {"protocolVersion": 1, "clientCapabilities": able})

    async def new(self, cwd: object = "/tmp", **more: Any) -> str:
        return str((await self.call("session/new", {"cwd": str(cwd), "mcpServers": [], **more}))["sessionId"])

    async def load(self, session: str, cwd: object = "/tmp", state: Json | None = None, **more: Any) -> Json:
        params = {"sessionId": session, "cwd": str(cwd), "mcpServers": [], **more}
        return await self.call("session/load", params if state is None else {**params, "_meta": {"acpd.dev/state": state}})

    def begin(self, session: str, text: str = "go") -> asyncio.Future[Json]:
        return self.start("session/prompt", {"sessionId": session, "prompt": [{"type": "text", "text": text}]})

    async def prompt(self, session: str, text: str = "go") -> str:
        """A whole turn; gives its stop reason."""
        return str((await asyncio.wait_for(self.begin(session, text), PATIENCE))["stopReason"])

    def cancel(self, session: str) -> None:
        self.peer.notify("session/cancel", json.dumps({"sessionId": session}).encode())

    async def until(self, found: Callable[[], T]) -> T:
        """The first true value, asked again whenever something has come."""
        async with asyncio.timeout(PATIENCE):
            while not (value := found()):
                self._news.clear()
                await self._news.wait()
        return value

    async def asked(self, method: str, count: int = 1) -> Json:
        """The params of the newest request, or notification, of this name, when there are so many."""
        return (await self.until(lambda: found if len(found := self.said(method)) >= count else []))[-1]

    def said(self, what: str) -> list[Json]:
        return [said for name, said in self.story if name == what]

    def updates(self, *kinds: str) -> list[Json]:
        return [update for update in self.said("update") if not kinds or update["sessionUpdate"] in kinds]

    def text(self, kind: str = "agent_message_chunk") -> str:
        return "".join(update["content"].get("text", "") for update in self.updates(kind))

    def settle(self, method: str, result: Json) -> None:
        """Answer the oldest request of this name that waits."""
        self.peer.answer(self._oldest(method), json.dumps(result).encode())

    def refuse(self, method: str, error: RequestError) -> None:
        """As `settle`, with an error."""
        self.peer.refuse(self._oldest(method), error)

    def _oldest(self, method: str) -> bytes:
        found = next(each for each in self.open if each[0] == method)
        self.open.remove(found)
        return found[1]


def keeps(kept: Json) -> Answer:
    """The answer of a client that keeps the state, as acpd does."""

    def keep(params: Json) -> Json:
        kept[params["name"]] = params["value"]
        return {}

    return keep


def option(chosen: str) -> Answer:
    return lambda _: {"outcome": {"outcome": "selected", "optionId": chosen}}


class Scripted(Agent):
    """An agent that does in a turn what the test says."""

    def __init__(self, work: Callable[[Turn], Awaitable[Stop | None]]) -> None:
        self.work = work

    async def prompt(self, turn: Turn, /) -> Stop | None:
        return await self.work(turn)


@contextlib.asynccontextmanager
async def joined(agent: Agent, capabilities: Json | None = None) -> AsyncGenerator[tuple[Editor, Connection]]:
    """The editor, initialized, and the agent's connection. In the end everything is ended as by the editor's EOF."""
    to_agent, to_editor = os.pipe(), os.pipe()
    connection, editor = Connection(agent), Editor()
    await stdio.connect(connection.peer, to_agent[0], to_editor[1])
    await stdio.connect(editor.peer, to_editor[0], to_agent[1])
    try:
        await editor.initialize(capabilities)
        yield editor, connection
    finally:
        await connection.finish()
        editor.peer.close()
        await asyncio.sleep(0)


class Counted:
    """A coroutine that calls `then` where it waits for the `at`th time."""

    def __init__(self, work: Awaitable[T], at: int, then: Callable[[], None]) -> None:
        self._work: Awaitable[Any] = work
        self._at = at
        self._then = then
        self.waits = 0

    def __await__(self) -> Generator[Any, Any, Any]:
        inner: Any = self._work.__await__()
        step: Callable[[], Any] = functools.partial(next, inner)
        while True:
            try:
                waits_for = step()
            except StopIteration as stop:
                return stop.value
            self.waits += 1
            if self.waits == self._at:
                self._then()
            try:
                step = functools.partial(inner.send, (yield waits_for))
            except BaseException as error:  # noqa: BLE001  passed on
                step = functools.partial(inner.throw, error)


def cancel_note(session: str) -> Raw:
    return Raw(json.dumps({"sessionId": session}).encode())
