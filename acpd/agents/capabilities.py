"""What either side said that it can, as far as acpd must know: an agent in its initialize answer, a client in its request."""

from __future__ import annotations

from typing import TypeVar

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from acpd.attachment import ClientCapabilities
from acpd.wire import mend

Flag = Raw | UnsetType
T = TypeVar("T", bound=Struct)


class SessionCapabilities(Struct, frozen=True, gc=False):
    list: Flag = UNSET
    resume: Flag = UNSET
    fork: Flag = UNSET
    close: Flag = UNSET
    delete: Flag = UNSET
    additionalDirectories: Flag = UNSET
    systemPrompt: Flag = UNSET

    def has(self, name: str) -> bool:
        """An object is a yes; null, absent and anything else are a no (ACP v1 2.4)."""
        value = getattr(self, name)
        return value is not UNSET and bytes(value).startswith(b"{")


class AgentCapabilities(Struct, frozen=True, gc=False, rename={"meta": "_meta"}):
    """`meta`: where an agent names its extensions (ACP v1 extensibility)."""

    meta: Flag = UNSET
    loadSession: bool = False
    promptCapabilities: Flag = UNSET
    mcpCapabilities: Flag = UNSET
    auth: Flag = UNSET
    sessionCapabilities: SessionCapabilities = SessionCapabilities()


class Info(Struct, frozen=True, gc=False):
    name: str = ""
    version: str = ""
    title: str | None = None


class Initialized(Struct, frozen=True, gc=False):
    """The result of initialize. Members that are malformed count as absent."""

    protocolVersion: int = 1
    agentCapabilities: AgentCapabilities = AgentCapabilities()
    authMethods: Flag = UNSET
    agentInfo: Info = Info()


class _Members(Struct, gc=False):
    protocolVersion: Flag = UNSET
    agentCapabilities: Flag = UNSET
    authMethods: Flag = UNSET
    agentInfo: Flag = UNSET


def parse(result: bytes) -> Initialized:
    """Tolerant: some agents send the version as text, or null for an object."""
    try:
        members = msgspec.json.decode(result, type=_Members)
    except msgspec.DecodeError:
        return Initialized()
    return Initialized(
        protocolVersion=_version(members.protocolVersion),
        agentCapabilities=_struct(members.agentCapabilities, AgentCapabilities),
        authMethods=members.authMethods,
        agentInfo=_struct(members.agentInfo, Info),
    )


def _version(raw: Flag) -> int:
    text = b"1" if raw is UNSET else bytes(raw).strip(b'"')
    return int(text) if text.isdigit() and len(text) < 6 else 0


def _struct(raw: Flag, kind: type[T]) -> T:
    if raw is UNSET:
        return kind()
    sound = mend.mend(kind, bytes(raw), [])
    return msgspec.json.decode(sound, type=kind) if sound is not None else kind()


# -- a client


class _Files(Struct, gc=False):
    readTextFile: bool = False
    writeTextFile: bool = False


class _Elicitation(Struct, gc=False):
    form: Raw | UnsetType = UNSET
    url: Raw | UnsetType = UNSET


class _Auth(Struct, gc=False):
    terminal: bool = False


class _Client(Struct, gc=False):
    auth: _Auth | None = None
    fs: _Files | None = None
    terminal: bool = False
    elicitation: _Elicitation | None = None


def of_client(raw: bytes | None) -> ClientCapabilities:
    """What acpd must know of clientCapabilities; anything malformed counts as absent."""
    if raw is None:
        return ClientCapabilities()
    try:
        said = msgspec.json.decode(raw, type=_Client)
    except msgspec.DecodeError:
        return ClientCapabilities()
    modes = said.elicitation or _Elicitation()
    able = frozenset(
        name
        for name, value in (("form", modes.form), ("url", modes.url))
        if value is not UNSET and bytes(value).startswith(b"{")
    )
    files = said.fs or _Files()
    login = said.auth is not None and said.auth.terminal
    return ClientCapabilities(files.readTextFile, files.writeTextFile, said.terminal, able, login)


class _Initialize(Struct, gc=False):
    clientCapabilities: Raw | UnsetType = UNSET


def told(initialize: bytes) -> ClientCapabilities:
    """What an agent counts on that got these params of initialize."""
    said = msgspec.json.decode(initialize, type=_Initialize).clientCapabilities
    return of_client(None if said is UNSET else bytes(said))
