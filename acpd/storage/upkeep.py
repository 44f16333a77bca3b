"""What can be wrong with a stored session, what it means, what to do, and the contract of who does it: `acpd fsck`. Pure.

`KINDS` names every finding there is. Its weight says what it costs: "damage" has cost something, or will; "behind" is a
cache that says less or else than the log, and is made anew; "note" costs nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

from msgspec import Struct

from acpd.storage.contract import Key
from acpd.storage.fold import Fold
from acpd.storage.tree import Finding
from acpd.wire.lines import Header


class Kind(NamedTuple):
    """`log`: a repaired copy of the log is without it. Else only what `remedy` says helps."""

    weight: str
    meaning: str
    remedy: str
    log: bool = False


_COPY = "acpd fsck --repair ID writes a copy without it and keeps this file"
_ANEW = "acpd fsck --repair ID makes it anew; so does acpd itself when it next has the session open"
_GC = "acpd gc removes it"

NEWER = "newer-version"
"""Of such a session nothing else is judged or changed: its caches may be of another kind, too."""

KINDS: dict[str, Kind] = {
    "torn-tail": Kind("damage", "the last line was cut off while it was written; it does not count", _COPY, log=True),
    "json": Kind("damage", "this line is no JSON: what stood there is lost, the others count", _COPY, log=True),
    "nul": Kind("damage", "NUL bytes: a page that the machine never wrote; what stood there is lost", _COPY, log=True),
    "utf8": Kind("damage", "this line is no UTF-8: what stood there is lost, the others count", _COPY, log=True),
    "depth": Kind("damage", "this line is nested too deeply to be read; the others count", _COPY, log=True),
    "record": Kind("damage", "JSON, but not a line of a log; the others count", _COPY, log=True),
    "missing-parent": Kind("damage", "the entry before it is gone: shown with a gap mark behind the last one", _COPY, log=True),
    "cycle": Kind("damage", "an entry that comes after itself: shown with a gap mark behind the last one", _COPY, log=True),
    "duplicate-id": Kind("damage", "an id that an earlier entry has; both are shown", _COPY, log=True),
    "repeated-line": Kind("damage", "a line that stands twice; it counts once", _COPY, log=True),
    "missing-leaf": Kind("damage", "it says to go on at an entry that is not there; it does not count", _COPY, log=True),
    "empty": Kind(
        "damage", "the file is empty: acpd was killed before the first write, or the file system lost it", _COPY, log=True
    ),
    "header-missing": Kind("damage", "the first line is no header: it can be read, not gone on with", _COPY, log=True),
    "other-id": Kind("damage", "the header names another session; the name of the file counts", _COPY, log=True),
    NEWER: Kind("damage", "a newer acpd wrote it: it is read, and nothing of it is judged or changed", "update acpd"),
    "seq": Kind("damage", "the numbers of the lines do not rise by one: lines were lost, or stand twice", _COPY, log=True),
    "missing-blob": Kind("damage", "a big text or image is gone; words stand in its place", "put the file back from a backup"),
    "wrong-blob": Kind("damage", "a big text or image is not what its name says", "put the file back from a backup"),
    "state": Kind(
        "damage",
        "a state that is no JSON; where it is the agent's memory, every prompt is an error until that is mended",
        "put it back from a backup, or remove the file: the conversation is then told from the log",
    ),
    "state-fold": Kind("behind", "a state that is no JSON, or newer than the log it was made from", _ANEW),
    "index-wrong": Kind("behind", "the index does not describe this log", _ANEW),
    "index-behind": Kind("behind", "the index does not reach the end of the log", _ANEW),
    "context-wrong": Kind("behind", "the context file is not what the log says", _ANEW),
    "context-behind": Kind("behind", "the context file does not reach the end of the log", _ANEW),
    "row-missing": Kind(
        "behind", "the catalog does not list this session", "any start of acpd finds it; acpd fsck --repair ID too"
    ),
    "row-behind": Kind("behind", "the catalog says something else than the log", _ANEW),
    "row-alone": Kind(
        "behind", "the catalog lists a session that has no log", "acpd fsck --repair drops it; or put the log back"
    ),
    "catalog": Kind(
        "behind", "the catalog's file is damaged; it is only a cache", "acpd fsck --repair makes it anew of the logs"
    ),
    "search-index": Kind(
        "behind",
        "the search index is not in order in itself",
        "acpd fsck --repair empties it; it is filled again from the logs",
    ),
    "database": Kind("damage", "the file of the states and the catalog is damaged", "put it back from a backup"),
    "two-records": Kind("note", "several records on one line; all are read", "nothing to do"),
    "second-root": Kind("note", "an entry without a parent that is not the first: a tree of its own", "nothing to do"),
    "no-log": Kind("note", "files of a session that has no log", "put the log back from a backup, or remove them"),
    "orphan-blob": Kind("note", "a blob that no line names", _GC),
    "temp": Kind("note", "a file that a killed process left half written", _GC),
    "kept": Kind(
        "note", "what was put aside: a torn line, a damaged original, an unreadable copy", "acpd gc --aside removes it"
    ),
    "open": Kind("note", "somebody has it open: what is made of the log is not looked at", "close it there, then try again"),
}


class Found(Struct, frozen=True, kw_only=True):
    """One finding. `line` is 1-based, 0: of the file as a whole. `bytes`: of a file that could go."""

    kind: str
    path: str
    line: int = 0
    detail: str = ""
    bytes: int = 0

    @property
    def weight(self) -> str:
        return KINDS[self.kind].weight


class Checked(NamedTuple):
    """What a log says, and what is wrong with it and its files. `size`: bytes of it that were looked at."""

    header: Header | None
    fold: Fold
    size: int
    found: list[Found]


def of_tree(path: str, findings: Sequence[Finding]) -> list[Found]:
    """Findings of a tree as findings of a file."""
    return [Found(kind=each.kind, path=path, line=each.line, detail=each.detail) for each in findings]


class Upkeep(ABC):
    """The care of logs that are files. For a store whose logs are none there is nothing of the kind."""

    @abstractmethod
    async def check(self, key: Key, /, *, live: bool) -> Checked:
        """Read all of one session's files. `live`: somebody else has it open, so that its end and its caches may be half
        done. Takes linear time, and 60 bytes a line of a log without damage. Raises SessionNotFound, StoreError.
        """

    @abstractmethod
    async def repair(self, key: Key, header: Header, /) -> list[str]:
        """Put a repaired copy in the log's place, which keeps its name with `.damaged-<n>` behind it; the caller has the
        lease. `header` serves where the log has none. Killed at any point it leaves the old or the new. The paths of what
        was kept. Raises StoreError.
        """

    @abstractmethod
    async def renew(self, key: Key, /) -> None:
        """Make index and context anew where they are wrong or behind; the caller has the lease. Raises StoreError."""

    @abstractmethod
    async def left(self, user: str | None, /) -> list[Found]:
        """What lies in this user's folders beside the sessions: kinds "temp", "kept", "no-log". Raises StoreError."""

    @abstractmethod
    async def unused(self, key: Key, /) -> list[Found]:
        """The blobs that no line of the log, nor of what was put aside of it, names. Raises StoreError."""

    @abstractmethod
    async def weigh(self, key: Key, /) -> int:
        """Bytes that deleting this session's log, blobs and caches would free. Raises StoreError."""

    @abstractmethod
    async def remove(self, found: Sequence[Found], /) -> None:
        """Remove these files. Absent is no error. Raises StoreError."""
