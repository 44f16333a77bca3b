"""The frames of many stored lines of one session: what neighbouring lines have in common is looked at once."""

from __future__ import annotations

import msgspec
from msgspec import UNSET

from acpd.wire import frames
from acpd.wire.lines import Stored

_MEMBERS = b',"update":{'
_BRACKET = ord("}")


class Framer:
    """`session` is acpd's session id as JSON text.

    A line that is `cut` says where in its params the update begins, and that it is valid; then the params need not be decoded.
    What it says is believed only of params that begin with a session id and an update: the agent's own id must not get out.
    """

    __slots__ = ("_at", "_before", "_behind", "_cut", "_head", "_marked", "session")

    def __init__(self, session: bytes) -> None:
        self.session = session
        self._head = frames.before_update(session)
        self._before = b"\n"  # no params begin so
        """What the params of the last cut line began with, up to `_cut` and a bracket."""
        self._cut = 0
        self._at = ""
        self._marked = False
        self._behind = b""

    def frame(self, line: Stored, changed: bytes | None = None) -> bytes:
        """The frame of this line, with another update in the place of its own if that is given.

        Raises msgspec.DecodeError if its params are not of session/update.
        """
        if line.params is UNSET:
            raise msgspec.DecodeError("no params")
        raw = bytes(line.params)
        cut = line.cut
        known = cut == self._cut and raw.startswith(self._before)
        if changed is not None or not (known or self._learn(raw, cut)) or raw[-2] != _BRACKET or len(raw) > frames.MAX_OUT:
            return self._decoded(line, raw, changed)
        text = raw[cut:-1]
        if line.messageId:
            text = frames.with_message_id(text, line.messageId)
        if line.at != self._at or line.background is not self._marked:
            self._at, self._marked = line.at, line.background
            self._behind = frames.end(line.at, frames.BACKGROUND if line.background else b"")
        return b"".join((self._head, text, frames.BEFORE_SEQ, b"%d" % line.seq, self._behind))  # half the time of a format

    def _learn(self, raw: bytes, cut: int) -> bool:
        """Whether the update begins at `cut`, behind the session's id; if so, then also in params that begin like these."""
        behind_id = raw.find(b'"', 14) + 1 if raw.startswith(b'{"sessionId":"') else 0
        if cut != behind_id + 10 or not raw.startswith(_MEMBERS, behind_id):
            return False
        self._before, self._cut = raw[: cut + 1], cut
        return True

    def _decoded(self, line: Stored, raw: bytes, changed: bytes | None) -> bytes:
        mark = frames.BACKGROUND if line.background else b""
        message_id = line.messageId if changed is None else ""
        return frames.update(raw, self.session, line.seq, line.at, message_id, changed, mark)
