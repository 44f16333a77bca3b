"""What reaches a terminal, and what a program."""

from __future__ import annotations

import io

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acpd.cli.output import Output, Progress, escaped, one_line, table


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain\ttext\n", "plain\ttext\n"),
        ("\x1b]0;owned\x07", "\\x1b]0;owned\\x07"),
        ("a\rb\x08", "a\\rb\\x08"),
        ("\x9b31m", "\\x9b31m"),
        ("\u202eabc\u2066", "\\u202eabc\\u2066"),
        ("é 漢 👍", "é 漢 👍"),
        ("\ud83d", "\\ud83d"),
    ],
)
def test_control_characters_are_shown(text: str, shown: str) -> None:
    """Escape sequences, overwriting and reordering are written out; other text stays as it is."""
    assert shown == escaped(text)


@given(st.text())
def test_nothing_steers_a_terminal(text: str) -> None:
    """What is said on a terminal has no control character but tab and newline, as text and as JSON."""
    stream = Terminal()
    out = Output(stream)
    out.say(text)
    out.json([text.encode(errors="replace").decode()])
    assert all((ord(one) >= 0x20 and not 0x7F <= ord(one) <= 0x9F) or one in "\t\n" for one in stream.getvalue())


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_json_on_a_terminal_is_the_same_json(text: str) -> None:
    """Escaping for a terminal does not change the value."""
    stream = Terminal()
    Output(stream).json({"title": text})
    assert {"title": text} == msgspec.json.decode(stream.getvalue())


def test_a_program_gets_the_text_itself() -> None:
    """Where no terminal is, the stored text is written unchanged."""
    stream = io.StringIO()
    Output(stream).say("\x1b[1m")
    assert "\x1b[1m\n" == stream.getvalue()


def test_one_line() -> None:
    """White space is joined, and what is too long ends in an ellipsis within the limit."""
    assert "a b c" == one_line(" a\n b\tc ")
    assert "abcd…" == one_line("abcdefgh", 5)
    assert "abcde" == one_line("abcde", 5)


def test_table() -> None:
    """Columns are as wide as their widest cell, within the limits; no line ends in blanks."""
    assert ["a    bb…", "ccc"] == table([("a", "bbbbb"), ("ccc", "")], {1: 3})


def test_matches_are_bold_on_a_terminal() -> None:
    """Every second text, escaped like all others; elsewhere the texts alone."""
    for stream, expected in ((Terminal(), "a\x1b[1mb\\x1b\x1b[mc\n"), (io.StringIO(), "ab\x1bc\n")):
        Output(stream).marked(["a", "b\x1b", "c"])
        assert expected == stream.getvalue()


def test_progress_is_for_who_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """One line of a terminal's stderr, not too often, that goes again; nothing in a file."""
    for stream in (Terminal(), io.StringIO()):
        monkeypatch.setattr("sys.stderr", stream)
        progress = Progress("reading")
        for number in range(1000):
            progress.tell(number)
        progress.end()
        written = stream.getvalue()
        assert written.startswith("\r\x1b[Kreading: 0 done") == written.endswith("\r\x1b[K") == stream.isatty()
        assert len(written) < 200


@pytest.mark.parametrize(
    ("done", "of", "shown"),
    [
        (0, 7, "[....................] 0 of 7"),
        (51_200, 100_000, "[##########..........] 51,200 of 100,000"),
        (99, 100, "[###################.] 99 of 100"),
        (7, 7, "[####################] 7 of 7"),
        (9, 7, "[####################] 9 of 7"),  # sessions that came meanwhile
    ],
)
def test_progress_has_a_bar_where_the_end_is_known(done: int, of: int, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As much of it is full as is done."""
    stream = Terminal()
    monkeypatch.setattr("sys.stderr", stream)
    Progress("reading logs").tell(done, of)
    assert f"\r\x1b[Kreading logs {shown}" == stream.getvalue()
