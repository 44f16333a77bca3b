"""A call of one of the tools, whoever carries it: a link (acpd.agents.recalling) or MCP (acpd.recall.onmcp).

What cannot be done is RequestError(INVALID_PARAMS), whose message is for a model: what is wrong, and what to do instead.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from acpd.recall import finding, memory, reading
from acpd.recall.asker import Asker, refused
from acpd.recall.tools import Described

Handler = Callable[[Asker, Any], Awaitable[str]]
"""Takes who asks and the tool's arguments, its Struct of acpd.recall.tools. Raises RequestError, StoreError."""
HANDLERS: dict[str, Handler] = {
    "session_search": finding.search,
    "session_list": reading.sessions,
    "session_history": reading.history,
    "memory_search": memory.search,
    "memory_get": memory.get,
}
"""By the tools' names."""
MOST = 64 * 1024
"""Characters of an answer."""


async def call(asker: Asker, tool: Described, arguments: object) -> str:
    """The tool's answer. `arguments`: as JSON has them. Raises RequestError, StoreError."""
    try:
        said = msgspec.convert(arguments, type=tool.arguments, strict=False)
    except msgspec.ValidationError as error:
        raise refused(f"{tool.name}: {error}") from None
    text = await HANDLERS[tool.name](asker, said)
    return text if len(text) <= MOST else f"{text[:MOST]}\n[cut: ask for less at once]\n"
