"""A session of the offline agent: what it remembers, where it sends, and who keeps it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from acpd.errors import METHOD_NOT_FOUND, RequestError
from acpd.peer import Peer
from acpd.wire.envelope import encode

if TYPE_CHECKING:
    from acpd.native.script import Turn

SAVE_TIMEOUT = 5.0
"""Seconds that a turn waits at its end for a client that has not said whether it keeps the state."""


class Memory(Struct, kw_only=True):
    """What is worth keeping. `used`: characters said and heard, as a stand-in for tokens."""

    turns: int = 0
    mode: str = "ask"
    pace: str = "instant"
    title: str = ""
    used: int = 0
    always: bool = False


class _State(Struct):
    memory: Memory | None = None


class _Meta(Struct, rename={"state": "acpd.dev/state"}):
    state: _State | None = None


_decode_meta = msgspec.json.Decoder(_Meta).decode


def remembered(meta: bytes) -> Memory | None:
    """The memory that a client brings back in `_meta` of load or resume; None if there is none that can be read."""
    try:
        state = _decode_meta(meta).state
    except msgspec.DecodeError:
        return None
    return state.memory if state is not None else None


class Session:
    """One session. `history` holds updates as JSON text, until a client says that it keeps the conversation itself."""

    def __init__(self, identifier: str, peer: Peer, memory: Memory) -> None:
        self.id = identifier
        self.id_json = encode(identifier)
        self.memory = memory
        self.history: list[bytes] = []
        self.turn: Turn | None = None
        self.peer = peer
        self.head = b'{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":%b,"update":' % self.id_json
        self._kept_by_client: bool | None = None
        self._saving: asyncio.Future[None] | None = None

    def update(self, update: Mapping[str, object]) -> None:
        """Send one update, and keep it for a later replay."""
        text = encode(update)
        self.keep(text)
        self.peer.send(self.head + text + b"}}\n")

    def keep(self, text: bytes) -> None:
        if not self._kept_by_client:
            self.history.append(text)

    def replay(self) -> None:
        for text in self.history:
            self.peer.send(self.head + text + b"}}\n")

    def save(self) -> None:
        """Hand the memory to the client. One that does not know `_acpd/state` is not asked again."""
        if self._kept_by_client is False:
            return
        done = self._saving = asyncio.get_running_loop().create_future()

        def then(_: bytes | None, error: RequestError | None) -> None:
            if not done.done():
                done.set_result(None)
            if error is None:
                self._kept_by_client = True
                self.history.clear()
            elif error.code == METHOD_NOT_FOUND:
                self._kept_by_client = False

        value = encode({"sessionId": self.id, "name": "memory", "value": self.memory})
        self.peer.call("_acpd/state", value, then)

    async def saved(self) -> None:
        """Until the client has answered the last `save`, at most SAVE_TIMEOUT seconds."""
        if self._saving is not None:
            await asyncio.wait([self._saving], timeout=SAVE_TIMEOUT if self._kept_by_client is None else None)
