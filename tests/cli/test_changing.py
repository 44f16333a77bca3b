"""The commands that change a session: what they write, say and refuse, on every built-in backend."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_stored import Shelf, branched, conversation, plain, prompt, said, shelf, turn
from tests.support.walk import below

__all__ = ["plain", "shelf"]


def lines(shelf: Shelf, session: str = "s1") -> list[dict[str, Any]]:
    (log,) = below(shelf.home, f"{session}.log.jsonl")
    return [json.loads(line) for line in log.read_bytes().splitlines()]


def test_branch(shelf: Shelf) -> None:
    """The session goes on behind the entry; every line that there was stays, and show and tree follow."""
    shelf.add("s1", branched())
    before = lines(shelf)
    assert (0, "session s1 goes on at e5\n", "") == shelf.run("branch", "s@e5")
    assert "Good day." in shelf.run("show", "s1").out
    assert "Sure." not in shelf.run("show", "s1").out
    assert "* e5 turn, end_turn <- leaf" in shelf.run("tree", "s1").out.splitlines()
    assert ["e4", "e5"] == [
        json.loads(line)["id"] for line in shelf.run("show", "s1", "--json", "--last", "2").out.splitlines()
    ]
    after = lines(shelf)
    assert before == after[: len(before)]
    assert [("leaf", "e5")] == [(line["type"], line["entry"]) for line in after[len(before) :]]
    assert (0, "session s1 goes on at e5\n", "") == shelf.run("branch", "s1@e5")
    assert after == lines(shelf), "it was there already"
    (row,) = shelf.json("ls", "--all")
    assert ("s1", False) == (row["id"], row["open"])


def test_label(plain: Shelf) -> None:
    """A label names an entry for the other commands, is replaced by a second one, and can be taken away."""
    plain.add("s1", branched())
    assert (0, "entry e5 of session s1 is labelled a b\n", "") == plain.run("label", "s1@e5", " a b ")
    assert "[a b]" in plain.run("tree", "s1").out
    assert (0, "session s1 goes on at e5\n", "") == plain.run("branch", "s1@a b")
    assert (0, "entry e5 of session s1 is labelled c\n", "") == plain.run("label", "s1@a b", "c")
    assert (0, "entry e5 of session s1 has no label\n", "") == plain.run("label", "s1@c", "--remove")
    assert {"e4": "first try"} == plain.json("tree", "s1")["labels"]


def test_fork(plain: Shelf) -> None:
    """The new session's id is all that is said; it has the path up to the entry, and the source stays as it is."""
    plain.add("s1", branched())
    before = lines(plain)
    code, out, err = plain.run("fork", "s1@first try")
    assert (0, "", 36) == (code, err, len(out.strip()))
    assert before == lines(plain)
    header, *_ = fork = lines(plain, out.strip())
    assert ({"sessionId": "s1", "entryId": "e4"}, "/projects/here") == (header["parent"], header["cwd"])
    assert ["e1", "e2", "e3", "e4"] == [line["id"] for line in fork[1:5]]
    assert "interrupted" in [line.get("state") for line in fork], "it was cut within a turn"
    whole = plain.run("fork", "s1").out.strip()
    assert ["e1", "f1", "f2"] == [line["id"] for line in lines(plain, whole) if "parentId" in line]
    assert 3 == len(plain.json("ls", "--all"))


def test_a_turn_that_a_killed_acpd_left(plain: Shelf) -> None:
    """A fork ends before it; a branch records it as interrupted first."""
    plain.add("s1", [*conversation(), prompt("g1", "e5", "more"), turn("g2", "g1", "running"), said("g3", "g2", "half")])
    fork = plain.run("fork", "s1").out.strip()
    assert "half" not in plain.run("show", fork).out
    assert 0 == plain.run("branch", "s1@e5").code
    assert ["running", "ended", "running", "interrupted"] == [line["state"] for line in lines(plain) if line["type"] == "turn"]
    assert "half" not in plain.run("show", "s1").out
    plain.add("s2", [prompt("h1", None, "first"), turn("h2", "h1", "running")])
    code, out, err = plain.run("fork", "s2")
    assert (1, "") == (code, out)
    assert "no turn of session s2 is over yet" in err


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("branch", "s1"), 2, "no entry is named (acpd branch ID@ENTRY"),
        (("label", "s1@e1", "good", "idea"), 2, "a label of several words stands in quotes (acpd label s1@e1 'good idea')"),
        (("tree", "s1@e1"), 1, "cannot find session s1@e1 (a session, and no entry of it, is meant here: s1, without @e1)"),
        (("label", "s1@e1", "x", "--remove"), 2, "a label is a text, or --remove"),
        (("label", "s1@e1", "a\nb"), 1, "label must be one line of 1 to 200 printable characters"),
        (("branch", "s1@nowhere"), 1, "cannot find entry nowhere of session s1 ('acpd tree s1' lists them)"),
        (("branch", "s1@e"), 1, "cannot tell which entry is e of session s1: e1, e2, e3, e4, e5"),
        (("branch", "x@e1"), 1, "cannot find session x ('acpd ls --all' lists what there is)"),
    ],
)
def test_what_is_refused(words: tuple[str, ...], code: int, told: str, plain: Shelf) -> None:
    """One line with the object, the cause and the next step; and nothing is written."""
    plain.add("s1", branched())
    before = lines(plain)
    got = plain.run(*words)
    assert (code, "", 1) == (got.code, got.out, got.err.count("\n"))
    assert told in got.err
    assert before == lines(plain)


def test_where_there_is_no_store(tmp_path: Path) -> None:
    """Nothing is made."""
    for words in (("branch", "s1@e1"), ("fork", "s1")):
        got = Shelf(tmp_path).run(*words)
        assert (1, "") == (got.code, got.out)
        assert "cannot find session s1" in got.err
    assert [] == list(tmp_path.iterdir())


def test_a_log_of_a_newer_version(plain: Shelf) -> None:
    """It is neither changed nor forked."""
    plain.add("s1", branched())
    (log,) = below(plain.home, "s1.log.jsonl")
    log.write_bytes(log.read_bytes().replace(b'"version":1', b'"version":99', 1))
    before = log.read_bytes()
    for words in (("branch", "s1@e1"), ("fork", "s1@e1")):
        got = plain.run(*words)
        assert (1, "") == (got.code, got.out)
        assert "newer version" in got.err
    assert before == log.read_bytes()
    assert 1 == len(below(plain.home, "*.log.jsonl"))
