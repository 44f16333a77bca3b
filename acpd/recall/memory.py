"""`_acpd/memory/*`: what an agent keeps beyond its sessions and finds again: of its session's user and of itself, no other.

`append`, `read` and `consolidate` are for the agent's program; `search` and `get` are its model's, so that their results are
texts, and what is wrong with a request is told in words for a model.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec
from msgspec import Struct

from acpd.errors import INVALID_PARAMS, METHOD_NOT_FOUND, RequestError
from acpd.recall.asker import Asker, refused
from acpd.recall.tools import QUOTED, MemoryGetArguments, MemorySearchArguments
from acpd.redaction import masked
from acpd.storage.contract import Key, Memory
from acpd.wire.texts import plain_lines

T = TypeVar("T", bound=Struct)

METHODS = "_acpd/memory/"
MATCHES = 50
"""Lines that a search shows, the newest."""
LINE = 300
"""Characters of a line that a search shows, around the match."""
LINES = 400
"""Lines that are got at once, and TEXT characters."""
TEXT = 32 * 1024
NAMED = 10
"""Ledgers that are named to who asks for one that there is not."""


class Append(Struct):
    """`text`: lines, one fact each."""

    text: str


class Consolidate(Struct):
    """`seen`: as `read` gave it; `text`: the whole of MEMORY.md."""

    seen: str
    text: str


def _of(asker: Asker) -> tuple[Memory, Key]:
    """Raises RequestError where the store keeps none."""
    if asker.store.memory is None:
        raise RequestError(METHOD_NOT_FOUND, "this store keeps no memory")
    return asker.store.memory, Key(asker.agent, asker.session, asker.user)


async def _append(asker: Asker, params: bytes) -> Mapping[str, object]:
    said = _decoded("append", params, Append)
    memory, key = _of(asker)
    return {"added": await memory.append(key, _masked(said.text))}


async def _read(asker: Asker, params: bytes) -> Mapping[str, object]:  # noqa: ARG001  there is nothing to say
    memory, key = _of(asker)
    return msgspec.structs.asdict(await memory.read(key))


async def _consolidate(asker: Asker, params: bytes) -> Mapping[str, object]:
    said = _decoded("consolidate", params, Consolidate)
    memory, key = _of(asker)
    await memory.consolidate(key, said.seen, _masked(said.text))
    return {}


def _masked(text: str) -> str:
    """Without what looks like a secret, line by line, whatever agent has said it: it is read for years."""
    return "\n".join(masked(line, max(1, len(line))) for line in text.split("\n"))


HANDLERS = {f"{METHODS}append": _append, f"{METHODS}read": _read, f"{METHODS}consolidate": _consolidate}
"""By method: for the agent's program. What is for its model is in acpd.recall.calling."""


def _decoded(what: str, params: bytes, into: type[T]) -> T:
    try:
        return msgspec.json.decode(params, type=into)
    except msgspec.DecodeError as error:
        raise RequestError(INVALID_PARAMS, f"{what}: {error}") from None


# -- for a model


async def search(asker: Asker, said: MemorySearchArguments) -> str:
    """`memory_search`: the lines that hold this text, whatever its case and accents, the newest first. Raises RequestError,
    StoreError.
    """
    memory, key = _of(asker)
    wanted = folded(said.query.strip())
    if not wanted:
        raise refused("Error: query is required")
    found: list[str] = []
    count = 0
    for path, number, line in _newest(await memory.texts(key)):
        at = folded(line).find(wanted)
        if at >= 0:
            count += 1
            if count <= MATCHES:
                found.append(f"Source: {path}#{number}: {_around(line.strip(), at)}")
    if not found:
        return f"No matches found for: {said.query.strip()}"
    more = f", the newest {MATCHES} of them" if count > MATCHES else ""
    return f"Found {count} {'match' if count == 1 else 'matches'}{more}. {QUOTED}\n\n" + "\n".join(found) + "\n"


def _newest(texts: Iterable[tuple[str, str]]) -> Iterable[tuple[str, int, str]]:
    """Path, number and text of each line: MEMORY.md from its beginning, ledgers from their ends."""
    for path, text in texts:
        lines = [(path, number, line) for number, line in enumerate(plain_lines(text), 1)]
        yield from lines if path.endswith("MEMORY.md") else reversed(lines)


def _around(line: str, at: int) -> str:
    """At most LINE characters of a line, with what is at this character, about, in it."""
    if len(line) <= LINE:
        return line
    start = max(0, min(at - LINE // 3, len(line) - LINE))
    return ("..." if start else "") + line[start : start + LINE] + ("..." if start + LINE < len(line) else "")


async def get(asker: Asker, said: MemoryGetArguments) -> str:
    """`memory_get`: lines of one file as `N|line`, LINES and TEXT at most. Raises RequestError, StoreError."""
    memory, key = _of(asker)
    found = await memory.texts(key, said.path)
    if not found:
        raise refused(await _absent(memory, key, said.path))
    ((path, text),) = found
    lines = plain_lines(text)
    if not 1 <= said.startLine <= min(said.endLine, max(1, len(lines))):
        raise refused(
            f"{path} has {len(lines)} line{'s' * (len(lines) != 1)}: startLine counts from 1, endLine is not before it"
        )
    shown = _within(lines, said.startLine, min(said.endLine, said.startLine + LINES - 1))
    last = said.startLine + len(shown) - 1
    if last < min(said.endLine, len(lines)):
        shown.append(f"[lines {said.startLine} to {last} of {len(lines)}: ask for the rest]")
    return "\n".join(shown) + "\n"


def _within(lines: Sequence[str], start: int, end: int) -> list[str]:
    shown: list[str] = []
    room = TEXT
    for number, line in enumerate(lines[start - 1 : end], start):
        text = f"{number}|{line}"
        if len(text) > room and shown:
            break
        shown.append(text[:room])
        room -= len(text)
    return shown


async def _absent(memory: Memory, key: Key, path: str) -> str:
    there = [name for name, _ in await memory.texts(key)]
    more = f", and {len(there) - NAMED} older ones" if len(there) > NAMED else ""
    known = f"there are {', '.join(there[:NAMED])}{more}" if there else "nothing is remembered yet"
    return f"there is no {path[:100]!r} in the memory: {known}"


def folded(text: str) -> str:
    """The text without case and accents."""
    plain = unicodedata.normalize("NFKD", text.casefold())
    return "".join(sign for sign in plain if not unicodedata.combining(sign)).casefold()
