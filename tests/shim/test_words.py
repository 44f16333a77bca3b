"""Which command lines are the shim's. What it takes argparse must take too, and mean the same."""

from __future__ import annotations

import os
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acpd.cli import arguments
from acpd.cli.arguments import split
from acpd.config import Flags
from acpd.errors import ConfigError
from acpd.shim.words import for_shim


@pytest.fixture(autouse=True, scope="module")
def no_terminal() -> object:
    """As an editor starts it, wherever the tests run."""
    before, null = os.dup(0), os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    yield
    os.dup2(before, 0)
    os.close(before)


@pytest.mark.parametrize(
    ("words", "flags"),
    [
        ("", {}),
        ("--agent X", {"agent": "X"}),
        ("--storage=/s --agent=X --user u", {"storage": "/s", "agent": "X", "user": "u"}),
        ("run -- agent --flag -- x", {}),
        ("run --name n --config c -- agent", {"name": "n", "config": "c"}),
        ("--backend json run agent", {"backend": "json"}),
        ("run agent -- more", {}),
    ],
)
def test_what_serves_an_editor(words: str, flags: dict[str, str]) -> None:
    """acpd, acpd --agent and acpd run, with the flags that stand everywhere, are the shim's."""
    assert flags == for_shim(words.split(), {})


ORDINARY = """ls|run|run --|-- x|--agent|--agent --user|--standalone|run --standalone -- x|--version|-h|--help|--name n
run --name n x|run --agent x -- y|--agent= run -- x|serve|ls run|--every|run -x -- y|--sync"""


@pytest.mark.parametrize("words", re.split(r"[|\n]", ORDINARY))
def test_what_is_left_to_the_ordinary_way(words: str) -> None:
    """Other commands, --standalone, and whatever is odd are not."""
    assert for_shim(words.split(), {}) is None


@pytest.mark.parametrize(
    ("env", "ours"),
    [
        ({"ACPD_STANDALONE": "1"}, False),
        ({"ACPD_LOGIN": "1"}, False),
        ({"ACPD_STANDALONE": "maybe"}, False),
        ({"ACPD_HOME": "relative"}, False),
        ({"ACPD_STANDALONE": "0", "ACPD_LOGIN": "", "ACPD_HOME": "/h"}, True),
    ],
)
def test_variables_choose_too(env: dict[str, str], ours: bool) -> None:
    """ACPD_STANDALONE and ACPD_LOGIN lead the ordinary way, and so does a value that will be an error there."""
    assert ours == (for_shim([], env) is not None)


def test_on_a_terminal_there_is_no_shim() -> None:
    """Whoever sits at a terminal is shown the help, or the agent itself."""
    ours, theirs = os.openpty()
    before = os.dup(0)
    os.dup2(theirs, 0)
    try:
        assert for_shim([], {}) is None
    finally:
        os.dup2(before, 0)
        for fd in (ours, theirs, before):
            os.close(fd)


_WORDS = """run,ls,--,--agent,--agent=a,--user,--storage=s,--config,--name,--name=n,x,-x,--standalone,--sync,power
--log-level=info,--backend,json,--version,--help,,--agent="""
WORDS = st.sampled_from(re.split(r"[,\n]", _WORDS))


@given(st.lists(WORDS, max_size=6))
def test_what_the_shim_takes_argparse_takes(words: list[str]) -> None:
    """The shim takes no line that the command line refuses, or of which it makes another command or other flags."""
    flags = for_shim(words, {})
    if flags is None:
        return
    before, after = split(words)
    try:
        values = arguments.parser().parse_args(before)
    except ConfigError as error:
        raise AssertionError(words) from error
    assert values.command in {None, "run"}
    assert not values.version
    assert values.command == "run" or not after
    assert values.command != "run" or [*values.words, *after]
    assert flags == {name: value for name in (*Flags.__struct_fields__, "agent", "name")
                     if isinstance(value := getattr(values, name, None), str) for name in [name.replace("_", "-")]}  # fmt: skip
