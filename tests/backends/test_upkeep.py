"""What fsck knows of the files of a session, and repairs that are cut off at any point."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import subprocess
import sys
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from acpd.care import look, mend
from acpd.needs import Store
from acpd.storage import tree
from acpd.storage.contract import Key, Row
from acpd.storage.upkeep import KINDS, Found
from acpd.wire.blobs import extract
from acpd.wire.ids import Ids
from acpd.wire.lines import entry, fact, header_line
from acpd_backends import fsck, repairs
from acpd_backends.files import Files
from acpd_backends.jsonl import JsonlJournals
from acpd_backends.names import Layout
from acpd_backends.stores import open_store
from tests.backends.journal_logs import AT, HEADER, KEY, Dying, Killed, chain, path, place, plain, update
from tests.support.walk import below

BIG = b'{"sessionId":"s","update":{"text":"%b"}}' % (b"x" * 70_000)


def open_all(root: Path, files: Files | None = None) -> Store:
    backend = open_store("workspace", root, sync="power", files=files or Files())
    assert backend.journals is not None
    assert backend.catalog is not None
    assert backend.lease is not None
    return Store(backend.session, backend.journals, backend.catalog, backend.lease)


async def close(store: Store) -> None:
    await store.journals.close()
    await store.catalog.close()
    await store.session.close()


def kinds(found: Sequence[Found]) -> list[str]:
    return sorted(each.kind for each in found)


async def looked(root: Path, key: Key = KEY) -> list[Found]:
    store = open_all(root)
    report = await look(store, key, listed=False)
    await close(store)
    return report.found


async def with_blob(root: Path) -> tuple[Path, Path]:
    """A log that names a blob: the log and the blob."""
    journals = JsonlJournals(Layout(root))
    journal = await journals.create(KEY, HEADER)
    text, offsets, blobs = extract(BIG)
    await journal.put_blobs(blobs)
    where = ",".join(map(str, offsets)).encode()
    journal.append(update(1, None, b',"params":%b,"blobs":[%b]' % (text, where)))
    journal.flush()
    await journal.close()
    log = Path(journals.log_path(KEY))
    return log, journals.paths(KEY).blobs / blobs[0][0]


async def test_blobs_are_checked(tmp_path: Path) -> None:
    """A blob that is gone, that has other bytes, and one that no line names are told with the line that names them."""
    log, blob = await with_blob(tmp_path)
    assert [] == await looked(tmp_path)
    stray = blob.with_name(hashlib.sha256(b"stray").hexdigest())
    stray.write_bytes(b"stray")
    (found,) = await looked(tmp_path)
    assert ("orphan-blob", str(stray), 5) == (found.kind, found.path, found.bytes)
    whole = blob.read_bytes()
    blob.write_bytes(whole.replace(b"x", b"y", 1))
    assert [("wrong-blob", 2, str(log))] == [(each.kind, each.line, each.path) for each in await looked(tmp_path)]
    blob.unlink()
    (found,) = await looked(tmp_path)
    assert ("missing-blob", 2, str(blob)) == (found.kind, found.line, found.detail)
    store = open_all(tmp_path)
    assert ["missing-blob"] == kinds((await mend(store, KEY)).found)
    await close(store)
    assert stray.exists(), "what a damaged log names is not known for certain"


async def test_a_blob_of_what_was_put_aside_is_not_unused(tmp_path: Path) -> None:
    """A blob that only a line cut off, or the damaged original names stays."""
    log, blob = await with_blob(tmp_path)
    with log.with_name(f"{log.name}.torn-1").open("wb") as torn:
        torn.write(log.read_bytes().splitlines()[1][:-3])
    log.write_bytes(header_line(HEADER) + b"".join(chain(2)))
    log.with_name("session.idx").unlink()
    assert [] == kinds(await looked(tmp_path))
    log.with_name(f"{log.name}.torn-1").unlink()
    assert ["orphan-blob"] == kinds(await looked(tmp_path))
    assert blob.exists()


async def test_caches_are_checked(tmp_path: Path) -> None:
    """An index or a context of another log is wrong, one that does not reach the end is behind; both are made anew."""
    ids = Ids()
    journals = JsonlJournals(Layout(tmp_path))
    journal = await journals.create(KEY, HEADER)
    journal.append(entry("prompt", ids.new(), None, 1, AT, b',"prompt":[{"type":"text","text":"hi"}]'))
    journal.append(fact("info", ids.new(), 2, AT, b',"title":"t"'))
    journal.flush()
    await journal.close()
    index, context = journals.paths(KEY).index, journals.paths(KEY).context
    sound = index.read_bytes()
    for data, said in (
        (sound[:32], "index-behind"),
        (sound[:40], "index-wrong"),
        (sound[:12] + b"\1" + sound[13:], "index-wrong"),
    ):
        index.write_bytes(data)
        assert [said] == kinds(await looked(tmp_path))
    context.write_bytes(header_line(HEADER))
    assert ["index-wrong"] == kinds(await looked(tmp_path))  # no turn is over, so that there is nothing more to say
    context.write_bytes(header_line(HEADER) + b'{"type":"message"}\n')
    assert ["context-wrong", "index-wrong"] == kinds(await looked(tmp_path))
    store = open_all(tmp_path)
    assert [] == (await mend(store, KEY)).found
    await close(store)
    assert (sound, header_line(HEADER)) == (index.read_bytes(), context.read_bytes())


async def test_states_are_checked(tmp_path: Path) -> None:
    """A state that is no JSON is told; one that is only a fold of the log, or newer than it, is dropped by a repair."""
    place(tmp_path, *chain(2))
    store = open_all(tmp_path)
    await store.session.save(KEY, "acpd.plan", b'{"seq":3,"value":{}}')
    await store.session.save(KEY, "acpd.usage", b'{"seq":2,"value":{}}')
    await store.session.save(KEY, "memory", b"{}")
    memory = below(tmp_path, "memory.json")[0]
    memory.write_bytes(b"{")
    assert ["state", "state-fold"] == kinds((await look(store, KEY, listed=False)).found)
    assert ["state"] == kinds((await mend(store, KEY)).found)
    assert "every prompt is an error" in KINDS["state"].meaning
    assert "remove the file: the conversation is then told from the log" in KINDS["state"].remedy
    assert ["acpd.usage", "memory"] == await store.session.names(KEY)
    assert b"{" == memory.read_bytes()
    await close(store)


def test_every_finding_of_a_tree_has_words() -> None:
    """What the tree's table names, fsck explains."""
    assert tree.__doc__ is not None
    rows = re.findall(r"^\| ([a-z0-9, -]+) \|", tree.__doc__, re.MULTILINE)
    found = {kind for row in rows for kind in row.split(", ")} - {"finding"}
    assert len(found) > 10
    assert found <= set(KINDS)


