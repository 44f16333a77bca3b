"""`_acpd/memory/*`: what an agent keeps beyond its sessions and finds again: of its session's user and of itself, no other.

`append`, `read` and `consolidate` are for the agent's program; `search` and `get` are its model's, so that their results are
texts, and what is wrong with a request is told in words for a model.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

import msgspec
from msgspec import Struct

from acpd.errors import INTERNAL_ERROR, INVALID_PARAMS, METHOD_NOT_FOUND, RequestError, StoreError
from acpd.rpc.protocol import Then
from acpd.storage.contract import Key, Memory
from acpd.wire.envelope import encode

T = TypeVar("T", bound=Struct)

METHODS = "_acpd/memory/"
MATCHES = 50
"""Lines that a search shows, the newest."""
LINE = 300
"""Characters of a line that a search shows, around the match."""
QUERY = 500
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


class Search(Struct):
    query: str


class Get(Struct):
    """`startLine` and `endLine` count from 1, both are shown."""

    path: str
    startLine: int = 1
    endLine: int = LINES


class _Call(Struct):
    arguments: msgspec.Raw = msgspec.Raw(b"{}")


async def serve(memory: Memory | None, key: Key, method: str, params: bytes, reply: Then) -> None:
    """Answer one request of the agent of this session."""
    try:
        reply(await _answer(memory, key, method.removeprefix(METHODS), params), None)
    except RequestError as error:
        reply(None, error)
    except StoreError as error:
        code = INTERNAL_ERROR if isinstance(error.__cause__, OSError) else INVALID_PARAMS
        reply(None, RequestError(code, str(error)))


async def _answer(memory: Memory | None, key: Key, what: str, params: bytes) -> bytes:
    work = _WORKS.get(what)
    if memory is None or work is None:
        raise RequestError(METHOD_NOT_FOUND, f"unknown method {METHODS}{what[:100]}")
    return encode(await work(memory, key, params))


async def _append(memory: Memory, key: Key, params: bytes) -> object:
    return {"added": await memory.append(key, _decoded("append", params, Append).text)}


async def _read(memory: Memory, key: Key, params: bytes) -> object:  # noqa: ARG001  there is nothing to say
    return await memory.read(key)


async def _consolidate(memory: Memory, key: Key, params: bytes) -> object:
    said = _decoded("consolidate", params, Consolidate)
    await memory.consolidate(key, said.seen, said.text)
    return {}


async def _search(memory: Memory, key: Key, params: bytes) -> object:
    return {"text": await searched(memory, key, _arguments("memory_search", params, Search))}


async def _get(memory: Memory, key: Key, params: bytes) -> object:
    return {"text": await got(memory, key, _arguments("memory_get", params, Get))}


_WORKS: dict[str, Callable[[Memory, Key, bytes], Awaitable[object]]] = {
    "append": _append,
    "read": _read,
    "consolidate": _consolidate,
    "search": _search,
    "get": _get,
}


def _decoded(what: str, params: bytes, into: type[T]) -> T:
    try:
        return msgspec.json.decode(params, type=into)
    except msgspec.DecodeError as error:
        raise RequestError(INVALID_PARAMS, f"{what}: {error}") from None


def _arguments(tool: str, params: bytes, into: type[T]) -> T:
    """Numbers may be written as texts, as some models do."""
    try:
        return msgspec.json.decode(_decoded(tool, params, _Call).arguments, type=into, strict=False)
    except msgspec.DecodeError as error:
        raise RequestError(INVALID_PARAMS, f"{tool}: {error}") from None


# -- for a model


async def searched(memory: Memory, key: Key, said: Search) -> str:
    """`memory_search`: the lines that hold this text, whatever its case and accents, the newest first. Raises RequestError,
    StoreError.
    """
    wanted = folded(said.query.strip())
    if not wanted or len(said.query) > QUERY:
        raise RequestError(INVALID_PARAMS, f"query is required, of at most {QUERY} characters")
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
    return f"Found {count} {'match' if count == 1 else 'matches'}{more}:\n\n" + "\n".join(found) + "\n"


def _newest(texts: Iterable[tuple[str, str]]) -> Iterable[tuple[str, int, str]]:
    """Path, number and text of each line: MEMORY.md from its beginning, ledgers from their ends."""
    for path, text in texts:
        lines = [(path, number, line) for number, line in enumerate(text.splitlines(), 1)]
        yield from lines if path.endswith("MEMORY.md") else reversed(lines)


def _around(line: str, at: int) -> str:
    """At most LINE characters of a line, with what is at this character, about, in it."""
    if len(line) <= LINE:
        return line
    start = max(0, min(at - LINE // 3, len(line) - LINE))
    return ("..." if start else "") + line[start : start + LINE] + ("..." if start + LINE < len(line) else "")


async def got(memory: Memory, key: Key, said: Get) -> str:
    """`memory_get`: lines of one file as `N|line`, LINES and TEXT at most. Raises RequestError, StoreError."""
    found = await memory.texts(key, said.path)
    if not found:
        raise RequestError(INVALID_PARAMS, await _absent(memory, key, said.path))
    ((path, text),) = found
    lines = text.splitlines()
    if not 1 <= said.startLine <= min(said.endLine, max(1, len(lines))):
        raise RequestError(INVALID_PARAMS, f"{path} has {len(lines)} lines: startLine counts from 1, endLine is not before it")
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
