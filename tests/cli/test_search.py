"""`acpd search`: what it finds, shows and refuses, on every built-in backend."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli import acpd
from tests.cli.test_stored import HERE, Json, Shelf, prompt, said, turn
from tests.support.commands import backends
from tests.support.walk import below


@pytest.fixture(params=backends())
def shelf(tmp_path: Path, request: pytest.FixtureRequest) -> Shelf:
    return Shelf(tmp_path, request.param)


@pytest.fixture
def plain(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path)


def talk(name: str, asked: str, answered: str) -> list[Json]:
    return [
        {"type": "info", "title": f"About {asked}"},
        prompt(f"{name}1", None, asked),
        turn(f"{name}2", f"{name}1", "running"),
        said(f"{name}3", f"{name}2", answered),
        turn(f"{name}4", f"{name}3", "ended", "end_turn"),
    ]


def found(shelf: Shelf, *words: str) -> list[tuple[str, str, str]]:
    """Session, scope and text of each hit."""
    hits: list[Json] = shelf.json("search", *words)
    return [(hit["id"], hit["scope"], "".join(hit["snippet"])) for hit in hits]


def test_search_finds_what_was_said(shelf: Shelf) -> None:
    """On each backend, the newest first, by names, parts of them, and characters."""
    shelf.add("old", talk("a", "Where is resolveTerminalPath?", "in src/auth.py"), day=1)
    shelf.add("new", talk("b", "会话存储", "the terminal has a path"), day=2)
    both = [("new", "answer", "the terminal has a path"), ("old", "prompt", "Where is resolveTerminalPath?")]
    assert both == found(shelf, "--all", "terminal", "path")
    assert both[1:] == found(shelf, "--all", '"terminal path"')
    assert [("new", "prompt", "会话存储")] == found(shelf, "--all", "存储")
    assert [] == found(shelf, "--all", "nothing")
    shelf.add("newest", talk("c", "terminal path again", "yes"), day=3)
    assert ["newest", "new", "old"] == [session for session, _, _ in found(shelf, "--all", "terminal path")]


def test_what_a_hit_has(plain: Shelf) -> None:
    """`--json` is one array of objects with these members; every second text of a snippet is a match."""
    plain.add("s1", talk("e", "one needle here", "hay"), agent="coder")
    (hit,) = plain.json("search", "--all", "needle")
    at = "2026-11-01T10:00:00.000Z"
    expected: dict[str, Any] = {"id": "s1", "title": "About one needle here", "cwd": HERE, "agent": "coder", "updatedAt": at}
    assert expected | {"entry": "e1", "seq": 2, "at": at, "scope": "prompt", "snippet": ["one ", "needle", " here"]} == hit


def test_search_is_of_this_folder(plain: Shelf, tmp_path: Path) -> None:
    """Without --all only of the current folder, under either name of it; --cwd names another."""
    real, link = tmp_path / "real", tmp_path / "link"
    real.mkdir()
    link.symlink_to(real)
    plain.add("one", talk("a", "needle", "x"), cwd=str(real))
    plain.add("two", talk("b", "needle", "x"), cwd=str(link))
    plain.add("other", talk("c", "needle", "x"), cwd="/")
    ran = plain.run("search", "needle", "--json", cwd=real, PWD=str(link))
    assert {"one", "two"} == {hit["id"] for hit in json.loads(ran.out)}
    assert ["one"] == [session for session, _, _ in found(plain, "needle", "--cwd", str(link))]
    assert 3 == len(found(plain, "needle", "--all"))


def test_filters(plain: Shelf) -> None:
    """Agent, time, scope, number of hits, hits of one session."""
    for day in range(1, 6):
        plain.add(f"s{day}", talk(f"e{day}", "needle", "needle needle"), day=day, agent=f"a{day % 2}")
    assert ["s5", "s3", "s1"] == [session for session, _, _ in found(plain, "--all", "prompt:needle", "--agent", "a1")]
    times = ("--since", "2026-11-02", "--until", "2026-11-04T00:00+00:00")
    assert ["s3", "s2"] == [session for session, _, _ in found(plain, "--all", "prompt:needle", *times)]
    assert [] == found(plain, "--all", "needle", "--until", "100000h")
    assert ["s5", "s5", "s4"] == [session for session, _, _ in found(plain, "--all", "needle", "--limit", "3")]
    assert ["s5", "s4"] == [session for session, _, _ in found(plain, "--all", "needle", "--limit", "2", "--per-session", "1")]
    assert 10 == len(found(plain, "--all", "needle", "--limit", "0"))
    assert ["answer"] * 5 == [scope for _, scope, _ in found(plain, "--all", "needle", "--best", "--limit", "5")]


def test_search_for_people(plain: Shelf) -> None:
    """A heading for each session, its hits below; on a terminal the matches are bold and what was said steers nothing."""
    plain.add("s1", talk("e", "a needle\x1b[31m", "needle\nhay"))
    ran = plain.run("search", "--all", "needle", TZ="UTC")
    heading = "s1  2026-11-01 10:00  agent  About a needle"
    assert [heading, "  answer   needle hay", "  prompt   a needle\x1b[31m"] == ran.out.splitlines()
    shown = acpd.on_terminal(plain.home, "search", "--all", "needle").out
    assert "  prompt   a \x1b[1mneedle\x1b[m\\x1b[31m" in shown.splitlines()
    nothing = acpd.on_terminal(plain.home, "search", "straw").out
    assert "nothing found in the sessions of this folder; acpd search --all" in nothing


def test_search_where_nothing_is(plain: Shelf) -> None:
    """A store that is not there has no sessions, and is not made."""
    assert [] == plain.json("search", "needle", "--all")
    assert not (plain.home / "data").exists()


def test_users_find_their_own(tmp_path: Path) -> None:
    """What one user said no other finds."""
    Shelf(tmp_path, user="alice").add("s1", talk("e", "needle", "x"))
    assert [("s1", "prompt", "needle")] == found(Shelf(tmp_path, user="alice"), "--all", "needle")
    for other in (Shelf(tmp_path), Shelf(tmp_path, user="bob")):
        assert [] == found(other, "--all", "needle")


def test_words_may_begin_with_a_minus(plain: Shelf) -> None:
    """Without quotes, between flags, and behind two minus signs. What looks like a flag and is none is an error."""
    plain.add("s1", talk("e", "needle thread", "x"))
    plain.add("s2", talk("f", "needle --all", "x"))
    for words in (["needle", "-thread", "--all"], ["--all", "needle", "-prompt:thread"]):
        assert [("s2", "prompt", "needle --all")] == found(plain, *words)
    ran = plain.run("search", "--all", "--json", "needle", "--", "-thread")
    assert ["s2"] == [hit["id"] for hit in json.loads(ran.out)]
    ran = plain.run("search", "needle", "--bset")
    assert (2, True) == (ran.code, "--bset" in ran.err)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["..."], "no word to look for"),
        (["x" * 3000], "characters"),
        (["prompt:a", "tool:b"], "never stand in one place"),
        (["a", "--since", "yesterday"], "--since is 'yesterday'"),
        (["a", "--until", "99999999w"], "--until"),
        (["a", "--all", "--cwd", "/"], "exclude each other"),
        (["a", "--limit", "-1"], "--limit"),
        ([], "WORD"),
    ],
)
def test_what_cannot_be_searched_for(plain: Shelf, words: list[str], says: str) -> None:
    """Exit code 2, one line, the next step."""
    ran = plain.run("search", *words)
    assert (2, "", 1) == (ran.code, ran.out, ran.err.count("\n"))
    assert says in ran.err


def test_a_log_that_cannot_be_read_is_told(plain: Shelf) -> None:
    """On stderr, whatever is asked for; what the other logs say is found."""
    for name in ("s1", "s2"):
        plain.add(name, talk(f"{name}-", "needle", "x"))
    assert "" == plain.run("ls", "--all").err
    (log,) = below(plain.home, "s1.log.jsonl")
    log.write_bytes(b"no header\n")
    for flags in ([], ["--json"]):
        ran = plain.run("search", "--all", "needle", *flags)
        assert ("s2" in ran.out, ran.err.count("\n")) == (True, 1)
        assert ran.err.startswith("acpd: not everything could be searched: ")


def test_a_deleted_log_is_found_no_more(plain: Shelf) -> None:
    """A catalog that is lost is made anew, search and all; one that is there forgets what is gone."""
    plain.add("s1", talk("e", "needle", "x"))
    plain.add("s2", talk("f", "needle", "x"))
    assert 2 == len(found(plain, "--all", "needle"))
    for path in (plain.home / "data" / ".acpd").glob("catalog.db*"):
        path.unlink()
    (log,) = below(plain.home, "s1.log.jsonl")
    log.unlink()
    assert ["s2"] == [session for session, _, _ in found(plain, "--all", "needle")]
