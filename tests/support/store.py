"""A store looked at from outside: read-only, with json.loads, nothing of acpd's.

The rules that are checked are those of docs/architecture.md, "The log": one header, dense seq, one root, unique ids,
every parent earlier; and what the promise of durability says: what was answered is there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from tests.support.walk import contents

Json = dict[str, Any]


class Log(NamedTuple):
    """One session's log. `lines[i]` is the text of `entries[i]`; the header is in neither."""

    path: Path
    header: Json
    entries: list[Json]
    lines: list[bytes]

    @property
    def id(self) -> str:
        return str(self.header["id"])

    def of(self, kind: str) -> list[Json]:
        return [entry for entry in self.entries if entry["type"] == kind]

    def by_seq(self, seq: int) -> tuple[Json, bytes] | None:
        at = seq - 1  # dense from 1
        return (self.entries[at], self.lines[at]) if 0 <= at < len(self.entries) else None


class Exchange(NamedTuple):
    """A request and its answer. `answer` has "result" or "error"."""

    method: str
    params: Json
    answer: Json


def read(path: Path, *, torn: bool = False) -> Log:
    """A log as it is. Raises AssertionError for a line that is no JSON object, no header, or a torn end.

    `torn`: the process that wrote it was killed and nobody has mended it yet, so a torn end is left out.
    """
    return parsed(path, path.read_bytes(), torn=torn)


def parsed(path: Path, raw: bytes, *, torn: bool = False) -> Log:
    """As `read`, of what stands in the file."""
    assert torn or raw.endswith(b"\n"), f"{path}: torn end {raw[-80:]!r}"
    lines = raw.split(b"\n")[:-1]
    values = [json.loads(line) for line in lines]
    assert values[0].get("type") == "session", f"{path}: no header: {lines[0][:200]!r}"
    return Log(path, values[0], values[1:], lines[1:])


def logs(home: Path, *, torn: bool = False) -> dict[str, Log]:
    """Every log below this folder, by session id.

    An empty file is none: its acpd was killed between making the file and writing the header, before anybody heard of it.
    """
    found = [parsed(path, raw, torn=torn) for path, raw in contents(home, "*.log.jsonl").items() if raw]
    return {log.id: log for log in found}


def log(home: Path, session: str, *, torn: bool = False) -> Log:
    found = logs(home, torn=torn)
    assert session in found, f"no log of session {session}; there are {sorted(found)}"
    return found[session]


def check(one: Log, *, forked: bool = False) -> None:
    """The shape of an undamaged log. A forked one keeps the ids, and so the seq, of what it took."""
    where = str(one.path)
    assert 1 == one.header["version"], where
    headers = [entry for entry in one.entries if entry["type"] == "session"]
    assert [] == headers, f"{where}: a second header"
    seqs = [entry["seq"] for entry in one.entries]
    assert list(range(1, len(seqs) + 1)) == seqs, f"{where}: seq is not dense: {seqs[:50]}"
    ids = [entry["id"] for entry in one.entries]
    assert len(set(ids)) == len(ids), f"{where}: an id twice"
    assert sorted(ids) == ids or forked, f"{where}: ids do not grow"
    _check_tree(where, one.entries)
    for entry in one.entries:
        assert entry.get("at"), f"{where}: no time in {entry}"


def _check_tree(where: str, entries: Iterable[Json]) -> None:
    known: set[str] = set()
    roots = 0
    for entry in entries:
        if "parentId" not in entry:
            continue
        parent = entry["parentId"]
        roots += parent is None
        assert parent is None or parent in known, f"{where}: parent {parent} of {entry['id']} is not an earlier entry"
        known.add(entry["id"])
    assert roots == (1 if known else 0), f"{where}: {roots} roots"


class Turn(NamedTuple):
    """One prompt in the log and how its turn ended; `end` None: it is open."""

    prompt: Json
    end: Json | None


def turns(one: Log) -> list[Turn]:
    """The turns of a log that never branched, in order."""
    prompts = one.of("prompt")
    ends = [entry for entry in one.of("turn") if entry["state"] != "running"]
    return [Turn(prompt, ends[n] if n < len(ends) else None) for n, prompt in enumerate(prompts)]


def check_store(home: Path, exchanges: Sequence[Exchange] = ()) -> dict[str, Log]:
    """Every log is well formed, and every answered request of the case is in it."""
    found = logs(home)
    for one in found.values():
        check(one, forked=bool(one.header.get("parent")))
    check_answered(found, exchanges)
    return found


