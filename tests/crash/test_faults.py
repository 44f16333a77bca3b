"""A disk that says no at one call or for a while: README, "What is durable when", and docs/storage.md, "Sync".

Nothing unwritten is sent, every request is answered with a result or with an error that names the object, nothing that
was acknowledged is lost, and everything goes on when the fault is gone.
"""

from __future__ import annotations

import errno
import random
import time
import zlib
from pathlib import Path

import pytest

from acpd.wire.ids import Clock, Ids
from tests.crash.examine import Examination, recorded
from tests.crash.faults import Fault, Faulty, with_fault
from tests.crash.histories import SHORT
from tests.crash.scene import Scene
from tests.support import store as logs

FOR_EVER = 1_000_000
"""Calls: until the history is over."""
SYNCS = frozenset({"fsync", "fdatasync"})
FAULTS = {
    "full once": Fault(errno.ENOSPC, 0, 1),
    "full": Fault(errno.ENOSPC, 0, FOR_EVER, frozenset({"open", "write", "mkdir", "commit"})),
    "broken for a while": Fault(errno.EIO, 0, 3),
    "read-only": Fault(errno.EROFS, 0, FOR_EVER),
    "short write": Fault(0, 0, 1, frozenset({"write"})),
    "sync fails once": Fault(errno.EIO, 0, 1, SYNCS),
    "syncs fail": Fault(errno.EIO, 0, FOR_EVER, SYNCS),
}
HISTORIES = ("one_turn", "blob", "asking", "settings", "keeping", "reopening", "forking", "deleting", "branching", "ahead")
"""Those without a crash: what a sync that failed took along is written again by the acpd that saw it, if that lives."""


async def faulty(history: str, fault: Fault, at: int, disks: Path, backend: str = "workspace") -> Faulty:
    return await with_fault(SHORT[history], disks / f"{backend}-{history}-{at}", fault._replace(at=at), backend=backend)


@pytest.mark.parametrize("name", FAULTS)
async def test_a_sample_of_faults(name: str, disks: Path) -> None:
    """Each fault at one call of some histories."""
    rng = random.Random(name)
    hits = [(await faulty(history, FAULTS[name], rng.randrange(5, 18), disks)).hits for history in rng.sample(HISTORIES, 3)]
    assert all(hits)


@pytest.mark.parametrize("backend", ["json", "sqlite"])
async def test_a_sample_on_the_other_backends(backend: str, disks: Path) -> None:
    """A fault at one call of the histories that differ there: states in a database, no folder of the agent."""
    rng = random.Random(backend)
    for name, history in zip(rng.sample([*FAULTS], 3), ("keeping", "deleting", "one_turn"), strict=True):
        assert (await faulty(history, FAULTS[name], rng.randrange(5, 18), disks, backend)).hits, (name, history)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["json", "sqlite"])
@pytest.mark.parametrize("name", FAULTS)
async def test_every_fault_on_the_other_backends(name: str, backend: str, disks: Path) -> None:
    """At every ninth call of the histories that differ there."""
    for history in ("keeping", "deleting", "forking", "reopening"):
        runs, at = 0, 1 + zlib.crc32(f"{name} {history}".encode()) % 9
        while (await faulty(history, FAULTS[name], at, disks, backend)).hits:
            runs, at = runs + 1, at + 9
        assert runs >= 2, history


@pytest.mark.parametrize("step", [pytest.param(12, marks=pytest.mark.e2e), pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("history", HISTORIES)
@pytest.mark.parametrize("name", FAULTS)
async def test_every_fault(name: str, history: str, step: int, disks: Path) -> None:
    """At every twelfth or fourth call, each fault at others, until one that the history does not make."""
    runs, at = 0, 1 + zlib.crc32(f"{name} {history}".encode()) % step
    while (await faulty(history, FAULTS[name], at, disks)).hits:
        runs, at = runs + 1, at + step
    print(f"{name} in {history}: {runs} runs")
    assert runs >= 20 // step


async def test_a_fault_is_told_in_words(disks: Path) -> None:
    """A disk that stays full through a prompt: it is answered after thirty seconds with the cause and the next step."""
    run = await faulty("one_turn", FAULTS["full"], 17, disks)
    assert {True} == {"disk full: free space and send again" in text for text in run.told}


class Backwards:
    """A clock that goes back by an hour each time it is asked."""

    def __init__(self) -> None:
        self.now = time.time_ns()

    def __call__(self) -> int:
        self.now -= 3_600_000_000_000
        return self.now


@pytest.mark.parametrize("history", ["one_turn", "reopening", "forking", "torn"])
async def test_a_clock_that_goes_backwards(history: str, disks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids grow all the same, also over a restart; nothing is lost, and the next acpd, whose clock is right, goes on."""

    def start(self: Scene, *args: object) -> None:
        real(self, *args)  # type: ignore[arg-type]
        registry = self.world.registry
        registry._ids, registry._clock = Ids(clock), Clock(clock)

    clock, real = Backwards(), Scene.start
    monkeypatch.setattr(Scene, "start", start)
    scene = await recorded(SHORT[history], disks / "history")
    found = logs.logs(scene.files.base)
    for log in found.values():
        logs.check(log, forked=bool(log.header.get("parent")))
        times = [entry["at"] for entry in log.entries]
        assert times == sorted(times, reverse=True) or log.header.get("parent")  # the facts that a fork takes along are older
    assert (await Examination(scene, disks, limit=2).run([len(scene.disk.steps)])).states >= 2
