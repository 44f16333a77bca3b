"""The commands that read a store: what they find, show and refuse, on every built-in backend."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

from acpd.storage.contract import Key
from acpd.wire.ids import Ids
from acpd.wire.lines import Header
from acpd_backends.stores import open_store
from tests.cli import acpd
from tests.support.commands import backends
from tests.support.faults import small_disk
from tests.support.walk import below

Json = dict[str, Any]
HERE = "/projects/here"


class Shelf:
    """A store that is filled without acpd's process; its catalog is left for the commands to make."""

    def __init__(
        self, home: Path, backend: Literal["workspace", "json", "sqlite"] = "workspace", user: str | None = None
    ) -> None:
        self.home = home
        self.env = {"ACPD_STORAGE_BACKEND": backend, **({"ACPD_USER": user} if user else {})}
        self._backend, self._user = backend, user

    def add(
        self,
        session: str,
        entries: Sequence[Json],
        *,
        cwd: str = HERE,
        agent: str = "agent",
        day: int = 1,
        directories: tuple[str, ...] = (),
    ) -> None:
        """One log. `entries` have no seq and no at; these have `parentId` unless they are facts."""
        asyncio.run(self._add(session, entries, cwd, agent, f"2026-11-{day:02d}T10:00:00.000Z", directories))

    async def _add(
        self, session: str, entries: Sequence[Json], cwd: str, agent: str, at: str, directories: tuple[str, ...] = ()
    ) -> None:
        store = open_store(self._backend, self.home / "data", user=self._user, sync="process")
        assert store.journals is not None
        assert store.catalog is not None
        header = Header(
            version=1, id=session, cwd=cwd, agent=agent, createdAt=at, user=self._user, additionalDirectories=directories
        )
        journal = await store.journals.create(Key(agent, session, self._user), header)
        ids = Ids()
        for seq, entry in enumerate(entries, 1):
            journal.append(msgspec.json.encode({"id": ids.new(), "seq": seq, "at": at, **entry}) + b"\n")
        journal.flush()
        await journal.close()
        await store.catalog.close()
        await store.session.close()

    def run(self, *words: str, cwd: Path | None = None, **env: str) -> acpd.Ran:
        return acpd.run(self.home, *words, cwd=cwd, env={**self.env, **env})

    def json(self, *words: str) -> Any:
        ran = self.run(*words, "--json")
        assert (0, "") == (ran.code, ran.err)
        return json.loads(ran.out)


def prompt(name: str, parent: str | None, text: str) -> Json:
    return {"type": "prompt", "id": name, "parentId": parent, "prompt": [{"type": "text", "text": text}]}


def said(name: str, parent: str, text: str) -> Json:
    update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}
    params = {"sessionId": "inner", "update": update}
    return {"type": "update", "id": name, "parentId": parent, "kind": "agent_message_chunk", "params": params}


def turn(name: str, parent: str, state: str, reason: str = "") -> Json:
    return {"type": "turn", "id": name, "parentId": parent, "state": state, "stopReason": reason}


def conversation(text: str = "hello") -> list[Json]:
    return [
        {"type": "info", "title": f"About {text}"},
        prompt("e1", None, text),
        turn("e2", "e1", "running"),
        said("e3", "e2", "Good "),
        said("e4", "e3", "day."),
        turn("e5", "e4", "ended", "end_turn"),
    ]


@pytest.fixture(params=backends())
def shelf(tmp_path: Path, request: pytest.FixtureRequest) -> Shelf:
    return Shelf(tmp_path, request.param)


@pytest.fixture
def plain(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path)


# -- ls


