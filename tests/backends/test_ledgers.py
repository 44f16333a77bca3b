"""What agents remember, as files: sections, MEMORY.md, who sees which, and what a kill in between leaves."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest

from acpd.errors import StoreError
from acpd.storage.contract import Key, Memories
from acpd_backends import ledgers
from acpd_backends.files import Files
from acpd_backends.ledgers import FileMemory
from acpd_backends.migration import Migration
from acpd_backends.names import Layout
from acpd_backends.stores import NAMES, open_store
from tests.backends.journal_logs import Dying, Killed
from tests.support.walk import below, contents

NOON = 1_777_636_800.0
"""2026-05-01T12:00:00Z."""
KEY = Key("native", "s1")


class Clock:
    """`now` in seconds since 1970, to be set."""

    def __init__(self) -> None:
        self.time = NOON

    def __call__(self) -> float:
        return self.time


def memory(root: Path, clock: Clock | None = None, *, files: Files | None = None, per_agent: bool = True) -> FileMemory:
    return FileMemory(Layout(root, per_agent=per_agent), files=files or Files(), now=clock or Clock())


async def test_a_section_is_headed_by_its_time_and_its_session(tmp_path: Path) -> None:
    """Appending adds to the ledger of the day, in UTC; earlier sections stay as they are."""
    clock = Clock()
    made = memory(tmp_path, clock)
    assert 2 == await made.append(KEY, "- likes tea\n\n- # is no head\n")
    assert 1 == await made.append(Key("native", "s2"), "## forged\n")
    clock.time += 86_400
    await made.append(KEY, "- tomorrow")
    folder = tmp_path / "agents/native/memory"
    expected = (
        "\n## 2026-05-01T12:00:00Z session s1\n\n- likes tea\n- # is no head\n\n## 2026-05-01T12:00:00Z session s2\n\nforged\n"
    )
    assert expected == (folder / "2026-05-01.md").read_text()
    assert "- tomorrow" in (folder / "2026-05-02.md").read_text()
    assert {0o700, 0o600} == {path.stat().st_mode & 0o777 for path in [folder, *below(folder)]}


async def test_what_is_there_is_not_said_twice(tmp_path: Path) -> None:
    """A line that MEMORY.md or the newest ledgers have, in whatever spelling, is left out; nothing new: nothing is written."""
    clock = Clock()
    made = memory(tmp_path, clock)
    await made.append(KEY, "- Likes tea\n- likes  TEA")
    clock.time += 86_400
    assert 1 == await made.append(KEY, "* likes tea.\nlikes tea\n- LIKES TEA")
    before = contents(tmp_path)
    assert 0 == await made.append(KEY, "- likes tea\n\n")
    assert 0 == await made.append(KEY, "  \n")
    assert before == contents(tmp_path)


async def test_a_fact_is_one_line(tmp_path: Path) -> None:
    """What could look like the end of a line, or the head of a section, within a fact is neither; it is not said twice."""
    made = memory(tmp_path)
    odd = "- one\u2028## 2026-01-01T00:00:00Z session x\rtwo\x85three\r"
    assert (1, 0) == (await made.append(KEY, odd), await made.append(KEY, odd))
    ((_, text),) = await made.texts(KEY)
    assert "- one ## 2026-01-01T00:00:00Z session x two three" == text.splitlines()[-1]


@pytest.mark.parametrize("backend", NAMES)
async def test_users_and_agents_are_apart(backend: str, tmp_path: Path) -> None:
    """In every backend; and names of any kind stay inside the store."""
    keys = [KEY, Key("other", "s1"), Key("native", "s1", "bob"), Key("../x", "s1"), Key("A" * 300, "s1", "B" * 300)]
    for number, key in enumerate(keys):
        store = open_store(backend, tmp_path / "store", user=key.user)
        assert store.memory is not None
        assert ("", 0) == ((read := await store.memory.read(key)).text, read.grown)
        assert [] == await store.memory.texts(key)
        await store.memory.append(key, f"- fact {number}")
    for number, key in enumerate(keys):
        store = open_store(backend, tmp_path / "store", user=key.user)
        assert store.memory is not None
        ((_, text),) = await store.memory.texts(key)
        assert [f"- fact {number}"] == [line for line in text.splitlines() if line.startswith("-")]
    assert ["store"] == os.listdir(tmp_path)


async def test_consolidated_is_what_was_read(tmp_path: Path) -> None:
    """What was read is consolidated, what came behind it is recent again; and the time since then is told."""
    clock = Clock()
    made = memory(tmp_path, clock)
    assert Memories(seen=(await made.read(KEY)).seen) == await made.read(KEY)
    await made.append(KEY, "- one")
    read = await made.read(KEY)
    assert ("", None, read.today, len(read.recent)) == (read.text, read.age, read.recent, read.grown)
    await made.append(KEY, "- two")
    clock.time += 60
    await made.consolidate(KEY, read.seen, "# All\n- one")
    clock.time += 86_400
    await made.append(KEY, "- three")
    later = await made.read(KEY)
    assert ("# All\n- one\n", 86_400.0) == (later.text, later.age)
    assert ["- two", "- three"] == [line for line in later.recent.splitlines() if line.startswith("-")]
    assert ["- three"] == [line for line in later.today.splitlines() if line.startswith("-")]


async def test_of_two_who_have_seen_the_same_one_consolidates(tmp_path: Path) -> None:
    """The second is refused, and so is who saw something else, or nothing; MEMORY.md stays what the first has made."""
    made = memory(tmp_path)
    await made.append(KEY, "- one")
    seen = (await made.read(KEY)).seen
    other = memory(tmp_path)
    results = await asyncio.gather(
        made.consolidate(KEY, seen, "mine"), other.consolidate(KEY, seen, "theirs"), return_exceptions=True
    )
    assert 1 == sum(isinstance(each, StoreError) for each in results)
    text = (await made.read(KEY)).text
    assert text == ("mine\n" if results[0] is None else "theirs\n")
    for wrong in ("", "x", "x:2026-05-01:9", seen):
        with pytest.raises(StoreError, match="consolidate"):
            await made.consolidate(KEY, wrong, "wrong")
    assert text == (await made.read(KEY)).text


async def test_what_a_person_has_written_is_not_lost(tmp_path: Path) -> None:
    """An edited MEMORY.md is seen before it is replaced; one that is longer than what is read is not replaced at all."""
    made = memory(tmp_path)
    await made.append(KEY, "- one")
    seen = (await made.read(KEY)).seen
    path = tmp_path / "agents/native/memory/MEMORY.md"
    path.write_text("by hand")
    with pytest.raises(StoreError, match="it has changed"):
        await made.consolidate(KEY, seen, "by model")
    path.write_text("x" * (ledgers.MEMORY + 1))
    read = await made.read(KEY)
    assert ("", ledgers.MEMORY) == (read.seen, len(read.text))
    with pytest.raises(StoreError):
        await made.consolidate(KEY, seen, "by model")


async def test_everything_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A section, a day, MEMORY.md, and what is read; a blank MEMORY.md replaces none."""
    made = memory(tmp_path)
    with pytest.raises(StoreError, match="at most 8192"):
        await made.append(KEY, "é" * 4097)
    await made.append(KEY, "- one")
    seen = (await made.read(KEY)).seen
    for text in ("x" * ledgers.MEMORY, " \n"):
        with pytest.raises(StoreError, match=r"MEMORY\.md"):
            await made.consolidate(KEY, seen, text)
    monkeypatch.setattr(ledgers, "DAY", 100)
    with pytest.raises(StoreError, match="full"):
        await made.append(KEY, "- " + "x" * 80)
    monkeypatch.setattr(ledgers, "SEARCHED", 20)
    assert 20 == sum(len(text) for _, text in await made.texts(KEY))


