"""A descriptor that an event loop was given is closed, and once."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

import pytest
import uvloop

from acpd.peer import pipe_end

LOOPS = pytest.mark.parametrize("new_loop", [uvloop.new_event_loop, asyncio.new_event_loop], ids=["uvloop", "asyncio"])
NewLoop = Callable[[], asyncio.AbstractEventLoop]


def is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


async def connect_and_close() -> int:
    """Give the loop one end of a pipe and have it closed; its number."""
    ours, theirs = os.pipe()
    transport, _ = await asyncio.get_running_loop().connect_write_pipe(asyncio.Protocol, pipe_end(theirs, "wb"))
    transport.close()
    for _ in range(20):
        await asyncio.sleep(0)
    os.close(ours)
    return theirs


@LOOPS
def test_the_end_of_a_connection_closes_its_descriptor(new_loop: NewLoop) -> None:
    """Nothing leaks on either loop: after a hundred connections the first number is free again."""
    with asyncio.Runner(loop_factory=new_loop) as runner:
        numbers = {runner.run(connect_and_close()) for _ in range(100)}
    assert 1 == len(numbers)


def test_what_uvloop_closes_itself_is_not_closed_again() -> None:
    """On uvloop the object does not own the number: closing it later cannot hit the file that has got it since."""

    async def close_the_object() -> bool:
        read, write = os.pipe()
        pipe_end(write, "wb").close()
        still = is_open(write)
        os.close(read)
        os.close(write)
        return still

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(close_the_object())