def test_ls_lists_the_newest_first(shelf: Shelf) -> None:
    """`acpd ls --all` has every prompted session, the newest first, whatever its folder and agent."""
    shelf.add("old", conversation("old"), day=1)
    shelf.add("new", conversation("new"), day=3, cwd="/elsewhere", agent="other")
    shelf.add("mid", conversation("mid"), day=2)
    shelf.add("empty", [], day=4)
    rows = shelf.json("ls", "--all")
    assert [
        ("new", "About new", "/elsewhere", "other"),
        ("mid", "About mid", HERE, "agent"),
        ("old", "About old", HERE, "agent"),
    ] == [(row["id"], row["title"], row["cwd"], row["agent"]) for row in rows]
    assert {"id", "title", "cwd", "agent", "user", "createdAt", "updatedAt", "messages", "open", "parent"} == set(rows[0])
    assert 2 == rows[0]["messages"]


def test_ls_is_of_this_folder(plain: Shelf, tmp_path: Path) -> None:
    """Without --all only the sessions of the current folder are listed, under either name of it."""
    real, link = tmp_path / "real", tmp_path / "link"
    real.mkdir()
    link.symlink_to(real)
    plain.add("one", conversation(), cwd=str(real))
    plain.add("two", conversation(), cwd=str(link), day=2)
    plain.add("other", conversation(), cwd="/")
    listed = plain.run("ls", "--json", cwd=real, PWD=str(link))
    assert ["two", "one"] == [row["id"] for row in json.loads(listed.out)]
    assert ["one"] == [row["id"] for row in json.loads(plain.run("ls", "--json", cwd=real, PWD="/none").out)]


def test_ls_limit(plain: Shelf) -> None:
    """--limit N shows the newest N, 0 all."""
    for day in range(1, 6):
        plain.add(f"s{day}", conversation(), day=day)
    assert ["s5", "s4"] == [row["id"] for row in plain.json("ls", "--all", "--limit", "2")]
    assert 5 == len(plain.json("ls", "--all", "--limit", "0"))
    assert 5 == len(plain.json("ls", "--all", "--limit", "5"))


def test_ls_for_people(plain: Shelf) -> None:
    """A line has the id, the time, the messages, the agent, the folder and the title."""
    plain.add("s1", conversation())
    (line,) = plain.run("ls", "--all", TZ="UTC").out.splitlines()
    assert ["s1", "2026-11-01 10:00", "2", "agent", HERE, "About hello"] == line.split("  ")


def test_a_store_that_is_not_there(shelf: Shelf) -> None:
    """Without a store there are no sessions, and none is made by looking."""
    assert (0, "", "") == shelf.run("ls")
    assert [] == shelf.json("ls", "--all")
    assert 1 == shelf.run("show", "x").code
    assert [] == list(shelf.home.iterdir())


def test_a_terminal_is_told_what_is_missing(plain: Shelf) -> None:
    """On a terminal an empty listing says where it looked."""
    assert f"no sessions in {plain.home / 'data'}\n" == acpd.on_terminal(plain.home, "ls", "--all").out


def test_users_do_not_see_each_other(tmp_path: Path) -> None:
    """--user lists that user's sessions, no --user nobody's in particular."""
    alice, nobody = Shelf(tmp_path, user="alice"), Shelf(tmp_path)
    alice.add("hers", conversation())
    nobody.add("mine", conversation())
    assert ["hers"] == [row["id"] for row in alice.json("ls", "--all")]
    assert ["mine"] == [row["id"] for row in nobody.json("ls", "--all")]
    assert 0 == alice.run("show", "hers").code
    assert 1 == nobody.run("show", "hers").code


# -- ids


@pytest.mark.parametrize("command", ["show", "tree", "logs"])
def test_ids(plain: Shelf, command: str) -> None:
    """An id may be cut short while it is unique; else the error says which there are, or where to look."""
    for session in ("abc1", "abc2", "abd", "ab"):
        plain.add(session, conversation())
    unknown = plain.run(command, "x%")
    assert (1, "", "acpd: cannot find session x% ('acpd ls --all' lists what there is)\n") == unknown
    ambiguous = plain.run(command, "abc")
    assert (1, "") == (ambiguous.code, ambiguous.out)
    assert ambiguous.err.startswith("acpd: cannot tell which session is abc: ")
    assert "abc1" in ambiguous.err
    assert "abc2" in ambiguous.err
    assert 1 == plain.run(command, "").code
    if command != "logs":
        assert [0, 0] == [plain.run(command, "abd").code, plain.run(command, "ab").code]


