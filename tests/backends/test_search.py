# ruff: noqa: RUF001 - letters of every script are what is tested
"""The search index: what is found, in which order, and that nothing is left of what is gone."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from acpd.errors import QueryError
from acpd.storage.contract import Row
from acpd.storage.hits import Batch, Document, Find
from acpd.storage.queries import LONGEST, parse
from acpd_backends import catalog, search, tokens
from acpd_backends.sqlite import execute, query
from tests.backends.words import Words, at, document

NAMES = "the resolveTerminalPath function in src/auth/login.py reads MAX_RETRY_COUNT and utf8 text"


@pytest.fixture
def words() -> Words:
    return Words()


def tried(words: Words, text: str) -> bool:
    """Whether it was searched for, or refused with a next step. Raises whatever else comes."""
    try:
        words.hits(text)
    except QueryError as error:
        return bool(error.hint)
    return True


@pytest.mark.parametrize(
    "text",
    [
        "terminal path",
        "path terminal",
        "resolveTerminalPath",
        "resolveterminalpath",
        "RESOLVETERMINALPATH",
        "resolve_terminal_path",
        "resolve-terminal-path",
        "terminalPath",
        "resolveTerm*",
        "resolveterm*",
        "login.py",
        "auth/login",
        "auth",
        "src/auth/login.py",
        "LOGIN.PY",
        "retry count",
        "max_retry_count",
        "maxRetryCount",
        "MAXRETRYCOUNT",
        "utf8",
        "utf",
        "UTF-8",
        '"terminal path function"',
        '"the resolveTerminalPath"',
        "ret*",
        "auth/log*",
        "(terminal)",
        "terminal; DROP",
        "func* -nothing",
    ],
)
def test_names_are_found(words: Words, text: str) -> None:
    """By themselves in any spelling, by their parts, by neighbouring parts, by beginnings."""
    words.texts(NAMES, "something else; drop")
    expected = ["e1"] if "DROP" not in text else []
    assert expected == words.found(text)


@pytest.mark.parametrize(
    "text",
    [
        "minal",
        "terminals",
        "login.js",
        "log/auth",
        "path_terminal",
        '"path terminal"',
        '"now resolveterminalpath"',
        "terminal -auth",
        '"text resolveterminalpath"',
        "resolvepath",
        "erm*",
        "pathfunction",
        "prompt:terminal",
        "tool:auth",
        "py3",
        "maxcount",
    ],
)
def test_what_is_not_there_is_not_found(words: Words, text: str) -> None:
    """No part of a word but its beginning with a star; no order that is not the text's; nothing through the end of the text."""
    words.texts(NAMES)
    assert [] == words.found(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("会话", ["e1"]),
        ("话", ["e1"]),
        ("存", ["e3", "e1"]),
        ("储", ["e1"]),
        ("话存", ["e1"]),
        ("会话存储", ["e1"]),
        ("存储sqlite", ["e1"]),
        ("话会", []),
        ("储存", []),
        ('"会话存储" -mysql', ["e1"]),
        ("数据", ["e2", "e1"]),
        ("データ", ["e3"]),
        ("ﾃﾞｰﾀ", ["e3"]),
        ("タ", ["e3"]),
        ("세션", ["e4"]),
        ("세", ["e4"]),
        ("ภาษา", ["e5"]),
        ("प्र", []),
        ("हिन्दी", ["e6"]),
        ("库", ["e2", "e1"]),
        ("prompt:会话", []),
        ("库。", ["e2", "e1"]),
    ],
)
def test_scripts_without_spaces(words: Words, text: str, expected: list[str]) -> None:
    """Any substring is found, one character or many, and nothing that is none."""
    words.texts("会话存储sqlite3数据库", "数据，库", "データを保存", "세션을 저장", "ภาษาไทย", "हिन्दी")
    assert expected == words.found(text)


