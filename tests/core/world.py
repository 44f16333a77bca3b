"""Real machines, joined: a workspace store, a registry, clients with a pausable sink, a link that a test speaks for."""

from __future__ import annotations

import asyncio
import json
import selectors
import shutil
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Self

from acpd.attachment import Attachment, ClientCapabilities
from acpd.errors import AgentError, AgentExited, ConnectionBroken, RequestError, Unanswered
from acpd.needs import Link, Settings, Store
from acpd.registry import Registry
from acpd.rpc.protocol import Then
from acpd.session import LiveSession
from acpd.tasks import Tasks
from acpd.turn import Prompt
from acpd.wire import envelope, frames, updates
from acpd_backends.stores import open_store
from tests.backends.journal_logs import FaultyFiles
from tests.support import store as logs
from tests.support.store import Json

SECONDS = 10.0
"""How long anything may take that is awaited here."""


def dumps(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


class ClockLoop(asyncio.SelectorEventLoop):
    """The ordinary loop, whose clock a test can put forward: what was to happen meanwhile happens next."""

    def __init__(self) -> None:
        super().__init__(selectors.DefaultSelector())
        self._ahead = 0.0

    def time(self) -> float:
        return super().time() + self._ahead

    def put_forward(self, seconds: float) -> None:
        self._ahead += seconds


def put_forward(seconds: float) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, ClockLoop)
    loop.put_forward(seconds)


async def until(true: Callable[[], object]) -> None:
    """Until this is true, looked at after each pass of the loop. Raises TimeoutError."""
    deadline = time.monotonic() + SECONDS  # the loop's own clock may be put forward
    while not true():
        if time.monotonic() > deadline:
            raise TimeoutError
        await asyncio.sleep(0)


class Changes:
    """Who can be waited for."""

    async def until(self, true: Callable[[], object]) -> None:
        await until(true)


class Editor(Changes):
    """Implements acpd.attachment.Client. What reaches it is in `got`, parsed, in order; pause it and nothing may."""

    def __init__(self, capabilities: Json | None = None, *, elicits: Iterable[str] = ()) -> None:
        self.kinds = updates.allowed_kinds(dumps(capabilities) if capabilities else None)
        self.token = ""
        self.runs = False
        self.reading = asyncio.Lock()
        self.capabilities = ClientCapabilities(elicitation=frozenset(elicits))
        self.got: list[Json] = []
        self.raw: list[bytes] = []
        self.asked: dict[str, tuple[str, Json, Then]] = {}
        """Open calls by id: method, params, and what to call with the answer."""
        self.forgotten: list[str] = []
        self.closed = False
        self.most_in_flight = 0
        """Bytes of the biggest single send: what a client costs while it reads."""
        self._readable = asyncio.Event()
        self._readable.set()
        self._answered: set[bytes] = set()

    @property
    def paused(self) -> bool:
        return not self._readable.is_set()

    def pause(self) -> None:
        self._readable.clear()

    def resume(self) -> None:
        self._readable.set()

    def close(self) -> None:
        """As a connection ends: its open calls are never answered."""
        self.closed = True
        self._readable.set()
        for _, _, then in list(self.asked.values()):
            then(None, Unanswered("the connection has ended"))
        self.asked.clear()

    def send(self, data: bytes, /) -> None:
        if self.closed or not data:
            return
        assert data.endswith(b"\n")
        self.most_in_flight = max(self.most_in_flight, len(data))
        for line in data.splitlines(keepends=True):
            self.raw.append(line)
            self.got.append(json.loads(line))

    def call(self, method: str, params: bytes, then: Then, identifier: bytes | None = None, _place: bytes = b"", /) -> bytes:
        identifier = identifier or b'"call-%d"' % len(self.raw)
        self.asked[json.loads(identifier)] = (method, json.loads(params), then)
        self.send(envelope.request(identifier, method, params))
        return identifier

    def expect(self, identifier: bytes, then: Then, /) -> None:
        self.asked[json.loads(identifier)] = ("", {}, then)

    def forget(self, identifier: bytes, /) -> None:
        name = json.loads(identifier)
        self.forgotten.append(name)
        self.asked.pop(name, None)

    def notify(self, method: str, params: bytes, /) -> None:
        self.send(envelope.notification(method, params))

    def settle(self, identifier: bytes, result: bytes | None, error: RequestError | None, /) -> bytes:
        assert identifier not in self._answered, "a request was answered twice"
        self._answered.add(identifier)
        return envelope.error(identifier, error) if error else envelope.result(identifier, result or b"{}")

    async def drained(self) -> None:
        await self._readable.wait()
        if self.closed:
            raise ConnectionBroken("the connection has ended")

    # what a test asks

    def answer(self, identifier: str, result: object = None, error: RequestError | None = None) -> None:
        """Answer a call of acpd's."""
        _, _, then = self.asked.pop(identifier)
        then(None if error else dumps(result), error)

    def choose(self, identifier: str, option: str) -> None:
        self.answer(identifier, {"outcome": {"outcome": "selected", "optionId": option}})

    @property
    def updates(self) -> list[Json]:
        return [message["params"]["update"] for message in self.got if message.get("method") == "session/update"]

    @property
    def seqs(self) -> list[int]:
        """Of the frames that stand for stored lines."""
        metas = [m["params"].get("_meta", {}) for m in self.got if m.get("method") == "session/update"]
        return [meta["acpd.dev/seq"] for meta in metas if "acpd.dev/seq" in meta]

    @property
    def texts(self) -> list[str]:
        """Of all chunks, and the words `=reason` or `!code` where a request was answered, `?method` where one came."""
        found: list[str] = []
        for message in self.got:
            if message.get("method") == "session/update":
                update = message["params"]["update"]
                content = update.get("content")
                found.append(content["text"] if isinstance(content, dict) and "text" in content else update["sessionUpdate"])
            elif "result" in message:
                found.append(f"={message['result'].get('stopReason', '')}")
            elif "error" in message:
                found.append(f"!{message['error']['code']}")
            else:
                found.append(f"?{message['method']}")
        return found

    def answer_to(self, request: str) -> Json | None:
        return next((m for m in self.got if "method" not in m and m.get("id") == request), None)

    async def answered(self, request: str) -> Json:
        await self.until(lambda: self.answer_to(request) is not None)
        found = self.answer_to(request)
        assert found is not None
        return found


