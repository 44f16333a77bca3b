"""Opening a session that a dead holder left: what it left open is closed in the log, and the user is told.

Nothing is run again by itself (docs/architecture.md, "Recovery").
"""

from __future__ import annotations

import msgspec
from msgspec import Raw, Struct

from acpd.asks import CANCELLED
from acpd.errors import StoreError
from acpd.session import NEVER_BEGUN, LiveSession
from acpd.wire.envelope import encode

INTERRUPTED = (
    "This turn was interrupted: acpd or the machine stopped while it ran. Nothing of it is run again by itself;"
    " what it had done before is unknown to the agent. Prompt again to go on."
)
FORKED = "This session was forked in the middle of this turn: what came after it is not known here."
_decode_queue = msgspec.json.Decoder(list[Raw]).decode


class _Waiting(Struct, gc=False):
    prompt: Raw
    by: str = ""


_decode_waiting = msgspec.json.Decoder(_Waiting).decode
_decode_blocks = msgspec.json.Decoder(list[dict[str, Raw]]).decode


async def recover(session: LiveSession) -> None:
    """Close open asks, the open turn and the queue. Durable when it returns. Raises StoreError."""
    fold = session.fold
    if fold.turn is not None:  # else it goes on at the leaf, which may have been moved
        session.recorder.tip = fold.last_entry
    parent = session.header.parent
    is_cut_by_fork = parent is not None and parent.entryId == fold.last_entry
    for ask in list(fold.asks.values()):
        result = CANCELLED.get(ask.method, b"null")
        session.recorder.entry("answer", b',"ask":"%b","by":"acpd","result":%b' % (ask.id.encode(), result))
    if fold.turn is not None:
        session.recorder.tell(FORKED if is_cut_by_fork else INTERRUPTED)
        session.recorder.entry("turn", b',"state":"interrupted"')
    if fold.queue is not None:
        _end_queue(session, bytes(fold.queue))
    if fold.seq != session.scribe.flushed:
        if not session.scribe.commit():
            raise session.scribe.error or StoreError("write", f"session {session.id}")
        await session.scribe.settled()


def _end_queue(session: LiveSession, prompts: bytes) -> None:
    """Prompts that were accepted and never begun become part of the conversation, marked so."""
    for waiting in _decode_queue(prompts):
        try:
            said = _decode_waiting(waiting)
            _decode_blocks(prompt := bytes(said.prompt))
        except msgspec.DecodeError:  # damage: there is nothing that could be shown
            continue
        by = b',"by":%b' % encode(said.by) if said.by else b""
        written = session.recorder.branch("prompt", b'%b,"prompt":%b' % (by, prompt))
        session.recorder.tell(NEVER_BEGUN)
        session.recorder.turn("interrupted", written.id)
    session.scribe.fact("queue", b',"prompts":[]')
