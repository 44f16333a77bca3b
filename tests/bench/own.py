"""Measurements of acpd's own code, each in an interpreter of its own: python -m tests.bench.own FUNCTION [ARGUMENTS as JSON]

The result is one line of JSON on stdout. Seconds unless the name says otherwise.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

from acpd.needs import Agents, Settings, Store
from acpd.registry import Registry
from acpd.storage.contract import Backend, Key, Row
from acpd.tasks import Tasks
from acpd.wire import lines
from acpd.wire.ids import Clock, Ids
from acpd_backends.jsonl import JsonlJournals
from acpd_backends.stores import open_store
from tests.bench import words
from tests.bench.starting import fill_sessions

Figures = dict[str, float]
KEY = Key(agent="bench", session="big")
BRANCH = 50
"""An older entry is gone on from after so many, as in the kit's own tree."""
TAIL = 200


def _open(home: str) -> tuple[Backend, JsonlJournals]:
    """The store below this ACPD_HOME, sync=process."""
    backend = open_store("workspace", Path(home, "data"), sync="process")
    return backend, cast("JsonlJournals", backend.journals)


async def write_log(home: str, count: int) -> Figures:
    """A log of `count` entries of about 500 bytes that branches every BRANCH entries."""
    _, journals = _open(home)
    clock, ids, chance = Clock(), Ids(), random.Random(7)
    header = lines.Header(version=lines.VERSION, id=KEY.session, cwd="/src", agent=KEY.agent, createdAt=clock.now())
    journal = await journals.create(KEY, header)
    made: list[str] = []
    seq = 0
    for number in range(count):
        parent = made[-1] if made else None
        if number and number % BRANCH == 0:
            parent = made[max(0, number - 1 - chance.randint(0, 20))]
            seq += 1
            journal.append(lines.fact("leaf", ids.new(), seq, clock.now(), b',"entry":"%b"' % parent.encode()))
        made.append(ids.new())
        seq += 1
        text = b"x" * chance.randint(60, 260)
        update = b'{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"%b"}}' % text
        params = b'{"sessionId":"inner","update":%b}' % update
        body = b',"kind":"agent_message_chunk","messageId":"%b","params":%b' % (made[-1].encode(), params)
        journal.append(lines.entry("update", made[-1], parent, seq, clock.now(), body))
        if number % 1000 == 999:
            journal.flush()
    size = journal.size
    await journal.close()
    return {"entries": count, "megabytes": size / 1e6}


async def write_big(home: str, count: int) -> Figures:
    """A log of `count` entries of about 1,000 bytes, in turns of 50, as acpd writes it; with its index."""
    _, journals = _open(home)
    clock, ids = Clock(), Ids()
    name = ids.new()
    header = lines.Header(
        version=lines.VERSION, id=name, cwd="/src", agent=KEY.agent, command=("agent",), createdAt=clock.now()
    )
    journal = await journals.create(Key(agent=KEY.agent, session=name), header)
    text = b"x" * 690
    above: str | None = None
    for seq in range(1, count + 1):
        made = ids.new()
        kind, body = (
            "update",
            (
                b',"kind":"agent_message_chunk","messageId":"%b","cut":21,"params":{"sessionId":"inner","update":'
                b'{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"%b"}}}' % (made.encode(), text)
            ),
        )
        if seq % 50 == 1:
            kind, body = "prompt", b',"prompt":[{"type":"text","text":"%b"}]' % text
        elif seq % 50 == 2:
            kind, body = "turn", b',"state":"running"'
        elif seq % 50 == 0:
            kind, body = "turn", b',"state":"ended","stopReason":"end_turn"'
        journal.append(lines.entry(kind, made, above, seq, clock.now(), body))
        above = made
        if seq % 1000 == 0:
            journal.flush()
    size = journal.size
    await journal.close()
    return {"entries": count, "megabytes": size / 1e6}


async def _timed(work: Callable[[], Awaitable[Any]]) -> float:
    started = time.perf_counter()
    await work()
    return time.perf_counter() - started


async def open_log(home: str) -> Figures:
    """The whole tree and the path to its leaf; the last TAIL entries without an index, and with one."""
    _, journals = _open(home)
    index = journals.paths(KEY).index
    kept = index.read_bytes()
    index.unlink()

    async def all_of_it() -> None:
        tree = await journals.tree(KEY)
        assert len(tree.path()) > len(tree) // 2

    async def tail() -> None:
        assert len(await journals.last(KEY, TAIL)) == TAIL

    found = {"all": await _timed(all_of_it)}
    index.unlink(missing_ok=True)
    found["last"] = await _timed(tail)
    index.write_bytes(kept)
    found["indexed"] = await _timed(tail)
    return found


async def json_log(home: str) -> Figures:
    """The anchor: json.loads of every line, kept by id, and the path to the last entry."""
    _, journals = _open(home)
    path = journals.log_path(KEY)
    started = time.perf_counter()
    entries: dict[str, Any] = {}
    leaf: str | None = None
    with open(path, "rb") as log:
        next(log)
        for line in log:
            entry = json.loads(line)
            if "parentId" in entry:
                leaf = entry["id"]
                entries[entry["id"]] = entry
    branch = []
    while leaf is not None:
        branch.append(entries[leaf])
        leaf = entries[leaf]["parentId"]
    branch.reverse()
    return {"all": time.perf_counter() - started, "length": len(branch)}


