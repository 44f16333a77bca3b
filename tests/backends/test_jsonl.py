"""The JSONL journal: what is written, when it is on disk, and what a crash leaves."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import subprocess
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acpd.errors import SessionNotFound, SessionReadOnly, StoreError
from acpd.storage.contract import Key
from acpd.tasks import Tasks
from acpd.wire import blobs
from acpd.wire.lines import Header, encode, fact, header_line
from acpd_backends.commits import LIMIT
from acpd_backends.jsonl import JsonlJournals
from acpd_backends.names import Layout
from acpd_backends.stores import open_store
from tests.backends.journal_logs import (
    AT,
    HEADER,
    KEY,
    FaultyFiles,
    chain,
    config,
    fresh,
    ids,
    name,
    no_space,
    path,
    place,
    read,
    store,
    update,
)

PLAN = st.lists(st.one_of(st.none(), st.integers(1, 200)), max_size=12)


@settings(max_examples=60)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=6), PLAN)
def test_failed_and_short_writes_lose_and_double_nothing(batches: list[int], plan: list[int | None]) -> None:
    """Wherever a write stops, the next flush goes on at that byte."""

    async def run(root: Path) -> bytes:
        files = FaultyFiles()
        journals = store(root, files, sync=False)
        journal = await journals.create(KEY, HEADER)
        journal.flush()
        files.writes = list(plan)
        rest = iter(lines)
        for size in batches:
            for _ in range(size):
                journal.append(next(rest))
            if None in files.writes:
                with contextlib.suppress(StoreError):
                    journal.flush()
            else:
                journal.flush()
        files.writes = []
        journal.flush()
        data = Path(journals.log_path(KEY)).read_bytes()
        assert len(data) == journal.size
        await journals.close()
        return data

    lines = chain(sum(batches))
    with tempfile.TemporaryDirectory() as root:
        assert header_line(HEADER) + b"".join(lines) == asyncio.run(run(Path(root)))


async def test_appending_writes_nothing_until_it_is_flushed(tmp_path: Path) -> None:
    """`append` only buffers; one flush is one write; the size is what the kernel has."""
    journals = store(tmp_path)
    journal = await journals.create(KEY, HEADER)
    log = Path(journals.log_path(KEY))
    journal.append(update(1, None))
    assert (0, b"") == (journal.size, log.read_bytes())
    journal.flush()
    assert (log.stat().st_size, header_line(HEADER) + update(1, None)) == (journal.size, log.read_bytes())
    await journals.close()


async def test_waiters_share_a_sync(tmp_path: Path) -> None:
    """One fdatasync serves all who wait for a log; who asks while it runs shares the next; the new name is synced too."""
    files = FaultyFiles()
    started, go = threading.Event(), threading.Event()

    def block(number: int) -> None:
        if number == 1:
            started.set()
            assert go.wait(30)

    files.on_sync = block
    journals = store(tmp_path, files)
    journal = await fresh(journals, *chain(3))
    folders = files.folders
    first = [journal.sync() for _ in range(5)]
    await asyncio.to_thread(started.wait, 30)
    journal.append(update(4, 3))
    journal.flush()
    second = [journal.sync() for _ in range(5)]
    assert not any(waiter.done() for waiter in (*first, *second) if waiter is not None)
    go.set()
    await asyncio.gather(*(waiter for waiter in (*first, *second) if waiter is not None))
    assert (10, 2, 1) == (len([*first, *second]), files.syncs, files.folders - folders)
    assert journal.sync() is None
    await journals.close()
    assert 2 == files.syncs


async def test_at_most_eight_syncs_run_at_once(tmp_path: Path) -> None:
    """Many logs are synced side by side, eight at a time, and every waiter is served."""
    files = FaultyFiles()
    together = threading.Barrier(LIMIT)
    files.on_sync = lambda _: (together.wait(30), None)[1]
    journals = store(tmp_path, files)
    waiters = []
    for number in range(3 * LIMIT):
        key = Key("agent", f"s{number}")
        journal = await journals.create(key, HEADER)
        journal.flush()
        waiters.append(journal.sync())
    await asyncio.gather(*(waiter for waiter in waiters if waiter is not None))
    assert (3 * LIMIT, LIMIT) == (files.syncs, files.most_at_once)
    await journals.close()


async def test_cancelling_a_waiter_concerns_nobody_else(tmp_path: Path) -> None:
    """A waiter that is cancelled leaves the sync and the other waiters alone."""
    journals = store(tmp_path)
    journal = await fresh(journals, *chain(1))
    one, other = journal.sync(), journal.sync()
    assert one is not None
    assert other is not None
    one.cancel()
    await other
    assert journal.sync() is None
    await journals.close()


async def test_process_mode_does_not_sync(tmp_path: Path) -> None:
    """With sync off nothing is ever waited for."""
    files = FaultyFiles()
    journals = store(tmp_path, files, sync=False)
    journal = await fresh(journals, *chain(1))
    assert journal.sync() is None
    await journal.put_blobs([("0" * 64, b"x")])
    await journals.close()
    assert (0, 0) == (files.syncs, files.folders)


async def test_an_opened_log_is_synced_before_it_is_trusted(tmp_path: Path) -> None:
    """What a dead process wrote may not be on disk: the first sync after opening is a real one."""
    files = FaultyFiles()
    place(tmp_path, *chain(2))
    journals = store(tmp_path, files)
    journal = await journals.open(KEY)
    waiter = journal.sync()
    assert waiter is not None
    await waiter
    assert 1 == files.syncs
    await journals.close()


async def test_after_a_failed_sync_the_log_is_verified(tmp_path: Path) -> None:
    """Those who waited get the error; the log is opened anew and verified; who asked meanwhile is served by the next sync."""
    files = FaultyFiles()

    def fail(number: int) -> None:
        if number == 1:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    files.on_sync = fail
    journals = store(tmp_path, files)
    journal = await fresh(journals, *chain(2))
    waiter, later = journal.sync(), journal.sync()
    assert waiter is not None
    assert later is not None
    with pytest.raises(StoreError, match="cannot sync the log") as error:
        await waiter
    assert error.value.retryable
    await later
    journal.append(update(3, 2))
    journal.flush()
    again = journal.sync()
    assert again is not None
    await again
    assert header_line(HEADER) + b"".join(chain(3)) == Path(journals.log_path(KEY)).read_bytes()
    await journals.close()


async def test_nothing_is_appended_while_a_log_is_verified(tmp_path: Path) -> None:
    """Between a failed sync and the end of the verification a flush is refused, and loses nothing."""
    files = FaultyFiles()
    failed, go = threading.Event(), threading.Event()

    def fail(number: int) -> None:
        if number == 1:
            raise no_space()

    opened = files.open_append

    def open_append(path: Path, *, create: bool) -> int:
        if not create:
            failed.set()
            assert go.wait(30)
        return opened(path, create=create)

    files.on_sync = fail
    journals = store(tmp_path, files)
    journal = await fresh(journals, *chain(1))
    files.open_append = open_append  # type: ignore[method-assign]
    waiter = journal.sync()
    assert waiter is not None
    await asyncio.to_thread(failed.wait, 30)
    journal.append(update(2, 1))
    with pytest.raises(StoreError):
        journal.flush()
    refused = journal.sync()
    assert refused is not None
    with pytest.raises(StoreError):
        await refused
    go.set()
    with pytest.raises(StoreError):
        await waiter
    journal.flush()
    assert header_line(HEADER) + b"".join(chain(2)) == Path(journals.log_path(KEY)).read_bytes()
    await journals.close()


def cut(log: Path) -> None:
    os.truncate(log, 50)


def replaced(log: Path) -> None:
    copy = log.with_name("copy")
    copy.write_bytes(log.read_bytes())
    copy.replace(log)


@pytest.mark.parametrize("sync", [True, False])
@pytest.mark.parametrize("harm", [os.unlink, cut, replaced])
async def test_a_log_that_was_taken_away_is_noticed(tmp_path: Path, sync: bool, harm: Callable[[Path], None]) -> None:
    """Nothing counts as durable that is in no file any more; the error names the file, and other logs go on."""
    journals = store(tmp_path, sync=sync)
    journal = await fresh(journals, *chain(2))
    other = await journals.create(Key("agent", "other"), HEADER)
    log = Path(journals.log_path(KEY))
    harm(log)
    journal.append(update(3, 2))
    journal.flush()
    other.flush()
    waiters = [journal.sync(), other.sync()]
    assert waiters[0] is not None
    with pytest.raises(StoreError, match=f"cannot go on with {log}: it was removed") as error:
        await waiters[0]
    assert not error.value.retryable
    if waiters[1] is not None:
        await waiters[1]
    with pytest.raises(StoreError, match="it was removed"):
        journal.flush()
    await journal.discard()
    await journals.close()


async def test_a_log_that_lost_bytes_is_not_appended_to(tmp_path: Path) -> None:
    """If the file no longer holds what was written, appending is refused for good and says what to do."""
    files = FaultyFiles()
    journals = store(tmp_path, files)
    journal = await fresh(journals, *chain(2))
    log = Path(journals.log_path(KEY))

    def lose(number: int) -> None:
        os.truncate(log, 30)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    files.on_sync = lose
    waiter = journal.sync()
    assert waiter is not None
    with pytest.raises(StoreError):
        await waiter
    journal.append(update(3, 2))
    for _ in range(2):
        with pytest.raises(StoreError, match="does not hold what was written") as error:
            journal.flush()
        assert not error.value.retryable
    assert 30 == log.stat().st_size
    with pytest.raises(StoreError):
        await journals.close()


@pytest.mark.parametrize("last", [update(3, 2), b'{"type":"update","id":"e000003","par', b"\0" * 40])
async def test_a_torn_tail_at_every_byte(tmp_path: Path, last: bytes) -> None:
    """Wherever a crash cut the last line: it is kept aside or completed, and the next append is a line of its own."""
    for cut in range(len(last)):
        root = tmp_path / str(cut)
        journals, log = place(root, *chain(2), last[:cut])
        before = log.read_bytes()
        journal = await journals.open(KEY)
        whole = cut == len(last) - 1 and last.endswith(b"\n")
        assert (3 if whole else 2) == journal.fold.seq
        journal.append(update(4, 3 if whole else 2))
        journal.flush()
        await journals.close()
        torn = log.with_name(log.name + ".torn-1")
        kept = before if whole else before[: len(before) - cut]
        assert kept + (b"\n" if whole else b"") + update(4, 3 if whole else 2) == log.read_bytes()
        assert (last[:cut] if cut and not whole else None) == (torn.read_bytes() if torn.exists() else None)
        assert [1, 2, *([3] if whole else []), 4] == [line.seq for line in await read(journals)]


async def test_readers_do_not_mend(tmp_path: Path) -> None:
    """Without the lease a torn tail is reported, and not a byte changes."""
    journals, log = place(tmp_path, *chain(2), b'{"torn')
    before = log.read_bytes()
    _, fold = await journals.peek(KEY)
    assert (2, True) == (fold.seq, any("torn" in warning for warning in fold.warnings))
    assert ["torn-tail"] == [finding.kind for finding in (await journals.tree(KEY)).findings]
    assert ids(await read(journals)) == ids(await path(journals)) == [name(1), name(2)]
    assert before == log.read_bytes()
    assert [log] == list(log.parent.iterdir())


async def test_each_torn_tail_is_kept(tmp_path: Path) -> None:
    """A second torn tail does not replace the first one's copy."""
    journals, log = place(tmp_path, *chain(1), b"{one")
    await (await journals.open(KEY)).close()
    with log.open("ab") as file:
        file.write(b"{two")
    journal = await journals.open(KEY)
    assert [b"{one", b"{two"] == [log.with_name(f"{log.name}.torn-{number}").read_bytes() for number in (1, 2)]
    assert any("torn-2" in warning for warning in journal.fold.warnings)
    await journals.close()