# -- show


def test_show(shelf: Shelf) -> None:
    """`acpd show` tells the conversation: prompts, messages as one, the end of each turn."""
    shelf.add("s1", conversation())
    code, out, err = shelf.run("show", "s1", TZ="UTC")
    assert (0, "") == (code, err)
    assert [
        "session s1",
        "title   About hello",
        f"folder  {HERE}",
        "agent   agent",
        "since   2026-11-01 10:00",
        "",
        "you:",
        "  hello",
        "agent:",
        "  Good day.",
        "turn ended: end_turn",
        "",
    ] == out.splitlines()


def branched() -> list[Json]:
    return [
        *conversation(),
        prompt("f1", "e1", "or rather"),
        said("f2", "f1", "Sure."),
        {"type": "leaf", "entry": "f2"},
        {"type": "label", "entry": "e4", "label": "first try"},
    ]


def test_show_is_of_the_current_branch(plain: Shelf) -> None:
    """What hangs on another branch is not shown."""
    plain.add("s1", branched())
    out = plain.run("show", "s1").out
    assert "Sure." in out
    assert "Good day." not in out


@pytest.mark.parametrize("entries", [conversation(), branched()], ids=["straight", "branched"])
@pytest.mark.parametrize("last", [1, 2, 3, 100])
def test_show_last(plain: Shelf, entries: list[Json], last: int) -> None:
    """--last N is the end of what is shown without it, entry by entry, whatever facts stand between."""
    padded = [one for entry in entries for one in (entry, {"type": "usage", "kind": "usage_update"})]
    plain.add("s1", padded)
    everything = plain.run("show", "s1", "--json").out.splitlines()
    assert everything[-last:] == plain.run("show", "s1", "--json", "--last", str(last)).out.splitlines()
    assert {"at": "2026-11-01T10:00:00.000Z", "seq": 3, **conversation()[1]} == json.loads(everything[0])


def test_show_on_a_terminal_obeys_nothing(plain: Shelf) -> None:
    """Escape sequences in stored texts are shown on a terminal, and written unchanged into a file."""
    plain.add("s1", [prompt("e1", None, "\x1b[2Jgone\x07")])
    assert "  \\x1b[2Jgone\\x07\n" in acpd.on_terminal(plain.home, "show", "s1").out
    assert "  \x1b[2Jgone\x07\n" in plain.run("show", "s1").out


def test_damage_is_told(plain: Shelf) -> None:
    """A bad line in the middle is told and the rest is shown; the file stays as it is."""
    plain.add("s1", conversation())
    (log,) = below(plain.home, "s1.log.jsonl")
    written = log.read_bytes().split(b"\n")
    written[4] = b'{"torn'
    log.write_bytes(b"\n".join(written))
    before = log.read_bytes()
    out = plain.run("show", "s1").out
    assert "gap: a part of the history could not be read" in out
    assert "damage: " in out
    assert "  day." in out
    assert before == log.read_bytes()


def test_a_turn_that_was_cut_off(plain: Shelf) -> None:
    """A turn without an end is said to have none."""
    plain.add("s1", conversation()[:-1])
    assert "turn still running, or cut off by a crash" == plain.run("show", "s1").out.splitlines()[-1]


def test_a_log_that_cannot_be_read(plain: Shelf) -> None:
    """A log that is there and cannot be opened is an error that names it and the cause."""
    plain.add("s1", conversation())
    plain.run("ls")
    (log,) = below(plain.home, "s1.log.jsonl")
    log.unlink()
    log.mkdir()
    code, out, err = plain.run("show", "s1")
    assert (1, "", 1) == (code, out, err.count("\n"))
    assert "s1" in err
    assert "Is a directory" in err


