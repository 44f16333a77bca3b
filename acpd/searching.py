"""`_acpd/search`: words in all of the user's sessions."""

from __future__ import annotations

import asyncio
import importlib
import sys
from typing import TYPE_CHECKING

from acpd.errors import INVALID_PARAMS, QueryError, RequestError
from acpd.indexing import searchable
from acpd.listing import normal_folder
from acpd.rpc.protocol import Params
from acpd.wire import messages
from acpd.wire.envelope import encode

if TYPE_CHECKING:
    from acpd.router import Connection
    from acpd.storage.hits import Find, Hit


async def search(connection: Connection, _identifier: bytes, params: Params) -> bytes:
    """Raises RequestError(INVALID_PARAMS) that names the member. `complete` is false while not all is known that was said."""
    said = messages.parse_search(params)
    catalog = searchable(connection.registry.store)
    folders = () if said.cwd is None else (await asyncio.to_thread(normal_folder, said.cwd),)
    if "acpd.storage.hits" not in sys.modules:  # with the first search, not at the start
        await asyncio.to_thread(importlib.import_module, "acpd.storage.hits")
    find = _find(said, folders)
    known = await connection.registry.searchable()
    found = await catalog.search(find)
    complete = known and found.whole and found.complete
    return encode({"hits": [as_json(hit) for hit in found.hits], "more": found.more, "complete": complete})


def _find(said: messages.Search, folders: tuple[str, ...]) -> Find:
    from acpd.storage.hits import Find
    from acpd.storage.queries import parse

    try:
        query = parse(said.query)
    except QueryError as error:
        raise RequestError(INVALID_PARAMS, f"params.query: {error}") from None
    since, until = (None if each is None else int(each.timestamp() * 1000) for each in (said.since, said.until))
    return Find(
        query=query,
        agent=said.agent,
        folders=folders,
        since=since,
        until=until,
        best=said.best,
        limit=said.limit,
        each=said.perSession,
    )


def as_json(hit: Hit) -> dict[str, object]:
    row = hit.row
    session = {"sessionId": row.id, "title": row.title, "cwd": row.cwd, "agent": row.agent, "updatedAt": row.updatedAt}
    return {**session, "entry": hit.entry, "seq": hit.seq, "at": hit.at, "scope": hit.scope, "snippet": hit.snippet}


HANDLERS = {"_acpd/search": search}
