"""Places in the order of a replay that may still change: a plan, a tool call, a compaction.

Each keeps the stored lines of its fold and renders them at the end of its window from the agents' own bytes
(docs/architecture.md, "Replay"). A fold of one line is that line. Sources of the rules: ACP v1 tool-calls ("Updating"),
agent-plan, and the RFDs on plan operations and compaction.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, Raw, Struct

from acpd.wire import frames, mend, splice, updates
from acpd.wire.framer import Framer
from acpd.wire.lines import Stored

NO_TERMINAL = b'{"type":"content","content":{"type":"text","text":"[terminal output is not kept]"}}'
OWN_TERMINAL = "acpd-"
"""How the names of acpd's own terminals begin: no client knows these (acpd.agents.terminals)."""
_FAILED = b'"failed"'
_NULL = b"null"

_Members = dict[str, bytes]


class _Sound(Struct, gc=False):
    """The params of an update that is valid as it stands."""

    update: updates.Update


class _Text(Struct, gc=False, forbid_unknown_fields=True):
    """A text block that carries nothing but text."""

    type: Literal["text"]
    text: Raw


class _Typed(Struct, gc=False):
    type: str = ""
    terminalId: Raw = Raw(b"")


_decode_sound = msgspec.json.Decoder(_Sound).decode
_decode_text = msgspec.json.Decoder(_Text).decode
_decode_typed = msgspec.json.Decoder(_Typed).decode
_decode_members = msgspec.json.Decoder(dict[str, Raw]).decode
_decode_array = msgspec.json.Decoder(list[Raw]).decode
_encode = msgspec.json.Encoder().encode


class Newest:
    """The place of a plan in the order; the newest line of it counts, None if it was removed."""

    __slots__ = ("line",)

    def __init__(self) -> None:
        self.line: Stored | None = None

    def render(self, framer: Framer, _limit: int, out: list[bytes]) -> None:
        if self.line is not None:
            out.append(framer.frame(self.line))


class ToolCall(Struct, gc=False):
    """The place of a tool call in the order, and every line of it in this turn and window."""

    lines: list[Stored]
    name: str
    known: bool
    """Whether the client has it already, so that an update is due and not a second card."""
    open: bool
    failed: bool = False
    """Whether its turn ended while it was open."""

    def render(self, framer: Framer, limit: int, out: list[bytes]) -> None:
        first = self.lines[0]
        if len(self.lines) > 1:
            members = _patched(self.lines)
            if sum(map(len, members.values())) <= limit:
                out.append(framer.frame(first, self._composed(members, announced=self.known, failed=self.failed)))
                return
        for index, line in enumerate(self.lines):
            failed = self.failed and line is self.lines[-1]
            out.append(framer.frame(line, self._alone(line, announced=self.known or index > 0, failed=failed)))

    def _alone(self, line: Stored, *, announced: bool, failed: bool) -> bytes | None:
        """What must change in an update that is sent as it is; None: nothing."""
        params = params_of(line)
        kind = "tool_call_update" if announced else "tool_call"
        if line.kind != kind:
            return self._composed(_patch({}, params), announced=announced, failed=failed)
        if not failed and not _may_have_terminal(params):
            return None
        text = bytes(frames.decode_params(params).update)
        content = _decode_members(text).get("content")
        if content is not None:
            text = splice.replace(text, "content", _without_terminals(bytes(content)))
        return splice.replace(text, "status", _FAILED) if failed else text

    def _composed(self, members: _Members, *, announced: bool, failed: bool) -> bytes:
        """One update of all that was said. A new call has a title (ACP v1 ToolCall): its id, if no tool_call gave one."""
        if failed:
            members["status"] = _FAILED
        if "content" in members:
            members["content"] = _without_terminals(members["content"])
        if not announced:
            members.setdefault("title", _encode(self.name))
        return _object("tool_call_update" if announced else "tool_call", members)


class Summary:
    """The place of a compaction in the order, and every line of it in this turn and window."""

    __slots__ = ("lines",)

    def __init__(self, line: Stored) -> None:
        self.lines = [line]

    def render(self, framer: Framer, limit: int, out: list[bytes]) -> None:
        members: _Members = {}
        blocks: list[bytes] = []
        for line in self.lines:
            fields = _decode_members(frames.decode_params(params_of(line)).update)
            if line.kind == "compaction_summary_chunk":
                blocks.append(bytes(fields["content"]) if "content" in fields else _NULL)
                continue
            for name, value in fields.items():
                members[name] = bytes(value)
            if "summary" in fields:
                blocks = [] if members["summary"] == _NULL else [bytes(block) for block in _decode_array(fields["summary"])]
        if len(self.lines) == 1 or sum(map(len, blocks)) > limit:
            out += [framer.frame(line) for line in self.lines]
            return
        members = {name: value for name, value in members.items() if value != _NULL}
        if blocks:
            members["summary"] = b"[%b]" % b",".join(_flowing(blocks))
        out.append(framer.frame(self.lines[0], _object("compaction_update", members)))


