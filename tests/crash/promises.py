"""What acpd promised, held against a disk after a crash: the store is opened as anybody would, and used.

The table is the README's, "What is durable when"; the order of opening is docs/architecture.md's, "Recovery".
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from acpd.errors import SessionNotFound, SessionReadOnly, StoreError
from acpd.session import LiveSession
from acpd.storage.contract import Key
from acpd.storage.tree import load as load_lines
from acpd_backends.jsonl import JsonlJournals
from acpd_backends.logfile import LogFile, LogPaths
from tests.backends.journal_logs import plain
from tests.core.world import Editor, World, load, prompt, until
from tests.crash import searched
from tests.crash.disk import Disk, Mark, Truncate, Write
from tests.crash.scene import Broken, Deleting, Keeping, Promise, Repairing, parsed, put, readable
from tests.crash.states import Crash
from tests.support.fold import fold
from tests.support.walk import below, contents

AGAIN = "goes on"
"""The prompt that each recovered session gets."""


class Violation(Exception):
    """A promise that is broken; the text says which, and for what."""


class Session(Struct):
    """What is promised of one session."""

    log: bytes = b""
    what: str = ""
    """The newest thing that left with these bytes in the log."""
    kept: dict[str, bytes] = field(default_factory=dict)
    keeping: dict[str, list[bytes]] = field(default_factory=dict)
    """What may stand in the place of a kept value, because nobody was told yet."""
    deleting: bool = False
    deleted: bool = False
    repair: Repairing | None = None


def expected(disk: Disk, number: int, *, power: bool) -> dict[str, Session]:
    """What was promised in the first `number` steps for this kind of crash. Raises Violation for what was broken at once."""
    found: dict[str, Session] = {}
    for step in disk.steps[:number]:
        promise = step.promise if isinstance(step, Mark) else None
        if isinstance(promise, Broken):
            raise Violation(promise.why)
        if isinstance(promise, Promise | Keeping | Deleting | Repairing):
            _add(found.setdefault(promise.session, Session()), promise, power=power)
    return found


def _add(session: Session, promise: Promise | Keeping | Deleting | Repairing, *, power: bool) -> None:
    if isinstance(promise, Repairing):
        session.repair = promise
    elif isinstance(promise, Promise):
        if (promise.power or not power) and len(promise.log) > len(session.log):
            session.log, session.what = promise.log, promise.what
    elif isinstance(promise, Deleting):
        session.deleting, session.deleted = True, promise.done
    elif promise.done:
        session.kept[promise.name] = promise.value
        session.keeping[promise.name] = []
    else:
        session.keeping.setdefault(promise.name, []).append(promise.value)


def written(disk: Disk, number: int) -> set[bytes]:
    """Every line that was ever written to a file."""
    files: dict[int, bytes] = dict(disk.base[1])
    for step in disk.steps[:number]:
        if isinstance(step, Write):
            files[step.inode] = files.get(step.inode, b"") + step.data
        elif isinstance(step, Truncate):  # a torn tail: what follows begins a line
            files[step.inode] = files.get(step.inode, b"") + b"\n"
    return {line for data in files.values() for line in data.split(b"\n")}


class Check:
    """One crash. `base`: an empty folder."""

    def __init__(self, crash: Crash, promised: dict[str, Session], lines: set[bytes], base: Path, backend: str) -> None:
        self.crash = crash
        self.promised = promised
        self.lines = lines
        self.searches = True
        """Whether to look also at what a search finds, which costs as much as all else."""
        self.base = base
        put(crash.state, base)
        self.world = World(base / "store", backend=backend)
        self.before = {
            os.path.basename(path).removesuffix(".log.jsonl"): data or b""
            for path, data in crash.state.items()
            if path.endswith(".log.jsonl")
        }

    async def run(self) -> None:
        """Raises Violation."""
        try:
            await self.world.store.catalog.recover(self.world.store.journals)
            self._logs()
            await self._listing()
            await self._found()
            await self._forgotten()
            for name in sorted({*self.promised, *self.before}):
                await self._session(name, self.promised.get(name, Session()))
        finally:
            await self.world.close()
        if self.world.failed:
            raise Violation(f"a task failed: {self.world.failed}")

    def _logs(self) -> None:
        """What was promised is there."""
        for name, session in self.promised.items():
            if not session.log or session.deleting:
                continue
            if name not in self.before:
                raise Violation(f"{session.what} left, and the log is not there")
            if not self.before[name].startswith(session.log):
                raise Violation(f"{session.what} left, and a part of the log before it is lost")
            if session.repair is not None:
                self._repair(session.repair)

    def _repair(self, repair: Repairing) -> None:
        """The damaged log, or a copy in its place and the damaged one beside it; of a repair that was answered the copy."""
        now = self.before[repair.session]
        kept = contents(self.base, f"{repair.session}.log.jsonl.damaged-*").values()
        if now != repair.before and repair.before not in kept:
            raise Violation("a repaired copy has the log's place, and the damaged log is not kept")
        if repair.after is not None and not now.startswith(repair.after):
            raise Violation("a repair was answered, and its copy is not there")

    async def _listing(self) -> None:
        rows = {row.id: row for row in await self.world.store.catalog.page()}
        for name, session in self.promised.items():
            if not session.deleting and b'"type":"prompt"' in session.log and name not in rows:
                raise Violation(f"session {name} was prompted and is not listed")
            if session.deleted and name in rows:
                raise Violation(f"session {name} was deleted and is listed")
        for name, row in rows.items():
            if row.cwd != (folder := _folder(self.before.get(name, b""))):
                raise Violation(f"session {name} is listed in {row.cwd} and is in {folder}")

    async def _found(self) -> None:
        if not self.searches:
            return
        logs = {name: session.log for name, session in self.promised.items() if session.deleted or not session.deleting}
        deleted = {name for name, session in self.promised.items() if session.deleted}
        for fault in await searched.faults(self.world.store, logs, deleted):
            raise Violation(fault)

    async def _forgotten(self) -> None:
        """A day later, what nobody ever prompted is removed; here at once, of what somebody has prompted."""
        for row in await self.world.store.catalog.unprompted("9999"):
            if b'"type":"prompt"' in self.promised.get(row.id, Session()).log:
                await self.world.registry._once_deleted(row.id, unprompted=True)

    async def _session(self, name: str, promised: Session) -> None:
        if promised.deleting:
            await self._deleted(name, promised)
            return
        key = Key("agent", name)
        was_open = name in self.before and await self._same_by_index(key)
        try:
            session = await self.world.registry.open(name)
        except StoreError as error:
            if promised.log:
                raise Violation(f"after {promised.what} the session cannot be opened: {error}") from error
            if not isinstance(error, SessionNotFound | SessionReadOnly):
                raise Violation(f"an unknown session cannot be opened: {error!r}") from error
            return
        after = self._text(key)
        self._log(name, after)
        if was_open and _last(after, "turn").get("state") != "interrupted":
            raise Violation("a turn that was running is not interrupted")
        await self._opened(session, after, promised)
        if session.link is not None:
            raise Violation("an agent was started, and nobody had asked for one")
        await self._goes_on(session, promised)

    def _text(self, key: Key) -> bytes:
        return Path(self.world.store.journals.log_path(key)).read_bytes()

    async def _deleted(self, name: str, promised: Session) -> None:
        """What was deleted is gone; what was to be deleted is, when that is asked for again."""
        if promised.deleted and name in self.before:
            raise Violation(f"session {name} was deleted and its log is there")
        with contextlib.suppress(SessionNotFound, SessionReadOnly):  # half deleted it may be opened, or not
            await load(await self.world.registry.open(name), Editor())
        await self.world.registry.delete(name)
        left = [path for path in below(self.base) if name in path.name]
        if left:
            raise Violation(f"the deletion of session {name} was answered and left {left[0].name}")
        if promised.deleted and await self.world.store.session.names(Key("agent", name)):
            raise Violation(f"session {name} was deleted and its states are there")

    async def _same_by_index(self, key: Key) -> bool:
        """The log says the same by its index, without one, and read whole. Whether a turn of it is open."""
        journals = self.world.store.journals
        assert isinstance(journals, JsonlJournals)
        paths = journals.paths(key)
        found = await self._by(key)
        aside = paths.index.with_name("aside")
        if paths.index.exists():
            paths.index.rename(aside)
            if found != await self._by(key):
                raise Violation("the log says something else by its index file than without it")
            aside.rename(paths.index)
        if await asyncio.to_thread(_read_whole, paths) != found:
            raise Violation("the log says something else by an index than read whole")
        return found[0]["turn"] is not None

    async def _by(self, key: Key) -> tuple[Any, list[str]]:
        journals = self.world.store.journals
        _, found = await journals.peek(key)
        lines = [line.id async for window in journals.path(key) for line in window if line.type != "gap"]
        return _said(plain(found)), lines

    def _log(self, name: str, after: bytes) -> None:
        """There is nothing but what was written, and opening it has changed nothing of that."""
        before = self.before[name]
        *whole, tail = before.split(b"\n")
        for line in whole:
            if parsed(line) is not None and line not in self.lines and not _spliced(line):
                raise Violation(f"a line that nobody wrote: {line[:200]!r}")
        seqs = [line["seq"] for line in map(parsed, whole) if line is not None and "seq" in line]
        if seqs != sorted(set(seqs)):
            raise Violation(f"the lines are not in the order in which they were written: {seqs}")
        *lines, rest = after.split(b"\n")
        if rest or lines[: len(whole)] != whole:
            raise Violation("opening a log changed whole lines of it")
        added = lines[len(whole) :]
        ended = bool(tail) and added[:1] == [tail]  # it only lacked its newline
        if any(parsed(line) is None for line in added[ended:]):
            raise Violation("a line was appended behind a torn one")
        if tail and not ended and not self._aside(name, tail):
            raise Violation("a torn tail was thrown away")

    def _aside(self, name: str, tail: bytes) -> bool:
        return tail in contents(self.base, f"{name}.log.jsonl.torn-*").values()

    async def _opened(self, session: LiveSession, after: bytes, promised: Session) -> None:
        fold_ = session.fold
        if fold_.turn is not None or fold_.asks or fold_.queue is not None:
            raise Violation("a turn, a question or a queue of a dead acpd is still open")
        tree = await self.world.store.journals.tree(session.key)
        missing = [finding for finding in tree.findings if finding.kind == "missing-blob"]
        if missing:
            raise Violation(f"line {missing[0].line} names a blob that is not there")
        config = _last(after, "config")
        said = {name: config[name] for name in ("modes", "configOptions") if name in config} if config else {}
        if json.loads(session.setup_answer()) != said:
            raise Violation(f"the mode is said to be {session.setup_answer()!r} and the log says {said}")
        values = await session.kept.all()
        for name, value in promised.kept.items():
            if values.get(name) not in (value, *promised.keeping[name]):
                raise Violation(f"the agent was told that {name} is kept, and finds {values.get(name)!r} for {value!r}")

    async def _goes_on(self, session: LiveSession, promised: Session) -> None:
        """What was promised is shown; a prompt works; then the same is shown when the session is opened once more."""
        editor = Editor()
        await load(session, editor)
        before = _texts(editor)
        for text in _said_in(promised.log) if not session.fold.branched else []:
            if not any(text in each for each in before):
                raise Violation(f"{text!r} was promised and is not shown")
        if any("acpd has lost" in each for each in before):
            raise Violation("a string is lost that a line names")
        ear = await self._prompted(session, editor)
        if [AGAIN] != [params["prompt"][-1]["text"] for params, _ in ear.prompts]:
            raise Violation(f"the agent got {ear.prompts}, and was to get one prompt")
        syncs = self.world.files.syncs
        ear.say("on")
        ear.end()
        answer = await editor.answered(AGAIN)
        if "result" not in answer or self.world.files.syncs == syncs:
            raise Violation(f"the next prompt was answered {answer}, after {self.world.files.syncs - syncs} syncs")
        await self.world.registry.close(session.id)
        await self._modules(session)
        again = await self.world.registry.open(session.id)
        await load(again, second := Editor())
        if _texts(second) != [*before, AGAIN, "on"]:
            raise Violation(f"opened again it shows {_texts(second)[-3:]} in the place of {[*before, AGAIN, 'on'][-3:]}")
        await self.world.registry.close(session.id)

    async def _prompted(self, session: LiveSession, editor: Editor) -> Any:
        prompt(session, editor, AGAIN)
        await until(lambda: any(voice.session is session and voice.prompts for voice in self.world.agents.made))
        return self.world.agents.made[-1]

    async def _modules(self, session: LiveSession) -> None:
        """What was saved of a log is what the log says; a state that is ahead of its log is gone."""
        for name in ("config", "usage", "plan"):
            raw = await self.world.store.session.load(session.key, f"acpd.{name}")
            line = getattr(session.fold, name)
            if (json.loads(raw)["seq"] if raw else None) != (line.seq if line else None):
                raise Violation(f"the state acpd.{name} says {raw!r} and the log {line.seq if line else None}")


def _read_whole(paths: LogPaths) -> tuple[Any, list[str]]:
    with LogFile(paths) as log:
        _, found, tree = load_lines(log.items())
        return _said(plain(found)), [tree.ids[at] for at in tree.path()]


def _spliced(line: bytes) -> bool:
    """A record behind a run of zeros."""
    return b"\0" in line


def _said(found: dict[str, Any]) -> dict[str, Any]:
    """A fold without what depends on how it was read. Of lines with blobs only which they are."""
    ids = {name: value["id"] for name, value in found.items() if isinstance(value, dict) and "id" in value}
    asks = sorted(found["asks"])
    return {**found, **ids, "asks": asks, "warnings": [], "_kind": "", "created_at": ""}


def _last(log: bytes, kind: str) -> dict[str, Any]:
    found = [line for line in map(readable, log.split(b"\n")) if line is not None and line["type"] == kind]
    return found[-1] if found else {}


def _folder(log: bytes) -> str:
    """Where the project is, by the newest fact that says so."""
    found = [line for line in map(readable, log.split(b"\n")) if line is not None and line.get("cwd")]
    return str(found[-1].get("folder") or found[-1]["cwd"]) if found else ""


def _said_in(log: bytes) -> list[str]:
    """What the agent said in text, but for what stands in blobs."""
    updates = [line for line in map(readable, log.split(b"\n")) if line and line["type"] == "update" and "blobs" not in line]
    contents = [line["params"]["update"].get("content") for line in updates]
    return [content["text"] for content in contents if content]


def _texts(editor: Editor) -> list[str]:
    params = [message["params"] for message in editor.got if message.get("method") == "session/update"]
    return fold(params).texts
