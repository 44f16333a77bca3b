"""A client on a socket, in front of a real connection to a real house of agents."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from msgspec import UNSET

from acpd.agents.pool import Host
from acpd.peer import Peer
from acpd.router import Connection
from acpd.rpc.protocol import Params
from tests.agents.house import INITIALIZE, House
from tests.core.world import dumps, until
from tests.support.store import Json


class Desk:
    """The client's side: `ask` gives a result or raises the error; what comes is in `got`, in order."""

    def __init__(self, house: House, host: Host) -> None:
        self.house = house
        self.got: list[tuple[str, Json]] = []
        self.asked: list[bytes] = []
        """The ids of the requests in `got`, for `peer.answer`."""
        self.bad: list[str] = []
        self.closed = asyncio.Event()
        self.server_closed = asyncio.Event()
        self.logged: list[tuple[str, str]] = []
        self.server = Connection(house.registry, house.pool, host, house.tasks, self.server_closed.set)
        self.server.log = lambda event, **values: self.logged.append((event, *values.values()))
        self.peer = Peer(self, strict=True)

    async def connect(self) -> None:
        loop = asyncio.get_running_loop()
        for peer, end in zip((self.server.peer, self.peer), socket.socketpair(), strict=True):
            end.setblocking(False)
            transport, _ = await loop.create_connection(lambda peer=peer: peer, sock=end)  # type: ignore[misc]
            peer.use_writer(transport)
            peer.use_reader(transport)

    def on_request(self, identifier: bytes, method: str, params: Params, /) -> None:
        self.asked.append(identifier)
        self.got.append((method, {} if params is UNSET else json.loads(bytes(params))))

    def on_notification(self, method: str, params: Params, /) -> None:
        self.got.append((method, {} if params is UNSET else json.loads(bytes(params))))

    def on_bad_line(self, why: str, /) -> None:
        self.bad.append(why)

    def on_batch_end(self) -> None: ...
    def on_writable(self) -> None: ...
    def on_closed(self) -> None:
        self.closed.set()

    async def ask(self, method: str, /, **params: Any) -> Json:
        async with asyncio.timeout(20):
            answer: Json = json.loads(await self.peer.ask(method, dumps(params)))
            return answer

    async def initialize(self) -> Json:
        return await self.ask("initialize", **INITIALIZE)

    async def new(self, cwd: str | None = None, **more: Any) -> str:
        answer = await self.ask("session/new", cwd=cwd or str(self.house.root), mcpServers=[], **more)
        return str(answer["sessionId"])

    async def prompt(self, session: str, text: str) -> Json:
        return await self.ask("session/prompt", sessionId=session, prompt=[{"type": "text", "text": text}])

    async def load(self, session: str, cwd: str | None = None, **more: Any) -> Json:
        return await self.ask("session/load", sessionId=session, cwd=cwd or str(self.house.root), mcpServers=[], **more)

    def cancel_request(self, identifier: int) -> None:
        self.peer.notify("$/cancel_request", dumps({"requestId": identifier}))

    @property
    def texts(self) -> list[str]:
        return [
            params["update"]["content"]["text"]
            for method, params in self.got
            if method == "session/update" and params["update"]["sessionUpdate"].endswith("_message_chunk")
        ]

    async def close(self) -> None:
        self.peer.close()
        await self.server_closed.wait()
        self.server.peer.close()
        await self.closed.wait()


@asynccontextmanager
async def desk(house: House, host: Host, *, initialized: bool = True) -> AsyncGenerator[Desk]:
    made = Desk(house, host)
    await made.connect()
    if initialized:
        await made.initialize()
    try:
        yield made
    finally:
        async with asyncio.timeout(10):
            await made.close()


async def listed(one: Desk, **params: Any) -> list[Json]:
    """Every session of every page, and that no page repeats one."""
    found: list[Json] = []
    while True:
        page = await one.ask("session/list", **params)
        found += page["sessions"]
        if "nextCursor" not in page:
            assert len({each["sessionId"] for each in found}) == len(found)
            return found
        params["cursor"] = page["nextCursor"]


__all__ = ["Desk", "desk", "listed", "until"]
