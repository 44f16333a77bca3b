"""What a daemon does at the moment (`_acpd/status`): plain values, ready to be JSON. docs/protocol.md has their meaning."""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import acpd
from acpd.turn import Turn

if TYPE_CHECKING:
    from acpd.agents.link import AgentLink
    from acpd.attachment import Client
    from acpd.daemon import Daemon
    from acpd.router import Connection
    from acpd.session import LiveSession
    from acpd.transports.unix import Caller

METHOD = "_acpd/status"
MINUTE = 60.0
TOKEN = 8
"""Digits of a shim's token that are told: enough to know it by, and no key to anything."""

Json = dict[str, object]


class Lag:
    """How late the loop wakes who has slept: what everybody waits behind. Seconds; pure."""

    def __init__(self) -> None:
        self.last = 0.0
        self._worst: deque[tuple[float, float]] = deque()
        """When, and how late: those that no later one was worse than, of the last minute."""

    def add(self, now: float, late: float) -> None:
        self.last = max(0.0, late)
        while self._worst and self._worst[-1][1] <= self.last:
            self._worst.pop()
        self._worst.append((now, self.last))

    def worst(self, now: float) -> float:
        """Of the last minute."""
        while self._worst and now - self._worst[0][0] > MINUTE:
            self._worst.popleft()
        return self._worst[0][1] if self._worst else 0.0


class Came(NamedTuple):
    """One connection as it came. `at` is of the monotonic clock."""

    caller: Caller
    at: float


async def report(daemon: Daemon, came: dict[Connection, Came], asking: Connection) -> Json:
    """All but what is the server's own; of the connections all but the asking one."""
    sizes = await asyncio.to_thread(resident, [os.getpid(), *(link.pid for link in daemon.pool.links.values())])
    attached: dict[Client, list[Json]] = {}
    sessions = [
        _session(session, tenant.registry.user, attached)
        for tenant in daemon.tenants
        for session in tenant.registry.live.values()
    ]
    others = sorted((each for each in daemon.connections if each is not asking), key=lambda each: each.number)
    connections = [_connection(each, came.get(each), attached.get(each, [])) for each in others]
    agents = [_agent(link, sizes.get(link.pid)) for link in daemon.pool.links.values()]
    storage = daemon.config.storage
    return {
        "pid": os.getpid(),
        "version": acpd.__version__,
        "store": {"path": storage.path, "backend": storage.backend, "sync": storage.sync},
        "config": daemon.config.file or None,
        "rss": sizes.get(os.getpid()),
        "counts": _counts(daemon, connections, agents),
        "connections": connections,
        "sessions": sessions,
        "agents": agents,
    }


def _counts(daemon: Daemon, connections: list[Json], agents: list[Json]) -> Json:
    live = [session for tenant in daemon.tenants for session in tenant.registry.live.values()]
    return {
        "connections": len(connections),
        "sessions": len(live),
        "turns": sum(session.state is not Turn.IDLE for session in live),
        "queued": sum(len(session.queue) for session in live),
        "asks": sum(len(session.fold.asks) for session in live),
        "agents": len(agents),
    }


def _connection(connection: Connection, came: Came | None, sessions: list[Json]) -> Json:
    return {
        "number": connection.number,
        "kind": "shim" if connection.token else "plain",
        "seconds": round(time.monotonic() - came.at, 1) if came is not None else None,
        "pid": came.caller.pid if came is not None else None,
        "uid": came.caller.uid if came is not None else None,
        "token": connection.token[:TOKEN] or None,
        "sessions": sessions,
    }


def _session(session: LiveSession, user: str | None, attached: dict[Client, list[Json]]) -> Json:
    """Who is attached is noted in `attached`."""
    for each in session.audience.attachments:
        role = "observer" if each.observer else "controller"
        behind = max(0, session.scribe.flushed - each.cursor)
        attached.setdefault(each.client, []).append({"session": session.id, "role": role, "behind": behind})
    link = session.link
    failing = session.scribe.error or session.recorder.error
    return {
        "session": session.id,
        "title": session.fold.title or None,
        "cwd": session.fold.cwd or session.header.cwd,
        "agent": session.header.agent,
        "user": user,
        "turn": session.state.name.lower(),
        "seconds": _since(session.fold.turn),
        "queued": len(session.queue),
        "asks": len(session.fold.asks),
        "clients": len(session.audience.attachments),
        "failing": str(failing) if failing is not None else None,
        "link": link.id if link is not None else None,
    }


def _agent(link: AgentLink, rss: int | None) -> Json:
    session = link.session.id if link.session is not None else None
    return {"link": link.id, "name": link.name, "pid": link.pid or None, "session": session, "rss": rss}


def _since(entry: str | None) -> float | None:
    """Seconds since this entry was made: its id says when (UUIDv7)."""
    if entry is None:
        return None
    try:
        made = int(entry[:8] + entry[9:13], 16) / 1000
    except ValueError:  # a log of somebody else's
        return None
    return round(max(0.0, time.time() - made), 1)


def resident(pids: Iterable[int]) -> dict[int, int]:
    """Bytes of memory that each of these processes has, where that can be told (/proc). Blocks."""
    page = os.sysconf("SC_PAGE_SIZE")
    found: dict[int, int] = {}
    for pid in pids:
        try:
            with open(f"/proc/{pid}/statm", "rb") as file:
                found[pid] = int(file.read().split()[1]) * page
        except (OSError, IndexError, ValueError):
            continue
    return found
