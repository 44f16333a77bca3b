"""A turn: one prompt and everything until it ends. Every transition of it stands in TURN, and nowhere else."""

from __future__ import annotations

from enum import IntEnum, auto

import msgspec
from msgspec import Struct

from acpd.attachment import Client
from acpd.errors import INTERNAL_ERROR, LocalProtocolError, RequestError
from acpd.wire import splice
from acpd.wire.envelope import encode

STOP_REASONS = frozenset({"end_turn", "max_tokens", "max_turn_requests", "refusal", "cancelled"})
"""The closed enum of ACP v1."""


class Turn(IntEnum):
    """What a session is doing."""

    IDLE = auto()
    STARTING = auto()
    """The prompt is accepted; it is being made durable, or waits for the agent."""
    RUNNING = auto()
    """The agent has the prompt."""
    CANCELLING = auto()
    """The agent has session/cancel too; its answer is awaited until a deadline."""
    ENDING = auto()
    """Its end is in the log; the answer leaves when that is durable."""


class On(IntEnum):
    """What can happen to it."""

    PROMPTED = auto()
    SENT = auto()
    CANCELLED = auto()
    """By session/cancel, session/close, or $/cancel_request for the prompt."""
    ENDED = auto()
    """The agent answered, or died, or missed the deadline, or never started."""
    SETTLED = auto()
    """The end is durable, the answer has left."""


TURN: dict[tuple[Turn, On], Turn] = {
    (Turn.IDLE, On.PROMPTED): Turn.STARTING,
    (Turn.IDLE, On.CANCELLED): Turn.IDLE,  # a late cancel never hits the next turn
    (Turn.STARTING, On.SENT): Turn.RUNNING,
    (Turn.STARTING, On.ENDED): Turn.ENDING,  # cancelled before the agent had it, or the agent did not start
    (Turn.RUNNING, On.CANCELLED): Turn.CANCELLING,
    (Turn.RUNNING, On.ENDED): Turn.ENDING,
    (Turn.CANCELLING, On.CANCELLED): Turn.CANCELLING,
    (Turn.CANCELLING, On.ENDED): Turn.ENDING,
    (Turn.ENDING, On.CANCELLED): Turn.ENDING,
    (Turn.ENDING, On.SETTLED): Turn.IDLE,
}


def advance(state: Turn, event: On) -> Turn:
    """The next state. Raises LocalProtocolError where the table has none."""
    try:
        return TURN[state, event]
    except KeyError:
        raise LocalProtocolError(f"a turn that is {state.name} cannot be {event.name}") from None


class _Result(Struct, gc=False):
    stopReason: str


_decode_result = msgspec.json.Decoder(_Result).decode


def judged(state: Turn, result: bytes | None, error: RequestError | None) -> tuple[str, bytes | None, RequestError | None]:
    """What the client is told of an agent's answer to session/prompt: (stop reason, result, error).

    ACP v1 prompt-turn: a turn that was cancelled ends `cancelled`, never with an error, whatever the agent makes of it;
    the stop reasons are a closed enum.
    """
    if state is Turn.CANCELLING:
        known = result is not None and result.lstrip().startswith(b"{")
        return "cancelled", splice.replace(result, "stopReason", b'"cancelled"') if known and result else None, None
    if result is None:
        return "", None, error
    try:
        reason = _decode_result(result).stopReason
    except msgspec.DecodeError:
        reason = ""
    if reason in STOP_REASONS:
        return reason, result, None
    return "", None, RequestError(INTERNAL_ERROR, f"the agent ended the turn with an unknown answer: {result[:200]!r}")


class Prompt(Struct, gc=False):
    """One session/prompt that was accepted. `request` is its raw id; None: nobody waits for an answer."""

    params: bytes
    blocks: bytes
    meta: bytes | None
    client: Client | None
    request: bytes | None
    session: str = ""
    """The id of the session as the client named it."""
    by: str = ""
    """Which line of which shim it was, `<token>:<number>`: so that one that is sent again is not run again."""
    entry: str = ""
    """The id of its entry, once its turn has begun."""
    cancelled: bool = False
    interrupted: bool = False
    """Its client or acpd ends before the agent had it."""

    @property
    def by_member(self) -> bytes:
        """Of its line in the log, and of its place in a queue."""
        return b',"by":%b' % encode(self.by) if self.by else b""