def test_a_catalog_that_cannot_be_opened(plain: Shelf) -> None:
    """A catalog that is in the way costs the reading of all logs; a line names the file and why."""
    plain.add("s1", conversation())
    folder = plain.home / "data" / ".acpd"
    (folder / "catalog.db").mkdir(parents=True)
    ran = plain.run("ls", "--all", "--json")
    assert (0, 1) == (ran.code, ran.err.count("\n"))
    assert ["s1"] == [row["id"] for row in json.loads(ran.out)]
    assert f"acpd: all logs were read instead of the catalog: cannot open {folder / 'catalog.db'}: " in ran.err


def test_on_a_full_disk_there_is_room_to_be_made(tmp_path: Path) -> None:
    """What reads the store works without a byte of space, and so does removing sessions; a new start lists what is left."""
    with small_disk(tmp_path / "disk", 2 << 20) as disk:
        shelf = Shelf(disk.path)
        for name in ("s1", "s2"):
            shelf.add(name, conversation())
        disk.fill(os.getpid())
        for words in (["ls", "--all"], ["show", "s1"], ["tree", "s1"], ["search", "--all", "hello"], ["fsck"]):
            ran = shelf.run(*words)
            assert 0 == ran.code, (words, ran.err)
            assert "s1" in ran.out or "hello" in ran.out or words == ["fsck"]
        assert 0 == shelf.run("rm", "--yes", "s1").code
        disk.free(os.getpid())
        assert ["s2"] == [row["id"] for row in shelf.json("ls", "--all")]


def test_a_store_that_may_only_be_read_is_read(tmp_path: Path) -> None:
    """A backup on a disk that may only be read: all that shows something works, and the disk is as it was."""
    with small_disk(tmp_path / "disk", 2 << 20) as disk:
        shelf = Shelf(disk.path)
        shelf.add("s1", conversation())
        if disk.mounted:
            subprocess.run(["mount", "-o", "remount,ro", str(disk.path)], check=True)
        before = below(disk.path)
        for words in (["ls", "--all"], ["show", "s1"], ["tree", "s1"], ["search", "--all", "hello"]):
            ran = shelf.run(*words)
            assert 0 == ran.code, (words, ran.err)
            assert "s1" in ran.out or "hello" in ran.out
        assert not disk.mounted or before == below(disk.path)


def test_a_catalog_that_is_no_database(plain: Shelf) -> None:
    """A catalog that is damaged is made anew from the logs."""
    plain.add("s1", conversation())
    assert 0 == plain.run("ls").code
    (plain.home / "data" / ".acpd" / "catalog.db").write_bytes(b"garbage" * 2000)
    assert ["s1"] == [row["id"] for row in plain.json("ls", "--all")]


# -- tree


def test_tree(shelf: Shelf) -> None:
    """`acpd tree` has a line for each stretch, marks the current path, labels and the leaf, and counts."""
    shelf.add("s1", branched())
    code, out, err = shelf.run("tree", "s1")
    assert (0, "") == (code, err)
    assert [
        '* e1 "hello"',
        "  + e4 turn, 3 entries [first try]",
        "  | e5 turn, end_turn",
        '* f2 "or rather", 2 entries <- leaf',
        "",
        "7 entries, 2 branches",
    ] == out.splitlines()[6:]


def test_tree_on_a_terminal_obeys_nothing(plain: Shelf) -> None:
    """Neither a prompt nor a label nor the end of a turn steers the terminal or begins a line of its own."""
    evil = "\x1b[2J\x9b\r\n* 1 <- leaf"
    label = {"type": "label", "entry": "e1", "label": evil}
    plain.add("s1", [prompt("e1", None, evil), turn("e2", "e1", "ended", evil), label])
    lines = acpd.on_terminal(plain.home, "tree", "s1").out.splitlines()[5:]
    assert not [line for line in lines if set("\x1b\x9b\r") & set(line)]
    assert 2 == len([line for line in lines if line.startswith("*")])