async def test_of_much_that_is_new_the_oldest_is_consolidated_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In whole lines, piece by piece, until nothing is left; also where a person wrote a line that is longer than a piece."""
    monkeypatch.setattr(ledgers, "RECENT", 200)
    clock = Clock()
    made = memory(tmp_path, clock)
    for number in range(12):
        await made.append(KEY, f"- fact {number:02} {'x' * 30}")
        clock.time += 40_000
    path = below(tmp_path, "2026-*.md")[-1]
    path.write_text(path.read_text() + "y" * 500 + "\n")
    heard, pieces = "", 0
    while (read := await made.read(KEY)).grown:
        assert 0 < len(read.recent) <= 200
        heard, pieces = heard + read.recent, pieces + 1
        await made.consolidate(KEY, read.seen, f"up to {pieces}")
    assert [f"{number:02}" for number in range(12)] == [line[7:9] for line in heard.splitlines() if line.startswith("- fact")]
    assert 500 == heard.count("y")
    assert pieces > 5


async def test_a_ledger_of_the_future_hides_none(tmp_path: Path) -> None:
    """It waits for its day, and so does a position there; when MEMORY.md was made in the future, nobody knows when."""
    clock = Clock()
    made = memory(tmp_path, clock)
    await made.append(KEY, "- one")
    folder = tmp_path / "agents/native/memory"
    for day in ("2026-05-02", "9999-12-31"):
        (folder / f"{day}.md").write_text("- wrong clock\n")
    read = await made.read(KEY)
    assert (True, False, len(read.recent)) == ("- one" in read.recent, "wrong clock" in read.recent, read.grown)
    await made.consolidate(KEY, read.seen, "# All")
    assert 0 == await made.append(KEY, "- one"), "the two newest ledgers are those of days that were"
    await made.append(KEY, "- two")
    assert "- two" in (await made.read(KEY)).recent
    clock.time += 86_400
    assert ["- two", "- wrong clock"] == [each for each in (await made.read(KEY)).recent.splitlines() if each.startswith("-")]
    (folder / ".consolidated").write_text('{"at": 253402300000.0, "day": "9999-12-31", "size": 14}')
    read = await made.read(KEY)
    assert (None, True) == (read.age, "- one" in read.recent)
    (folder / ".consolidated").write_text('{"at": 253402300000.0, "day": "2026-05-02", "size": 0}')
    read = await made.read(KEY)
    assert (None, False) == (read.age, "- one" in read.recent), "the ledgers are in it all the same"


async def test_only_what_is_ours_is_read(tmp_path: Path) -> None:
    """Neither a link, nor a pipe, nor another name, nor a way out of the folder."""
    made = memory(tmp_path)
    await made.append(KEY, "- one")
    folder = tmp_path / "agents/native/memory"
    (tmp_path / "secret.md").write_text("secret")
    (folder / "2026-04-30.md").symlink_to(tmp_path / "secret.md")
    os.mkfifo(folder / "2026-04-29.md")
    (folder / "notes.md").write_text("secret")
    (folder / "MEMORY.md").write_bytes(b"all \xff")
    assert [("memory/MEMORY.md", "all \ufffd")] == (await made.texts(KEY))[:1]
    assert ["memory/MEMORY.md", "memory/2026-05-01.md"] == [path for path, _ in await made.texts(KEY)]
    for path in ("../secret.md", "memory/../MEMORY.md", "notes.md", str(folder / "MEMORY.md"), "", "memory/2026-04-30.md"):
        assert [] == await made.texts(KEY, path), path
    assert 1 == len(await made.texts(KEY, "2026-05-01.md"))
    (folder / "2026-05-01.md").unlink()
    (folder / "2026-05-01.md").symlink_to(tmp_path / "secret.md")
    with pytest.raises(StoreError, match="link"):
        await made.append(KEY, "- two")
    assert "secret" == (tmp_path / "secret.md").read_text()


async def test_killed_at_any_step_memory_is_whole(tmp_path: Path) -> None:
    """MEMORY.md is the old or the new one; done again, the same work leaves each line once."""
    clock = Clock()
    at = 1
    while True:
        root = tmp_path / str(at)
        made = memory(root, clock)
        await made.append(KEY, "- one")
        await made.consolidate(KEY, (await made.read(KEY)).seen, "old")
        dying = Dying(at)
        one = memory(root, clock, files=dying)
        try:
            await one.append(KEY, "- two")
            await one.consolidate(KEY, (await one.read(KEY)).seen, "new")
        except Killed:
            assert (await made.read(KEY)).text in {"old\n", "new\n"}
        else:
            break
        await made.append(KEY, "- two")
        await made.consolidate(KEY, (await made.read(KEY)).seen, "new")
        read = await made.read(KEY)
        assert ("new\n", 0) == (read.text, read.grown)
        assert 1 == (root / "agents/native/memory/2026-05-01.md").read_text().count("- two")
        at += 1
    assert at > 5


@pytest.mark.parametrize(("source", "target"), [(one, other) for one in NAMES for other in NAMES if one != other])
async def test_memory_goes_along_from_one_backend_to_another(source: str, target: str, tmp_path: Path) -> None:
    """Of every user and agent, and back; what the target had of its own before is put aside."""
    keys = [KEY, Key("A" * 300, "s1", "bob")]

    async def read(backend: str) -> list[Memories]:
        found = []
        for key in keys:
            store = open_store(backend, tmp_path, user=key.user)
            assert store.memory is not None
            found.append(await store.memory.read(key))
        return [Memories(each.text, each.today, each.recent, each.grown, None, each.seen) for each in found]

    for key in keys:
        store = open_store(source, tmp_path, user=key.user)
        assert store.memory is not None
        await store.memory.append(key, "- one")
        await store.memory.consolidate(key, (await store.memory.read(key)).seen, f"of {key.agent[:6]}")
        await store.memory.append(key, "- two")
    before = await read(source)
    assert ["of native\n", "of AAAAAA\n"] == [each.text for each in before]
    await Migration(tmp_path, source, target).run()
    assert before == await read(target)
    store = open_store(target, tmp_path)
    assert store.memory is not None
    await store.memory.append(KEY, "- three")
    later = await read(target)
    assert later != before
    await Migration(tmp_path, target, source).run()
    assert later == await read(source)


async def test_a_full_disk_is_told(tmp_path: Path) -> None:
    """A write that fails is a StoreError that says whose memory it is."""

    class Full(Files):
        def write(self, fd: int, data: bytes | memoryview) -> int:
            raise OSError(28, "No space left on device")

    with pytest.raises(StoreError, match=r"remember the memory of native.*disk full") as caught:
        await memory(tmp_path, files=Full()).append(KEY, "- one")
    assert caught.value.retryable


def test_days_are_those_of_utc() -> None:
    """The clock of these tests is what it says."""
    assert "2026-05-01 12" == time.strftime("%Y-%m-%d %H", time.gmtime(NOON))
