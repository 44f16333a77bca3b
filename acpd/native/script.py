"""A turn of the offline agent: one verb a line, all decided by the prompt's words."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from msgspec import Struct

from acpd.api.shapes import PlanEntry
from acpd.api.turn import Turn
from acpd.errors import StateUnreadable
from acpd.native import words
from acpd.wire.envelope import encode
from acpd.wire.titles import first_line_title

EARLIER = "memory"
"""The name that it had first. A model keeps something else there, of which nothing is read here."""
WINDOW = 200_000
"""Size of the pretended context window, in characters."""
BLOCK = 64 * 1024
"""Bytes that `stream` hands over at once: a full pipe."""
CALM = 0.04


class Memory(Struct, kw_only=True):
    """What is worth keeping. `used`: characters said and heard, as a stand-in for tokens."""

    turns: int = 0
    title: str = ""
    used: int = 0


class _Misused(Exception):
    """A verb whose numbers are none."""


async def follow(turn: Turn, mode: str = "ask") -> None:
    """The whole turn. Of the prompt's texts the last one is the script: acpd may have put a context before it.

    `mode`: of a session in which none was chosen.
    """
    await _Script(turn, mode).run()


class _Script:
    def __init__(self, turn: Turn, mode: str) -> None:
        self.turn = turn
        self.session = turn.session
        self.mode = mode
        self.memory = _remembered(turn)
        texts = [str(block["text"]) for block in turn.blocks if block["type"] == "text"]
        self.lines = texts[-1].splitlines() if texts else []
        self.others = len(turn.blocks) - len(texts)

    async def run(self) -> None:
        memory = self.memory
        memory.turns += 1
        self.session.state.put(words.OFFLINE, memory)  # before anything is said: it counts whatever becomes of the turn
        try:
            await self._whole()
        finally:
            self.session.state.put(words.OFFLINE, memory)

    async def _whole(self) -> None:
        memory = self.memory
        self._name_session()
        await self._say(f"(turn {memory.turns}) " + (words.NO_MODEL if memory.turns == 1 else ""))
        for line in self.lines:
            if line.strip():
                await self._line(line.strip())
        if self.others:
            await self._say(f"And {self.others} that is not text.\n")
        self.session.used(memory.used, WINDOW)

    def _name_session(self) -> None:
        if not self.memory.title:
            script = "\n".join(self.lines)
            self.memory.title = first_line_title(encode([{"type": "text", "text": script}])) or "Offline"
            self.session.rename(self.memory.title)

    async def _line(self, line: str) -> None:
        word, _, rest = line.removeprefix("/").partition(" ")
        self.memory.used += len(line)
        verb = VERBS.get(word)
        if verb is None:
            await self._say(f"You said: {line}\n")
            return
        try:
            await verb(self, rest.strip())
        except _Misused as misused:
            await self._say(f"I understand only `{misused}`.\n")

    # -- verbs

    async def _say(self, text: str) -> None:
        await self._stream(text, self.turn.say)

    async def _stream(self, text: str, say: Callable[[str], Awaitable[None]]) -> None:
        """A few words in each chunk; one word, and slowly, at the pace `calm`."""
        self.memory.used += len(text)
        calm = self.session.choices.get("pace") == "calm"
        for piece in _pieces(text, 1 if calm else 24):
            if calm:
                await asyncio.sleep(CALM)
            await say(piece)

    async def say(self, text: str) -> None:
        await self._say(text + "\n")

    async def think(self, text: str) -> None:
        await self._stream(text or "What could be meant? I go by the words.", self.turn.think)
        await self._say("I have thought about it.\n")

    async def plan(self, text: str) -> None:
        steps = text.split("|") if text else ["Read the words", "Do what they say", "Say so"]
        for done in range(len(steps) + 1):
            entries = [PlanEntry(step, "completed" if at < done else "pending") for at, step in enumerate(steps)]
            if done < len(steps):
                entries[done] = PlanEntry(steps[done], "in_progress")
            await self.turn.plan(entries)
            await self._say(f"Done: {steps[done]}\n" if done < len(steps) else "That was the plan.\n")

    async def tool(self, name: str) -> None:
        name = name or "example"
        async with self.turn.tool(name, kind="read", input={"name": name}) as call:
            await call.start()
            await self._say(f"I look at {name}.\n")
            await call.finish(text=f"This would be the output of {name}.")

    async def ask(self, name: str) -> None:
        name = name or "example"
        async with self.turn.tool(name, kind="edit", input={"name": name}) as call:
            verdict = "allowed"
            if self.session.choices.get("mode", self.mode) != "code":
                allowed, verdict = await self.turn.verdict(call, "ask", "what `ask` does")
                if not allowed:
                    await call.fail("")
            if verdict.startswith("allowed"):
                await call.start()
                await call.finish(text=f"This would be the result of {name}.")
        await self._say(f"It was {verdict}.\n")

    async def slow(self, text: str) -> None:
        count, ms = _numbers(text, "slow N [MS]", (10, 200))
        for number in range(1, count + 1):
            await asyncio.sleep(ms / 1000)
            await self.turn.say(f"{number} ")

    async def stream(self, text: str) -> None:
        """Many updates fast, by blocks, without the cost of `say` for each. In our own memory they are one."""
        count, size = _numbers(text, "stream N SIZE", (1000, 20))
        channel = self.session.channel
        head = channel.head + b'{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"'
        tail = b" %b" % (b"x" * size) + b'"}}}}\n'
        batch = max(1, BLOCK // (len(head) + len(tail) + 4))
        for first in range(0, count, batch):
            numbers = range(first, min(first + batch, count))
            channel.peer.send(b"".join([b"%b%d%b" % (head, number, tail) for number in numbers]))
            await channel.room()
        content = {"type": "text", "text": f"({count} updates of {size} characters)\n"}
        channel.keep(encode({"sessionUpdate": "agent_message_chunk", "content": content}))
        self.memory.used += count * size

    async def title(self, text: str) -> None:
        self.memory.title = text
        self.session.rename(text)
        await self._say(f"This session is called: {text}\n")

    async def help(self, _: str) -> None:
        await self._say(words.WORDS)


def _remembered(turn: Turn) -> Memory:
    """What cannot be read is no memory: a count is not worth a failed turn."""
    state = turn.session.state
    try:
        return state.get(words.OFFLINE, Memory) or state.get(EARLIER, Memory) or Memory()
    except StateUnreadable:
        return Memory()


VERBS: dict[str, Callable[[_Script, str], Awaitable[None]]] = {
    "say": _Script.say,
    "think": _Script.think,
    "plan": _Script.plan,
    "tool": _Script.tool,
    "ask": _Script.ask,
    "slow": _Script.slow,
    "stream": _Script.stream,
    "title": _Script.title,
    "help": _Script.help,
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
