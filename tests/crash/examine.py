"""Every crash of a history, or a sample of them, held against what was promised."""

from __future__ import annotations

import hashlib
import itertools
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from tests.crash.disk import Disk, Mark, State
from tests.crash.histories import History
from tests.crash.promises import Check, Violation, expected, written
from tests.crash.scene import Deleting, Scene
from tests.crash.states import Crash, Powers, kills, points


class Report(Struct):
    """What was examined. `sampled`: points of which not every state was."""

    points: int = 0
    states: int = 0
    alike: int = 0
    possible: int = 0
    sampled: int = 0

    def __str__(self) -> str:
        how = f"{self.sampled} of them sampled" if self.sampled else "all of them whole"
        return (
            f"{self.points} points, {how}: {self.states} states opened, {self.alike} met again, of {self.possible} combinations"
        )

    def add(self, other: Report) -> None:
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class Examination:
    """Of one history that was recorded. `limit`: states after a loss of power of one point, at most.

    `searched`: one of so many states is searched, too.
    """

    def __init__(self, scene: Scene, base: Path, *, limit: int, seed: int = 0, power: bool = True, searched: int = 4) -> None:
        self.scene = scene
        self.base = base
        self.limit = limit
        self.power = power
        self.searched = searched
        self.rng = random.Random(seed)
        self.report = Report()
        self.seen: set[tuple[bytes, int]] = set()

    async def run(self, numbers: list[int] | None = None) -> Report:
        """Raises Violation, whose text says where.

        Backwards: later points promise more of the same state, so that a state need be opened once.
        """
        for number in reversed(numbers if numbers is not None else points(self.scene.disk)):
            self.report.points += 1
            for crash in self._crashes(number):
                await self._one(crash)
        return self.report

    def _crashes(self, number: int) -> Iterator[Crash]:
        yield from kills(self.scene.disk, number)
        if self.power:
            powers = Powers(self.scene.disk, number)
            self.report.possible += powers.count
            self.report.sampled += powers.count > self.limit
            yield from powers.each(self.limit, self.rng)

    async def _one(self, crash: Crash) -> None:
        key = (_digest(crash.state), _epoch(self.scene.disk, crash.number))
        if key in self.seen:
            self.report.alike += 1
            return
        self.seen.add(key)
        self.report.states += 1
        folder = self.base / "state"
        try:
            check = self.check(crash, folder)
            check.searches = self.report.states % self.searched == 1 % self.searched
            await check.run()
        except Exception as violation:
            kind = "a loss of power" if crash.power else "kill -9"
            step = self.scene.disk.steps[crash.number - 1] if crash.number else "nothing"
            left = ", ".join(f"{path} {len(data)}" for path, data in sorted(crash.state.items()) if data is not None)
            where = f"{kind} after step {crash.number}, {repr(step)[:150]}; {crash.story}; left are {left or 'no files'}"
            raise Violation(f"{violation} - {where}") from violation
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def check(self, crash: Crash, folder: Path) -> Check:
        promised = expected(self.scene.disk, crash.number, power=crash.power)
        return Check(crash, promised, written(self.scene.disk, crash.number), folder, self.scene.backend)


def _digest(state: State) -> bytes:
    digest = hashlib.blake2b()
    for path in sorted(state):
        data = state[path]
        digest.update(repr((path, data if data is None else (len(data), hashlib.blake2b(data).digest()))).encode())
    return digest.digest()


def _epoch(disk: Disk, number: int) -> int:
    """What a later point demands is more than what an earlier one did, but for a session that is being deleted."""
    return sum(isinstance(step, Mark) and isinstance(step.promise, Deleting) for step in disk.steps[:number])


async def recorded(history: History, base: Path, *, backend: str = "workspace", sync: bool = True) -> Scene:
    """The history, to its end; what acpd does when it is closed is no part of it."""
    scene = Scene(base, backend=backend, sync=sync)
    try:
        await scene.recovered()
        await history(scene)
    finally:
        await scene.end()
    return scene


def sample(numbers: list[int], count: int, rng: random.Random) -> list[int]:
    """So many of them, the last one among them."""
    return sorted({*rng.sample(numbers, min(count, len(numbers))), *itertools.islice(reversed(numbers), 1)})
