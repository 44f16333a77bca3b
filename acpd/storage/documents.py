"""From the lines of a log to the documents of search. Pure.

A prompt, a whole message, a whole thought and a whole tool call are one document each, named by their first entry. Of a tool
call: its title, the text that came out of it, and the paths of its locations and diffs; of a prompt also the paths that it
links to. Thoughts count as what they are. Not searched: plans, compactions, asks, acpd's own notices, what a tool was given
and what a diff changes, images, sounds.

Every branch is searched, so lines are taken in file order. Documents are *settled* at the end of a turn, where the next one
begins, and in a long turn where no call is open; what is said of a call later is a document of its own, as the log has both. So
taking a log in parts that begin where the last settled gives the same documents as taking it at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec import UNSET

from acpd.storage import slots
from acpd.storage.context import is_notice
from acpd.storage.hits import Document
from acpd.storage.queries import Scope
from acpd.wire import blocks, mend, updates
from acpd.wire.lines import Stored

LONGEST = 64 * 1024
"""Characters of a document's text, and of its paths; the rest is in the log only."""
HELD = 32
"""Documents of one turn from which on they are settled where no call is open; at eight times as many they are in any case."""
HELD_TEXT = 128 * 1024
"""The same in characters."""

_SCOPES: dict[str, Scope] = {"user_message_chunk": "prompt", "agent_message_chunk": "answer", "agent_thought_chunk": "thought"}
_KINDS = frozenset({*_SCOPES, "tool_call", "tool_call_update"})
Item = TypeVar("Item", "_Said", "_Called")

_DONE = frozenset({"completed", "failed"})
_decode_any = msgspec.json.Decoder().decode


class Part(NamedTuple):
    """Documents that are settled together, and the seq of the last line that they are of."""

    settled: int
    documents: list[Document]


class Documents:
    """`feed` the lines after `settled` in file order; `rest` is what the turn that is not over has so far."""

    __slots__ = ("_calls", "_held", "_items", "_message", "_open", "_ready", "seen", "settled")

    def __init__(self, after: int = 0) -> None:
        self.settled = self.seen = after
        """The seq up to which every document has come out of `feed`; of the last line."""
        self._ready: list[Part] = []
        self._items: list[_Said | _Called] = []
        self._calls: dict[str, _Called] = {}
        self._open: set[str] = set()
        self._message: _Said | None = None
        self._held = 0

    def feed(self, lines: Iterable[Stored]) -> list[Part]:
        """What these lines settle. A line that cannot be read as its kind says is left out."""
        for line in lines:
            with suppress(*mend.FAULTS):
                self._add(line)
            self.seen = line.seq
            if line.type == "turn" and line.state != "running":
                self._settle(line.seq)
        ready, self._ready = self._ready, []
        return ready

    def rest(self) -> list[Document]:
        """As they would be if the log ended here. They come again, perhaps longer, when they are settled."""
        return [document for item in self._items if (document := item.document()) is not None]

    def _settle(self, seq: int) -> None:
        if documents := self.rest():
            self._ready.append(Part(seq, documents))
        self._items = []
        self._calls = {}
        self._open = set()
        self._message = None
        self._held = 0
        self.settled = seq

    def _add(self, line: Stored) -> None:
        if line.type == "prompt":
            self._settle(line.seq - 1)
            said = self._begin(line, _Said(line, "prompt", line.id))
            for block in [] if line.prompt is UNSET else blocks.blocks_decoder().decode(line.prompt):
                self._held += said.add(block, apart=True)
        elif line.type == "update" and line.kind in _KINDS and not is_notice(line):
            found = slots.sound(line)
            if found is not None:
                self._update(*found)

    def _update(self, line: Stored, seen: Any) -> None:
        if isinstance(seen, updates.ToolCall | updates.ToolCallUpdate):
            self._call(line, seen)
            return
        scope, name = _SCOPES[line.kind], line.messageId or seen.messageId or ""
        message = self._message
        if message is None or message.scope != scope or message.name != name:
            if scope == "prompt" and (message is None or message.scope != "prompt"):
                self._settle(line.seq - 1)  # a log without turns: the agent's own, recorded
            message = self._message = self._begin(line, _Said(line, scope, name))
        self._held += message.add(seen.content)

    def _call(self, line: Stored, seen: updates.ToolCall | updates.ToolCallUpdate) -> None:
        called = self._calls.get(seen.toolCallId)
        if self._message is not None and not self._message.name:
            self._message = None  # what comes is another one
        if called is None:
            called = self._begin(line, _Called(line))
            self._calls[seen.toolCallId] = called
        self._held += called.patch(seen)
        if called.status in _DONE:
            self._open.discard(seen.toolCallId)
        else:
            self._open.add(seen.toolCallId)

    def _begin(self, line: Stored, item: Item) -> Item:
        """A new document; what there is may be settled before it."""
        count = len(self._items)
        if (count >= HELD or self._held >= HELD_TEXT) and (not self._open or count >= 8 * HELD):
            self._settle(line.seq - 1)
        self._items.append(item)
        return item


