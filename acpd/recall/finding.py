"""session_search: words in the sessions, by the search index, which is brought up to the logs first. Bounded in time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from acpd.errors import QueryError, StoreError
from acpd.indexing import catch_up, catch_up_all, searchable
from acpd.recall.asker import Asker, moved, refused, scope
from acpd.recall.tools import QUOTED, TOOLS, SearchArguments
from acpd.storage.contract import Row
from acpd.storage.hits import Find, Hit, Hits
from acpd.storage.queries import Query, Term, parse
from acpd.wire.texts import flat

CATCHING_UP = 3.0
"""Seconds, in which the index is brought up to the logs; what is not read by then is read in the background, or by the next."""
SEARCHING = 3.0
OWN = 32
"""Matches in the turn that asks, which are left out: so many more are looked for."""
TEXT, TITLE = 500, 100
"""Characters of a match, and of a title, at most."""
_ROLES = {"prompt": "USER", "answer": "ASSISTANT", "thought": "THOUGHT", "tool": "TOOL", "path": "FILE"}


async def search(asker: Asker, said: SearchArguments) -> str:
    """Raises RequestError for what cannot be searched, StoreError."""
    catalog = searchable(asker.store)
    query = _query(said.query)
    rows: dict[str, Row] | None = None
    with contextlib.suppress(TimeoutError, StoreError):  # where the catalog cannot be written, what is known has to do
        async with asyncio.timeout(CATCHING_UP):
            rows = await _caught_up(asker)
    agent = said.agentId or asker.agent
    find = Find(query=query, agent=agent, limit=said.maxResults + OWN, each=0)
    try:
        async with asyncio.timeout(SEARCHING):
            settled = await catalog.place(asker.session)
            found = await catalog.search(find)
            whose = await scope(asker, agent, found=bool(found.hits))
    except TimeoutError:
        raise refused(f"The search took more than {SEARCHING:g} s. Look for rarer words, or for more of them.") from None
    old = [hit for hit in found.hits if hit.row.id != asker.session or hit.seq <= (settled or 0)]
    hits = old[: said.maxResults]
    more = found.more or len(old) > len(hits)
    return f"{_told(said.query, hits, rows, more=more, found=found)}\n{whose}"


def _query(text: str) -> Query:
    """What was found by these tools before is not found again, unless it is looked for."""
    if not text.strip():
        raise refused("Error: query is required")
    try:
        query = parse(text)
    except QueryError as error:
        raise refused(f"Error: query: {error}") from None
    own = [tool.name for tool in TOOLS if tool.name not in text]
    return query._replace(unwanted=(*query.unwanted, *(Term((name,), "tool", negated=True) for name in own)))


async def _caught_up(asker: Asker) -> dict[str, Row]:
    """What was said in every session can be found. The rows of open ones as they are now, by id."""
    rows = await moved(asker)
    for row in rows:
        with contextlib.suppress(StoreError):  # a log that cannot be read stays behind
            await catch_up(asker.store, asker.key(row))
    await catch_up_all(asker.store, asker.user, gently=False)
    return {row.id: row for row in rows}


def _told(query: str, hits: Sequence[Hit], rows: Mapping[str, Row] | None, *, more: bool, found: Hits) -> str:
    """`rows`: as of `_caught_up`; None: it has not come to its end. A log that cannot be read is no reason to ask again."""
    rest = "" if found.complete else "\nSome sessions could not be read to their end.\n"
    if not found.whole or rows is None:
        rest = "\nNot everything could be searched yet: ask again in a moment.\n"
    if not hits:
        return f"No matches found for: {query}\n{rest}"
    count = "1 match" if len(hits) == 1 else f"{len(hits)} matches"
    lines = [_line(replace(hit, row=(rows or {}).get(hit.row.id, hit.row))) for hit in hits]
    if more:
        rest = f"\nThere are older ones: more words find less, maxResults shows more.\n{rest}"
    return f'Found {count} for "{query}", newest first. {QUOTED}\n\n{"".join(lines)}{rest}'


def _line(hit: Hit) -> str:
    row = hit.row
    text = flat("".join(hit.snippet), TEXT)
    title = f' "{flat(row.title, TITLE)}"' if row.title else ""
    return f"  [{row.agent}/{row.id}{title} {hit.at}] {hit.entry} — [{_ROLES[hit.scope]}]: {text}\n"
