"""What is shown of a match."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acpd.errors import QueryError
from acpd_backends import snippets, tokens
from tests.backends.words import Words


@pytest.fixture
def words() -> Words:
    return Words()


@pytest.mark.parametrize(
    ("text", "asked", "expected"),
    [
        ("the Needle here", "needle", ("the ", "Needle", " here")),
        ("resolveTerminalPath", "terminal", ("resolve", "Terminal", "Path")),
        ("start myArt", "art", ("start my", "Art", "")),
        ("resolve_terminal_path x", "resolveterminalpath", ("", "resolve_terminal_path", " x")),
        ("in src/auth/login.py:", "auth/login.py", ("in src/", "auth/login.py", ":")),
        ("Die Straße, müde", "strasse mude", ("Die ", "Straße", ", ", "müde", "")),
        ("用会话存储。", "会话", ("用", "会话", "存储。")),
        ("会话存储", "存", ("会话", "存", "储")),
        ("one\ntwo", "two", ("one ", "two", "")),
        ("aaa bbb", "bb*", ("aaa ", "bb", "b")),
        ("x " * 300 + "needle" + " y" * 300, "needle", ("…" + "x " * 20, "needle", " y" * 57 + "…")),
        ("alpha " + "x " * 300 + "alpha beta", "alpha beta", ("…" + "x " * 20, "alpha", " ", "beta", "")),
        ("① ½ ﷺ end", "end", ("① ½ ﷺ ", "end", "")),
    ],
)
def test_a_snippet_shows_the_match(words: Words, text: str, asked: str, expected: tuple[str, ...]) -> None:
    """A bounded stretch around it; every second text is a match."""
    words.texts(text)
    (hit,) = words.hits(asked)
    assert expected == hit.snippet


@given(st.text(min_size=1, max_size=400), st.data())
def test_a_snippet_is_of_the_text(text: str, data: st.DataObject) -> None:
    """Put together it is a piece of the text with the lines joined, and no longer than it may be."""
    candidates = [word for word in text.split() if tokens.chunk(word).split]
    if not candidates:
        return
    words = Words()
    words.texts(text)
    word = data.draw(st.sampled_from(candidates))[:200]
    try:
        hits = words.hits('"' + word.replace('"', " ") + '"')
    except QueryError:
        return
    for hit in hits:
        shown = "".join(hit.snippet).strip("…")
        assert shown in snippets.on_one_line(text)
        assert len(hit.snippet) % 2 == 1
        assert len(shown) <= 3 * snippets.WIDTH
