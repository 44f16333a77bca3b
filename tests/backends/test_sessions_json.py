"""`sessions.json`: a cache for other tools."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from acpd.errors import StoreError
from acpd.storage.contract import Key, Row
from acpd_backends.catalog import SqliteCatalog
from acpd_backends.files import Files
from acpd_backends.index import LIMIT, SessionsJson, merge
from acpd_backends.names import Layout
from acpd_backends.sqlite import Database


def row(identifier: str, second: int = 1, **fields: Any) -> Row:
    at = f"2026-01-01T{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}.000Z"
    made = Row(id=identifier, agent="coder", cwd="/w", updatedAt=at, createdAt=at, prompted=True)
    return replace(made, **fields)


def catalog(root: Path, *, per_agent: bool = True) -> SqliteCatalog:
    layout = Layout(root, per_agent=per_agent)
    return SqliteCatalog(Database(layout.private(None) / "catalog.db"), layout)


async def put(root: Path, *rows: Row, gone: tuple[str, ...] = ()) -> None:
    """One life of a process."""
    store = catalog(root)
    for each in rows:
        await store.put(each)
    for identifier in gone:
        await store.delete(identifier)
    await store.close()


def document(root: Path, agent: str = "coder") -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((Layout(root).sessions(Key(agent, "-")) / "sessions.json").read_bytes())
    return loaded


def path_in(root: Path) -> Path:
    return root / "agents" / "coder" / "sessions" / "sessions.json"


async def test_it_says_what_a_session_is_about(tmp_path: Path) -> None:
    """At close it has title, summary, cwd, times, number of messages and leaf of every prompted session of the agent."""
    await put(tmp_path, row("s", title="Fix it", messages=3, leaf="e9"), row("quiet", prompted=False), row("t", agent="other"))
    at = "2026-01-01T00:00:01.000Z"
    entry = {"title": "Fix it", "summary": "", "cwd": "/w", "createdAt": at, "updatedAt": at, "messageCount": 3, "leaf": "e9"}
    assert document(tmp_path) == {"version": 1, "sessions": {"s": entry}}
    assert list(document(tmp_path, "other")["sessions"]) == ["t"]


async def test_where_agents_have_no_folder_there_is_one_file(tmp_path: Path) -> None:
    """The json backend has one for all agents."""
    store = catalog(tmp_path, per_agent=False)
    await store.put(row("s"))
    await store.put(row("t", agent="other"))
    await store.close()
    assert sorted(json.loads((tmp_path / "sessions" / "sessions.json").read_bytes())["sessions"]) == ["s", "t"]


async def test_what_acpd_does_not_know_stays(tmp_path: Path) -> None:
    """Fields and entries of other programs, and members beside `sessions`, are kept."""
    await put(tmp_path, row("s", title="old"))
    path = path_in(tmp_path)
    changed = json.loads(path.read_bytes())
    changed["tool"] = {"x": 1}
    changed["sessions"]["s"].update({"summary": "by another", "stars": 5})
    changed["sessions"]["foreign"] = {"title": "not ours"}
    path.write_text(json.dumps(changed))
    await put(tmp_path, row("s", title="new"))
    found = document(tmp_path)
    assert found["tool"] == {"x": 1}
    assert found["sessions"]["foreign"] == {"title": "not ours"}
    entry = found["sessions"]["s"]
    assert (entry["title"], entry["summary"], entry["stars"]) == ("new", "by another", 5)


async def test_a_deleted_session_is_removed(tmp_path: Path) -> None:
    """Delete removes the entry, also that of an earlier process."""
    await put(tmp_path, row("s"), row("t"))
    await put(tmp_path, gone=("s", "never"))
    assert list(document(tmp_path)["sessions"]) == ["t"]


@pytest.mark.parametrize(
    "garbage", [b"", b'{"version": 1, "sess', b"[]", b'{"sessions": []}', b"\xff", b'{"version": "x", "sessions": {}}']
)
async def test_a_corrupt_one_is_put_aside_and_made_anew(tmp_path: Path, garbage: bytes) -> None:
    """What is no document of ours stays beside it; the new one has every session."""
    await put(tmp_path, *(row(f"s{n}") for n in range(5)))
    path_in(tmp_path).write_bytes(garbage)
    await put(tmp_path, row("s9"))
    assert sorted(document(tmp_path)["sessions"]) == ["s0", "s1", "s2", "s3", "s4", "s9"]
    assert [garbage] == [aside.read_bytes() for aside in path_in(tmp_path).parent.glob("sessions.json.unreadable-*")]


async def test_a_newer_one_is_left_alone(tmp_path: Path) -> None:
    """A file of a newer version stays as it is, byte for byte (A25); closing says so, and the catalog is closed and whole."""
    await put(tmp_path, row("s"))
    newer = b'{"version": 2, "sessions": {"s": {}}, "more": []}'
    path_in(tmp_path).write_bytes(newer)
    store = catalog(tmp_path)
    await store.put(row("t"))
    with pytest.raises(StoreError, match=r"sessions\.json: its version 2 is newer"):
        await store.close()
    with pytest.raises(StoreError, match="closed"):
        await store.get("t")
    assert path_in(tmp_path).read_bytes() == newer
    again = catalog(tmp_path)
    assert await again.get("t") is not None
    await again.close()


async def test_what_a_killed_process_had_not_written_is_made_good(tmp_path: Path) -> None:
    """The first writing of a process merges every row of the catalog."""
    await put(tmp_path, row("s", title="old"))
    killed = catalog(tmp_path)
    await killed.put(row("s", title="newer"))
    await killed._database.close()
    await put(tmp_path, row("t"))
    assert document(tmp_path)["sessions"]["s"]["title"] == "newer"


async def test_what_another_process_did_meanwhile_stays(tmp_path: Path) -> None:
    """A process that saw a session long ago, and closes last, neither puts the old entry back nor one that was removed."""
    await put(tmp_path, row("s", title="old"), row("gone"))
    slow, quick = catalog(tmp_path), catalog(tmp_path)
    for each in (row("s", title="old"), row("gone")):
        await slow.put(each)
    await quick.put(row("s", title="newer"))
    await quick.delete("gone")
    await quick.close()
    await slow.close()
    assert {"s": "newer"} == {name: each["title"] for name, each in document(tmp_path)["sessions"].items()}


def test_the_newest_ten_thousand_are_kept() -> None:
    """Beyond 10,000 the oldest go; entries without a time stay."""
    sessions: dict[str, Any] = {"foreign": {"title": "x"}, "odd": 7}
    merged = merge(sessions, {f"s{n}": row(f"s{n}", n) for n in range(LIMIT + 5)})
    assert len(merged) == LIMIT
    assert {"foreign", "odd", f"s{LIMIT + 4}", "s7"} <= merged.keys()
    assert "s6" not in merged


class Watched(Files):
    """Tells when sessions.json was written; fails while told to."""

    def __init__(self) -> None:
        self.written = asyncio.Event()
        self.loop = asyncio.get_running_loop()
        self.broken = False
        self.count = 0

    def replace(self, source: Path, target: Path) -> None:
        if self.broken:
            raise OSError(28, "No space left on device")
        super().replace(source, target)
        self.count += 1
        self.loop.call_soon_threadsafe(self.written.set)


async def test_it_is_written_while_running_once_an_interval(tmp_path: Path) -> None:
    """Changes are written together when the interval is over, without anybody closing."""
    files = Watched()
    rows = [row(f"s{number}") for number in range(20)]
    index = SessionsJson(Layout(tmp_path), None, lambda agent: rows, interval=0.01, files=files)
    for each in rows:
        index.changed(each)
    await asyncio.wait_for(files.written.wait(), 30)
    assert (files.count, len(document(tmp_path)["sessions"])) == (1, 20)
    files.written.clear()
    rows.append(row("later"))
    index.changed(rows[-1])
    await asyncio.wait_for(files.written.wait(), 30)
    assert "later" in document(tmp_path)["sessions"]
    await index.close()


async def test_a_writing_that_fails_is_made_up_for(tmp_path: Path) -> None:
    """A full disk stops nobody: the reason is told, the old file stays, and the next writing has what is behind."""
    files = Watched()
    rows = [row("old")]
    index = SessionsJson(Layout(tmp_path), None, lambda agent: rows, files=files)
    index.changed(row("old"))
    await index.write()
    files.broken = True
    rows[:] = [row("s"), row("t")]
    index.changed(row("s"))
    index.removed("coder", "old")
    await index.write()
    assert "sessions.json: No space left" in str(index.problem)
    assert list(document(tmp_path)["sessions"]) == ["old"]
    files.broken = False
    index.changed(row("t"))
    await index.close()
    assert (index.problem, sorted(document(tmp_path)["sessions"])) == (None, ["s", "t"])


WRITER = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from tests.backends.test_sessions_json import row
from acpd_backends.index import SessionsJson
from acpd_backends.names import Layout

async def main():
    rows = [row(f"{sys.argv[2]}-{number}") for number in range(25)]
    indexes = [SessionsJson(Layout(Path(sys.argv[1])), None, lambda agent, each=each: [each]) for each in rows]
    for index, each in zip(indexes, rows):
        index.changed(each)
    await asyncio.gather(*(index.close() for index in indexes))

asyncio.run(main())
"""


async def test_fifty_updates_at_once_are_fifty_entries(tmp_path: Path) -> None:
    """Two processes with twenty-five threads each that write at once: 50 entries (A20)."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    root = str(Path(__file__).parents[2])
    children = [subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), name, root], env=environment) for name in "ab"]
    assert [0, 0] == [await asyncio.to_thread(child.wait) for child in children]
    assert {f"{name}-{number}" for name in "ab" for number in range(25)} == document(tmp_path)["sessions"].keys()
