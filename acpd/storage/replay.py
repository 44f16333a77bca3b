"""From stored lines to what a client is shown: folded (`Replay`, for session/load) or line by line (`live`).

Rules (ACP v1 session-setup, "Loading Sessions"; docs/architecture.md, "The log"):

- The order is that of first appearance. Nothing that the client did not declare is sent; a notice is never repeated.
- Adjacent chunks of one message become one chunk while they are text and nothing else; the tokens are joined as they were
  written. Every other block stays a chunk of its own, in its place.
- A tool call comes once, in its last state, where it was first seen in its turn. What a later turn or window says of it
  follows as an update. A turn that is over leaves no call open: it has failed.
- Of the plans of a turn the last one is sent, of a compaction its state with the whole summary.
- A line that stands alone in its fold is sent as `live` sends it, byte for byte as the agent wrote it.

A window is what one `feed` gets; at its end everything is handed out, so that memory is bounded by the window. Two windows
of one message are two chunks with one messageId: the same to a client. An update that was kept though it is not valid is mended
or left out, as it was when it came; a line that cannot be read as its kind says is left out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from typing import Literal

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from acpd.storage import slots
from acpd.storage.fold import Fold
from acpd.wire import frames, mend, splice
from acpd.wire.framer import Framer
from acpd.wire.lines import Stored
from acpd.wire.titles import plain_title

LIMIT = 4 * 1024 * 1024
"""Bytes of one composed text or tool call."""
KNOWN_CALLS = 10_000
"""Tool calls whose id is remembered over windows."""
GAP = b'{"type":"text","text":"[A part of the history could not be read.]"}'

_FACTS = frozenset(
    {"available_commands_update", "current_mode_update", "config_option_update", "session_info_update", "usage_update"}
)
_CALLS = frozenset({"tool_call", "tool_call_update"})
_OPEN = frozenset({"pending", "in_progress"})
_QUOTE = 0x22


class _Plain(Struct, gc=False, forbid_unknown_fields=True):
    type: Literal["text"]  # no tag: one that is missing would be right
    text: str


class _PlainChunk(Struct, gc=False, forbid_unknown_fields=True):
    sessionUpdate: str
    content: _Plain
    messageId: str | None = None


class _PlainParams(Struct, gc=False):
    """As `_Sound`, for chunks of text: three times as fast."""

    update: _PlainChunk


class _Text(Struct, gc=False, forbid_unknown_fields=True):
    """A text block that carries nothing but text."""

    type: Literal["text"]
    text: Raw


class _Chunk(Struct, gc=False, forbid_unknown_fields=True):
    sessionUpdate: str
    content: _Text
    messageId: str | None = None


class _ChunkParams(Struct, gc=False, forbid_unknown_fields=True):
    sessionId: Raw
    update: _Chunk


class _Titled(Struct, gc=False):
    title: str | UnsetType | None = UNSET


_decode_plain = msgspec.json.Decoder(_PlainParams).decode
_decode_chunk = msgspec.json.Decoder(_ChunkParams).decode
_decode_titled = msgspec.json.Decoder(_Titled).decode
_decode_array = msgspec.json.Decoder(list[Raw]).decode
_encode = msgspec.json.Encoder().encode


def live(line: Stored, framer: Framer, kinds: frozenset[str]) -> list[bytes]:
    """The frames of one stored line for a client that follows the log; none for what is no update to it.

    `kinds`: the values of sessionUpdate that this client may get. Asks are not updates and are the caller's. A line that is
    not what its type says has none either. Raises nothing.
    """
    try:
        return _live(line, framer, kinds)
    except mend.FAULTS:
        return []


def _live(line: Stored, framer: Framer, kinds: frozenset[str]) -> list[bytes]:
    if line.type == "prompt":
        return _prompt(line, framer.session)
    if line.type == "leaf":
        return [frames.moved(framer.session, _encode(line.entry), line.seq, line.at, line.id)]
    if line.params is UNSET or line.kind not in kinds or line.method:
        return []
    if not line.cut:
        found = slots.sound(line)
        if found is None:
            return []
        line = found[0]
    changed = None
    if line.kind in _CALLS and b'"acpd-' in (text := bytes(slots.params_of(line))):
        changed = slots.without_own_terminals(bytes(frames.decode_params(text).update))
    return [framer.frame(line, changed)]


def _prompt(line: Stored, session: bytes) -> list[bytes]:
    blocks = [] if line.prompt is UNSET else _decode_array(line.prompt)
    return frames.prompt(session, blocks, line.seq, line.at, line.id)


class Replay:
    """The frames of one session's path for one client: `feed` the windows in order, then `finish`, then `facts`.

    Pure: no I/O, no clock. Holds one window at most, and the ids of open calls and of the newest KNOWN_CALLS.
    """

    __slots__ = (
        "_calls",
        "_chunks",
        "_compacted",
        "_compactions",
        "_forgot",
        "_framer",
        "_items",
        "_kinds",
        "_known",
        "_limit",
        "_name",
        "_newest",
        "_oldest",
        "_open",
        "_plans",
        "_plans_sent",
        "_replayed",
        "_running",
        "_session",
        "_size",
        "_tail",
        "_texts",
    )

    def __init__(self, session_id: str, kinds: frozenset[str], limit: int = LIMIT) -> None:
        self._session = _encode(session_id)
        self._framer = Framer(self._session)
        self._kinds = kinds
        self._replayed = kinds - _FACTS - {"notice"}
        self._chunks = frames.CHUNKS & self._replayed
        self._limit = limit
        self._items: list[Stored | bytes | slots.Slot] = []
        """In order: lines that are sent as they are, frames, and what may still change."""
        self._tail: Stored | None = None
        self._name = ""
        self._texts: list[memoryview] = []
        self._size = 0
        self._calls: dict[str, slots.ToolCall] = {}
        self._known: set[str] = set()
        self._oldest: deque[str] = deque()
        self._forgot = False
        self._open: dict[str, None] = {}
        self._plans: dict[str, slots.Newest] = {}
        self._plans_sent: set[str] = set()
        self._compactions: dict[str, slots.Summary] = {}
        self._compacted: set[str] = set()
        self._running = False
        self._newest: Stored | None = None

    def feed(self, lines: Iterable[Stored]) -> list[bytes]:
        """The frames of this window. Facts, asks and answers in it are passed over."""
        line = None
        for line in lines:
            try:
                if line.cut and line.type == "update" and line.kind in self._chunks:
                    self._cut_chunk(line)
                else:
                    self._add(line)
            except mend.FAULTS:
                continue
        self._newest = line or self._newest
        return self._ready()

    def finish(self, *, is_running: bool = True) -> list[bytes]:
        """What is left after the last window. A turn that still runs stays open: its next updates come live.

        `is_running`: whether one may; if not, a path that ends within a turn was branched there.
        """
        if self._running and not is_running:
            self._settle(self._newest)
        return self._ready()

    def facts(self, fold: Fold, until: int | None = None) -> list[bytes]:
        """The newest commands, title and usage, each once, but for what is newer than the seq `until`.

        Modes and options are in the answer of session/load.
        """
        out: list[bytes] = []
        for line in (fold.commands, fold.usage):
            if line is not None and (until is None or line.seq <= until):
                self._emit(out, line)
        if fold.info is not None and (until is None or fold.info.seq <= until):
            self._emit_info(out, fold.info, fold.title)
        return out

    def _emit(self, out: list[bytes], line: Stored) -> None:
        with suppress(*mend.FAULTS):
            out += _live(line, self._framer, self._kinds)

    def _emit_info(self, out: list[bytes], line: Stored, title: str) -> None:
        """The newest info is a patch: where it does not name the title, an earlier one did."""
        if line.kind not in self._kinds or line.params is UNSET:
            return
        with suppress(*mend.FAULTS):
            found = slots.sound(line)
            if found is None:
                return
            line = found[0]
            text = bytes(frames.decode_params(slots.params_of(line)).update)
            said = _decode_titled(text).title
            if title and said is not None and (said is UNSET or plain_title(said) != title):
                text = splice.replace(text, "title", _encode(title))
            out.append(self._framer.frame(line, text))

    def _add(self, line: Stored) -> None:
        if line.type in {"update", "compaction"}:
            if line.kind not in self._replayed:
                return
            if line.kind in frames.CHUNKS:
                self._chunk(line)
            elif line.cut and line.of and line.kind in _CALLS:
                self._call(line, line.of, line.state)
            else:
                self._update(line)
        elif line.type == "prompt":
            self._prompted(line)
        elif line.type == "turn":
            self._turn(line)
        elif line.type == "gap":
            self._gap(line)

    def _update(self, line: Stored) -> None:
        found = slots.sound(line)
        if found is None:
            return
        line, seen = found
        match line.kind:
            case "tool_call" | "tool_call_update":
                self._call(line, seen.toolCallId, seen.status)
            case "plan":
                self._keep_newest("", line)
            case "plan_update":
                self._keep_newest(f"plan:{seen.plan.planId}", line)
            case "plan_removed":
                self._plan_removed(line, f"plan:{seen.planId}")
            case "compaction_update" | "compaction_summary_chunk":
                self._compaction(line, seen.compactionId)
            case _:
                self._single(line)

    # Messages

    def _cut_chunk(self, line: Stored) -> None:
        """One that need not be looked into, as most are."""
        name = line.messageId or line.of
        if name == self._name and self._continued(line, name):
            return
        if self._tail is not None:
            self._end_message()
        self._tail, self._name = line, name

    def _chunk(self, line: Stored) -> None:
        given = line.messageId
        if given and self._continued(line, given):
            return  # the look at the token was enough
        try:
            plain = _decode_plain(slots.params_of(line)).update
        except mend.FAULTS:
            found = slots.sound(line)
            if found is None:
                return
            line, seen = found
            own = getattr(seen, "messageId", None)
            name = own if isinstance(own, str) else ""
        else:
            if plain.sessionUpdate != line.kind:
                raise msgspec.DecodeError("not of the kind that the line says")
            name = plain.messageId or ""
        if not given and self._continued(line, name):
            return
        self._end_message()
        self._tail = line
        self._name = given or name

    def _continued(self, line: Stored, name: str) -> bool:
        """Whether this chunk was of the open message and could be added to its text."""
        tail = self._tail
        return tail is not None and name == self._name and tail.kind == line.kind and self._joined(tail, line)

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
        if not texts:
            self._items.append(line)
            return
        self._texts = []
        with suppress(*mend.FAULTS):
            self._items.append(self._framer.frame(line, self._composed(line, texts)))

    def _composed(self, line: Stored, texts: list[memoryview]) -> bytes | None:
        """The update of all texts of this line's message; None: there is one, and that is the line's."""
        if len(texts) < 2:
            return None
        return b'{"sessionUpdate":"%b","content":{"type":"text","text":"%b"},"messageId":%b}' % (
            line.kind.encode(),
            b"".join(texts),
            _encode(self._name),
        )

    def _prompted(self, line: Stored) -> None:
        self._settle(line if self._running else None)
        self._running = False
        self._items += _prompt(line, self._session)

    def _gap(self, line: Stored) -> None:
        self._end_message()
        name = f"gap-{line.id or line.seq}"
        self._items.append(frames.text_chunk(self._session, "agent_message_chunk", GAP, line.seq, line.at, name))

    def _single(self, line: Stored) -> None:
        self._end_message()
        self._items.append(line)

    # Tool calls

    def _call(self, line: Stored, name: str, status: str | None) -> None:
        call = self._calls.get(name)
        if call is None:
            call = self._begin_call(line, name)
        else:
            call.lines.append(line)
        if status:
            call.open = status in _OPEN

    def _begin_call(self, line: Stored, name: str) -> slots.ToolCall:
        self._end_message()
        known = name in self._known or (self._forgot and line.kind == "tool_call_update")
        call = slots.ToolCall([line], name, known, name in self._open or not known)
        self._calls[name] = call
        self._items.append(call)
        if name not in self._known:
            if len(self._known) >= KNOWN_CALLS:
                self._known.discard(self._oldest.popleft())
                self._forgot = True
            self._known.add(name)
            self._oldest.append(name)
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

    def _keep_newest(self, key: str, line: Stored) -> None:
        slot = self._plans.get(key)
        if slot is None:
            self._end_message()
            slot = self._plans[key] = slots.Newest()
            self._items.append(slot)
        slot.line = line

    def _plan_removed(self, line: Stored, name: str) -> None:
        slot = self._plans.pop(name, None)
        if slot is not None:
            slot.line = None
        if name in self._plans_sent:
            self._plans_sent.discard(name)
            self._single(line)

    def _compaction(self, line: Stored, name: str) -> None:
        slot = self._compactions.get(name)
        if slot is not None:
            slot.lines.append(line)
        elif name in self._compacted or line.kind != "compaction_update":
            self._single(line)  # sent already; patches and chunks do the rest
        else:
            self._end_message()
            slot = self._compactions[name] = slots.Summary(line)
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
        frame = self._framer.frame
        for item in self._items:
            try:
                if isinstance(item, Stored):
                    out.append(frame(item))
                elif isinstance(item, bytes):
                    out.append(item)
                else:
                    item.render(self._framer, self._limit, out)
            except mend.FAULTS:
                continue
        self._items = []
        return out


def _token(line: Stored) -> memoryview | None:
    """The characters between the quotes, as written, of a chunk that is text and nothing else; else None."""
    try:
        view = memoryview(_decode_chunk(slots.params_of(line)).update.content.text)
    except msgspec.DecodeError:
        return None
    return view[1:-1] if view[0] == _QUOTE else None
