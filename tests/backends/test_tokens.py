# ruff: noqa: RUF001 - letters of every script are what is tested
"""From text to tokens."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acpd_backends import tokens


@pytest.mark.parametrize(
    ("word", "split", "whole"),
    [
        ("Word,", "word", ""),
        ("resolveTerminalPath", "resolve terminal path", "resolveterminalpath"),
        ("HTTPServer", "http server", "httpserver"),
        ("snake_case-kebab", "snake case kebab", "snakecasekebab"),
        ("src/HTTPServer_v2.py", "src http server v 2 py", "src httpserverv2 py"),
        ("utf8mb4", "utf 8 mb 4", "utf8mb4"),
        ("9f86d081884c7d65", "9f86d081884c7d65", ""),
        ("--limit=5", "limit 5", ""),
        ("std::vector<int>", "std vector int", ""),
        ("会话存储", "会话 话存 存储 储", ""),
        ("使用sqlite3", "使用 用 sqlite 3", ""),
        ("한국어", "한국 국어 어", ""),
        ("ภาษา", "ภา าษ ษา า", ""),
        ("हिन्दी", "हिन्दी", ""),
        ("Straße", "strasse", ""),
        ("CAFÉ", "cafe", ""),
        ("cafe\u0301", "cafe", ""),
        ("ＡＢＣ", "abc", ""),
        ("ﬁn", "fin", ""),
        ("ｶﾞｽ", "ガス ス", ""),
        ("ΣΑΣ", "σασ", ""),
        ("Ёлка", "елка", ""),
        ("İstanbul", "istanbul", ""),
        ("a\x00b\ud800c", "a b c", ""),
        ("->", "", ""),
        ("_", "", ""),
        ("👍", "", ""),
        ("x" * 100, "x" * 64, ""),
    ],
)
def test_renderings(word: str, split: str, whole: str) -> None:
    """A chunk has its parts and, where they are another thing, itself."""
    assert (split, whole) == tokens.chunk(word)[:2]


def test_a_document_has_the_whole_names_behind_a_barrier() -> None:
    """In the text stands every chunk in order; behind it, once each, the names that it cut."""
    assert "call my name now my name \ue000 myname" == tokens.document("call myName now\nmyName")
    assert "" == tokens.document(" \n\t ... ")


@given(st.text())
def test_every_token_is_one_for_sqlite(text: str) -> None:
    """Tokens are letters and digits: SQLite's own tokenizer, which cuts at the rest of ASCII, leaves them as they are."""
    for token in tokens.document(text).split(" "):
        assert token in {"", tokens.BARRIER} or all(each.isalnum() or each > "\x7f" for each in token), token
        assert not any("A" <= each <= "Z" for each in token), token  # of other letters it takes the case as it is


@given(st.text())
def test_case_and_accents_do_not_matter(text: str) -> None:
    """What is folded already folds to itself."""
    assert tokens.lower(tokens.fold(text)) == tokens.lower(tokens.fold(tokens.lower(tokens.fold(text))))


@pytest.mark.parametrize("text", ["A" * 65536, "aB" * 32768, "a1" * 32768, "_" * 65536, "会" * 65536, "\ud800" * 65536])
def test_what_costs_much_elsewhere(text: str) -> None:
    """One chunk of 64 KiB is cut in one pass, whatever it is made of, and is not remembered."""
    before = len(tokens._chunks)
    tokens.document(text)
    assert before == len(tokens._chunks)