def test_a_long_tree_is_short(plain: Shelf) -> None:
    """Of a long conversation both ends are shown; --all shows every turn."""
    prompts = [prompt(f"e{n}", f"e{n - 1}" if n else None, f"p{n}") for n in range(100)]
    plain.add("s1", prompts)
    out = plain.run("tree", "s1").out.splitlines()
    assert "  ... 87 turns, 87 entries (--all shows them)" in out
    assert '* e99 "p99" <- leaf' in out
    assert len(out) < 30
    assert 100 == len([line for line in plain.run("tree", "s1", "--all").out.splitlines() if line.startswith("* ")])


def test_tree_json(shelf: Shelf) -> None:
    """--json: every entry with its parent, the leaf, the ends of the branches, the labels."""
    shelf.add("s1", branched())
    value = shelf.json("tree", "s1")
    assert ("s1", "f2", ["e5", "f2"], {"e4": "first try"}) == tuple(value[key] for key in ("id", "leaf", "branches", "labels"))
    assert [("e1", None), ("e2", "e1"), ("e3", "e2"), ("e4", "e3"), ("e5", "e4"), ("f1", "e1"), ("f2", "f1")] == [
        (one["id"], one["parentId"]) for one in value["entries"]
    ]


# -- logs


def test_logs(plain: Shelf) -> None:
    """`acpd logs ID` is the end of what that session's agent wrote to stderr; without an ID, of the newest agents."""
    plain.add("s1", [{"type": "link", "link": "l1", "agent": "agent", "inner": "x"}, *conversation()])
    links = plain.home / "run" / "links"
    links.mkdir(parents=True)
    for name, text in (("l1", "".join(f"line {n}\n" for n in range(100))), ("l2", "other\n")):
        (links / f"{name}.stderr").write_text(text)
    path = links / "l1.stderr"
    assert (0, f"== {path}\nline 98\nline 99\n", "") == plain.run("logs", "s1", "--lines", "2")
    out = plain.run("logs", "--lines", "1").out
    assert out.startswith(f"a daemon logs to {plain.home}/data/logs/acpd.log")
    assert "line 99\n" in out
    assert "other\n" in out


def test_logs_that_are_gone(plain: Shelf) -> None:
    """The log of an agent that left nothing is an error that says where it would be."""
    plain.add("s1", conversation())
    code, out, err = plain.run("logs", "s1")
    assert (1, "") == (code, out)
    assert f"cannot find the agent's log of s1: not in {plain.home / 'run' / 'links'}" in err


def test_a_link_names_no_other_folder(plain: Shelf) -> None:
    """A link's name is never a way to another file."""
    plain.add("s1", [{"type": "link", "link": "../../outside", "agent": "agent", "inner": "x"}, *conversation()])
    (plain.home / "outside.stderr").write_text("secret")
    assert 1 == plain.run("logs", "s1").code


def test_a_list_for_others_that_cannot_be_written_is_told(plain: Shelf) -> None:
    """A command does what it was asked for, and says in one line which file stays behind, and why."""
    plain.add("s1", conversation())
    path = below(plain.home, "s1.log.jsonl")[0].with_name("sessions.json")
    path.write_text('{"version": 99, "sessions": {}}')
    ran = plain.run("ls", "--all")
    assert (0, True) == (ran.code, "s1" in ran.out)
    assert f"acpd: cannot update {path}: its version 99 is newer than 1\n" == ran.err


def test_what_is_read_is_not_changed(plain: Shelf) -> None:
    """Showing a session changes no file of it."""
    plain.add("s1", branched())
    plain.run("ls")
    sessions = below(plain.home, "s1.log.jsonl")[0].parent
    before = {path: path.read_bytes() for path in sessions.iterdir() if path.is_file()}
    for words in (("show", "s1"), ("show", "s1", "--last", "2"), ("tree", "s1"), ("ls", "--all")):
        assert 0 == plain.run(*words).code
    assert before == {path: path.read_bytes() for path in sessions.iterdir() if path.is_file()}