def params_of(line: Stored) -> Raw:
    if line.params is UNSET:
        raise msgspec.DecodeError("no params")
    return line.params


def sound(line: Stored) -> tuple[Stored, Any] | None:
    """This line with an update that a client may get, and that update; None if it cannot be sent.

    What was kept though it is not valid is mended as it was when it came (acpd.wire.updates). Raises msgspec.DecodeError.
    """
    params = params_of(line)
    try:
        return line, _of_kind(line, _decode_sound(params).update)
    except mend.FAULTS:
        text = bytes(frames.decode_params(params).update)
    sendable = updates.look(text).sendable
    if sendable is None:
        return None
    if sendable is not text:
        line = msgspec.structs.replace(line, params=Raw(splice.replace(bytes(params), "update", sendable)))
    try:
        seen = _decode_sound(params_of(line)).update
    except mend.FAULTS:
        return line, None  # a config option with groups: valid, but no shape of one decoder
    return line, _of_kind(line, seen)


def _of_kind(line: Stored, seen: updates.Update) -> updates.Update:
    """The line's kind is what clients are told apart by, so it must be true."""
    if seen.__struct_config__.tag != line.kind:
        raise msgspec.DecodeError("not of the kind that the line says")
    return seen


def _patched(lines: list[Stored]) -> _Members:
    members: _Members = {}
    for line in lines:
        _patch(members, params_of(line))
    return members


def _patch(members: _Members, params: Raw) -> _Members:
    """ACP v1 ToolCallUpdate: omitted or null is unchanged, everything else replaces."""
    for name, value in _decode_members(frames.decode_params(params).update).items():
        text = bytes(value)
        if text != _NULL:
            members[name] = text
    return members


def _object(kind: str, members: _Members) -> bytes:
    parts = [b'"sessionUpdate":"%b"' % kind.encode()]
    parts += [b"%b:%b" % (_encode(name), value) for name, value in members.items() if name != "sessionUpdate"]
    return b"{%b}" % b",".join(parts)


def _may_have_terminal(params: Raw) -> bool:
    raw = bytes(params)
    return b'"terminalId"' in raw or b"\\u00" in raw  # an escape may spell any letter of it


def without_own_terminals(text: bytes) -> bytes | None:
    """This update as a client may get it that reads along; None: it has no terminal of acpd's. For sound updates."""
    if b'"acpd-' not in text or b'"terminalId"' not in text or b'"tool_call' not in text:
        return None
    content = bytes(_decode_members(text).get("content", b""))
    changed = _without_terminals(content, OWN_TERMINAL)
    return None if changed == content else splice.replace(text, "content", changed)


def _without_terminals(content: bytes, whose: str = "") -> bytes:
    """This content of a tool call with each terminal whose name begins so replaced: the client that had it is gone."""
    if content == _NULL or not content.startswith(b"["):
        return content
    items = [bytes(item) for item in _decode_array(content)]
    changed = [NO_TERMINAL if item.startswith(b"{") and _is_terminal(item, whose) else item for item in items]
    return content if changed == items else b"[%b]" % b",".join(changed)


def _is_terminal(item: bytes, whose: str) -> bool:
    typed = _decode_typed(item)
    return typed.type == "terminal" and (not whose or bytes(typed.terminalId).startswith(b'"%b' % whose.encode()))


def _flowing(blocks: list[bytes]) -> list[bytes]:
    """These content blocks with adjacent plain texts joined."""
    out: list[bytes] = []
    texts: list[bytes] = []
    for block in [*blocks, b""]:
        token = _block_token(block)
        if token is not None:
            texts.append(token)
            continue
        if texts:
            out.append(b'{"type":"text","text":"%b"}' % b"".join(texts))
            texts = []
        if block:
            out.append(block)
    return out


def _block_token(block: bytes) -> bytes | None:
    try:
        token = bytes(_decode_text(block).text)
    except msgspec.DecodeError:
        return None
    return token[1:-1] if token.startswith(b'"') else None


Slot = Newest | ToolCall | Summary
