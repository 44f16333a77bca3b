"""The link to one agent: bytes in, bytes out, position, what is open both ways, and how it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from enum import Enum, auto
from functools import partial
from typing import TYPE_CHECKING, Protocol

import msgspec
from msgspec import UNSET, Raw, Struct

from acpd import errors
from acpd.agents import capabilities, services
from acpd.agents.process import Watched
from acpd.agents.textrun import TextRun
from acpd.attachment import Client, ClientCapabilities
from acpd.errors import AgentError, AgentExited, AgentTimeout, RequestError, StoreError, Unanswered
from acpd.peer import Peer
from acpd.rpc.framing import TooLong
from acpd.rpc.protocol import Params, Then
from acpd.session import LiveSession
from acpd.tasks import Tasks
from acpd.turn import Prompt
from acpd.wire import frames, splice
from acpd.wire.envelope import encode

if TYPE_CHECKING:
    from acpd.agents.local import Local

OPEN_REQUESTS = 1000
"""Requests of an agent that may wait for a client; the next is refused, so that a flood costs no memory."""
EARLY_LINES, EARLY_BYTES = 1000, 16 * 1024 * 1024
"""Updates kept for a session whose id the agent has not told yet; the last of them may be over it."""
LAST_WORDS = 0.3
"""Seconds that output may still come after the process has ended (its children can hold the pipe)."""
STDERR_TAIL = 2048


class Runtime(Protocol):
    """Where links keep what belongs to them (acpd_backends.links)."""

    def open_stderr(self, link: str, /) -> tuple[int, str]: ...
    def trim_stderr(self, link: str, /) -> None: ...
    def tail(self, link: str, size: int, /) -> bytes: ...
    def record(self, link: str, data: dict[str, object], /) -> None: ...
    def forget(self, link: str, /) -> None: ...
    def recorded(self) -> list[tuple[str, dict[str, object]]]: ...


class Mode(Enum):
    """What happens to the agent's updates."""

    EARLY = auto()
    """No session yet: kept until it is bound."""
    DROP = auto()
    """The agent replays what our log has."""
    LIVE = auto()


class _Cancel(Struct, gc=False):
    requestId: Raw


_decode_cancel = msgspec.json.Decoder(_Cancel).decode


