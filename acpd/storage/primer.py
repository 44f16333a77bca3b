"""What an agent that has to begin anew is told of a conversation: text, made of the lines of its context.

A bound in tokens holds. What a token is only a model knows; here four bytes of UTF-8 count as one, which is about right for
English and code and on the safe side of most other scripts.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import msgspec
from msgspec import UNSET, Raw

from acpd.storage.context import Call, Line, Message, Summary, decode_line
from acpd.storage.cuts import block_text
from acpd.wire import blocks, mend

BYTES_PER_TOKEN = 4
LEAST_TOKENS = 1_000
"""Below that there is no room for the newest message."""
HEAD = (
    "This session was begun earlier, and your own memory of it is gone. What follows is the record of the conversation so far. "
    "Do not answer it again; go on from it."
)
PARTS = 5
"""No single message, input, result or summary takes more than this part of the room."""

_NOTICE_ROOM = 120
_SPEAKERS = {"user": "User", "assistant": "Assistant", "tool": "Result", "system": "System"}
_decode_block = msgspec.json.Decoder(blocks.ContentBlock).decode


class Primed(NamedTuple):
    """The text, empty if there is nothing to tell, and how many of the oldest messages are not in it."""

    text: str
    missing: int


class _Piece(NamedTuple):
    """What is told or left out as one. `first` is the number, from 0, of its first message in the context."""

    first: int
    text: str
    size: int


class Primer:
    """`add` the lines of a context, without its header, in order; then `told`. Holds what it will tell, and the ids of all.

    Newest first within the bound, told oldest first; a call and its result stay together; what is missing is named; the newest
    summary stands for the lines that it covers.
    """

    def __init__(self, tokens: int) -> None:
        """Raises ValueError below LEAST_TOKENS."""
        if tokens < LEAST_TOKENS:
            raise ValueError(tokens)
        self._room = tokens * BYTES_PER_TOKEN - len(HEAD) - _NOTICE_ROOM
        self._bound = self._room // PARTS
        self._count = 0
        """Messages so far."""
        self._pieces: deque[_Piece] = deque()
        self._size = 0
        self._summary: _Piece | None = None
        self._covered = 0
        self._numbers: dict[str, int] = {}
        self._calls: dict[str, Call] = {}
        self._silent: int | None = None

    def add(self, line: bytes | Line) -> None:
        """The next line, decoded or as it stands in the file. Raises msgspec.DecodeError for what is none."""
        if isinstance(line, bytes):
            line = decode_line(line)
        if isinstance(line, Summary):
            self._cut(line)
        elif line.role == "tool":
            self._result(line)
        else:
            self._message(line)
        self._count += isinstance(line, Message)
        self._numbers[line.id] = self._count

    def told(self) -> Primed:
        first = self._pieces[0].first if self._pieces else self._count
        missing = max(0, first - self._covered)
        if self._count == 0 and self._summary is None:
            return Primed("", 0)
        parts = [HEAD]
        if self._summary is not None:
            parts.append(self._summary.text)
        if missing:
            parts.append(f"[{missing} earlier message{'s are' if missing > 1 else ' is'} left out here]")
        return Primed("\n\n".join([*parts, *(piece.text for piece in self._pieces)]), missing)

    def _message(self, line: Message) -> None:
        text = _text(line.content)
        self._calls = {call.toolCallId: call for call in line.toolCalls or []}
        self._silent = None
        if text or not self._calls:
            self._keep(self._count, f"{_SPEAKERS[line.role]}: {self._clipped(text)}")
        else:
            self._silent = self._count  # told by its calls

    def _result(self, line: Message) -> None:
        call = self._calls.pop(line.toolCallId or "", None)
        if call is None:
            return  # no result without its call
        given = "" if call.rawInput is UNSET else bytes(call.rawInput).decode()
        made = f"Tool call: {self._clipped(call.title or call.toolCallId)} {self._clipped(given)}".rstrip()
        first = self._count if self._silent is None else self._silent
        self._silent = None
        self._keep(first, f"{made}\nResult: {self._clipped(_text(line.content))}")

    def _keep(self, first: int, text: str) -> None:
        piece = _piece(first, text)
        self._pieces.append(piece)
        self._size += piece.size
        self._fit()

    def _fit(self) -> None:
        while self._pieces and self._size > self._room:
            self._size -= self._pieces.popleft().size

    def _cut(self, line: Summary) -> None:
        """Forget what the summary covers. One whose `upTo` is not known covers everything before it."""
        covered = 0 if line.upTo is None else self._numbers.get(line.upTo, self._count)
        self._covered = max(self._covered, covered)
        while self._pieces and self._pieces[0].first < self._covered:
            self._size -= self._pieces.popleft().size
        if self._summary is not None:
            self._size -= self._summary.size
        self._summary = _piece(self._count, f"Summary of what came before: {self._clipped(line.text)}")
        self._size += self._summary.size
        self._fit()

    def _clipped(self, text: str) -> str:
        data = text.encode(errors="replace")
        if len(data) <= self._bound:
            return text
        half = self._bound // 2
        start, end = data[:half].decode(errors="ignore"), data[-half:].decode(errors="ignore")
        return f"{start} [... {len(text) - len(start) - len(end)} characters left out ...] {end}"


def _piece(first: int, text: str) -> _Piece:
    return _Piece(first, text, len(text.encode(errors="replace")) + 2)


def _text(content: list[Raw]) -> str:
    return "\n".join(filter(None, map(_said, content)))


def _said(block: Raw) -> str:
    try:
        return block_text(_decode_block(block))
    except mend.FAULTS:
        return "[content that cannot be shown]"
