"""One acpd on a recorded disk, and what it promises while it is used: each thing that leaves it is a mark on the disk.

A promise is about the beginning of a log, byte for byte. `power`: it outlives the machine, not only the process
(README, "What is durable when").
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from acpd import attaching
from acpd.asks import Reply
from acpd.errors import RequestError, StoreError
from acpd.needs import Link
from acpd.session import LiveSession
from acpd.turn import Prompt
from acpd_backends.catalog import SqliteCatalog
from tests.core import world as worlds
from tests.core.world import Editor, Voice, Voices, World, attach, prompt, until
from tests.crash.disk import Disk, Mark, RecordingFiles, State, Write
from tests.crash.states import kills
from tests.support.store import Json

MODES: Json = {"modes": {"currentModeId": "a", "availableModes": [{"id": "a", "name": "A"}, {"id": "b", "name": "B"}]}}
BIG = "x" * 70_000
"""A string that becomes a blob."""
_START = re.compile(rb'\{"type":"[a-z]+","id":"')


class Promise(NamedTuple):
    """These bytes are the beginning of the session's log, for good."""

    what: str
    session: str
    log: bytes
    power: bool = True


class Keeping(NamedTuple):
    """The agent has asked for this value to be kept, and (`done`) was told that it is."""

    session: str
    name: str
    value: bytes
    done: bool


class Deleting(NamedTuple):
    """The session's deletion was asked for, and (`done`) answered."""

    session: str
    done: bool


class Repairing(NamedTuple):
    """A repair of this log was asked for, and (`after`) done: that is the log now, and the damaged one is kept."""

    session: str
    before: bytes
    after: bytes | None


class Broken(NamedTuple):
    """A promise that was not true when it was made."""

    why: str


class Witness:
    """Notes on the disk what acpd promises. `folder`: of the logs, below the base."""

    def __init__(self, disk: Disk, folder: str) -> None:
        self.disk = disk
        self.folder = folder
        self.saving: list[Keeping] = []
        """Values of which the agent was not told yet. The answer of their turn says that they are kept, too."""

    def log(self, session: str) -> bytes:
        """What is in the kernel now."""
        return self.disk.text(f"{self.folder}/{session}.log.jsonl")

    def promise(self, what: str, session: str, line: Callable[[Json], bool], *, power: bool = True) -> None:
        """The log up to the last line that is meant."""
        log = self.log(session)
        lines = log.split(b"\n")[:-1]
        for at in range(len(lines) - 1, 0, -1):
            if (found := readable(lines[at])) and line(found):
                self.disk.mark(Promise(what, session, b"\n".join(lines[: at + 1]) + b"\n", power))
                return
        self.disk.mark(Broken(f"{what} left before its line was written"))

    def answered(self, what: str, session: str, size: int) -> None:
        """A request was answered: the first `size` bytes of the log are promised."""
        self.disk.mark(Promise(what, session, self.log(session)[:size]))


def parsed(line: bytes) -> Json | None:
    """The record on this line; None if it is none."""
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) and "type" in found and "id" in found else None


def readable(line: bytes) -> Json | None:
    """The record on this line, or behind what a crash left in front of it."""
    starts = [match.start() for match in _START.finditer(line)]
    return parsed(line) or (parsed(line[starts[-1] :]) if starts else None)


class Watcher(Editor):
    """An editor; what it gets is a promise."""

    def __init__(self, witness: Witness) -> None:
        super().__init__()
        self.witness = witness
        self.sent: dict[str, tuple[LiveSession, Prompt]] = {}

    def send(self, data: bytes, /) -> None:
        super().send(data)
        for line in data.splitlines():
            message = json.loads(line)
            if "acpd.dev/seq" in ((message.get("params") or {}).get("_meta") or {}):
                self._is_shown(message["params"])
            elif "result" in message and message["id"] in self.sent:
                self._is_over(*self.sent[message["id"]], message["id"])

    def _is_shown(self, params: Json) -> None:
        seq = params["_meta"]["acpd.dev/seq"]
        self.witness.promise(f"update {seq}", params["sessionId"], lambda line: line.get("seq") == seq, power=False)

    def _is_over(self, session: LiveSession, prompt: Prompt, name: str) -> None:
        def is_end(line: Json) -> bool:
            return bool(line["type"] == "turn" and line["state"] != "running" and line.get("entry") == prompt.entry)

        self.witness.promise(f"the answer to prompt {name}", session.id, is_end)
        for value in self.witness.saving:
            if value.session == session.id:
                self.witness.disk.mark(value._replace(done=True))


