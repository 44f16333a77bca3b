"""SQLite without blocking the event loop: one file, one thread, one connection.

Whoever wants something of the file hands a closure to the thread. A closure of `write` is one transaction; those
that wait together share one commit, and where one of them fails they are run again one by one, so that it fails
alone. Therefore a closure does nothing but SQL, and may run twice. Reads need no lock: WAL gives each a snapshot.

To the thread and back costs more than a small update does (60 and 25 us), so a `brief` write runs on the event loop while
the thread has nothing to do: it goes to the system's memory like a line of a log. What could take longer is the thread's:
waiting for another process, checkpoints, and whatever failed.

Several processes share a file: a writer waits for the other's lock (`BEGIN IMMEDIATE`, 30 s), so that nothing is
upgraded half-way and "database is locked" means that someone kept it that long. Opening, which may make the file,
is guarded by a flock beside it.

sqlite3 is imported in the thread (5 ms that no start has to wait for).
"""

from __future__ import annotations

import asyncio
import fcntl
import functools
import hashlib
import os
import re
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext, suppress
from enum import Enum
from itertools import groupby
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from acpd.errors import StateUnreadable, StoreError
from acpd_backends.files import FILES, Files, failed
from acpd_backends.schema import STEPS, VERSION

if TYPE_CHECKING:
    from sqlite3 import Connection, Cursor, Error

T = TypeVar("T")

RULES = 1
"""Of the tokens in the search index, in `meta` from 2 on. An index that was made by other ones is made anew."""

BUSY_TIMEOUT = 30.0
"""Seconds to wait for another process's transaction."""

BATCH = 64
"""Closures that share one commit at most."""

CACHE = 4 * 1024
"""KiB of pages in memory at most, of each connection. The kernel has the rest: more of them made nothing faster."""

BRIEF = 256
"""Every so many brief writes one goes by the thread, which writes the WAL back when it has grown (1,000 pages)."""

WAITING = 1024
"""Closures that wait at most; whoever brings more waits on the event loop."""

_PARAMETER = re.compile(r"\?(\d+)")
_FULL, _CORRUPT, _NOT_A_DATABASE = 13, 11, 26
_HINTS = {
    5: "another process keeps the file locked; try again",
    6: "another process keeps the file locked; try again",
    8: "check the rights of the file and its folder",
    14: "check the rights of the file and its folder",
    _FULL: "disk full: free space and send again",
}


class Mode(Enum):
    READ = "read"
    WRITE = "write"
    """Outlives a crash of the process; a crash of the machine may take the last ones (WAL, synchronous=NORMAL)."""
    DURABLE = "durable"
    """Outlives a crash of the machine (synchronous=FULL)."""


class _Job(NamedTuple):
    mode: Mode
    work: Callable[[Connection], Any]
    settle: Callable[[Any, BaseException | None], object]
    """The first call counts; later ones do nothing."""


class _Outcome(NamedTuple):
    job: _Job
    result: Any
    error: BaseException | None


def execute(db: Connection, sql: str, *values: object) -> Cursor:
    """One statement with numbered parameters (`?1`). Any Python text goes in.

    Lone surrogates, which sqlite3 cannot bind, go as the three bytes that UTF-8 would have for them; `query` reads them.
    """
    try:
        return db.execute(sql, values)
    except UnicodeEncodeError:
        texts = {i: value.encode("utf-8", "surrogatepass") for i, value in enumerate(values, 1) if isinstance(value, str)}
        cast = _PARAMETER.sub(lambda m: f"CAST(?{m[1]} AS TEXT)" if int(m[1]) in texts else m[0], sql)
        return db.execute(cast, [texts.get(i, value) for i, value in enumerate(values, 1)])


def query(db: Connection, sql: str, *values: object) -> list[tuple[Any, ...]]:
    """The rows of one statement, as `execute`; text comes out as it went in."""
    try:
        return execute(db, sql, *values).fetchall()
    except db.OperationalError as error:
        if "decode" not in str(error):
            raise
    factory, db.text_factory = db.text_factory, lambda raw: raw.decode("utf-8", "surrogatepass")
    try:
        return execute(db, sql, *values).fetchall()
    finally:
        db.text_factory = factory


def rules(db: Connection) -> int:
    """Those that the search index was made by."""
    rows = query(db, "SELECT value FROM meta WHERE name = 'rules'")
    return int(rows[0][0]) if rows else 1


