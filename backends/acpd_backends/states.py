"""`Session` three times: one file a value (JsonSession, WorkspaceSession), and rows of SQLite.

A value is JSON text and is kept byte for byte. It is looked at only to know whether it is JSON: what is not is
refused when it is saved, and reported when it is found (StateUnreadable), with a copy put aside and the original
left where it is.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from acpd.errors import StateUnreadable, StoreError
from acpd.storage.contract import Key, Session
from acpd_backends.files import FILES, Files, failed
from acpd_backends.names import NAME_SUFFIX, Layout, encode, is_hashed, recall, remember
from acpd_backends.sqlite import Database, execute, query

if TYPE_CHECKING:
    from sqlite3 import Connection

T = TypeVar("T")

SUFFIX = ".json"
THREADS = 4
STORE = "store.db"
"""Of SqliteSession. Another name than the catalog's, because this one is not rebuilt when it is deleted."""

_validate = msgspec.json.Decoder(msgspec.Raw).decode
_UNREADABLE = "a copy was put aside as {}; put it back from a backup, or remove it to begin anew"


def json_fault(value: bytes) -> str:
    """Why these bytes are no JSON text (RFC 8259); empty if they are. Lone surrogates may be escaped, as its grammar has it."""
    try:
        value.decode()
        _validate(value)
    except RecursionError:
        return "too deeply nested"
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return "" if _is_json(value) else str(error)
    return ""


def _is_json(value: bytes) -> bool:
    """A second opinion: msgspec takes an escaped lone surrogate for a truncated text."""
    import json

    def refuse(name: str) -> None:
        raise ValueError(name)

    try:
        json.loads(value.decode(), parse_int=str, parse_float=str, parse_constant=refuse)
    except (ValueError, RecursionError):
        return False
    return True


def _name_of(key: Key, name: str) -> str:
    return f"state {name!r} of session {key.session}"


def _checked(key: Key, name: str, value: bytes) -> bytes:
    if fault := json_fault(value):
        raise StoreError("save", _name_of(key, name), cause=f"the value is no JSON: {fault}")
    return value


class FileSession(Session):
    """One file a value, `<place of the session>/<name>.json`, replaced by rename.

    Calls for one session are carried out one after the other in the order in which they were made, those of different
    sessions side by side in four threads. Cancelling a call gives up its answer; what it began is finished.
    """

    def __init__(self, layout: Layout, *, sync: bool = True, files: Files = FILES) -> None:
        self._layout = layout
        self._sync = sync
        self._files = files
        self._threads: dict[int, ThreadPoolExecutor] = {}

    async def load(self, key: Key, name: str, /) -> bytes | None:
        # aiofiles, whose every step goes through the session's own thread: a value of many MiB is read in pieces, and
        # saves of other sessions on that thread come in between.
        aiofiles = await self._run(key, "load", name, _aiofiles)
        path = self._path(key, name)
        try:
            async with aiofiles.open(path, "rb", executor=self._thread(key)) as file:
                pieces = []
                while piece := await file.read(1 << 20):
                    pieces.append(piece)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise failed("load", _name_of(key, name), error) from error
        value = b"".join(pieces)
        if fault := json_fault(value):
            copy = await self._run(key, "copy aside", name, lambda: self._put_aside(path, value))
            raise StateUnreadable("read", str(path), cause=fault, hint=_UNREADABLE.format(copy.name))
        return value

    async def save(self, key: Key, name: str, value: bytes, /) -> None:
        _checked(key, name, value)
        await self._run(key, "save", name, lambda: self._save(key, name, value))

    async def names(self, key: Key, /) -> list[str]:
        return await self._run(key, "list", "", lambda: sorted(_names(self._layout.context(key))))

    async def delete(self, key: Key, name: str | None = None, /) -> None:
        await self._run(key, "delete", name or "", lambda: self._delete(key, name))

    async def keys(self, /) -> list[Key]:
        """Where agents have no folder of their own, the agent of a key is empty, and is not looked at."""
        return await asyncio.to_thread(self._keys)

    async def close(self) -> None:
        threads, self._threads = self._threads, {}
        for thread in threads.values():
            await asyncio.to_thread(thread.shutdown)

    def _thread(self, key: Key) -> ThreadPoolExecutor:
        slot = hash(key) % THREADS
        if slot not in self._threads:
            self._threads[slot] = ThreadPoolExecutor(1, thread_name_prefix=f"state-{slot}")
        return self._threads[slot]

    async def _run(self, key: Key, operation: str, name: str, work: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread(key), work)
        except OSError as error:
            target = _name_of(key, name) if name else f"the states of session {key.session}"
            raise failed(operation, target, error) from error

    def _path(self, key: Key, name: str) -> Path:
        return self._layout.context(key) / (encode(name) + SUFFIX)

    # In a thread.

    def _save(self, key: Key, name: str, value: bytes) -> None:
        folder = self._layout.context(key)
        if not folder.is_dir():
            self._layout.make(key, "context", sync=self._sync, files=self._files)
        self._files.make_folders(folder, sync=self._sync)
        stem = remember(folder, name, sync=self._sync, files=self._files)
        self._files.write_atomic(folder / (stem + SUFFIX), value, sync=self._sync)

    def _put_aside(self, path: Path, value: bytes) -> Path:
        copy = path.with_name(f"{path.name}.unreadable-{hashlib.sha256(value).hexdigest()[:12]}")
        if not copy.exists():
            self._files.write_atomic(copy, value, sync=self._sync)
        return copy

    def _delete(self, key: Key, name: str | None) -> None:
        folder = self._layout.context(key)
        if not folder.is_dir():
            return
        if name is not None:
            stem = encode(name)
            self._files.unlink(folder / (stem + SUFFIX))
            self._files.unlink(folder / (stem + NAME_SUFFIX))
            for left in folder.glob(f"{stem}{SUFFIX}.unreadable-*"):
                self._files.unlink(left)
        else:
            self._files.remove_tree(folder)
            self._files.unlink(folder.with_name(folder.name + NAME_SUFFIX))
        if self._sync:
            self._files.sync_folder(folder if name is not None else folder.parent)

    def _keys(self) -> list[Key]:
        found = []
        for user in self._layout.users():
            for agent, place in self._layout.places(user):
                context = place / "context"
                for entry in _folders(context):
                    session = recall(context, entry)
                    if session is not None and _names(context / entry):
                        found.append(Key(agent or "", session, user))
        return found


