"""From a stored line to the frame that a client gets: the same live and in every replay.

What changes is exactly this: `params.sessionId`; `update.messageId` of chunks where the agent gave none;
`params._meta["acpd.dev/seq"]` and `["acpd.dev/at"]`, and `["acpd.dev/background"]` where the line has that. Every other byte
is the agent's.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from acpd.wire import blobs, splice
from acpd.wire.lines import literal

CHUNKS = frozenset({"user_message_chunk", "agent_message_chunk", "agent_thought_chunk"})
MAX_OUT = 30 * 1024 * 1024
"""Bytes of a payload that go out unchanged; TypeScript's SDK takes lines of 32 MiB."""
BACKGROUND = b',"acpd.dev/background":true'
"""The `mark` of what an agent said while no turn ran."""
_OURS = ("acpd.dev/seq", "acpd.dev/at", "acpd.dev/background")  # an agent that is an acpd itself has its own
_MOVED = (
    b"[acpd] This conversation goes on at another point now: what was said after that point is on another branch, and the next"
    b" prompt does not know it. Load the session again to see what it does know.\\n\\n"
)
_HEAD = b'{"jsonrpc":"2.0","method":"session/update","params":'


class Params(Struct, gc=False, rename={"meta": "_meta"}):
    """The params of session/update, update still raw."""

    sessionId: Raw
    update: Raw
    meta: Raw | UnsetType = UNSET


decode_params = msgspec.json.Decoder(Params).decode


def update(
    params: bytes | Raw,
    session: bytes,
    seq: int,
    at: str,
    message_id: str = "",
    changed: bytes | None = None,
    mark: bytes = b"",
) -> bytes:
    """The session/update frame for one stored line.

    `session` is acpd's session id as JSON text; `message_id` is given where acpd gave one; `changed` stands in place of
    the update where that had to be repaired; `mark` is BACKGROUND or nothing. Raises msgspec.DecodeError if params are not
    of session/update.
    """
    raw = bytes(params)
    return frame(raw, decode_params(raw), session, seq, at, message_id, changed, mark)


def frame(
    raw: bytes,
    members: Params,
    session: bytes,
    seq: int,
    at: str,
    message_id: str = "",
    changed: bytes | None = None,
    mark: bytes = b"",
) -> bytes:
    """As `update`, for params that were decoded already."""
    text = bytes(members.update) if changed is None else changed
    if len(raw) > MAX_OUT:
        raw, text = shortened(raw), shortened(text)
        members = decode_params(raw)
    if message_id:
        text = with_message_id(text, message_id)
    canonical = raw.startswith(b'{"sessionId":') and len(raw) == len(members.sessionId) + len(members.update) + 24
    if canonical:  # so it has no other member and no white space
        return b'%b{"sessionId":%b,"update":%b,"_meta":{"acpd.dev/seq":%d,"acpd.dev/at":"%b"%b}}}\n' % (
            _HEAD,
            session,
            text,
            seq,
            at.encode(),
            mark,
        )
    return b"%b%b}\n" % (_HEAD, _rewritten(raw, session, text, seq, at, mark))


def cut_of(raw: bytes, members: Params) -> int:
    """Where the update begins in params that have the session's id and it and nothing else; 0: they have more."""
    plain = raw.startswith(b'{"sessionId":') and len(raw) == len(members.sessionId) + len(members.update) + 24
    return len(members.sessionId) + 23 if plain else 0


BEFORE_SEQ = b',"_meta":{"acpd.dev/seq":'


def before_update(session: bytes) -> bytes:
    """What stands in a frame before its update."""
    return b'%b{"sessionId":%b,"update":' % (_HEAD, session)


def text_format(session: bytes, before: bytes, behind: bytes) -> bytes:
    """Of frames whose updates begin and end so: a format of the text between and of the seq. `end` follows."""
    return b"%b%%b%b%%d" % (literal(before_update(session) + before), literal(behind + BEFORE_SEQ))


def end(at: str, mark: bytes) -> bytes:
    """What stands in a frame behind its seq."""
    return b',"acpd.dev/at":"%b"%b}}}\n' % (at.encode(), mark)


def _rewritten(params: bytes, session: bytes, text: bytes, seq: int, at: str, mark: bytes) -> bytes:
    found = splice.entries(params)
    place = {member.name: index for index, member in enumerate(found)}
    gone = {index for index, member in enumerate(found) if place[member.name] != index}  # or the agent's own id would get out
    edits = splice.cuts([(member.key, member.end) for member in found], gone)
    edits += [(*found[place[name]][2:], value) for name, value in (("sessionId", session), ("update", text))]
    ours = b'"acpd.dev/seq":%d,"acpd.dev/at":"%b"%b' % (seq, at.encode(), mark)
    if "_meta" not in place:
        return splice.add(splice.apply(params, edits), b'"_meta":{%b}' % ours)
    start, end = found[place["_meta"]][2:]
    meta = params[start:end]
    edits.append((start, end, splice.add(splice.remove(meta, _OURS), ours) if meta.startswith(b"{") else b"{%b}" % ours))
    return splice.apply(params, edits)


def shortened(raw: bytes) -> bytes:
    """This JSON with each string that stands in a blob replaced by a text that names the blob."""
    text, offsets, _ = blobs.extract(raw)
    edits = [
        (start, end, b'"[acpd keeps %d bytes of this as blob %b]"' % (size, name.encode()))
        for start, end, name, size in blobs.places(text, offsets)
    ]
    return splice.apply(text, edits)


def with_message_id(text: bytes, message_id: str) -> bytes:
    """This update with a messageId: added at its end, or in the place of a null."""
    member = b'"messageId":"%b"' % message_id.encode()
    if b'"messageId"' not in text:
        return b"%b,%b}" % (text[:-1], member)  # an update has one member at least, and raw JSON ends with its bracket
    span = splice.members(text).get("messageId")
    return splice.add(text, member) if span is None else splice.apply(text, [(*span, b'"%b"' % message_id.encode())])


def moved(session: bytes, entry: bytes, seq: int, at: str, message_id: str) -> bytes:
    """What a client that reads along is told of a `leaf` fact; `entry` is its JSON text. A replay shows the new way itself."""
    chunk = b'{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"%b"},"messageId":"%b"}' % (
        _MOVED,
        message_id.encode(),
    )
    meta = b'{"acpd.dev/seq":%d,"acpd.dev/at":"%b","acpd.dev/notice":true,"acpd.dev/leaf":%b}' % (seq, at.encode(), entry)
    return b'%b{"sessionId":%b,"update":%b,"_meta":%b}}\n' % (_HEAD, session, chunk, meta)


def prompt(session: bytes, blocks: list[Raw], seq: int, at: str, entry: str) -> list[bytes]:
    """How a prompt is shown to those who did not send it: a chunk for each content block."""
    return [text_chunk(session, "user_message_chunk", bytes(block), seq, at, entry) for block in blocks]


def text_chunk(session: bytes, kind: str, block: bytes, seq: int, at: str, message_id: str) -> bytes:
    """A frame that acpd composes itself: one content block of a message, e.g. of a stored prompt."""
    chunk = b'{"sessionUpdate":"%b","content":%b,"messageId":"%b"}' % (kind.encode(), block, message_id.encode())
    meta = b'{"acpd.dev/seq":%d,"acpd.dev/at":"%b"}' % (seq, at.encode())
    return b'%b{"sessionId":%b,"update":%b,"_meta":%b}}\n' % (_HEAD, session, chunk, meta)
