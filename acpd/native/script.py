"""A turn of the offline agent: one verb a line, all decided by the prompt's words.

A turn is one task. Cancelling it is safe at every point: what it leaves open is closed by `close_calls`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
from msgspec import Struct

from acpd.errors import ConnectionBroken, RequestError
from acpd.native import words
from acpd.native.memory import Session
from acpd.wire.envelope import encode
from acpd.wire.titles import first_line_title

WINDOW = 200_000
"""Size of the pretended context window, in characters."""
BLOCK = 64 * 1024
"""Bytes that `stream` hands over at once: a full pipe."""
CALM = 0.04
OPTIONS = [
    {"optionId": "yes", "name": "Allow", "kind": "allow_once"},
    {"optionId": "always", "name": "Always allow in this session", "kind": "allow_always"},
    {"optionId": "no", "name": "Refuse", "kind": "reject_once"},
]


class _Outcome(Struct):
    outcome: str
    optionId: str = ""


class _Permission(Struct):
    outcome: _Outcome


_decode_permission = msgspec.json.Decoder(_Permission).decode


class _Misused(Exception):
    """A verb whose numbers are none."""


class Stopped(Exception):
    """The client has cancelled the turn by its answer to a permission request."""


class Turn:
    """One prompt. `run` sends all updates; the answer is the owner's."""

    def __init__(self, session: Session, script: str, others: int) -> None:
        self.session = session
        self.script = script
        self.others = others
        self.task: asyncio.Task[None] | None = None
        self.cancelled = False
        self._open: list[str] = []
        self._calls = 0

    def cancel(self) -> None:
        self.cancelled = True
        if self.task is not None:
            self.task.cancel()

    async def run(self) -> None:
        """The whole turn. Cancelling it is session/cancel: nothing is sent afterwards but by `close_calls`."""
        memory = self.session.memory
        memory.turns += 1
        self.session.save()
        try:
            self._name_session()
            await self._say(f"(turn {memory.turns}) " + (words.NO_MODEL if memory.turns == 1 else ""))
            for line in self.script.splitlines():
                if line.strip():
                    await self._line(line.strip())
            if self.others:
                await self._say(f"And {self.others} that is not text.\n")
            self.session.update({"sessionUpdate": "usage_update", "used": memory.used, "size": WINDOW})
            await self.session.saved()
        except Stopped:
            self.cancelled = True
        except ConnectionBroken:
            return

    def close_calls(self) -> None:
        """Tool calls that a cancelled turn has left open are failed (ACP v1 has no status `cancelled`)."""
        for call in list(self._open):
            self._move(call, "failed")

    def _name_session(self) -> None:
        memory = self.session.memory
        if not memory.title:
            memory.title = first_line_title(encode([{"type": "text", "text": self.script}])) or "Offline"
            self.session.update({"sessionUpdate": "session_info_update", "title": memory.title})

    async def _line(self, line: str) -> None:
        word, _, rest = line.removeprefix("/").partition(" ")
        self.session.memory.used += len(line)
        verb = VERBS.get(word)
        if verb is None:
            await self._say(f"You said: {line}\n")
            return
        try:
            await verb(self, rest.strip())
        except _Misused as misused:
            await self._say(f"I understand only `{misused}`.\n")

    # -- verbs

    async def _say(self, text: str, kind: str = "agent_message_chunk") -> None:
        """Stream a text, a few words in each chunk; one word, and slowly, at the pace `calm`."""
        self.session.memory.used += len(text)
        calm = self.session.memory.pace == "calm"
        for piece in _pieces(text, 1 if calm else 24):
            if calm:
                await asyncio.sleep(CALM)
            self.session.update({"sessionUpdate": kind, "content": {"type": "text", "text": piece}})

    async def say(self, text: str) -> None:
        await self._say(text + "\n")

    async def think(self, text: str) -> None:
        await self._say(text or "What could be meant? I go by the words.", "agent_thought_chunk")
        await self._say("I have thought about it.\n")

    async def plan(self, text: str) -> None:
        steps = text.split("|") if text else ["Read the words", "Do what they say", "Say so"]
        for done in range(len(steps) + 1):
            states = ["completed"] * done + ["in_progress"] + ["pending"] * len(steps)
            entries = [
                {"content": step, "priority": "medium", "status": state} for step, state in zip(steps, states, strict=False)
            ]
            self.session.update({"sessionUpdate": "plan", "entries": entries})
            await self._say(f"Done: {steps[done]}\n" if done < len(steps) else "That was the plan.\n")

    async def tool(self, name: str) -> None:
        call = self._open_call(name or "example", "read")
        self._move(call, "in_progress")
        await self._say(f"I look at {name or 'example'}.\n")
        self._move(call, "completed", f"This would be the output of {name or 'example'}.")

    async def ask(self, name: str) -> None:
        call = self._open_call(name or "example", "edit")
        verdict = "allowed" if self._is_allowed() else await self._permission(call)
        if verdict == "allowed":
            self._move(call, "in_progress")
            self._move(call, "completed", f"This would be the result of {name or 'example'}.")
        else:
            self._move(call, "failed")
        await self._say(f"It was {verdict}.\n")

    def _is_allowed(self) -> bool:
        return self.session.memory.mode == "code" or self.session.memory.always

    async def _permission(self, call: str) -> str:
        """How the client decided. What is not clearly a yes is none. Raises Stopped."""
        params = encode({"sessionId": self.session.id, "toolCall": {"toolCallId": call}, "options": OPTIONS})
        try:
            decision = _decode_permission(await self.session.peer.ask("session/request_permission", params)).outcome
        except RequestError as error:
            return f"not answered: {error}"
        except msgspec.DecodeError:
            return "not answered in a way that I understand"
        if decision.outcome == "cancelled":
            raise Stopped
        if decision.outcome != "selected" or decision.optionId not in ("yes", "always"):
            return "refused"
        self.session.memory.always |= decision.optionId == "always"
        return "allowed"

    async def slow(self, text: str) -> None:
        count, ms = _numbers(text, "slow N [MS]", (10, 200))
        for number in range(1, count + 1):
            await asyncio.sleep(ms / 1000)
            self.session.update({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": f"{number} "}})

    async def stream(self, text: str) -> None:
        """Many updates fast, by blocks. In our own memory they are one, so that it stays small."""
        count, size = _numbers(text, "stream N SIZE", (1000, 20))
        head = self.session.head + b'{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"'
        tail = b" %b" % (b"x" * size) + b'"}}}}\n'
        batch = max(1, BLOCK // (len(head) + len(tail) + 4))
        for first in range(0, count, batch):
            numbers = range(first, min(first + batch, count))
            self.session.peer.send(b"".join([b"%b%d%b" % (head, number, tail) for number in numbers]))
            await asyncio.sleep(0)  # what was sent leaves at the end of this tick
            await self.session.peer.drained()
        content = {"type": "text", "text": f"({count} updates of {size} characters)\n"}
        self.session.keep(encode({"sessionUpdate": "agent_message_chunk", "content": content}))
        self.session.memory.used += count * size

    async def title(self, text: str) -> None:
        self.session.memory.title = text
        self.session.update({"sessionUpdate": "session_info_update", "title": text})
        await self._say(f"This session is called: {text}\n")

    async def help(self, _: str) -> None:
        await self._say(words.WORDS)

    # -- tool calls

    def _open_call(self, title: str, kind: str) -> str:
        self._calls += 1
        call = f"call-{self.session.memory.turns}-{self._calls}"
        update = {"sessionUpdate": "tool_call", "toolCallId": call, "title": title, "kind": kind, "status": "pending"}
        self.session.update(update | {"rawInput": {"name": title}})
        self._open.append(call)
        return call

    def _move(self, call: str, status: str, text: str = "") -> None:
        update: dict[str, object] = {"sessionUpdate": "tool_call_update", "toolCallId": call, "status": status}
        if text:
            update["content"] = [{"type": "content", "content": {"type": "text", "text": text}}]
        self.session.update(update)
        if status in ("completed", "failed"):
            self._open.remove(call)


VERBS: dict[str, Callable[[Turn, str], Awaitable[None]]] = {
    "say": Turn.say,
    "think": Turn.think,
    "plan": Turn.plan,
    "tool": Turn.tool,
    "ask": Turn.ask,
    "slow": Turn.slow,
    "stream": Turn.stream,
    "title": Turn.title,
    "help": Turn.help,
}


def _pieces(text: str, least: int) -> list[str]:
    """The text in pieces that end behind a blank, each of `least` characters or more but for the last."""
    pieces: list[str] = []
    start = 0
    while 0 <= (end := text.find(" ", start + least - 1)) < len(text) - 1:
        pieces.append(text[start : end + 1])
        start = end + 1
    if start < len(text):
        pieces.append(text[start:])
    return pieces


def _numbers(text: str, usage: str, default: tuple[int, int]) -> tuple[int, int]:
    """One or two numbers below a hundred million. Raises _Misused."""
    given = text.split()
    if len(given) > 2 or not all(word.isascii() and word.isdigit() and len(word) < 9 for word in given):
        raise _Misused(usage)
    found = [int(word) for word in given]
    return (found + list(default)[len(found) :])[0], (found + list(default)[len(found) :])[1]
