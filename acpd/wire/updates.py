"""One look at the `update` of a session/update: what kind it is, whether it can be sent, how it is stored.

The Structs mirror SessionUpdate of the ACP v1 schema, unstable kinds included. What is wrong is repaired only where the
schema says how (acpd.wire.mend); the text of the agent is never rewritten otherwise.
"""

from __future__ import annotations

import functools
from typing import Annotated, Literal, get_args

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from acpd.wire import mend, splice
from acpd.wire.blocks import (
    Anything,
    Command,
    ContentBlock,
    Cost,
    Failure,
    Location,
    Open,
    PlanEntry,
    ToolCallContent,
    ToolKind,
    ToolStatus,
    Uint64,
    Usage,
    within_uint64,
)


class Look(Struct, frozen=True, gc=False):
    """What acpd knows of one update.

    | member | |
    |---|---|
    | kind | `sessionUpdate`, or empty if it has none |
    | sendable | what a client may get: the same object where it is valid, else the repaired text; None: nothing |
    | warning | what is wrong with it, for the log and for people; empty: nothing |
    | plain | a chunk of text and nothing else, so that it can be joined with its neighbours |
    | message_id | the agent's own messageId, or empty |
    | tool | toolCallId of tool_call and tool_call_update, or empty |
    | text | of a plain chunk |
    | status | of tool_call and tool_call_update, where it says one |
    | valid | whether `sendable` is the update as it came |
    | summary | a compaction that is completed and says what of the conversation remains |
    """

    kind: str
    sendable: bytes | None
    warning: str = ""
    plain: bool = False
    message_id: str = ""
    tool: str = ""
    text: str = ""
    summary: bool = False
    status: str = ""
    valid: bool = True


class _PlainText(Struct, gc=False, forbid_unknown_fields=True):
    type: Literal["text"]
    text: str


class _Plain(Struct, gc=False, forbid_unknown_fields=True):
    """The hot path: nine of ten updates are this and need no second look."""

    sessionUpdate: Literal["user_message_chunk", "agent_message_chunk", "agent_thought_chunk"]
    content: _PlainText
    messageId: str | None = None


class _Update(Open, gc=False, kw_only=True, tag_field="sessionUpdate"):
    """Any update. The tag of a subclass is its kind."""


class _Chunk(Open, gc=False, kw_only=True):
    content: ContentBlock
    messageId: str | UnsetType | None = UNSET


class UserMessageChunk(_Chunk, gc=False, kw_only=True, tag_field="sessionUpdate", tag="user_message_chunk"):
    pass


class AgentMessageChunk(_Chunk, gc=False, kw_only=True, tag_field="sessionUpdate", tag="agent_message_chunk"):
    pass


class AgentThoughtChunk(_Chunk, gc=False, kw_only=True, tag_field="sessionUpdate", tag="agent_thought_chunk"):
    pass


class ToolCall(_Update, gc=False, kw_only=True, tag="tool_call"):
    toolCallId: str
    title: str
    name: str | UnsetType | None = UNSET
    kind: ToolKind | UnsetType = UNSET
    status: ToolStatus | UnsetType = UNSET
    content: list[ToolCallContent] | UnsetType = UNSET
    locations: list[Location] | UnsetType = UNSET
    rawInput: Raw | UnsetType = UNSET
    rawOutput: Raw | UnsetType = UNSET


class ToolCallUpdate(_Update, gc=False, kw_only=True, tag="tool_call_update"):
    toolCallId: str
    title: str | UnsetType | None = UNSET
    name: str | UnsetType | None = UNSET
    kind: ToolKind | UnsetType | None = UNSET
    status: ToolStatus | UnsetType | None = UNSET
    content: list[ToolCallContent] | UnsetType | None = UNSET
    locations: list[Location] | UnsetType | None = UNSET
    rawInput: Raw | UnsetType = UNSET
    rawOutput: Raw | UnsetType = UNSET


class Plan(_Update, gc=False, kw_only=True, tag="plan"):
    entries: list[PlanEntry]


class PlanItems(Open, gc=False, kw_only=True, tag_field="type", tag="items"):
    planId: str
    entries: list[PlanEntry]


class PlanFile(Open, gc=False, kw_only=True, tag_field="type", tag="file"):
    planId: str
    uri: str


class PlanMarkdown(Open, gc=False, kw_only=True, tag_field="type", tag="markdown"):
    planId: str
    content: str


class PlanUpdate(_Update, gc=False, kw_only=True, tag="plan_update"):
    plan: PlanItems | PlanFile | PlanMarkdown


class PlanRemoved(_Update, gc=False, kw_only=True, tag="plan_removed"):
    planId: str


class AvailableCommandsUpdate(_Update, gc=False, kw_only=True, tag="available_commands_update"):
    availableCommands: list[Command]


class CurrentModeUpdate(_Update, gc=False, kw_only=True, tag="current_mode_update"):
    currentModeId: str


