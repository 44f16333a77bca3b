"""Names of tools as models take them."""

from __future__ import annotations

import re

from hypothesis import given, settings
from hypothesis import strategies as st

from acpd.native.mcp.names import Names, labels

PAIRS = st.lists(st.tuples(st.text(max_size=80), st.text(max_size=80)), max_size=30)


@settings(max_examples=30)
@given(PAIRS)
def test_names_are_legal_and_unique(pairs: list[tuple[str, str]]) -> None:
    """Whatever servers and tools are called, each pair has one legal name, always the same, and no two have one."""
    names = Names(("mcp_resources",))
    given_out = {pair: names.of(*pair) for pair in pairs}
    assert all(re.fullmatch("[a-zA-Z_][a-zA-Z0-9_-]{0,63}", name) for name in given_out.values())
    assert len(set(given_out.values())) == len(given_out)
    assert "mcp_resources" not in given_out.values()
    assert given_out == {pair: names.of(*pair) for pair in pairs}


def test_plain_names_stay() -> None:
    """What is legal is kept; a server without a legal character is called mcp, and none begins with a digit or a dash."""
    names = Names()
    assert "files_read-all" == names.of("files", "read-all")
    assert "mcp_read" == names.of("\u65e5\u672c", "read")
    assert ["mcp_1password_read", "mcp_-x_read"] == [names.of(server, "read") for server in ("1password", "-x")]


@given(st.lists(st.sampled_from(["x", "x (2)", "x (3)", "y", "x (2) (2)"])))
def test_labels_are_unique(names: list[str]) -> None:
    """No two servers have one label, so no permission of one is another's; the first of a name has the name itself."""
    found = labels(names)
    assert len(names) == len(set(found))
    assert all(found[names.index(name)] == name for name in names)


def test_labels_are_numbered() -> None:
    """Others have the first number that is free behind their name."""
    assert ["x", "x (3)", "x (2)", "x (4)"] == labels(["x", "x", "x (2)", "x"])
