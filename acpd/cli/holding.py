"""What a command does about a session that the daemon of this store has open: the daemon changes it, or lets it go."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from acpd.cli import reaching
from acpd.cli.call import Call
from acpd.cli.store import opened
from acpd.config import Config
from acpd.errors import SessionBusy
from acpd.needs import Store

DAEMON = "the daemon of this store"
HINT = "close the editors that use it, then 'acpd stop'"

Json = dict[str, Any]


async def daemon_of(store: Store) -> int | None:
    """The pid of the daemon that serves this store, wherever it listens."""
    from acpd.server import LOCK  # with all of the server

    return await store.lease.holder(LOCK)


async def daemon_at(config: Config) -> int | None:
    """As `daemon_of`, for who has no store open."""
    async with opened(config, recover=False, catalog=False) as store:
        return await daemon_of(store)


async def through(call: Call, store: Store, error: SessionBusy, method: str, **params: object) -> Json:
    """The daemon's answer to this request about the session of `error`, if it is the daemon that has it open.

    Raises `error` if another process has it; SessionBusy if the daemon cannot be reached; AcpdError for what it says.
    """
    await _check(store, error)
    try:
        params = {"sessionId": error.session_id, **params}
        answer: Json = msgspec.json.decode(await asyncio.to_thread(reaching.request, call, method, params))
    except reaching.NotRunning:
        raise _elsewhere(error) from None
    return answer


async def let_go(call: Call, store: Store, error: SessionBusy) -> None:
    """Have the daemon close a session that it only keeps open for a while: nobody is in it, and nothing runs.

    Raises as `through`, and SessionBusy if it is in use.
    """
    await check_unused(call, store, error, hint="close it in the editors, then try again")
    await through(call, store, error, "session/close")


async def check_unused(call: Call, store: Store, error: SessionBusy, *, hint: str) -> None:
    """Raises as `through`, and SessionBusy, with this next step, if the session is in use in the daemon."""
    await _check(store, error)
    try:
        found = use((await sessions(call)).get(error.session_id))
    except reaching.NotRunning:
        raise _elsewhere(error) from None
    if found:
        raise SessionBusy(error.session_id, error.pid, f"{DAEMON}: {found}", hint=hint)


async def sessions(call: Call) -> dict[str, Json]:
    """What the daemon has open, as `_acpd/status` has it, by their ids. Raises AcpdError."""
    status = msgspec.json.decode(await asyncio.to_thread(reaching.ask, call, "status", "_acpd/status"))
    return {each["session"]: each for each in status["sessions"]}


def use(session: Json | None) -> str:
    """What goes on in a session that the daemon has open; "" if nothing does."""
    if session is None:
        return ""
    running = "a turn runs" if session["turn"] != "idle" or session["queued"] else ""
    attached = f"{session['clients']} attached" if session["clients"] else ""
    return ", ".join(filter(None, (running, attached)))


async def _check(store: Store, error: SessionBusy) -> None:
    """Raises `error` if it is not the daemon that has the session."""
    if error.pid is None or error.pid != await daemon_of(store):
        raise error


def _elsewhere(error: SessionBusy) -> SessionBusy:
    """The daemon listens at another socket, or not any more."""
    return SessionBusy(error.session_id, error.pid, DAEMON, hint=HINT)
