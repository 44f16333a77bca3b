"""Long histories: any sequence of what sessions go through, crashes among it."""

from __future__ import annotations

import random

from acpd.errors import SessionNotFound, SessionReadOnly
from acpd.session import LiveSession
from tests.crash.scene import BIG, Scene
from tests.crash.states import Powers, cuts_of

Verb = tuple[str, int]
"""What to do, and a number that says with which session, or how."""


class Long:
    """The sessions that were answered, live or not."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.known: list[str] = []
        self.live: dict[str, LiveSession] = {}
        self.count = 0

    async def session(self, number: int) -> LiveSession | None:
        """One of them, loaded if it is not live; None if there is none."""
        while self.known:
            name = self.known[number % len(self.known)]
            try:
                if name not in self.live:
                    self.live[name] = await self.scene.load(name)
                return self.live[name]
            except (SessionNotFound, SessionReadOnly):  # lost, and never promised for that crash; the examination knows
                self.known.remove(name)
        return None

    def prompt(self) -> str:
        self.count += 1
        return f"p{self.count}"

    def crashed(self) -> None:
        self.live.clear()

    async def new(self, number: int) -> None:
        session = await self.scene.new()
        self.known.append(session.id)
        self.live[session.id] = session

    async def turn(self, number: int) -> None:
        if session := await self.session(number):
            await self.scene.turn(session, self.prompt(), "said", "more")

    async def big(self, number: int) -> None:
        if session := await self.session(number):
            await self.scene.turn(session, self.prompt(), BIG + str(number % 2))

    async def running(self, number: int) -> None:
        """A turn that goes on until something ends it."""
        if (session := await self.session(number)) and session.current is None:
            ear = await self.scene.prompted(session, self.prompt())
            if ear is not None:
                ear.say("running")

    async def mode(self, number: int) -> None:
        if session := await self.session(number):
            await self.scene.set_mode(session, "ab"[number % 2])

    async def keep(self, number: int) -> None:
        if (session := await self.session(number)) and session.current is None:
            name = self.prompt()
            ear = await self.scene.prompted(session, name)
            if ear is not None:
                ear.keep("memory", number)
                await self.scene.ended(ear, name)

    async def save(self, number: int) -> None:
        if session := await self.session(number):
            await self.scene.saved(session)

    async def close(self, number: int) -> None:
        if session := await self.session(number):
            await self.over(session)
            del self.live[session.id]
            await self.scene.close(session)

    async def over(self, session: LiveSession) -> None:
        """End the turn that runs, if one does."""
        if session.current is not None:
            next(ear for ear in reversed(self.scene.agents.ears) if ear.session is session and ear.prompts).end()
            await session.idle()

    async def fork(self, number: int) -> None:
        if (session := await self.session(number)) and session.current is None:
            fork = await self.scene.fork(session)
            self.known.append(fork.id)
            self.live[fork.id] = fork

    async def delete(self, number: int) -> None:
        if session := await self.session(number):
            await self.over(session)
            self.known.remove(session.id)
            del self.live[session.id]
            await self.scene.delete(session.id)

    async def kill(self, number: int) -> None:
        self.crashed()
        steps = self.scene.disk.steps
        at = self.scene.since + number % (len(steps) - self.scene.since + 1)
        places = cuts_of(self.scene.disk, at)
        await self.scene.killed_at(at, [None, *places][number % (len(places) + 1)])

    async def power(self, number: int) -> None:
        self.crashed()
        rng = random.Random(number)
        crashes = list(Powers(self.scene.disk, len(self.scene.disk.steps)).each(12, rng))
        await self.scene.lost_power(rng.choice(crashes).state)


VERBS = ("new", "turn", "big", "running", "mode", "keep", "save", "close", "fork", "delete", "kill", "power")


async def long(scene: Scene, work: list[Verb]) -> None:
    """A first session, and then all this; a turn that runs is ended before the next of its session."""
    story = Long(scene)
    await story.new(0)
    for name, number in work:
        if name in {"turn", "big", "running", "mode", "keep", "fork"} and (session := await story.session(number)):
            await story.over(session)
        await getattr(story, name)(number)
