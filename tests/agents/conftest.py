"""Real agents on the loop that the product runs on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import pytest
import uvloop

from tests.agents.house import House


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    """A pool and a store with nothing in them. At the end no process of the test is left, and no task has failed."""
    async with House(tmp_path) as opened:
        yield opened
