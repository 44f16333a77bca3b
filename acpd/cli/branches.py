"""`acpd tree ID`: the branches of a session, a line for each turn."""

from __future__ import annotations

from acpd.cli.call import Call
from acpd.cli.output import one_line
from acpd.cli.showing import ending, heading
from acpd.cli.store import exists, opened, resolve
from acpd.errors import SessionNotFound
from acpd.needs import Store
from acpd.storage.contract import Key
from acpd.storage.fold import Fold
from acpd.storage.outline import Hidden, Notes, Stretch, name_length, shortened, stretches
from acpd.storage.tree import SessionTree

RUN = 12
"""Of so many unremarkable turns in a row all are shown; of more, those at both ends."""
PROMPT, LABEL, TYPE = 60, 60, 20
"""Characters that are shown."""
DEEPEST = 20
"""Steps of indentation; what is deeper says how deep."""


async def tree(call: Call) -> None:
    if not exists(call.config):
        raise SessionNotFound(call.values.id)
    async with opened(call.config) as store:
        key = await resolve(store, call.values.id, call.config.user)
        header, fold = await store.journals.peek(key)
        found = await store.journals.tree(key)
        if call.values.json:
            call.out.json(as_json(key, fold, found))
            return
        rows = shortened(stretches(found, fold.labels, await _notes(store, key)), len(found) if call.values.all else RUN)
        for text in [*heading(key.session, header, fold), *lines(found, rows), "", *summary(found), *ending(fold)]:
            call.out.say(text)


async def _notes(store: Store, key: Key) -> Notes:
    notes = Notes({}, {})
    async for window in store.journals.read(key):
        notes.add(window)
    return notes


def as_json(key: Key, fold: Fold, found: SessionTree) -> dict[str, object]:
    """Every entry; `branches` are the ids of the entries on which nothing hangs."""
    names = [*found.ids]
    return {
        "id": key.session,
        "leaf": found.leaf,
        "branches": [names[at] for at in found.leaves()],
        "labels": fold.labels,
        "damage": fold.warnings,
        "entries": [
            {"id": name, "parentId": names[parent] if parent >= 0 else None, "type": kind, "gap": at in found.gaps}
            for at, (name, parent, kind) in enumerate(zip(names, found.parents, found.types, strict=True))
        ],
    }


def lines(found: SessionTree, rows: list[Stretch | Hidden]) -> list[str]:
    length = name_length(found, [row.last for row in rows if isinstance(row, Stretch)])
    depth = 0
    told: list[str] = []
    for row in rows:
        depth = row.depth if isinstance(row, Stretch) else depth
        told.append(_indented(depth) + (_stretch(found, row, length) if isinstance(row, Stretch) else _hidden(row)))
    return told


def _indented(depth: int) -> str:
    return "  " * depth if depth <= DEEPEST else "  " * DEEPEST + f"(depth {depth}) "


def _stretch(found: SessionTree, row: Stretch, length: int) -> str:
    """`* ID "text", 12 entries, end_turn [label] <- leaf`; ID is of its last entry, where `acpd branch` would go on."""
    mark = "*" if row.on_path else "+" if row.begins else "|"
    said = f'"{one_line(row.prompt, PROMPT)}"' if row.prompt else one_line(found.types[row.first], TYPE)
    details = [
        said,
        f"{row.entries} entries" if row.entries > 1 else "",
        f"{row.compactions} times compacted" if row.compactions > 1 else "compacted" if row.compactions else "",
        one_line(row.end, TYPE),
        "gap before it" if row.first in found.gaps else "",
    ]
    text = f"{mark} {one_line(found.ids[row.last][:length])} {', '.join(filter(None, details))}"
    return text + (f" [{one_line(row.label, LABEL)}]" if row.label else "") + (" <- leaf" if row.is_leaf else "")


def _hidden(row: Hidden) -> str:
    ends = f", {_count(row.branches, 'branch', 'branches')}" if row.branches else ""
    return f"  ... {_count(row.turns, 'turn', 'turns')}{ends}, {_count(row.entries, 'entry', 'entries')} (--all shows them)"


def summary(found: SessionTree) -> list[str]:
    return [f"{_count(len(found), 'entry', 'entries')}, {_count(len(found.leaves()), 'branch', 'branches')}"]


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"
