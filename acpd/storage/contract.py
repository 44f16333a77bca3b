"""What a storage backend is. Implementations live in packages of their own and see only this, `wire` and `errors`.

A backend is one value, `Backend`. A third party must bring a `Session`; for the other four, None means
the built-in: JSONL logs, an SQLite catalog, flock leases, texts in files for the memory.

Which thread: `Session`, `Catalog`, `Lease`, `Memory` and `Journals` are async and own their threads. The plain calls
of `Journal` run on the event loop; they are one small write(2) to an open file at most. All names that come
from outside (user, agent, session, state name) may be any text; the backend encodes them reversibly.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from asyncio import Future
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

from acpd.errors import SessionNotFound, StoreError
from acpd.storage.fold import Fold
from acpd.storage.tree import SessionTree
from acpd.wire.lines import Header, Stored

if TYPE_CHECKING:
    from acpd.storage.hits import Batch, Find, Hits  # of no use to a start
    from acpd.storage.upkeep import Found, Upkeep


class Key(Struct, frozen=True):
    """Which session. `user` None: no prefix."""

    agent: str
    session: str
    user: str | None = None


SPARED = frozenset({"choices", "plan", "remembered", "saying", "tool_context", "usage"})
"""Values without which a session can go on: one of them that cannot be read costs itself, and is left as it is."""


class Session(ABC):
    """Named state of sessions: whole JSON values, replaced as one.

    `save` returns when the value outlives a crash of the machine, and is all or nothing. Concurrent calls for
    different names or keys do not wait for each other's locks on the loop.
    """

    @abstractmethod
    async def load(self, key: Key, name: str, /) -> bytes | None:
        """The value as it was saved, byte for byte, or None if there is none.

        Raises StateUnreadable if there is one that is no JSON; the bytes stay and a copy is put aside.
        """

    @abstractmethod
    async def save(self, key: Key, name: str, value: bytes, /) -> None:
        """Replace the value. Raises StoreError; the old value then stays whole."""

    @abstractmethod
    async def names(self, key: Key, /) -> list[str]:
        """The names that this session has values for, sorted."""

    @abstractmethod
    async def delete(self, key: Key, name: str | None = None, /) -> None:
        """Remove one value, or (name None) all of the session's. Absent is no error."""

    @abstractmethod
    async def keys(self, /) -> list[Key]:
        """The sessions that have at least one value. Never a folder that is not this store's."""

    async def close(self) -> None:
        """Finish what is under way and free what is held."""


class Journal(ABC):
    """The open log of one session whose lease is held: one writer, one order."""

    header: Header
    fold: Fold
    """What the log said when it was opened. The holder keeps its own from then on."""

    @property
    @abstractmethod
    def size(self) -> int:
        """Bytes of the log that are in the kernel."""

    @abstractmethod
    def append(self, line: bytes, /) -> None:
        """Take one complete line (with its newline) into the buffer. Plain, never fails, no I/O."""

    @abstractmethod
    def flush(self) -> None:
        """One write(2) of all that was appended. Raises StoreError(retryable=True); nothing is lost or doubled:
        the next flush goes on where this one stopped."""

    @abstractmethod
    def sync(self) -> Future[None] | None:
        """Everything flushed so far is on disk when the future is done; None: it is already, or the store's
        `sync` mode is "process" and does not ask for it. One fdatasync serves all who wait. A new file's folder is
        synced too. The future fails with StoreError; after a failed sync the file is reopened and verified first."""

    @abstractmethod
    async def put_blobs(self, blobs: Sequence[tuple[str, bytes]], /) -> None:
        """Store `(sha256, bytes)` values, each once, durably (in "power" mode synced, with their folder)."""

    @abstractmethod
    async def write_context(self, lines: bytes, *, fresh: bool) -> None:
        """Append to the context file, or (fresh) replace it, header included. Never synced: the log is the truth."""

    @abstractmethod
    async def close(self) -> None:
        """Flush, bring the index file up to date, close. The lease is the caller's to give up."""

    async def discard(self) -> None:
        """Close, without what was appended and not flushed. For a session that could not be opened. Raises nothing."""
        with contextlib.suppress(StoreError):
            await self.close()


