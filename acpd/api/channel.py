"""One session's place on the connection: what it sends, what it asks the client, what it remembers for a replay."""

from __future__ import annotations

import asyncio
import math
import os
from collections import deque
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from acpd.peer import Peer
from acpd.tasks import Tasks
from acpd.wire.envelope import mend_surrogates

KEPT = 64 * 1024 * 1024
"""Bytes of a conversation that are kept for a client that does not keep it. The oldest part of a longer one is forgotten."""
PIECE = 1024 * 1024
"""Characters of a message that are replayed in one chunk, about."""
_PASSING = frozenset({"available_commands_update", "current_mode_update", "config_option_update", "notice"})
"""Updates that no replay has: the answer of load has what they say, or nobody needs it any more (ACP v1 session/load)."""
_BREAKS = frozenset({"tool_call", "plan"})
"""What begins a new message when it comes between two chunks."""

_encoder = msgspec.json.Encoder(enc_hook=str)


def encode(value: object) -> bytes:
    """JSON text. What JSON does not know becomes its `str`; a lone surrogate is no text and becomes U+FFFD."""
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError:
        import json  # only for text that is none

        return mend_surrogates(json.dumps(msgspec.to_builtins(value, enc_hook=_plain)).encode())


def _plain(value: object) -> object:
    return msgspec.json.decode(value) if isinstance(value, msgspec.Raw) else str(value)


def encode_exactly(value: object, what: str) -> bytes:
    """JSON text of what JSON has (a Struct, a Raw and what msgspec writes by itself included).

    Raises TypeError, ValueError, which name `what` and the value: any other object, a number that is not finite, a key that
    is no text. `encode` would write something else for them.
    """
    _look(value, what)
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return encode(value)
    except TypeError as error:
        raise TypeError(f"{what} holds what JSON has not: {error}") from None


def _look(value: object, what: str) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{what} holds {value!r}, which JSON has not")
    if isinstance(value, Mapping):
        for name, member in value.items():
            if not isinstance(name, str):
                raise TypeError(f"{what} holds the key {name!r}: in JSON keys are texts")
            _look(member, what)
    elif isinstance(value, list | tuple | set | frozenset):
        for member in value:
            _look(member, what)
    elif isinstance(value, Struct):
        for name in value.__struct_fields__:
            _look(getattr(value, name), what)


class History:
    """Updates as JSON text, in order, of at most KEPT bytes. Adjacent text chunks of one message become one."""

    def __init__(self) -> None:
        self._done: deque[bytes] = deque()
        self._size = 0
        self._head: tuple[str, str] = ("", "")
        self._pieces: list[str] = []
        self._open = 0
        """Characters in `_pieces`."""

    def add(self, update: bytes) -> None:
        self._close()
        self._put(update)

    def chunk(self, kind: str, message: str, text: str) -> None:
        """A text chunk of this message."""
        if self._head != (kind, message) or self._open > PIECE:
            self._close()
            self._head = (kind, message)
        self._pieces.append(text)
        self._open += len(text)

    def _close(self) -> None:
        if self._pieces:
            (kind, message), text = self._head, "".join(self._pieces)
            self._pieces = []
            self._open = 0
            self._head = ("", "")
            self._put(encode({"sessionUpdate": kind, "messageId": message, "content": {"type": "text", "text": text}}))

    def _put(self, update: bytes) -> None:
        self._done.append(update)
        self._size += len(update)
        while self._size > KEPT and len(self._done) > 1:
            self._size -= len(self._done.popleft())

    def all(self) -> list[bytes]:
        self._close()
        return list(self._done)

    def clear(self) -> None:
        self._close()
        self._done.clear()
        self._size = 0


class Keeper:
    """What a client does with an agent's state: one for a connection. `keeps`: it keeps it (`_acpd/state`), and so it has the
    conversation too; None: it has not said yet. `asked`: it is sent the state all the same, because it announced that it keeps
    it. `silent`: it was given its time to say so.
    """

    __slots__ = ("asked", "keeps", "silent")

    def __init__(self, *, asked: bool) -> None:
        self.asked = asked
        self.keeps: bool | None = None
        self.silent = False

    @property
    def hears(self) -> bool:
        return self.asked if self.keeps is None else self.keeps