@pytest.mark.parametrize(
    ("stored", "asked"),
    [
        ("Straße", "STRASSE"),
        ("Café", "cafe"),
        ("cafe", "CAFÉ"),
        ("cafe\u0301", "caf\u00e9"),
        ("ＡＢＣ１２", "abc12"),
        ("Ångström", "angstrom"),
        ("naïve", "naive"),
        ("ΟΔΟΣ", "οδος"),
        ("Ёж", "еж"),
        ("ﬁle", "file"),
        ("a\x00b", "a"),
        ("x\ud800y", "y"),
        ("don’t", "don't"),
    ],
)
def test_what_is_written_otherwise_is_found(words: Words, stored: str, asked: str) -> None:
    """Case, accents, width and composition make no difference; NUL and lone surrogates separate."""
    words.texts(f"before {stored} after")
    assert ["e1"] == words.found(asked)


def test_all_words_must_occur_in_one_document(words: Words) -> None:
    """Two documents with a word each are no hit for both."""
    words.texts("alpha beta", "alpha", "beta", "beta gamma alpha")
    assert ["e4", "e1"] == words.found("alpha beta")
    assert ["e1"] == words.found("alpha beta -gamma")
    assert ["e4", "e3"] == words.found("beta", limit=2)


def test_scopes(words: Words) -> None:
    """A scope says where its word must occur; tool: is a call with its paths, path: only those."""
    words.put(
        [
            document("login", 1, "prompt", paths="docs/plan.md"),
            document("login", 2, "thought"),
            document("login", 3),
            document("login", 4, "tool", paths="src/auth.py\nsrc/other.py"),
            document("cat", 5, "tool", paths="src/login.py"),
        ]
    )
    scopes = {"prompt:": ["e1"], "thought:": ["e2"], "answer:": ["e3"], "tool:": ["e5", "e4"], "path:": ["e5"]}
    assert scopes == {scope: words.found(f"{scope}login") for scope in scopes}
    assert ["e5", "e4", "e3", "e2", "e1"] == words.found("login")
    assert ["e4"] == words.found("tool:login path:auth.py")
    assert ["e4", "e3", "e2"] == words.found("login -prompt:login -path:login")
    assert ["e5", "e3", "e2", "e1"] == words.found("login -tool:auth")
    assert ["e1"] == words.found("login path:plan.md")
    assert [] == words.found('path:"auth.py src/other"')
    assert ["path", "tool"] == [hit.scope for hit in words.hits("tool:login")]


@pytest.mark.parametrize(
    "text",
    [
        '"',
        '"open quote',
        "a AND",
        "NOT a",
        "a OR b",
        "NEAR(a b)",
        "a^2",
        "{answer}: a",
        "answer : a",
        "col:a",
        "a*b*",
        "* a",
        "-- a",
        "- a",
        "-a b",
        '""',
        "a'b",
        "(((",
        "'; DROP TABLE session; --",
        "\x00",
        "a\x00b",
        "\ud800",
        "a \ud800",
        "\ue000",
        "\ue000 a",
        "tool:",
        "prompt:*",
        'prompt:""',
        "-",
        "+a",
        "\u202e",
        "👍",
        "a" * 2000,
        "a " * 60,
        "-a " * 60 + "b",
        "*" * 2000,
        '"' * 1999,
    ],
)
def test_no_text_is_an_error_of_sqlite(words: Words, text: str) -> None:
    """Whatever is asked for is text, or an error that says what to do."""
    words.texts("a b c", "near and not or")
    assert tried(words, text)


@given(st.text(max_size=60), st.text(max_size=60))
def test_any_text_may_be_asked_for(stored: str, asked: str) -> None:
    """As above, for text of any kind."""
    words = Words()
    words.texts(stored, "other")
    assert tried(words, asked)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a" * (LONGEST + 1), "characters"),
        ("x" * 100_000, "characters"),
        ("a " * 65, "words"),
        ("", "no word"),
        ("...", "no word"),
        ("-a", "no word"),
        ("prompt:a answer:b", "prompt: and answer:"),
        ("prompt:a path:b tool:c", "prompt: and tool:"),
    ],
)
def test_what_cannot_be_looked_for(text: str, says: str) -> None:
    """Is refused, with the next step."""
    with pytest.raises(QueryError, match=says) as raised:
        parse(text)
    assert raised.value.hint


