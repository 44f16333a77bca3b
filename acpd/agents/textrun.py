"""A stream of text is one shape with other texts. Who has looked at one chunk closely knows the next ones by their texts alone.

Most of the cost of a long stream is saved so, the more of it the more lines come at once. Nothing is trusted that was not
looked at: the line begins and ends, byte for byte, as one that went through the protocol and the recorder; what is between
is the inside of one JSON string, checked as the protocol checks it. Anything else goes the long way
(tests/agents/test_textrun.py holds both ways to the same bytes).
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice, takewhile

import msgspec
from msgspec import Struct

from acpd.recorder import Shape
from acpd.wire.blobs import LIMIT

MOST = 256
"""Lines that are handled at once: less than a millisecond."""

_decode_text = msgspec.json.Decoder(str).decode
_decode_texts = msgspec.json.Decoder(list[str]).decode


class TextRun(Struct, gc=False):
    """What the lines of one message have in common."""

    shape: Shape
    head: bytes
    tail: bytes

    @classmethod
    def of(cls, shape: Shape, line: bytes, params: bytes) -> TextRun | None:
        """From the line whose params have this shape; None if its params do not end it."""
        if not line.endswith(params + b"}"):
            return None
        return cls(shape, line[: len(line) - len(params) - 1] + shape.head, shape.tail + b"}")

    def texts(self, lines: Iterable[object]) -> list[bytes]:
        """The insides of the texts' JSON strings of the lines at the beginning that are more of the run, MOST at most."""
        head, tail = self.head, self.tail
        start, end = len(head), -len(tail)
        least = start - end
        found: list[bytes] = []
        for line in islice(lines, MOST):
            if type(line) is not bytes or not (line.startswith(head) and line.endswith(tail) and least <= len(line) < LIMIT):
                break
            found.append(line[start:end])
        plain = found
        if b'"' in b"".join(found):
            found = list(takewhile(lambda text: b'"' not in text or _is_text(text), found))
            plain = [text for text in found if b'"' not in text]
        if _are_texts(plain):
            return found
        return found[:1] if _is_text(found[0]) else []


def _is_text(text: bytes) -> bool:
    """Whether this is the inside of one JSON string."""
    try:
        _decode_text(b'"%b"' % text)
    except msgspec.DecodeError:
        return False
    return True


def _are_texts(texts: list[bytes]) -> bool:
    """As `_is_text` for each of them, looked at all at once. None has a quote.

    A backslash at the end of one would hide a quote between two of them: then they are fewer strings.
    """
    try:
        return len(_decode_texts(b'["%b"]' % b'","'.join(texts) if texts else b"[]")) == len(texts)
    except msgspec.DecodeError:
        return False
