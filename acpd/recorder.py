"""What goes into a session's log, and as what: the agent's updates, the facts, acpd's own notices.

A payload is stored as the agent wrote it. One entry is one frame; its frame is staged with it and leaves when the line
is written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
from msgspec import UNSET, Struct

from acpd.attachment import Staged
from acpd.audience import Audience
from acpd.errors import StoreError
from acpd.scribe import GIVE_UP, RETRY_EVERY, Scribe, Written
from acpd.tasks import Tasks
from acpd.wire import blobs, frames, splice, updates
from acpd.wire.envelope import encode
from acpd.wire.lines import literal

_NOBODY = ("", "")

Source = tuple[str, int]
"""The link, and the position in its output after the frame."""


class _Compaction(Struct, gc=False):
    status: str | None = None
    error: str | None = None


_decode_compaction = msgspec.json.Decoder(_Compaction).decode


class Shape(Struct, gc=False):
    """A chunk of text and all that chunks of its message share with it: what stands before and behind the text's inside."""

    kind: str
    head: bytes
    tail: bytes
    """Of the params."""
    body: bytes
    """Of its line: a format of the position behind it, and of the text."""
    frame: bytes
    """A format of the text and of the line's seq; `acpd.wire.frames.end` follows."""
    mark: bytes
    """acpd.wire.frames.BACKGROUND or nothing; a shape never outlives the beginning or the end of a turn."""

    @classmethod
    def of(
        cls, look: updates.Look, params: bytes, head: bytes, cut: int, message_id: str, session: bytes, mark: bytes
    ) -> Shape | None:
        """None where it cannot be told by its text alone. `head`: a format of what stands before the params in the line."""
        start = params.find(b'"text":"') + 8
        end = params.find(b'"', start)
        if start < 8 or look.kind == "user_message_chunk" or b"\\" in params:
            return None
        before, behind = params[:start], params[end:]
        update_tail = behind[:-1]
        if message_id:
            update_tail = frames.with_message_id(update_tail, message_id)
        body = b"%b%b%%b%b" % (head, literal(before), literal(behind))
        return cls(look.kind, before, behind, body, frames.text_format(session, before[cut:], update_tail), mark)


