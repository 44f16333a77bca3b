"""`acpd logs [ID]`: what agents wrote to stderr, and where acpd's own log is."""

from __future__ import annotations

import os

from acpd.cli.call import Call
from acpd.cli.output import one_line
from acpd.cli.store import exists, opened, resolve
from acpd.errors import SessionNotFound, StoreError
from acpd.logger import path_of

NEWEST = 5
"""Files that are shown when no session is named."""
TAIL = 64 * 1024
"""Bytes read from the end of a file."""


def logs(call: Call) -> None:
    links = os.path.join(call.paths.runtime, "links")
    if call.values.id is not None:
        files = [_of_session(call, links)]
    else:
        files = newest(links)
        own = path_of(call.config.log, call.config.storage.path)
        call.out.say(f"a daemon logs to {own}, its terminal or the journal; acpd --standalone to its stderr")
        call.out.say(f"agents log to {links}/*.stderr")
    for path in files:
        call.out.say(f"== {path}")
        for line in tail(path, call.values.lines):
            call.out.say(line)


def _of_session(call: Call, links: str) -> str:
    """The stderr of the newest agent of this session. Raises StoreError if it is gone."""
    import asyncio

    if not exists(call.config):
        raise SessionNotFound(call.values.id)
    link = asyncio.run(_newest_link(call))
    path = os.path.join(links, f"{os.path.basename(link)}.stderr")
    if not link or not os.path.exists(path):
        raise StoreError(
            "find",
            f"the agent's log of {call.values.id}",
            cause=f"not in {links}",
            hint="it is kept as long as the runtime folder",
        )
    return path


async def _newest_link(call: Call) -> str:
    async with opened(call.config) as store:
        key = await resolve(store, call.values.id, call.config.user)
        _, fold = await store.journals.peek(key)
    return fold.link.link if fold.link is not None else ""


def newest(links: str) -> list[str]:
    """The files that were written last, the newest at the end, where the eye is."""
    try:
        with os.scandir(links) as found:
            files = [one.path for one in found if one.name.endswith(".stderr")]
    except FileNotFoundError:
        return []
    return sorted(files, key=os.path.getmtime)[-NEWEST:]


def tail(path: str, lines: int) -> list[str]:
    """The last lines of a file, of its last 64 KiB at most."""
    if not lines:
        return []
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.path.getsize(path) - TAIL))
            text = file.read().decode(errors="replace")
    except OSError as error:
        raise StoreError("read", path, cause=one_line(error.strerror or str(error))) from None
    found = text.removesuffix("\n").split("\n")[-lines:] if text else []
    return [line.removesuffix("\r") for line in found]
