"""What a session's agent wants to find again: acpd keeps it (`_acpd/state`); for another client it lives in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TypeVar

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from acpd.api.channel import Channel, encode, encode_exactly
from acpd.errors import METHOD_NOT_FOUND, RequestError, StateUnreadable

T = TypeVar("T")
METHOD = "_acpd/state"
SAVE_TIMEOUT = 5.0
"""Seconds that the first turn waits at its end for a client that has not said whether it keeps the state."""


class _Meta(Struct, gc=False, rename={"state": "acpd.dev/state"}):
    state: dict[str, Raw] | None = None


_decode_meta = msgspec.json.Decoder(_Meta).decode


def brought(meta: Raw | UnsetType) -> dict[str, bytes]:
    """The values that a client brings back in `_meta` of load or resume; empty: none that can be read."""
    try:
        state = _decode_meta(meta).state if meta is not UNSET else None
    except msgspec.DecodeError:
        return {}
    return {name: bytes(value) for name, value in (state or {}).items()}


class State:
    """The values of one session, each a JSON value under a name. Names that begin with `acpd.` are acpd's own."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._keeper = channel.keeper
        self._values: dict[str, bytes] = {}
        self._waiting: dict[str, bytes] = {}
        """What was sent last under a name and is not answered."""
        self._refused: set[str] = set()
        self._settled = asyncio.Event()

    def restore(self, values: Mapping[str, bytes]) -> None:
        """What the client kept: that is what counts, but for what is on its way to it."""
        self._values = {**values, **self._waiting}
        self._keeper.keeps = True

    def get(self, name: str, type: type[T]) -> T | None:  # noqa: A002  the word of msgspec
        """The value, None if there is none. Raises StateUnreadable if it has not this type; it is left as it is."""
        value = self._values.get(name)
        if value is None:
            return None
        try:
            return msgspec.json.decode(value, type=type)
        except (msgspec.DecodeError, RecursionError) as error:
            raise StateUnreadable("read", f"state {name!r} of session {self._channel.id}", cause=str(error)) from None

    def put(self, name: str, value: object) -> None:
        """Keep this value, whole, from now on. It is on its way when this returns; `saved` waits for it.

        Raises TypeError, ValueError for what JSON has not, as an object, inf, a key that is no text; nothing is kept then.
        """
        if not name or name.startswith("acpd."):
            raise ValueError(f"a state may not be called {name!r}: names that begin with acpd. are acpd's own")
        text = encode_exactly(value, f"state {name!r}")
        self._values[name] = text
        if self._keeper.keeps is not False:
            self._send(name, text)

    def _send(self, name: str, text: bytes) -> None:
        self._refused.discard(name)
        self._waiting[name] = text
        self._settled.clear()

        def then(_result: bytes | None, error: RequestError | None) -> None:
            if self._waiting.get(name) is text:
                del self._waiting[name]
                if error is not None and error.code != METHOD_NOT_FOUND:
                    self._refused.add(name)  # a full disk, say: it is sent again with the next turn
            if error is None:
                self._keeper.keeps = True
                self._channel.history.clear()
            elif error.code == METHOD_NOT_FOUND:
                self._keeper.keeps = False
            if not self._waiting:
                self._settled.set()

        self._channel.peer.call(METHOD, encode({"sessionId": self._channel.id, "name": name, "value": Raw(text)}), then)

    async def saved(self) -> None:
        """Until the client has answered for all of it. One that has never answered is given SAVE_TIMEOUT, once.

        What it could not keep, as when its disk is full, is sent once more. Cancelling it changes nothing.
        """
        if self._keeper.keeps is not False:
            for name in list(self._refused):
                self._send(name, self._values[name])
        while self._waiting and not self._channel.peer.closed:
            self._settled.clear()
            if self._keeper.keeps is None and self._keeper.silent:
                return
            try:
                await asyncio.wait_for(self._settled.wait(), None if self._keeper.keeps else SAVE_TIMEOUT)
            except TimeoutError:
                self._keeper.silent = True
