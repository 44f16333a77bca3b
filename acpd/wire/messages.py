"""The params of the requests and notifications that acpd acts upon, validated (ACP v1 schema, session-setup, prompt-turn).

Each `parse_*` takes the raw params, or UNSET where there are none, and raises RequestError(INVALID_PARAMS) whose message
names the member at fault and never its value: env and headers hold secrets. Optional members that are malformed count as
absent (`x-deserialize-default-on-error`), arrays that are null as empty (`x-deserialize-default-on-null`); items of a
request's arrays are never dropped. What is passed on to an agent stays Raw, byte for byte unless it had to be mended.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Literal, TypeVar

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from acpd.errors import INVALID_PARAMS, RequestError
from acpd.wire import mend, splice, titles
from acpd.wire.blocks import Anything, ContentBlock, Open, blocks_decoder
from acpd.wire.envelope import valid_id

AnyRequest = TypeVar("AnyRequest", bound="Request")
Session = TypeVar("Session", bound="NewSession")
Params = Raw | UnsetType
EMPTY = Raw(b"[]")

first_line_title = titles.first_line_title


class Request(Struct, gc=False, kw_only=True, rename={"meta": "_meta"}):
    """Any params; `_meta` as written."""

    meta: Raw | UnsetType = UNSET


class ForSession(Request, gc=False, kw_only=True):
    """session/close, session/delete, session/cancel, _acpd/tree."""

    sessionId: str


class Initialize(Request, gc=False, kw_only=True):
    """`clientCapabilities` and `clientInfo` are valid where they are given."""

    protocolVersion: Annotated[int, Meta(ge=0, le=65535)]
    clientCapabilities: Raw | UnsetType = UNSET
    clientInfo: Raw | UnsetType = UNSET


class NewSession(Request, gc=False, kw_only=True):
    """session/new. `mcpServers` is a JSON array of valid entries; `directories` the additional ones, all absolute."""

    cwd: str
    mcpServers: Raw = EMPTY
    additionalDirectories: tuple[str, ...] | None = ()
    systemPrompt: Raw | UnsetType = UNSET

    @property
    def directories(self) -> tuple[str, ...]:
        return self.additionalDirectories or ()


class OldSession(NewSession, gc=False, kw_only=True):
    """session/load, resume, fork."""

    sessionId: str


class ListSessions(Request, gc=False, kw_only=True):
    cwd: str | None = None
    cursor: str | None = None


class Prompt(ForSession, gc=False, kw_only=True):
    """`prompt` is a JSON array of at least one valid content block."""

    prompt: Raw


class SetMode(ForSession, gc=False, kw_only=True):
    modeId: str


class SetConfigOption(ForSession, gc=False, kw_only=True):
    """`value` is a bool only if `type` said so."""

    configId: str
    value: str | bool
    type: Raw | UnsetType = UNSET


class Branch(ForSession, gc=False, kw_only=True):
    """`entry`: an id, the beginning of one, or a label."""

    entry: Annotated[str, Meta(min_length=1)]


class Label(Branch, gc=False, kw_only=True):
    """`label` null: none."""

    label: str | None


class Search(Request, gc=False, kw_only=True, forbid_unknown_fields=True):
    """_acpd/search. `since` and `until` are times of RFC 3339 with a zone."""

    query: str
    agent: str | None = None
    cwd: str | None = None
    since: Annotated[datetime, Meta(tz=True)] | None = None
    until: Annotated[datetime, Meta(tz=True)] | None = None
    best: bool = False
    limit: Annotated[int, Meta(ge=1, le=100)] = 20
    perSession: Annotated[int, Meta(ge=0, le=100)] = 3


class CancelRequest(Request, gc=False, kw_only=True):
    requestId: Raw


class Authenticate(Request, gc=False, kw_only=True):
    methodId: str


class _Pair(Struct, gc=False):
    name: str
    value: str


class _Stdio(Struct, gc=False):
    name: Annotated[str, Meta(min_length=1)]
    command: Annotated[str, Meta(min_length=1)]
    args: list[str] | None
    env: list[_Pair] | None


class _Remote(Struct, gc=False):
    name: Annotated[str, Meta(min_length=1)]
    url: str
    headers: list[_Pair] | None


class _Acp(Struct, gc=False):
    name: Annotated[str, Meta(min_length=1)]
    serverId: str


class _Transport(Struct, gc=False):
    type: str | None = None


class _Files(Open, gc=False, kw_only=True):
    readTextFile: bool | UnsetType = UNSET
    writeTextFile: bool | UnsetType = UNSET


class _Boolean(Open, gc=False, kw_only=True):
    boolean: Open | UnsetType | None = UNSET


class _SessionCapabilities(Open, gc=False, kw_only=True):
    compaction: Anything | UnsetType | None = UNSET
    configOptions: _Boolean | UnsetType | None = UNSET
    notices: Anything | UnsetType | None = UNSET


class _Auth(Open, gc=False, kw_only=True):
    terminal: bool | UnsetType = UNSET


class _Elicitation(Open, gc=False, kw_only=True):
    form: Open | UnsetType | None = UNSET
    url: Open | UnsetType | None = UNSET


class _ClientCapabilities(Open, gc=False, kw_only=True):
    fs: _Files | UnsetType = UNSET
    terminal: bool | UnsetType = UNSET
    session: _SessionCapabilities | UnsetType | None = UNSET
    subagents: Open | UnsetType | None = UNSET
    plan: Open | UnsetType | None = UNSET
    auth: _Auth | UnsetType = UNSET
    elicitation: _Elicitation | UnsetType | None = UNSET


class _Implementation(Open, gc=False, kw_only=True):
    name: str
    version: str
    title: str | UnsetType | None = UNSET


_SERVERS: dict[str, type[Struct]] = {"stdio": _Stdio, "http": _Remote, "sse": _Remote, "acp": _Acp}
# RFC 3986 as far as it matters: scheme, user, host (or [IPv6]), port, rest. urllib.parse would cost milliseconds at each start.
_URL = re.compile(
    r"https?://(?:[^\s/?#@\x00-\x1f]*@)?(?:\[[0-9A-Fa-f:.]+\]|[^\s/?#@:\[\]\x00-\x1f]+)(?::([0-9]{0,5}))?(?:[/?#][^\s\x00-\x1f]*)?",
    re.IGNORECASE,
)


def parse_initialize(params: Params) -> Initialize:
    """ProtocolVersion is an integer 0..65535 (bool and text are not); what is malformed besides counts as absent."""
    request = _parsed(Initialize, params)
    request.clientCapabilities = _mended(_ClientCapabilities, request.clientCapabilities)
    request.clientInfo = _mended(_Implementation, request.clientInfo)
    return request


def parse_new(params: Params) -> NewSession:
    """session/new: cwd and mcpServers are required."""
    return _checked(_parsed(NewSession, params), required=True)


def parse_load(params: Params) -> OldSession:
    """session/load: sessionId, cwd and mcpServers are required."""
    return _checked(_parsed(OldSession, params), required=True)


def parse_resume(params: Params) -> OldSession:
    """session/resume: sessionId and cwd are required."""
    return _checked(_parsed(OldSession, params), required=False)


def parse_fork(params: Params) -> OldSession:
    """session/fork: sessionId and cwd are required; what is omitted is not taken over from the source (S7)."""
    return _checked(_parsed(OldSession, params), required=False)


def parse_list(params: Params) -> ListSessions:
    """session/list: all members are optional, and so are the params. A cwd must be absolute."""
    request = _parsed(ListSessions, params)
    if request.cwd is not None:
        _absolute(request.cwd, "params.cwd")
    return request


def parse_close(params: Params) -> ForSession:
    return _parsed(ForSession, params)


def parse_delete(params: Params) -> ForSession:
    return _parsed(ForSession, params)


def parse_cancel(params: Params) -> ForSession:
    return _parsed(ForSession, params)


def parse_prompt(params: Params) -> Prompt:
    """session/prompt: at least one block, each of a known type with what that type requires."""
    request = _parsed(Prompt, params)
    try:
        if blocks_decoder().decode(request.prompt):
            return request
    except mend.FAULTS:
        request.prompt = _mended_blocks(bytes(request.prompt))
        return request
    raise _invalid("params.prompt must not be empty")


def parse_set_mode(params: Params) -> SetMode:
    return _parsed(SetMode, params)


def parse_set_config_option(params: Params) -> SetConfigOption:
    """session/set_config_option: value is text, or a bool where type is "boolean"."""
    request = _parsed(SetConfigOption, params)
    if isinstance(request.value, bool) and (request.type is UNSET or not mend.fits(Literal["boolean"], bytes(request.type))):
        raise _invalid('params.value may be a bool only with params.type "boolean"')
    return request


def parse_tree(params: Params) -> ForSession:
    return _parsed(ForSession, params)


def parse_branch(params: Params) -> Branch:
    return _parsed(Branch, params)


def parse_label(params: Params) -> Label:
    return _parsed(Label, params)


def parse_search(params: Params) -> Search:
    """_acpd/search: ours, so that what is not known is refused: a filter that was misspelt would find too much."""
    request = _parsed(Search, params)
    if request.cwd is not None:
        _absolute(request.cwd, "params.cwd")
    return request


def parse_cancel_request(params: Params) -> CancelRequest:
    """$/cancel_request: requestId as written, which is a string, an integer or null."""
    request = _parsed(CancelRequest, params)
    if not valid_id(bytes(request.requestId)):
        raise _invalid("params.requestId must be a string, an integer or null")
    return request


def parse_authenticate(params: Params) -> Authenticate:
    return _parsed(Authenticate, params)


def parse_logout(params: Params) -> Request:
    """logout: the params may be absent."""
    return _parsed(Request, params)


def passed_on(request: Request, params: Params) -> bytes:
    """The params for an agent: as the client wrote them, but for what had to be mended."""
    raw = b"{}" if isinstance(params, UnsetType) else bytes(params)
    sound: dict[str, bytes] = {}
    if isinstance(request, Prompt) and bytes(request.prompt) not in raw:
        sound["prompt"] = bytes(request.prompt)
    if isinstance(request, NewSession):
        sound["mcpServers"] = bytes(request.mcpServers)
        if not request.directories:
            sound["additionalDirectories"] = b"[]"
    odd_meta = request.meta is UNSET and b"meta" in raw
    if not sound and not odd_meta:
        return raw
    found = splice.members(raw)
    edits = [(*found[name], value) for name, value in sound.items() if name in found and raw[slice(*found[name])] != value]
    raw = splice.apply(raw, edits) if edits else raw
    meta = splice.members(raw).get("_meta") if odd_meta else None
    return splice.remove(raw, ("_meta",)) if meta is not None and raw[slice(*meta)] != b"null" else raw


def _parsed(shape: type[AnyRequest], params: Params) -> AnyRequest:
    try:
        request: AnyRequest = mend.decoder(shape).decode(b"{}" if isinstance(params, UnsetType) else params)
    except mend.FAULTS as error:
        raise _invalid(_reason(error, "params")) from None
    if request.meta is not UNSET:
        request.meta = _mended(Anything, request.meta)
    return request


def _reason(error: Exception, place: str) -> str:
    """What msgspec says, with the member's place, without a value."""
    if isinstance(error, RecursionError):
        return f"{place} is nested too deeply"
    reason, _, path = str(error).partition(" - at `$")
    if reason.startswith("Invalid"):  # what follows is the value
        reason = "not a known value"
    return f"{place}{path.rstrip('`')}: {reason}"


