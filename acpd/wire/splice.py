"""Change single members of a JSON object and leave every other byte as it was written."""

from __future__ import annotations

import re

import msgspec
from msgspec import Raw

_KEY = re.compile(rb'[\s,]*("[^"\\]*(?:\\.[^"\\]*)*")\s*:\s*', re.DOTALL)
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\]]|[^"{}\[\]]+', re.DOTALL)
_END = re.compile(rb"[\s,}]")
_decode_members = msgspec.json.Decoder(dict[str, Raw]).decode
_decode_text = msgspec.json.Decoder(str).decode

Edit = tuple[int, int, bytes]


def members(raw: bytes) -> dict[str, tuple[int, int]]:
    """Where the value of each member of this JSON object starts and ends. Linear in its length.

    `raw` must be valid JSON. Raises msgspec.DecodeError if it is no object. Of members with one name the last counts.
    """
    values = _decode_members(raw)
    spans: dict[str, tuple[int, int]] = {}
    at = raw.index(b"{") + 1
    while match := _KEY.match(raw, at):
        name = _decode_text(match[1])
        start = match.end()
        at = start + len(values[name])
        if raw[start:at] != bytes(values[name]) or not _END.match(raw, at):  # the name stands twice; this is not the one that counts
            at = _value_end(raw, start)
        spans[name] = (start, at)
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


def apply(raw: bytes, edits: list[Edit]) -> bytes:
    """The text with each `(start, end, replacement)` carried out; edits do not overlap."""
    parts = []
    at = 0
    for start, end, replacement in sorted(edits):
        parts += (raw[at:start], replacement)
        at = end
    parts.append(raw[at:])
    return b"".join(parts)


def replace(raw: bytes, name: str, value: bytes) -> bytes:
    """This object with one member's value replaced, or the member added at its end."""
    span = members(raw).get(name)
    return apply(raw, [(*span, value)]) if span else add(raw, b'"%b":%b' % (name.encode(), value))


def add(raw: bytes, text: bytes) -> bytes:
    """This object with `"name":value` text added at its end."""
    end = raw.rindex(b"}")
    comma = b"" if raw[:end].rstrip().endswith(b"{") else b","
    return raw[:end] + comma + text + raw[end:]
