"""What an agent asks a person: permissions and elicitations, as durable entries.

An ask is an entry with an id of ours; that id is the request's id to every client, and the answer is an entry too.
All attached controllers are asked for a permission, the first answer wins and the others are told; an elicitation goes to
one. An observer is never asked, only told that somebody is. Nobody there: it waits. Nothing is ever granted because nobody is
there: an option that was not offered is a refusal.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from acpd import errors
from acpd.attachment import Attachment, Client, Staged
from acpd.audience import Audience
from acpd.errors import RequestError, Unanswered
from acpd.recorder import Recorder, Source
from acpd.wire import splice
from acpd.wire.envelope import encode

PERMISSION = "session/request_permission"
ELICITATION = "elicitation/create"
CANCELLED = {PERMISSION: b'{"outcome":{"outcome":"cancelled"}}', ELICITATION: b'{"action":"cancel"}'}

SHOWN = 200
"""Characters of a question that observers are told."""

Reply = Callable[[bytes | None, RequestError | None], None]
"""Answers the agent's request."""


class Option(Struct, gc=False):
    """A choice of a permission request."""

    optionId: str
    kind: str = ""


class PermissionParams(Struct, gc=False):
    """session/request_permission, as far as acpd looks."""

    options: list[Option]
    toolCall: Raw


class ElicitationParams(Struct, gc=False):
    """elicitation/create, as far as acpd looks."""

    message: str
    mode: str


class Named(Struct, gc=False):
    """A tool call, as far as a person needs to know it."""

    toolCallId: str = ""
    title: str | None = None


class Outcome(Struct, gc=False):
    outcome: str
    optionId: str | UnsetType = UNSET


class PermissionResult(Struct, gc=False):
    outcome: Outcome


class ElicitationResult(Struct, gc=False):
    action: str


_decode_permission = msgspec.json.Decoder(PermissionParams).decode
_decode_elicitation = msgspec.json.Decoder(ElicitationParams).decode
_decode_permission_result = msgspec.json.Decoder(PermissionResult).decode
_decode_elicitation_result = msgspec.json.Decoder(ElicitationResult).decode


class Ask:
    """One open question. `call` is its JSON-RPC id to clients, raw."""

    __slots__ = (
        "call",
        "clients",
        "failed",
        "id",
        "method",
        "mode",
        "options",
        "outgoing",
        "reply",
        "request",
        "seq",
        "watchers",
        "what",
    )

    def __init__(self, method: str, params: bytes, session: bytes, request: bytes, reply: Reply) -> None:
        """Raises RequestError(INVALID_PARAMS) if the agent's params are not what the method needs."""
        self.id = ""
        self.seq = 0
        self.call = b""
        self.method = method
        self.request = request
        self.reply = reply
        self.clients: list[Client] = []
        """Who is asked and has not answered."""
        self.failed: list[Client] = []
        """Who answered with an error."""
        self.watchers: list[Client] = []
        """Observers that know of it."""
        self.options: list[Option] = []
        self.mode = ""
        self.what = ""
        """What it is about, for observers."""
        from acpd.wire import asking  # 2 ms that a start need not pay

        sound = asking.checked(method, params)
        if method == PERMISSION:
            found = _decode_permission(sound)
            self.options = found.options
            self.what = _title(found.toolCall)
        else:
            form = _decode_elicitation(sound)
            self.mode = form.mode
            self.what = form.message[:SHOWN]
        self.outgoing = splice.replace(sound, "sessionId", session)

    def named(self, identifier: str, seq: int) -> None:
        self.id = identifier
        self.seq = seq
        self.call = b'"%b"' % identifier.encode()

    def may_go_to(self, client: Client) -> bool:
        return self.method == PERMISSION or self.mode in client.capabilities.elicitation

    def is_answer(self, result: bytes) -> bool:
        """Whether this can be read as one; what it says is another matter."""
        try:
            (_decode_permission_result if self.method == PERMISSION else _decode_elicitation_result)(result)
        except msgspec.DecodeError:
            return False
        return True

    def judged(self, result: bytes) -> bytes:
        """What the agent is told for this answer of a client: the answer, or a refusal if it is not one that was offered."""
        try:
            if self.method == ELICITATION:
                known = _decode_elicitation_result(result).action in ("accept", "decline", "cancel")
                return result if known else CANCELLED[ELICITATION]
            outcome = _decode_permission_result(result).outcome
        except msgspec.DecodeError:
            return CANCELLED[self.method]
        if outcome.outcome == "cancelled":
            return result
        offered = outcome.outcome == "selected" and any(option.optionId == outcome.optionId for option in self.options)
        return result if offered else self._refusal()

    def _refusal(self) -> bytes:
        for option in self.options:
            if option.kind == "reject_once":
                return b'{"outcome":{"outcome":"selected","optionId":%b}}' % msgspec.json.encode(option.optionId)
        return CANCELLED[PERMISSION]