def _row(number: int, stamp: int) -> Row:
    at = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(1_767_225_600 + stamp))}.000Z"
    title = f"Fix the flaky test number {number} in the parser module"
    cwd = f"/home/dev/project-{number % 40}"
    return Row(id=f"sess_{number:08d}", agent="bench", cwd=cwd, title=title, createdAt=at, updatedAt=at, prompted=True, seq=9)


async def fill_catalog(home: str, count: int) -> Figures:
    """A catalog of `count` prompted sessions, as acpd itself would have left it."""
    backend, journals = _open(home)
    assert backend.catalog is not None
    await backend.catalog.recover(journals)
    started = time.perf_counter()
    for first in range(0, count, 500):
        await asyncio.gather(*(backend.catalog.put(_row(number, number)) for number in range(first, min(first + 500, count))))
    seconds = time.perf_counter() - started
    await backend.catalog.close()
    return {"rows": count, "each_us": seconds / count * 1e6}


async def catalog_updates(home: str, count: int) -> Figures:
    """One update after the other, and 64 at once, in a catalog of `count` rows."""
    await fill_catalog(home, count)
    backend, _ = _open(home)
    catalog = backend.catalog
    assert catalog is not None
    chance, stamp = random.Random(3), count
    taken: list[float] = []
    end = time.perf_counter() + 1.5
    while time.perf_counter() < end:
        stamp += 1
        row = _row(chance.randrange(count), stamp)
        started = time.perf_counter()
        await catalog.put(row)
        taken.append(time.perf_counter() - started)
    batches: list[float] = []
    for _ in range(20):
        rows = [_row(chance.randrange(count), stamp + number) for number in range(64)]
        started = time.perf_counter()
        await asyncio.gather(*(catalog.put(row) for row in rows))
        batches.append((time.perf_counter() - started) / 64)
    await catalog.close()
    return {"p50_us": statistics.median(taken) * 1e6, "together_us": statistics.median(batches) * 1e6}


def _resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def idle_sessions(home: str, count: int) -> Figures:
    """Bytes of one live session that nobody talks to, without its agent, by the growth of this process."""
    backend, _ = _open(home)
    assert backend.journals is not None
    assert backend.catalog is not None
    assert backend.lease is not None
    store = Store(backend.session, backend.journals, backend.catalog, backend.lease)

    def report(name: str, error: BaseException) -> None:
        raise SystemExit(f"{name}: {error!r}")

    # Nobody prompts, so that no agent is ever brought up.
    registry = Registry(store, cast("Agents", None), Settings(), Tasks(report), None)

    async def make() -> None:
        session = await registry.create(await registry.header(registry.new_id(), "bench", "/home/dev/project", ("agent",)))
        session.scribe.commit()

    for _ in range(50):  # imports, threads, caches
        await make()
    before = _resident()
    started = time.perf_counter()
    for _ in range(count):
        await make()
    each = (time.perf_counter() - started) / count
    return {"bytes": (_resident() - before) / count, "make_us": each * 1e6}


async def appends(home: str) -> Figures:
    """Microseconds for one entry of 1 KiB: append and flush of a journal, against one write(2)."""
    _, journals = _open(home)
    clock, ids, count = Clock(), Ids(), 20_000
    header = lines.Header(version=lines.VERSION, id="a", cwd="/src", agent=KEY.agent, createdAt=clock.now())
    journal = await journals.create(Key(agent=KEY.agent, session="a"), header)
    body = b',"kind":"agent_message_chunk","params":{"text":"%b"}' % (b"x" * 830)
    entries = [lines.entry("update", ids.new(), None, seq, clock.now(), body) for seq in range(1, count + 1)]
    started = time.perf_counter()
    for entry in entries:
        journal.append(entry)
        journal.flush()
    own = time.perf_counter() - started
    bare = os.open(Path(home, "bare"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    started = time.perf_counter()
    for entry in entries:
        os.write(bare, entry)
    anchor = time.perf_counter() - started
    os.close(bare)
    await journal.close()
    return {"journal_us": own / count * 1e6, "write_us": anchor / count * 1e6, "bytes": float(len(entries[0]))}


async def fdatasync(folder: str, count: int) -> Figures:
    """The anchor of power-safe answers: 1 KiB and fdatasync, one after the other, on one CPU."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    path = Path(folder, "fdatasync")
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    entry = b"x" * 1023 + b"\n"
    taken: list[float] = []
    for _ in range(count):
        started = time.perf_counter()
        os.write(file, entry)
        os.fdatasync(file)
        taken.append(time.perf_counter() - started)
    os.close(file)
    path.unlink()
    return {"p50_us": statistics.median(taken) * 1e6}


Function = Callable[..., Awaitable[Figures]]
FUNCTIONS: dict[str, Function] = {
    "write_log": write_log,
    "write_big": write_big,
    "open_log": open_log,
    "json_log": json_log,
    "fill_catalog": fill_catalog,
    "catalog_updates": catalog_updates,
    "fill_sessions": fill_sessions,
    "idle_sessions": idle_sessions,
    "appends": appends,
    "fdatasync": fdatasync,
    "fill_words": words.fill,
    "turn_words": words.turn,
}


def main() -> None:
    import uvloop

    async def run() -> Figures:
        return await FUNCTIONS[sys.argv[1]](*json.loads(sys.argv[2]))

    print(json.dumps(uvloop.run(run())))
    sys.stdout.flush()
    os._exit(0)  # what is still open is a measurement's and no more


if __name__ == "__main__":
    main()
