"""A live session: its turns, its questions, its agent. Who watches it is its audience, what it stores its recorder's.

Order of everything: appended to the log -> written -> sent. What an agent says in one read becomes one write; then each
client that reads along gets the frames. Answers leave when everything before them is durable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import msgspec
from msgspec import UNSET, Raw

from acpd import errors
from acpd.asks import Asks
from acpd.attachment import Attachment, Client, Staged
from acpd.audience import Audience
from acpd.errors import AcpdError, AgentError, RequestError, StoreError
from acpd.kept import Kept
from acpd.needs import Agents, Link, Settings, Store
from acpd.recorder import Recorder, Source
from acpd.scribe import Scribe
from acpd.storage.contract import Journal, Key
from acpd.tasks import Tasks
from acpd.turn import On, Prompt, Turn, advance, judged
from acpd.wire import blobs, frames
from acpd.wire.envelope import encode, error_object
from acpd.wire.ids import Clock, Ids
from acpd.wire.titles import first_line_title, is_command

NEVER_BEGUN = "This prompt was waiting when acpd stopped; the agent never got it. Send it again to run it."
_decode_blocks = msgspec.json.Decoder(list[Raw]).decode


class LiveSession:
    """One session whose lease this process holds. Everything runs on the event loop; plain calls unless async."""

    __slots__ = (
        "_advancing",
        "_agents",
        "_deadline",
        "_quiet",
        "_starting",
        "asks",
        "audience",
        "closed",
        "current",
        "fold",
        "header",
        "host",
        "id",
        "id_json",
        "kept",
        "key",
        "link",
        "on_idle",
        "primer",
        "primer_notice",
        "queue",
        "recorder",
        "restores_failed",
        "scribe",
        "settings",
        "setup",
        "state",
        "store",
        "tasks",
    )

    def __init__(
        self, key: Key, journal: Journal, store: Store, agents: Agents, settings: Settings, tasks: Tasks, ids: Ids, clock: Clock
    ) -> None:
        self.key = key
        self.id = key.session
        self.id_json = encode(key.session)
        self.header = journal.header
        self.fold = journal.fold
        self.store = store
        self.settings = settings
        self.tasks = tasks
        self.link: Link | None = None
        self.scribe = Scribe(journal, ids, clock, on_stuck=self._stuck, on_free=self._free, on_give_up=self._give_up)
        self.audience = Audience(key, self.id_json, store.journals, self.scribe, tasks, ask=self._ask, on_live=self._ask_again)
        self.recorder = Recorder(self.id_json, self.scribe, self.audience, tasks, self._hold_agent)
        self.kept = Kept(key, store.session, tasks)
        self.state = Turn.IDLE
        self.current: Prompt | None = None
        self.queue: list[Prompt] = []
        self.asks = Asks(self.id_json, self.recorder, self.audience, self._prompter)
        self.setup: bytes | None = None
        """The newest client's params of session/new, load or resume. Memory only: they hold secrets."""
        self.host: object = None
        """For whom an agent is started (acpd.agents.pool.Host): the newest client's. Memory only."""
        self.primer = ""
        """Text that goes before the next prompt: what a new inner session must be told."""
        self.primer_notice = ""
        """What the user is told then."""
        self.restores_failed = 0
        """How often in a row the agent ended, or said nothing, when it was to resume or load its own session."""
        self.on_idle: Callable[[], None] = lambda: None
        self.closed = False
        """Whether its agent is being stopped, or was: none is started any more."""
        self._agents = agents
        self._advancing = False
        self._starting: asyncio.Task[Link] | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._quiet: list[asyncio.Future[None]] = []

    # -- clients

    def attach(self, client: Client, setup: bytes | None = None, *, observer: bool = False) -> Attachment:
        """See Audience.attach. `setup`: the params that it came with; no agent is started with an observer's."""
        if setup is not None and not observer:
            self.setup = setup
        attachment = self.audience.attach(client, observer=observer)
        if observer:
            self.asks.take_back(client)
        return attachment

    def detach(self, client: Client) -> None:
        self.audience.detach(client)
        self.asks.left(client)

    def _ask(self, attachment: Attachment, ask: str) -> None:
        self.asks.send(attachment, ask)

    def _ask_again(self, attachment: Attachment) -> None:
        self.asks.send_all(attachment)

    def _prompter(self) -> Client | None:
        """Whose prompt is running."""
        return self.current.client if self.current is not None else None

    def setup_answer(self) -> bytes:
        """The answer to load and resume, from what is stored."""
        config = self.fold.config
        if config is None:
            return b"{}"
        members = [(b"modes", config.modes), (b"configOptions", config.configOptions)]
        return b"{%b}" % b",".join(b'"%b":%b' % (name, bytes(value)) for name, value in members if value is not UNSET)

    # -- what the agent says

    def on_update(self, params: bytes, members: frames.Params, source: Source) -> None:
        """One session/update of the agent, raw and decoded. Nothing leaves before `on_batch_end`."""
        if self.current is not None and b'"user_message_chunk"' in params and self._is_echo(members):
            return
        self.recorder.update(params, members, source)

    def _is_echo(self, members: frames.Params) -> bool:
        """Whether an agent only repeats the running prompt, which the log has already."""
        try:
            update = msgspec.json.decode(members.update, type=dict[str, object])
            prompt = msgspec.json.decode(self.current.blocks, type=list[object]) if self.current is not None else []
        except msgspec.DecodeError:
            return False
        return update.get("sessionUpdate") == "user_message_chunk" and update.get("content") in prompt

    def on_batch_end(self) -> None:
        """The agent's read is handled: write it, send it."""
        if self.audience.is_staged or self.scribe.flushed != self.fold.seq:
            self.audience.publish()
            if self.link is not None:
                self.audience.pace(self.link)

    def remember_link(self, link: Link, *, state: bytes = b"") -> None:
        """Store which agent drives the session now, under which id of its own. `state`: "adopting" until all is recorded."""
        body = b',"link":"%b","agent":%b,"inner":%b' % (link.id.encode(), encode(link.name), link.inner)
        self.scribe.fact("link", body + (b',"state":"%b"' % state if state else b""))

    def take_primer(self) -> str:
        primer, self.primer = self.primer, ""
        return primer

    # -- turns

    def prompt(self, prompt: Prompt) -> None:
        """Accept a prompt: it begins, or waits in the queue.

        Raises RequestError when the queue is full, or when the log could not be written for too long.
        """
        if self.scribe.error is not None and not self.scribe.commit() and self.scribe.gave_up:
            raise RequestError(errors.INTERNAL_ERROR, str(self.scribe.error))
        if self.state is Turn.IDLE:
            self._begin(prompt)
            return
        if len(self.queue) >= self.settings.queue:
            full = f"the queue of this session is full ({self.settings.queue} prompts): raise [sessions] queue"
            raise RequestError(errors.INTERNAL_ERROR, full)
        self.queue.append(prompt)
        self._note_queue()
        self.audience.publish()

    def _note_queue(self) -> None:
        waiting = [b'{"prompt":%b%b}' % (each.blocks, each.by_member) for each in self.queue if not each.cancelled]
        self.scribe.fact("queue", b',"prompts":[%b]' % b",".join(waiting))

    def _begin(self, prompt: Prompt) -> None:
        self.state = advance(self.state, On.PROMPTED)
        self.current = prompt
        if len(prompt.blocks) >= blobs.LIMIT:
            self.tasks.spawn(self._begin_big(prompt), name=f"blobs:{self.id}")
        else:
            self._record_prompt(prompt, prompt.blocks, ())

    async def _begin_big(self, prompt: Prompt) -> None:
        """Not a part of the conversation if its strings cannot be stored: answered so, and the next one begins."""
        text, offsets, found = await asyncio.to_thread(blobs.extract, prompt.blocks)
        try:
            await self.recorder.put_blobs(found)
        except StoreError as error:
            self.state = advance(self.state, On.ENDED)
            if prompt.cancelled:
                self._leave(prompt, b'{"stopReason":"cancelled"}', None, 0)
            else:
                self._leave(prompt, None, RequestError(errors.INTERNAL_ERROR, str(error)), 0)
        else:
            self._record_prompt(prompt, text, offsets)

    def _record_prompt(self, prompt: Prompt, text: bytes, offsets: tuple[int, ...]) -> None:
        body = b'%b%b,"prompt":%b%b' % (
            prompt.by_member,
            b',"blobs":%b' % encode(offsets) if offsets else b"",
            text,
            b',"_meta":%b' % prompt.meta if prompt.meta else b"",
        )
        written = self.recorder.branch("prompt", body)
        prompt.entry = written.id
        own = self.audience.attachment(prompt.client) if prompt.client is not None else None
        if own is not None:
            own.own.add(written.id)
        if len(self.audience.attachments) > (own is not None):
            shown = frames.prompt(self.id_json, _decode_blocks(prompt.blocks), written.seq, written.at, written.id)
            self.audience.stage(Staged(written.seq, "user_message_chunk", b"".join(shown), origin=prompt.client))
        self.recorder.turn("running", written.id)
        title = first_line_title(prompt.blocks) if self.fold.may_be_named else ""
        if title and not (self.fold.title and is_command(title)):
            self.scribe.fact("info", b',"title":%b' % encode(title))
        if self.fold.queue is not None:  # in one write with the prompt: it is never there twice, nor lost
            self._note_queue()
        if not self.audience.publish():
            self.audience.skip()  # who attaches before it is written has no frame of it
        if prompt.interrupted:
            self.recorder.tell(NEVER_BEGUN)
            self._end(prompt, "cancelled", None, None, state="interrupted")
        elif prompt.cancelled:
            self._end(prompt, "cancelled", None, None)
        else:
            self.scribe.settle(partial(self._forward, prompt))

    def _forward(self, prompt: Prompt) -> None:
        """The prompt is durable: to the agent with it, which is started first if it is not there."""
        if self.current is not prompt or self.state is not Turn.STARTING:
            return
        if self.link is None or self._starting is not None:
            self.tasks.spawn(self._start_and_send(prompt), name=f"start:{self.id}")
            return
        if self.primer_notice and not self.link.gone:
            self.recorder.tell(self.primer_notice)
            self.primer_notice = ""
            self.remember_link(self.link)  # not before: an inner session that was never told must not be resumed
            self.audience.publish()
        self.state = advance(self.state, On.SENT)
        self.link.prompt(prompt, partial(self._answered, prompt))

    async def _start_and_send(self, prompt: Prompt) -> None:
        try:
            await self.ensure_agent()
        except (AcpdError, OSError) as error:
            self._not_started(
                prompt, error if isinstance(error, RequestError) else RequestError(errors.INTERNAL_ERROR, str(error))
            )
        except Exception:  # a bug, which is logged; the prompt is answered all the same
            self._not_started(prompt, RequestError(errors.INTERNAL_ERROR, "internal error, see acpd's log"))
            raise
        else:
            self._forward(prompt)

    def _not_started(self, prompt: Prompt, error: RequestError) -> None:
        if self.current is prompt and self.state is Turn.STARTING:
            self._end(prompt, "", None, error)

    async def ensure_agent(self) -> Link:
        """The agent, started once however many ask. Raises AgentError, RequestError (the agent's own), OSError.

        Cancelling it does not stop the start.
        """
        if self.closed:
            raise AgentError(f"session {self.id} was closed meanwhile")
        if self.link is not None and self._starting is None:
            return self.link
        if self._starting is None:
            self._starting = self.tasks.spawn(self._bring_up(), name=f"agent:{self.id}", watched=True)
        return await asyncio.shield(self._starting)

    async def _bring_up(self) -> Link:
        try:
            self.link = await self._agents.bring_up(self)
        finally:
            self._starting = None
        if self.scribe.error is not None:
            self.link.hold("disk")
        self.audience.publish()
        return self.link

    @property
    def has_agent(self) -> bool:
        """Whether there is one, or one is being started."""
        return self.link is not None or self._starting is not None

    async def end_agent(self) -> None:
        """Stop the agent, also one that is only starting: who waits for that start is cancelled."""
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.wait([self._starting])
        link, self.link = self.link, None
        if link is not None:
            await link.stop()

    def _answered(self, prompt: Prompt, result: bytes | None, error: RequestError | None) -> None:
        """The agent's answer to session/prompt: what it may say is settled here."""
        if self.current is not prompt or self.state not in (Turn.RUNNING, Turn.CANCELLING):
            return
        self._end(prompt, *judged(self.state, result, error))

    def _end(
        self, prompt: Prompt, reason: str, result: bytes | None, error: RequestError | None, *, state: str = "ended"
    ) -> None:
        """Write the end of the turn; its answer leaves when that is durable."""
        self.asks.close_all("cancel" if reason == "cancelled" else "acpd")
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        said = b',"error":%b' % error_object(error) if error is not None else b',"stopReason":"%b"' % reason.encode()
        if state == "interrupted":  # nobody gave a reason to stop
            said = b""
        written = self.recorder.turn(state, prompt.entry, said)
        self.state = advance(self.state, On.ENDED)
        self.audience.publish()
        if error is None and result is None:
            result = b'{"stopReason":"%b"}' % reason.encode()
        self.scribe.settle(partial(self._leave, prompt, result, error, written.seq))

    def _leave(self, prompt: Prompt, result: bytes | None, error: RequestError | None, seq: int) -> None:
        """The turn is over and durable: answer, then the next prompt of the queue."""
        if self.kept.saving:
            done = asyncio.gather(*self.kept.saving, return_exceptions=True)
            done.add_done_callback(lambda _: self._leave(prompt, result, error, seq))
            return
        self._answer(prompt, result, error, seq)
        self.state = advance(self.state, On.SETTLED)
        self.current = None
        if not self._advancing:
            self._advance()

    def _advance(self) -> None:
        """The next prompt of the queue. One that is cancelled may be over when `_begin` returns."""
        self._advancing = True
        while self.queue and self.state is Turn.IDLE:
            self._begin(self.queue.pop(0))
        self._advancing = False
        if self.state is Turn.IDLE:
            self._settled()

    def _answer(self, prompt: Prompt, result: bytes | None, error: RequestError | None, seq: int) -> None:
        if prompt.client is None or prompt.request is None:
            return
        line = prompt.client.settle(prompt.request, result, error)
        attachment = self.audience.attachment(prompt.client)
        if attachment is not None:
            attachment.deliver(seq, line)
        else:
            prompt.client.send(line)

    def _settled(self) -> None:
        for future in self._quiet:
            if not future.done():
                future.set_result(None)
        self._quiet.clear()
        self.on_idle()

    async def idle(self) -> None:
        """Until no turn runs and none waits. Raises StoreError if its end cannot be written for too long."""
        if self.state is not Turn.IDLE:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._quiet.append(future)
            await self.scribe.unless_given_up(future)

    def cancel(self) -> None:
        """session/cancel: the running prompt and the queued ones end `cancelled`, open asks at once."""
        for waiting in self.queue:
            waiting.cancelled = True
        if self.queue:
            self._note_queue()
            self.audience.publish()
        prompt = self.current
        if prompt is None or self.state is Turn.ENDING:
            return
        if self.state is Turn.STARTING:
            prompt.cancelled = True
            if prompt.entry:
                self._end(prompt, "cancelled", None, None)
            return
        first = self.state is Turn.RUNNING
        self.state = advance(self.state, On.CANCELLED)
        if first and self.link is not None:
            self.link.cancel()
            self._deadline = asyncio.get_running_loop().call_later(self.settings.cancel_timeout, self._deaf, prompt)
        self.asks.close_all("cancel")

    def cancel_prompt(self, client: Client, request: bytes) -> bool:
        """$/cancel_request for a session/prompt: as session/cancel, for that one. Whether it is one of ours.

        One that waits is withdrawn: it never becomes part of the conversation.
        """
        for waiting in self.queue:
            if waiting.client is client and waiting.request == request:
                self.queue.remove(waiting)
                self._note_queue()
                self.audience.publish()
                self.scribe.settle(partial(self._answer, waiting, b'{"stopReason":"cancelled"}', None, self.fold.seq))
                return True
        if self.current is not None and self.current.client is client and self.current.request == request:
            self.cancel()
            return True
        return False

    def _deaf(self, prompt: Prompt) -> None:
        """The agent did not answer a cancel in time: it is stopped, and the turn ends all the same."""
        self._deadline = None
        if self.current is not prompt or self.state is not Turn.CANCELLING:
            return
        link, self.link = self.link, None
        self._end(prompt, "cancelled", None, None)
        if link is not None:
            self.tasks.spawn(link.stop(), name=f"stop:{self.id}")

    def agent_lost(self, link: Link, cause: AgentError) -> None:
        """The agent has ended by itself; all it had said before is handled."""
        if self.link is not link:
            return
        self.link = None
        self.recorder.end_message()
        prompt = self.current
        if prompt is not None and self.state is Turn.RUNNING:
            self._end(prompt, "", None, RequestError(errors.INTERNAL_ERROR, str(cause)))
        elif prompt is not None and self.state is Turn.CANCELLING:
            self._end(prompt, "cancelled", None, None)
        else:
            self.asks.close_all("acpd")
            self.audience.publish()

    def interrupt(self) -> None:
        """The client is gone and so is the turn: recorded as interrupted, nobody is answered."""
        for waiting in self.queue:
            waiting.cancelled = waiting.interrupted = True
            waiting.request = None
        prompt = self.current
        if prompt is None or self.state is Turn.ENDING:
            return
        prompt.request = None
        prompt.cancelled = prompt.interrupted = True
        if not prompt.entry:
            return  # its blobs are being stored; it ends when it is recorded
        if self.state is Turn.STARTING:
            self.recorder.tell(NEVER_BEGUN)
        else:
            if self.link is not None:
                self.link.cancel()
            self.recorder.tell("This turn was interrupted: its client or acpd ended.")
        self._end(prompt, "cancelled", None, None, state="interrupted")

    # -- trouble with the disk

    def _hold_agent(self) -> tuple[Callable[[], None], Callable[[], bool]]:
        """Nothing more of the agent is handled until the first is called. The second: whether it still is the session's."""
        link = self.link
        if link is None:
            return (lambda: None), (lambda: True)
        link.hold("blobs")
        return partial(link.release, "blobs"), lambda: self.link is link

    def _stuck(self, _error: StoreError) -> None:
        if self.link is not None:
            self.link.hold("disk")

    def _free(self) -> None:
        if self.link is not None:
            self.link.release("disk")
        self.audience.publish()

    def _give_up(self, error: StoreError) -> None:
        """The log cannot be written for too long: prompts are answered with the cause, the agent stops working."""
        failure = RequestError(errors.INTERNAL_ERROR, str(error))
        for prompt in (self.current, *self.queue):
            if prompt is not None:
                self._answer(prompt, None, failure, 0)
                prompt.request = None
        self.cancel()
