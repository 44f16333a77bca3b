"""The context of a session: what a model would be given now, folded from the log along the current branch.

Lines of the context file (docs/architecture.md, "Layout on disk"):

    {"type":"message","id","parentId","at","role":"user|assistant|tool","content":[...],"toolCallId"?,"toolCalls"?}
    {"type":"summary","id","at","text","upTo"}

- A message has the id of the entry of its first chunk; a tool's result that of the last entry that spoke of it, or, where
  only the call's own did, that id with "-result". `parentId` is the line before.
- What an agent says behind a call is another message, unless both have one messageId and the call has no result yet.
- Every call has exactly one result, behind the message that made it and before the next. A turn that is over leaves none
  open: "[interrupted: no result]". What an agent says of a call after its turn is no part of the context.
- Thoughts, plans and notices are not given to a model. The newest compaction of the path (acpd.storage.cuts) is a summary,
  which comes first: in the place of every line up to `upTo`. The other lines follow.

A turn is folded when it is over, so folding turn by turn gives the same lines as folding all at once, but for a turn in which
the agent has compacted: with that one all is folded anew.

`acpd.storage.primer` makes text of the lines for an agent that has to begin anew.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from acpd.storage import slots
from acpd.storage.cuts import Compactions, Cut, block_text
from acpd.wire import blocks, frames, mend, updates
from acpd.wire.lines import Stored

LONGEST_MESSAGE = 1024 * 1024
"""Bytes of a message's blocks that the context has; no model takes more, and memory is bounded by it."""
INTERRUPTED = "[interrupted: no result]"
NO_OUTPUT = "[no output]"
FAILED = "[failed: no output]"
NO_TERMINAL = "[terminal output is not kept]"

_DONE = frozenset({"completed", "failed"})
_ROLES: dict[str, Literal["user", "assistant"]] = {"user_message_chunk": "user", "agent_message_chunk": "assistant"}
_FOLDED = frozenset({*_ROLES, "tool_call", "tool_call_update", "compaction_update", "compaction_summary_chunk"})


class Call(Struct, gc=False):
    """A tool call as the model made it."""

    toolCallId: str
    title: str = ""
    kind: str | UnsetType = UNSET
    rawInput: Raw | UnsetType = UNSET


class Message(Struct, gc=False, kw_only=True, tag_field="type", tag="message"):
    """One line of the context file. `content` holds ACP content blocks."""

    id: str
    parentId: str | None = None
    at: str = ""
    role: Literal["user", "assistant", "tool", "system"]
    content: list[Raw]
    toolCallId: str | UnsetType = UNSET
    toolCalls: list[Call] | UnsetType = UNSET


class Summary(Struct, gc=False, kw_only=True, tag_field="type", tag="summary"):
    """What stands for every line up to and with `upTo`; None: there was none."""

    id: str
    at: str = ""
    text: str
    upTo: str | None = None


Line = Message | Summary


class _Content(Struct, gc=False):
    content: Raw


class _ContentParams(Struct, gc=False):
    update: _Content


class _PlainText(Struct, gc=False, forbid_unknown_fields=True, tag_field="type", tag="text"):
    text: str


decode_line = msgspec.json.Decoder(Line).decode
_decode_content = msgspec.json.Decoder(_ContentParams).decode
_decode_plain = msgspec.json.Decoder(_PlainText).decode
_decode_array = msgspec.json.Decoder(list[Raw]).decode
_decode_any = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


def lines_of(text: bytes) -> list[bytes]:
    r"""What `feed` and `finish` give, without the ends; a line ends at `\n` and nowhere else."""
    return text.split(b"\n")[:-1]


def is_notice(line: Stored) -> bool:
    """Whether this is a word of acpd's own to the user (docs/protocol.md, `acpd.dev/notice`), and no part of the talk."""
    if line.type != "update" or line.params is UNSET or b'"acpd.dev/notice"' not in bytes(line.params):
        return False
    meta = frames.decode_params(line.params).meta
    return meta is not UNSET and b'"acpd.dev/notice"' in bytes(meta)