class Journals(ABC):
    """The logs of one store."""

    @property
    def upkeep(self) -> Upkeep | None:
        """The care of their files, where they are files."""
        return None

    @abstractmethod
    async def create(self, key: Key, header: Header, /) -> Journal:
        """A new log with its header appended, not yet flushed. Raises StoreError if there is one already."""

    @abstractmethod
    async def open(self, key: Key, /) -> Journal:
        """Open for appending. A torn last line is cut off and kept beside the log. The header says where the project is
        now (`fold.moved`), here and in `peek`.

        Raises SessionNotFound; SessionReadOnly for a newer version or a file without a usable header.
        """

    @abstractmethod
    async def peek(self, key: Key, /) -> tuple[Header, Fold]:
        """What the log says, without a lease, and nothing is changed. Raises SessionNotFound."""

    @abstractmethod
    def read(self, key: Key, /, *, after: int = 0, until: int | None = None) -> AsyncIterator[list[Stored]]:
        """The readable lines with `after < seq <= until` in file order, blobs put back, in windows of at most 2,000
        lines and about 1 MiB. Only the window is in memory. Reads in a thread; sees everything flushed."""

    @abstractmethod
    def path(
        self, key: Key, /, *, leaf: str | None = None, until: int | None = None, straight: bool = False
    ) -> AsyncIterator[list[Stored]]:
        """The entries from the root to `leaf` (default: the log's leaf) in order, windows as in `read`.

        `straight`: the holder of the log knows (by its Fold) that it never branched and that nothing is wrong with it, so
        that it is read straight through. An entry that hangs where a line was lost is preceded by a
        Stored of type "gap".
        """

    @abstractmethod
    async def last(self, key: Key, count: int, /) -> list[Stored]:
        """The last `count` entries of the path to the log's leaf, and the gaps between them."""

    @abstractmethod
    async def tree(self, key: Key, /) -> SessionTree:
        """The whole tree: ids, parents, types, leaf, damage."""

    @abstractmethod
    async def fork(self, source: Key, target: Key, header: Header, /, *, entry: str | None) -> None:
        """Write the path up to `entry` (default: the leaf), its labels, the newest config, commands, info facts as a new log.

        Blobs too. Synced.
        """

    @abstractmethod
    async def delete(self, key: Key, /) -> None:
        """Remove log, context, index, blobs. Absent is no error."""

    @abstractmethod
    def scan(self, user: str | None, /) -> AsyncIterator[Key]:
        """Every log of this user, in no order."""

    async def rows(self, keys: Sequence[Key], /) -> AsyncIterator[list[tuple[Key, Row | None]]]:
        """What the catalog keeps of each of these logs, in parts and any order, as if none were open. None: there is no log.

        One that cannot be read is left out.
        """
        from acpd.storage.rows import row_of

        for key in keys:
            with contextlib.suppress(StoreError):
                try:
                    header, fold = await self.peek(key)
                    yield [(key, row_of(key, header, fold, 0))]
                except SessionNotFound:
                    yield [(key, None)]

    async def sizes(self, keys: Sequence[Key], /) -> list[int | None]:
        """Bytes of each of these logs, as Row.size; None: there is none, or it is not known."""
        return [None for _ in keys]

    async def sweep(self, user: str | None, /, *, rest: float = 0) -> set[str]:  # noqa: ARG002 - `scan` has no pace
        """After a start: remove what killed processes left half made. Returns the ids of this user's sessions that have a log.

        `rest`: after each piece of work, so many times as long as it took. Raises StoreError. No log is read; a store
        without anything better goes through all of `scan`.
        """
        return {key.session async for key in self.scan(user)}

    @abstractmethod
    def log_path(self, key: Key, /) -> str:
        """Where the log is or would be, for people and messages."""

    async def close(self) -> None:
        """Close the logs that are still open, and free what is held."""