async def test_a_bad_line_in_the_middle_stays(tmp_path: Path) -> None:
    """A damaged log is appended to, never rewritten; the damage is a warning; a gap is marked where a line was lost."""
    journals, log = place(tmp_path, *chain(2), b'{"bad\n', update(4, 3))
    before = log.read_bytes()
    journal = await journals.open(KEY)
    assert ["line 4: json", f"line 5: missing-parent ({name(3)})"] == journal.fold.warnings
    journal.append(update(5, 4))
    journal.flush()
    assert ["update", "update", "gap", "update", "update"] == [line.type for line in await path(journals)]
    await journals.close()
    assert before + update(5, 4) == log.read_bytes()
    assert not log.with_name("session.idx").exists()


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "empty"),
        (b'{"type":"session","vers', "no usable header"),
        (update(1, None), "no usable header"),
        (b"junk\n" + update(1, None) + b"torn", "no usable header"),
        (b'{"type":"session","version":2,"id":"session","what":[]}\n' + update(1, None) + b"torn", "newer version"),
    ],
)
async def test_what_we_may_not_write(tmp_path: Path, data: bytes, why: str) -> None:
    """A log without a usable header or of a newer version is opened read-only, readable, and never touched."""
    journals, log = place(tmp_path)
    log.write_bytes(data)
    with pytest.raises(SessionReadOnly, match=why):
        await journals.open(KEY)
    header, fold = await journals.peek(KEY)
    assert "session" == header.id
    assert fold.warnings
    assert await read(journals) == await path(journals) or ids(await read(journals)) == [name(1)]
    assert data == log.read_bytes()
    assert [log] == list(log.parent.iterdir())


