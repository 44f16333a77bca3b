"""Words of others as people are shown them."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acpd.native.plain import one_line
from acpd.native.tools.places import shown

UNSEEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("Lies \u00fcber \u65e5\u672c \U0001f600", "Lies \u00fcber \u65e5\u672c \U0001f600"),
        ("a\u3000b\u00a0c", "a\u3000b\u00a0c"),
        ("a\nb\x1b[2J\x7f\x9b\u202e\u2066\u200b\ufeff\u2028", r"a\nb\x1b[2J\x7f\x9b\u202e\u2066\u200b\ufeff\u2028"),
        ("\udcff\ud800", r"\udcff\ud800"),
    ],
)
def test_what_is_not_seen_is_escaped(text: str, told: str) -> None:
    """Letters and blanks of every language stay; what acts on a terminal or hides is written out."""
    assert told == one_line(text)


@given(st.text(st.characters(codec=None)))
def test_one_line(text: str) -> None:
    """Nothing that is not seen comes through, whatever it is."""
    assert not {unicodedata.category(each) for each in one_line(text)} & UNSEEN


@given(st.text(st.characters(codec="utf-8")))
def test_names(name: str) -> None:
    """A file's name is shown by the same rule."""
    assert not {unicodedata.category(each) for each in shown(name)} & UNSEEN
