"""Where a session goes on, and the names of its entries: `leaf` and `label` facts. Nothing is ever deleted.

After a branch the agent's own session is of no use any more: the agent is ended, and the next prompt goes to one that was
given the context of the new path (docs/architecture.md, "Restoring an agent's own context").
"""

from __future__ import annotations

from acpd.attachment import Staged
from acpd.errors import INVALID_PARAMS, INVALID_REQUEST, RequestError
from acpd.session import LiveSession
from acpd.storage.outline import find
from acpd.turn import Turn
from acpd.wire import frames
from acpd.wire.envelope import encode

LONGEST_LABEL = 200
"""Characters."""


async def branch(session: LiveSession, entry: str) -> str:
    """Let the conversation go on behind this entry: its id, a label, or the beginning of its id. Durable; returns the id.

    Where the leaf stands there already nothing is changed. Raises RequestError while a turn runs or prompts wait,
    EntryNotFound, StoreError. Cancelling it leaves it done or not done.
    """
    _refuse(session)
    name = await _find(session, entry)
    _refuse(session)
    if name != session.fold.leaf:
        while session.has_agent:  # it knows the other branch, and what it still says belongs there
            await session.end_agent()
            _refuse(session)
        session.asks.close_all("acpd")
        _move(session, name)
    session.scribe.commit()
    await session.scribe.settled()
    return name


def _refuse(session: LiveSession) -> None:
    if session.closed:
        raise RequestError(INVALID_REQUEST, f"session {session.id} is being closed")
    if session.state is not Turn.IDLE or session.queue:
        cause = f"a turn of session {session.id} is running: cancel it or wait for its end, then branch"
        raise RequestError(INVALID_REQUEST, cause)
    if session.recorder.is_storing:
        cause = f"what the agent of session {session.id} said last is still being stored: try again in a moment"
        raise RequestError(INVALID_REQUEST, cause)


def _move(session: LiveSession, entry: str) -> None:
    text = encode(entry)
    written = session.scribe.fact("leaf", b',"entry":%b' % text)
    session.recorder.go_on_at_leaf()
    frame = frames.moved(session.id_json, text, written.seq, written.at, written.id)
    session.audience.stage(Staged(written.seq, "agent_message_chunk", frame))
    session.audience.publish()
    session.on_idle()  # context and catalog follow


async def label(session: LiveSession, entry: str, text: str | None) -> str:
    """Give an entry a name, or (None) take it away. Durable; returns the entry's id.

    Raises RequestError for a text that is no label, or that of another entry; EntryNotFound, StoreError.
    """
    if text is not None:
        text = checked(text)
    name = await _find(session, entry)
    taken = next((other for other, label in session.fold.labels.items() if label == text and other != name), None)
    if text is not None and taken is not None:
        cause = f"label {text!r} is that of entry {taken}: take it away there first, or choose another"
        raise RequestError(INVALID_PARAMS, cause)
    if session.fold.labels.get(name) != text:
        session.scribe.fact("label", b',"entry":%b,"label":%b' % (encode(name), encode(text)))
    session.audience.publish()
    await session.scribe.settled()
    return name


def checked(text: str) -> str:
    """The label without white space around it. Raises RequestError(INVALID_PARAMS)."""
    text = text.strip()
    if not text or len(text) > LONGEST_LABEL or not text.isprintable():
        raise RequestError(INVALID_PARAMS, f"label must be one line of 1 to {LONGEST_LABEL} printable characters")
    return text


async def _find(session: LiveSession, entry: str) -> str:
    session.scribe.commit()
    tree = await session.store.journals.tree(session.key)
    return find(tree, session.fold.labels, entry, session.id)
