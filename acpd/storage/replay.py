"""From stored lines to what a client is shown: folded (`Replay`, for session/load) or line by line (`live`).

Rules (ACP v1 session-setup, "Loading Sessions"; docs/architecture.md, "The log"):

- The order is that of first appearance. Nothing that the client did not declare is sent; a notice is never repeated.
- Adjacent chunks of one message become one chunk while they are text and nothing else; the tokens are joined as they were
  written. Every other block stays a chunk of its own, in its place.
- A tool call comes once, in its last state, where it was first seen in its turn. What a later turn or window says of it follows as an
  update. A turn that is over leaves no call open: it has failed.
- Of the plans of a turn the last one is sent, of a compaction its state with the whole summary.
- A line that stands alone in its fold is sent as `live` sends it, byte for byte as the agent wrote it.

A window is what one `feed` gets; at its end everything is handed out, so that memory is bounded by the window. Two windows of one
message are two chunks with one messageId: the same to a client. A stored line that cannot be read as its kind says is left
out and counted in `unreadable`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from acpd.storage.fold import Fold
from acpd.wire import frames, splice
from acpd.wire.lines import Stored

LIMIT = 4 * 1024 * 1024
"""Bytes of one composed text or tool call."""
KNOWN_CALLS = 10_000
"""Tool calls whose id is remembered over windows."""
NO_TERMINAL = b'{"type":"content","content":{"type":"text","text":"[terminal output is not kept]"}}'
GAP = b'{"type":"text","text":"[A part of the history could not be read.]"}'

_FACTS = frozenset(
    {"available_commands_update", "current_mode_update", "config_option_update", "session_info_update", "usage_update"}
)
_OPEN = frozenset({"pending", "in_progress"})
_FAILED = b'"failed"'
_NULL = b"null"
_QUOTE = 0x22


class _Named(Struct, gc=False):
    messageId: Any = None


class _NamedParams(Struct, gc=False):
    update: _Named


class _Text(Struct, gc=False, forbid_unknown_fields=True, tag_field="type", tag="text"):
    """A text block that carries nothing but text."""

    text: Raw


class _Chunk(Struct, gc=False, forbid_unknown_fields=True):
    sessionUpdate: str
    content: _Text
    messageId: str | None = None


class _ChunkParams(Struct, gc=False, forbid_unknown_fields=True):
    sessionId: Raw
    update: _Chunk


class _Call(Struct, gc=False):
    toolCallId: str
    status: Any = None


class _CallParams(Struct, gc=False):
    update: _Call


class _PlanName(Struct, gc=False):
    planId: str = ""
    plan: _PlanName | None = None


class _PlanParams(Struct, gc=False):
    update: _PlanName


class _Compaction(Struct, gc=False):
    compactionId: str


class _CompactionParams(Struct, gc=False):
    update: _Compaction


class _Typed(Struct, gc=False):
    type: str = ""


class _Titled(Struct, gc=False):
    title: str | None | UnsetType = UNSET


_decode_named = msgspec.json.Decoder(_NamedParams).decode
_decode_chunk = msgspec.json.Decoder(_ChunkParams).decode
_decode_text = msgspec.json.Decoder(_Text).decode
_decode_call = msgspec.json.Decoder(_CallParams).decode
_decode_plan = msgspec.json.Decoder(_PlanParams).decode
_decode_compaction = msgspec.json.Decoder(_CompactionParams).decode
_decode_typed = msgspec.json.Decoder(_Typed).decode
_decode_titled = msgspec.json.Decoder(_Titled).decode
_decode_members = msgspec.json.Decoder(dict[str, Raw]).decode
_decode_array = msgspec.json.Decoder(list[Raw]).decode
_encode = msgspec.json.Encoder().encode

_Members = dict[str, bytes]


def live(line: Stored, session: bytes, kinds: frozenset[str]) -> list[bytes]:
    """The frames of one stored line for a client that follows the log; none for what is no update to it.

    `session` is acpd's session id as JSON text; `kinds` the values of sessionUpdate that this client may get. Asks are not
    updates and are the caller's. Raises msgspec.DecodeError for a line that is not what its type says.
    """
    if line.type == "prompt":
        return _prompt(line, session)
    if line.params is UNSET or line.kind not in kinds or line.method:
        return []
    return [frames.update(line.params, session, line.seq, line.at, line.messageId)]


def _prompt(line: Stored, session: bytes) -> list[bytes]:
    blocks = [] if line.prompt is UNSET else _decode_array(line.prompt)
    return [frames.text_chunk(session, "user_message_chunk", bytes(block), line.seq, line.at, line.id) for block in blocks]


class Replay:
    """The frames of one session's path for one client: `feed` the windows in order, then `finish`, then `facts`.

    Pure: no I/O, no clock. Holds one window at most, and the ids of open calls and of the newest KNOWN_CALLS.
    """

    __slots__ = (
        "_calls",
        "_compacted",
        "_compactions",
        "_forgot",
        "_handlers",
        "_items",
        "_kinds",
        "_known",
        "_limit",
        "_name",
        "_open",
        "_plans",
        "_plans_sent",
        "_running",
        "_session",
        "_size",
        "_tail",
        "_texts",
        "unreadable",
    )

    def __init__(self, session_id: str, kinds: frozenset[str], limit: int = LIMIT) -> None:
        self.unreadable = 0
        """Lines left out because they are not what their kind says."""
        self._session = _encode(session_id)
        self._kinds = kinds
        self._limit = limit
        self._handlers = {kind: _HANDLERS.get(kind, Replay._single) for kind in kinds - _FACTS - {"notice"}}
        self._items: list[bytes | _Slot] = []
        self._tail: Stored | None = None
        self._name = ""
        self._texts: list[memoryview] = []
        self._size = 0
        self._calls: dict[str, _ToolCall] = {}
        self._known: dict[str, None] = {}
        self._forgot = False
        self._open: dict[str, None] = {}
        self._plans: dict[str, _Newest] = {}
        self._plans_sent: set[str] = set()
        self._compactions: dict[str, _Summary] = {}
        self._compacted: set[str] = set()
        self._running = False

    def feed(self, lines: Iterable[Stored]) -> list[bytes]:
        """The frames of this window. Facts, asks and answers in it are passed over."""
        handlers = self._handlers
        for line in lines:
            if line.type == "update" or line.type == "compaction":
                handler = handlers.get(line.kind)
                if handler is not None:
                    try:
                        handler(self, line)
                    except msgspec.DecodeError:
                        self.unreadable += 1
            elif line.type == "prompt":
                self._prompted(line)
            elif line.type == "turn":
                self._turn(line)
            elif line.type == "gap":
                self._gap(line)
        return self._ready()

    def finish(self) -> list[bytes]:
        """What is left after the last window. A turn that still runs stays open: its next updates come live."""
        return self._ready()

    def facts(self, fold: Fold) -> list[bytes]:
        """The newest commands, title and usage, each once. Modes and options are in the answer of session/load."""
        out: list[bytes] = []
        for line in (fold.commands, fold.usage):
            if line is not None:
                self._emit(out, line)
        if fold.info is not None:
            self._emit_info(out, fold.info, fold.title)
        return out

    def _emit(self, out: list[bytes], line: Stored) -> None:
        try:
            out += live(line, self._session, self._kinds)
        except msgspec.DecodeError:
            self.unreadable += 1

    def _emit_info(self, out: list[bytes], line: Stored, title: str) -> None:
        """The newest info is a patch: where it does not name the title, an earlier one did."""
        if line.kind not in self._kinds or line.params is UNSET:
            return
        try:
            text = bytes(frames.decode_params(line.params).update)
            said = _decode_titled(text).title
            if title and said is not None and said != title:
                text = splice.replace(text, "title", _encode(title))
            out.append(self._frame(line, text))
        except msgspec.DecodeError:
            self.unreadable += 1

    def _frame(self, line: Stored, changed: bytes | None = None) -> bytes:
        """The frame of this line, with another update in the place of its own."""
        params = b"" if line.params is UNSET else line.params
        return frames.update(params, self._session, line.seq, line.at, line.messageId if changed is None else "", changed)

    # Messages

    def _chunk(self, line: Stored) -> None:
        name = line.messageId or _agents_name(line)
        tail = self._tail
        if tail is not None and name == self._name and tail.kind == line.kind and self._joined(tail, line):
            return
        self._end_message()
        self._tail = line
        self._name = name

    def _joined(self, tail: Stored, line: Stored) -> bool:
        """Whether this chunk could be added to the text of the open message."""
        token = _token(line)
        if token is None:
            return False
        if not self._texts:
            first = _token(tail)
            if first is None:
                return False
            self._texts.append(first)
            self._size = len(first)
        self._size += len(token)
        if self._size > self._limit:
            return False
        self._texts.append(token)
        return True

    def _end_message(self) -> None:
        line = self._tail
        if line is None:
            return
        self._tail = None
        texts = self._texts
        try:
            if len(texts) < 2:
                self._items.append(self._frame(line))
            else:
                text = b'{"sessionUpdate":"%b","content":{"type":"text","text":"%b"},"messageId":%b}' % (
                    line.kind.encode(),
                    b"".join(texts),
                    _encode(self._name),
                )
                self._items.append(self._frame(line, text))
        except msgspec.DecodeError:
            self.unreadable += 1
        if texts:
            self._texts = []

    def _prompted(self, line: Stored) -> None:
        self._settle(line if self._running else None)
        self._running = False
        try:
            self._items += _prompt(line, self._session)
        except msgspec.DecodeError:
            self.unreadable += 1

    def _gap(self, line: Stored) -> None:
        self._end_message()
        name = f"gap-{line.id or line.seq}"
        self._items.append(frames.text_chunk(self._session, "agent_message_chunk", GAP, line.seq, line.at, name))

    def _single(self, line: Stored) -> None:
        self._end_message()
        self._items.append(self._frame(line))

    # Tool calls

    def _call(self, line: Stored) -> None:
        seen = _decode_call(_params(line)).update
        call = self._calls.get(seen.toolCallId)
        if call is None:
            call = self._begin_call(line, seen.toolCallId)
        else:
            call.lines.append(line)
        if isinstance(seen.status, str):
            call.open = seen.status in _OPEN

    def _begin_call(self, line: Stored, name: str) -> _ToolCall:
        self._end_message()
        known = name in self._known or (self._forgot and line.kind == "tool_call_update")
        call = _ToolCall(line, name, known=known, is_open=name in self._open or not known)
        self._calls[name] = call
        self._items.append(call)
        if name not in self._known:
            if len(self._known) >= KNOWN_CALLS:
                del self._known[next(iter(self._known))]
                self._forgot = True
            self._known[name] = None
        return call

    def _close_elsewhere(self, end: Stored) -> None:
        """Calls that were sent open in an earlier window and got no end there nor here."""
        for name in self._open:
            text = b'{"sessionUpdate":"tool_call_update","toolCallId":%b,"status":"failed"}' % _encode(name)
            params = b'{"sessionId":%b,"update":%b}' % (self._session, text)
            if "tool_call_update" in self._kinds:
                self._items.append(frames.update(params, self._session, end.seq, end.at))
        self._open.clear()

    # Plans and compactions

    def _plan(self, line: Stored) -> None:
        self._keep_newest("", line)

    def _plan_update(self, line: Stored) -> None:
        plan = _decode_plan(_params(line)).update.plan
        self._keep_newest(plan.planId if plan else "", line, named=True)

    def _keep_newest(self, name: str, line: Stored, *, named: bool = False) -> None:
        key = f"plan:{name}" if named else ""
        slot = self._plans.get(key)
        if slot is not None:
            slot.line = line
            return
        self._end_message()
        slot = self._plans[key] = _Newest(line)
        self._items.append(slot)

    def _plan_removed(self, line: Stored) -> None:
        name = f"plan:{_decode_plan(_params(line)).update.planId}"
        slot = self._plans.pop(name, None)
        if slot is not None:
            slot.line = None
        if name in self._plans_sent:
            self._plans_sent.discard(name)
            self._single(line)

    def _compaction(self, line: Stored) -> None:
        name = _decode_compaction(_params(line)).update.compactionId
        slot = self._compactions.get(name)
        if slot is not None:
            slot.lines.append(line)
        elif name in self._compacted or line.kind != "compaction_update":
            self._single(line)  # sent already; patches and chunks do the rest
        else:
            self._end_message()
            slot = self._compactions[name] = _Summary(line)
            self._compacted.add(name)
            self._items.append(slot)

    # Ends

    def _turn(self, line: Stored) -> None:
        self._running = line.state == "running"
        if not self._running:
            self._settle(line)

    def _settle(self, end: Stored | None) -> None:
        """Nothing that comes now is folded with what came before. `end` is the line that ended a turn, if one did."""
        self._end_message()
        for name, call in self._calls.items():
            if end is None and call.open:
                self._open[name] = None
            else:
                self._open.pop(name, None)
                call.failed = call.open
        if end is not None and self._open:
            self._close_elsewhere(end)
        self._plans_sent.update(name for name in self._plans if name)
        self._calls.clear()
        self._plans.clear()
        self._compactions.clear()

    def _ready(self) -> list[bytes]:
        self._settle(None)
        out: list[bytes] = []
        for item in self._items:
            if isinstance(item, bytes):
                out.append(item)
                continue
            try:
                item.render(self._frame, self._limit, out)
            except msgspec.DecodeError:
                self.unreadable += 1
        self._items = []
        return out


_HANDLERS: dict[str, Callable[[Replay, Stored], None]] = {
    "user_message_chunk": Replay._chunk,
    "agent_message_chunk": Replay._chunk,
    "agent_thought_chunk": Replay._chunk,
    "tool_call": Replay._call,
    "tool_call_update": Replay._call,
    "plan": Replay._plan,
    "plan_update": Replay._plan_update,
    "plan_removed": Replay._plan_removed,
    "compaction_update": Replay._compaction,
    "compaction_summary_chunk": Replay._compaction,
}
_Frame = Callable[[Stored, bytes | None], bytes]


class _Newest:
    """The place of a plan in the order; the newest line of it counts, None if it was removed."""

    __slots__ = ("line",)

    def __init__(self, line: Stored) -> None:
        self.line: Stored | None = line

    def render(self, frame: _Frame, _limit: int, out: list[bytes]) -> None:
        if self.line is not None:
            out.append(frame(self.line, None))


class _ToolCall:
    """The place of a tool call in the order, and every line of it in this turn and window."""

    __slots__ = ("failed", "known", "lines", "name", "open")

    def __init__(self, line: Stored, name: str, *, known: bool, is_open: bool) -> None:
        self.lines = [line]
        self.name = name
        self.known = known
        """Whether the client has it already, so that an update is due and not a second card."""
        self.open = is_open
        self.failed = False
        """Whether its turn ended while it was open."""

    def render(self, frame: _Frame, limit: int, out: list[bytes]) -> None:
        first = self.lines[0]
        if len(self.lines) > 1:
            members = _patched(self.lines)
            if sum(map(len, members.values())) <= limit:
                out.append(frame(first, self._composed(members, failed=self.failed)))
                return
        for index, line in enumerate(self.lines):
            failed = self.failed and line is self.lines[-1]
            out.append(frame(line, self._alone(line, announced=self.known or index > 0, failed=failed)))

    def _alone(self, line: Stored, *, announced: bool, failed: bool) -> bytes | None:
        """What must change in an update that is sent as it is; None: nothing."""
        params = _params(line)
        if line.kind == ("tool_call_update" if announced else "tool_call") and not failed and not _may_have_terminal(params):
            return None
        members = _patch({}, params, keep_null=True)
        changes: _Members = {}
        if failed:
            changes["status"] = _FAILED
        if _may_have_terminal(params) and "content" in members:
            changes["content"] = _without_terminals(members["content"])
        if line.kind == ("tool_call_update" if announced else "tool_call"):
            text = bytes(frames.decode_params(params).update)
            for name, value in changes.items():
                if members.get(name) != value:
                    text = splice.replace(text, name, value)
            return text
        return _object("tool_call_update" if announced else "tool_call", self._titled(members | changes, announced))

    def _composed(self, members: _Members, *, failed: bool) -> bytes:
        if failed:
            members["status"] = _FAILED
        if "content" in members:
            members["content"] = _without_terminals(members["content"])
        return _object("tool_call_update" if self.known else "tool_call", self._titled(members, self.known))

    def _titled(self, members: _Members, announced: bool) -> _Members:
        """A new call has a title (ACP v1 ToolCall); one that no tool_call announced has its id for it."""
        if not announced and members.get("title", _NULL) == _NULL:
            members["title"] = _encode(self.name)
        return members


class _Summary:
    """The place of a compaction in the order, and every line of it in this turn and window."""

    __slots__ = ("lines",)

    def __init__(self, line: Stored) -> None:
        self.lines = [line]

    def render(self, frame: _Frame, limit: int, out: list[bytes]) -> None:
        members: _Members = {}
        blocks: list[bytes] = []
        for line in self.lines:
            fields = _decode_members(frames.decode_params(_params(line)).update)
            if line.kind == "compaction_summary_chunk":
                blocks.append(bytes(fields["content"]) if "content" in fields else _NULL)
                continue
            for name, value in fields.items():
                members[name] = bytes(value)
            if "summary" in fields:
                blocks = [] if members["summary"] == _NULL else [bytes(block) for block in _decode_array(fields["summary"])]
        if len(self.lines) == 1 or sum(map(len, blocks)) > limit:
            out += [frame(line, None) for line in self.lines]
            return
        members.pop("summary", None)
        members = {name: value for name, value in members.items() if value != _NULL}
        if blocks:
            members["summary"] = b"[%b]" % b",".join(_flowing(blocks))
        out.append(frame(self.lines[0], _object("compaction_update", members)))


def _params(line: Stored) -> Raw:
    if line.params is UNSET:
        raise msgspec.DecodeError("no params")
    return line.params


def _agents_name(line: Stored) -> str:
    name = _decode_named(_params(line)).update.messageId
    return name if isinstance(name, str) else ""


def _token(line: Stored) -> memoryview | None:
    """The characters between the quotes, as written, of a chunk that is text and nothing else; else None."""
    try:
        view = memoryview(_decode_chunk(_params(line)).update.content.text)
    except msgspec.DecodeError:
        return None
    return view[1:-1] if view[0] == _QUOTE else None


def _patched(lines: list[Stored]) -> _Members:
    members: _Members = {}
    for line in lines:
        _patch(members, _params(line))
    return members


def _patch(members: _Members, params: Raw, *, keep_null: bool = False) -> _Members:
    """ACP v1 ToolCallUpdate: omitted or null is unchanged, everything else replaces."""
    for name, value in _decode_members(frames.decode_params(params).update).items():
        text = bytes(value)
        if keep_null or text != _NULL:
            members[name] = text
    return members


def _object(kind: str, members: _Members) -> bytes:
    parts = [b'"sessionUpdate":"%b"' % kind.encode()]
    parts += [b"%b:%b" % (_encode(name), value) for name, value in members.items() if name != "sessionUpdate"]
    return b"{%b}" % b",".join(parts)


def _may_have_terminal(params: Raw) -> bool:
    raw = bytes(params)
    return b'"terminalId"' in raw or b"\\u00" in raw  # an escape may spell any letter of it


def _without_terminals(content: bytes) -> bytes:
    """This content of a tool call with each terminal replaced: the client that had it is gone."""
    if content == _NULL or not content.startswith(b"["):
        return content
    items = [bytes(item) for item in _decode_array(content)]
    changed = [NO_TERMINAL if item.startswith(b"{") and _decode_typed(item).type == "terminal" else item for item in items]
    return content if changed == items else b"[%b]" % b",".join(changed)


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