class Ear(Voice):
    """An agent's side; what it gets is a promise."""

    def __init__(self, witness: Witness, session: LiveSession, name: str) -> None:
        super().__init__(session, name)
        self.witness = witness
        self.keeping: dict[str, Keeping] = {}

    def prompt(self, prompt: Prompt, then: Reply, /) -> None:
        super().prompt(prompt, then)
        self.witness.promise("a prompt to the agent", self.session.id, lambda line: line["id"] == prompt.entry)

    def keep(self, name: str, value: object) -> None:
        self.keeping[name] = saving = Keeping(self.session.id, name, worlds.dumps(value), done=False)
        self.witness.disk.mark(saving)
        self.witness.saving.append(saving)
        super().keep(name, value)

    def _replied(self, name: str, result: bytes | None, error: RequestError | None) -> None:
        super()._replied(name, result, error)
        if name in self.keeping:
            self.witness.saving.remove(self.keeping[name])
            if error is None:
                self.witness.disk.mark(self.keeping[name]._replace(done=True))
        elif error is None:
            self.witness.promise(f"the answer to ask {name}", self.session.id, lambda line: line["type"] == "answer")


class Ears(Voices):
    def __init__(self, witness: Witness) -> None:
        super().__init__()
        self.witness = witness
        self.ears: list[Ear] = []

    async def bring_up(self, session: LiveSession, /) -> Link:
        ear = self.ear(session)
        session.remember_link(ear)
        return ear

    def ear(self, session: LiveSession) -> Ear:
        self.ears.append(Ear(self.witness, session, f"link-{len(self.ears) + 1}"))
        return self.ears[-1]

    def of(self, name: str) -> Ear | None:
        """Who has got this prompt."""
        return next((ear for ear in self.ears if any(_text(params) == name for params, _ in ear.prompts)), None)


def _text(params: Json) -> str:
    return str(params["prompt"][-1]["text"])


