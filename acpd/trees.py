"""Requests about the tree of a session: `_acpd/tree`, `_acpd/branch`, `_acpd/label`; and where `session/fork` forks."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from acpd.errors import INVALID_PARAMS, RequestError
from acpd.rpc.protocol import Params
from acpd.session import LiveSession
from acpd.wire import messages
from acpd.wire.envelope import encode

if TYPE_CHECKING:
    from acpd.router import Connection
    from acpd.storage.fold import Fold
    from acpd.storage.outline import Hidden, Notes, Stretch
    from acpd.storage.tree import SessionTree

RUN = 200
"""Of more unremarkable turns in a row those at both ends are told: a result stays far below 8 MiB."""


class _ForkMeta(Struct, gc=False, rename={"entry": "acpd.dev/entry"}):
    entry: str | UnsetType = UNSET


def fork_entry(meta: Raw | UnsetType) -> str | None:
    """The entry that the `_meta` of session/fork names, if it names one. Raises RequestError(INVALID_PARAMS)."""
    if meta is UNSET:
        return None
    try:
        entry = msgspec.json.decode(meta, type=_ForkMeta).entry
    except msgspec.DecodeError:
        entry = ""
    if entry == "":
        raise RequestError(INVALID_PARAMS, 'params._meta["acpd.dev/entry"] must be the id or the label of an entry')
    return None if entry is UNSET else entry


async def tree(connection: Connection, _identifier: bytes, params: Params) -> bytes:
    """Reads only: it works wherever the session is open."""
    from acpd.storage.outline import Notes

    said = messages.parse_tree(params)
    registry = connection.registry
    if (session := registry.at_hand(said.sessionId)) is not None:
        session.scribe.commit()
    key = await registry.key_of(said.sessionId)
    _, fold = await registry.store.journals.peek(key)
    found = await registry.store.journals.tree(key)
    notes = Notes({}, {})
    async for window in registry.store.journals.read(key):
        notes.add(window)
    return await asyncio.to_thread(_outline, found, fold, notes)


def _outline(found: SessionTree, fold: Fold, notes: Notes) -> bytes:
    from acpd.storage.outline import Stretch, shortened, stretches

    rows = shortened(stretches(found, fold.labels, notes), RUN)
    told = [_stretch(found, row) if isinstance(row, Stretch) else _hidden(row) for row in rows]
    return encode({"leaf": found.leaf, "entries": len(found), "branches": len(found.leaves()), "rows": told})


def _stretch(found: SessionTree, row: Stretch) -> dict[str, object]:
    """The members of docs/protocol.md, "The tree"; what says nothing is left out."""
    parent = found.parents[row.first]
    said = {
        "prompt": row.prompt,
        "end": row.end,
        "label": row.label,
        "compactions": row.compactions,
        "onPath": row.on_path,
        "gap": row.first in found.gaps,
    }
    return {
        "entry": found.ids[row.last],
        "parent": found.ids[parent] if parent >= 0 else None,
        "first": found.ids[row.first],
        "entries": row.entries,
        "depth": row.depth,
        **{name: value for name, value in said.items() if value},
    }


def _hidden(row: Hidden) -> dict[str, object]:
    return {"hidden": {"turns": row.turns, "entries": row.entries, "branches": row.branches}}


async def branch(connection: Connection, _identifier: bytes, params: Params) -> bytes:
    from acpd import branching

    said = messages.parse_branch(params)
    async with _live(connection, said.sessionId) as session:
        return encode({"leaf": await branching.branch(session, said.entry)})


async def label(connection: Connection, _identifier: bytes, params: Params) -> bytes:
    from acpd import branching

    said = messages.parse_label(params)
    async with _live(connection, said.sessionId) as session:
        name = await branching.label(session, said.entry, said.label)
        return encode({"entry": name, "label": session.fold.labels.get(name)})


@contextlib.asynccontextmanager
async def _live(connection: Connection, session_id: str) -> AsyncGenerator[LiveSession]:
    """The session; if nobody here had it open, it is given up again."""
    was_open = connection.registry.at_hand(session_id) is not None
    session = await connection.registry.open(session_id)
    try:
        yield session
    finally:
        if not was_open and not session.audience.attachments:  # a task: a cancel must not leave it half closed
            connection.tasks.spawn(connection.registry.close(session.id), name=f"close:{session.id}")


HANDLERS = {"_acpd/tree": tree, "_acpd/branch": branch, "_acpd/label": label}
