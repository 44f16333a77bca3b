"""What search takes and gives, for `acpd.storage.contract.SearchCatalog`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec import Struct

from acpd.storage.contract import Row
from acpd.storage.queries import Query, Scope


class Document(Struct, frozen=True, gc=False, kw_only=True):
    """What search finds: a prompt, a message, a thought, or a tool call with the paths that it names."""

    entry: str
    """The id of its first entry; `seq` and `at` are that entry's."""
    seq: int
    at: str
    scope: Scope
    """Any but "path"."""
    text: str = ""
    paths: str = ""
    """One on each line."""


class Batch(NamedTuple):
    """What the lines of a log say that search did not know.

    `documents` take the place of all that it knew of the lines after `after`. Then it knows every line up to `until`; up to
    `settled` for good: the next batch begins there.
    """

    after: int
    until: int
    settled: int
    documents: Sequence[Document]


class Find(Struct, frozen=True, kw_only=True):
    """A search. Filters are exact and all must fit; `folders` empty: every one. In ms since 1970: `since` <= at < `until`.

    Newest first, or with `best` the best of the newest matches. At most `limit` hits, of one session at most `each` (0: any
    number).
    """

    query: Query
    agent: str | None = None
    folders: tuple[str, ...] = ()
    since: int | None = None
    until: int | None = None
    best: bool = False
    limit: int = 20
    each: int = 3


class Hit(Struct, frozen=True, kw_only=True):
    """One document that was found. Every second text of `snippet` is a match: before, match, between, match, after."""

    row: Row
    entry: str
    seq: int
    at: str
    scope: Scope
    snippet: tuple[str, ...]


class Hits(NamedTuple):
    hits: Sequence[Hit]
    more: bool
    """Whether there are others, of these sessions or not."""
    complete: bool
    """Whether every session was searched as far as the catalog knows its log."""
    whole: bool = True
    """Whether the catalog knows all sessions: it does not while it is being made anew."""