# -- order, filters


def test_the_newest_come_first_whatever_was_read_first(words: Words) -> None:
    """The order is that of the documents' times, not that of indexing."""
    words.put([document("needle", 5, entry="x5"), document("needle", 9, entry="x9")], "one")
    words.put([document("needle", 1, entry="y1"), document("needle", 7, entry="y7")], "two")
    assert ["x9", "y7", "x5", "y1"] == words.found("needle")


def test_many_documents_of_one_moment_keep_their_order(words: Words) -> None:
    """More than a second has places for: each has its own, in the order of the log."""
    many = [Document(entry=f"m{n}", seq=n, at=at(3), scope="answer", text="needle") for n in range(100)]
    words.put([Document(entry="later", seq=1, at=at(60), scope="answer", text="needle")], "three")
    words.put(many[:40], "one")
    words.put(many[:60], "two")
    found = words.hits("needle", limit=200)
    assert 101 - 40 == len(found)  # 40 entries are of both sessions, and found once
    assert "later" == found[0].entry
    words.put(many[40:], "one")
    ours = query(words.db, "SELECT entry FROM document WHERE session = 2 ORDER BY id")
    assert [f"m{n}" for n in range(100)] == [entry for (entry,) in ours]


def test_a_clock_that_goes_back_changes_no_order_of_a_log(words: Words) -> None:
    """Of one session what was said later is newer, whatever the clock said."""
    early = Document(entry="later", seq=2, at=at(3), scope="answer", text="needle")
    words.put([Document(entry="first", seq=1, at=at(9), scope="answer", text="needle"), early])
    assert ["later", "first"] == words.found("needle")


def test_filters(words: Words) -> None:
    """Agent, folders and times are exact, and all must fit."""
    words.session("a", agent="one", cwd="/x")
    words.session("b", agent="two", cwd="/x")
    words.session("c", agent="two", cwd="/x/y")
    for number, name in enumerate("abc", 1):
        words.put([document("needle", number * 10, entry=name)], name)
    assert ["c", "b"] == words.found("needle", agent="two")
    assert ["b", "a"] == words.found("needle", folders=("/x",))
    assert ["c", "b", "a"] == words.found("needle", folders=("/x", "/x/y"))
    assert ["b"] == words.found("needle", folders=("/x",), agent="two")
    assert [] == words.found("needle", agent="on")
    second = search.milliseconds(at(20))
    assert ["c", "b"] == words.found("needle", since=second)
    assert ["a"] == words.found("needle", until=second)
    assert ["b"] == words.found("needle", since=second, until=second + 1)
    assert [] == words.found("needle", since=second + 1, until=second + 2)


def test_one_session_does_not_hide_the_others(words: Words) -> None:
    """Of one session come so many and no more; that there are more is said."""
    words.put([document("needle", 1, entry="old")], "one")
    words.put([document("needle", n, entry=f"n{n}") for n in range(2, 60)], "two")
    assert ["n59", "n58", "n57", "old"] == words.found("needle", each=3)
    for best in (False, True):
        found = search.search(words.db, Find(query=parse("needle"), each=3, best=best), words.rows)
        assert (4, True) == (len(found.hits), found.more)
    assert not search.search(words.db, Find(query=parse("needle"), each=0, limit=59), words.rows).more
    assert search.search(words.db, Find(query=parse("needle"), each=0, limit=58), words.rows).more