class SelectOption(Open, gc=False, kw_only=True):
    value: str
    name: str
    description: str | UnsetType | None = UNSET


class SelectGroup(Open, gc=False, kw_only=True):
    group: str
    name: str
    options: list[SelectOption]


class _ConfigOption(Open, gc=False, kw_only=True):
    id: str
    name: str
    description: str | UnsetType | None = UNSET
    category: str | UnsetType | None = UNSET


class Select(_ConfigOption, gc=False, kw_only=True, tag_field="type", tag="select"):
    currentValue: str
    options: Annotated[list[SelectOption], mend.STRICT, mend.Or(list[SelectGroup])]


class Switch(_ConfigOption, gc=False, kw_only=True, tag_field="type", tag="boolean"):
    currentValue: bool


class ConfigOptionUpdate(_Update, gc=False, kw_only=True, tag="config_option_update"):
    configOptions: list[Select | Switch]


class SessionInfoUpdate(_Update, gc=False, kw_only=True, tag="session_info_update"):
    title: str | UnsetType | None = UNSET
    updatedAt: str | UnsetType | None = UNSET


class UsageUpdate(_Update, gc=False, kw_only=True, tag="usage_update"):
    used: Uint64
    size: Uint64
    cost: Cost | UnsetType | None = UNSET

    def __post_init__(self) -> None:
        within_uint64(self.used, self.size)


class Notice(_Update, gc=False, kw_only=True, tag="notice"):
    severity: str
    title: Annotated[str, Meta(min_length=1)]
    description: str | UnsetType | None = UNSET


class CompactionUpdate(_Update, gc=False, kw_only=True, tag="compaction_update"):
    compactionId: str
    status: str
    summary: list[ContentBlock] | UnsetType | None = UNSET
    error: str | UnsetType | None = UNSET


class CompactionSummaryChunk(_Update, gc=False, kw_only=True, tag="compaction_summary_chunk"):
    compactionId: str
    content: ContentBlock


class Cancelling(Open, gc=False, kw_only=True):
    cancel: Open | UnsetType | None = UNSET


class State(Open, gc=False, kw_only=True):
    """StateUpdate. Its set of states is open, so it is no tagged union; `usage` and `stopReason` belong to "idle"."""

    state: str
    stopReason: str | UnsetType | None = UNSET
    usage: Usage | UnsetType | None = UNSET
    error: Failure | UnsetType | None = UNSET


class SubagentUpdate(_Update, gc=False, kw_only=True, tag="subagent_update"):
    sessionId: str
    title: str | UnsetType | None = UNSET
    description: str | UnsetType | None = UNSET
    capabilities: Cancelling | UnsetType | None = UNSET
    state: State | UnsetType | None = UNSET
    cwd: Annotated[str | None, mend.STRICT] | UnsetType = UNSET
    additionalDirectories: Annotated[list[str] | None, mend.STRICT] | UnsetType = UNSET


class SessionMessage(_Update, gc=False, kw_only=True, tag="session_message"):
    messageId: str
    senderSessionId: str | UnsetType | None = UNSET
    recipientSessionId: str | UnsetType | None = UNSET
    senderMessageId: str | UnsetType | None = UNSET
    recipientMessageId: str | UnsetType | None = UNSET
    content: list[ContentBlock] | UnsetType | None = UNSET


class SessionMessageChunk(_Update, gc=False, kw_only=True, tag="session_message_chunk"):
    messageId: str
    content: ContentBlock


Update = (
    UserMessageChunk
    | AgentMessageChunk
    | AgentThoughtChunk
    | ToolCall
    | ToolCallUpdate
    | Plan
    | PlanUpdate
    | PlanRemoved
    | AvailableCommandsUpdate
    | CurrentModeUpdate
    | ConfigOptionUpdate
    | SessionInfoUpdate
    | UsageUpdate
    | Notice
    | CompactionUpdate
    | CompactionSummaryChunk
    | SubagentUpdate
    | SessionMessage
    | SessionMessageChunk
)

_SHAPES: dict[str, type[Struct]] = {str(shape.__struct_config__.tag): shape for shape in get_args(Update)}
_KINDS: dict[type[Struct], str] = {shape: kind for kind, shape in _SHAPES.items()}

_GATES: dict[str, tuple[str, ...]] = dict.fromkeys(_SHAPES, ()) | {
    "plan_update": ("plan",),
    "plan_removed": ("plan",),
    "notice": ("session", "notices"),
    "compaction_update": ("session", "compaction"),
    "compaction_summary_chunk": ("session", "compaction"),
    "subagent_update": ("subagents",),
    "session_message": ("subagents",),
    "session_message_chunk": ("subagents",),
}

FACTS = {
    "available_commands_update": "commands",
    "current_mode_update": "config",
    "config_option_update": "config",
    "session_info_update": "info",
    "usage_update": "usage",
}
"""Kinds of which the log keeps the last one as a fact, and the fact's type."""

