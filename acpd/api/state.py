"""What a session's agent wants to find again: acpd keeps it (`_acpd/state`); for another client it lives in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TypeVar

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from acpd.api.channel import Channel, encode, encode_exactly
from acpd.errors import METHOD_NOT_FOUND, RequestError, StateTooBig, StateUnreadable

T = TypeVar("T")
METHOD = "_acpd/state"
SAVE_TIMEOUT = 5.0
"""Seconds that a turn waits at its end for a client that has not said whether it keeps the state, or was silent."""
ANSWER_TIMEOUT = 60.0
"""Seconds that a turn waits for a client that keeps it: a slow disk."""
LIMIT = 48 * 1024 * 1024
"""Bytes of JSON that all values of a session may have: they come back in one line (acpd.rpc.framing.MAX_LINE)."""
SMALL = 64 * 1024
"""Bytes of a value that is taken whatever the others have, so that an answer of the user's is never refused for them."""


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
        self._calls: dict[str, bytes] = {}
        """The ids of those requests."""
        self._refused: set[str] = set()
        self._left: set[str] = set()
        """What cannot be read, and is left to the client as it is."""
        self._settled = asyncio.Event()

    def restore(self, values: Mapping[str, bytes]) -> None:
        """What the client kept: that is what counts, but for what is on its way to it."""
        self._values = {**values, **self._waiting}
        self._left.clear()
        self._keeper.keeps = True

    def get(self, name: str, type: type[T]) -> T | None:  # noqa: A002  the word of msgspec
        """The value, None if there is none. Raises StateUnreadable if it has not this type; it is left as it is."""
        value = self._values.get(name)
        if value is None:
            return None
        try:
            return msgspec.json.decode(value, type=type)
        except (msgspec.DecodeError, RecursionError) as error:
            hint = (
                "put it back from a backup, or remove it to begin anew"  # the id of an agent's own would say nothing to anybody
            )
            raise StateUnreadable("read", f"state {name!r} of this session", cause=str(error), hint=hint) from None

    def leave(self, name: str) -> None:
        """The session goes on without this value, which cannot be read: it is not replaced, what is `put` holds here only."""
        self._left.add(name)
        del self._values[name]

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def put(self, name: str, value: object) -> None:
        """Keep this value, whole, from now on. It is on its way when this returns; `saved` waits for it.

        Raises TypeError, ValueError for what JSON has not (an object, inf, a key that is no text); StateTooBig when all values
        of the session would have more than LIMIT bytes. The earlier value then stays.
        """
        if not name or name.startswith("acpd."):
            raise ValueError(
                f"a state may not be called {name!r}: it needs a name, and those that begin with acpd. are acpd's own"
            )
        text = encode_exactly(value, f"state {name!r}")
        before = len(self._values.get(name, b""))
        size = sum(map(len, self._values.values())) - before + len(text)
        if size > LIMIT and len(text) > max(before, SMALL):
            cause = f"the values of the session would have {size} bytes, of at most {LIMIT}"
            raise StateTooBig("keep", f"state {name!r} of session {self._channel.id}", cause=cause)
        self._values[name] = text
        if name in self._left:
            return
        if self._keeper.hears:
            self._send(name, text)
        else:
            self._refused.add(name)  # it may still say that it keeps it, by bringing some

    def _send(self, name: str, text: bytes) -> None:
        """Nobody waits any more for the answer to an earlier value of this name: a client that never answers costs one each."""
        self._refused.discard(name)
        self._channel.peer.forget(self._calls.get(name, b""))
        self._waiting[name] = text
        self._settled.clear()

        def then(_result: bytes | None, error: RequestError | None) -> None:
            self._keeper.silent = False
            if error is None:
                self._keeper.keeps = True
                self._channel.history.clear()
            elif error.code == METHOD_NOT_FOUND:
                self._keeper.keeps = False
            self._over(name, kept=error is None or error.code == METHOD_NOT_FOUND)

        params = encode({"sessionId": self._channel.id, "name": name, "value": Raw(text)})
        self._calls[name] = self._channel.peer.call(METHOD, params, then)

    def _over(self, name: str, *, kept: bool) -> None:
        self._waiting.pop(name, None)
        self._calls.pop(name, None)
        if not kept:
            self._refused.add(name)  # a full disk, say: it is sent again with the next turn
        if not self._waiting:
            self._settled.set()

    async def saved(self) -> None:
        """Until the client has answered for all of it. One that has never answered is given SAVE_TIMEOUT, once; one that keeps
        it ANSWER_TIMEOUT.

        What it could not keep, as when its disk is full, is sent once more. Cancelling it changes nothing.
        """
        if self._keeper.hears:
            for name in list(self._refused):
                self._send(name, self._values[name])
        while self._waiting and not self._channel.peer.closed:
            self._settled.clear()
            if self._keeper.keeps is None and self._keeper.silent:
                return
            patience = ANSWER_TIMEOUT if self._keeper.keeps and not self._keeper.silent else SAVE_TIMEOUT
            try:
                await asyncio.wait_for(self._settled.wait(), patience)
            except TimeoutError:
                self._keeper.silent = True
                if self._keeper.keeps:
                    self._give_up()

    def _give_up(self) -> None:
        """What is not answered counts as not kept."""
        for name in list(self._waiting):
            self._channel.peer.forget(self._calls[name])
            self._over(name, kept=False)
