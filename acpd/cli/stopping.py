"""`acpd stop`: the daemon of this store ends, whoever started it and wherever it listens."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from typing import Any

import msgspec

from acpd.cli import reaching
from acpd.cli.call import Call
from acpd.cli.holding import daemon_of
from acpd.cli.store import exists, opened
from acpd.errors import AcpdError
from acpd.needs import Store

SECONDS = 15.0
"""For saving and ending agents, behind the time that running turns have."""
_PAUSE = 0.05


async def stop(call: Call) -> int | None:
    """Returns when it is gone, or when there was none. Raises AcpdError."""
    path = call.config.storage.path
    if exists(call.config):
        async with opened(call.config, recover=False, catalog=False) as store:
            pid = await daemon_of(store)
            if pid is not None:
                await _stop(call, store, pid)
                return None
    call.out.say(f"no daemon runs for the store {path}")
    return None


async def _stop(call: Call, store: Store, pid: int) -> None:
    if not _is_acpd(pid):
        raise AcpdError(f"pid {pid} has the store, and is no acpd here", hint="stop it where it runs: in its container")
    counts = await asyncio.to_thread(_counts, call)
    by_systemd = f"SYSTEMD_EXEC_PID={pid}".encode() in _proc(pid, "environ").split(b"\0")
    what = f", running turns {counts['turns']}, connections {counts['connections']}" if counts else ""
    call.out.say(f"stopping the daemon of the store {call.config.storage.path}: pid {pid}{what}")
    call.out.flush()
    seconds = SECONDS + (0 if call.values.now else call.config.daemon.drain)
    _signal(pid, now=call.values.now)
    if not await _gone(store, pid, seconds):
        hint = f"kill -9 {pid} loses nothing that was promised" if call.values.now else "acpd stop --now"
        raise AcpdError(f"the daemon, pid {pid}, is still there after {seconds:.0f} s", hint=hint)
    if by_systemd:
        call.out.say("it has ended; systemd starts the next one for the next client, unless acpd.socket is stopped too")
    elif counts and counts["connections"]:
        call.out.say("it has ended; the editors that are open start the next one at once")
    else:
        call.out.say("it has ended; the next editor starts another one")


def _counts(call: Call) -> dict[str, int] | None:
    """None: it does not say; it can be ended all the same. Blocks."""
    try:
        status: dict[str, Any] = msgspec.json.decode(reaching.ask(call, "status", "_acpd/status"))
    except AcpdError:
        return None
    counts: dict[str, int] = status["counts"]
    return counts


def _signal(pid: int, *, now: bool) -> None:
    """Raises AcpdError."""
    try:
        os.kill(pid, signal.SIGTERM)
        if now:
            os.kill(pid, signal.SIGINT)  # the second signal: two of one kind may come as one
    except ProcessLookupError:
        pass  # it has ended meanwhile
    except PermissionError:
        raise AcpdError(f"the daemon, pid {pid}, is another user's", hint="stop it as that user") from None


async def _gone(store: Store, pid: int, seconds: float) -> bool:
    """Whether it has given up the store, within so many seconds."""
    end = time.monotonic() + seconds
    while await daemon_of(store) == pid:
        if time.monotonic() > end:
            return False
        await asyncio.sleep(_PAUSE)
    return True


def _is_acpd(pid: int) -> bool:
    """False: under that number there is something else here; a container has numbers of its own."""
    return b"acpd" in (_proc(pid, "cmdline") or b"acpd")


def _proc(pid: int, name: str) -> bytes:
    """Empty where it cannot be read."""
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read()
    except OSError:
        return b""
