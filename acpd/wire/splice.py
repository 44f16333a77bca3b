"""Change single members of a JSON object and leave every other byte as it was written."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import NamedTuple

import msgspec
from msgspec import Raw

_KEY = re.compile(rb'[\s,]*("[^"\\]*(?:\\.[^"\\]*)*")\s*:\s*', re.DOTALL)
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\]]|[^"{}\[\]]+', re.DOTALL)
_END = re.compile(rb"[\s,}]")
_BETWEEN = re.compile(rb"[\s,]*")
_decode_members = msgspec.json.Decoder(dict[str, Raw]).decode
_decode_items = msgspec.json.Decoder(list[Raw]).decode
_decode_text = msgspec.json.Decoder(str).decode

Edit = tuple[int, int, bytes]


class Member(NamedTuple):
    """One member of an object: where its key starts, where its value starts and ends."""

    name: str
    key: int
    start: int
    end: int


def entries(raw: bytes) -> list[Member]:
    """The members of this JSON object as written, those too whose name stands twice. Linear in its length.

    `raw` must be valid JSON. Raises msgspec.DecodeError if it is no object, RecursionError if it is nested too deeply.
    """
    values = {name: bytes(value) for name, value in _decode_members(raw).items()}
    found: list[Member] = []
    at = raw.index(b"{") + 1
    while match := _KEY.match(raw, at):
        name = _decode_text(match[1])
        start = match.end()
        at = start + len(values[name])
        if not raw.startswith(values[name], start) or not _END.match(raw, at):  # the name stands twice; the other one counts
            at = _value_end(raw, start)
        found.append(Member(name, match.start(1), start, at))
    return found


def members(raw: bytes) -> dict[str, tuple[int, int]]:
    """Where the value of each member starts and ends. As `entries`, but of members with one name only the last counts."""
    return {member.name: (member.start, member.end) for member in entries(raw)}


def items(raw: bytes) -> list[tuple[int, int]]:
    """Where each item of this JSON array starts and ends. Raises as `entries`."""
    spans: list[tuple[int, int]] = []
    at = raw.index(b"[") + 1 if (values := _decode_items(raw)) else 0
    for value in values:
        between = _BETWEEN.match(raw, at)
        start = between.end() if between else at
        at = start + len(value)
        spans.append((start, at))
    return spans


def _value_end(raw: bytes, start: int) -> int:
    if raw[start : start + 1] not in b'"{[':
        match = _END.search(raw, start)
        return match.start() if match else len(raw)
    depth = 0
    for token in _TOKEN.finditer(raw, start):
        first = token[0][:1]
        depth += (first in b"{[") - (first in b"}]")
        if depth == 0:
            return token.end()
    return len(raw)


def apply(raw: bytes, edits: Iterable[Edit]) -> bytes:
    """The text with each `(start, end, replacement)` carried out; edits do not overlap."""
    parts: list[bytes] = []
    at = 0
    for start, end, replacement in sorted(edits):
        parts += (raw[at:start], replacement)
        at = end
    parts.append(raw[at:])
    return b"".join(parts)


def cuts(spans: list[tuple[int, int]], gone: Collection[int]) -> list[Edit]:
    """Edits that take elements out of an object or array, each with one comma.

    `spans` are all its elements in order, of an object from key to end of value; `gone` the indexes of those to take out.
    """
    edits: list[Edit] = []
    last = max((index for index in range(len(spans)) if index not in gone), default=-1)
    edits += [(spans[index][0], spans[index + 1][0], b"") for index in gone if index < last]
    if last + 1 < len(spans):
        edits.append((spans[last][1] if last >= 0 else spans[0][0], spans[-1][1], b""))
    return edits


def remove(raw: bytes, names: Collection[str]) -> bytes:
    """This object without the members of these names, however often they stand."""
    found = entries(raw)
    gone = {index for index, member in enumerate(found) if member.name in names}
    return apply(raw, cuts([(member.key, member.end) for member in found], gone)) if gone else raw


def replace(raw: bytes, name: str, value: bytes) -> bytes:
    """This object with one member's value replaced, or the member added at its end."""
    span = members(raw).get(name)
    return apply(raw, [(*span, value)]) if span else add(raw, b'"%b":%b' % (name.encode(), value))


def add(raw: bytes, text: bytes) -> bytes:
    """This object with `"name":value` text added at its end."""
    end = raw.rindex(b"}")
    comma = b"" if raw[:end].rstrip().endswith(b"{") else b","
    return raw[:end] + comma + text + raw[end:]