async def test_what_lies_about_is_told(tmp_path: Path) -> None:
    """Files of dead processes, what was put aside, and files of a session without a log are told; nobody's others are."""
    _, log = place(tmp_path, *chain(1))
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    names = {
        f"session.jsonl.{ended.pid}-1.tmp": "temp",
        f"session.idx.{os.getppid()}-1.tmp": "",
        "session.log.jsonl.torn-1": "kept",
        "session.log.jsonl.damaged-2": "kept",
        "sessions.json.unreadable-0123456789ab": "kept",
        "other.jsonl": "no-log",
        "notes.txt": "",
    }
    for name in names:
        (log.parent / name).write_bytes(b"x" * 10)
    upkeep = open_all(tmp_path).journals.upkeep
    assert upkeep is not None
    left = await upkeep.left(None)
    assert {name: kind for name, kind in names.items() if kind} == {Path(each.path).name: each.kind for each in left}
    assert 40 == sum(each.bytes for each in left)
    await upkeep.remove([each for each in left if each.kind != "no-log"])
    assert ["no-log"] == kinds(await upkeep.left(None))


async def test_a_repair_is_on_disk_step_by_step(tmp_path: Path) -> None:
    """The original's second name, the copy's bytes, the copy's name: each is synced before what follows is done."""
    order: list[str] = []

    class Ordered(Files):
        def link(self, source: Path, target: Path) -> None:
            super().link(source, target)
            order.append("kept")

        def fdatasync(self, fd: int) -> None:
            super().fdatasync(fd)
            order.append("bytes")

        def fsync(self, fd: int) -> None:
            super().fsync(fd)
            order.append("names")

        def replace(self, source: Path, target: Path) -> None:
            super().replace(source, target)
            order.append("in place")

    journals, _ = place(tmp_path, *chain(3), b"{bad\n", update(4, 3))
    await asyncio.to_thread(repairs.repair, journals.paths(KEY), HEADER, Ordered())
    assert ["kept", "names", "bytes", "in place", "names"] == order