def test_a_walk_has_an_end(words: Words, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not all of a session's many matches are walked through for others behind them; who asks for all gets all."""
    monkeypatch.setattr(search, "LOOKED_AT", 10)
    words.put([document("needle", 1, entry="old")], "one")
    words.put([document("needle", n, entry=f"n{n}") for n in range(2, 60)], "two")
    assert ["n59"] == words.found("needle", each=1, limit=5)
    assert 59 == len(words.found("needle", each=0, limit=1000))


@pytest.mark.parametrize("odd", ["", "yesterday", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59-23:00", "1969-12-31T00:00:00Z"])
def test_a_time_that_is_none(words: Words, odd: str) -> None:
    """Costs the document its place in the order, and no more."""
    words.put([Document(entry="e", seq=1, at=odd, scope="answer", text="needle")])
    (hit,) = words.hits("needle", since=0)
    assert "1970-01-01T00:00:00.000Z" == hit.at


def test_an_entry_that_sessions_share_is_found_once(words: Words) -> None:
    """A fork has its source's entries."""
    for name in ("source", "fork"):
        words.put([document("needle", 4, entry="shared")], name)
    assert ["shared"] == words.found("needle")
    assert ["shared"] == words.found("needle", best=True)


def test_the_best_come_first(words: Words) -> None:
    """What says it more often in fewer words; among equals the newest."""
    words.texts("needle needle needle", "one needle in " + "hay " * 500, "a needle", "a needle")
    assert ["e1", "e4", "e3", "e2"] == words.found("needle", best=True)
    assert ["e1", "e4"] == words.found("needle", best=True, limit=2)


# -- properties


TEXTS = st.one_of(
    st.text(max_size=80),
    st.lists(
        st.one_of(
            st.text(max_size=12),
            st.sampled_from(
                [
                    "resolveTerminalPath",
                    "src/auth.py",
                    "会话存储",
                    "a1b2",
                    "HTTPServer2",
                    "Straße",
                    "MAX_SIZE",
                    "セッション",
                    "\ud800",
                    "\x00",
                ]
            ),
        ),
        max_size=8,
    ).map(" ".join),
)


@given(TEXTS)
@example("Ａ_a1 İx")
@example("㉠")
def test_a_document_is_found_by_each_of_its_words(text: str) -> None:
    """What stands between white space finds the document, whatever it is, as long as it has a letter or a digit."""
    words = Words()
    words.texts("something else", text)
    for word in text.split():
        if tokens.chunk(word).split and '"' not in word:
            assert "e2" in words.found(f'"{word}"'), word


def both(number: int, text: str) -> list[Document]:
    return [document(text, 1, entry=f"e{number}"), document(text, 2, "tool", paths=text, entry=f"f{number}")]


@settings(max_examples=60)
@given(st.lists(TEXTS, min_size=1, max_size=6), st.integers(0, 63))
def test_deleting_leaves_nothing(texts: list[str], kept: int) -> None:
    """No hit, no document, no token of a session that was deleted; those of others stay, and the index is whole."""
    words, alone = Words(), Words()
    for number, text in enumerate(texts):
        words.put(
            [document(text, 1, entry=f"e{number}"), document(text, 2, "tool", paths=text, entry=f"f{number}")], f"s{number}"
        )
    stay = [number for number in range(len(texts)) if kept >> number & 1]
    for number in stay:
        text = texts[number]
        alone.put(
            [document(text, 1, entry=f"e{number}"), document(text, 2, "tool", paths=text, entry=f"f{number}")], f"s{number}"
        )
    for number in range(len(texts)):
        if number not in stay:
            assert search.forget(words.db, f"s{number}")
    words.check()
    assert alone.left() == words.left()


def test_a_long_session_is_forgotten_in_steps(words: Words) -> None:
    """Some documents at a time; what is left of them can be asked for, and takes nothing in until all are gone."""
    words.put(document("needle", number) for number in range(1, 100))
    assert not search.forget(words.db, "s")
    assert -1 == search.place(words.db, "s")
    assert not search.take(words.db, "s", search.prepare(Batch(0, 1, 1, [])))
    while not search.forget(words.db, "s"):
        words.check()
    assert (0, 0) == (search.place(words.db, "s"), words.left())


def test_a_batch_takes_the_place_of_what_is_behind_its_beginning(words: Words) -> None:
    """What was not settled is taken again; a batch that does not begin where the last one settled is refused."""
    words.session("s")

    def take(after: int, until: int, settled: int, *texts: str) -> bool:
        documents = [document(text, after + number) for number, text in enumerate(texts, 1)]
        return search.take(words.db, "s", search.prepare(Batch(after, until, settled, documents)))

    assert take(0, 5, 2, "settled one", "settled two", "open draft")
    assert not take(0, 6, 6, "again")
    assert not take(5, 6, 6, "behind")
    assert take(2, 6, 6, "open three and more")
    assert [["e3"], []] == [words.found("open"), words.found("draft")]
    assert ["e2", "e1"] == words.found("settled")
    words.check()


def test_a_session_that_became_shorter_is_read_again(words: Words) -> None:
    """A log in whose place an older copy was put is not what was searched."""
    words.put([document("needle", 50)])
    words.session("s", seq=20)
    assert -1 == search.place(words.db, "s")
    words.session("s", seq=20, agent="another")
    assert -1 == search.place(words.db, "s")


def test_what_is_coloured_is_found(words: Words) -> None:
    """A terminal's escape sequences are no part of the words between them."""
    words.texts("\x1b[31;1mFAILED\x1b[0m test_login \x1b]8;;http://x/\x07link\x1b]8;;\x07 \x1b[Kend", "nothing")
    assert [["e1"]] * 4 == [words.found(text) for text in ("failed", "login", "link", "end")]
    assert [] == words.found("31")
    (hit,) = words.hits("failed")
    assert "FAILED" in hit.snippet[1]


@pytest.mark.parametrize("change", [{"size": 5}, {"seq": 3, "size": 5}, {"seq": 0, "size": 5, "prompted": False}])
def test_what_was_taken_out_of_a_log_is_not_found(words: Words, change: dict[str, Any]) -> None:
    """A row says that the log became another one: at once nothing old is found, and the session is one to be read anew."""
    row = Row(id="s", agent="agent", cwd="/w", prompted=True, seq=9, size=10)
    catalog._put(words.db, row)
    words.put([document("secret", 9)])
    catalog._put(words.db, row)
    assert ["e9"] == words.found("secret")
    catalog._put(words.db, replace(row, **change))
    assert [] == words.found("secret")
    assert [("s",)] == query(words.db, "SELECT id FROM session WHERE late")
    while not search.forget(words.db, "s"):
        continue
    assert 0 == search.place(words.db, "s")
    words.check()


@pytest.mark.parametrize("condition", ["ORDER BY id DESC LIMIT 9", "AND id < 's' ORDER BY id DESC LIMIT 9", "LIMIT 1"])
def test_who_is_behind_is_no_scan(words: Words, condition: str) -> None:
    """Asking for the sessions that are behind reads those, and no other."""
    steps = query(words.db, f"EXPLAIN QUERY PLAN SELECT * FROM session WHERE late {condition}")
    assert [True] == ["USING INDEX behind" in step for *_, step in steps]


def test_other_rules_empty_the_index(words: Words) -> None:
    """An index whose tokens were made by another version is begun anew; one of this version stays."""
    words.texts("needle")
    search.renew(words.db)
    assert ["e1"] == words.found("needle")
    execute(words.db, "INSERT INTO meta VALUES ('rules', '0')")
    assert not search.take(words.db, "s", search.prepare(Batch(1, 2, 2, [document("needle", 2)])))
    search.renew(words.db)
    words.check()
    assert (0, 0) == (search.place(words.db, "s"), words.left())


def test_a_number_is_not_given_again(words: Words) -> None:
    """A session that is made after another was deleted has none of its documents, even if some had been left."""
    words.put([document("needle", 1)], "one")
    execute(words.db, "DELETE FROM session WHERE id = 'one'")  # as an older version does it
    words.put([document("hay", 1)], "two")
    assert [] == words.found("needle")
    words.put([document("needle", 1)], "one")
    assert [("one", "needle")] == [(hit.row.id, hit.snippet[1]) for hit in words.hits("needle")]


def test_a_row_keeps_what_was_searched(words: Words) -> None:
    """A row that is written again, with another folder or agent, keeps its documents."""
    words.put([document("needle", 5)])
    for fields in ({"title": "x"}, {"inner": "i"}, {"agent": "other"}, {"cwd": "/z"}):
        words.session("s", **fields)
        (hit,) = words.hits("needle")
        assert isinstance(hit.row, Row)
        assert 5 == hit.row.searched
