"""Long work in pieces, with rests between them: nobody waits for it, and those who are waited for find the machine free."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


async def in_pieces(piece: Callable[[], Awaitable[T | None]], rest: float) -> AsyncIterator[T]:
    """What `piece` gives until it gives None; after each, a rest of so many times as long as it took."""
    started = time.monotonic()
    while (found := await piece()) is not None:
        yield found
        await asyncio.sleep(rest * (time.monotonic() - started))
        started = time.monotonic()
