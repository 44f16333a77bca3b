"""`acpd search WORD...`"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from acpd.cli import output
from acpd.cli.call import Call
from acpd.cli.listing import local_time, this_folder
from acpd.cli.store import exists, opened
from acpd.errors import ConfigError, QueryError, StoreError
from acpd.indexing import catch_up_all, searchable

if TYPE_CHECKING:
    from datetime import datetime

    from acpd.needs import Store
    from acpd.storage.hits import Find, Hit

ALL = 1_000_000
_AGO = re.compile(r"(\d{1,6})([mhdw])")
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


async def search(call: Call) -> None:
    """What was said and done in the sessions of this folder, the newest first. `--json`: one array."""
    find = _find(call)
    hits: list[Hit] = []
    more = False
    if exists(call.config):
        async with opened(call.config) as store:
            catalog = searchable(store)
            await _catch_up(call, store)
            found = await catalog.search(find)
            hits, more = list(found.hits), found.more
            if not (found.complete and found.whole):
                output.complain("not everything could be searched: some sessions are not read to their end; see acpd fsck")
    if call.values.json:
        call.out.json([as_json(hit) for hit in hits])
        return
    for text in lines(hits):
        call.out.marked(text)
    if not hits:
        where = " in the sessions of this folder; acpd search --all" if find.folders and not call.values.cwd else ""
        output.note(f"nothing found{where}")
    elif more:
        output.note("there is more; --limit 0 shows all, more words find less")


async def _catch_up(call: Call, store: Store) -> None:
    """Where the store may only be read, what is known has to do."""
    progress = output.Progress("reading sessions for the search")
    try:
        await catch_up_all(store, call.config.user, progress.tell, gently=False)
    except StoreError as error:
        output.complain(f"what was said last may not be found: {error}")
    finally:
        progress.end()


def _find(call: Call) -> Find:
    from acpd.storage.hits import Find
    from acpd.storage.queries import parse

    values = call.values
    if not values.words_to_find:
        raise ConfigError("acpd search has no word to look for", hint="acpd search WORD...; acpd search --help")
    try:
        query = parse(" ".join(values.words_to_find))
    except QueryError as error:
        raise ConfigError(error.message, hint=error.hint) from None
    folders: tuple[str, ...] = () if values.all else tuple(this_folder(call.env))
    if values.cwd is not None:
        if values.all:
            raise ConfigError("--all and --cwd exclude each other", hint="give one of them")
        folders = (os.path.realpath(values.cwd),)
    return Find(
        query=query,
        agent=values.agent_name,
        folders=folders,
        since=_moment("--since", values.since),
        until=_moment("--until", values.until),
        best=values.best,
        limit=values.limit or ALL,
        each=values.per_session if values.per_session is not None else 3 if values.limit else 0,
    )


def _moment(flag: str, text: str | None) -> int | None:
    """Milliseconds since 1970 of `2026-11-30`, `2026-11-30T12:00` (this machine's time), `7d` ago. Raises ConfigError."""
    from datetime import datetime, timedelta

    if text is None:
        return None
    try:
        if match := _AGO.fullmatch(text):
            at: datetime = datetime.now().astimezone() - timedelta(**{_UNITS[match[2]]: int(match[1])})
        else:
            at = datetime.fromisoformat(text).astimezone()
        return int(at.timestamp() * 1000)
    except (ValueError, OverflowError):
        raise ConfigError(f"{flag} is {text!r}, no time", hint="2026-11-30, 2026-11-30T12:00, or 12h, 7d, 2w ago") from None


def as_json(hit: Hit) -> dict[str, object]:
    """A hit as a promise to scripts: names and meanings stay. Every second text of `snippet` is a match."""
    return {
        "id": hit.row.id,
        "title": hit.row.title,
        "cwd": hit.row.cwd,
        "agent": hit.row.agent,
        "updatedAt": hit.row.updatedAt,
        "entry": hit.entry,
        "seq": hit.seq,
        "at": hit.at,
        "scope": hit.scope,
        "snippet": list(hit.snippet),
    }


def lines(hits: list[Hit]) -> list[tuple[str, ...]]:
    """A heading for each session, and its hits below it. Every second text of a line is a match."""
    found: list[tuple[str, ...]] = []
    sessions: dict[str, list[Hit]] = {}
    for hit in hits:
        sessions.setdefault(hit.row.id, []).append(hit)
    for of_one in sessions.values():
        row = of_one[0].row
        found.append((f"{row.id}  {local_time(row.updatedAt)}  {row.agent}  {output.one_line(row.title, 80)}",))
        for hit in of_one:
            first, *rest = hit.snippet
            found.append((f"  {hit.scope:<7}  {first}", *rest))
    return found
