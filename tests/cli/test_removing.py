"""`acpd rm` and `acpd gc`: what they remove, what they leave, and what they say before."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Literal

import pytest

from acpd.cli.removing import before
from acpd.storage.contract import Key
from acpd_backends.leases import FlockLease
from acpd_backends.names import Layout
from acpd_backends.stores import open_store
from tests.cli import acpd
from tests.cli.test_stored import Shelf, conversation
from tests.support.walk import below

Json = dict[str, Any]


def ids(home: Path, **env: str) -> list[str]:
    """The sessions that are listed."""
    (ran,) = acpd.run_many(home, ["ls", "--all", "--json"], env=env)
    return sorted(row["id"] for row in json.loads(ran.out))


def files(home: Path) -> set[str]:
    """Below the store, without catalogs and locks."""
    return {str(path.relative_to(home)) for path in below(home / "data") if path.is_file() and ".acpd" not in path.parts}


async def while_open(home: Path, session: str, *words: str) -> acpd.Ran:
    lease = FlockLease(Layout(home / "data"))
    await lease.take(Key("agent", session))
    try:
        return await asyncio.to_thread(acpd.run, home, *words)
    finally:
        await lease.give_up(Key("agent", session))


@pytest.mark.parametrize("backend", ["workspace", "json", "sqlite"])
def test_rm_removes_all_that_is_a_sessions_own(backend: Literal["workspace", "json", "sqlite"], tmp_path: Path) -> None:
    """Log, blobs, context, index, leftovers, states and row are gone; other sessions stay; gone, it is not found."""
    shelf = Shelf(tmp_path, backend)
    for name in ("one", "two", "three"):
        shelf.add(name, conversation())
    log = next(path for path in below(tmp_path, "*.log.jsonl") if path.name.startswith("one."))
    for name in ("one.jsonl", "one.log.jsonl.torn-1", "one.log.jsonl.damaged-1"):
        log.with_name(name).write_bytes(b"x")
    ran, again, two = acpd.run_many(tmp_path, ["rm", "one"], ["rm", "one"], ["rm", "two", "nobody"], env=shelf.env)
    assert (0, "removed one\n", "") == ran
    assert (1, "") == again[:2]
    assert "cannot find session one" in again.err
    assert (1, "") == two[:2], "one of several that is not found: none is removed"
    assert ["three", "two"] == ids(tmp_path, **shelf.env)
    assert not [name for name in files(tmp_path) if Path(name).name.startswith("one.")]


def test_rm_asks_on_a_terminal(tmp_path: Path) -> None:
    """On a terminal anything but yes removes nothing; with --yes nobody is asked."""
    Shelf(tmp_path).add("one", conversation())
    ran = acpd.on_terminal(tmp_path, "rm", "one", say="n\n")
    assert (1, True) == (ran.code, "remove one (About hello) for good? [y/N]" in ran.out)
    assert ["one"] == ids(tmp_path)
    assert 0 == acpd.on_terminal(tmp_path, "rm", "one", say="y\n").code
    assert [] == ids(tmp_path)
    Shelf(tmp_path).add("two", conversation())
    assert "for good" not in acpd.on_terminal(tmp_path, "rm", "--yes", "two").out
    assert [] == ids(tmp_path)


async def test_what_is_open_is_not_removed(tmp_path: Path) -> None:
    """rm says who has a session open and removes the others; gc leaves it and says so."""
    shelf = Shelf(tmp_path)
    for name in ("one", "two"):
        await shelf._add(name, conversation(), "/x", "agent", "2026-01-01T10:00:00.000Z")
    ran = await while_open(tmp_path, "one", "gc", "--older-than", "1h", "--json")
    told = json.loads(ran.out)
    assert (0, [{"session": "one", "pid": os.getpid()}]) == (ran.code, told["skipped"])
    assert ["two"] == [each["session"] for each in told["removed"]]
    ran = await while_open(tmp_path, "one", "rm", "one")
    assert (1, "") == (ran.code, ran.out)
    assert f"open in pid {os.getpid()}" in ran.err
    assert ["one"] == ids(tmp_path)


def test_gc_removes_no_session_unless_told(tmp_path: Path) -> None:
    """Without --older-than every session stays, however old; an age of nothing, or none, is an error."""
    shelf = Shelf(tmp_path)
    shelf.add("old", conversation(), day=1)
    before_all = files(tmp_path)
    plain, none, odd = acpd.run_many(tmp_path, ["gc"], ["gc", "--older-than", "0d"], ["gc", "--older-than", "month"])
    assert (0, "freed 0 bytes\n", "") == plain
    assert (2, 2) == (none.code, odd.code)
    assert "would be every session" in none.err
    assert (["old"], before_all) == (ids(tmp_path), files(tmp_path) - {"data/agents/agent/sessions/sessions.json",
        "data/agents/agent/sessions/sessions.json.lock"})  # fmt: skip


def test_gc_goes_by_the_last_event(tmp_path: Path) -> None:
    """The time in the log decides, not that of the file; what has no time is never old; a dry run says it and does nothing."""
    shelf = Shelf(tmp_path)
    now = before(0)
    entries = conversation()
    shelf.add("old", entries)
    shelf.add("used", [*entries[:-1], {**entries[-1], "at": now}])
    shelf.add("timeless", [{**entry, "at": ""} for entry in entries])
    logs = {path.name.split(".")[0]: path for path in below(tmp_path, "*.log.jsonl")}
    header, *rest = logs["timeless"].read_bytes().splitlines(keepends=True)
    logs["timeless"].write_bytes(
        b"".join([header.replace(b'"createdAt":"2026-11-01T10:00:00.000Z"', b'"createdAt":""'), *rest])
    )
    os.utime(logs["old"])
    os.utime(logs["used"], (0, 0))
    size = logs["old"].stat().st_size + logs["old"].with_name("old.idx").stat().st_size
    age = f"{int((time.time() - 1793527200) / 3600) - 1}h"  # an hour after the time of the log
    dry, told, really = acpd.run_many(
        tmp_path,
        ["gc", "--older-than", age, "--dry-run"],
        ["gc", "--older-than", age, "--dry-run", "--json"],
        ["gc", "--older-than", age],
    )
    assert f"would remove session old (About hello), last used 2026-11-01T10:00:00.000Z, {size:,} bytes\n" in dry.out
    assert dry.out.endswith(f"would free {size:,} bytes\n")
    said = json.loads(told.out)
    assert (True, size, ["old"]) == (said["dryRun"], said["freed"], [each["session"] for each in said["removed"]])
    assert f"freed {size:,} bytes" in really.out
    assert {"used", "timeless"} == {path.name.split(".")[0] for path in below(tmp_path, "*.log.jsonl")}


def test_gc_removes_garbage(tmp_path: Path) -> None:
    """Files of dead processes and blobs that nothing names go; what was put aside goes only with --aside."""
    Shelf(tmp_path).add("one", conversation())
    folder = below(tmp_path, "*.log.jsonl")[0].parent
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    (folder / f"one.idx.{ended.pid}-1.tmp").write_bytes(b"x" * 100)
    (folder / "one.log.jsonl.torn-1").write_bytes(b"x" * 10)
    (folder / "one.blobs").mkdir()
    stray = folder / "one.blobs" / hashlib.sha256(b"stray").hexdigest()
    stray.write_bytes(b"stray")
    runs = acpd.run_many(
        tmp_path, *(["gc", *more, "--json"] for more in (["--dry-run"], [], ["--aside", "--dry-run"], ["--aside"], []))
    )
    assert [105, 105, 10, 10, 0] == [json.loads(ran.out)["freed"] for ran in runs]
    assert [["temp", "orphan-blob"], ["temp", "orphan-blob"], ["kept"], ["kept"], []] == [
        [each["kind"] for each in json.loads(ran.out)["removed"]] for ran in runs
    ]
    assert ["one"] == ids(tmp_path)


@pytest.mark.parametrize("backend", ["workspace", "json", "sqlite"])
def test_what_is_remembered_is_no_session(backend: Literal["workspace", "json", "sqlite"], tmp_path: Path) -> None:
    """Neither rm nor gc takes it, nor does fsck mind it: it is the user's and agent's, and outlives its sessions."""
    shelf = Shelf(tmp_path, backend)
    shelf.add("one", conversation())
    store = open_store(backend, tmp_path / "data")
    assert store.memory is not None
    for key in (Key("agent", "one"), Key("agent", "gone")):
        asyncio.run(store.memory.append(key, f"- of {key.session}"))
    asyncio.run(store.memory.consolidate(key, asyncio.run(store.memory.read(key)).seen, "all"))
    before = {path: path.read_bytes() for path in below(tmp_path) if "memory" in path.parts and path.is_file()}
    assert 4 == len(before), "a ledger, MEMORY.md, what was consolidated, the lock"
    commands = (["fsck"], ["gc", "--aside"], ["rm", "one"], ["gc"], ["fsck"])
    assert [0] * 5 == [ran.code for ran in acpd.run_many(tmp_path, *commands, env=shelf.env)]
    assert before == {path: path.read_bytes() for path in before}
    assert [] == ids(tmp_path, **shelf.env)
