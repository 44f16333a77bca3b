"""`acpd fsck`: what it finds, says and repairs, on the corpus of damaged trees and on what is made of a log."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sqlite3
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from acpd.storage.contract import Key
from acpd.storage.replay import Replay
from acpd.storage.upkeep import KINDS
from acpd.wire.lines import Stored
from acpd_backends.jsonl import JsonlJournals
from acpd_backends.leases import FlockLease
from acpd_backends.names import Layout
from tests.cli import acpd
from tests.cli.test_stored import Shelf, conversation
from tests.storage.test_corpus_trees import CASES, NOT_OF_THE_TREE, TREES, convert, expected, made, size_of
from tests.storage.test_corpus_trees import KINDS as SHOWN
from tests.support.walk import below

Json = dict[str, Any]
NOTES = {kind for kind, each in KINDS.items() if each.weight == "note"}


_IN_HEADER = re.compile(rb'("type":"session","version":\d+,"id":")[^"]*')


class Told:
    """What commands said."""

    def __init__(self, home: Path) -> None:
        self._home = home

    def many(self, *commands: Sequence[str]) -> list[acpd.Ran]:
        return acpd.run_many(self._home, *commands)

    def __call__(self, *words: str) -> acpd.Ran:
        return self.many(words)[0]

    def fsck(self, *words: str) -> tuple[int, list[Json]]:
        ran = self("fsck", *words, "--json")
        assert "" == ran.err
        found: list[Json] = json.loads(ran.out)["found"]
        return ran.code, found


def key_of(case: str) -> Key:
    return Key("pi", f"case-{case}")


def log_of(home: Path, case: str) -> Path:
    return Path(JsonlJournals(Layout(home / "data")).log_path(key_of(case)))


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """A store with every tree of the corpus, and nothing else."""
    for case in CASES:
        log = log_of(tmp_path, case)
        log.parent.mkdir(parents=True, exist_ok=True)
        lines = convert((TREES / f"{case}.jsonl").read_bytes())
        log.write_bytes(_IN_HEADER.sub(rb"\1case-%b" % case.encode(), lines, count=1))
    return tmp_path


def shown(home: Path, case: str) -> list[Any]:
    """What a client gets on load, without the numbers of the lines."""

    async def path() -> list[Stored]:
        return [line async for window in JsonlJournals(Layout(home / "data")).path(key_of(case)) for line in window]

    replay = Replay("s", SHOWN)
    frames = [msgspec.json.decode(frame)["params"] for frame in replay.feed(asyncio.run(path())) + replay.finish()]
    return [(frame["update"], frame["_meta"].get("acpd.dev/at")) for frame in frames]


def without_damage(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not line.startswith(("damage: ", "folder ", "since ")))


def test_the_corpus_is_found_as_expected(corpus: Path) -> None:
    """Each damaged tree has the findings that it should have, with their lines, and each healthy one none; no byte changes."""
    before = {case: log_of(corpus, case).read_bytes() for case in CASES}
    code, found = Told(corpus).fsck()
    assert 1 == code
    for case in CASES:
        want = expected(case)
        mine = [each for each in found if each["session"] == f"case-{case}" and each["kind"] not in NOTES]
        kinds = {each["kind"] for each in mine}
        assert set(want["warn"]) - NOT_OF_THE_TREE <= kinds, case
        assert bool(kinds) == bool(set(want["warn"]) - NOT_OF_THE_TREE), case
        lost = {each["line"] for each in mine if each["kind"] in {"json", "nul", "utf8", "depth", "record", "torn-tail"}}
        assert want["damaged_lines"] == sorted(lost), case
        assert all(each["meaning"] and each["remedy"] and each["path"] for each in mine)
    assert before == {case: log_of(corpus, case).read_bytes() for case in CASES}


def test_the_corpus_is_shown(corpus: Path) -> None:
    """`acpd show` gives the path of every tree of the corpus, damaged or not, and says what is damaged."""
    told = Told(corpus)
    as_json = told.many(*(["show", f"case-{case}", "--json"] for case in CASES))
    as_text = told.many(*(["show", f"case-{case}"] for case in CASES))
    for case, ran, text in zip(CASES, as_json, as_text, strict=True):
        want = expected(case)
        assert (0, "", 0) == (ran.code, ran.err, text.code), case
        lines = [json.loads(line) for line in ran.out.split("\n")[:-1]]
        path = [line["id"] for line in lines if line["type"] != "gap"]
        assert path in ([name.replace("#1", "") for name in want["path"]], want.get("also_ok", {}).get("path")), case
        assert bool(set(want["warn"]) - NOT_OF_THE_TREE) == ("damage: " in text.out), case


SMALL = {"chain": 500, "fan": 500, "cycle": 500, "branches": 50, "torn": 500, "dup": 500, "long-line": 1 << 20, "images": 4}
"""Kinds of tree that the corpus makes instead of keeping them: how many entries, bytes, or branches of ten."""
WRONG = {"torn": {"torn-tail": 1}, "cycle": {"cycle": 1}, "dup": {"duplicate-id": 490}}


def test_made_trees(tmp_path: Path) -> None:
    """Of each kind fsck finds what is wrong and nothing else, and `acpd show` gives the path to its leaf."""
    told = Told(tmp_path)
    for kind, count in SMALL.items():
        log = log_of(tmp_path, kind)
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_bytes(_IN_HEADER.sub(rb"\1case-%b" % kind.encode(), made(kind, count, tmp_path), count=1))
    code, found = told.fsck()
    kinds = {kind: Counter(each["kind"] for each in found if each["session"] == f"case-{kind}") for kind in SMALL}
    assert (1, WRONG) == (code, {kind: dict(each) for kind, each in kinds.items() if each})
    shows = told.many(*(["show", f"case-{kind}", "--json"] for kind in SMALL))
    for (kind, count), ran in zip(SMALL.items(), shows, strict=True):
        lines = [json.loads(line) for line in ran.out.split("\n")[:-1]]
        path = [line["id"] for line in lines if line["type"] != "gap"]
        assert (0, "", size_of(kind, count)[1]) == (ran.code, ran.err, len(path)), kind
        assert (kind == "cycle") == (len(lines) > len(path))


def test_the_corpus_repaired(corpus: Path) -> None:
    """A repaired log is shown as the damaged one was, nothing is wrong with it any more, and the original is kept whole."""
    told = Told(corpus)
    before = {case: (log_of(corpus, case).read_bytes(), shown(corpus, case)) for case in CASES}
    texts = told.many(*(["show", f"case-{case}"] for case in CASES))
    _, found = told.fsck()
    damaged = {each["session"].removeprefix("case-") for each in found if KINDS[each["kind"]].log}
    ran = told("fsck", "--repair", "--json")
    assert (1, len(damaged)) == (ran.code, len(json.loads(ran.out)["kept"]))
    assert len(damaged) == 10
    code, left = told.fsck()
    assert (1, ["newer-version"]) == (code, [each["kind"] for each in left if each["kind"] not in NOTES])
    for case in CASES:
        log = log_of(corpus, case)
        kept = log.with_name(f"{log.name}.damaged-1")
        assert kept.exists() == (case in damaged)
        assert before[case][0] == (kept if case in damaged else log).read_bytes()
        assert before[case][1] == shown(corpus, case)
    again = told.many(*(["show", f"case-{case}"] for case in CASES))
    assert [without_damage(ran.out) for ran in texts] == [without_damage(ran.out) for ran in again]
    assert len(CASES) == len(_scanned(corpus))


def _scanned(home: Path) -> list[Key]:
    async def scan() -> list[Key]:
        return [key async for key in JsonlJournals(Layout(home / "data")).scan(None)]

    return asyncio.run(scan())


def test_exit_codes(tmp_path: Path) -> None:
    """0: nothing is wrong; 1: something was found, or there is no such session; 2: the command line is wrong."""
    told = Told(tmp_path)
    assert (0, "0 sessions: 0 findings, 0 notes\n", "") == told("fsck")
    Shelf(tmp_path).add("s1", conversation())
    assert (0, "1 session: 0 findings, 0 notes\n", "") == told("fsck", "s")
    code, out, err = told("fsck", "nobody")
    assert (1, "") == (code, out)
    assert "cannot find session nobody" in err
    assert 2 == told("fsck", "--mend")[0]
    log = below(tmp_path, "*.log.jsonl")[0]
    log.write_bytes(log.read_bytes()[:-20])
    code, out, _ = told("fsck", "s1")
    assert (1, ["torn-tail", "index-wrong"]) == (code, kinds(out))
    assert out.startswith(f"{log}:{len(log.read_bytes().splitlines())}: torn-tail: ")
    assert "acpd fsck --repair s1" in out


def test_lines_that_stand_twice_are_taken_out(tmp_path: Path) -> None:
    """The repaired copy is the log as it was; what is searched of it is searched anew."""
    told = Told(tmp_path)
    Shelf(tmp_path).add("s1", conversation())
    log = below(tmp_path, "*.log.jsonl")[0]
    whole = log.read_bytes()
    log.write_bytes(whole + b"".join(whole.splitlines(keepends=True)[-3:]))
    assert 1 == len(json.loads(told("search", "hello", "--all", "--json").out))
    code, out, _ = told("fsck", "s1")
    assert 1 == code
    assert {"repeated-line", "seq"} <= set(kinds(out))
    assert 0 == told("fsck", "--repair", "s1")[0]
    assert whole == log.read_bytes()
    assert [] == [each for each in told.fsck()[1] if each["weight"] != "note"]
    assert 1 == len(json.loads(told("search", "hello", "--all", "--json").out))


def test_a_log_under_another_name(tmp_path: Path) -> None:
    """Its header names another session: told with the line; the file's name is the session's, and a repaired copy says so."""
    told = Told(tmp_path)
    Shelf(tmp_path).add("s1", conversation())
    log = below(tmp_path, "s1.log.jsonl")[0]
    copy = log.with_name("s2.log.jsonl")
    copy.write_bytes(log.read_bytes())
    code, out, _ = told("fsck", "s2")
    assert 1 == code
    assert out.startswith(f"{copy}:1: other-id (s1): the header names another session")
    assert "acpd fsck --repair s2 writes a copy" in out
    assert "session s2\n" in told("show", "s2").out
    assert 0 == told("fsck", "--repair", "s2").code
    assert log.read_bytes() == copy.with_name("s2.log.jsonl.damaged-1").read_bytes()
    assert log.read_bytes().replace(b'"id":"s1"', b'"id":"s2"', 1) == copy.read_bytes()
    assert (0, []) == (told("fsck").code, [each for each in told.fsck()[1] if each["weight"] != "note"])


def test_a_session_that_is_open_is_not_repaired(tmp_path: Path) -> None:
    """A held lease is told with its pid; the log is not touched; its end and caches are being written, and not judged."""
    Shelf(tmp_path).add("s1", conversation())
    log = below(tmp_path, "*.log.jsonl")[0]
    damaged = b"".join(
        line if number != 3 else b'{"type":"turn",\n'
        for number, line in enumerate(log.read_bytes().splitlines(keepends=True), 1)
    )
    log.write_bytes(damaged[:-1])
    told = Told(tmp_path)

    async def held() -> acpd.Ran:
        lease = FlockLease(Layout(tmp_path / "data"))
        await lease.take(Key("agent", "s1"))
        try:
            return await asyncio.to_thread(told, "fsck", "--repair", "s1")
        finally:
            await lease.give_up(Key("agent", "s1"))

    code, out, err = asyncio.run(held())
    assert (1, damaged[:-1]) == (code, log.read_bytes())
    assert f"open in pid {os.getpid()}" in err
    assert ["json", "missing-parent", "open"] == sorted(kinds(out))
    assert 0 == told("fsck", "--repair", "s1")[0]


def test_what_cannot_be_read_is_told_and_the_rest_is_checked(tmp_path: Path) -> None:
    """A log that is no file does not keep the others from being looked at; the exit code is 1."""
    shelf = Shelf(tmp_path)
    for name in ("one", "two"):
        shelf.add(name, conversation())
    log = next(path for path in below(tmp_path, "*.log.jsonl") if path.name.startswith("one."))
    blobs = log.with_name("one.blobs")
    blobs.write_bytes(b"no folder")
    line = log.read_bytes().splitlines(keepends=True)[2]
    named = b'"prompt":{"$blob":"%b","bytes":5},"blobs":[10]}' % (b"0" * 64)
    log.write_bytes(log.read_bytes().replace(line, re.sub(rb'"prompt":.*\]}', named, line)))
    ran = Told(tmp_path)("fsck")
    assert 1 == ran.code
    assert "cannot check session one: Not a directory" in ran.err
    assert ran.out.startswith("1 session: ")


def kinds(out: str) -> Sequence[str]:
    """Of the lines that fsck said."""
    return [line.split(": ")[1].split(" ")[0] for line in out.splitlines()[:-1]]


def test_the_catalog_is_checked(tmp_path: Path) -> None:
    """A row that is missing, that says something else than the log, or that has no log is found, and put right."""
    told = Told(tmp_path)
    shelf = Shelf(tmp_path)
    for name in ("gone", "behind"):
        shelf.add(name, conversation())
    told("ls", "--all")
    shelf.add("missing", conversation())
    logs = {path.name.split(".")[0]: path for path in below(tmp_path, "*.log.jsonl")}
    logs["gone"].unlink()
    with logs["behind"].open("ab") as log:
        log.write(b'{"type":"info","id":"zz","seq":99,"at":"2027-01-01T00:00:00.000Z","title":"Later"}\n')
    code, found = told.fsck()
    wanted = {("behind", "row-behind"), ("behind", "seq"), ("missing", "row-missing"), ("gone", "row-alone")}
    assert (1, wanted) == (code, {(each["session"], each["kind"]) for each in found if each["weight"] != "note"})
    assert 0 == told("fsck", "--repair")[0]
    assert (0, []) == (told.fsck()[0], [each for each in told.fsck()[1] if each["weight"] != "note"])
    assert [("behind", "Later"), ("missing", "About hello")] == [
        (row["id"], row["title"]) for row in json.loads(told("ls", "--all", "--json").out)
    ]


def database(home: Path, name: str = "catalog.db") -> sqlite3.Connection:
    (path,) = below(home, name)
    return sqlite3.connect(path, isolation_level=None)


def spoil_page(home: Path, tree: str, name: str = "catalog.db") -> Path:
    """Overwrite the first page of a table or index of the catalog. The file."""
    with closing(database(home, name)) as db:
        ((page,),) = db.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (tree,))
        ((size,),) = db.execute("PRAGMA page_size")
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    (path,) = below(home, name)
    with path.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xaa" * size)
    return path


def listed(told: Told) -> tuple[list[str], int]:
    """The sessions, and how many hits a word has."""
    rows, hits = told.many(["ls", "--all", "--json"], ["search", "hello", "--all", "--json"])
    return [row["id"] for row in json.loads(rows.out)], len(json.loads(hits.out))


def test_a_damaged_catalog_is_found_and_made_anew(tmp_path: Path) -> None:
    """Damaged pages are told, and the logs checked all the same; a repair puts the file aside and makes it of the logs."""
    told = Told(tmp_path)
    shelf = Shelf(tmp_path)
    for name in ("s1", "s2"):
        shelf.add(name, conversation())
    before = listed(told)
    assert (["s1", "s2"], 1) == (sorted(before[0]), before[1]), "what two sessions share is found once"
    path = spoil_page(tmp_path, "by_time")
    code, out, err = told("fsck")
    assert (1, ["catalog"], "") == (code, kinds(out), err)
    assert out.startswith(f"{path}: catalog (")
    assert "it is only a cache; acpd fsck --repair makes it anew of the logs" in out
    assert "2 sessions: 1 finding, 0 notes\n" in out
    assert [] == below(tmp_path, "catalog.db.unreadable-*"), "nothing is changed without --repair"
    code, out, _ = told("fsck", "--repair")
    assert (0, ["catalog", "kept"]) == (code, kinds(out))
    assert "2 sessions: 0 findings, 1 note, 1 repaired\n" in out
    assert (0, before) == (told("fsck").code, listed(told))


def test_a_damaged_search_index_is_found_and_filled_again(tmp_path: Path) -> None:
    """Words that the index cannot read, and texts that are gone from beside it, are told; after a repair all is found again."""
    told = Told(tmp_path)
    Shelf(tmp_path).add("s1", conversation())
    before = listed(told)
    for damage, said in (
        ("UPDATE search_data SET block = zeroblob(length(block)) WHERE id > 10", "malformed"),
        ("DELETE FROM document_text WHERE id = (SELECT min(id) FROM document_text)", "1 documents without their text"),
    ):
        with closing(database(tmp_path)) as db:
            db.execute(damage)
        code, out, _ = told("fsck")
        assert (1, ["search-index"]) == (code, kinds(out))
        assert said in out
        code, out, _ = told("fsck", "--repair")
        assert (0, ["search-index"]) == (code, kinds(out))
        assert (0, before) == (told("fsck").code, listed(told))


def test_a_damaged_database_of_states_is_kept(tmp_path: Path) -> None:
    """The file of the sqlite backend is no cache: what is wrong with it is told, a repair of the rest leaves it as it is."""
    shelf = Shelf(tmp_path, "sqlite")
    shelf.add("s1", conversation())
    assert 0 == shelf.run("fsck").code
    path = spoil_page(tmp_path, "by_time", "store.db")
    before = path.read_bytes()
    for ran in (shelf.run("fsck"), shelf.run("fsck", "--repair")):
        assert (1, ["database"]) == (ran.code, kinds(ran.out))
        assert "damaged; put it back from a backup" in ran.out
    assert before == path.read_bytes()