class Recorder:
    """Appends to one log. Plain calls; nothing leaves before `publish`.

    `hold` and `release` stop and restart what the agent says while a blob is being stored.
    """

    __slots__ = (
        "_audience",
        "_behind",
        "_hold",
        "_id",
        "_last",
        "_run",
        "_tasks",
        "error",
        "fold",
        "scribe",
        "shape",
        "tip",
        "warnings",
    )

    def __init__(
        self,
        session: bytes,
        scribe: Scribe,
        audience: Audience,
        tasks: Tasks,
        hold: Callable[[], tuple[Callable[[], None], Callable[[], bool]]],
    ) -> None:
        self.scribe = scribe
        self.fold = scribe.fold
        self.tip = scribe.fold.leaf
        """The newest entry of the newest turn: where the agent's updates hang."""
        self.error: StoreError | None = None
        """Why a big string cannot be stored that somebody waits for."""
        self.warnings = 0
        """Updates that could be sent to nobody."""
        self._id = session
        self._audience = audience
        self._tasks = tasks
        self._hold = hold
        self._behind: list[tuple[bytes, frames.Params, Source]] | None = None
        """What the agent had said already behind an update whose blobs are being stored; None: there is no such update."""
        self.shape: Shape | None = None
        """Of the newest entry, if that is a chunk of text that may go on."""
        self._last = _NOBODY
        """Kind and messageId of the newest update."""
        self._run = _NOBODY
        """Kind and messageId of the chunks that are coming without an id of the agent's."""

    # -- the tree

    def entry(self, kind: str, body: bytes, what: str = "") -> Written:
        """An entry behind the tip; it is the tip then. `what` is as for Scribe.entry."""
        written = self.scribe.entry(kind, body, self.tip, what=what)
        self.tip = written.id
        self.end_message()
        return written

    def turn(self, state: str, prompt: str, more: bytes = b"") -> Written:
        """The turn of this prompt entry has this state now."""
        return self.entry("turn", b',"state":"%b","entry":"%b"%b' % (state.encode(), prompt.encode(), more), state)

    def branch(self, kind: str, body: bytes) -> Written:
        """An entry behind the leaf, where a new turn begins."""
        self.tip = self.fold.leaf
        return self.entry(kind, body)

    def go_on_at_leaf(self) -> None:
        """The leaf was moved: nothing is added any more to where it was."""
        self.tip = self.fold.leaf
        self.end_message()

    @property
    def is_storing(self) -> bool:
        """Whether something that the agent said is on its way into the log."""
        return self._behind is not None

    def end_message(self) -> None:
        """The next chunk begins a new message."""
        self._run = self._last = _NOBODY
        self.shape = None

    def tell(self, text: str) -> None:
        """A notice in acpd's own words that stays in the conversation: stored and shown like a message."""
        update = b'{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":%b}}' % encode(f"[acpd] {text}\n\n")
        params = b'{"sessionId":%b,"update":%b,"_meta":{"acpd.dev/notice":true}}' % (self._id, update)
        self.end_message()
        self._update(params, frames.decode_params(params), updates.look(update), None)
        self.end_message()

    # -- what the agent says

    def update(self, params: bytes, members: frames.Params, source: Source) -> None:
        """One session/update of the agent."""
        if self._behind is not None:
            self._behind.append((params, members, source))
            return
        look = updates.look(bytes(members.update))
        stored = updates.stored_as(look)
        if stored is None:
            self._pass(params, members, look)
        elif stored not in ("update", "compaction"):
            self._fact(stored, params, members, look, source)
        elif len(params) < blobs.LIMIT:
            self._update(params, members, look, source, stored)
        else:
            self._big_update(params, members, look, source, stored)

    def _big_update(self, params: bytes, members: frames.Params, look: updates.Look, source: Source, stored: str) -> None:
        """Its big strings are stored first; what the agent says next waits for that."""
        release, wanted = self._hold()
        self._behind = []
        self.shape = None

        async def store() -> None:
            try:
                text, offsets, found = await asyncio.to_thread(blobs.extract, params)
                await self.put_blobs(found, wanted)
                more = b',"blobs":%b' % encode(offsets) if offsets else b""
                if wanted():
                    self._update(params, members, look, source, stored, more, text)
            finally:
                behind, self._behind = self._behind or [], None
                for said in behind if wanted() else ():
                    self.update(*said)
                self._audience.publish()
                release()

        self._tasks.spawn(store(), name="blobs")

    async def put_blobs(self, found: list[tuple[str, bytes]], wanted: Callable[[], bool] | None = None) -> None:
        """As `Journal.put_blobs`, tried again while the disk says no.

        Raises StoreError after GIVE_UP seconds; with `wanted` the owner of the scribe is told then, and it goes on for as long
        as that is true.
        """
        loop = asyncio.get_running_loop()
        patience = loop.time() + GIVE_UP
        try:
            while found and (wanted is None or wanted()):
                try:
                    return await self.scribe.journal.put_blobs(found)
                except StoreError as error:
                    self.error = error
                    if loop.time() >= patience:
                        if wanted is None:
                            raise
                        patience = float("inf")
                        self.scribe.give_up(error)
                    await asyncio.sleep(RETRY_EVERY)
        finally:
            self.error = None

    def _update(
        self,
        params: bytes,
        members: frames.Params,
        look: updates.Look,
        source: Source | None,
        stored: str = "update",
        more: bytes = b"",
        text: bytes | None = None,
    ) -> None:
        """Append one entry and stage its frame. `text` stands in the log in the place of params with blobs."""
        identifier = self.scribe.new_id()
        message_id = self._message_id(look, identifier)
        cut = frames.cut_of(params, members) if look.valid and look.sendable is not None else 0
        mark = frames.BACKGROUND if source is not None and self._in_background else b""
        known = _known(look, message_id, cut) + (b',"background":true' if mark else b"")
        head = b',"kind":%b%b%b,"params":' % (encode(look.kind), known, more)
        body = b"%b%b%b" % (_src(source), head, params if text is None else text)
        written = self.scribe.entry(stored, body, self.tip, identifier=identifier, what=look.kind)
        self.tip = identifier
        self._stage(params, members, look, written, message_id, mark)
        if look.kind == "compaction_update" and look.sendable is not None:
            self._tell_of(look.sendable)
        going_on = look.plain and cut and text is None and self._last == (look.kind, message_id or look.message_id)
        self.shape = None
        if going_on and source is not None:
            any_head = b',"src":["%b",%%d]%b' % (source[0].encode(), literal(head))
            self.shape = Shape.of(look, params, any_head, cut, message_id, self._id, mark)
        self._last = (look.kind, message_id or look.message_id)

    @property
    def _in_background(self) -> bool:
        """Whether no turn runs: what the agent says now nobody asked for. Not what it tells of a session that is adopted."""
        return self.fold.turn is None and not self.fold.adopting

    def again(self, shape: Shape, texts: list[bytes], position: int, around: int) -> None:
        """More chunks of the shape of the newest entry, of the same link: `texts` are the insides of their JSON strings.

        They came in lines of `around` bytes and the text each, from this position on in the link's output.
        """
        positions = [position := position + around + len(text) for text in texts]
        written = self.scribe.updates(shape.kind, self.tip, shape.body, positions, texts)
        self.tip = written.id
        if self._audience.is_watched:
            frame = shape.frame + frames.end(written.at, shape.mark)
            numbers = range(written.seq - len(texts) + 1, written.seq + 1)
            found = [frame % each for each in zip(texts, numbers, strict=True)]
            self._audience.stage(Staged(written.seq, shape.kind, b"".join(found), lines=len(texts)))
        else:
            self._audience.skip()

    def _message_id(self, look: updates.Look, identifier: str) -> str:
        """The id that acpd gives a chunk to which the agent gave none: the first one's of its run."""
        if look.kind not in frames.CHUNKS or look.message_id:
            self._run = _NOBODY
            return ""
        if self._run[0] != look.kind:
            self._run = (look.kind, identifier)
        return self._run[1]

    def _stage(
        self,
        params: bytes,
        members: frames.Params,
        look: updates.Look,
        written: Written,
        message_id: str,
        mark: bytes = b"",
    ) -> None:
        if look.sendable is None:
            self.warnings += 1
        elif self._audience.is_watched:
            sendable = _for_clients(look.sendable)
            frame = frames.frame(params, members, self._id, written.seq, written.at, message_id, sendable, mark)
            self._audience.stage(Staged(written.seq, look.kind, frame))
        else:
            self._audience.skip()

    def _tell_of(self, compaction: bytes) -> None:
        """One that failed is told to the clients too that know none."""
        said = _decode_compaction(compaction)
        if said.status == "failed":
            self._audience.notice("warning", "The conversation could not be summarised", said.error or "", "compaction_update")

    def _pass(self, params: bytes, members: frames.Params, look: updates.Look) -> None:
        """What is never stored: notices."""
        if look.sendable is None:
            self.warnings += 1
        else:
            frame = frames.frame(params, members, self._id, self.fold.seq, self.fold.updated_at, "", look.sendable)
            self._audience.notify(frame, look.kind)

    # -- facts

    def _fact(self, stored: str, params: bytes, members: frames.Params, look: updates.Look, source: Source) -> None:
        body = b'%b,"kind":%b' % (_src(source), encode(look.kind))
        if stored == "config":
            body += self._config(look.sendable or b"{}")
        elif stored == "info":
            body += _title(look.sendable or b"{}")
        written = self.scribe.fact(stored, body + b',"params":' + params)
        self._stage(params, members, look, written, "")

    def config(self, said: bytes) -> None:
        """Store the mode and options that an answer of the agent names, if it names any."""
        if said.startswith(b"{") and splice.members(said).keys() & {"modes", "configOptions", "currentModeId"}:
            self.scribe.fact("config", self._config(said))

    def _config(self, said: bytes) -> bytes:
        """The stored mode and options, changed by what this object says about them and is sound."""
        from acpd.wire import answers

        said = answers.settings(said)
        spans = splice.members(said)
        known = self.fold.config
        modes = bytes(known.modes) if known is not None and known.modes is not UNSET else b"null"
        options = bytes(known.configOptions) if known is not None and known.configOptions is not UNSET else b"null"
        if "modes" in spans:
            modes = said[slice(*spans["modes"])]
        if "configOptions" in spans:
            options = said[slice(*spans["configOptions"])]
        if "currentModeId" in spans and modes.startswith(b"{"):
            modes = splice.replace(modes, "currentModeId", said[slice(*spans["currentModeId"])])
        kept = [(b"modes", modes), (b"configOptions", options)]
        return b"".join(b',"%b":%b' % (name, value) for name, value in kept if value != b"null")


def _for_clients(update: bytes) -> bytes:
    """A terminal that acpd itself has is a text to every client."""
    if b'"acpd-' not in update:
        return update
    from acpd.storage import slots  # of no use to a start

    return slots.without_own_terminals(update) or update


def _known(look: updates.Look, message_id: str, cut: int) -> bytes:
    """What a replay wants to know of an update without looking into it."""
    name = look.message_id or look.tool
    return b"%b%b%b%b" % (
        b',"messageId":"%b"' % message_id.encode() if message_id else b"",
        b',"of":%b' % encode(name) if name else b"",
        b',"state":%b' % encode(look.status) if look.status else b"",
        b',"cut":%d' % cut if cut else b"",
    )


def _src(source: Source | None) -> bytes:
    return b"" if source is None else b',"src":["%b",%d]' % (source[0].encode(), source[1])


def _title(update: bytes) -> bytes:
    span = splice.members(update).get("title")
    if span is None:
        return b""
    title = update[slice(*span)]
    return b',"title":%b' % (b'""' if title == b"null" else title)
