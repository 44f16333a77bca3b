"""The requests with which an agent asks acpd about its user's sessions and its own memory: `_acpd/search`, `_acpd/list`,
`_acpd/history`, `_acpd/memory/...`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from acpd.errors import INTERNAL_ERROR, INVALID_PARAMS, METHOD_NOT_FOUND, RequestError, StoreError
from acpd.recall import memory
from acpd.recall.asker import Asker
from acpd.recall.calling import call
from acpd.recall.tools import TOOLS, Described
from acpd.rpc.protocol import Then
from acpd.wire.envelope import encode

if TYPE_CHECKING:
    from acpd.agents.link import AgentLink
    from acpd.session import LiveSession

_TOOLS = {tool.method: tool for tool in TOOLS}


class _Params(Struct, gc=False):
    arguments: dict[str, Any] = {}


def serve(link: AgentLink, session: LiveSession, identifier: bytes, method: str, params: bytes) -> None:
    """Answer later. Raises RequestError for a method or params that there are not."""
    serving = _SERVED.get(method)
    if serving is None:
        raise RequestError(METHOD_NOT_FOUND, f"unknown method {method[:100]}")
    serving(link, session, identifier, method, params)


def _tool(link: AgentLink, session: LiveSession, identifier: bytes, method: str, params: bytes) -> None:
    try:
        said = msgspec.json.decode(params, type=_Params)
    except msgspec.DecodeError as error:
        raise RequestError(INVALID_PARAMS, f"{method}: {error}") from None
    asking = _answer(link, session, _TOOLS[method], said.arguments, link.reply(identifier))
    link.tasks.spawn(asking, name=f"recall:{session.id}")


async def _answer(link: AgentLink, session: LiveSession, tool: Described, arguments: dict[str, Any], then: Then) -> None:
    try:
        async with link.recalling:
            text = await call(_asker(session), tool, arguments)
    except RequestError as error:
        then(None, error)
    except StoreError as error:
        then(None, RequestError(INTERNAL_ERROR, str(error)))
    else:
        then(encode({"text": text}), None)


def _memory(link: AgentLink, session: LiveSession, identifier: bytes, method: str, params: bytes) -> None:
    """What the agent's program does with its memory."""
    link.tasks.spawn(_kept(session, method, params, link.reply(identifier)), name=f"memory:{session.id}")


async def _kept(session: LiveSession, method: str, params: bytes, then: Then) -> None:
    try:
        result = await memory.HANDLERS[method](_asker(session), params)
    except RequestError as error:
        then(None, error)
    except StoreError as error:
        then(None, RequestError(INVALID_PARAMS, str(error)))
    else:
        then(encode(result), None)


def heard(link: AgentLink, session: LiveSession, method: str, params: bytes) -> None:
    """A notification of one of the above: what is wrong with it is in the log."""

    def then(_result: bytes | None, error: RequestError | None) -> None:
        if error is not None:
            link.on_noise(f"notification {method}: {error}")

    if method in memory.HANDLERS:
        link.tasks.spawn(_kept(session, method, params, then), name=f"memory:{session.id}")


def _asker(session: LiveSession) -> Asker:
    return Asker(session.store, session.key.user, session.key.agent, session.id)


_Serving = Callable[["AgentLink", "LiveSession", bytes, str, bytes], None]
_SERVED: dict[str, _Serving] = {**dict.fromkeys(_TOOLS, _tool), **dict.fromkeys(memory.HANDLERS, _memory)}
"""By method."""