class Voice(Changes):
    """Implements acpd.needs.Link: the agent's side of one session, spoken for by the test."""

    def __init__(self, session: LiveSession, name: str = "link-1") -> None:
        self.id = name
        self.name = "agent"
        self.inner = b'"inner-1"'
        self.session = session
        self.prompts: list[tuple[Json, Callable[[bytes | None, RequestError | None], None]]] = []
        self.cancels = 0
        self.held: set[str] = set()
        self.stopped = False
        self.gone = False
        self.position = 0
        self.replies: list[tuple[str, object]] = []
        """What the agent was answered, in order: the name of its request, and the result or error code."""

    def prompt(self, prompt: Prompt, then: Callable[[bytes | None, RequestError | None], None], /) -> None:
        self.prompts.append((json.loads(prompt.params), then))

    def cancel(self) -> None:
        self.cancels += 1

    def hold(self, why: str, /) -> None:
        self.held.add(why)

    def release(self, why: str, /) -> None:
        self.held.discard(why)

    async def ask(self, method: str, params: bytes, /) -> bytes:
        raise AgentError(f"{method} is not what a Voice does")

    async def stop(self) -> None:
        self.stopped = True

    # what a test lets the agent do

    async def prompted(self, count: int = 1) -> None:
        """Until it has so many prompts."""
        await self.until(lambda: len(self.prompts) == count)

    def say(self, *said: Json | str, end: bool = True) -> None:
        """Updates of one read; a text is a chunk of a message."""
        assert not self.held, "an agent that is held says nothing"
        for each in said:
            update = chunk(each) if isinstance(each, str) else each
            params = dumps({"sessionId": "inner-1", "update": update})
            self.position += len(params)
            self.session.on_update(params, frames.decode_params(params), (self.id, self.position))
        if end:
            self.session.on_batch_end()

    def end(self, reason: str = "end_turn", **more: object) -> None:
        self.finish({"stopReason": reason, **more})

    def finish(self, result: object = None, error: RequestError | None = None) -> None:
        """Answer the newest prompt."""
        _, then = self.prompts[-1]
        then(None if error else dumps(result), error)

    def ask_user(self, name: str, method: str, params: Json) -> None:
        self.session.asks.open(
            method,
            dumps({"sessionId": "inner-1", **params}),
            name.encode(),
            lambda *said: self._replied(name, *said),
            (self.id, 1),
        )
        self.session.on_batch_end()

    def keep(self, name: str, value: object) -> None:
        self.session.kept.keep(name, dumps(value), lambda *said: self._replied(name, *said))

    def _replied(self, name: str, result: bytes | None, error: RequestError | None) -> None:
        self.replies.append((name, error.code if error else json.loads(result or b"null")))

    def die(self, why: str = "agent agent ended with exit code 3: oh no") -> None:
        self.session.agent_lost(self, AgentExited(why))


