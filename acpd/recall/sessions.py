"""session_search, session_list, session_history: texts for a model, bounded in bytes, from the logs that nothing shortens."""

from __future__ import annotations

from acpd.recall.scope import Scope


async def search(scope: Scope, query: str, agent: str | None, most: int | None) -> str:
    raise NotImplementedError


async def listed(scope: Scope, agent: str | None) -> str:
    raise NotImplementedError


async def history(scope: Scope, session_id: str, agent: str | None, most: int | None) -> str:
    raise NotImplementedError
