"""A stream of text is one shape with other texts. Who has looked at one chunk closely knows the next by its text alone.

Half of the cost of a long stream is saved so. Nothing is trusted that was not looked at: the line begins and ends, byte
for byte, as one that went through the protocol and the recorder; what is between is the inside of one JSON string,
checked as the protocol checks it. Anything else goes the long way (tests/agents/test_textrun.py holds both ways to the
same bytes).
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from acpd.recorder import Shape
from acpd.wire import blobs

_decode_text = msgspec.json.Decoder(str).decode


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

    def text(self, line: bytes) -> bytes | None:
        """The inside of the text's JSON string, if this line is one more of the run."""
        head, tail = self.head, self.tail
        if not line.startswith(head) or not line.endswith(tail) or not len(head) + len(tail) <= len(line) < blobs.LIMIT:
            return None
        text = line[len(head) : len(line) - len(tail)]
        if b'"' in text:
            return None
        try:
            _decode_text(b'"%b"' % text)
        except msgspec.DecodeError:
            return None
        return text