class Context:
    """Folds a path: `feed` the windows in order, then `finish`. A turn's lines come out when it is over.

    Holds one turn at most, and what a cut has kept. A file that grows is continued by `Context(parent)` from the entries after
    `seq`; as long as a turn runs it is not finished. A line that cannot be read as its kind says is left out.

    `cut`: the newest compaction of the path. Of one that it was not told there is a summary where it stands, of all before it.
    """

    __slots__ = (
        "_calls",
        "_compactions",
        "_cut",
        "_done",
        "_kept",
        "_last",
        "_message",
        "_turn",
        "compacted",
        "parent",
        "seq",
    )

    def __init__(self, parent: str | None = None, cut: Cut | None = None) -> None:
        self.parent = parent
        """The id of the last line that came out, or was covered by the cut."""
        self.compacted = False
        """Whether there was a compaction that it was not told: the file is to be made anew."""
        self._cut = cut
        """None: it has come. Until then all compactions that come are older."""
        self._kept: list[Message] | None = None
        """What came behind the thing that the cut names, as long as the cut is not there; None: neither is that."""
        self.seq = 0
        """Of the last entry whose turn came out."""
        self._last = 0
        self._done: list[bytes] = []
        self._turn: list[Message | _Said | Cut] = []
        self._message: _Said | None = None
        self._calls: dict[str, _Called] = {}
        self._compactions = Compactions()

    def feed(self, lines: Iterable[Stored]) -> bytes:
        """The lines of the turns that ended in this window."""
        for line in lines:
            with suppress(*mend.FAULTS):  # left out; the place in the log moves on
                self._add(line)
            self._last = line.seq
        done, self._done = self._done, []
        return b"".join(done)

    def finish(self) -> bytes:
        """The lines of the turn that is left, if any; its open calls are interrupted."""
        self._end()
        done, self._done = self._done, []
        return b"".join(done)

    def _add(self, line: Stored) -> None:
        if line.type == "prompt":
            self._end()
            content = [] if line.prompt is UNSET else [block.copy() for block in _decode_array(line.prompt)]
            self._turn.append(Message(id=line.id, at=line.at, role="user", content=content))
        elif line.type == "turn" and line.state != "running":
            self._last = line.seq
            self._end()
        elif line.type in {"update", "compaction"} and line.kind in _FOLDED:
            found = slots.sound(line)
            if found is None:
                return
            self._update(*found)

    def _update(self, line: Stored, seen: Any) -> None:
        match seen:
            case updates.ToolCall() | updates.ToolCallUpdate():
                self._call(line, seen)
            case updates.CompactionUpdate() | updates.CompactionSummaryChunk():
                self._compaction(line, seen)
            case _:
                self._chunk(line, line.messageId or seen.messageId or "")

    def _chunk(self, line: Stored, name: str) -> None:
        message = self._message
        role = _ROLES[line.kind]
        if message is None or message.role != role or message.name != name or message.is_followed:
            message = self._begin(line, role, name)
        message.add(_decode_content(slots.params_of(line)).update.content)

    def _begin(self, line: Stored, role: Literal["user", "assistant"], name: str) -> _Said:
        message = self._message = _Said(line, role, name)
        self._turn.append(message)
        return message

    def _call(self, line: Stored, seen: updates.ToolCall | updates.ToolCallUpdate) -> None:
        called = self._calls.get(seen.toolCallId)
        if called is not None:
            called.id = line.id
            called.at = line.at
        elif isinstance(seen, updates.ToolCallUpdate):
            return  # no result without its call
        else:
            called = self._calls[seen.toolCallId] = _Called(line, seen.toolCallId)
            message = self._message
            if message is None or message.role != "assistant" or message.answered:
                message = self._begin(line, "assistant", "")
            message.calls.append(called)
        called.patch(seen)

    def _compaction(self, line: Stored, seen: updates.CompactionUpdate | updates.CompactionSummaryChunk) -> None:
        done = self._compactions.add(line, seen)
        if done is not None:
            self._turn.append(done)
            self._message = None

    def _end(self) -> None:
        for item in self._turn:
            if self._cut is not None:
                self._pass(item, self._cut)
            elif isinstance(item, Message):
                self._write(item)
            elif isinstance(item, _Said):
                for line in item.lines():
                    self._write(line)
            elif item.text:
                self._summarise(item)
                self.compacted = True
        self._turn = []
        self._message = None
        self._calls = {}
        self._compactions = Compactions()
        self.seq = self._last

    def _pass(self, item: Message | _Said | Cut, cut: Cut) -> None:
        """An item before the cut, or the cut itself, which covers all up to the newest that it names; of none, all.

        The newest, because an agent that had to begin anew may have used a name again.
        """
        if isinstance(item, Cut):
            if item.id == cut.id:
                self._cut = None
                self._summarise(cut)
                for line in self._kept or ():
                    self._write(line)
                self._kept = None
            return
        names, lines = ({item.id}, [item]) if isinstance(item, Message) else (item.names(), item.lines())
        if not names.isdisjoint({cut.name, cut.entry}):
            self._kept = []
        elif self._kept is not None:
            self._kept += lines
            return
        self.parent = lines[-1].id

    def _write(self, line: Line) -> None:
        if isinstance(line, Message):
            line.parentId = self.parent
        self.parent = line.id
        self._done.append(_encode(line).replace(b"\r", b" ") + b"\n")  # between an agent's tokens; some read it as a line's end

    def _summarise(self, cut: Cut) -> None:
        self._write(Summary(id=cut.id, at=cut.at, text=cut.text, upTo=cut.entry or self.parent))