def check_answered(found: dict[str, Log], exchanges: Sequence[Exchange]) -> None:
    gone = {e.params.get("sessionId") for e in exchanges if e.method == "session/delete" and "result" in e.answer}
    for exchange in exchanges:
        if "result" in exchange.answer and exchange.method in {"session/new", "session/fork"}:
            _check_made(found, exchange, gone)
    for session, one in found.items():
        if session not in gone:
            _check_turns(one, [e for e in exchanges if e.params.get("sessionId") == session])
    for deleted in gone:
        assert deleted not in found, f"session {deleted} was deleted and its log is still there"


def _check_made(found: dict[str, Log], exchange: Exchange, gone: set[Any]) -> None:
    session = exchange.answer["result"]["sessionId"]
    if session in gone:
        return
    assert session in found, f"{exchange.method} was answered with {session}, which has no log"
    assert exchange.params["cwd"] == found[session].header["cwd"]
    if exchange.method == "session/fork":
        assert exchange.params["sessionId"] == found[session].header["parent"]["sessionId"]


def _check_turns(one: Log, exchanges: Sequence[Exchange]) -> None:
    """Each answered prompt has its entry and its end, in the order of the answers."""
    recorded = iter(turns(one))
    queued = [_texts(p["prompt"]) for fact in one.of("queue") for p in fact.get("prompts") or []]
    for exchange in exchanges:
        if exchange.method == "session/set_mode" and "result" in exchange.answer:
            assert one.of("config"), f"{one.path}: no config fact for {exchange}"
        if exchange.method != "session/prompt" or _refused(exchange.answer):
            continue
        wanted = _texts(exchange.params["prompt"])
        reason: Any = (exchange.answer.get("result") or {}).get("stopReason", "")
        turn = next((turn for turn in recorded if _texts(turn.prompt["prompt"]) == wanted), None)
        if turn is None and reason == "cancelled" and wanted in queued:
            continue  # cancelled while it waited: it never became a turn
        assert turn is not None, f"{one.path}: no prompt {wanted!r} for the answer {exchange.answer}"
        assert turn.end is not None, f"{one.path}: the turn of {wanted!r} was answered and is open in the log"
        assert reason == turn.end.get("stopReason", ""), f"{one.path}: {exchange.answer} and {turn.end}"
        assert ("error" in exchange.answer) == ("error" in turn.end), f"{one.path}: {exchange.answer} and {turn.end}"


def _refused(answer: Json) -> bool:
    """Whether the request was not accepted: what was never begun is not in the log."""
    return (answer.get("error") or {}).get("code") in {-32602, -32600, -32601, -32002, -32000}


def _texts(value: Any) -> Any:
    """Content blocks for comparison; a lone surrogate is stored as U+FFFD."""
    if isinstance(value, str):
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, list):
        return [_texts(item) for item in value]
    if isinstance(value, dict):
        return {key: _texts(item) for key, item in value.items()}
    return value


# Bytes of updates


class _Raw(msgspec.Struct):
    update: msgspec.Raw


class _Frame(msgspec.Struct):
    params: _Raw


class _Stored(msgspec.Struct):
    type: str
    params: _Raw | None = None
    messageId: str = ""


def frame_update(frame: bytes) -> bytes:
    """The text of `params.update` in a session/update line, byte for byte."""
    return bytes(msgspec.json.decode(frame, type=_Frame).params.update)


def stored_update(line: bytes) -> bytes | None:
    """The update as a client must get it for this line of a log; None for a line that has none.

    That is the agent's text, with a messageId added at its end where acpd gave one.
    """
    stored = msgspec.json.decode(line, type=_Stored)
    if stored.params is None:
        return None
    text = bytes(stored.params.update)
    if not stored.messageId or "messageId" in json.loads(text):
        return text
    assert text.endswith(b"}")
    return text[:-1] + b',"messageId":"%b"}' % stored.messageId.encode()


def check_received(one: Log, frames: Iterable[tuple[int, bytes]]) -> None:
    """Every update that a client got is in the log at the seq that it names, byte for byte."""
    for seq, frame in frames:
        entry = one.by_seq(seq)
        assert entry is not None, f"{one.path}: a client got seq {seq}; the log ends at {len(one.entries)}: {frame[:300]!r}"
        stored = stored_update(entry[1]) if entry[0]["type"] != "prompt" else None
        if stored is not None:
            assert stored == frame_update(frame), f"{one.path}: seq {seq}"
        elif entry[0]["type"] == "prompt":
            content = json.loads(frame)["params"]["update"]["content"]
            assert content in entry[0]["prompt"], f"{one.path}: seq {seq} is {content}, not of {entry[0]['prompt']}"