class Row(Struct, frozen=True, kw_only=True):
    """What the catalog knows of a session. Times are RFC 3339 in UTC. `size` is the log's when the row was written."""

    id: str
    agent: str
    user: str | None = None
    cwd: str = ""
    """The real path of the header's cwd."""
    title: str = ""
    createdAt: str = ""
    updatedAt: str = ""
    messages: int = 0
    prompted: bool = False
    seq: int = 0
    size: int = 0
    leaf: str | None = None
    inner: str = ""
    parent: str | None = None
    dirs: tuple[str, ...] = ()
    state: str = "clean"
    """"open": its lease was taken and not given up; the log may know more. "deleting": if there is no log any more,
    what is left of the session goes."""
    searched: int = 0
    """The seq up to which the session can be searched. The catalog's own: `put` leaves it as it is."""


class After(NamedTuple):
    """The place after one row of a listing."""

    updatedAt: str
    id: str


class Catalog(ABC):
    """The index of one user's sessions. Rebuildable from the logs; delete it and it is made anew."""

    @abstractmethod
    async def put(self, row: Row, /) -> None:
        """Insert or replace the row of `row.id`. That a known session is "open" outlives the machine (in "power" mode): its log
        is then read again at the next start.
        """

    @abstractmethod
    async def get(self, session_id: str, /) -> Row | None: ...

    @abstractmethod
    async def find(self, prefix: str, /, limit: int = 2) -> list[Row]:
        """Rows whose id starts with this text (taken literally), newest first."""

    @abstractmethod
    async def page(
        self, /, *, agent: str | None = None, cwd: str | None = None, after: After | None = None, limit: int = 100
    ) -> list[Row]:
        """Prompted sessions by updatedAt descending, then id descending; `after` is exclusive. Filters are exact."""

    async def agents(self) -> list[str]:
        """The agentIds of prompted sessions, in their order. A catalog that cannot tell looks through its newest ones."""
        return sorted({row.agent for row in await self.page(limit=1000)})

    async def opened(self) -> list[Row]:
        """The rows of sessions that are "open", prompted or not. A catalog that cannot tell looks through its newest ones."""
        return [row for row in await self.page() if row.state == "open"]

    @abstractmethod
    async def delete(self, session_id: str, /) -> None:
        """Absent is no error."""

    @abstractmethod
    async def known_inner(self, agent: str, ids: Sequence[str], /) -> set[str]:
        """Which of these are agents' own ids of sessions made with this agent."""

    @abstractmethod
    async def unprompted(self, before: str, /) -> list[Row]:
        """Clean rows that were never prompted and last changed before this time."""

    @abstractmethod
    async def recover(self, journals: Journals, progress: Callable[[int, int], None] | None = None, /) -> int:
        """At start: read the logs of "open" rows and of sessions without a row again (of all logs, when the catalog is new).

        Returns how many. `progress` is called with how many of how many were read.
        """

    async def mend(self, journals: Journals, progress: Callable[[int, int], None] | None = None, /) -> int:
        """The part of `recover` that listings of a start wait for. What it may leave to `compare`: logs that were put here, or
        taken away, by other means than acpd's. A catalog that does not part the two does all of it here.
        """
        return await self.recover(journals, progress)

    async def compare(self, journals: Journals, /, *, rest: float = 0) -> int:  # noqa: ARG002 - `mend` has done it
        """The other part, some seconds after a start. Returns how many logs were read.

        `rest`: after each piece of work, so many times as long as it took.
        """
        return 0

    async def faults(self) -> list[Found]:
        """What is wrong with the catalog in itself, whatever its rows say, for `acpd fsck`. Reads all of it; changes nothing.

        Raises StoreError.
        """
        return []

    async def renew(self) -> None:
        """Give up what has a fault of weight "behind": whoever next opens the catalog makes that anew. Raises StoreError."""

    @abstractmethod
    async def close(self) -> None:
        """Also writes `sessions.json` where it is behind. Raises StoreError if that fails; closed it is all the same."""


