"""Sessions as logs that other processes have written, and who asks about them."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from acpd.needs import Store
from acpd.recall.asker import Asker
from acpd.recall.calling import call
from acpd.recall.tools import BY_NAME
from acpd.storage.contract import Key
from acpd.wire.lines import Header
from acpd_backends.stores import open_store
from tests.support.store import Json


@asynccontextmanager
async def opened(root: Path, user: str | None, backend: str = "workspace", *, recover: bool = True) -> AsyncGenerator[Store]:
    made = open_store(backend, root, user=user)
    assert made.journals is not None
    assert made.catalog is not None
    assert made.lease is not None
    store = Store(made.session, made.journals, made.catalog, made.lease)
    if recover:  # as every start does
        await store.catalog.recover(store.journals)
    try:
        yield store
    finally:
        await store.journals.close()
        await store.catalog.close()
        await store.session.close()


def user(text: str) -> list[Json]:
    return [{"type": "prompt", "prompt": [{"type": "text", "text": text}]}]


def update(kind: str, **members: object) -> Json:
    return {"type": "update", "kind": kind, "params": {"sessionId": "i", "update": {"sessionUpdate": kind, **members}}}


def agent(text: str, name: str = "m") -> list[Json]:
    return [update("agent_message_chunk", messageId=name, content={"type": "text", "text": text})]


def tool(name: str, title: str, result: str) -> list[Json]:
    """A call and what came of it; empty: nothing yet."""
    made = [update("tool_call", toolCallId=name, title=title, status="in_progress", rawInput={"x": 1})]
    content = [{"type": "content", "content": {"type": "text", "text": result}}]
    return [*made, *([update("tool_call_update", toolCallId=name, status="completed", content=content)] if result else [])]


def end() -> list[Json]:
    return [{"type": "turn", "state": "ended", "stopReason": "end_turn"}]


async def write(store: Store, key: Key, *turns: Sequence[Json], hour: int = 0) -> None:
    """A log with these lines, two a second from this hour on; the catalog knows of it what a start reads."""
    header = Header(version=1, id=key.session, cwd="/w", agent=key.agent, createdAt="2026-01-01T00:00:00.000Z", user=key.user)
    journal = await store.journals.create(key, header)
    parent = None
    for seq, line in enumerate((line for turn in turns for line in turn), 1):
        minute, second = divmod(seq // 2, 60)
        at = f"2026-01-01T{hour + minute // 60:02}:{minute % 60:02}:{second:02}.{seq % 2 * 500:03}Z"
        head = {"id": f"{key.session}-{seq}", "parentId": parent, "seq": seq, "at": at}
        parent = head["id"]
        journal.append(json.dumps({**line, **head}).encode() + b"\n")
    journal.flush()
    await journal.close()
    await store.catalog.recover(store.journals)


async def ask(store: Store, asker: Key, tool_name: str, **arguments: Any) -> str:
    """The tool's answer to this session's agent."""
    return await call(Asker(store, asker.user, asker.agent, asker.session), BY_NAME[tool_name], arguments)