async def test_absent_and_present_logs(tmp_path: Path) -> None:
    """Opening or reading what is not there is SessionNotFound; creating what is there is refused and changes nothing."""
    journals = store(tmp_path)
    for attempt in (
        journals.open(KEY),
        journals.peek(KEY),
        journals.tree(KEY),
        journals.last(KEY, 1),
        read(journals),
        path(journals),
    ):
        with pytest.raises(SessionNotFound):
            await attempt
    journal = await fresh(journals, *chain(1))
    with pytest.raises(StoreError, match="there is a log"):
        await journals.create(KEY, HEADER)
    assert [name(1)] == ids(await read(journals))
    await journal.close()
    await journal.close()
    await journals.close()


async def test_cancelling_an_open_closes_the_log(tmp_path: Path) -> None:
    """Whoever is cancelled while a log is opened leaves no descriptor behind, and it can be opened again."""
    files = FaultyFiles()
    opened, closed = threading.Event(), threading.Event()
    go = threading.Event()
    open_append, close = files.open_append, files.close

    def slow_open(path: Path, *, create: bool) -> int:
        opened.set()
        assert go.wait(30)
        return open_append(path, create=create)

    def noted_close(fd: int) -> None:
        close(fd)
        if not os.path.exists(f"/proc/self/fd/{fd}"):
            closed.set()

    place(tmp_path, *chain(2))
    journals = store(tmp_path, files)
    files.open_append = slow_open  # type: ignore[method-assign]
    opening = Tasks(lambda name, error: None).spawn(journals.open(KEY), name="open")
    await asyncio.to_thread(opened.wait, 30)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    files.close = noted_close  # type: ignore[method-assign]
    go.set()
    assert await asyncio.to_thread(closed.wait, 30)
    journal = await journals.open(KEY)
    assert 2 == journal.fold.seq
    await journals.close()


