"""What acpd promised holds after a crash at any step: in every state that is possible, or in a sample of them.

`make test` takes samples; `make e2e` every state of the shortest histories, and long ones; `make e2e-full` larger samples.
Histories are recorded as they are; that the examination is not blind is what test_mutations says.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.core.world import ClockLoop
from tests.crash.examine import Examination, Report, recorded, sample
from tests.crash.histories import SHORT
from tests.crash.long import VERBS, Verb, long
from tests.crash.states import points

WHOLE = ("one_turn", "blob", "asking", "keeping", "unprompted")
"""Histories of which every state is opened."""
BACKENDS = ("workspace", "json", "sqlite")


async def examined(history: str, disks: Path, *, backend: str, limit: int, count: int = 0) -> Report:
    """`count`: of how many points; 0: of all. One state in four is searched, too."""
    scene = await recorded(SHORT[history], disks / "history", backend=backend)
    examination = Examination(scene, disks, limit=limit, searched=4)
    numbers = points(scene.disk)
    report = await examination.run(sample(numbers, count, random.Random(zlib.crc32(history.encode()))) if count else numbers)
    print(f"{history} on {backend}: {report}")
    return report


@pytest.mark.parametrize("history", SHORT)
async def test_a_sample_of_crashes(history: str, disks: Path) -> None:
    """Six points of each history, after a kill and after losses of power."""
    report = await examined(history, disks, backend="workspace", limit=4, count=6)
    assert report.states >= 10


@pytest.mark.parametrize("history", ["keeping", "deleting"])
@pytest.mark.parametrize("backend", ["json", "sqlite"])
async def test_a_sample_on_the_other_backends(history: str, backend: str, disks: Path) -> None:
    """Where they differ: states in a database, no folder of the agent."""
    assert (await examined(history, disks, backend=backend, limit=3, count=6)).states >= 8


@pytest.mark.e2e
@pytest.mark.parametrize("history", WHOLE)
async def test_every_crash(history: str, disks: Path) -> None:
    """Every point, every state that it may leave."""
    report = await examined(history, disks, backend="workspace", limit=100_000)
    assert (True, 0) == (report.states >= 200, report.sampled)


def larger() -> Iterator[object]:
    for backend in BACKENDS:
        for history in SHORT:
            if backend != "workspace" or history not in WHOLE:
                yield pytest.param(history, backend, id=f"{history}-{backend}")


@pytest.mark.slow
@pytest.mark.parametrize(("history", "backend"), [*larger()])
async def test_a_large_sample_of_crashes(history: str, backend: str, disks: Path) -> None:
    """Every point; of each at most so many states."""
    report = await examined(history, disks, backend=backend, limit=15 if backend == "workspace" else 4)
    assert report.states >= 30


@pytest.mark.parametrize("history", ["one_turn", "torn"])
async def test_without_syncs_a_kill_loses_nothing(history: str, disks: Path) -> None:
    """With `sync = "process"` all that was promised is in the kernel; no loss of power is looked at."""
    scene = await recorded(SHORT[history], disks / "history", sync=False)
    report = await Examination(scene, disks, limit=0, power=False).run()
    assert report.states >= 25


verbs = st.lists(st.tuples(st.sampled_from(VERBS), st.integers(0, 1000)), min_size=3, max_size=14)


def after(work: list[Verb], seed: int, disks: Path) -> Report:
    """A sample of the crashes of a long history."""
    folder = Path(tempfile.mkdtemp(dir=disks))

    async def run() -> Report:
        scene = await recorded(lambda scene: long(scene, work), folder / "history")
        rng = random.Random(seed)
        numbers = sample([n for n in points(scene.disk) if n >= scene.since], 3, rng)
        return await Examination(scene, folder, limit=3, seed=seed).run(numbers)

    with asyncio.Runner(loop_factory=ClockLoop) as runner:
        return runner.run(run())


SLOW = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


@settings(max_examples=6, suppress_health_check=SLOW)
@given(verbs, st.integers(0, 1000))
def test_a_few_long_histories(disks: Path, work: list[Verb], seed: int) -> None:
    """Sequences of everything, with kills and losses of power in between: what was promised before them holds too."""
    assert after(work, seed, disks).states >= 1


TWO_CHUNKS: list[Verb] = [
    ("big", 0), ("new", 747), ("turn", 249), ("delete", 280), ("new", 846), ("fork", 492), ("keep", 787), ("keep", 161),
    ("mode", 135), ("close", 42), ("big", 492), ("close", 287), ("keep", 608), ("keep", 178),
]  # fmt: skip
"""A message of two chunks, in a session and its fork: it is searched as one text."""

INTERRUPTED: list[Verb] = [("turn", 0), ("running", 0), ("power", 0), ("turn", 0)]
"""A notice of acpd in a turn that said nothing else: it is not searched."""


@pytest.mark.e2e
@example(TWO_CHUNKS, 369)
@example(INTERRUPTED, 0)
@settings(max_examples=20, suppress_health_check=SLOW)
@given(verbs, st.integers(0, 1000))
def test_many_long_histories(disks: Path, work: list[Verb], seed: int) -> None:
    """As before, with others each time."""
    assert after(work, seed, disks).states >= 1
