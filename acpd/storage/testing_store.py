"""What the conformance suites share: the store under test, here and in other processes, and what they put into it."""

from __future__ import annotations

import asyncio
import importlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar, TypeVar, cast

from msgspec.structs import replace

from acpd.errors import StoreError
from acpd.storage.contract import Backend, Journal, Journals, Key, Row
from acpd.wire.ids import Clock
from acpd.wire.lines import Header, Parent, Stored, entry

T = TypeVar("T")
E = TypeVar("E", bound=BaseException)

_clock = Clock()

ODD_NAMES = (
    "..", ".", "a/b", "/etc/passwd", "a b", "YSBiL2M", "A", "a", "x.log", "x", "CON", "nul", "n" * 300, "N" * 300, "\U0001f600",
    "\ud800", "\udfff", "e\u0301", "\u00e9", "%2e", "u-x", "~", "a\x00b", "a\nb", ".json", "sessions.json", "context",
    "-", "'\";--",
)  # fmt: skip
"""Names that something in the world once took for something else."""


class Store:
    """What all suites share: the store under test, here and in other processes."""

    store: ClassVar[str]
    """`module:function`; the function takes the root folder and gives a Backend, the same one in every process."""

    @asynccontextmanager
    async def opened(self, root: Path) -> AsyncGenerator[Backend]:
        backend = open_store(self.store, root)
        try:
            yield backend
        finally:
            await close(backend)

    def child(self, action: Callable[..., object], root: Path, *arguments: str) -> subprocess.Popen[str]:
        """Another process that does one of the `child_...` coroutines below. Blocks."""
        program = "import sys; from acpd.storage.testing_store import child_main; child_main(sys.argv[1:])"
        command = [sys.executable, "-c", program, self.store, action.__name__, str(root), *arguments]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        return subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True, env=environment)

    async def run_children(self, action: Callable[..., object], root: Path, *each: tuple[str, ...]) -> list[str]:
        """What they printed, once all have ended. Raises AssertionError if one failed."""
        children = [await asyncio.to_thread(self.child, action, root, *arguments) for arguments in each]
        outputs = await asyncio.gather(*(asyncio.to_thread(child.communicate) for child in children))
        assert [child.returncode for child in children] == [0] * len(children)
        return [output for output, _ in outputs]


def open_store(store: str, root: Path) -> Backend:
    module, _, name = store.partition(":")
    return cast("Backend", getattr(importlib.import_module(module), name)(root))


async def close(backend: Backend) -> None:
    """In this order: the catalog hears of what the journals wrote last."""
    if backend.journals is not None:
        await backend.journals.close()
    if backend.catalog is not None:
        await backend.catalog.close()
    await backend.session.close()


# What the tests are made of.

KEY = Key("agent", "s")


def part(part: T | None) -> T:
    assert part is not None, "this suite needs a backend with that part"
    return part


def header_of(session: str, parent: Parent | None = None) -> Header:
    return Header(version=1, id=session, cwd="/src/x", agent="agent", createdAt="2026-01-01T00:00:00.000Z", parent=parent)


def prompt_line(identifier: str, parent: str | None, seq: int) -> bytes:
    return entry("prompt", identifier, parent, seq, _clock.now(), b',"prompt":[{"type":"text","text":"hi"}]')


async def new_journal(journals: Journals, key: Key, *, turns: int) -> Journal:
    """A new log with prompts e1, e2, ... in one line of descent, flushed."""
    journal = await journals.create(key, header_of(key.session))
    for seq in range(1, turns + 1):
        journal.append(prompt_line(f"e{seq}", f"e{seq - 1}" if seq > 1 else None, seq))
    journal.flush()
    return journal


async def read_all(journals: Journals, key: Key, *, after: int = 0, until: int | None = None) -> list[Stored]:
    return [line async for window in journals.read(key, after=after, until=until) for line in window]


async def read_path(journals: Journals, key: Key, leaf: str | None = None) -> list[Stored]:
    return [line async for window in journals.path(key, leaf=leaf) for line in window]


def row_at(identifier: str, second: int, **fields: Any) -> Row:
    at = f"2026-01-01T00:{second // 60:02}:{second % 60:02}.000Z"
    return replace(Row(id=identifier, agent="agent", cwd="/src/x", updatedAt=at, prompted=True, createdAt=at), **fields)


def big_value(number: int) -> bytes:
    """A value that shows when it is torn: its number, many times."""
    return b'"%08d' % number + b"%08d" % number * 250_000 + b'"'


def below(folder: Path) -> list[Path]:
    return list(folder.rglob("*"))


def kill(child: subprocess.Popen[str]) -> None:
    child.send_signal(signal.SIGKILL)
    child.communicate()


def kill_after(child: subprocess.Popen[str], lines: int, seconds: float = 0.0) -> int:
    """Kill it that long after it has printed that many numbers: somewhere in its work. The last one it printed."""
    assert child.stdout is not None
    numbers = [int(child.stdout.readline()) for _ in range(lines)]
    with suppress(subprocess.TimeoutExpired):
        child.wait(seconds)
    child.send_signal(signal.SIGKILL)
    output, _ = child.communicate()
    return int((output.rsplit("\n", 1)[0].rsplit("\n", 1)[-1]) or numbers[-1])


async def raises(kind: type[E], work: Awaitable[object]) -> E:
    try:
        await work
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was not raised")


# What other processes do. What they have to tell goes to stdout.


def child_main(arguments: list[str]) -> None:
    store, action, root, *rest = arguments
    asyncio.run(globals()[action](open_store(store, Path(root)), *rest))


def tell(text: object) -> None:
    os.write(1, f"{text}\n".encode())


async def child_save(store: Backend, session: str, first: str, count: str) -> None:
    for number in range(int(first), int(first) + int(count)):
        await store.session.save(Key("agent", session), f"n{number}", b"%d" % number)
    await close(store)


async def child_save_for_ever(store: Backend) -> None:
    value = await store.session.load(KEY, "memory")
    number = int(value[1:9]) if value else 0
    while True:
        number += 1
        await store.session.save(KEY, "memory", big_value(number))
        tell(number)


async def child_save_too_much(store: Backend) -> None:
    """As on a full disk: no file may grow beyond 256 KiB. (Python ignores SIGXFSZ.)"""
    import resource

    assert await store.session.load(KEY, "memory") == b'"old"'
    resource.setrlimit(resource.RLIMIT_FSIZE, (256 * 1024, 256 * 1024))
    await raises(StoreError, store.session.save(KEY, "memory", b'"' + b"x" * 4_000_000 + b'"'))
    tell("refused")


async def child_append_for_ever(store: Backend) -> None:
    journal = await new_journal(part(store.journals), KEY, turns=1)
    seq = 1
    while True:
        tell(seq)
        seq += 1
        journal.append(prompt_line(f"e{seq}", f"e{seq - 1}", seq))
        journal.flush()


async def child_hold(store: Backend) -> None:
    await part(store.lease).take(KEY)
    tell("held")
    await asyncio.Event().wait()
