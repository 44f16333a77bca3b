"""Stored lines made from plain dicts, as a session would write them, for the tests of the folds."""

from __future__ import annotations

import json
from typing import Any

from acpd.storage.fold import Fold
from acpd.storage.replay import Replay, live
from acpd.wire import lines
from acpd.wire.framer import Framer
from acpd.wire.frames import cut_of, decode_params
from acpd.wire.lines import Stored
from acpd.wire.updates import look as look_at

Json = dict[str, Any]

INNER = "inner-7"
SESSION = "outer-1"
CHUNKS = {"user_message_chunk", "agent_message_chunk", "agent_thought_chunk"}
FACTS = {
    "available_commands_update": "commands",
    "current_mode_update": "config",
    "config_option_update": "config",
    "session_info_update": "info",
    "usage_update": "usage",
}
KINDS = frozenset(
    {
        *CHUNKS,
        *FACTS,
        "tool_call",
        "tool_call_update",
        "plan",
        "plan_update",
        "plan_removed",
        "compaction_update",
        "compaction_summary_chunk",
        "notice",
    }
)


def dumps(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def text(value: str) -> Json:
    return {"type": "text", "text": value}


def content(value: str) -> Json:
    return {"type": "content", "content": text(value)}


class Log:
    """The lines of one log. Ids are e1, e2, ...; a chunk without a messageId gets one as a session would give it.

    `told`: updates say of themselves what a replay wants to know, as a session writes them; without, they must be looked into.
    `named`: whether a session gives it.
    """

    def __init__(self, *, told: bool = False, named: bool = True) -> None:
        self.lines: list[Stored] = []
        self.told = told
        self.named = named
        self.leaf: str | None = None
        self._message = ("", "")

    def prompt(self, *blocks: Json) -> Log:
        return self._add("prompt", b',"prompt":' + dumps(blocks))

    def turn(self, state: str, reason: str = "end_turn") -> Log:
        return self._add(
            "turn", b',"state":%b' % dumps(state) + (b',"stopReason":%b' % dumps(reason) if state == "ended" else b"")
        )

    def update(self, update: Json | bytes, *, kind: str = "", wrap: bytes = b'{"sessionId":"inner-7","update":%b}') -> Log:
        """One update of the agent: as entry, fact, or not at all (notice)."""
        raw = dumps(update) if isinstance(update, dict) else update
        value = json.loads(raw)
        kind = kind or value["sessionUpdate"]
        if kind == "notice":
            return self
        body = b',"kind":%b,"params":%b' % (dumps(kind), wrap % raw)
        if kind in FACTS:
            if isinstance(value.get("title"), str):
                body += b',"title":' + dumps(value["title"])
            return self._add(FACTS[kind], body, is_fact=True)
        if kind in CHUNKS and not value.get("messageId") and self.named:
            body += b',"messageId":' + dumps(self._given(kind))
        elif kind in CHUNKS:
            self._message = ("", "")
        if self.told:
            body += _told(wrap % raw, raw)
        return self._add("compaction" if kind == "compaction_update" and value.get("summary") else "update", body)

    def say(self, value: str, name: str | None = None, kind: str = "agent_message_chunk") -> Log:
        return self.update({"sessionUpdate": kind, "content": text(value)} | ({"messageId": name} if name else {}))

    def call(self, name: str, **members: Any) -> Log:
        return self.update({"sessionUpdate": "tool_call", "toolCallId": name, "title": f"do {name}"} | members)

    def patch(self, name: str, **members: Any) -> Log:
        return self.update({"sessionUpdate": "tool_call_update", "toolCallId": name} | members)

    def gap(self) -> Log:
        self.lines.append(Stored(type="gap", id="", seq=len(self.lines) + 1, at="2026-11-30T10:00:00.000Z"))
        return self

    def other(self, kind: str, body: bytes = b"") -> Log:
        return self._add(kind, body)

    def fold(self) -> Fold:
        fold = Fold()
        for line in self.lines:
            fold.add(line)
        return fold

    def path(self) -> list[Stored]:
        return [line for line in self.lines if line.is_entry or line.type == "gap"]

    def replay(self, *, window: int = 2_000, kinds: frozenset[str] = KINDS, limit: int = 1 << 22) -> list[bytes]:
        """The frames of the path, without the facts."""
        replay = Replay(SESSION, kinds, limit)
        path = self.path()
        out: list[bytes] = []
        for start in range(0, len(path), window):
            out += replay.feed(path[start : start + window])
        return out + replay.finish()

    def live(self, kinds: frozenset[str] = KINDS) -> list[bytes]:
        return [frame for line in self.lines for frame in live(line, Framer(dumps(SESSION)), kinds)]

    def _given(self, kind: str) -> str:
        if self._message[0] != kind:
            self._message = (kind, f"e{len(self.lines) + 1}")
        return self._message[1]

    def _add(self, kind: str, body: bytes, *, is_fact: bool = False) -> Log:
        seq = len(self.lines) + 1
        at = f"2026-11-30T10:00:{seq % 60:02d}.000Z"
        if is_fact:
            self.lines.append(lines.decode(lines.fact(kind, f"e{seq}", seq, at, body)))
            return self
        if b"_chunk" not in body:
            self._message = ("", "")
        self.lines.append(lines.decode(lines.entry(kind, f"e{seq}", self.leaf, seq, at, body)))
        self.leaf = f"e{seq}"
        return self


def _told(params: bytes, update: bytes) -> bytes:
    look = look_at(update)
    name = look.message_id or look.tool
    cut = cut_of(params, decode_params(params)) if look.valid and look.sendable is not None else 0
    told = (b"of", dumps(name) if name else b""), (b"state", dumps(look.status) if look.status else b""), (b"cut", b"%d" % cut)
    return b"".join(b',"%b":%b' % (member, value) for member, value in told if value)


def params(frames: list[bytes]) -> list[Json]:
    """What the oracle folds; that each frame is one line of a session/update for our session is checked here."""
    out = []
    for frame in frames:
        assert frame.endswith(b"\n")
        assert frame.count(b"\n") == 1
        message = json.loads(frame)
        assert {"jsonrpc", "method", "params"} == message.keys()
        assert (message["method"], message["params"]["sessionId"]) == ("session/update", SESSION)
        assert message["params"]["_meta"]["acpd.dev/seq"] > 0
        out.append(message["params"])
    return out


def updates(frames: list[bytes]) -> list[Json]:
    """The updates of these frames."""
    return [item["update"] for item in params(frames)]
