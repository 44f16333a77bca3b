"""An agent as a program: stdin and stdout for the protocol, the loop, the end."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

from acpd.api.connection import Connection
from acpd.transports import stdio

if TYPE_CHECKING:
    from acpd.api.agent import Agent

THREAD_WAIT = 0.3
"""Seconds, at the very end, for threads."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run(agent: Agent) -> int:
    """Serve until stdin ends: 0; or until one of _SIGNALS: 128 and its number.

    Not asyncio.run: that waits for ever for a task that is deaf to its cancellation, and for threads. Nor do such tasks, or
    threads that were begun meanwhile, keep the program alive: if any still works then the process ends here.
    """
    before = threading.enumerate()
    if os.isatty(0):
        said = f"{agent.name} is an agent: an editor starts it, and talks to it on stdin and stdout. Ctrl-C ends it.\n"
        sys.stderr.write(said)
    stdin, stdout = stdio.claim()
    loop = asyncio.new_event_loop()
    try:
        asyncio.set_event_loop(loop)
        code = loop.run_until_complete(_serve(agent, stdin, stdout))
    finally:
        deaf = asyncio.all_tasks(loop)
        loop.run_until_complete(loop.shutdown_asyncgens())
        asyncio.set_event_loop(None)
        loop.close()
    begun = set(threading.enumerate()).difference(before)
    if threading.current_thread() is threading.main_thread() and (deaf or _working(begun)):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def _working(threads: Iterable[threading.Thread]) -> bool:
    """Whether Python would wait for one of these when it ends, and longer than THREAD_WAIT."""
    end = time.monotonic() + THREAD_WAIT
    waited_for = [thread for thread in threads if not thread.daemon]
    for thread in waited_for:
        thread.join(max(0, end - time.monotonic()))
    return any(thread.is_alive() for thread in waited_for)


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
