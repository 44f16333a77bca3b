"""The loop of these tests has a clock that can be put forward; their disks are in memory where there is such a place."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.core.world import ClockLoop
from tests.crash.disk import recorded_databases


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"clock": ClockLoop}


@pytest.fixture
def disks() -> Iterator[Path]:
    """A folder for disks. Databases on them are recorded."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="acpd-crash-", dir=memory) as folder, recorded_databases():
        yield Path(folder)
