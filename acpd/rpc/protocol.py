"""JSON-RPC 2.0 as ACP uses it, sans-IO: lines in, events out; ids, pending calls, one answer a request.

A line never raises: what is wrong with it is an event. Whether a bad line is answered depends on the peer:
a client is told (JSON-RPC 5.1), an agent's noise is only reported.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from acpd import errors
from acpd.errors import RequestError
from acpd.wire import envelope

Params = Raw | UnsetType
Then = Callable[[bytes | None, RequestError | None], None]
"""Called once with the raw result, or with the error."""


class Request(Struct, gc=False):
    """The peer wants an answer. `id` is raw JSON text."""

    id: bytes
    method: str
    params: Params


class Notification(Struct, gc=False):
    """The peer wants no answer."""

    method: str
    params: Params


class Response(Struct, gc=False):
    """The peer answered a call of ours: exactly one of the two is set."""

    then: Then
    result: bytes | None
    error: RequestError | None


class Bad(Struct, gc=False):
    """A line that is none of these. `reply` is what to send for it, empty: nothing."""

    why: str
    reply: bytes = b""


Event = Request | Notification | Response | Bad

_decode_method = msgspec.json.Decoder(str).decode
_decode_error = msgspec.json.Decoder(envelope.ErrorObject).decode
_METHOD_NAMES: dict[bytes, str] = {}
_MAX_METHOD_NAMES = 256
_MAX_KEPT = 100
_VERSION = b'"2.0"'


class Protocol:
    """One side of one connection. `strict`: the peer is told about bad lines and must say `"jsonrpc":"2.0"`."""

    __slots__ = ("_calls", "_next_id", "_open", "_strict")

    def __init__(self, *, strict: bool, first_id: int = 0) -> None:
        self._strict = strict
        self._calls: dict[bytes, Then] = {}
        self._open: set[bytes] = set()
        self._next_id = first_id

    # -- in

    def receive(self, line: bytes) -> Event:
        """The event of one line that is not blank."""
        try:
            message = envelope.decode(line) if self._strict else envelope.decode_behind_noise(line)
        except RequestError as error:
            return self._bad(error)
        if message.method is not UNSET:
            return self._request(message, message.method)
        if message.id is not UNSET and (message.result is not UNSET or message.error is not UNSET):
            return self._response(bytes(message.id), message)
        return self._bad(RequestError(errors.INVALID_REQUEST, "neither a request, a notification nor a response"))

    def too_long(self, size: int, limit: int) -> Bad:
        error = RequestError(errors.INVALID_REQUEST, f"a line of {size} bytes is over the limit of {limit}")
        return self._bad(error)

    def _bad(self, error: RequestError, identifier: bytes = envelope.NULL) -> Bad:
        return Bad(str(error), envelope.error(identifier, error) if self._strict else b"")

    def _request(self, message: envelope.Envelope, raw: Raw) -> Event:
        method = _method_name(bytes(raw))
        if message.id is UNSET:
            return Bad("method is no text") if method is None else Notification(method, message.params)
        identifier = bytes(message.id)
        if not (identifier.isdigit() or envelope.valid_id(identifier)):
            return self._bad(RequestError(errors.INVALID_REQUEST, "id must be a string, an integer or null"))
        if method is None:
            return self._bad(RequestError(errors.INVALID_REQUEST, "method must be a string"), identifier)
        if self._strict and (message.jsonrpc is UNSET or bytes(message.jsonrpc) != _VERSION):
            return self._bad(RequestError(errors.INVALID_REQUEST, 'jsonrpc must be "2.0"'), identifier)
        if identifier in self._open:
            return self._bad(RequestError(errors.INVALID_REQUEST, f"id {identifier.decode()[:80]} is still in use"))
        self._open.add(identifier)
        return Request(identifier, method, message.params)

    def _response(self, identifier: bytes, message: envelope.Envelope) -> Event:
        then = self._calls.pop(identifier, None)
        if then is None:
            return Bad(f"answer to id {identifier[:80].decode(errors='replace')}, which is not open")
        if message.error is not UNSET and bytes(message.error) != envelope.NULL:
            return Response(then, None, _error(bytes(message.error)))
        return Response(then, bytes(message.result) if message.result is not UNSET else envelope.NULL, None)

    # -- out

    def call(self, method: str, params: bytes, then: Then, identifier: bytes | None = None) -> tuple[bytes, bytes]:
        """The id and the line of a new request. Ids that we number are never used twice."""
        if identifier is None:
            identifier = b"%d" % self._next_id
            self._next_id += 1
        self._calls[identifier] = then
        return identifier, envelope.request(identifier, method, params)

    def expect(self, identifier: bytes, then: Then) -> None:
        """Take an answer to a request that was sent before this stream began."""
        self._calls[identifier] = then

    def forget(self, identifier: bytes) -> Then | None:
        """Give up waiting for a call; a later answer is a Bad event."""
        return self._calls.pop(identifier, None)

    @property
    def open_requests(self) -> int:
        """How many requests of the peer wait for their answers."""
        return len(self._open)

    def answer(self, identifier: bytes, result: bytes) -> bytes:
        """The response line; empty if that request was answered already."""
        return envelope.result(identifier, result) if self._close(identifier) else b""

    def refuse(self, identifier: bytes, error: RequestError) -> bytes:
        """The error line; empty if that request was answered already."""
        return envelope.error(identifier, error) if self._close(identifier) else b""

    def _close(self, identifier: bytes) -> bool:
        if identifier in self._open:
            self._open.remove(identifier)
            return True
        return False

    def broken(self) -> list[Then]:
        """The stream has ended: the calls that will never be answered."""
        waiting = list(self._calls.values())
        self._calls.clear()
        return waiting


def _method_name(raw: bytes) -> str | None:
    name = _METHOD_NAMES.get(raw)
    if name is None:
        try:
            name = _decode_method(raw)
        except msgspec.DecodeError:
            return None
        if len(_METHOD_NAMES) < _MAX_METHOD_NAMES and len(raw) < _MAX_KEPT:
            _METHOD_NAMES[raw] = name
    return name


def _error(raw: bytes) -> RequestError:
    """The peer's error object; one that is malformed becomes an internal error that quotes it."""
    try:
        known = _decode_error(raw)
    except msgspec.DecodeError:
        return RequestError(errors.INTERNAL_ERROR, f"malformed error: {raw[:200].decode(errors='replace')}")
    return RequestError(known.code, known.message, raw=raw)
