"""What an agent asks of its client, as shapes (ACP v1 schema): a client is never asked what it could not read.

Repair is only what the schema says (acpd.wire.mend). What a tool would do is never changed by it: a malformed argument,
line or option makes the whole request malformed.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Raw, UnsetType

from acpd.errors import INVALID_PARAMS, RequestError
from acpd.wire import mend, splice
from acpd.wire.blocks import Anything, Location, Open, ToolCallContent, ToolKind, ToolStatus, Uint64, within_uint64

_Uint32 = Annotated[Annotated[int, Meta(ge=0, le=2**32 - 1)] | None, mend.STRICT]
_Uint64 = Annotated[Uint64 | None, mend.STRICT]


class _Request(Open, gc=False, kw_only=True):
    sessionId: str


class _ToolCall(Open, gc=False, kw_only=True):
    toolCallId: str
    title: str | UnsetType | None = UNSET
    name: str | UnsetType | None = UNSET
    kind: ToolKind | UnsetType | None = UNSET
    status: ToolStatus | UnsetType | None = UNSET
    content: list[ToolCallContent] | UnsetType | None = UNSET
    locations: list[Location] | UnsetType | None = UNSET
    rawInput: Raw | UnsetType = UNSET
    rawOutput: Raw | UnsetType = UNSET


class _Option(Open, gc=False, kw_only=True):
    optionId: str
    name: str
    kind: Literal["allow_once", "allow_always", "reject_once", "reject_always"]


class _Permission(_Request, gc=False, kw_only=True):
    toolCall: _ToolCall
    options: Annotated[list[_Option], mend.STRICT]


class _Form(Open, gc=False, kw_only=True, tag_field="mode", tag="form"):
    message: str
    requestedSchema: Anything


class _Url(Open, gc=False, kw_only=True, tag_field="mode", tag="url"):
    message: str
    elicitationId: str
    url: str


class _Read(_Request, gc=False, kw_only=True):
    path: str
    line: _Uint32 | UnsetType = UNSET
    limit: _Uint32 | UnsetType = UNSET


class _Write(_Request, gc=False, kw_only=True):
    path: str
    content: str


class _Variable(Open, gc=False, kw_only=True):
    name: str
    value: str


class _Create(_Request, gc=False, kw_only=True):
    command: str
    args: Annotated[list[str] | None, mend.STRICT] | UnsetType = UNSET
    env: Annotated[list[_Variable] | None, mend.STRICT] | UnsetType = UNSET
    cwd: Annotated[str | None, mend.STRICT] | UnsetType = UNSET
    outputByteLimit: _Uint64 | UnsetType = UNSET

    def __post_init__(self) -> None:
        if isinstance(self.outputByteLimit, int):
            within_uint64(self.outputByteLimit)


class _Terminal(_Request, gc=False, kw_only=True):
    terminalId: str


_SHAPES: dict[str, Any] = {
    "session/request_permission": _Permission,
    "elicitation/create": _Form | _Url,
    "fs/read_text_file": _Read,
    "fs/write_text_file": _Write,
    "terminal/create": _Create,
    "terminal/output": _Terminal,
    "terminal/wait_for_exit": _Terminal,
    "terminal/kill": _Terminal,
    "terminal/release": _Terminal,
}
_LISTS = ("args", "env")


def checked(method: str, params: bytes) -> bytes:
    """These params as a client may get them: the same text where it is valid. Other methods pass.

    Raises RequestError(INVALID_PARAMS), which names the member.
    """
    shape = _SHAPES.get(method)
    if shape is None:
        return params
    if mend.fits(shape, params):
        mended: bytes | None = params
    else:
        mended = mend.mend(shape, params, [])
    if mended is None:
        raise RequestError(INVALID_PARAMS, f"{method}: {mend.blame(shape, params, 'params')}")
    return _without_nulls(mended) if method == "terminal/create" else mended


def _without_nulls(params: bytes) -> bytes:
    """Null for a list means none, and only here may it be so (`x-deserialize-default-on-null`)."""
    found = splice.members(params)
    nulls = [name for name in _LISTS if name in found and params[slice(*found[name])] == b"null"]
    return splice.remove(params, nulls) if nulls else params
