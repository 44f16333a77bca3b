"""`acpd attach ID`: a session in a terminal, by way of the daemon: what is said appears, what is typed is a prompt.

It is a client like any other. Its input may be a pipe as well: then each line waits until the turn before it is over, and
lines answer questions where one is open.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET

import acpd
from acpd.cli import blocks, output
from acpd.cli.live import Live
from acpd.cli.questions import CANCEL, DECLINE, Form, Permission, Question
from acpd.cli.reaching import Through
from acpd.cli.showing import heading
from acpd.cli.store import exists, opened, resolve
from acpd.cli.typed import Typed
from acpd.errors import METHOD_NOT_FOUND, AcpdError, ConfigError, RequestError, SessionNotFound, Unanswered
from acpd.peer import Peer, pipe_end
from acpd.tasks import Tasks
from acpd.wire.envelope import encode

if TYPE_CHECKING:
    from acpd.cli.call import Call
    from acpd.rpc.protocol import Params
    from acpd.storage.fold import Fold
    from acpd.wire.lines import Header

LEAVE_SECONDS = 6.0
"""For what was typed last to reach the daemon; a shim gives it 5."""
HELP = "A line is a prompt, one that ends with \\ goes on. Ctrl-C cancels the turn, Ctrl-D leaves: the session goes on."
RECALLED = 1000
"""Entries, the last ones, in which the tool call of an open question is looked up that was told to nobody here."""
HELP_OBSERVER = "Only watching. Ctrl-C leaves: the session goes on."


def attach(call: Call) -> int:
    """The exit code. Raises AcpdError."""
    if call.config.standalone:
        raise ConfigError("acpd attach joins the daemon's sessions, so it cannot be standalone", hint="leave that away")
    if not exists(call.config):
        raise SessionNotFound(call.values.id)
    session, header, fold = asyncio.run(_find(call))
    through = Through(call, "attach", session)
    through.connect()
    head = [*heading(session, header, fold)]
    return asyncio.run(_follow(call, through, session, fold.cwd or header.cwd, head))


async def _find(call: Call) -> tuple[str, Header, Fold]:
    async with opened(call.config) as store:
        key = await resolve(store, call.values.id, call.config.user)
        return key.session, *await store.journals.peek(key)


async def _follow(call: Call, through: Through, session: str, cwd: str, head: list[str]) -> int:
    return await _Attached(call, through, session, head).run(cwd)


class _Attached:
    """Owner of the peer (acpd.peer.Owner)."""

    def __init__(self, call: Call, through: Through, session: str, head: list[str]) -> None:
        self._call = call
        self._out = call.out
        self._head = head
        """Told before anything else, once the session is ours."""
        self._observes: bool = call.values.observe
        self._replay = "none" if call.values.no_replay else "full"
        self._through = through
        self._session = session
        self._live = Live()
        self._peer = Peer(self, strict=False)
        self._early: list[tuple[bytes, str, Params]] = []
        """Requests that came before the session was joined."""
        self._questions: dict[bytes, Question] = {}
        """By the raw ids of their requests, oldest first. The first one is shown."""
        self._withdrawn = False
        """The question that was shown is over, and nothing was typed since: a number may be meant for it."""
        self._turns = 0
        """Prompts of ours that are not answered."""
        self._failed = False
        self._error: BaseException | None = None
        self._leave = asyncio.Event()
        self._closed = asyncio.Event()
        self._loaded = False
        self._interrupted = False
        """Ctrl-C was the last that was typed, whatever has ended since."""
        self._person = sys.stdin is not None and sys.stdin.isatty()
        self._typed: Typed | None = None
        self._input_over = False
        self._tasks = Tasks(lambda _name, _error: None)

    async def run(self, cwd: str) -> int:
        """Until the person leaves, the input is over, or there is no daemon any more. The exit code. Raises AcpdError."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self._interrupt)
        writer, _ = await loop.connect_write_pipe(lambda: self._peer, pipe_end(self._through.stdin, "wb"))
        self._peer.use_writer(writer)
        reader, _ = await loop.connect_read_pipe(lambda: self._peer, pipe_end(self._through.stdout, "rb"))
        self._peer.use_reader(reader)
        try:
            if await self._join(cwd) and not self._observes and sys.stdin is not None:
                self._typed = Typed(0, self._wants, self._line, self._ended)
                self._typed.more()
            await self._leave.wait()
        finally:
            if self._typed is not None:
                self._typed.stop()
            await self._say_goodbye(writer)
        if self._error is not None:
            raise self._error
        self._out.write(self._live.over())
        return 1 if self._failed and not self._person else 0

    async def _join(self, cwd: str) -> bool:
        """Whether the session is open now. Raises RequestError."""
        hello = {
            "protocolVersion": 1,
            "clientCapabilities": {"elicitation": {"form": {}}, "session": {"compaction": {}}},
            "clientInfo": {"name": "acpd attach", "version": acpd.__version__},
            "_meta": {"acpd.dev/start": False},
        }
        how = {"role": "observer" if self._observes else "controller", "replay": self._replay}
        load = {"sessionId": self._session, "cwd": cwd, "mcpServers": [], "_meta": {"acpd.dev/attach": how}}
        for method, params in (("initialize", hello), ("session/load", load)):
            asking = self._tasks.spawn(self._peer.ask(method, encode(params)), name=method, watched=True)
            leaving = self._tasks.spawn(self._leave.wait(), name="leave", watched=True)
            await asyncio.wait((asking, leaving), return_when=asyncio.FIRST_COMPLETED)
            leaving.cancel()
            if not asking.done():
                asking.cancel()
                return False
            try:
                await asking
            except Unanswered:
                await self._leave.wait()
                return False
        if self._replay == "none":
            await self._recall()
        self._loaded = True
        self._begin()
        self._write(self._live.over(), flush=True)  # the end of the replay
        early, self._early = self._early, []
        for each in early:
            self.on_request(*each)
        return True

    async def _recall(self) -> None:
        """What a question that is open may be about was told before us."""
        with contextlib.suppress(AcpdError):  # a question that names less is still one
            async with opened(self._call.config, recover=False) as store:
                key = await resolve(store, self._session, self._call.config.user)
                for line in await store.journals.last(key, RECALLED):
                    self._live.recall(blocks.member(blocks.parsed(line.params), "update"))

    async def _say_goodbye(self, writer: asyncio.WriteTransport) -> None:
        """What was sent reaches the daemon first."""
        self._leave.set()
        await asyncio.sleep(0)  # the peer's last write
        writer.close()
        try:
            async with asyncio.timeout(LEAVE_SECONDS):
                await self._closed.wait()
        except TimeoutError:
            pass
        self._peer.close()

    # -- acpd.peer.Owner

    def on_request(self, identifier: bytes, method: str, params: Params, /) -> None:
        said = blocks.parsed(params)
        if not self._loaded:
            self._early.append((identifier, method, params))
        elif method == "session/request_permission":
            title = self._live.title(blocks.words(said, "toolCall", "toolCallId"))
            self._asked(identifier, Permission(said, title))
        elif method == "elicitation/create":
            self._asked(identifier, Form(said))
        else:
            self._peer.refuse(identifier, RequestError(METHOD_NOT_FOUND, f"unknown method {method[:100]}"))

    def on_notification(self, method: str, params: Params, /) -> None:
        if method == "session/update":
            self._write(self._live.update(blocks.parsed(params)))
        elif method == "$/cancel_request" and params is not UNSET:
            identifier = _request_id(bytes(params))
            self._early = [each for each in self._early if each[0] != identifier]
            if identifier in self._questions:
                self._tell(["ask: no answer is needed any more"])
                self._withdrawn = self._withdrawn or next(iter(self._questions)) == identifier
                self._settle(identifier)

    def on_bad_line(self, why: str, /) -> None:
        self._tell([f"acpd: {why}"])

    def on_batch_end(self) -> None:
        self._write("", flush=True)

    def on_writable(self) -> None:
        """Nothing waits for it: a person types less than a pipe takes."""

    def on_closed(self) -> None:
        self._closed.set()
        if not self._leave.is_set():
            self._error = AcpdError(self._through.lost or "the daemon was lost")
            self._leave.set()

    # -- what is shown

    def _write(self, text: str, *, flush: bool = False) -> None:
        """A reader that has gone ends it, as it ends other commands."""
        if self._leave.is_set():
            return
        if text:
            self._begin()
        try:
            self._out.write(text)
            if flush:
                self._out.flush()
        except OSError as error:
            self._error = error
            self._leave.set()

    def _begin(self) -> None:
        """Once, before whatever is told first: who is refused is told nothing else."""
        head, self._head = self._head, []
        if head:
            self._write("".join(f"{line}\n" for line in head), flush=True)
            output.note(HELP_OBSERVER if self._observes else HELP)

    def _tell(self, lines: list[str]) -> None:
        self._write(self._live.lines(lines), flush=True)

    def _asked(self, identifier: bytes, question: Question) -> None:
        self._questions[identifier] = question
        if len(self._questions) == 1:
            self._tell(question.shown())
        self._more()

    def _settle(self, identifier: bytes) -> None:
        """This question is over; if it was the one that is shown, the next one is."""
        first = next(iter(self._questions)) == identifier
        del self._questions[identifier]
        if first and self._questions:
            self._tell(next(iter(self._questions.values())).shown())

    # -- what is typed

    def _wants(self) -> bool:
        return self._person or bool(self._questions) or not self._turns

    def _more(self) -> None:
        if self._typed is not None and self._loaded:
            self._typed.more()

    def _line(self, line: str) -> None:
        self._interrupted = False
        late, self._withdrawn = self._withdrawn and line.strip().isdigit(), False
        if self._person:
            self._live.typed()
        if late:
            self._tell(["ask: that question was over; if you mean another one, or a prompt, type it again"])
        elif line.strip() == "/quit":
            self._leave.set()
        elif line.strip() == "/cancel":
            self._cancel()
        elif self._questions:
            self._answer(line)
        elif line.rstrip() in {DECLINE, CANCEL}:
            self._tell(["ask: nothing is asked"])
        elif line.rstrip() == "/help":
            self._tell([HELP])
        elif line.strip():
            self._prompt(line)

    def _answer(self, line: str) -> None:
        identifier, question = next(iter(self._questions.items()))
        try:
            result = question.take(line)
        except ValueError as wrong:
            self._tell([f"ask: {wrong}"])
            return
        if result is None:
            self._tell(question.shown())
            return
        self._peer.answer(identifier, result)
        self._tell([f"ask: answered with {question.answer(result)}"])
        self._settle(identifier)

    def _prompt(self, text: str) -> None:
        if not self._person:
            self._write(self._live.said("you", text), flush=True)
        self._turns += 1
        params = {"sessionId": self._session, "prompt": [{"type": "text", "text": text}]}
        self._peer.call("session/prompt", encode(params), self._answered)

    def _answered(self, result: bytes | None, error: RequestError | None) -> None:
        if isinstance(error, Unanswered):
            return
        self._turns -= 1
        self._failed = self._failed or error is not None
        reason = blocks.words(_decoded(result), "stopReason") if error is None else output.one_line(str(error))
        self._tell([f"turn ended: {reason}", ""])
        self._leave_if_over()
        self._more()

    def _ended(self, error: AcpdError | None) -> None:
        """There is no more to come from stdin."""
        self._error = self._error or error
        if self._person or error is not None:
            self._leave.set()
        else:
            self._input_over = True
            self._leave_if_over()

    def _leave_if_over(self) -> None:
        """An input that is no person's has ended: its turns are waited for, and questions left to other clients."""
        if self._input_over and not self._turns:
            self._leave.set()

    def _interrupt(self) -> None:
        """Ctrl-C."""
        if self._observes or self._interrupted or not self._loaded:
            self._leave.set()
            return
        self._interrupted = True
        self._live.typed()
        self._cancel()
        what = "the turn is cancelled" if self._turns else "no turn of yours runs; one of somebody else is cancelled"
        output.note(f"{what}; Ctrl-C again leaves")

    def _cancel(self) -> None:
        self._peer.notify("session/cancel", encode({"sessionId": self._session}))


def _request_id(params: bytes) -> bytes:
    try:
        return bytes(msgspec.json.decode(params, type=dict[str, msgspec.Raw]).get("requestId", b""))
    except msgspec.DecodeError:
        return b""


def _decoded(result: bytes | None) -> Any:
    return blocks.parsed(msgspec.Raw(result)) if result is not None else None