class Scene:
    """See the module. `base`: an empty folder for the disks: each acpd has its own copy."""

    def __init__(self, base: Path, *, backend: str = "workspace", sync: bool = True) -> None:
        self.base = base
        self.backend = backend
        self.sync = sync
        self.starts = 0
        self.past: list[tuple[World, RecordingFiles, Witness]] = []
        self.start(Disk(), {})

    def start(self, disk: Disk, state: State) -> None:
        """acpd on a disk that holds this."""
        self.starts += 1
        self.disk = disk
        self.since = len(disk.steps)
        root = self.base / f"disk-{self.starts}"
        put(state, root)
        self.files = RecordingFiles(disk, root)
        folder = "store/sessions" if self.backend == "json" else "store/agents/agent/sessions"
        self.witness = Witness(disk, folder)
        self.agents = Ears(self.witness)
        self.world = World(root / "store", sync=self.sync, backend=self.backend, files=self.files, agents=self.agents)
        self.past.append((self.world, self.files, self.witness))
        self.editor = Watcher(self.witness)

    async def killed(self, cut: int | None = None) -> None:
        """kill -9, of the last write only `cut` bytes done; the next acpd begins."""
        number = len(self.disk.steps)
        if cut is not None:
            number = max(n for n, step in enumerate(self.disk.steps, 1) if isinstance(step, Write))
        await self.killed_at(number, cut)

    async def killed_at(self, number: int, cut: int | None = None) -> None:
        """As `killed`, when so many steps were done."""
        crash = next(kills(self.disk, number, [cut]))
        self.start(self.disk.until(number, cut), crash.state)
        await self.recovered()

    async def lost_power(self, state: State) -> None:
        """What is promised for this case stays promised."""
        promises = [step for step in self.disk.steps if isinstance(step, Mark) and outlives(step.promise)]
        disk = Disk.of(state)
        disk.steps += promises
        self.start(disk, state)
        await self.recovered()

    async def recovered(self) -> None:
        await self.world.store.catalog.recover(self.world.store.journals)

    async def end(self) -> None:
        """Close what is open; nothing of it is recorded."""
        for world, files, witness in self.past:
            files.disk = witness.disk = files.disk.until(len(files.disk.steps))
            files.fault = None
            with contextlib.suppress(StoreError):
                await world.close()

    # What an editor asks, done as the router does it.

    async def new(self, settings: Json = MODES) -> LiveSession:
        world = self.world
        header = await world.registry.header(world.registry.new_id(), "agent", "/tmp", ("agent",))
        session = await world.registry.create(header)
        session.link = link = self.agents.ear(session)
        session.remember_link(link)
        session.recorder.config(worlds.dumps(settings))
        session.scribe.commit()
        await self.settled("session/new", session)
        attach(session, self.editor)
        return session

    async def settled(self, what: str, session: LiveSession) -> None:
        size = session.scribe.journal.size
        await session.scribe.settled()
        self.witness.answered(f"the answer to {what}", session.id, size)

    def promised(self, what: str, session: LiveSession) -> None:
        """By what has just returned: all that is written."""
        self.witness.answered(f"the answer to {what}", session.id, session.scribe.journal.size)

    async def load(self, session_id: str) -> LiveSession:
        session = await self.world.registry.open(session_id)
        attachment = session.attach(self.editor)
        attachment.cursor = 0
        await session.audience.replay(attachment)
        with attaching.reading_on(session, attachment):
            await self.settled("session/load", session)
        session.audience.start(attachment)
        return session

    async def prompted(self, session: LiveSession, name: str) -> Ear | None:
        """Who has got the prompt; None if it was answered without."""
        sent = prompt(session, self.editor, name)
        self.editor.sent[name] = (session, sent)
        await until(lambda: self.agents.of(name) or self.editor.answer_to(name))
        return self.agents.of(name)

    async def ended(self, ear: Ear, name: str) -> Json:
        """Until the blobs of what was said are stored, the agent says nothing more."""
        await until(lambda: not ear.held or self.editor.answer_to(name))
        ear.end()
        return await self.editor.answered(name)

    async def turn(self, session: LiveSession, name: str, *said: Json | str) -> Json:
        ear = await self.prompted(session, name)
        if ear is None:
            return await self.editor.answered(name)
        for each in said:
            await until(lambda: not ear.held or self.editor.answer_to(name))
            if not ear.held:
                ear.say(each)
        return await self.ended(ear, name)

    async def set_mode(self, session: LiveSession, mode: str) -> None:
        session.recorder.config(worlds.dumps({"currentModeId": mode}))
        session.scribe.commit()
        await self.settled("session/set_mode", session)

    async def saved(self, session: LiveSession) -> None:
        """What follows a turn a second later: states, context, catalog."""
        await self.world.registry._savers[session.id].save()

    async def listed(self) -> None:
        """What follows at most a minute later: sessions.json."""
        catalog = self.world.store.catalog
        assert isinstance(catalog, SqliteCatalog)
        await catalog._index.write()

    async def close(self, session: LiveSession) -> None:
        await self.world.registry.close(session.id)
        self.witness.answered("the answer to session/close", session.id, len(self.witness.log(session.id)))

    async def delete(self, session_id: str) -> None:
        self.disk.mark(Deleting(session_id, done=False))
        await self.world.registry.delete(session_id)
        self.disk.mark(Deleting(session_id, done=True))

    async def fork(self, source: LiveSession) -> LiveSession:
        session = await self.world.registry.fork(source.id, "/tmp", ())
        attach(session, self.editor)
        self.witness.answered("the answer to session/fork", session.id, len(self.witness.log(session.id)))
        return session


def put(state: State, root: Path) -> None:
    """Make these files below this folder."""
    root.mkdir(parents=True)
    for path in sorted(state):
        data = state[path]
        if data is None:
            (root / path).mkdir(mode=0o700)
        else:
            (root / path).write_bytes(data)


def outlives(promise: object) -> bool:
    """Whether a loss of power leaves it a promise."""
    return not isinstance(promise, Promise) or promise.power