def _invalid(message: str) -> RequestError:
    return RequestError(INVALID_PARAMS, message)


def _mended(shape: type[Struct], raw: Raw | UnsetType) -> Raw | UnsetType:
    """An optional member, mended; absent if there is no repair."""
    if isinstance(raw, UnsetType):
        return raw
    mended = mend.mend(shape, bytes(raw), [])
    return UNSET if mended is None else Raw(mended)


def _mended_blocks(prompt: bytes) -> Raw:
    try:
        spans = splice.items(prompt)
    except mend.FAULTS as error:
        raise _invalid(_reason(error, "params.prompt")) from None
    edits: list[splice.Edit] = []
    for index, (start, end) in enumerate(spans):
        block = prompt[start:end]
        mended = mend.mend(ContentBlock, block, [])
        if mended is None:
            raise _invalid(mend.blame(ContentBlock, block, f"params.prompt[{index}]"))
        edits.append((start, end, mended))
    return Raw(splice.apply(prompt, edits))


def _checked(request: Session, *, required: bool) -> Session:
    _absolute(request.cwd, "params.cwd")
    for index, path in enumerate(request.directories):
        _absolute(path, f"params.additionalDirectories[{index}]")
    if request.mcpServers is EMPTY:
        if required:
            raise _invalid("params.mcpServers is missing")
    else:
        request.mcpServers = _checked_servers(bytes(request.mcpServers))
    return request


