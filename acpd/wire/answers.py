"""What an agent answers, as shapes (ACP v1 schema): a client gets no answer that it could not read.

What is malformed and optional is left out, items of a list that are malformed too (acpd.wire.mend); every other byte is the
agent's. What has no repair is the agent's failure.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from acpd.errors import AgentError
from acpd.wire import mend, splice
from acpd.wire.blocks import Anything, Open, Usage
from acpd.wire.updates import Select, Switch


class _Mode(Open, gc=False, kw_only=True):
    id: str
    name: str
    description: str | UnsetType | None = UNSET


class _Modes(Open, gc=False, kw_only=True):
    currentModeId: str
    availableModes: list[_Mode]


class _Settings(Open, gc=False, kw_only=True):
    modes: _Modes | UnsetType | None = UNSET
    configOptions: list[Select | Switch] | UnsetType | None = UNSET


class _New(_Settings, gc=False, kw_only=True):
    sessionId: str


class _Prompted(Open, gc=False, kw_only=True):
    stopReason: str
    usage: Usage | UnsetType | None = UNSET


class _Options(Open, gc=False, kw_only=True):
    configOptions: list[Select | Switch]


class _Info(Open, gc=False, kw_only=True):
    """One session of session/list."""

    sessionId: str
    cwd: str
    additionalDirectories: list[str] | UnsetType = UNSET
    title: str | UnsetType | None = UNSET
    updatedAt: str | UnsetType | None = UNSET
    archived: bool | UnsetType | None = UNSET


class _PromptCapabilities(Open, gc=False, kw_only=True):
    image: bool | UnsetType = UNSET
    audio: bool | UnsetType = UNSET
    embeddedContext: bool | UnsetType = UNSET


class _McpCapabilities(Open, gc=False, kw_only=True):
    http: bool | UnsetType = UNSET
    sse: bool | UnsetType = UNSET
    acp: bool | UnsetType = UNSET


class _Auth(Open, gc=False, kw_only=True):
    status: Open | UnsetType | None = UNSET
    logout: Open | UnsetType | None = UNSET


class _Login(Open, gc=False, kw_only=True):
    id: str
    name: str
    description: str | UnsetType | None = UNSET


class _TerminalLogin(_Login, gc=False, kw_only=True, tag_field="type", tag="terminal"):
    args: list[str] | UnsetType = UNSET
    env: dict[str, str] | UnsetType = UNSET


_DONE: Any = Anything
_SHAPES: dict[str, Any] = {
    "authenticate": _DONE,
    "logout": _DONE,
    "session/new": _New,
    "session/fork": _New,
    "session/load": _Settings,
    "session/resume": _Settings,
    "session/set_mode": _DONE,
    "session/set_config_option": _Options,
}
_CAPABILITIES: dict[str, Any] = {
    "promptCapabilities": _PromptCapabilities,
    "mcpCapabilities": _McpCapabilities,
    "auth": _Auth,
}


def checked(method: str, result: bytes) -> bytes:
    """The agent's result as a client may get it. What needs no member is `{}` if it is no object: agents answer null, true.

    Results of methods that are not known here pass. Raises AgentError, which names the member.
    """
    shape = _SHAPES.get(method)
    if shape is None:
        return result
    sound = mend.mend(shape, result, [])
    if sound is not None:
        return sound
    if shape in (_DONE, _Settings):
        return b"{}"
    raise AgentError(f"the agent's answer to {method} is none: {mend.blame(shape, result, 'result')}: {result[:200]!r}")


def prompted(result: bytes) -> bytes:
    """The agent's result of session/prompt without what is malformed beside the stop reason, which is judged elsewhere."""
    return mend.mend(_Prompted, result, []) or result


def settings(said: bytes) -> bytes:
    """An object with modes and configOptions, without what is malformed of them."""
    return mend.mend(_Settings, said, []) or b"{}"


def listed(session: bytes) -> bytes | None:
    """One item of the agent's session/list; None: it has no repair."""
    return mend.mend(_Info, session, [])


def capability(name: str, value: bytes) -> bytes | None:
    """One of the agent's capabilities that are announced as they are; None: it has no repair and counts as absent."""
    return mend.mend(_CAPABILITIES[name], value, [])


def logins(methods: bytes, *, terminal: bool) -> list[bytes]:
    """The items of authMethods that are valid; those by terminal only for a client that can (ACP v1 authentication)."""
    try:
        found = [methods[slice(*span)] for span in splice.items(methods)]
    except mend.FAULTS:
        return []
    return [sound for method in found if (sound := _login(method, terminal=terminal)) is not None]


def _login(method: bytes, *, terminal: bool) -> bytes | None:
    try:
        kind = bytes(msgspec.json.decode(method, type=dict[str, Raw]).get("type", Raw(b"")))
    except msgspec.DecodeError:
        return None
    if kind != b'"terminal"':
        return mend.mend(_Login, method, [])
    return mend.mend(_TerminalLogin, method, []) if terminal else None