async def test_a_repair_that_is_killed_leaves_the_old_or_the_new(tmp_path: Path) -> None:
    """Cut off after any step the log is whole, one or the other, and shows the same; repaired again it is the same copy."""
    damaged = [*chain(3), b'{"type":"upd\n', *chain(3, start=5), update(7, 6)[:-9]]
    results = set[bytes]()
    before = ""
    for at in range(1, 20):
        root = tmp_path / str(at)
        journals, log = place(root, *damaged)
        was = log.read_bytes()
        shown = [(line.id, line.type) for line in await path(journals)]
        dying = Dying(at)
        store = open_all(root, dying)
        try:
            assert store.journals.upkeep is not None
            await store.journals.upkeep.repair(KEY, HEADER)
        except Killed:
            now = log.read_bytes()
            assert now == was or results <= {now}
            assert shown == [(line.id, line.type) for line in await path(journals)]
            again = open_all(root)
            assert again.journals.upkeep is not None
            await again.journals.upkeep.repair(KEY, HEADER)
            assert was in {each.read_bytes() for each in log.parent.glob("*.damaged-*")}
        results.add(log.read_bytes())
        assert shown == [(line.id, line.type) for line in await path(journals)]
        if dying.steps < at:
            break
        before = f"killed at step {at}"
    assert before
    assert 1 == len(results)


@pytest.mark.parametrize("damage", [b"", b'{"type":"upd\n'])
async def test_a_long_log_takes_bounded_memory(damage: bytes, tmp_path: Path) -> None:
    """60 bytes a line where nothing is wrong, 600 where something is; what is found is the same as of a short one."""
    ids = Ids()
    count = 20_000
    lines: list[bytes] = []
    parent = None
    for number in range(1, count + 1):
        name = ids.new()
        lines.append(entry("update", name, parent, number, AT, b',"kind":"agent_message_chunk","params":{"x":1}'))
        parent = name
    journals, _ = place(tmp_path, *lines, damage)
    tracemalloc.start()
    checked = await asyncio.to_thread(fsck.check, journals.paths(KEY), live=False)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (["json"] if damage else []) == kinds(checked.found)
    assert (count, parent) == (checked.fold.seq, checked.fold.leaf)
    assert peak < (8 << 20) + count * (600 if damage else 60)


async def test_the_fold_is_the_one_of_an_open(tmp_path: Path) -> None:
    """What fsck makes of a log is what opening it makes of it, damaged or not."""
    for number, lines in enumerate(([*chain(4)], [*chain(2), b"\n", b"\0" * 50 + b"\n", update(4, 3)])):
        journals, _ = place(tmp_path / str(number), *lines)
        header, fold = await journals.peek(KEY)
        checked = await asyncio.to_thread(fsck.check, journals.paths(KEY), live=False)
        assert (header, plain(fold)) == (checked.header, plain(checked.fold))


async def test_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    """Of a log of a newer version nothing else is judged, and a repair changes nothing: its caches may be of another kind."""
    journals, log = place(tmp_path, *chain(2), b"broken\n", header=replace(HEADER, version=2))
    paths = journals.paths(KEY)
    for cache in (paths.index, paths.context):
        cache.write_bytes(b"of a later kind")
    store = open_all(tmp_path)
    await store.session.save(KEY, "acpd.plan", b'{"seq":9}')
    await store.catalog.put(Row(id="session", agent="agent"))
    before = {file: file.read_bytes() for file in log.parent.iterdir()}
    for report in (await look(store, KEY), await mend(store, KEY)):
        assert ["json", "newer-version", "state-fold"] == kinds(report.found)
    assert before == {file: file.read_bytes() for file in log.parent.iterdir()}
    assert ["acpd.plan"] == await store.session.names(KEY)
    await close(store)
