"""What the taps wrote down, and whether what a client got is, byte for byte, what the agent said.

Between the two only this may change: `params.sessionId`; `update.messageId` of a chunk that had none (or null);
`params._meta["acpd.dev/..."]`; adjacent text-only chunks of one kind and messageId joined. An oracle of its own: it
imports nothing of acpd.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.fold import CHUNKS

Json = dict[str, Any]
Members = list[tuple[str, str]]

UPDATE = ("session/update",)

_decode = json.JSONDecoder().raw_decode


def members(text: str) -> Members:
    """The members of this JSON object in order: name, and the value as it is written."""
    found: Members = []
    at = _skip(text, _skip(text, 0, " \t\r\n") + 1, " \t\r\n")
    while text[at] != "}":
        name, at = _decode(text, at)
        start = _skip(text, at, " \t\r\n:")
        _, at = _decode(text, start)
        found.append((name, text[start:at]))
        at = _skip(text, at, " \t\r\n,")
    return found


def _skip(text: str, at: int, what: str) -> int:
    while text[at] in what:
        at += 1
    return at


@dataclass(frozen=True)
class Frame:
    """One message as it went over a wire."""

    method: str
    """Empty: an answer."""
    params: str
    """As it is written."""

    @property
    def value(self) -> Json:
        """The params, decoded."""
        value: Json = json.loads(self.params)
        return value

    def of(self, session: str) -> bool:
        """Whether it is of this session; "" is every one."""
        return not session or self.value.get("sessionId") == session

    @property
    def update(self) -> Json:
        """The update, decoded; empty for a request."""
        update: Json = self.value.get("update", {})
        return update

    def joinable(self) -> tuple[str, str | None] | None:
        """Kind and messageId of a chunk that is text and nothing else; what may be joined has the same."""
        update = self.update
        if update.get("sessionUpdate") not in CHUNKS or update.keys() - {"sessionUpdate", "content", "messageId", "_meta"}:
            return None
        content = update["content"]
        plain = content.get("type") == "text" and content.keys() <= {"type", "text"}
        bare = not update.get("_meta") and not theirs(self.value.get("_meta"))
        return (update["sessionUpdate"], update.get("messageId")) if plain and bare else None

    @property
    def text(self) -> str:
        """Of a text chunk."""
        return str(self.update["content"]["text"])


def theirs(meta: Any) -> Json:
    """What of `_meta` is not acpd's."""
    return {key: value for key, value in (meta or {}).items() if not key.startswith("acpd.dev/")}


def lines(log: Path) -> list[tuple[str, str]]:
    """Every line in order, with ">" where it went to the tapped command, "<" where it came from it."""
    return [(line[:1].decode(), line[1:].decode()) for line in log.read_bytes().split(b"\n") if line]


def frames(log: Path, mark: str, session: str = "", *methods: str) -> list[Frame]:
    """The frames with these methods (session/update if none is named), of one session if one is named."""
    return [frame for frame in _parsed(log, mark) if frame.method in (methods or UPDATE) and frame.of(session)]


def certain(log: Path, session: str) -> int:
    """How many of an agent's updates stand before its last answer; a kill may have hit what it said after that."""
    every = _parsed(log, "<")
    last = max((number for number, frame in enumerate(every) if not frame.method), default=0)
    return sum(frame.method in UPDATE and frame.of(session) for frame in every[:last])


def _parsed(log: Path, mark: str) -> list[Frame]:
    every = [
        dict(members(line)) for direction, line in lines(log) if direction == mark and line.startswith("{")
    ]  # the rest is noise
    return [Frame(json.loads(parts.get("method", '""')), parts.get("params", "{}")) for parts in every]


def difference(said: Frame, got: Frame) -> str | None:
    """What of this frame was changed that may not be; None: nothing."""
    before, after = dict(members(said.params)), dict(members(got.params))
    if said.method != got.method:
        return f"{said.method} became {got.method}"
    for name in before.keys() | after.keys():
        if name == "sessionId":
            continue
        if name == "_meta":
            old, new = (
                [(key, value) for key, value in members(part.get("_meta", "{}") or "{}") if not key.startswith("acpd.dev/")]
                if part.get("_meta", "{}") != "null"
                else []
                for part in (before, after)
            )
        elif name == "update" and name in before and name in after:
            old, new = _updates(before[name], after[name])
        else:
            old, new = [("", before.get(name, "absent"))], [("", after.get(name, "absent"))]
        if old != new:
            return f"{name}: {old} became {new}"
    return None


def _updates(before: str, after: str) -> tuple[Members, Members]:
    """Both as members to compare; as one text each where nothing at all may be changed."""
    old, new = members(before), members(after)
    if dict(old).get("messageId", "null") == "null" and json.loads(before).get("sessionUpdate") in CHUNKS:
        return [m for m in old if m[0] != "messageId"], [m for m in new if m[0] != "messageId"]
    return [("", before)], [("", after)]


def compare(said: Iterable[Frame], got: Iterable[Frame]) -> list[str]:
    """What is wrong with what the client got, given what the agent said, both in order; empty: nothing."""
    rest = list(said)
    problems: list[str] = []
    for frame in got:
        if not rest:
            problems.append(f"the agent never said {frame.params[:300]}")
            continue
        first = rest.pop(0)
        key = first.joinable()
        text = first.text if key else ""
        while key and rest and rest[0].joinable() == key and frame.joinable() and len(text) < len(frame.text):
            text += rest.pop(0).text
        if key and text != first.text:
            problem = None if text == frame.text and _same_chunk(key, frame) else f"{text!r} became {frame.params[:300]}"
        else:
            problem = difference(first, frame)
        if problem:
            problems.append(problem)
    return problems + [f"the client never got {frame.params[:300]}" for frame in rest]


def _same_chunk(key: tuple[str, str | None], frame: Frame) -> bool:
    kind, message = key
    update = frame.update
    return update["sessionUpdate"] == kind and (message is None or update.get("messageId") == message)
