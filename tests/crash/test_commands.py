"""What the commands that change a store promise holds after a crash at any step of them, and after they are done.

`make test` takes samples of the points, `make e2e-full` all of them.
"""

from __future__ import annotations

import random
import zlib
from pathlib import Path

import pytest

from tests.crash.commands import COMMANDS, TARGETS, OfTarget, migrating, since_migrating
from tests.crash.examine import Examination, Report, recorded, sample
from tests.crash.states import points


async def examined(history: str, disks: Path, *, backend: str = "workspace", limit: int, count: int = 0) -> Report:
    """`count`: of how many points; 0: of all. One state in four is searched, too."""
    scene = await recorded(COMMANDS[history], disks / "history", backend=backend)
    numbers = _some(points(scene.disk), count, history)
    report = await Examination(scene, disks, limit=limit, searched=4).run(numbers)
    print(f"{history} on {backend}: {report}")
    return report


def _some(numbers: list[int], count: int, name: str) -> list[int]:
    return sample(numbers, count, random.Random(zlib.crc32(name.encode()))) if count else numbers


async def migrated(backend: str, disks: Path, *, limit: int, count: int = 0) -> Report:
    """In the old backend and in the new one."""
    scene = await recorded(migrating, disks / "history", backend=backend)
    numbers = _some(since_migrating(scene), count, backend)
    report = await Examination(scene, disks, limit=limit).run(numbers)
    report.add(await OfTarget(scene, disks, limit=limit).run(numbers))
    print(f"migrating from {backend} to {TARGETS[backend]}: {report}")
    return report


@pytest.mark.parametrize("history", COMMANDS)
async def test_a_sample_of_crashes(history: str, disks: Path) -> None:
    """`acpd cwd`, `fsck --repair`, `rm` and `gc`: four points, after a kill and after losses of power."""
    assert (await examined(history, disks, limit=2, count=4)).states >= 6


@pytest.mark.parametrize("backend", TARGETS)
async def test_a_sample_of_migrations(backend: str, disks: Path) -> None:
    """Cut off anywhere the source is whole, and the same command goes on; done, the target has everything for good."""
    assert (await migrated(backend, disks, limit=2, count=2)).states >= 5


@pytest.mark.slow
@pytest.mark.parametrize("history", COMMANDS)
@pytest.mark.parametrize("backend", TARGETS)
async def test_every_point(history: str, backend: str, disks: Path) -> None:
    """Every point of them; of each at most so many states."""
    assert (await examined(history, disks, backend=backend, limit=3)).states >= 30


@pytest.mark.slow
@pytest.mark.parametrize("backend", TARGETS)
async def test_every_point_of_a_migration(backend: str, disks: Path) -> None:
    """Between all pairs of backends that differ in where logs or states are."""
    assert (await migrated(backend, disks, limit=6)).states >= 50
