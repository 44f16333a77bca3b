"""The two handshakes: what a client is told about its agent and acpd, and what an agent is told about its client."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, Raw, Struct

import acpd
from acpd import attaching
from acpd.agents.capabilities import Initialized
from acpd.attachment import ClientCapabilities
from acpd.wire import messages, splice, updates
from acpd.wire.envelope import encode

_OURS = ("list", "resume", "close", "delete", "fork")


START = "acpd.dev/start"
STATE = "acpd.dev/state"
TOOLS = b'["search","list","history","memory"]'
"""What an agent may ask acpd by `_acpd/...` (acpd.recall.tools; not imported for it)."""


class _Meta(Struct, gc=False, rename={"start": START}):
    start: bool = True


def starts_agents(said: messages.Initialize) -> bool:
    """Whether this client wants an agent before it needs one: all do that do not say `_meta["acpd.dev/start"] = false`."""
    try:
        return msgspec.json.decode(said.meta, type=_Meta).start if said.meta is not UNSET else True
    except msgspec.DecodeError:
        return True


def for_agent(said: messages.Initialize) -> bytes:
    """The params of initialize for an agent: the client's own, version 1, without what acpd cannot pass on yet (subagents), and
    with compactions: acpd records them, whatever the client knows, and sends them to those that know them.

    In its `_meta` are acpd's own words: it keeps values (`_acpd/state`), and may be asked about earlier sessions.
    """
    capabilities = b"{}" if said.clientCapabilities is UNSET else bytes(said.clientCapabilities)
    if "subagents" in splice.members(capabilities):
        capabilities = splice.replace(capabilities, "subagents", b"null")
    if "compaction_update" not in updates.allowed_kinds(capabilities):
        capabilities = _with_compaction(capabilities)
    capabilities = _with_ours(capabilities)
    info = b"" if said.clientInfo is UNSET else b',"clientInfo":%b' % bytes(said.clientInfo)
    return b'{"protocolVersion":1,"clientCapabilities":%b%b}' % (capabilities, info)


def _with_ours(capabilities: bytes) -> bytes:
    span = splice.members(capabilities).get("_meta")
    meta = capabilities[slice(*span)] if span is not None else b""
    meta = meta if meta.startswith(b"{") else b"{}"
    meta = splice.replace(meta, STATE, b"{}")
    return splice.replace(capabilities, "_meta", splice.replace(meta, "acpd.dev/tools", TOOLS))


def _with_compaction(capabilities: bytes) -> bytes:
    found = splice.members(capabilities).get("session")
    session = b"{}" if found is None else capabilities[slice(*found)]
    session = splice.replace(session if session.startswith(b"{") else b"{}", "compaction", b"{}")
    return splice.replace(capabilities, "session", session)


def initialize_answer(agent: Initialized | None, name: str, client: ClientCapabilities) -> bytes:
    """The result of initialize. The agent's own prompt and MCP capabilities and logins; sessions are acpd's."""
    from acpd.wire import answers  # while the agent starts it has been imported already

    said = agent.agentCapabilities if agent is not None else None
    sessions: dict[str, dict[str, object]] = {key: {} for key in _OURS}
    if said is not None:
        for key in ("additionalDirectories", "systemPrompt"):
            if said.sessionCapabilities.has(key):
                sessions[key] = {}
    ours = {attaching.NAME: attaching.OPTIONS}
    capabilities: dict[str, object] = {"loadSession": True, "sessionCapabilities": sessions, "_meta": ours}
    if said is not None:
        for key in ("promptCapabilities", "mcpCapabilities", "auth"):
            value = getattr(said, key)
            sound = None if value is UNSET else answers.capability(key, bytes(value))
            if sound is not None:
                capabilities[key] = Raw(sound)
    title = f"{agent.agentInfo.title or name} (acpd)" if agent is not None else "acpd"
    methods = bytes(agent.authMethods) if agent is not None and agent.authMethods is not UNSET else b"[]"
    logins = [_with_login(method) for method in answers.logins(methods, terminal=client.terminal_login)]
    return encode(
        {
            "protocolVersion": 1,
            "agentCapabilities": capabilities,
            "agentInfo": {"name": "acpd", "title": title, "version": acpd.__version__},
            "authMethods": logins,
        }
    )


def _with_login(method: bytes) -> Raw:
    """Terminal logins run this very command again: ACPD_LOGIN=1 in their environment makes it become the agent."""
    found = splice.members(method)
    if "type" not in found or method[slice(*found["type"])] != b'"terminal"':
        return Raw(method)
    env = method[slice(*found["env"])] if "env" in found else b"{}"
    return Raw(splice.replace(method, "env", splice.replace(env, "ACPD_LOGIN", b'"1"')))
