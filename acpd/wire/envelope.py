r"""The JSON-RPC 2.0 envelope: one line to its members, which stay raw bytes; and back.

Nothing below the envelope is decoded here, so whatever a peer wrote can be passed on byte for byte.
One exception: an escaped lone surrogate (`\ud83d` without its other half) is no text that strict
peers accept, so it becomes `\ufffd` where the line comes in.
"""

from __future__ import annotations

import re

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from acpd import errors

NULL = b"null"
_ID = re.compile(rb'"|null$|-?[0-9]+$')
_SURROGATE = re.compile(rb"\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})")


class Envelope(Struct, gc=False):
    """The members of one message, as written."""

    jsonrpc: Raw | UnsetType = UNSET
    id: Raw | UnsetType = UNSET
    method: Raw | UnsetType = UNSET
    params: Raw | UnsetType = UNSET
    result: Raw | UnsetType = UNSET
    error: Raw | UnsetType = UNSET


class ErrorObject(Struct, gc=False):
    """A JSON-RPC error object."""

    code: int
    message: str
    data: Raw | UnsetType = UNSET


_decode = msgspec.json.Decoder(Envelope).decode
encode = msgspec.json.Encoder().encode


def decode(line: bytes) -> Envelope:
    """The envelope of one line. The last of several members with one name counts.

    Raises RequestError: PARSE_ERROR for what is no JSON (bad UTF-8, NaN, too deep), INVALID_REQUEST
    for JSON that is no object.
    """
    if not line.isascii():
        try:
            line.decode()
        except UnicodeDecodeError as error:
            raise errors.RequestError(errors.PARSE_ERROR, f"not UTF-8 at byte {error.start}") from None
    try:
        return _decode(line)
    except msgspec.ValidationError:
        reason = "a message must be a JSON object; batches are not supported"
        raise errors.RequestError(errors.INVALID_REQUEST, reason) from None
    except RecursionError:
        raise errors.RequestError(errors.PARSE_ERROR, "nested too deeply") from None
    except msgspec.DecodeError as error:
        repaired = mend_surrogates(line)
        if repaired != line:
            return decode(repaired)
        raise errors.RequestError(errors.PARSE_ERROR, str(error)) from None


def decode_behind_noise(line: bytes) -> Envelope:
    """As `decode`; where text stands before the object (a terminal's escape sequence), the object alone."""
    try:
        return decode(line)
    except errors.RequestError:
        start = line.find(b"{")
        if start <= 0:
            raise
        return decode(line[start:])


def mend_surrogates(text: bytes) -> bytes:
    r"""JSON text with each escaped lone surrogate replaced by `\ufffd`."""
    return _SURROGATE.sub(lambda match: rb"\ufffd" if match[1] else match[0], text)


def in_line(text: bytes) -> bytes:
    """Kept JSON text as a part of a message, whoever wrote it: with no line end between its tokens, no lone surrogate in it."""
    if b"\n" in text or b"\r" in text:  # in a string neither stands as it is
        text = text.replace(b"\r", b" ").replace(b"\n", b" ")
    return mend_surrogates(text) if b"\\u" in text else text


def valid_id(raw: bytes) -> bool:
    """Whether this is a string, an integer or null (JSON-RPC 4; ACP v1 RequestId)."""
    return _ID.match(raw) is not None


def request(identifier: bytes, method: str, params: bytes) -> bytes:
    return b'{"jsonrpc":"2.0","id":%b,"method":%b,"params":%b}\n' % (identifier, encode(method), params)


def notification(method: str, params: bytes) -> bytes:
    return b'{"jsonrpc":"2.0","method":%b,"params":%b}\n' % (encode(method), params)


def result(identifier: bytes, value: bytes) -> bytes:
    return b'{"jsonrpc":"2.0","id":%b,"result":%b}\n' % (identifier, value)


def error(identifier: bytes, failure: errors.RequestError) -> bytes:
    return b'{"jsonrpc":"2.0","id":%b,"error":%b}\n' % (identifier, error_object(failure))


def error_object(failure: errors.RequestError) -> bytes:
    if failure.raw is not None:
        return failure.raw
    value: dict[str, object] = {"code": failure.code, "message": str(failure)}
    if failure.data is not None:
        value["data"] = failure.data
    return encode(value)