class Asks:
    """The open questions of one session."""

    __slots__ = ("_audience", "_id", "_open", "_prompter", "_recorder")

    def __init__(self, session: bytes, recorder: Recorder, audience: Audience, prompter: Callable[[], Client | None]) -> None:
        """`session`: the session's id as JSON text; `prompter`: whose prompt is running."""
        self._id = session
        self._recorder = recorder
        self._audience = audience
        self._prompter = prompter
        self._open: dict[str, Ask] = {}

    def open(self, method: str, params: bytes, request: bytes, reply: Reply, source: Source) -> None:
        """The agent wants an answer of a person. Raises RequestError for params that no client could understand."""
        ask = Ask(method, params, self._id, request, reply)
        body = b',"src":["%b",%d],"method":%b,"params":%b' % (source[0].encode(), source[1], encode(method), params)
        written = self._recorder.entry("ask", body)
        ask.named(written.id, written.seq)
        self._open[ask.id] = ask
        self._audience.stage(Staged(written.seq, "", b"", ask=ask.id))

    def left(self, client: Client) -> None:
        """This client is gone; what it was asked stays open, and what was asked of it alone is asked of who is next."""
        for ask in list(self._open.values()):
            ask.watchers = [each for each in ask.watchers if each is not client]
            if client in ask.clients:
                ask.clients.remove(client)
            if not ask.clients:
                for attachment in self._audience.controllers:
                    if attachment.live:
                        self.send(attachment, ask.id)

    def take_back(self, client: Client) -> None:
        """This client only observes from now on: what it was asked is somebody else's."""
        for ask in self._open.values():
            if client in ask.clients:
                _forget(ask, client)
        self.left(client)

    def send_all(self, attachment: Attachment) -> None:
        """A client is there: what is open is asked of it too."""
        for identifier in list(self._open):
            self.send(attachment, identifier)

    def send(self, attachment: Attachment, identifier: str) -> None:
        """Ask one client, if the question is still open and this client's."""
        ask = self._open.get(identifier)
        client = attachment.client
        if ask is not None and attachment.observer and client not in ask.watchers:
            ask.watchers.append(client)
            self._audience.tell(attachment, "info", "A question is open", ask.what)
        if ask is None or attachment.observer or client in ask.clients or not ask.may_go_to(client):
            return
        if ask.method == ELICITATION and (ask.clients or client is not self._one_for(ask)):
            return
        ask.clients.append(client)
        if ask.seq <= attachment.seen:
            client.expect(ask.call, partial(self._answered, ask, client))
        else:
            client.call(ask.method, ask.outgoing, partial(self._answered, ask, client), ask.call, attachment.place(ask.seq))

    def _one_for(self, ask: Ask) -> Client | None:
        """Who prompted, else the longest attached that can."""
        able = [each.client for each in self._audience.controllers if ask.may_go_to(each.client)]
        prompter = self._prompter()
        return prompter if prompter in able else able[0] if able else None

    def _answered(self, ask: Ask, client: Client, result: bytes | None, error: RequestError | None) -> None:
        if ask.id not in self._open or client not in ask.clients or isinstance(error, Unanswered):
            return  # late, or the client is gone, which is no answer: see `left`
        if result is None or not ask.is_answer(result):
            ask.clients.remove(client)
            ask.failed.append(client)
            if self._may_be_answered(ask):
                return
            result = CANCELLED[ask.method]
        self._close(ask, ask.judged(result), "client", but=client)

    def _may_be_answered(self, ask: Ask) -> bool:
        """Whether somebody else is asked, or will be: a client that is behind has not come to the question yet."""
        others = [each.client for each in self._audience.controllers if each.client not in ask.failed]
        return bool(ask.clients) or (ask.method == PERMISSION and bool(others))

    def _close(self, ask: Ask, result: bytes | None, by: str, *, but: Client | None = None) -> None:
        """Record the answer, tell the agent when it is durable, and the other clients at once."""
        del self._open[ask.id]
        member = b',"result":%b' % result if result is not None else b',"error":{"code":-32800,"message":"cancelled"}'
        self._recorder.entry("answer", b',"ask":"%b","by":"%b"%b' % (ask.id.encode(), by.encode(), member))
        self._audience.publish()
        error = None if result is not None else RequestError(errors.REQUEST_CANCELLED, "cancelled")
        self._recorder.scribe.settle(partial(ask.reply, result, error))
        for client in ask.clients:
            if client is not but:
                _forget(ask, client)
        for attachment in self._audience.attachments:
            if attachment.observer and attachment.client in ask.watchers:
                self._audience.tell(attachment, "info", "The question is over", ask.what)

    def close_all(self, by: str) -> None:
        """Every open ask is answered "cancelled", which is never a yes."""
        for ask in list(self._open.values()):
            self._close(ask, CANCELLED[ask.method], by)

    def withdraw(self, request: bytes) -> None:
        """The agent cancelled a request of its own."""
        for ask in list(self._open.values()):
            if ask.request == request:
                self._close(ask, None, "agent")


def _title(call: Raw) -> str:
    """What a permission is about: the tool call's title, or its id, which an update has told before."""
    named = msgspec.json.decode(call, type=Named)
    return (named.title or f"tool call {named.toolCallId}")[:SHOWN]


def _forget(ask: Ask, client: Client) -> None:
    """It need not answer any more; what it answers all the same is late."""
    client.forget(ask.call)
    client.notify("$/cancel_request", b'{"requestId":%b}' % ask.call)
