"""What an agent asks a person: permissions and elicitations, as durable entries.

An ask is an entry with an id of ours; that id is the request's id to every client, and the answer is an entry too.
All attached clients are asked for a permission, the first answer wins and the others are told; an elicitation goes to
one. Nobody there: it waits. Nothing is ever granted because nobody is there: an option that was not offered is a refusal.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from acpd import errors
from acpd.attachment import Client
from acpd.errors import RequestError
from acpd.wire import splice

PERMISSION = "session/request_permission"
ELICITATION = "elicitation/create"
CANCELLED = {PERMISSION: b'{"outcome":{"outcome":"cancelled"}}', ELICITATION: b'{"action":"cancel"}'}

Reply = Callable[[bytes | None, RequestError | None], None]
"""Answers the agent's request."""


class Option(Struct, gc=False):
    """A choice of a permission request."""

    optionId: str
    kind: str = ""


class PermissionParams(Struct, gc=False):
    """session/request_permission, as far as acpd looks."""

    options: list[Option]
    toolCall: Raw


class ElicitationParams(Struct, gc=False):
    """elicitation/create, as far as acpd looks."""

    message: str
    mode: str


class Outcome(Struct, gc=False):
    outcome: str
    optionId: str | UnsetType = UNSET


class PermissionResult(Struct, gc=False):
    outcome: Outcome


class ElicitationResult(Struct, gc=False):
    action: str


_decode_permission = msgspec.json.Decoder(PermissionParams).decode
_decode_elicitation = msgspec.json.Decoder(ElicitationParams).decode
_decode_permission_result = msgspec.json.Decoder(PermissionResult).decode
_decode_elicitation_result = msgspec.json.Decoder(ElicitationResult).decode


class Ask:
    """One open question. `call` is its JSON-RPC id to clients, raw."""

    __slots__ = ("call", "clients", "id", "method", "mode", "options", "outgoing", "reply", "request")

    def __init__(self, method: str, params: bytes, session: bytes, request: bytes, reply: Reply) -> None:
        """Raises RequestError(INVALID_PARAMS) if the agent's params are not what the method needs."""
        self.id = ""
        self.call = b""
        self.method = method
        self.request = request
        self.reply = reply
        self.clients: list[Client] = []
        self.options: list[Option] = []
        self.mode = ""
        try:
            if method == PERMISSION:
                self.options = _decode_permission(params).options
            else:
                self.mode = _decode_elicitation(params).mode
            self.outgoing = splice.replace(params, "sessionId", session)
        except msgspec.DecodeError as error:
            raise RequestError(errors.INVALID_PARAMS, f"{method}: {error}") from None

    def named(self, identifier: str) -> None:
        self.id = identifier
        self.call = b'"%b"' % identifier.encode()

    def may_go_to(self, client: Client) -> bool:
        return self.method == PERMISSION or self.mode in client.capabilities.elicitation

    def judged(self, result: bytes) -> bytes:
        """What the agent is told for this answer of a client: the answer, or a refusal if it is not one that was offered."""
        try:
            if self.method == ELICITATION:
                known = _decode_elicitation_result(result).action in ("accept", "decline", "cancel")
                return result if known else CANCELLED[ELICITATION]
            outcome = _decode_permission_result(result).outcome
        except msgspec.DecodeError:
            return CANCELLED[self.method]
        if outcome.outcome == "cancelled":
            return result
        offered = outcome.outcome == "selected" and any(option.optionId == outcome.optionId for option in self.options)
        return result if offered else self._refusal()

    def _refusal(self) -> bytes:
        for option in self.options:
            if option.kind == "reject_once":
                return b'{"outcome":{"outcome":"selected","optionId":%b}}' % msgspec.json.encode(option.optionId)
        return CANCELLED[PERMISSION]