class _Said:
    """A message of the turn that is being folded."""

    __slots__ = ("_blocks", "_left_out", "_room", "_texts", "at", "calls", "id", "name", "role")

    role: Literal["user", "assistant"]

    def __init__(self, line: Stored, role: Literal["user", "assistant"], name: str) -> None:
        self.id = line.id
        self.at = line.at
        self.role = role
        self.name = name
        self.calls: list[_Called] = []
        self._blocks: list[Raw] = []
        self._texts: list[str] = []
        self._room = LONGEST_MESSAGE
        self._left_out = 0

    @property
    def answered(self) -> bool:
        """Whether it made calls and has all their results: a further call was made with the knowledge of them."""
        return bool(self.calls) and all(called.status in _DONE for called in self.calls)

    @property
    def is_followed(self) -> bool:
        """Whether a text that comes now is another message: behind the calls of one without a name, or behind their results."""
        return bool(self.calls) and (not self.name or self.answered)

    def add(self, block: Raw) -> None:
        size = len(block)
        if size > self._room:
            self._room = 0
            self._left_out += size
            return
        self._room -= size
        try:
            self._texts.append(_decode_plain(block).text)
        except msgspec.DecodeError:
            self._flow()
            self._blocks.append(block.copy())

    def _flow(self) -> None:
        if self._texts:
            self._blocks.append(text_block("".join(self._texts)))
            self._texts = []

    def lines(self) -> list[Message]:
        """The message, and the results of its calls."""
        return [self._line(), *(called.line() for called in self.calls)]

    def names(self) -> set[str]:
        """What a compaction may call it by: names of the agent's, ids of its lines."""
        called = [name for each in self.calls for name in (each.call.toolCallId, each.id)]
        return {self.id, self.name, *called} - {""}

    def _line(self) -> Message:
        if self._left_out:
            self._texts.append(f"\n[{self._left_out} bytes of this message are in the log only]")
        self._flow()
        calls = [called.call for called in self.calls] or UNSET
        return Message(id=self.id, at=self.at, role=self.role, content=self._blocks, toolCalls=calls)


class _Called:
    """A call of the turn that is being folded, and what came of it."""

    __slots__ = ("_content", "_output", "at", "call", "id", "status")

    def __init__(self, line: Stored, name: str) -> None:
        self.call = Call(name)
        self.id = f"{line.id}-result"
        self.at = line.at
        self.status = ""
        self._content: list[blocks.ToolCallContent] = []
        self._output: Raw | None = None

    def patch(self, seen: updates.ToolCall | updates.ToolCallUpdate) -> None:
        """ACP v1 ToolCallUpdate: omitted or null is unchanged, everything else replaces."""
        self.call.title = seen.title or self.call.title
        self.call.kind = seen.kind or self.call.kind
        self.status = seen.status or self.status
        if seen.content is not UNSET and seen.content is not None:
            self._content = seen.content
        if seen.rawInput is not UNSET and bytes(seen.rawInput) != b"null":
            self.call.rawInput = seen.rawInput.copy()
        if seen.rawOutput is not UNSET and bytes(seen.rawOutput) != b"null":
            self._output = seen.rawOutput.copy()

    def line(self) -> Message:
        return Message(
            id=self.id, at=self.at, role="tool", content=[text_block(self._result())], toolCallId=self.call.toolCallId
        )

    def _result(self) -> str:
        said = "\n".join(map(_result_text, self._content))
        if not said and self._output is not None:
            value = _decode_any(self._output)
            said = value if isinstance(value, str) else bytes(self._output).decode()
        if self.status in _DONE:
            return said or (FAILED if self.status == "failed" else NO_OUTPUT)
        return f"{said}\n{INTERRUPTED}" if said else INTERRUPTED


def text_block(text: str) -> Raw:
    return Raw(b'{"type":"text","text":%b}' % _encode(text))


def _result_text(item: blocks.ToolCallContent) -> str:
    match item:
        case blocks.Content():
            return block_text(item.content)
        case blocks.Diff():
            return f"[changed {item.path}]"
        case blocks.Terminal():
            return NO_TERMINAL
