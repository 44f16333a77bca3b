"""`acpd tree ID`: the branches of a session, a line for each stretch between prompts, ends and forks."""

from __future__ import annotations

from typing import NamedTuple

from acpd.cli import blocks
from acpd.cli.call import Call
from acpd.cli.output import one_line
from acpd.cli.showing import ending, heading
from acpd.cli.store import exists, opened, resolve
from acpd.errors import SessionNotFound
from acpd.needs import Store
from acpd.storage.contract import Key
from acpd.storage.fold import Fold
from acpd.storage.tree import SessionTree
from acpd.wire.lines import Stored


class Stretch(NamedTuple):
    """Entries in a row: from a prompt, a root or a fork to the next one. `depth`: forks above it."""

    depth: int
    entries: list[int]


class Notes(NamedTuple):
    """What a line says beside the ids: the first line of each prompt, and how each turn ended, by entry id."""

    prompts: dict[str, str]
    ends: dict[str, str]


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
        for text in [*heading(header, fold), *lines(found, fold, await _notes(store, key)), "", *summary(found), *ending(fold)]:
            call.out.say(text)


async def _notes(store: Store, key: Key) -> Notes:
    notes = Notes({}, {})
    async for window in store.journals.read(key):
        for line in window:
            note(notes, line)
    return notes


def note(notes: Notes, line: Stored) -> None:
    if line.type == "prompt":
        notes.prompts[line.id] = one_line(blocks.prompt(line.prompt), 60)
    elif line.type == "turn" and line.state != "running":
        notes.ends[line.id] = line.stopReason or ("error" if line.state == "ended" else line.state)


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


def stretches(found: SessionTree) -> list[Stretch]:
    """Depth first, in file order, without recursion: a chain may have a million entries."""
    done: list[Stretch] = []
    roots = found.children()
    todo = [(at, int(len(roots) > 1)) for at in reversed(roots)]
    while todo:
        at, depth = todo.pop()
        entries = [at]
        children = found.children(at)
        while len(children) == 1 and found.types[children[0]] != "prompt":
            entries.append(children[0])
            children = found.children(children[0])
        done.append(Stretch(depth, entries))
        todo += [(child, depth + int(len(children) > 1)) for child in reversed(children)]
    return done


def lines(found: SessionTree, fold: Fold, notes: Notes) -> list[str]:
    on_path = set(found.path())
    return [_stretch(found, fold, notes, stretch, current=stretch.entries[0] in on_path) for stretch in stretches(found)]


def _stretch(found: SessionTree, fold: Fold, notes: Notes, stretch: Stretch, *, current: bool) -> str:
    """`* ID prompt "text", 12 entries, end_turn [label] <- leaf`; the star: on the path to the leaf."""
    names = [found.ids[at] for at in stretch.entries]
    first = stretch.entries[0]
    text = f"{'  ' * stretch.depth}{'*' if current else '|'} {found.ids[first]} {found.types[first]}"
    if (said := notes.prompts.get(found.ids[first])) is not None:
        text += f' "{said}"'
    text += f", {len(names)} entries" if len(names) > 1 else ""
    text += "".join(f", {notes.ends[name]}" for name in names if name in notes.ends)
    text += ", gap before it" if first in found.gaps else ""
    text += "".join(f" [{one_line(fold.labels[name], 40)}]" for name in names if name in fold.labels)
    return text + (" <- leaf" if found.leaf in names else "")


def summary(found: SessionTree) -> list[str]:
    branches = len(found.leaves())
    return [f"{len(found)} entries, {branches} {'branch' if branches == 1 else 'branches'}"]