class _Said:
    """A prompt, a message or a thought."""

    __slots__ = ("_line", "_paths", "_room", "_texts", "name", "scope")

    def __init__(self, line: Stored, scope: Scope, name: str) -> None:
        self._line = (line.id, line.seq, line.at)
        self.scope: Scope = scope
        self.name = name
        self._texts: list[str] = []
        self._paths: dict[str, None] = {}
        self._room = LONGEST

    def add(self, block: blocks.ContentBlock, *, apart: bool = False) -> int:
        """The characters that it takes. `apart`: on a line of its own."""
        text, path = _text(block)
        if path:
            self._paths[path] = None
        if apart and text and self._texts:
            text = f"\n{text}"
        text = text[: self._room]
        self._room -= len(text)
        if text:
            self._texts.append(text)
        return len(text)

    def document(self) -> Document | None:
        return _document(self._line, self.scope, "".join(self._texts), self._paths)


class _Called:
    """A tool call, or what was said of one after its turn."""

    __slots__ = ("_content", "_line", "_output", "_places", "_title", "status")

    def __init__(self, line: Stored) -> None:
        self._line = (line.id, line.seq, line.at)
        self.status = ""
        self._title = ""
        self._content: tuple[str, tuple[str, ...]] = ("", ())
        self._places: tuple[str, ...] = ()
        self._output = ""

    def patch(self, seen: updates.ToolCall | updates.ToolCallUpdate) -> int:
        """ACP v1 ToolCallUpdate: omitted or null is unchanged, everything else replaces. The characters that came."""
        size = 0
        self.status = seen.status or self.status
        self._title = seen.title or self._title
        if seen.content is not UNSET and seen.content is not None:
            self._content = _results(seen.content)
            size += len(self._content[0])
        if seen.locations is not UNSET and seen.locations is not None:
            self._places = tuple(each.path for each in seen.locations)
        if seen.rawOutput is not UNSET and bytes(seen.rawOutput) != b"null":
            value = _decode_any(seen.rawOutput)
            self._output = (value if isinstance(value, str) else bytes(seen.rawOutput).decode())[:LONGEST]
            size += len(self._output)
        return size

    def document(self) -> Document | None:
        said, changed = self._content
        text = "\n".join(filter(None, (self._title, said or self._output)))
        return _document(self._line, "tool", text, dict.fromkeys((*self._places, *changed)))


def _document(line: tuple[str, int, str], scope: Scope, text: str, paths: Iterable[str]) -> Document | None:
    if not text and not paths:
        return None
    entry, seq, at = line
    return Document(entry=entry, seq=seq, at=at, scope=scope, text=text[:LONGEST], paths="\n".join(paths)[:LONGEST])


def _text(block: blocks.ContentBlock) -> tuple[str, str]:
    """What a content block says in words, and the path or address that it names."""
    match block:
        case blocks.Text():
            return block.text, ""
        case blocks.ResourceLink():
            return block.title or block.name, block.uri
        case blocks.Resource():
            return block.resource.text or "", block.resource.uri
        case _:
            return "", ""


def _results(content: list[blocks.ToolCallContent]) -> tuple[str, tuple[str, ...]]:
    """The text of a tool call's content, and the paths of its diffs and resources."""
    texts: list[str] = []
    paths: list[str] = []
    for item in content:
        if isinstance(item, blocks.Content):
            text, path = _text(item.content)
            texts.append(text)
            paths.append(path)
        elif isinstance(item, blocks.Diff):
            paths.append(item.path)
    return "\n".join(filter(None, texts))[:LONGEST], tuple(filter(None, paths))
