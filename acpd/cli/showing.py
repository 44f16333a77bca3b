"""`acpd show ID`."""

from __future__ import annotations

from collections.abc import AsyncIterator

from acpd.cli.call import Call
from acpd.cli.listing import local_time
from acpd.cli.output import one_line
from acpd.cli.store import exists, opened, resolve
from acpd.cli.transcript import Transcript
from acpd.errors import SessionNotFound
from acpd.needs import Store
from acpd.storage.contract import Key
from acpd.storage.fold import Fold
from acpd.wire.lines import Header, Stored

_PLAIN = Stored(type="", id="")
_DEFAULTS = [getattr(_PLAIN, name) for name in Stored.__struct_fields__]


async def show(call: Call) -> None:
    """The current branch, from the root or (`--last`) its last entries. `--json`: the entries as they are stored."""
    if not exists(call.config):
        raise SessionNotFound(call.values.id)
    async with opened(call.config) as store:
        key = await resolve(store, call.values.id, call.config.user)
        header, fold = await store.journals.peek(key)
        transcript = Transcript()
        if not call.values.json:
            for text in heading(key.session, header, fold):
                call.out.say(text)
        async for window in entries(store, key, call.values.last):
            for line in window:
                if call.values.json:
                    call.out.json(members(line))
                else:
                    _say(call, transcript.feed(line))
        if not call.values.json:
            _say(call, transcript.finish() + ending(fold))


def _say(call: Call, lines: list[str]) -> None:
    for line in lines:
        call.out.say(line)


def heading(session: str, header: Header, fold: Fold) -> list[str]:
    """`session` is the log's name; a log that was renamed has another id in its header."""
    lines = [f"session {session}"]
    if fold.title:
        lines.append(f"title   {one_line(fold.title)}")
    lines += [f"folder  {header.cwd}", f"agent   {header.agent}", f"since   {local_time(header.createdAt)}"]
    if header.parent is not None:
        lines.append(f"forked  from {header.parent.sessionId}")
    return [*lines, ""]


def ending(fold: Fold) -> list[str]:
    """What a reader must know that stands in no entry."""
    lines = [f"damage: {one_line(warning)}" for warning in fold.warnings]
    if fold.turn is not None:
        lines.append("turn still running, or cut off by a crash")
    return lines


def members(line: Stored) -> dict[str, object]:
    """What a line says, without the members that it does not have."""
    values = zip(line.__struct_encode_fields__, line.__struct_fields__, _DEFAULTS, strict=True)
    return {name: value for name, field, default in values if (value := getattr(line, field)) != default}


async def entries(store: Store, key: Key, last: int) -> AsyncIterator[list[Stored]]:
    """The path to the leaf, in windows; with `last` only its last entries."""
    if last:
        yield await store.journals.last(key, last)
        return
    async for window in store.journals.path(key):
        yield window