class WorkspaceSession(FileSession):
    """`<root>/[u-<user>/]agents/<agent>/context/<session>/<name>.json`."""

    def __init__(self, root: Path, *, sync: bool = True, files: Files = FILES) -> None:
        super().__init__(Layout(root, per_agent=True), sync=sync, files=files)


class JsonSession(FileSession):
    """`<root>/[u-<user>/]context/<session>/<name>.json`: the session alone names its state, whichever agent has it."""

    def __init__(self, root: Path, *, sync: bool = True, files: Files = FILES) -> None:
        super().__init__(Layout(root, per_agent=False), sync=sync, files=files)


def _aiofiles() -> Any:
    """Imported in a thread: it takes 20 ms, and only the first load has to wait for it."""
    import aiofiles

    return aiofiles


def _folders(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _names(folder: Path) -> list[str]:
    """The state names in a session's folder; what else lies there is none of ours."""
    try:
        found = [entry for entry in os.listdir(folder) if entry.endswith(SUFFIX)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [name for entry in found if (name := recall(folder, entry.removesuffix(SUFFIX))) is not None]


_DELETE = (
    "DELETE FROM state WHERE agent = ?1 AND session = ?2 AND (?3 IS NULL OR name = ?3)",
    "DELETE FROM state_unreadable WHERE agent = ?1 AND session = ?2 AND (?3 IS NULL OR name = ?3)",
)


class SqliteSession(Session):
    """States as rows, one database file a user: `<root>/[u-<user>/].acpd/store.db`. `database(user)` gives it.

    Cancelling a call gives up its answer; what it began is finished.
    """

    def __init__(self, root: Path, *, sync: bool = True, files: Files = FILES) -> None:
        self._layout = Layout(root)
        self._sync = sync
        self._files = files
        self._databases: dict[str | None, Database] = {}

    def database(self, user: str | None) -> Database:
        """The file of this user, which the catalog shares. `close` closes it."""
        if user not in self._databases:
            path = self._layout.private(user) / STORE
            self._databases[user] = Database(path, sync=self._sync, rebuildable=False, files=self._files)
        return self._databases[user]

    async def load(self, key: Key, name: str, /) -> bytes | None:
        sql = "SELECT value FROM state WHERE agent = ?1 AND session = ?2 AND name = ?3"
        rows = await self.database(key.user).read(lambda db: query(db, sql, key.agent, key.session, name))
        if not rows:
            return None
        found: bytes | str = rows[0][0]
        value = found.encode("utf-8", "surrogatepass") if isinstance(found, str) else found  # text: a person wrote it
        if fault := json_fault(value):
            put = "INSERT OR IGNORE INTO state_unreadable VALUES (?1, ?2, ?3, ?4)"
            await self._write(key, lambda db: execute(db, put, key.agent, key.session, name, value))
            hint = _UNREADABLE.format("a row of table state_unreadable")
            raise StateUnreadable("read", _name_of(key, name), cause=fault, hint=hint)
        return value

    async def save(self, key: Key, name: str, value: bytes, /) -> None:
        _checked(key, name, value)
        sql = "INSERT OR REPLACE INTO state VALUES (?1, ?2, ?3, ?4)"
        if key.user is not None and is_hashed(encode(key.user)):
            await asyncio.to_thread(self._remember, key.user)
        await self._write(key, lambda db: execute(db, sql, key.agent, key.session, name, value))

    async def names(self, key: Key, /) -> list[str]:
        sql = "SELECT name FROM state WHERE agent = ?1 AND session = ?2"
        return sorted(name for (name,) in await self.database(key.user).read(lambda db: query(db, sql, key.agent, key.session)))

    async def delete(self, key: Key, name: str | None = None, /) -> None:
        def work(db: Connection) -> None:
            for sql in _DELETE:
                execute(db, sql, key.agent, key.session, name)

        await self._write(key, work)

    async def keys(self, /) -> list[Key]:
        found: list[Key] = []
        for user in await asyncio.to_thread(self._users):
            rows = await self.database(user).read(lambda db: query(db, "SELECT DISTINCT agent, session FROM state"))
            found += [Key(agent, session, user) for agent, session in rows]
        return found

    async def close(self) -> None:
        for database in self._databases.values():
            await database.close()

    def _users(self) -> list[str | None]:
        return [user for user in self._layout.users() if (self._layout.private(user) / STORE).is_file()]

    def _remember(self, user: str) -> None:
        self._files.make_folders(self._layout.root, sync=self._sync)
        remember(self._layout.root, user, prefix="u-", sync=self._sync, files=self._files)

    async def _write(self, key: Key, work: Callable[[Connection], object]) -> None:
        await self.database(key.user).write(work, durable=True)
