"""`acpd ls`."""

from __future__ import annotations

import os
from collections.abc import Mapping

from acpd.cli import output
from acpd.cli.call import Call
from acpd.cli.store import exists, opened
from acpd.needs import Store
from acpd.pages import page
from acpd.storage.contract import After, Row

PAGE = 500
FOLDER, TITLE = 40, 80
"""Characters of a column; of a folder the end is shown."""


async def ls(call: Call) -> None:
    """The sessions of this folder (or of all), newest first. `--json`: one array."""
    folders = None if call.values.all else this_folder(call.env)
    limit: int = call.values.limit
    rows: list[Row] = []
    if exists(call.config):
        async with opened(call.config) as store:
            for folder in [None] if folders is None else folders:
                rows += await _rows(store, call.config.user, folder, limit)
    rows.sort(key=lambda row: (row.updatedAt, row.id), reverse=True)
    more = limit and len(rows) > limit
    rows = rows[:limit] if limit else rows
    if call.values.json:
        call.out.json([as_json(row) for row in rows])
        return
    for line in lines(rows, with_folder=folders is None):
        call.out.say(line)
    if not rows:
        output.note("no sessions" + (" of this folder; acpd ls --all" if folders else "") + f" in {call.config.storage.path}")
    elif more:
        output.note(f"the newest {limit}; --limit 0 shows all")


def this_folder(env: Mapping[str, str]) -> list[str]:
    """The current folder, under the name the shell has for it as well: editors send one or the other."""
    here = os.getcwd()
    shell = env.get("PWD", "")
    try:
        same = os.path.isabs(shell) and os.path.samefile(shell, here)
    except OSError:
        same = False
    return [here, shell] if same and shell != here else [here]


async def _rows(store: Store, user: str | None, folder: str | None, limit: int) -> list[Row]:
    """One row more than `limit`, so that the caller can say that there are more. 0: all."""
    rows: list[Row] = []
    after: After | None = None
    while not limit or len(rows) <= limit:
        size = min(PAGE, limit + 1 - len(rows)) if limit else PAGE
        found, after = await page(store, user, cwd=folder, after=after, limit=size)
        rows += found
        if after is None:
            break
    return rows


def as_json(row: Row) -> dict[str, object]:
    """A row as a promise to scripts: names and meanings stay."""
    return {
        "id": row.id,
        "title": row.title,
        "cwd": row.cwd,
        "agent": row.agent,
        "user": row.user,
        "createdAt": row.createdAt,
        "updatedAt": row.updatedAt,
        "messages": row.messages,
        "open": row.state == "open",
        "parent": row.parent,
    }


def lines(rows: list[Row], *, with_folder: bool) -> list[str]:
    """A table: id, time of the last change, messages, agent, folder, title."""
    cells: list[tuple[str, ...]] = []
    for row in rows:
        folder = (row.cwd if len(row.cwd) <= FOLDER else "…" + row.cwd[1 - FOLDER :],) if with_folder else ()
        state = "*" if row.state == "open" else ""
        cells.append((row.id, local_time(row.updatedAt), str(row.messages) + state, row.agent, *folder, row.title))
    return output.table(cells, {3: 24, 4: FOLDER if with_folder else TITLE, 5: TITLE}) if cells else []


def local_time(text: str) -> str:
    """RFC 3339 to "2026-11-30 12:01" in the zone of the reader; as it is, where it is no time."""
    from datetime import datetime

    try:
        return datetime.fromisoformat(text).astimezone().strftime("%Y-%m-%d %H:%M")
    except ValueError:
        return text