async def test_windows_are_bounded(tmp_path: Path) -> None:
    """A window has at most 2,000 lines and about 1 MiB; together they are everything, in order."""
    journals, _ = place(tmp_path, *chain(5000), *chain(60, 5001, size=100_000))
    for source in (journals.read(KEY), journals.path(KEY)):
        windows = [window async for window in source]
        assert list(range(1, 5061)) == [line.seq for window in windows for line in window]
        assert max(map(len, windows)) <= 2000
        assert max(sum(len(line.params or b"") for line in window) for window in windows) < 2 << 20


async def test_reading_a_part(tmp_path: Path) -> None:
    """`after` and `until` cut by seq, also far into a long log, facts included."""
    journals, _ = place(tmp_path, *chain(3000, size=200), config(3001), update(3002, 3000))
    for after, until in ((0, None), (0, 7), (1, 3), (2998, None), (3001, None), (3002, None), (1500, 1502), (2999, 3001)):
        want = [seq for seq in range(1, 3003) if after < seq and (until is None or seq <= until)]
        assert want == [line.seq for line in await read(journals, after=after, until=until)]
    assert [1, 2, 3] == [line.seq for line in await path(journals, until=3)]
    assert [1, 2] == [line.seq for line in await path(journals, leaf=name(2))]
    with pytest.raises(StoreError, match="entry nobody"):
        await path(journals, leaf="nobody")


async def test_a_reader_sees_what_was_flushed(tmp_path: Path) -> None:
    """Every flush is seen by the next read and path, while the log is open."""
    journals = store(tmp_path)
    journal = await journals.create(KEY, HEADER)
    for number in range(1, 20):
        journal.append(update(number, number - 1 or None))
        journal.flush()
        assert number == len(await read(journals)) == len(await path(journals)) == len(await journals.last(KEY, 99))
    await journals.close()