class AgentLink:
    """See the module. Implements acpd.session.Link and is the owner of its peer."""

    def __init__(
        self, identifier: str, name: str, command: Sequence[str], runtime: Runtime, tasks: Tasks, grace: float
    ) -> None:
        self.id = identifier
        self.name = name
        self.command = tuple(command)
        self.inner = b'""'
        self.mode = Mode.EARLY
        self.session: LiveSession | None = None
        self.said = capabilities.Initialized()
        self.told = ClientCapabilities()
        """What it was told that its client can."""
        self.ended = False
        self.stderr_path = ""
        self.on_noise: Callable[[str], None] = lambda _: None
        self.on_gone: Callable[[AgentLink], None] = lambda _: None
        self.peer = Peer(self, strict=False)
        self.forwarded: dict[bytes, tuple[Client, bytes]] = {}
        """Requests of the agent that a client is answering: the client and its call's id."""
        self.terminals: dict[str, Client] = {}
        """Whose the terminals are that clients made for the agent, by their ids."""
        self.recalling = asyncio.Lock()
        """Its questions about earlier sessions are answered one after the other: each may keep a thread busy."""
        self.tasks = tasks
        self._local: Local | None = None
        self._process: Watched | None = None
        self._runtime = runtime
        self._grace = grace
        self._early: list[tuple[bytes, int]] = []
        self._early_size = 0
        self._line = b""
        self._run: TextRun | None = None
        self.peer.shortcut = self._shortcut
        self._eof = False
        self._dropping = False
        self._stopping: asyncio.Task[None] | None = None

    # -- its life

    def started(self, process: Watched) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    @property
    def gone(self) -> bool:
        """Whether its process or its output has ended, also where what it said last is not handled yet."""
        return self.ended or self._eof or (self._process is not None and self._process.code is not None)

    def on_exit(self, _code: int) -> None:
        """The process has ended: what it still wrote is read first, but not for long."""
        if not self._eof:
            asyncio.get_running_loop().call_later(LAST_WORDS, self._lost)
        else:
            self._lost()

    def on_closed(self) -> None:
        self._eof = True
        if self._process is not None and self._process.code is not None:
            self._lost()
        else:
            asyncio.get_running_loop().call_later(LAST_WORDS, self._lost)

    def _lost(self) -> None:
        if self.ended:
            return
        if self.peer.held:  # what it said before is not handled yet
            asyncio.get_running_loop().call_later(LAST_WORDS, self._lost)
            return
        self.ended = True
        self.tasks.spawn(self._say_lost(), name=f"lost:{self.id}")

    async def _say_lost(self) -> None:
        cause = await self.cause()
        if self._stopping is None:
            self._stopping = self.tasks.spawn(self._stop(), name=f"end:{self.id}")
        if self.session is not None:
            self.session.agent_lost(self, cause)

    async def cause(self) -> AgentError:
        """Why it ended, with the end of what it said on stderr."""
        try:
            tail = await asyncio.to_thread(self._runtime.tail, self.id, STDERR_TAIL)
        except StoreError:
            tail = b""
        code = self._process.code if self._process is not None else None
        how = (
            "closed its output"
            if code is None
            else f"ended with exit code {code}"
            if code >= 0
            else f"was killed by signal {-code}"
        )
        words = tail.decode(errors="replace").strip()
        text = f"agent {self.name} {how}" + (f": {words[-500:]}" if words else "")
        return AgentExited(text, hint=f"its stderr: {self.stderr_path}")

    async def stop(self) -> None:
        """EOF, SIGTERM, SIGKILL; everything that it started ends with it. Idempotent; cancelling it does not stop it."""
        self.ended = True
        if self._stopping is None:
            self._stopping = self.tasks.spawn(self._stop(), name=f"stop:{self.id}")
        await asyncio.shield(self._stopping)

    @property
    def local(self) -> Local:
        """What acpd does itself for the agent."""
        if self._local is None:
            from acpd.agents.local import Local  # of no use to a start, and to most agents

            self._local = Local(self, self._grace)
        return self._local

    async def _stop(self) -> None:
        self.peer.close()
        terminals = self._local.terminals if self._local is not None else None
        closing = self.tasks.spawn(terminals.close(), name=f"terminals:{self.id}") if terminals is not None else None
        if self._process is not None:
            await self._process.stop(self.id, self._grace)
        if closing is not None:
            await closing
        for leave in (self._runtime.trim_stderr, self._runtime.forget):
            try:
                await asyncio.to_thread(leave, self.id)
            except StoreError as error:  # the agent is stopped all the same; the next acpd clears what is left
                self.on_noise(f"its files: {error}")
        self.on_gone(self)  # last: who stops all agents waits for their files too

    # -- what the session says to it

    async def ask(self, method: str, params: bytes, *, timeout: float | None = None) -> bytes:
        """The result, mended. Raises the agent's RequestError; AgentError for what is no result of this method; AgentTimeout;
        AgentExited when it ends meanwhile.
        """
        try:
            async with asyncio.timeout(timeout):
                result = await self.peer.ask(method, params)
        except TimeoutError:
            raise AgentTimeout(
                f"agent {self.name} did not answer {method} within {timeout:g} s",
                hint=f"raise [agents] start_timeout, or look at its stderr: {self.stderr_path}",
            ) from None
        except Unanswered:
            await self._process_end()
            raise await self.cause() from None
        return _sound(method, result)

    async def _process_end(self) -> None:
        if self._process is not None:
            await self._process.exited(LAST_WORDS)

    async def ask_held(self, method: str, params: bytes, timeout: float) -> bytes:
        """As `ask`; on success nothing behind the answer is handled before `release`."""
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        def then(result: bytes | None, error: RequestError | None) -> None:
            if error is None and not future.done():
                self.hold()
                future.set_result(result or b"null")
            elif not future.done():
                future.set_exception(error or RequestError(errors.INTERNAL_ERROR, "no answer"))

        self.peer.call(method, params, then)
        result = await self._bounded(future, method, timeout)
        try:
            return _sound(method, result)
        except AgentError:
            self.release()
            raise

    async def _bounded(self, future: asyncio.Future[bytes], method: str, timeout: float) -> bytes:
        try:
            async with asyncio.timeout(timeout):
                return await future
        except TimeoutError:
            raise AgentTimeout(
                f"agent {self.name} did not answer {method} within {timeout:g} s", hint=f"its stderr: {self.stderr_path}"
            ) from None
        except Unanswered:
            await self._process_end()
            raise await self.cause() from None

    def bind(self, session: LiveSession, inner: bytes, mode: Mode = Mode.LIVE) -> None:
        """From now on its updates are this session's; the early ones that name it come first."""
        self.session = session
        self.inner = inner
        self.mode = mode
        early, self._early = self._early, []
        if mode is Mode.LIVE:
            for params, position in early:
                self._update(params, position)

    def hold(self, why: str = "", /) -> None:
        self.peer.hold(why)

    def release(self, why: str = "", /) -> None:
        self.peer.release(why)

    def prompt(self, prompt: Prompt, then: Then, /) -> None:
        if self.ended:  # and has said so already
            self.tasks.spawn(self._refuse(then), name=f"refuse:{self.id}")
        if self.gone:  # agent_lost follows
            return
        session = self.session
        primer = session.take_primer() if session is not None else ""
        params = self.translated(prompt.params)
        if primer:
            start, _ = splice.members(params)["prompt"]
            params = params[: start + 1] + b'{"type":"text","text":%b},' % encode(primer) + params[start + 1 :]

        def answered(result: bytes | None, error: RequestError | None) -> None:
            if result is not None and b'"usage"' in result:
                from acpd.wire import answers

                result = answers.prompted(result)
            if not isinstance(error, Unanswered):  # an agent that has ended says so by agent_lost, with the reason
                then(result, error)

        self.peer.call("session/prompt", params, answered)

    async def _refuse(self, then: Then) -> None:
        then(None, RequestError(errors.INTERNAL_ERROR, str(await self.cause())))

    def translated(self, params: bytes) -> bytes:
        """A client's params with the agent's own session id."""
        session = self.session
        prefix = b'{"sessionId":%b,' % session.id_json if session is not None else b""
        if prefix and params.startswith(prefix):
            return b'{"sessionId":%b,%b' % (self.inner, params[len(prefix) :])
        return splice.replace(params, "sessionId", self.inner)

    def pass_on(self, method: str, params: bytes) -> None:
        """A client's notification of an extension; dropped while the agent does not read, reported once each time."""
        if not self.peer.paused:
            self._dropping = False
            self.peer.notify(method, self.translated(params))
        elif not self._dropping:
            self._dropping = True
            self.on_noise(f"{method} and what follows it dropped: the agent does not read")

    def cancel(self) -> None:
        self.peer.notify("session/cancel", b'{"sessionId":%b}' % self.inner)

    # -- what it says (acpd.peer.Owner)

    def on_notification(self, method: str, params: Params, /) -> None:
        raw = b"{}" if params is UNSET else bytes(params)
        if method == "session/update":
            if self.mode is Mode.LIVE:
                self._update(raw, self.peer.position)
            elif self.mode is Mode.EARLY and len(self._early) < EARLY_LINES and self._early_size < EARLY_BYTES:
                self._early.append((raw, self.peer.position))
                self._early_size += len(raw)
        elif method == "$/cancel_request":
            self._withdraw(raw)
        elif self.session is not None and (method.startswith("_") or method == "elicitation/complete"):
            services.forward_notification(self, self.session, method, raw)

    def _update(self, raw: bytes, position: int) -> None:
        session = self.session
        try:
            members = frames.decode_params(raw)
        except msgspec.DecodeError as error:
            self.on_noise(f"a session/update that is none: {error}")
            return
        if session is None or not _same_text(bytes(members.sessionId), self.inner):
            named = bytes(members.sessionId)[:100].decode(errors="replace")
            self.on_noise(f"an update for a session that is not open: {named}")
            return
        session.on_update(raw, members, (self.id, position))
        shape = session.recorder.shape
        self._run = TextRun.of(shape, self._line, raw) if shape is not None else None

    def _shortcut(self, lines: Sequence[bytes | TooLong]) -> int:
        """See acpd.agents.textrun."""
        run, session = self._run, self.session
        if run is not None and session is not None and session.recorder.shape is run.shape and self.mode is Mode.LIVE:
            texts = run.texts(lines)
            if texts:
                session.recorder.again(run.shape, texts, self.peer.position, len(run.head) + len(run.tail) + 1)
                return len(texts)
        if type(lines[0]) is bytes:
            self._line = lines[0]
        return 0

    def _withdraw(self, raw: bytes) -> None:
        try:
            request = bytes(_decode_cancel(raw).requestId)
        except msgspec.DecodeError:
            return
        if self.session is not None:
            self.session.asks.withdraw(request)
        if found := self.forwarded.get(request):
            client, call = found
            client.notify("$/cancel_request", b'{"requestId":%b}' % call)
        elif self._local is not None:
            self._local.terminals.withdraw(request)

    def on_request(self, identifier: bytes, method: str, params: Params, /) -> None:
        raw = b"{}" if params is UNSET else bytes(params)
        session = self.session
        try:
            if session is None or self.mode is Mode.EARLY:
                raise RequestError(errors.METHOD_NOT_FOUND, f"{method}: no session is open yet")
            if self.peer.open_requests > OPEN_REQUESTS:
                raise RequestError(errors.INTERNAL_ERROR, f"{method}: {OPEN_REQUESTS} requests of this agent are open already")
            services.serve(self, session, identifier, method, raw)
        except RequestError as error:
            self.peer.refuse(identifier, error)

    def reply(self, identifier: bytes) -> Then:
        """Answers this request of the agent, once."""
        return partial(self._reply, identifier)

    def _reply(self, identifier: bytes, result: bytes | None, error: RequestError | None) -> None:
        self.forwarded.pop(identifier, None)
        self.peer.send(self.peer.settle(identifier, result, error))

    def on_bad_line(self, why: str, /) -> None:
        self.on_noise(why)

    def on_batch_end(self) -> None:
        if self.session is not None:
            self.session.on_batch_end()

    def on_writable(self) -> None:
        """Nothing is kept back from an agent: prompts are few, each waits for its turn, and notifications are dropped."""


def _sound(method: str, result: bytes) -> bytes:
    from acpd.wire import answers  # 4 ms, paid while an agent starts

    return answers.checked(method, result)


def _same_text(one: bytes, other: bytes) -> bool:
    if one == other:
        return True
    try:
        return bool(msgspec.json.decode(one) == msgspec.json.decode(other))
    except msgspec.DecodeError:
        return False