class Channel:
    """Used by a session, its turns and their tool calls."""

    def __init__(self, identifier: str, peer: Peer, tasks: Tasks, keeper: Keeper, *, new: bool) -> None:
        self.id = identifier
        self.peer = peer
        self.tasks = tasks
        self.keeper = keeper
        self.history = History()
        self.head = b'{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":%b,"update":' % encode(identifier)
        self._prefix = "" if new else f"{os.urandom(4).hex()}-"  # what an earlier process named is not named again
        self._held: list[bytes] | None = None
        """What is said while a replay runs: it comes behind it."""
        self._shown = asyncio.Event()
        self.newest = ""
        """The name of the newest message or tool call."""
        self._made = 0
        self._speaking = ""
        self._message = ""

    def name(self, kind: str) -> str:
        """An id that nothing else of this session has, nor had in an earlier process."""
        self._made += 1
        return f"{self._prefix}{kind}-{self._made}"

    # -- updates

    def send(self, update: Mapping[str, object], *, keep: bool = True) -> None:
        """One update, now. `keep`: it is a part of the conversation."""
        kind = str(update.get("sessionUpdate", ""))
        if kind in _BREAKS:
            self.next_message()
        if kind == "tool_call":
            self.newest = str(update["toolCallId"])
        text = encode(update)
        if keep and kind not in _PASSING:
            self.keep(text)
        self.raw(text)

    def chunk(self, kind: str, block: Mapping[str, Any]) -> None:
        """A part of a message or a thought. What follows one of the same kind belongs to the same message."""
        if self._speaking != kind:
            self._speaking = kind
            self._message = self.name("message")
            self.newest = self._message if kind == "agent_message_chunk" else self.newest
        if not self.keeper.keeps and block.get("type") == "text" and len(block) == 2:
            self.history.chunk(kind, self._message, str(block["text"]))
            self.raw(encode({"sessionUpdate": kind, "messageId": self._message, "content": block}))
        else:
            self.send({"sessionUpdate": kind, "messageId": self._message, "content": block})

    def next_message(self) -> None:
        """The next chunk begins a message of its own."""
        self._speaking = ""

    def raw(self, update: bytes) -> None:
        """The text of an update, sent and not kept."""
        if self._held is not None:
            self._held.append(update)
        else:
            self._out(update)

    def _out(self, update: bytes) -> None:
        self.peer.send(b"%b%b}}\n" % (self.head, update))

    def keep(self, update: bytes) -> None:
        """The text of an update, for a replay, if that is ours to give."""
        if not self.keeper.keeps:
            self.history.add(update)

    async def replay(self) -> None:
        """All that is kept, as fast as the client reads it; what is said meanwhile comes behind it. Raises ConnectionBroken."""
        if self.keeper.keeps:
            self.history.clear()
        self._held = []
        self._shown.clear()
        try:
            for update in self.history.all():
                self._out(update)
                await self._drained()
        finally:
            held, self._held = self._held, None
            for update in held:
                self._out(update)
            self._shown.set()

    async def shown(self) -> None:
        """Until no replay runs: all that was said is sent."""
        while self._held is not None:
            await self._shown.wait()

    async def room(self) -> None:
        """What was sent leaves now, and there is room for more. Raises ConnectionBroken when the client is gone."""
        await self.shown()
        await self._drained()

    async def _drained(self) -> None:
        await asyncio.sleep(0)
        await self.peer.drained()

    # -- requests

    async def ask(self, method: str, params: Mapping[str, object]) -> bytes:
        """The raw result. Raises the client's RequestError. Cancelling it withdraws the question; a late answer is dropped."""
        await self.shown()  # what it is about
        return await self.peer.ask(method, encode({"sessionId": self.id, **params}), withdraw=True)
