"""What many logs say as rows of the catalog; where there are very many, several processes read them.

As a program (`python -m acpd_backends.rowreader`) this is one of those: each line of stdin is a JSON array of `Task`s, each of
stdout one of `Found`s in the same order. It ends with its stdin, and so with whoever started it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from acpd.storage.contract import Key, Row
from acpd.storage.rows import row_of
from acpd.wire.lines import VERSION, Header
from acpd_backends import logfile
from acpd_backends.logfile import LogFile, LogPaths

BATCH = 250
"""Logs that are read in one go: some 30 ms."""
MANY = 2_000
"""So many logs for each process: starting one costs as much as reading some hundred."""
MOST = 8
"""Processes."""


class Task(Struct, array_like=True, frozen=True):
    """One log, by its session and its files."""

    session: str
    agent: str
    user: str | None
    folder: str
    stem: str


class Found(Struct, array_like=True, frozen=True):
    """What a log says. `row` None: there is no such log, or (`unreadable`) it cannot be read."""

    row: Row | None
    unreadable: bool = False


def read(task: Task) -> Found:
    """Blocks, about 0.1 ms for a small log."""
    key = Key(agent=task.agent, session=task.session, user=task.user)
    try:
        with LogFile(LogPaths(Path(task.folder), task.stem)) as log:
            opened = logfile.fold_log(log)
            made_up = Header(version=VERSION, id=key.session, cwd="", agent=key.agent, user=key.user)
            return Found(row_of(key, opened.header or made_up, opened.fold, log.size))
    except FileNotFoundError:
        return Found(None)
    except OSError:
        return Found(None, unreadable=True)


async def read_all(tasks: Sequence[Task]) -> AsyncIterator[list[tuple[Task, Found]]]:
    """All of them, in parts."""
    batches = [tasks[start : start + BATCH] for start in range(0, len(tasks), BATCH)]
    count = min(len(tasks) // MANY, os.cpu_count() or 1, MOST)
    readers: list[_Here] = [_Here()] if count < 2 else await asyncio.to_thread(lambda: [_Reader() for _ in range(count)])
    try:
        for start in range(0, len(batches), len(readers)):
            parts = batches[start : start + len(readers)]
            asked = (asyncio.to_thread(reader.ask, part) for reader, part in zip(readers, parts, strict=False))
            for part, found in zip(parts, await asyncio.gather(*asked), strict=True):
                yield list(zip(part, found, strict=True))
    finally:
        await asyncio.shield(asyncio.to_thread(_close, readers))


def _close(readers: Sequence[_Here]) -> None:
    for reader in readers:
        reader.close()


class _Here:
    """Reads in this process."""

    def ask(self, tasks: Sequence[Task]) -> list[Found]:
        return [read(task) for task in tasks]

    def close(self) -> None: ...


class _Reader(_Here):
    """A process that reads. What it cannot do is done here."""

    def __init__(self) -> None:
        command = [sys.executable, "-P", "-m", __name__]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, cwd="/")

    def close(self) -> None:
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):  # what was left unsent
                    pipe.close()
        self._process.wait()

    def ask(self, tasks: Sequence[Task]) -> list[Found]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(OSError, ValueError):  # it was killed; an id that JSON cannot say
            self._process.stdin.write(msgspec.json.encode(tasks) + b"\n")
            self._process.stdin.flush()
            found = msgspec.json.decode(self._process.stdout.readline(), type=list[Found])
            if len(found) == len(tasks):
                return found
        return super().ask(tasks)


def main() -> None:
    os.nice(5)  # whoever waits for an answer of acpd comes first
    here = _Here()
    for line in sys.stdin.buffer:
        sys.stdout.buffer.write(msgspec.json.encode(here.ask(msgspec.json.decode(line, type=list[Task]))) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