class Voices(Changes):
    """Implements acpd.needs.Agents. `gate` closed: a start waits; `failure` set: it raises that."""

    def __init__(self) -> None:
        self.made: list[Voice] = []
        self.starts = 0
        self.ended_starts = 0
        self.failure: BaseException | None = None
        self.gate = asyncio.Event()
        self.gate.set()

    async def bring_up(self, session: LiveSession, /) -> Link:
        self.starts += 1
        try:
            await self.gate.wait()
        finally:
            self.ended_starts += 1
        if self.failure is not None:
            raise self.failure
        self.made.append(Voice(session, f"link-{len(self.made) + 1}"))
        session.remember_link(self.made[-1])
        return self.made[-1]


class World:
    """One process's view of one store."""

    def __init__(
        self,
        root: Path,
        *,
        settings: Settings | None = None,
        sync: bool = True,
        backend: str = "workspace",
        files: FaultyFiles | None = None,
        agents: Voices | None = None,
        user: str | None = None,
    ) -> None:
        self.root = root
        self.files = files or FaultyFiles()
        opened = open_store(backend, root, user=user, sync="power" if sync else "process", files=self.files)
        assert opened.journals is not None
        assert opened.catalog is not None
        assert opened.lease is not None
        self.store = Store(opened.session, opened.journals, opened.catalog, opened.lease, opened.memory)
        self.failed: list[tuple[str, BaseException]] = []
        """Tasks that failed. A test that expects some clears it."""
        self.tasks = Tasks(lambda name, error: self.failed.append((name, error)))
        self.agents = agents or Voices()
        self.settings = settings or Settings(cancel_timeout=10.0)
        self.registry = Registry(self.store, self.agents, self.settings, self.tasks, user)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()
        if error[0] is None:
            assert [] == self.failed

    async def close(self) -> None:
        self.agents.gate.set()
        self.files.writes.clear()
        self.files.on_sync = lambda _: None
        async with asyncio.timeout(SECONDS):
            await self.registry.stop(interrupt=True)
            await self.tasks.cancel()
            await self.store.journals.close()
            await self.store.catalog.close()
            await self.store.session.close()

    # sessions

    async def new(self, cwd: str = "/tmp", agent: str = "agent") -> LiveSession:
        """A session as `session/new` leaves it: durable, with an agent that has not been started."""
        session = await self.registry.create(await self.registry.header(self.registry.new_id(), agent, cwd, (agent,)))
        session.scribe.commit()
        await session.scribe.settled()
        return session

    async def with_agent(self) -> tuple[LiveSession, Voice]:
        session = await self.new()
        await session.ensure_agent()
        return session, self.agents.made[-1]

    def log(self, session: LiveSession | str) -> logs.Log:
        """What is on disk, checked: one header, dense seq, one root, unique ids."""
        found = logs.log(self.root, session if isinstance(session, str) else session.id)
        logs.check(found)
        return found

    def crashed(self, to: Path) -> World:
        """The world after kill -9 of this one: what is in the kernel now, and nobody holds a lease."""
        shutil.copytree(self.root, to)
        return World(to)

    # the disk

    def break_disk(self) -> None:
        """From now on a write to a log fails."""
        self.files.writes = [None] * 10_000

    def mend_disk(self) -> None:
        self.files.writes = []


def chunk(text: str, kind: str = "agent_message_chunk", **more: object) -> Json:
    return {"sessionUpdate": kind, "content": {"type": "text", "text": text}, **more}


def attach(session: LiveSession, editor: Editor) -> Attachment:
    """As session/resume does."""
    attachment = session.attach(editor)
    session.audience.start(attachment)
    return attachment


async def load(session: LiveSession, editor: Editor) -> Attachment:
    """As session/load does."""
    attachment = session.attach(editor)
    attachment.cursor = 0
    await session.audience.replay(attachment)
    session.audience.start(attachment)
    return attachment


def prompt(session: LiveSession, editor: Editor | None, request: str, text: str | None = None, **more: Any) -> Prompt:
    """As session/prompt does. The prompt's own text is the request's name, if no other is given."""
    blocks = [{"type": "text", "text": text or request}]
    made = Prompt(
        params=dumps({"sessionId": session.id, "prompt": blocks, **more}),
        blocks=dumps(blocks),
        meta=None,
        client=editor,
        request=dumps(request),
    )
    session.prompt(made)
    return made
