"""`acpd status`: what the daemon of this store does at the moment."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec

from acpd.cli import output, reaching
from acpd.cli.call import Call
from acpd.cli.store import exists, opened
from acpd.errors import AcpdError, ConfigError
from acpd.reload import wants_restart
from acpd.storage.contract import Key

METHOD = "_acpd/status"
TITLE = 40
"""Characters of a title."""
SHOWN = 50
"""Connections that are shown one by one; --json has them all."""
NEWEST = 100
"""Sessions that are looked at when no daemon runs."""


def status(call: Call) -> int | None:
    """1: no daemon runs."""
    try:
        raw = reaching.ask(call, "status", METHOD)
    except reaching.NotRunning as error:
        return _not_running(call, error)
    _tell(call, raw)
    return None


def despite(call: Call, broken: ConfigError) -> None:
    """As `status`, where the configuration is wrong: a daemon that runs does not need it. Raises `broken` if none does."""
    try:
        raw = reaching.ask(call, "status", METHOD)
    except reaching.NotRunning:
        raise broken from None
    output.complain(broken)
    _tell(call, raw)


def _tell(call: Call, raw: bytes) -> None:
    value = {"running": True, **msgspec.json.decode(raw)}
    if call.values.json:
        call.out.json(value)
    else:
        for line in lines(value):
            call.out.say(line)


# -- without a daemon


def _not_running(call: Call, error: AcpdError) -> int:
    import asyncio

    path = call.config.storage.path
    pid, alone = asyncio.run(_holders(call)) if exists(call.config) else (None, {})
    if call.values.json:
        call.out.json({"running": False, "store": {"path": path}, "pid": pid, "standalone": sorted(alone)})
        return 1
    if pid is not None:
        text = f"the daemon of the store {path}, pid {pid}, cannot be reached: {error}"
        hint = "it was started with other flags or variables for its store: use those, or end it with 'acpd stop'"
    else:
        text, hint = f"no daemon runs for the store {path}", "acpd serve; an editor's acpd starts one too"
    for other, count in sorted(alone.items()):
        call.out.say(f"pid {other} has {count} {'session' if count == 1 else 'sessions'} open, without a daemon")
    output.complain(AcpdError(text, hint=hint))
    return 1


async def _holders(call: Call) -> tuple[int | None, dict[int, int]]:
    """Who holds the store as its daemon; and how many of the newest sessions each process has open."""
    from acpd.server import LOCK

    found: dict[int, int] = {}
    daemon = None
    with contextlib.suppress(AcpdError):  # a store that cannot be read is no reason to say less
        async with opened(call.config, recover=False) as store:
            daemon = await store.lease.holder(LOCK)
            for row in await store.catalog.find("", limit=NEWEST):
                pid = await store.lease.holder(Key(row.agent, row.id, row.user)) if row.state == "open" else None
                if pid is not None and pid != daemon:
                    found[pid] = found.get(pid, 0) + 1
    return daemon, found


# -- with one


def lines(value: dict[str, Any]) -> list[str]:
    """For people. Pure."""
    told = [*output.table([*_head(value), ("counts", _counts(value["counts"]))])]
    agents = {agent["link"]: agent for agent in value["agents"]}
    tables = (
        [_session(session, agents) for session in value["sessions"]],
        [_connection(connection) for connection in value["connections"][:SHOWN]],
        [_agent(agent) for agent in value["agents"] if agent["session"] is None],
    )
    for title, rows in zip(("sessions", "connections", "agents without a session"), tables, strict=True):
        if rows:
            told += ["", f"{title}:", *(f"  {line}" for line in output.table(rows))]
    told += [unread(value)] if value.get("unread") else []
    told += [f"CANNOT WRITE {each['session']}: {each['failing']}" for each in value["sessions"] if each["failing"]]
    more = len(value["connections"]) - SHOWN
    return [*told, *([f"{more} more connections: --json"] if more > 0 else [])]


def _head(value: dict[str, Any]) -> list[tuple[str, ...]]:
    store, lag = value["store"], value["lag"]
    return [
        ("daemon", f"pid {value['pid']}, acpd {value['version']}, up {span(value['uptime'])}"),
        ("socket", value["socket"]),
        ("store", f"{store['path']} ({store['backend']}, sync {store['sync']})"),
        ("config", value["config"] or "none"),
        ("memory", size(value["rss"])),
        ("lag", f"{lag['last'] * 1000:.1f} ms, at worst {lag['worst'] * 1000:.1f} ms in the last minute"),
    ]


def unread(value: dict[str, Any]) -> str:
    """What is not in force, of a daemon's status in which something is not."""
    keys = value["unread"]
    how = "acpd stop" if any(map(wants_restart, keys)) else f"acpd stop, or kill -HUP {value['pid']}"
    return f"changed since the daemon has read its configuration, and not in force: {', '.join(keys)} ({how})"


def _counts(counts: dict[str, int]) -> str:
    words = {"turns": "running turns", "queued": "waiting prompts", "asks": "open questions"}
    return ", ".join(f"{words.get(name, name)} {count}" for name, count in counts.items())


def _session(session: dict[str, Any], agents: dict[str, Any]) -> tuple[str, ...]:
    agent = agents.get(session["link"])
    turn = session["turn"] + (f" {span(session['seconds'])}" if session["seconds"] is not None else "")
    marks = [f"{session[name]} {text}" for name, text in (("queued", "waiting"), ("asks", "asked")) if session[name]]
    return (
        session["session"],
        ", ".join([turn, *marks]),
        f"{session['clients']} attached",
        session["agent"] + (f" (pid {agent['pid']}, {size(agent['rss'])})" if agent else ""),
        output.one_line(session["title"] or "", TITLE),
        session["cwd"],
    )


def _connection(connection: dict[str, Any]) -> tuple[str, ...]:
    at = [
        f"{each['session']} {each['role']}" + (f" {each['behind']} behind" if each["behind"] else "")
        for each in connection["sessions"]
    ]
    return (
        f"#{connection['number']}",
        f"{connection['kind']} {connection['token'] or ''}".rstrip(),
        f"pid {connection['pid']}",
        span(connection["seconds"]),
        ", ".join(at) or "no session",
    )


def _agent(agent: dict[str, Any]) -> tuple[str, ...]:
    return agent["name"], f"pid {agent['pid']}", size(agent["rss"]), agent["link"]


def span(seconds: float | None) -> str:
    """`12s`, `3m 20s`, `5h 12m`, `8d 3h`."""
    if seconds is None:
        return "-"
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60}s"
    if whole < 86_400:
        return f"{whole // 3600}h {whole % 3600 // 60}m"
    return f"{whole // 86_400}d {whole % 86_400 // 3600}h"


def size(count: int | None) -> str:
    return "-" if count is None else f"{count / (1 << 20):.0f} MiB"
