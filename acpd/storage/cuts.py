"""Compactions of a path: which is the newest, what it says, and what it covers.

A compaction is completed by an update of that status; its summary is the newest `summary` of its updates and the chunks that
follow it. It covers what came before: up to the thing that the agent names in `_meta["acpd.dev/upTo"]` of an update of it (a
messageId or a toolCallId of its own), else all of it. A message is covered with all of its calls: none is without its result.

A context begins with the newest one, so a path is read twice: by `Cuts`, then by acpd.storage.context.Context.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

import msgspec
from msgspec import UNSET, Struct, UnsetType

from acpd.storage import slots
from acpd.wire import blocks, mend, updates
from acpd.wire.lines import Stored

KINDS = frozenset({"compaction_update", "compaction_summary_chunk"})


class Cut(Struct, gc=False):
    """A compaction. `id`, `at`: of the entry that completed it, "" as long as none has; `name`: what it covers ends with that
    thing of the agent's; `entry`: or with this entry. Neither: it ends with the line before it.
    """

    id: str = ""
    at: str = ""
    text: str = ""
    name: str | None = None
    entry: str | None = None


class _Meta(Struct, gc=False, rename={"up_to": "acpd.dev/upTo"}):
    up_to: str | UnsetType = UNSET


class _Update(Struct, gc=False, rename={"meta": "_meta"}):
    meta: _Meta | None = None


class _Params(Struct, gc=False):
    update: _Update


_decode_meta = msgspec.json.Decoder(_Params).decode


class Compactions:
    """Those of one turn."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[str, Cut] = {}

    def add(self, line: Stored, seen: updates.CompactionUpdate | updates.CompactionSummaryChunk) -> Cut | None:
        """The compaction, if this line has completed it. What the turn still says of it is found in it."""
        cut = self._known.setdefault(seen.compactionId, Cut())
        if isinstance(seen, updates.CompactionSummaryChunk):
            cut.text += block_text(seen.content)
            return None
        if seen.summary is not UNSET:
            cut.text = "".join(map(block_text, seen.summary or []))
        cut.name = _named(line) or cut.name
        if seen.status != "completed" or cut.id:
            return None
        cut.id, cut.at, cut.entry = line.id, line.at, line.entry
        return cut


class Cuts:
    """`feed` the windows of a path in order, then, if what is left of it is to count as a turn, `finish`: then `newest`."""

    __slots__ = ("_done", "_turn", "newest")

    def __init__(self) -> None:
        self.newest: Cut | None = None
        """Of the turns that are over."""
        self._turn = Compactions()
        self._done: list[Cut] = []

    def feed(self, lines: Iterable[Stored]) -> None:
        for line in lines:
            if line.type == "prompt" or (line.type == "turn" and line.state != "running"):
                self.finish()
            elif line.kind in KINDS and line.type in {"update", "compaction"}:
                with suppress(*mend.FAULTS):
                    self._add(line)

    def _add(self, line: Stored) -> None:
        found = slots.sound(line)
        done = self._turn.add(*found) if found is not None else None
        if done is not None:
            self._done.append(done)

    def finish(self) -> None:
        """The turn is over."""
        self.newest = next((cut for cut in reversed(self._done) if cut.text), self.newest)
        self._turn = Compactions()
        self._done = []


def _named(line: Stored) -> str:
    try:
        meta = _decode_meta(slots.params_of(line)).update.meta
    except msgspec.DecodeError:
        return ""
    return meta.up_to if meta is not None and meta.up_to is not UNSET else ""


def block_text(block: blocks.ContentBlock) -> str:
    """What of a content block can be said in words."""
    match block:
        case blocks.Text():
            return block.text
        case blocks.ResourceLink():
            return f"[{block.name}: {block.uri}]"
        case blocks.Resource():
            return f"[{block.resource.uri}]\n{block.resource.text or ''}".rstrip()
        case blocks.Image() | blocks.Audio():
            return f"[{block.mimeType}]"
