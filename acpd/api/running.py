"""An agent as a program: stdin and stdout for the protocol, the loop, the end."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from functools import partial
from typing import TYPE_CHECKING

from acpd.api.connection import Connection
from acpd.transports import stdio

if TYPE_CHECKING:
    from acpd.api.agent import Agent

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run(agent: Agent) -> int:
    """Serve until stdin ends: 0; or until one of _SIGNALS: 128 and its number.

    Not asyncio.run: that waits for ever for a task that is deaf to its cancellation, and for threads.
    """
    if os.isatty(0):
        said = f"{agent.name} is an agent: an editor starts it, and talks to it on stdin and stdout. Ctrl-C ends it.\n"
        sys.stderr.write(said)
    stdin, stdout = stdio.claim()
    loop = asyncio.new_event_loop()
    try:
        asyncio.set_event_loop(loop)
        return loop.run_until_complete(_serve(agent, stdin, stdout))
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        asyncio.set_event_loop(None)
        loop.close()


async def _serve(agent: Agent, stdin: int, stdout: int) -> int:
    connection = Connection(agent)
    caught: list[int] = []

    def stop(number: int) -> None:
        caught.append(number)
        connection.ended.set()

    if threading.current_thread() is threading.main_thread():
        for number in _SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                asyncio.get_running_loop().add_signal_handler(number, partial(stop, number))
    await stdio.connect(connection.peer, stdin, stdout)
    await connection.ended.wait()
    await connection.finish()
    return 128 + caught[0] if caught else 0
