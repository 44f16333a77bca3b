"""Big string values of a payload, taken out and put back byte for byte.

A string value of 64 KiB and more (an image, a big output) is stored once, under the SHA-256 of the bytes between its
quotes as they were written; the payload holds `{"$blob":"<sha256>","bytes":n}` in its place. Where such places are is
kept beside the payload as byte offsets, so a payload that itself contains that text is never mistaken for one.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from itertools import pairwise

LIMIT = 64 * 1024
"""Bytes between the quotes from which on a string value becomes a blob."""

_STRING = re.compile(rb'"([^"\\]*+(?:\\.[^"\\]*+)*+)"(\s*:)?', re.DOTALL)
_PLACE = re.compile(rb'\{"\$blob":"([0-9a-f]{64})","bytes":([0-9]+)\}')


def extract(raw: bytes, limit: int = LIMIT) -> tuple[bytes, tuple[int, ...], list[tuple[str, bytes]]]:
    """(text, offsets, [(sha256, bytes)]): the JSON text `raw` with its big string values taken out.

    Offsets are of the places in `text`, ascending. Names of members stay, however long. Linear; immediate below `limit`.
    """
    if len(raw) < limit + 2:
        return raw, (), []
    parts: list[bytes] = []
    offsets: list[int] = []
    blobs: dict[str, bytes] = {}
    at = length = 0
    for match in _STRING.finditer(raw):
        if match.end(1) - match.start(1) < limit or match[2] is not None:
            continue
        value = match[1]
        name = hashlib.sha256(value).hexdigest()
        blobs[name] = value
        place = b'{"$blob":"%b","bytes":%d}' % (name.encode(), len(value))
        parts += (raw[at : match.start()], place)
        offsets.append(length + match.start() - at)
        length = offsets[-1] + len(place)
        at = match.end()
    if not parts:
        return raw, (), []
    parts.append(raw[at:])
    return b"".join(parts), tuple(offsets), list(blobs.items())


def places(text: bytes, offsets: Sequence[int]) -> list[tuple[int, int, str, int]]:
    """(start, end, sha256, bytes) of each place, ascending: where the offsets say; if one is wrong, all that look like one."""
    found = [match for offset in offsets if (match := _PLACE.match(text, offset))]
    if len(found) != len(offsets) or any(one.end() > two.start() for one, two in pairwise(found)):
        found = list(_PLACE.finditer(text))
    return [(match.start(), match.end(), match[1].decode(), int(match[2])) for match in found]


def restore(text: bytes, offsets: Sequence[int], get: Callable[[str, int], bytes | None]) -> bytes:
    """The payload as it was before `extract`. `get(sha256, bytes)` gives a blob or None; then its place stays as it is."""
    parts: list[bytes] = []
    at = 0
    for start, end, name, size in places(text, offsets):
        value = get(name, size)
        if value is not None:
            parts += (text[at:start], b'"', value, b'"')
            at = end
    parts.append(text[at:])
    return b"".join(parts)
