"""A client that comes back over a new connection: its shim lost the daemon, or the connection to it.

What it had sent and not seen settled it sends again, under the old numbers; its sessions go on from its cursors. Nothing is
run twice: a prompt is known by the line that it was (docs/protocol.md, "The shim").
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from msgspec import UNSET

from acpd import attaching, errors
from acpd.attaching import Wanted
from acpd.cursors import Cursor
from acpd.errors import AcpdError, RequestError
from acpd.rpc.protocol import Params
from acpd.session import LiveSession
from acpd.storage.contract import Key
from acpd.turn import Prompt
from acpd.wire import messages
from acpd.wire.envelope import encode
from acpd.wire.lines import Stored

if TYPE_CHECKING:
    from acpd.attachment import Attachment
    from acpd.needs import Store
    from acpd.router import Connection

INTERRUPTED = "acpd's daemon ended while this turn ran, and the turn with it; what was said is kept. Prompt again to go on."
_PARSERS: dict[str, Callable[[Params], messages.NewSession]] = {
    "session/new": messages.parse_new,
    "session/load": messages.parse_load,
    "session/resume": messages.parse_resume,
    "session/fork": messages.parse_fork,
}


class Earlier(NamedTuple):
    """What a client says of its earlier connections. One that is new says nothing."""

    token: str = ""
    following: int = 0
    """Lines with a smaller number were sent before."""
    sessions: Mapping[str, tuple[Cursor, int | None]] = MappingProxyType({})
    """Where it stands in each, and the number of the line that attached it, if that is kept."""

    def again(self, number: int, method: str) -> Callable[[Connection, bytes, Params], Awaitable[bytes | None]] | None:
        """How to handle a request that was sent before, where that differs from one that is new."""
        if not 0 < number < self.following:
            return None
        for session_id, (cursor, line) in self.sessions.items():
            if line == number:
                return _nothing_again if cursor.replay else partial(_set_up_again, session_id, cursor, method)
        return prompt_again if method == "session/prompt" else None

    def replayed(self, session_id: str, number: int) -> Cursor | None:
        """How much of the replay that the load with this number asked for the client has got."""
        cursor, _ = self.sessions.get(session_id, (None, None))
        return cursor if cursor is not None and cursor.replay and 0 < number < self.following else None


async def _nothing_again(_connection: Connection, _identifier: bytes, _params: Params) -> bytes:
    """The line that attached a session in whose replay the client stands: the load of that replay comes again as well."""
    return b"{}"


async def _set_up_again(
    session_id: str, cursor: Cursor, method: str, connection: Connection, identifier: bytes, params: Params
) -> None:
    """The line that attached a session, which was answered. Its answer goes nowhere."""
    parse = _PARSERS.get(method)
    how = attaching.wanted(parse(params), params, replay=False, eager=connection.eager) if parse is not None else None
    attachment = await reattach(connection, session_id, cursor, how)
    connection.peer.answer(identifier, b"{}", attachment.place() if attachment is not None else b"", sets_up=True)


async def reattach(connection: Connection, session_id: str, cursor: Cursor, how: Wanted | None) -> Attachment | None:
    """Go on where the client stands. None if the session cannot be opened; who asks for it next is told why."""
    session, over = None, list[str]()
    try:
        while session is None or connection.registry.at_hand(session_id) is not session:  # somebody else closed it meanwhile
            session = await connection.registry.open(session_id)
            over = await _answered_meanwhile(session, cursor.seq)
    except AcpdError as error:
        connection.log("session not taken up again", session=session_id, text=str(error))
        return None
    observer = how is not None and how.observer
    if not observer and (connection.eager or session.host is None):
        session.host = connection.host
    setup = how.params if how is not None and (how.eager or session.setup is None) else None
    attachment = session.attach(connection, setup, observer=observer)
    attachment.cursor = attachment.seen = min(cursor.seq, session.scribe.flushed)
    attachment.skip = cursor.frames
    for ask in over:
        connection.notify("$/cancel_request", b'{"requestId":%b}' % encode(ask))
    session.audience.start(attachment)
    return attachment


async def _answered_meanwhile(session: LiveSession, after: int) -> list[str]:
    """Asks that the client may still show, and nobody waits for an answer to."""
    windows = session.store.journals.read(session.key, after=after)
    return [line.ask async for window in windows for line in window if line.type == "answer"]


async def prompt_again(connection: Connection, identifier: bytes, params: Params) -> None:
    """A prompt whose answer the client has not got: it is joined if it runs or waits, answered if it is over, else begun."""
    prompt = connection.accepted(identifier, params)
    session = await connection.attached(prompt.session)
    for known in (session.current, *session.queue):
        if known is not None and known.by == prompt.by:
            known.client, known.request = connection, identifier
            return
    found = await _end_of(session.store, session.key, prompt)
    if found is None:
        session = await connection.attached(prompt.session)  # it may have been closed meanwhile
        session.prompt(prompt)
        return
    attachment = session.audience.attachment(connection)
    if found.error is not UNSET:
        line = connection.settle(identifier, None, _error(bytes(found.error)))
    elif found.stopReason:
        line = connection.settle(identifier, b'{"stopReason":%b}' % encode(found.stopReason), None)
    else:
        line = connection.settle(identifier, None, RequestError(errors.INTERNAL_ERROR, INTERRUPTED))
    if attachment is not None:
        attachment.deliver(min(found.seq, session.scribe.flushed), line)
    else:  # closed meanwhile
        connection.send(line)


async def _end_of(store: Store, key: Key, prompt: Prompt) -> Stored | None:
    """The line that says how the turn of this prompt ended, whoever accepted it; None if nobody did."""
    entry: str | None = None
    async for window in store.journals.read(key):
        for line in window:
            if line.type == "prompt" and line.by == prompt.by:
                entry = line.id
            elif line.type == "turn" and entry is not None and line.state != "running" and line.entry in (entry, None):
                return line
    return None


class _Error(msgspec.Struct, gc=False):
    code: int
    message: str


def _error(raw: bytes) -> RequestError:
    try:
        said = msgspec.json.decode(raw, type=_Error)
    except msgspec.DecodeError:
        return RequestError(errors.INTERNAL_ERROR, INTERRUPTED)
    return RequestError(said.code, said.message, raw=raw)