class SearchCatalog(Catalog):
    """A catalog that can be searched as well. One that cannot is a `Catalog`; then acpd says so to who searches.

    `delete` takes a session's documents with its row, so that no hit is left.
    """

    @abstractmethod
    async def place(self, session_id: str, /) -> int | None:
        """Where the next batch of this session begins (`Batch.after`). None: there is no row."""

    @abstractmethod
    async def index(self, session_id: str, batch: Batch, /, row: Row | None = None) -> bool:
        """Take these documents, and the row with them: both or neither. Small batches: others wait meanwhile.

        False, and no document is taken, if the session's place is no longer `batch.after`: somebody else was there first.
        """

    @abstractmethod
    async def behind(self, /, *, after: After | None = None, limit: int = 100) -> list[Row]:
        """Prompted sessions whose log is longer than what was searched of it, newest first; `after` is the last one's."""

    @abstractmethod
    async def search(self, find: Find, /) -> Hits:
        """Raises StoreError. One document is one hit; an entry that several sessions share (forks) is found once."""


class Lease(ABC):
    """The right to write one session. At most one process has it; it ends with the process, whatever kills it."""

    @abstractmethod
    async def take(self, key: Key, /) -> None:
        """Raises SessionBusy with the holder's pid. Taking it twice in one process is SessionBusy as well."""

    @abstractmethod
    async def give_up(self, key: Key, /) -> None:
        """Not held is no error."""

    @abstractmethod
    async def holder(self, key: Key, /) -> int | None:
        """The pid that holds it, or None."""

    async def held(self, keys: Sequence[Key], /) -> set[Key]:
        """Those that some process holds."""
        return {key for key in keys if await self.holder(key) is not None}


class Memories(Struct, frozen=True):
    """What is remembered, as it was read: `text` is MEMORY.md, `today` the newest of today's ledger.

    `recent` is the oldest of what was appended and is not consolidated yet, `grown` how many bytes of that there are in
    all; `age`: seconds since MEMORY.md was last consolidated, None: never. `seen` names all that, for `consolidate`;
    "": MEMORY.md is longer than what is read, and so may not be replaced.
    """

    text: str = ""
    today: str = ""
    recent: str = ""
    grown: int = 0
    age: float | None = None
    seen: str = ""


class Memory(ABC):
    """What agents remember beyond a session, as texts: one memory for each user and agent (the session of a key is only
    named as the source). A ledger a day, and MEMORY.md, which is made of them. Everything that is read is bounded.
    """

    @abstractmethod
    async def append(self, key: Key, text: str, /) -> int:
        """Add a section to today's ledger, durably. Lines that today's ledger, the one before it or MEMORY.md has are left
        out; returns how many were written. Raises StoreError, also for a section that is too long, or a full ledger.
        """

    @abstractmethod
    async def read(self, key: Key, /) -> Memories:
        """Raises StoreError."""

    @abstractmethod
    async def consolidate(self, key: Key, seen: str, text: str, /) -> None:
        """Replace MEMORY.md, all or nothing, if it still is what `read` gave with `seen`. Raises StoreError."""

    @abstractmethod
    async def texts(self, key: Key, path: str | None = None, /) -> list[tuple[str, str]]:
        """Path and text of MEMORY.md and the ledgers, the newest first; or of this one, no other path is looked at.

        Raises StoreError.
        """


class Backend(NamedTuple):
    """One store, opened. See the module's docstring for None."""

    session: Session
    journals: Journals | None = None
    catalog: Catalog | None = None
    lease: Lease | None = None
    memory: Memory | None = None
