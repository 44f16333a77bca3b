"""Lines of a TOML file are changed, and nothing else of it."""

from __future__ import annotations

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acpd.errors import ConfigError
from acpd.native.edits import changed
from tests.support.paths import ROOT

SHIPPED = (ROOT / "config" / "acpd.toml").read_text()
NEW: dict[str, str | None] = {"model": "a:b", "base_url": None}


def edited(text: str, values: dict[str, str | None] = NEW, section: str = "agents.native") -> str:
    return changed(text, section, values, "acpd.toml")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", '[agents.native]\nmodel = "a:b"\n'),
        ("[log]\nlevel='info' # x\n\n\n", "[log]\nlevel='info' # x\n\n[agents.native]\nmodel = \"a:b\"\n"),
        ("[log]", '[log]\n\n[agents.native]\nmodel = "a:b"\n'),
        ("[agents.native]\n[log]\n", '[agents.native]\nmodel = "a:b"\n[log]\n'),
        (
            '# x\n[ agents . "native" ] # y\n# model = "no"\n  model="c:d"  # z\nbase_url = "u"\nmode = "plan"\n\n# l\n[log]\n',
            '# x\n[ agents . "native" ] # y\n# model = "no"\nmodel = "a:b"  # z\nmode = "plan"\n\n# l\n[log]\n',
        ),
        ("[agents.native]\nmode = 'ask'\n\n[log]\n", "[agents.native]\nmode = 'ask'\nmodel = \"a:b\"\n\n[log]\n"),
        ("[agents.native]\r\nmodel = 'x:y'\r\nmode = 'ask'\r\n", "[agents.native]\r\nmodel = \"a:b\"\nmode = 'ask'\r\n"),
    ],
)
def test_only_our_lines_change(text: str, expected: str) -> None:
    """A line is set, added at the end of its table, or taken away; comments, order and spelling of the rest stay."""
    assert expected == edited(text)


def test_the_annotated_file_keeps_every_line() -> None:
    """In the file that acpd ships, the commented table stays and a real one is added."""
    assert SHIPPED + '\n[agents.native]\nmodel = "a:b"\n' == edited(SHIPPED)


@pytest.mark.parametrize(
    "text",
    [
        'agents.native.model = "x:y"\n',
        '[agents]\nnative = {model = "x:y"}\n',
        '[agents]\nnative.model = "x:y"\n',
        "agents = {}\n",
        '[log]\nfile = """\n[agents.native]\n"""\n',
        '[agents.native]\nmodel = """x:y\n"""\n',
    ],
)
def test_what_cannot_be_changed_by_lines_is_not_changed(text: str) -> None:
    """A table that is written in another way is an error that says what to write by hand."""
    tomllib.loads(text)
    with pytest.raises(ConfigError, match=r'acpd.toml is written .*\[agents.native\] yourself: model = "a:b"'):
        edited(text)


def test_a_broken_file_is_not_changed() -> None:
    """What is no TOML is an error before anything is done to it."""
    with pytest.raises(ConfigError, match=r"acpd\.toml is not TOML: nothing was changed"):
        edited("[log\n")


def test_members_before_the_first_table() -> None:
    """A file without tables, as that of the keys, gets its lines at its end; the error of one shows no key."""
    assert '# k\nA = "1"\nB = "2"\n' == edited('# k\nA = "1"\n', {"B": "2"}, "")
    assert 'A = "3"\n[t]\n' == edited('A = "1"\n[t]\n', {"A": "3"}, "")
    with pytest.raises(ConfigError) as caught:
        edited('A.x = "1"\n', {"A": "hunter2"}, "")
    assert "hunter2" not in str(caught.value)


@given(
    st.text(st.characters(min_codepoint=32, exclude_categories=["Cc", "Cs"])),
    st.sampled_from([SHIPPED, "", "[agents.native]\nmodel=''"]),
)
def test_any_value_comes_back(value: str, text: str) -> None:
    """Whatever a value is made of, but control characters, a TOML reader gets it back."""
    assert value == tomllib.loads(edited(text, {"model": value}))["agents"]["native"]["model"]
