"""In-process: framing, protocol, the reading of logs, updates. None may raise, none may depend on how bytes are cut."""

from __future__ import annotations

import random
from typing import Any

from acpd.errors import RequestError
from acpd.rpc.framing import Lines, TooLong
from acpd.rpc.protocol import Bad, Notification, Protocol, Request, Response
from acpd.storage import scan, tree
from acpd.wire import envelope, updates
from tests.fuzz import lines
from tests.support.paths import SHARED


def pieces(rng: random.Random, data: bytes) -> list[bytes]:
    """The data cut at random places, empty pieces included."""
    cuts = sorted(rng.randrange(len(data) + 1) for _ in range(rng.randrange(8)))
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]


def some_line(rng: random.Random) -> bytes:
    pick = rng.random()
    if pick < 0.5:
        return lines.mutate(rng, rng.choice(lines.seeds()))
    if pick < 0.9:
        return lines.mutate(rng, lines.message(rng, ["s1"], lines.METHODS))
    return rng.randbytes(rng.randrange(300))


def framing(rng: random.Random) -> bytes:
    """However a stream is cut, the same lines come out, and no more than the limit is held."""
    data = b"\n".join(some_line(rng) for _ in range(rng.randrange(6)))
    limit = rng.choice([10, 100, 1 << 20])
    whole, cut = Lines(limit), Lines(limit)
    expected: list[bytes | TooLong] = whole.receive(data)
    got = [line for piece in pieces(rng, data) for line in cut.receive(piece)]
    assert expected == got, data
    assert whole.rest() == cut.rest(), data
    assert sum(line.size if isinstance(line, TooLong) else len(line) for line in got) + len(got) <= len(data), data
    return data


def protocol(rng: random.Random) -> bytes:
    """Every line is an event; a request is answered once; nothing raises."""
    line = some_line(rng).replace(b"\n", b" ")
    if not line or line.isspace():
        return line
    for strict in (True, False):
        side = Protocol(strict=strict)
        event = side.receive(line)
        assert isinstance(event, Request | Notification | Response | Bad)
        if isinstance(event, Request):
            assert side.answer(event.id, b"{}")
            assert not side.answer(event.id, b"{}")
        if isinstance(event, Bad) and event.reply:
            assert strict
            assert isinstance(envelope.decode(event.reply), envelope.Envelope)
    return line


def decoding(rng: random.Random) -> bytes:
    """An envelope is decoded or refused with a code of JSON-RPC; an update that is JSON is looked at without an exception."""
    line = some_line(rng).replace(b"\n", b" ")
    try:
        params = envelope.decode(line).params
    except RequestError as error:
        if error.code not in {-32700, -32600}:
            raise
        return line
    if isinstance(params, bytes) or params:
        updates.look(bytes(params))
    return line


def logs() -> list[bytes]:
    return [path.read_bytes() for path in sorted((SHARED / "corpus" / "trees").glob("*.jsonl"))]


def tree_loading(rng: random.Random, known: list[bytes] | None = None) -> bytes:
    """A damaged log is read without an exception; every parent stands earlier; the path ends."""
    found = known or OUR_LOGS
    data = rng.choice(found)
    for _ in range(rng.randrange(1, 4)):
        data = lines.mutate(rng, data)
    header, _, one = tree.load(scan.read_lines(data))
    again = tree.load(scan.read_lines(pieces(rng, data)))
    assert (header, one.ids, list(one.parents)) == (again[0], again[2].ids, list(again[2].parents)), data
    assert all(parent < position for position, parent in enumerate(one.parents)), data
    assert len(set(one.ids)) == len(one.ids), data
    assert len(one.path()) <= len(one), data
    return data


def our_log(entries: int, rng: random.Random) -> bytes:
    """A log as acpd writes it."""
    text = b'{"type":"session","version":1,"id":"s","cwd":"/tmp","agent":"a","createdAt":"2026-01-01T00:00:00.000Z"}\n'
    ids: list[str] = []
    for n in range(entries):
        name = f"0190c0de-0000-7000-8000-{n:012x}"
        at = b'"at":"2026-01-01T00:00:00.000Z"'
        if ids and rng.random() < 0.1:
            text += b'{"type":"leaf","id":"%b","seq":%d,%b,"entry":"%b"}\n' % (
                name.encode(),
                n + 1,
                at,
                rng.choice(ids).encode(),
            )
            continue
        parent = b'"%b"' % ids[-1].encode() if ids else b"null"
        chunk = b'{"sessionId":"i","update":{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"w"}}}'
        text += b'{"type":"update","id":"%b","parentId":%b,"seq":%d,%b,"kind":"agent_message_chunk","params":%b}\n' % (
            name.encode(),
            parent,
            n + 1,
            at,
            chunk,
        )
        ids.append(name)
    return text


OUR_LOGS = [our_log(count, random.Random(count)) for count in (0, 1, 5, 40)]

PROPERTIES: dict[str, Any] = {"framing": framing, "protocol": protocol, "decoding": decoding, "tree": tree_loading}