def _absolute(path: str, place: str) -> None:
    """ACP v1 session-setup: paths are absolute. The kernel takes no NUL, and nothing that has no UTF-8."""
    if not path.startswith("/"):
        raise _invalid(f"{place} must be an absolute path")
    if "\0" in path:
        raise _invalid(f"{place} must not contain NUL")
    try:
        path.encode()
    except UnicodeEncodeError:
        raise _invalid(f"{place} must be valid Unicode") from None


def _checked_servers(servers: bytes) -> Raw:
    if servers == b"null":
        return EMPTY
    try:
        spans = splice.items(servers)
    except mend.FAULTS as error:
        raise _invalid(_reason(error, "params.mcpServers")) from None
    edits: list[splice.Edit] = []
    for index, (start, end) in enumerate(spans):
        entry = servers[start:end]
        mended = _checked_server(entry, f"params.mcpServers[{index}]")
        if mended is not entry:
            edits.append((start, end, mended))
    return Raw(splice.apply(servers, edits) if edits else servers)


def _checked_server(entry: bytes, place: str) -> bytes:
    """Raises RequestError that names the member and no value. An array that is null becomes `[]`."""
    try:
        kind = mend.decoder(_Transport).decode(entry).type or "stdio"
        shape = _SERVERS.get(kind)
        if shape is None:
            raise _invalid(f"{place}.type is not a known transport")
        server = mend.decoder(shape).decode(entry)
    except mend.FAULTS as error:
        raise _invalid(_reason(error, place)) from None
    if isinstance(server, _Remote):
        _web_url(server.url, f"{place}.url")
    for name in ("args", "env", "headers"):
        if getattr(server, name, ()) is None:
            entry = splice.replace(entry, name, b"[]")
    return entry


def _web_url(url: str, place: str) -> None:
    match = _URL.fullmatch(url)
    if match is None or not 0 < int(match[1] or 1) < 65536:
        raise _invalid(f"{place} must be an http or https URL with a host")