async def test_fork_writes_the_path_and_the_newest_facts(tmp_path: Path) -> None:
    """A fork has the path's entries under their ids, numbered densely, their labels, the newest facts, the blobs, no `src`."""
    blob = ("b" * 64, b"image")
    place_of = b'{"$blob":"%b","bytes":5}' % (b"b" * 64)
    lines = [
        update(1, None, b',"src":["l",9],"params":%b,"blobs":[0]' % place_of),
        config(2, "old"),
        update(3, 1),
        config(4, "new"),
        update(5, 1, b',"params":{"text":"\\u00e9 1.50"}'),
        fact("info", name(6), 6, AT, b',"title":"T"'),
        *[
            fact("label", name(number), number, AT, b',"entry":"%b","label":"%b"' % (name(on).encode(), text))
            for number, (on, text) in enumerate([(1, b"old"), (1, b"x"), (3, b"elsewhere")], 7)
        ],
    ]
    journals, log = place(tmp_path, *lines)
    journal = await journals.open(KEY)
    await journal.put_blobs([blob])
    target = Key("agent", "fork")
    header = Header(version=1, id="fork", cwd="/w", agent="agent")
    await journals.fork(KEY, target, header, entry=name(5))
    await journals.delete(KEY)
    assert not log.exists()
    _, fold = await journals.peek(target)
    found = await read(journals, target)
    assert [(1, name(1)), (2, name(5))] == [(line.seq, line.id) for line in found if line.is_entry]
    assert [1, 2, 3, 4, 5] == [line.seq for line in found]
    assert [b'"image"', b'{"text":"\\u00e9 1.50"}', b'{"mode":"new"}'] == [
        bytes(line.params) for line in found[:3] if line.params
    ]
    assert (name(5), "T", {name(1): "x"}, None) == (fold.leaf, fold.title, fold.labels, fold.src)
    with pytest.raises(StoreError, match="there is a log"):
        await journals.fork(target, target, header, entry=None)
    opened = await journals.open(target)
    opened.append(update(9, 5))
    await opened.close()
    assert [name(1), name(5), name(9)] == ids(await path(journals, target))


async def test_fork_of_nothing_and_of_damage(tmp_path: Path) -> None:
    """An unknown entry is refused and leaves nothing; a path over lost lines is whole in the fork."""
    journals, log = place(tmp_path, *chain(2), b"{bad\n", update(4, 3), update(4, 4))
    target = Key("agent", "fork")
    with pytest.raises(StoreError, match="entry nobody"):
        await journals.fork(KEY, target, HEADER, entry="nobody")
    assert [log.name] == [file.name for file in log.parent.iterdir()]
    await journals.fork(KEY, target, HEADER, entry=None)
    assert [name(1), name(2), name(4), f"{name(4)}#2"] == ids(await path(journals, target))
    assert [] == (await journals.tree(target)).findings
    with pytest.raises(SessionNotFound):
        await journals.fork(Key("agent", "absent"), Key("agent", "x"), HEADER, entry=None)


async def test_a_blob_that_cannot_be_linked_is_named(tmp_path: Path) -> None:
    """A fork that fails for a blob says which one, and leaves no half of a log."""
    text, offsets, found = blobs.extract(b'{"data":"%b"}' % (b"x" * blobs.LIMIT))
    body = b',"params":%b,"blobs":%b' % (text, encode(offsets))
    journals, log = place(tmp_path, update(1, None, body))
    blob = log.with_name("session.blobs") / found[0][0]
    blob.mkdir(parents=True)
    with pytest.raises(StoreError, match=f"cannot fork the blob {blob}: Is a directory"):
        await journals.fork(KEY, Key("agent", "fork"), HEADER, entry=None)
    assert [] == list(log.parent.glob("fork.log.jsonl*"))


async def test_delete_removes_every_file_of_one_session(tmp_path: Path) -> None:
    """Log, context, index, blobs and torn tails go; a session whose name only begins alike stays; again is no error."""
    journals, log = place(tmp_path, *chain(2), b"{torn")
    other = Key("agent", "session-2")
    await (await journals.create(other, HEADER)).close()
    journal = await journals.open(KEY)
    await journal.put_blobs([("a" * 64, b"x")])
    await journal.write_context(b"{}\n", fresh=True)
    await journal.close()
    assert 5 == len([file for file in log.parent.iterdir() if file.name.startswith("session.")])
    await journals.delete(KEY)
    await journals.delete(KEY)
    assert {"session-2.log.jsonl", "session-2.idx"} == {file.name for file in log.parent.iterdir()}
    await journals.delete(Key("nobody", "nothing"))


