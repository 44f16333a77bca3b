"""Who asks, and what the store knows at this moment: also of sessions that some process has open just now."""

from __future__ import annotations

from typing import NamedTuple

from acpd.errors import INVALID_PARAMS, RequestError
from acpd.needs import Store
from acpd.storage.contract import Key, Row

AGENTS = 20
"""Agents that are named to a model, and NAMED characters of each."""
NAMED = 100


class Asker(NamedTuple):
    """A session, whose agent asks. It sees `user`'s sessions and no others."""

    store: Store
    user: str | None
    agent: str
    session: str

    def key(self, row: Row) -> Key:
        return Key(row.agent, row.id, self.user)


def refused(text: str) -> RequestError:
    """What cannot be done, in words for a model."""
    return RequestError(INVALID_PARAMS, text)


async def scope(asker: Asker, agent: str, *, found: bool = False) -> str:
    """A line for a model: whose sessions were looked at, and whose else there are. `agent`: that was asked for; `found`:
    something of it. Raises StoreError.
    """
    there = await asker.store.catalog.agents()
    others = [name for name in there if name != agent]
    known = found or agent == asker.agent or agent in there
    whose = (
        f"These are sessions of the agent {agent[:NAMED]}." if known else f"There is no agent {agent[:NAMED]} with sessions."
    )
    if not others:
        return f"{whose} There is no other agent with sessions of this user.\n"
    more = f" and {len(others) - AGENTS} more" if len(others) > AGENTS else ""
    names = ", ".join(name[:NAMED] for name in others[:AGENTS])
    return f"{whose} {'Other agents' if known else 'Agents'} with sessions of this user (agentId): {names}{more}.\n"


async def moved(asker: Asker) -> list[Row]:
    """The rows, read from the logs, of open sessions whose log is longer than the catalog knows. Raises StoreError."""
    store = asker.store
    rows = await store.catalog.opened()
    sizes = await store.journals.sizes([asker.key(row) for row in rows])
    behind = [row for row, size in zip(rows, sizes, strict=True) if size is None or size != row.size]
    found: list[Row] = []
    async for part in store.journals.rows([asker.key(row) for row in behind]):
        found += [row for _, row in part if row is not None]
    return found
