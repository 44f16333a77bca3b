"""Requests of an agent's link about the past: method -> handler. Each is answered within SECONDS, and nothing waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

import msgspec
from msgspec import Raw, Struct

from acpd import errors
from acpd.errors import AcpdError, RequestError
from acpd.recall import memory, sessions
from acpd.recall.scope import Scope

SECONDS = 10.0
"""What a request takes at most: a model waits for it."""

T = TypeVar("T", bound=Struct)
Handler = Callable[[Scope, bytes], Awaitable[Mapping[str, object]]]
"""Takes the raw params. Raises AcpdError, whose message is for a model."""


class Params(Struct, gc=False):
    """Of each request that a tool makes. `sessionId` is the agent's own id of its session, and is not looked at here."""

    arguments: Raw = Raw(b"{}")


class SearchArguments(Struct, gc=False, forbid_unknown_fields=True):
    query: str
    agentId: str | None = None
    maxResults: int | None = None


class ListArguments(Struct, gc=False, forbid_unknown_fields=True):
    agentId: str | None = None


class HistoryArguments(Struct, gc=False, forbid_unknown_fields=True):
    sessionId: str
    agentId: str | None = None
    lastN: int | None = None


def arguments_of(params: bytes, kind: type[T]) -> T:
    """`arguments` of the params, numbers also as text. Raises RequestError that names the wrong one."""
    try:
        given = msgspec.json.decode(params, type=Params).arguments
        return msgspec.json.decode(given, type=kind, strict=False)
    except (msgspec.DecodeError, RecursionError) as error:
        raise RequestError(errors.INVALID_PARAMS, f"the arguments are not as they must be: {error}") from None


async def _search(scope: Scope, params: bytes) -> Mapping[str, object]:
    said = arguments_of(params, SearchArguments)
    return {"text": await sessions.search(scope, said.query, said.agentId, said.maxResults)}


async def _list(scope: Scope, params: bytes) -> Mapping[str, object]:
    return {"text": await sessions.listed(scope, arguments_of(params, ListArguments).agentId)}


async def _history(scope: Scope, params: bytes) -> Mapping[str, object]:
    said = arguments_of(params, HistoryArguments)
    return {"text": await sessions.history(scope, said.sessionId, said.agentId, said.lastN)}


async def _memory_search(scope: Scope, params: bytes) -> Mapping[str, object]:
    return {"text": await memory.searched(memory.of(scope), scope.key, arguments_of(params, memory.Search))}


async def _memory_get(scope: Scope, params: bytes) -> Mapping[str, object]:
    return {"text": await memory.got(memory.of(scope), scope.key, arguments_of(params, memory.Get))}


HANDLERS: dict[str, Handler] = {
    "_acpd/search": _search,
    "_acpd/list": _list,
    "_acpd/history": _history,
    "_acpd/memory/search": _memory_search,
    "_acpd/memory/get": _memory_get,
    **memory.HANDLERS,
}


async def answered(scope: Scope, method: str, params: bytes) -> Mapping[str, object]:
    """The result of one request. Raises RequestError, and nothing else that is expected; `method` is of HANDLERS."""
    try:
        async with asyncio.timeout(SECONDS):
            return await HANDLERS[method](scope, params)
    except TimeoutError:
        raise RequestError(errors.INTERNAL_ERROR, f"{method} took longer than {SECONDS:g} s: ask for less") from None
    except RequestError:
        raise
    except AcpdError as error:
        raise RequestError(errors.INVALID_PARAMS, str(error)) from None