@pytest.mark.parametrize("complete", [True, False])
async def test_what_killed_processes_left_is_removed_at_a_start(tmp_path: Path, complete: bool) -> None:
    """Temporary files of the dead go, and the blobs of a fork that was never made; nobody else's file is touched."""
    child = subprocess.Popen(["true"])
    child.wait()
    journals, log = place(tmp_path, *chain(2))
    folder = log.parent
    backend = open_store("workspace", tmp_path)
    assert backend.catalog is not None
    assert backend.journals is not None
    if complete:
        await backend.catalog.recover(backend.journals)
    old, own = folder / f"old.log.jsonl.{os.getpid()}.tmp", folder / f"new.log.jsonl.{os.getpid()}.tmp"
    dead = [folder / f"{name}.{child.pid}{rest}.tmp" for name, rest in (("session.idx", "-1"), ("session.jsonl", "-2"))]
    fork = [folder / f"fork.log.jsonl.{child.pid}.tmp", folder / "fork.blobs" / ("a" * 64)]
    kept = [own, folder / "session.idx.1-1.tmp", folder / f"mine.{child.pid}.tmp", folder / f"x.txt.{child.pid}-1.tmp"]
    for file in (old, *dead, *fork, *kept):
        file.parent.mkdir(exist_ok=True)
        file.touch()
    os.utime(old, (1, 1))
    await backend.catalog.recover(backend.journals)
    assert {log, *kept} == {*folder.iterdir()} - {folder / "session.idx", folder / "sessions.json"}
    assert {"session"} == await journals.sweep(None)
    await backend.catalog.close()
    await backend.session.close()


@pytest.mark.parametrize("per_agent", [True, False])
async def test_scan_gives_our_logs_only(tmp_path: Path, per_agent: bool) -> None:
    """Every log with its key, whatever its name; no link, no folder, no foreign file; each user's own."""
    journals = JsonlJournals(Layout(tmp_path, per_agent))
    keys = {Key(agent, session, user) for agent in ("A", "b") for session in ("..", "x.log", "n" * 300) for user in (None, "U")}
    if not per_agent:
        keys = {key for key in keys if key.agent == "A"}
    for key in keys:
        journal = await journals.create(key, Header(version=1, id=key.session, cwd="/", agent=key.agent))
        await journal.close()
    folder = Path(journals.log_path(Key("A", "s"))).parent
    (folder / "link.log.jsonl").symlink_to(folder / "%2e%2e.log.jsonl")
    (folder / "folder.log.jsonl").mkdir()
    (folder / "Foreign.log.jsonl").touch()
    (folder / "other.jsonl").touch()
    for user in (None, "U", "nobody"):
        assert {key for key in keys if key.user == user} == {key async for key in journals.scan(user)}


async def test_the_context_file(tmp_path: Path) -> None:
    """The context begins with the log's header, is appended to, and is replaced as one when it is fresh."""
    journals = store(tmp_path)
    journal = await fresh(journals)
    context = Path(journals.log_path(KEY)).with_name("session.jsonl")
    await journal.write_context(b'{"a":1}\n', fresh=False)
    await journal.write_context(b'{"a":2}\n', fresh=False)
    assert header_line(HEADER) + b'{"a":1}\n{"a":2}\n' == context.read_bytes()
    await journal.write_context(b'{"a":3}\n', fresh=True)
    assert header_line(HEADER) + b'{"a":3}\n' == context.read_bytes()
    await journals.close()


async def test_a_close_that_fails_can_be_repeated(tmp_path: Path) -> None:
    """With a full disk closing says so and keeps the lines; once there is room it writes them."""
    files = FaultyFiles()
    journals = store(tmp_path, files)
    journal = await fresh(journals, *chain(1))
    journal.append(update(2, 1))
    files.writes = [None]
    with pytest.raises(StoreError, match="disk full"):
        await journals.close()
    await journals.close()
    assert header_line(HEADER) + b"".join(chain(2)) == Path(journals.log_path(KEY)).read_bytes()
