from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from tests.native.tools.bench import Bench, bench


@pytest_asyncio.fixture
async def work(tmp_path: Path) -> AsyncIterator[Bench]:
    """A session whose client has neither files nor terminals, in the folder `project`."""
    async with bench(tmp_path / "project") as made:
        yield made
