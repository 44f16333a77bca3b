"""One daemon and very many clients: 200 sessions, 50 of them with a turn at any moment, and one client that never reads.

All clients are in one process, on one epoll: the load must not be what is measured. The agents are real processes, of dash
(chunk_agent.sh): 1,000 in Python would be another test.
"""

from __future__ import annotations

import os
import select
import socket
import statistics
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.support.serving import Plain, Serving, line, prompt

AGENT = ("sh", str(Path(__file__).with_name("chunk_agent.sh")))
ANSWER = b'"stopReason"'
BLOCK = 1 << 16


class Found(NamedTuple):
    """Microseconds, bytes, and how many prompts were answered. `early`: after a quarter of the time."""

    pinned: float
    p50: float
    p99: float
    prompts: int
    early: int
    late: int


class Talker:
    """A client with one session, and one prompt on its way at most."""

    def __init__(self, plain: Plain, session: str) -> None:
        self.sock = plain.sock
        self.session = session
        self.line = line(7, "session/prompt", prompt(session))
        self.sent = 0.0

    def say(self) -> None:
        self.sent = time.perf_counter()
        self.sock.send(self.line)


def crowd(
    home: Path, seconds: float, *, connections: int = 1000, sessions: int = 200, at_once: int = 50, alone: int = 500
) -> Found:
    """`alone`: prompts of the anchor, one at a time and everything on one CPU. Raises AssertionError without an answer."""
    with Serving(home, AGENT, env={"ACPD_LOG_LEVEL": "warning"}) as daemon:
        pinned = _alone(daemon, alone)
        clients = list(_connected(daemon, connections))
        talkers = [Talker(client, client.new(home)) for client in clients[:sessions]]
        deaf = _deaf(daemon, talkers, home)
        found, early, late = _talk(talkers, seconds, at_once, daemon.rss)
        deaf.close()
        for client in clients:
            client.close()
    found.sort()
    return Found(pinned, statistics.median(found) * 1e6, found[len(found) * 99 // 100] * 1e6, len(found), early, late)


def _alone(daemon: Serving, prompts: int) -> float:
    """Microseconds."""
    with _pinned(daemon.pid):
        client = daemon.client()
        session = client.new(daemon.home)
        taken: list[float] = []
        for _ in range(prompts):
            started = time.perf_counter()
            assert "result" in client.prompt(session)
            taken.append(time.perf_counter() - started)
        client.close()
    return statistics.median(taken) * 1e6


@contextmanager
def _pinned(pid: int) -> Generator[None]:
    """The daemon, its threads, this process, and what they start meanwhile."""
    cpus = os.sched_getaffinity(0)
    threads = [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    for each in (0, *threads):
        os.sched_setaffinity(each, {min(cpus)})
    try:
        yield
    finally:
        for each in (0, *(int(name) for name in os.listdir(f"/proc/{pid}/task"))):
            os.sched_setaffinity(each, cpus)


def _connected(daemon: Serving, count: int) -> Iterator[Plain]:
    """Initialized, a hundred at a time."""
    for first in range(0, count, 100):
        some = [Plain(daemon.connect()) for _ in range(min(100, count - first))]
        asked = [client.send("initialize", {"protocolVersion": 1, "clientCapabilities": {}}) for client in some]
        for client, number in zip(some, asked, strict=True):
            assert "result" in client.answer(number)
        yield from some


def _deaf(daemon: Serving, talkers: list[Talker], home: Path) -> Plain:
    """It is in many sessions and does not read."""
    client = daemon.client()
    client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    for talker in talkers[:20]:
        client.send("session/load", {"sessionId": talker.session, "cwd": str(home), "mcpServers": []})
    return client


def _talk(talkers: list[Talker], seconds: float, at_once: int, rss: Callable[[], int]) -> tuple[list[float], int, int]:
    """So many prompts on their way at any moment, each session in its turn. Seconds of each; memory early and at the end."""
    by_fd = {talker.sock.fileno(): talker for talker in talkers}
    poll = select.epoll()
    for fd in by_fd:
        poll.register(fd, select.EPOLLIN)
    waiting = talkers[::-1]
    taken: list[float] = []
    begun = time.perf_counter()
    early = 0
    for _ in range(at_once):
        waiting.pop().say()
    while running := len(talkers) - len(waiting):
        ready = poll.poll(30)
        assert ready, f"{running} prompts are not answered"
        now = time.perf_counter()
        if not early and now - begun > seconds / 4:
            early = rss()
        for fd, _ in ready:
            if ANSWER in by_fd[fd].sock.recv(BLOCK):
                taken.append(time.perf_counter() - by_fd[fd].sent)
                waiting.insert(0, by_fd[fd])
                if now - begun < seconds:
                    waiting.pop().say()
    poll.close()
    return taken, early, rss()


def told(found: Found) -> str:
    return (
        f"{found.prompts} prompts, p50 {found.p50:.0f} us, p99 {found.p99:.0f} us = {found.p99 / found.pinned:.1f}x the "
        f"pinned p50 of {found.pinned:.0f} us; memory {found.early >> 20} -> {found.late >> 20} MiB"
    )