class Database:
    """One SQLite file. It is opened, and made if absent, by the first call.

    `rebuildable`: a file that cannot be read is moved aside and begun anew; else it stays, a copy is put aside, and
    every call raises StateUnreadable.
    """

    def __init__(
        self, path: Path, *, sync: bool = True, rebuildable: bool = True, memory: bool = False, files: Files = FILES
    ) -> None:
        """`memory`: nothing is read or written; `path` is only a name."""
        self.path = path
        self._memory = memory
        self._sync = sync
        self._rebuildable = rebuildable
        self._files = files
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()  # bounded by _room
        self._room = asyncio.Semaphore(WAITING)
        self._thread: threading.Thread | None = None
        self._closed: Future[None] | None = None
        self._holders = 1
        self._db: Connection | None = None
        self._using = threading.Lock()
        """Held by who uses the connection."""
        self._settings: dict[str, str | int] = {}
        """Of the connection, as they were last set."""
        self._waiting: set[asyncio.Future[Any]] = set()
        """What was asked for on the event loop and is not done."""
        self._brief = 0
        """Brief writes since the last one that went by the thread."""
        self._spoiled: tuple[int, int] | None = None
        """The file (device, inode) in which a damaged page was met."""

    def another(self) -> Database:
        """The same file with a thread and a connection of its own: what takes long there keeps nobody waiting here."""
        if self._memory:
            return self.shared()
        return Database(self.path, sync=self._sync, rebuildable=self._rebuildable, files=self._files)

    def shared(self) -> Database:
        """The same, for one more holder: each closes it, and the last one does."""
        self._holders += 1
        return self

    async def read(self, work: Callable[[Connection], T], /) -> T:
        """What `work` returns, outside a transaction. Sees every write that was asked for before. Raises StoreError."""
        return await self._run(Mode.READ, work)

    async def write(self, work: Callable[[Connection], T], /, *, durable: bool = False, brief: bool = False) -> T:
        """What `work` returns, once it is committed. Raises StoreError; nothing of it is then in the file.

        `brief`: it changes a row or two, some 20 us. Cancelling gives up the answer, not the transaction.
        """
        if brief and not durable and (done := self._write_here(work)) is not None:
            return done[0]
        return await self._run(Mode.DURABLE if durable and self._sync else Mode.WRITE, work)

    def read_from_thread(self, work: Callable[[Connection], T], /) -> T:
        """As `read`, for a thread of its own: blocks it."""
        answer: Future[T] = Future()

        def settle(result: T, error: BaseException | None) -> None:
            if answer.done():
                return
            if error is None:
                answer.set_result(result)
            else:
                answer.set_exception(error)

        self._submit(_Job(Mode.READ, work, settle))
        return answer.result()

    @property
    def rebuildable(self) -> bool:
        return self._rebuildable

    async def give_up(self) -> None:
        """Of a cache that was opened: its file is put aside when this is closed. The next one to open it makes it anew."""
        with suppress(FileNotFoundError):
            self._spoiled = await asyncio.to_thread(_identity, self.path)

    async def close(self) -> None:
        """What was asked for is done; when every holder has called this, the file is closed. Cancelling stops the waiting."""
        self._holders -= 1
        if self._holders > 0:
            return
        if self._closed is None:
            self._closed = Future()
            if self._thread is None:
                self._closed.set_result(None)
            else:
                self._jobs.put(None)
        await asyncio.shield(asyncio.wrap_future(self._closed))

    async def _run(self, mode: Mode, work: Callable[[Connection], T]) -> T:
        """Cancelling it leaves the job, and its place, to the thread."""
        await self._room.acquire()
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        self._waiting.add(answer)
        try:
            self._submit(_Job(mode, work, functools.partial(self._hand_over, loop, answer)))
        except BaseException:
            self._leave(answer)
            raise
        return await answer

    def _leave(self, answer: asyncio.Future[Any]) -> None:
        """Its job waits no more."""
        if answer in self._waiting:
            self._waiting.discard(answer)
            self._room.release()

    def _hand_over(
        self, loop: asyncio.AbstractEventLoop, answer: asyncio.Future[Any], result: object, error: BaseException | None
    ) -> None:
        with suppress(RuntimeError):  # the loop was closed meanwhile: nobody waits any more
            loop.call_soon_threadsafe(self._settle, answer, result, error)

    def _settle(self, answer: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
        self._leave(answer)
        if answer.done():
            return
        if error is None:
            answer.set_result(result)
        else:
            answer.set_exception(error)

    def _write_here(self, work: Callable[[Connection], T]) -> tuple[T, ...] | None:
        """What `work` returned; None if it is the thread's after all: something waits there, the file is locked, it failed."""
        if self._waiting or self._closed is not None or self._brief >= BRIEF or not self._using.acquire(blocking=False):
            self._brief = 0
            return None
        db = self._db
        try:
            if db is None:
                return None
            self._brief += 1
            self._set(db, busy_timeout=0, wal_autocheckpoint=0, synchronous="NORMAL")
            db.execute("BEGIN IMMEDIATE")
            return tuple(self._commit(db, [work]))
        except Exception:  # noqa: BLE001 - a caller's closure: the thread meets it again, and says it
            if db is not None and db.in_transaction:
                with suppress(Exception):
                    db.execute("ROLLBACK")
            return None
        finally:
            self._using.release()

    def _submit(self, job: _Job) -> None:
        if self._closed is not None:
            raise StoreError("use", str(self.path), cause="it is closed")
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name=f"sqlite:{self.path.name}", daemon=True)
            self._thread.start()
        self._jobs.put(job)

    # The thread.

    def _serve(self) -> None:
        last = False
        while not last:
            batch, last = self._next()
            outcomes: list[_Outcome] = []
            with self._using:
                try:
                    outcomes.extend(self._do(batch))
                except Exception as error:  # noqa: BLE001 - whatever it is: those who wait get it, and the next ones a new connection
                    cause = self._refused("use" if self._db else "open", error)
                    outcomes += [_Outcome(job, None, cause) for job in batch]
                    self._disconnect()
            for job, result, failure in outcomes:  # now, so that who goes on finds the connection free
                job.settle(result, failure)
        with self._using:
            self._disconnect()
        self._put_away()
        if self._closed is not None:
            self._closed.set_result(None)

    def _do(self, batch: list[_Job]) -> Iterator[_Outcome]:
        if not batch:
            return
        db = self._db = self._db or self._open()
        self._set(db, busy_timeout=round(BUSY_TIMEOUT * 1000), wal_autocheckpoint=1000)
        for mode, jobs in groupby(batch, key=lambda job: job.mode):
            if mode is not Mode.READ:
                yield from self._write(db, list(jobs), mode)
            else:
                yield from (self._read(db, job) for job in jobs)

    def _next(self) -> tuple[list[_Job], bool]:
        """What waits, at most BATCH; and whether it is the last."""
        batch: list[_Job] = []
        while not batch or (len(batch) < BATCH and not self._jobs.empty()):
            job = self._jobs.get()
            if job is None:
                return batch, True
            batch.append(job)
        return batch, False

    def _disconnect(self) -> None:
        """Closing may write the WAL back; that it cannot is no loss, the next one to open will."""
        db, self._db = self._db, None
        if db is not None:
            with suppress(Exception), nullcontext() if self._memory else self._guard():
                db.close()

    def _refused(self, operation: str, error: Exception) -> StoreError:
        if isinstance(error, StoreError):
            return error
        if isinstance(error, OSError):
            return failed(operation, str(self.path), error)
        return store_error(operation, self.path, error)

    def _read(self, db: Connection, job: _Job) -> _Outcome:
        try:
            return _Outcome(job, job.work(db), None)
        except Exception as error:  # noqa: BLE001 - the caller's closure; the caller gets it
            return _Outcome(job, None, self._named("read", error))

    def _write(self, db: Connection, jobs: list[_Job], mode: Mode) -> list[_Outcome]:
        try:
            self._set(db, synchronous="FULL" if mode is Mode.DURABLE else "NORMAL")
            db.execute("BEGIN IMMEDIATE")
        except _errors() as error:
            return [_Outcome(job, None, self._named("write", error)) for job in jobs]
        try:
            results = self._commit(db, [job.work for job in jobs])
        except Exception as error:  # noqa: BLE001 - a caller's closure; that caller gets it
            if db.in_transaction:  # a full disk has already rolled it back
                db.execute("ROLLBACK")
            if len(jobs) == 1:
                return [_Outcome(jobs[0], None, self._named("write", error))]
            return [outcome for job in jobs for outcome in self._write(db, [job], mode)]
        return [_Outcome(job, result, None) for job, result in zip(jobs, results, strict=True)]

    def _commit(self, db: Connection, works: Sequence[Callable[[Connection], T]]) -> list[T]:
        """All of a transaction that has begun."""
        results = [work(db) for work in works]
        db.execute("COMMIT")
        return results

    def _set(self, db: Connection, **settings: str | int) -> None:
        for name, value in settings.items():
            if self._settings.get(name) != value:
                db.execute(f"PRAGMA {name}={value}")
                self._settings[name] = value

    def _named(self, operation: str, error: BaseException) -> BaseException:
        if not isinstance(error, _errors()):
            return error
        if is_damage(error):
            with suppress(OSError):
                self._spoiled = _identity(self.path)
        return store_error(operation, self.path, error)

    def _put_away(self) -> None:
        """A cache with a damaged page: the next one to open it makes it anew. Not one that somebody has made anew already."""
        with suppress(OSError):
            if self._rebuildable and self._spoiled is not None and self._spoiled == _identity(self.path):
                with self._guard():
                    self._move_aside()

    @contextmanager
    def _guard(self) -> Generator[None]:
        fd = self._files.open_lock(self.path.with_name(self.path.name + ".lock"))
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            self._files.close(fd)

    def _open(self) -> Connection:
        """Raises StoreError, OSError."""
        if self._memory:
            return self._connect()
        self._files.make_folders(self.path.parent, sync=True)  # whatever this file is: others in the folder must last
        with self._guard():
            try:
                return self._connect()
            except _errors() as error:
                if not is_damage(error):
                    raise store_error("open", self.path, error) from error
            if not self._rebuildable:
                raise self._kept()
            self._move_aside()
            try:
                return self._connect()
            except _errors() as error:
                raise store_error("open", self.path, error) from error

    def _connect(self) -> Connection:
        import sqlite3

        if self._memory:
            db = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
            self._settings = {}
            self._prepare(db)
            return db
        with suppress(FileExistsError):  # made here, so that it is 0600. Never opened again: closing would drop SQLite's locks
            self._files.close(self._files.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL))
        db = sqlite3.connect(self.path, timeout=BUSY_TIMEOUT, isolation_level=None, check_same_thread=False)
        self._settings = {}
        try:
            self._prepare(db)
        except (sqlite3.Error, StoreError):
            db.close()
            raise
        return db

    def _prepare(self, db: Connection) -> None:
        """Settings and tables. Raises StoreError for a newer file, which stays as it is."""
        version = db.execute("PRAGMA user_version").fetchone()[0]
        if version > VERSION:
            cause = f"its version {version} is newer than {VERSION}"
            raise StoreError("open", str(self.path), cause=cause, hint="update acpd")
        db.execute("PRAGMA journal_mode=WAL")
        db.execute(f"PRAGMA cache_size=-{CACHE}")
        if version < VERSION:  # synced, so that a file that is named is never half made
            steps = " ".join(STEPS[version:])
            db.executescript(f"PRAGMA synchronous=FULL; BEGIN IMMEDIATE; {steps} PRAGMA user_version={VERSION}; COMMIT;")
        db.execute("SELECT id FROM session LIMIT 1").fetchone()

    def _move_aside(self) -> None:
        digest = _digest(self.path)
        for suffix in ("-wal", "-shm", ""):
            source = self.path.with_name(self.path.name + suffix)
            with suppress(FileNotFoundError):
                self._files.replace(source, self.path.with_name(f"{self.path.name}.unreadable-{digest}{suffix}"))

    def _kept(self) -> StateUnreadable:
        copy = self.path.with_name(f"{self.path.name}.unreadable-{_digest(self.path)}")
        if not copy.exists():
            self._files.write_atomic(copy, self.path.read_bytes(), sync=True)
        hint = f"a copy is {copy.name}; put a backup in its place, or move it away and begin anew"
        return StateUnreadable("read", str(self.path), cause="it is no SQLite database or is damaged", hint=hint)


def _identity(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:12]


def _errors() -> tuple[type[Error], ...]:
    import sqlite3

    return (sqlite3.Error,)


def _code(error: BaseException) -> int:
    """SQLite's primary result code; 0 for an error of the module itself."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


def is_damage(error: BaseException) -> bool:
    """Whether SQLite says that the file is none of its own, or damaged."""
    return _code(error) in {_CORRUPT, _NOT_A_DATABASE}


def store_error(operation: str, path: Path, error: BaseException) -> StoreError:
    code = _code(error)
    hint = _HINTS.get(code, "")
    if is_damage(error):
        hint = "stop acpd and start it again; if that does not help, restore the file from a backup"
    return StoreError(operation, str(path), cause=str(error), hint=hint, retryable=code in {5, 6, 10, _FULL})
