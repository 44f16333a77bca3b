"""session_list and session_history: which sessions there were, and how one of them ended. Bounded in time and size."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Raw

from acpd.errors import RequestError, SessionNotFound, StoreError
from acpd.recall.asker import Asker, moved, refused, scope
from acpd.recall.tools import MORE, QUOTED, HistoryArguments, ListArguments
from acpd.storage.contract import Key, Row
from acpd.wire.texts import flat, plain_lines

if TYPE_CHECKING:
    from acpd.storage.context import Message
    from acpd.storage.fold import Fold
    from acpd.wire.lines import Stored

SECONDS = 5.0
LISTED = 50
"""Sessions of a list."""
TITLE, FOLDER = 100, 4096
"""Characters of a title, and of a folder."""
FIRST, GROWTH = 50, 4
"""Entries, from the end, that are read at first, and how many times as many where they are too few messages."""
MOST = 16 * 1024 * 1024
"""Bytes of entries that are read, about; the first ones whatever their size."""
SHOWN = 500
"""Characters of a message, as of a tool's result."""
_ROLES = {"user": "USER", "assistant": "ASSISTANT", "tool": "TOOL", "system": "SYSTEM"}
_RUNNING = "[no result yet]"


async def sessions(asker: Asker, said: ListArguments) -> str:
    """Raises StoreError."""
    agent = said.agentId or asker.agent
    rows = {row.id: row for row in await asker.store.catalog.page(agent=agent, limit=LISTED + 1)}
    with contextlib.suppress(StoreError, TimeoutError):  # what is known has to do
        async with asyncio.timeout(SECONDS):
            rows |= {row.id: row for row in await moved(asker) if row.agent == agent and row.prompted}
    whose = await scope(asker, agent, found=bool(rows))
    if not rows:
        return f"No sessions found for agent: {agent}\n\n{whose}"
    newest = sorted(rows.values(), key=lambda row: (row.updatedAt, row.id), reverse=True)
    lines = [_listed(row, own=row.id == asker.session) for row in newest[:LISTED]]
    rest = f"\nThere are older ones than these {LISTED}: session_search finds what was said.\n" if len(newest) > LISTED else ""
    return f"Sessions for agent {agent}, newest first. {QUOTED}\n{''.join(lines)}{rest}\n{whose}"


def _listed(row: Row, *, own: bool) -> str:
    title = f'"{flat(row.title, TITLE)}"' if row.title else "(no title)"
    this = ", this session" if own else ""
    return f"  - {row.id} — {title} ({row.messages} messages, updated {row.updatedAt}, in {flat(row.cwd, FOLDER)}{this})\n"


async def history(asker: Asker, said: HistoryArguments) -> str:
    """Raises RequestError for a session that there is not, or not for who asks; StoreError."""
    agent = said.agentId or asker.agent
    row = await asker.store.catalog.get(said.sessionId)
    if row is None or row.agent != agent:
        raise await _missing(asker, said, agent)
    try:
        async with asyncio.timeout(SECONDS):
            return await _history(asker, asker.key(row), said.lastN)
    except SessionNotFound:
        raise await _missing(asker, said, agent) from None
    except TimeoutError:
        raise refused(f"Session {row.id} could not be read within {SECONDS:g} s. Ask for fewer messages.") from None


async def _missing(asker: Asker, said: HistoryArguments, agent: str) -> RequestError:
    whose = (await scope(asker, agent)).rstrip().replace("These are", "Looked for among", 1)
    return refused(f"Session not found: {said.sessionId[:200]}. session_list gives the ids of an agent's sessions. {whose}")


async def _history(asker: Asker, key: Key, count: int) -> str:
    journals = asker.store.journals
    _, fold = await journals.peek(key)
    entries = FIRST
    while True:
        lines = await journals.last(key, entries)
        messages = await asyncio.to_thread(_messages, lines, fold, own=key.session == asker.session)
        whole = len(lines) < entries
        if whole or len(messages) > count or GROWTH * _size(lines) > MOST:
            break
        entries *= GROWTH
    total = f"{len(messages)} total messages" if whole else f"{fold.messages} messages without its tools'"
    return await asyncio.to_thread(_told, key.session, total, messages, count)


def _size(lines: Sequence[Stored]) -> int:
    """Bytes, about; no entry counts as none, so that this has an end."""
    return sum(200 + sum(len(raw) for raw in (line.params, line.prompt) if isinstance(raw, Raw)) for line in lines)


def _messages(lines: Sequence[Stored], fold: Fold, *, own: bool) -> list[Message]:
    """Folded, oldest first. `own`: who asks knows what its running turn has said."""
    from acpd.storage.context import INTERRUPTED, Context, Message, decode_line, is_notice, lines_of, text_block

    context = Context()
    done = lines_of(context.feed(line for line in lines if not is_notice(line)))
    running = [] if own and fold.turn is not None else lines_of(context.finish())
    found = [line for each in done if isinstance(line := decode_line(each), Message)]
    for line in (decode_line(each) for each in running):
        if isinstance(line, Message):
            if fold.turn is not None and line.role == "tool" and line.content == [text_block(INTERRUPTED)]:
                line.content = [text_block(_RUNNING)]
            found.append(line)
    return found


def _told(session: str, total: str, messages: Sequence[Message], count: int) -> str:
    names = {call.toolCallId: call.title for message in messages for call in message.toolCalls or ()}
    texts = [_message(message, names) for message in messages[-count:]]
    return f"Session {session} ({total}, showing last {len(texts)}). {QUOTED}\n\n{''.join(texts)}"


def _message(message: Message, names: dict[str, str]) -> str:
    from acpd.storage.cuts import block_text
    from acpd.wire.blocks import blocks_decoder

    role = _ROLES[message.role]
    if message.role == "tool":
        role += f" {flat(names.get(str(message.toolCallId), ''), TITLE)}".rstrip()
    content = blocks_decoder().decode(b"[%b]" % b",".join(map(bytes, message.content)))
    text = "\n".join(map(block_text, content))
    cut = f"{text[:SHOWN]}… [truncated]" if len(text) > SHOWN else text
    quoted = f"\n{MORE}".join(plain_lines(cut))
    calls = "".join(f"\n  calls {flat(call.title, TITLE)}" for call in message.toolCalls or ())
    return f"[{role}]: {quoted}{calls}\n"
