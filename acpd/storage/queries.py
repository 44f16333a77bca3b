"""The language of search. Pure.

    login "exact words" prefix* prompt:login tool:"cargo build" path:src/auth -unwanted

Words that stand apart must all occur in one document (a prompt, a message, a thought, a tool call), in any order. A phrase is
words in a row. A scope before a word or phrase says where it must occur. A minus takes out the documents that have it.
Everything else is text: AND, NEAR, brackets, flags (`--all`), a quote that is not closed, a scope that there is not.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple
from unicodedata import normalize

from acpd.errors import QueryError

Scope = Literal["prompt", "answer", "thought", "tool", "path"]
SCOPES: tuple[Scope, ...] = ("prompt", "answer", "thought", "tool", "path")

LONGEST = 2000
"""Characters of a query."""
MOST = 64
"""Terms of a query."""

_TERM = re.compile(
    r"(?P<no>-(?=[^\s-]))?"  # two of them are a flag, which is text
    r"(?:(?P<scope>prompt|answer|thought|tool|path):(?=\S))?"
    r'(?:"(?P<phrase>[^"]*)"(?P<star>\*?)(?=\s|$)|(?P<word>\S+))'
)
_CONTENT = re.compile(r"[^\W_]")


class Term(NamedTuple):
    """One condition. `words` are texts without white space, to be found in a row; each may still be several tokens."""

    words: tuple[str, ...]
    scope: Scope | None = None
    prefix: bool = False
    """Whether the last word may go on."""
    negated: bool = False


class Query(NamedTuple):
    """`wanted` must all occur, `unwanted` not; at least one is wanted."""

    wanted: tuple[Term, ...]
    unwanted: tuple[Term, ...]


def parse(text: str) -> Query:
    """Raises QueryError for one without a word to look for, too long a one, and one that nothing can match. Linear."""
    if len(text) > LONGEST:
        raise QueryError(f"it has {len(text)} characters, {LONGEST} at most", hint="look for a few words of it")
    terms = [term for match in _TERM.finditer(text) if (term := _term(match)) is not None]
    if len(terms) > MOST:
        raise QueryError(f"it has {len(terms)} words, {MOST} at most", hint="look for a few words of it")
    wanted = tuple(term for term in terms if not term.negated)
    if not wanted:
        hint = "give at least one without a minus" if terms else "give at least one letter or digit"
        raise QueryError("it has no word to look for", hint=hint)
    _check(wanted)
    return Query(wanted, tuple(term for term in terms if term.negated))


def _term(match: re.Match[str]) -> Term | None:
    """None: only punctuation."""
    scope: Scope | None = match["scope"]  # type: ignore[assignment]  # the pattern has no others
    phrase, word = match["phrase"], match["word"]
    text = phrase if phrase is not None else word
    prefix = bool(match["star"]) if phrase is not None else text.endswith("*")
    words = tuple(each for each in text.split() if _CONTENT.search(normalize("NFKC", each)))  # a circled letter is one too
    return Term(words, scope, prefix, bool(match["no"])) if words else None


def _check(wanted: tuple[Term, ...]) -> None:
    """A document has one scope, but for a tool call, which has paths, and a prompt, which may name some."""
    scopes = {term.scope for term in wanted if term.scope not in (None, "path")}
    if len(scopes) > 1:
        named = " and ".join(f"{scope}:" for scope in SCOPES if scope in scopes)
        raise QueryError(f"{named} never stand in one place", hint="look for one of them at a time")
