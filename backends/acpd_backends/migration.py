"""From one built-in backend to another in one store root. What is there already is compared, so that a run that was
killed goes on when it is started again, and a last pass that finds nothing to do is the proof.

    workspace <-> sqlite    the logs serve both; the states are copied
    json <-> the others     logs, blobs and what agents remember are copied too: `json` has no folder for each agent

The source is only read. What the target held before goes to names with `.before-<n>` behind them: the configured backend is
the one that knows. `<root>/.acpd/migration` says that a migration is under way, so that this is done once.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec import Struct

from acpd.errors import SessionBusy, StoreError
from acpd.storage.contract import Key, Session
from acpd_backends.files import FILES, Files, failed
from acpd_backends.jsonl import JsonlJournals
from acpd_backends.leases import FlockLease
from acpd_backends.logfile import LogPaths
from acpd_backends.names import Layout
from acpd_backends.states import STORE, JsonSession, SqliteSession, WorkspaceSession
from acpd_backends.stores import catalog_file, open_store

MARK = "migration"
_DATABASE = ("-wal", "-shm", "")
_BLOCK = 1 << 20
_PASSES = 4
"""How often what changed meanwhile is copied again before it is given up."""


class Moved(NamedTuple):
    """What is in the target, compared byte for byte: numbers of logs, blobs and states. `copied`: things that were not."""

    logs: int
    blobs: int
    states: int
    copied: int


class _Mark(Struct):
    source: str
    target: str
    cleared: bool = False


class Migration:
    """One migration. `progress(done, all)` is called after each session."""

    def __init__(
        self,
        root: Path,
        source: str,
        target: str,
        *,
        files: Files = FILES,
        progress: Callable[[int, int], None] = lambda _done, _all: None,
    ) -> None:
        self._root = root
        self._source, self._target = source, target
        self._files = files
        self._progress = progress
        self.aside: list[str] = []
        """What the target held before, by the names that it had."""
        self._from, self._to = (Layout(root, per_agent=name != "json") for name in (source, target))
        self._journals = JsonlJournals(self._from, files=files)
        self._lease = FlockLease(self._from, files=files)

    @property
    def moves_logs(self) -> bool:
        return self._from.per_agent != self._to.per_agent

    def kept(self) -> list[str]:
        """Where the source still is when all is done, as patterns below the folder of each user."""
        place = "agents/*/" if self._from.per_agent else ""
        states = f".acpd/{STORE}" if self._source == "sqlite" else f"{place}context"
        return [states, f"{place}sessions", f"{place}memory"] if self.moves_logs else [states]

    async def plan(self) -> list[Key]:
        """The sessions, and that nothing is in the way. Raises SessionBusy if one is open, StoreError."""
        keys = [
            key for user in await asyncio.to_thread(lambda: list(self._from.users())) async for key in self._journals.scan(user)
        ]
        await self._refuse_open()
        for key in keys:
            pid = await self._lease.holder(key)
            if pid is not None:
                raise SessionBusy(key.session, pid)
            if not key.agent:
                cause = "its log has no header that names its agent"
                raise StoreError("migrate", f"session {key.session}", cause=cause, hint=f"acpd fsck --repair {key.session}")
        if not self._to.per_agent:
            _check_names(keys)
        return sorted(keys, key=lambda key: (key.user or "", key.agent, key.session))

    async def _refuse_open(self) -> None:
        """What the target has is put aside: an acpd that has a session open there would write on where nobody looks."""
        if not self.moves_logs:
            return  # the leases of the source are those of the target
        journals, lease = JsonlJournals(self._to, files=self._files), FlockLease(self._to, files=self._files)
        for user in await asyncio.to_thread(lambda: list(self._to.users())):
            async for key in journals.scan(user):
                pid = await lease.holder(key)
                if pid is not None:
                    raise SessionBusy(key.session, pid)

    async def run(self) -> Moved:
        """Everything, until a pass finds all of it in the target. Raises SessionBusy, StoreError; done again, it goes on."""
        keys = await self.plan()
        await self._settle()
        await self._in_thread(self._begin)
        copied = 0
        for _ in range(_PASSES):
            moved = await self._pass(keys)
            copied += moved.copied
            if not moved.copied:
                break
            keys = await self.plan()
        else:
            raise StoreError(
                "migrate", f"the store {self._root}", cause="it is being written to", hint="close every acpd first"
            )
        await self._make_catalogs()
        await self._in_thread(self._end)
        return moved._replace(copied=copied)

    async def _in_thread(self, work: Callable[[], None]) -> None:
        try:
            await asyncio.to_thread(work)
        except OSError as error:
            raise failed("migrate", f"the store {self._root}", error) from error

    # What was there before.

    async def _settle(self) -> None:
        """Let an older database of the target be one file: whoever closes it last writes its WAL back."""
        if self._target == "sqlite":
            session = SqliteSession(self._root, files=self._files)
            with contextlib.suppress(StoreError):  # it cannot be read, and is put aside as it is
                await session.keys()
            await session.close()

    @property
    def _mark(self) -> Path:
        return self._root / ".acpd" / MARK

    def _begin(self) -> None:
        """Note what is under way, and put aside what an earlier use of the target left there; once."""
        mark = _Mark(self._source, self._target)
        try:
            found = msgspec.json.decode(self._mark.read_bytes(), type=_Mark)
        except (FileNotFoundError, msgspec.DecodeError):
            found = None
        if found == _Mark(self._source, self._target, cleared=True):
            return
        self._files.make_folders(self._mark.parent, sync=True)
        self._files.write_atomic(self._mark, msgspec.json.encode(mark), sync=True)
        for user in list(self._to.users()):
            for path in self._old(user):
                self._put_aside(path)
        mark.cleared = True
        self._files.write_atomic(self._mark, msgspec.json.encode(mark), sync=True)

    def _old(self, user: str | None) -> Iterator[Path]:
        """What the target has of its own."""
        if self._target == "sqlite":
            yield self._to.private(user) / STORE
        else:
            yield from (place / "context" for _, place in self._to.places(user))
            for suffix in _DATABASE:  # the catalog is made anew from the logs
                self._files.unlink(self._to.private(user) / f"{catalog_file(self._to)}{suffix}")
        if self.moves_logs:
            yield from (place / "sessions" for _, place in self._to.places(user))
            yield from (place / "memory" for _, place in self._to.places(user))

    def _put_aside(self, path: Path) -> None:
        if not os.path.lexists(path):
            return
        self.aside.append(str(path))
        number = 1
        while os.path.lexists(aside := path.with_name(f"{path.name}.before-{number}")):
            number += 1
        for suffix in _DATABASE:  # the file itself last: it is what a run that goes on looks for
            with contextlib.suppress(FileNotFoundError):
                self._files.replace(path.with_name(f"{path.name}{suffix}"), aside.with_name(f"{aside.name}{suffix}"))
        self._files.sync_folder(path.parent)

    def _end(self) -> None:
        self._files.unlink(self._mark)
        self._files.sync_folder(self._mark.parent)

    # One pass.

    async def _pass(self, keys: list[Key]) -> Moved:
        source, target = self._session(self._source), self._session(self._target)
        logs = blobs = states = copied = 0
        try:
            for number, key in enumerate(keys, 1):
                await self._lease.take(key)
                try:
                    if self.moves_logs:
                        found, new = await self._copy_log(key)
                        blobs, copied = blobs + found, copied + new
                    logs += 1
                finally:
                    await self._lease.give_up(key)
                self._progress(number, len(keys))
            agents = {(key.user, key.session): key.agent for key in keys}
            wanted = {self._target_key(key, agents): key for key in await source.keys()}
            for to, key in wanted.items():
                found, new = await _copy_states(source, target, key, to)
                states, copied = states + found, copied + new
            copied += await self._drop_others(target, set(wanted), set(keys))
            if self.moves_logs:
                copied += await self._copy_memories()
        finally:
            await source.close()
            await target.close()
        return Moved(logs, blobs, states, copied)

    async def _drop_others(self, target: Session, states: set[Key], logs: set[Key]) -> int:
        """What an earlier run copied of a session that has been removed since: how much."""
        others = [key for key in await target.keys() if key not in states]
        for key in others:
            await target.delete(key)
        if not self.moves_logs:
            return len(others)
        journals = JsonlJournals(self._to, files=self._files)
        ids = {(key.user, key.session) for key in logs}
        users = await asyncio.to_thread(lambda: list(self._to.users()))
        gone = [key for user in users async for key in journals.scan(user) if (key.user, key.session) not in ids]
        for key in gone:
            await journals.delete(key)
        return len(others) + len(gone)

    def _session(self, name: str) -> Session:
        kind = {"workspace": WorkspaceSession, "json": JsonSession, "sqlite": SqliteSession}[name]
        return kind(self._root, sync=True, files=self._files)

    def _target_key(self, key: Key, agents: dict[tuple[str | None, str], str]) -> Key:
        if not self._to.per_agent:
            return Key("", key.session, key.user)
        if self._from.per_agent:
            return key
        agent = agents.get((key.user, key.session))
        if agent is None:
            where = self._from.context(key)
            raise StoreError("migrate", str(where), cause="no log says which agent it is of", hint="move it away and try again")
        return Key(agent, key.session, key.user)

    async def _copy_log(self, key: Key) -> tuple[int, int]:
        """(blobs, things that were copied)."""
        old = LogPaths(self._from.sessions(key), self._journals.paths(key).stem)
        try:
            return await asyncio.to_thread(self._copy, key, old)
        except OSError as error:
            raise failed("migrate", f"session {key.session}", error) from error

    def _copy(self, key: Key, old: LogPaths) -> tuple[int, int]:
        """Blobs, then what was put aside, then the log: whoever finds the log finds the rest."""
        folder = self._to.make(key, "sessions", sync=True, files=self._files)
        new = LogPaths(folder, old.stem)
        blobs = sorted(old.blobs.iterdir()) if old.blobs.is_dir() else []
        if blobs:
            self._files.make_folders(new.blobs, sync=True)
        copied = sum([self._linked(path, new.blobs / path.name) for path in blobs])
        for name in sorted(os.listdir(old.folder)):
            if name.startswith(f"{old.log.name}.") and not name.endswith(".tmp"):
                copied += self._copied(old.folder / name, folder / name)
        copied += self._copied(old.log, new.log)
        self._files.sync_folder(folder)
        return len(blobs), copied

    async def _copy_memories(self) -> int:
        try:
            return await asyncio.to_thread(self._remember)
        except OSError as error:
            raise failed("migrate", "what agents remember", error) from error

    def _remember(self) -> int:
        """Files that were copied."""
        copied = 0
        for user in list(self._from.users()):
            for agent, old in self._from.memories(user):
                new = self._to.make_memory(Key(agent, "", user), sync=True, files=self._files)
                for path in sorted(old.iterdir()):
                    if path.is_file() and not path.is_symlink() and not path.name.endswith((".lock", ".tmp")):
                        copied += self._copied(path, new / path.name)
        return copied

    def _linked(self, old: Path, new: Path) -> int:
        """A blob never changes, so that one file serves both."""
        if _same(old, new):
            return 0
        self._files.unlink(new)
        self._files.link(old, new)
        self._files.sync_folder(new.parent)
        return 1

    def _copied(self, old: Path, new: Path) -> int:
        if _same(old, new):
            return 0
        self._files.write_pieces(new, _pieces(old), sync=True)
        return 1

    async def _make_catalogs(self) -> None:
        for user in await asyncio.to_thread(lambda: list(self._to.users())):
            if await asyncio.to_thread(self._to.home(user).is_dir):
                backend = open_store(self._target, self._root, user=user, files=self._files)
                assert backend.journals is not None
                assert backend.catalog is not None
                await backend.catalog.recover(backend.journals)
                await backend.journals.close()
                await backend.catalog.close()
                await backend.session.close()


def _check_names(keys: list[Key]) -> None:
    """`json` has one folder for all agents. Raises StoreError."""
    seen: dict[tuple[str | None, str], str] = {}
    for key in keys:
        other = seen.setdefault((key.user, key.session), key.agent)
        if other != key.agent:
            cause = f"agents {other} and {key.agent} both have it, and json keeps all agents together"
            raise StoreError("migrate", f"session {key.session}", cause=cause, hint="remove or fork one of them")


async def _copy_states(source: Session, target: Session, key: Key, to: Key) -> tuple[int, int]:
    """(states, those that were copied). What the target has and the source has not goes. Raises StateUnreadable, StoreError."""
    names = await source.names(key)
    copied = 0
    for name in names:
        value = await source.load(key, name)
        if value is not None and value != await target.load(to, name):
            await target.save(to, name, value)
            copied += 1
    for name in set(await target.names(to)) - set(names):
        await target.delete(to, name)
        copied += 1
    return len(names), copied


def _same(old: Path, new: Path) -> bool:
    """Whether both hold the same bytes."""
    try:
        if os.path.samefile(old, new):
            return True
        if old.stat().st_size != new.stat().st_size:
            return False
        with old.open("rb") as one, new.open("rb") as two:
            while data := one.read(_BLOCK):
                if data != two.read(_BLOCK):
                    return False
            return not two.read(1)
    except FileNotFoundError:
        return False


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while data := file.read(_BLOCK):
            yield data