_decode_plain = msgspec.json.Decoder(_Plain).decode
_decode_text = msgspec.json.Decoder(str).decode
_decode_capabilities = msgspec.json.Decoder(dict[str, Raw]).decode


@functools.cache
def _decoder() -> msgspec.json.Decoder[Update]:
    return msgspec.json.Decoder(Update)


def look(update: bytes) -> Look:
    """See the module's docstring. `update` must be valid JSON text. Raises nothing."""
    early = update.find(b'_chunk"', 0, 64) > 0  # an object that starts with its kind: worth the try
    if early:
        try:
            plain = _decode_plain(update)
        except mend.FAULTS:
            pass
        else:
            return Look(plain.sessionUpdate, update, "", True, plain.messageId or "", "", plain.content.text)
    try:
        value: Struct = _decoder().decode(update)
    except mend.FAULTS:
        return _look_closely(update)
    if not early and isinstance(value, UserMessageChunk | AgentMessageChunk | AgentThoughtChunk):
        return _chunk(value, update)
    return _valid(value, update, "")


def _chunk(value: UserMessageChunk | AgentMessageChunk | AgentThoughtChunk, update: bytes) -> Look:
    """A chunk whose kind does not come first."""
    try:
        plain = _decode_plain(update)
    except mend.FAULTS:
        return _valid(value, update, "")
    return Look(plain.sessionUpdate, update, "", True, plain.messageId or "", "", plain.content.text)


def _valid(value: Struct, sendable: bytes, warning: str, *, valid: bool = True) -> Look:
    message_id = getattr(value, "messageId", None)
    return Look(
        _KINDS[type(value)],
        sendable,
        warning,
        message_id=message_id if isinstance(message_id, str) else "",
        tool=value.toolCallId if isinstance(value, ToolCall | ToolCallUpdate) else "",
        status=value.status or "" if isinstance(value, ToolCall | ToolCallUpdate) else "",
        valid=valid,
        summary=isinstance(value, CompactionUpdate) and value.status == "completed" and bool(value.summary),
    )


def _look_closely(update: bytes) -> Look:
    try:
        found = splice.members(update)
        start, end = found["sessionUpdate"]
        kind = _decode_text(update[start:end])
    except (KeyError, *mend.FAULTS):
        return Look("", None, "an update without a kind")
    shape = _SHAPES.get(kind)
    if shape is None:
        return Look(kind, None, f"an update of an unknown kind, {kind[:40]!r}")
    notes: list[str] = []
    text = _with_current_mode(update, found, notes) if kind == "current_mode_update" else update
    mended = mend.mend(shape, text, notes)
    if mended is None:
        return Look(kind, None, f"{kind}: {mend.blame(shape, text, '')}")
    warning = f"{kind}: malformed, so left out or mended: {_listed(notes)}" if notes else ""
    try:
        return _valid(_decoder().decode(mended), mended, warning, valid=mended == update)
    except mend.FAULTS:  # a config option with groups: right, but no shape of one decoder
        return Look(kind, mended, warning, valid=mended == update)


def _listed(notes: list[str]) -> str:
    return ", ".join(notes[:5]) + (f" and {len(notes) - 5} more" if len(notes) > 5 else "")


def _with_current_mode(update: bytes, found: dict[str, tuple[int, int]], notes: list[str]) -> bytes:
    """The protocol's documentation once said `modeId` where the schema says `currentModeId`; some agents send that."""
    current, other = found.get("currentModeId"), found.get("modeId")
    if other is None or (current is not None and mend.fits(str, update[slice(*current)])):
        return update
    notes.append("modeId instead of currentModeId")
    value = update[slice(*other)]
    return splice.add(splice.remove(update, ("modeId", "currentModeId")), b'"currentModeId":%b' % value)


def allowed_kinds(client_capabilities: bytes | None) -> frozenset[str]:
    """The kinds that a client with these capabilities may be sent. What is malformed counts as not declared."""
    return frozenset(kind for kind, path in _GATES.items() if not path or _declared(client_capabilities, path))


def _declared(capabilities: bytes | None, path: tuple[str, ...]) -> bool:
    value = capabilities
    for name in path:
        if value is None:
            return False
        try:
            raw = _decode_capabilities(value).get(name)
        except mend.FAULTS:
            return False
        value = None if raw is None else bytes(raw)
    return value is not None and mend.fits(Anything, value)


def stored_as(seen: Look) -> str | None:
    """The type of the line that keeps this update, or None if it is not kept.

    What cannot be sent is kept as an entry also where its kind is a fact's, so that it does not take the place of a good one.
    """
    if seen.kind == "notice":
        return None
    if seen.sendable is None:
        return "update"
    return "compaction" if seen.summary else FACTS.get(seen.kind, "update")
