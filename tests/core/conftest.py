"""The loops that the core is tested on, and one world: a real store, a registry, clients, an agent's link."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import pytest
import uvloop

from tests.agents.house import House
from tests.core.world import ClockLoop, World

Factory = Callable[[], asyncio.AbstractEventLoop]
_FACTORIES: dict[str, Factory] = {"clock": ClockLoop, "asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> Mapping[str, Factory]:
    """A loop whose clock can be put forward, but for modules that name others in LOOPS."""
    names = getattr(getattr(item, "module", None), "LOOPS", ("clock",))
    return {name: _FACTORIES[name] for name in names}


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """A store with nothing in it. At the end everything is closed, and no task may have failed."""
    async with World(tmp_path / "store") as opened:
        yield opened


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    """As for the tests of agents: a real pool."""
    async with House(tmp_path) as opened:
        yield opened
