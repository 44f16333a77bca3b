"""The lines of a log."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from acpd.wire import lines

ANY_TEXT = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=10)


@given(ANY_TEXT, ANY_TEXT, st.lists(ANY_TEXT, max_size=3), st.none() | ANY_TEXT)
def test_a_header_reads_back(identifier: str, cwd: str, command: list[str], user: str | None) -> None:
    """Whatever names and paths there are, line 1 is one line and says what it was made of."""
    header = lines.Header(
        version=1, id=identifier, cwd=cwd, agent="a", command=tuple(command), user=user, parent=lines.Parent("p")
    )
    line = lines.header_line(header)
    assert line.endswith(b"}\n")
    assert line.count(b"\n") == 1
    assert header == lines.decode_header(line)
    assert json.loads(line)["type"] == "session"


@given(st.none() | ANY_TEXT, st.integers(1, 2**50))
def test_an_entry_reads_back(parent: str | None, seq: int) -> None:
    """A parent may have been imported with any name; None is written as null, which makes it an entry all the same."""
    line = lines.entry("update", "id-1", parent, seq, "now", b',"kind":"k","params":{"n":1.50e1}')
    stored = lines.decode(line)
    assert ("update", "id-1", parent, seq, "now", "k") == (
        stored.type,
        stored.id,
        stored.parentId,
        stored.seq,
        stored.at,
        stored.kind,
    )
    assert stored.is_entry
    assert bytes(stored.params) == b'{"n":1.50e1}'  # type: ignore[arg-type]
    assert (line.count(b"\n"), line[-1:]) == (1, b"\n")


def test_a_fact_is_no_entry() -> None:
    """What has no parentId is outside of the tree; an empty body is allowed."""
    stored = lines.decode(lines.fact("usage", "id-2", 3, "now", b""))
    assert ("usage", 3, UNSET, False) == (stored.type, stored.seq, stored.parentId, stored.is_entry)


def test_an_unknown_line_is_read_as_far_as_it_is_known() -> None:
    """A type or member that a newer version added does not stop this one; parentId tells whether it is in the tree."""
    stored = lines.decode(b'{"type":"future","id":"x","parentId":null,"seq":1,"more":{"a":1}}')
    assert stored.is_entry


@pytest.mark.parametrize(
    "line", [b"", b"{}", b'{"type":"update"}', b'{"type":5,"id":"x"}', b'{"type":"leaf","id":"x","seq":"1"}', b"[]"]
)
def test_a_bad_line_is_refused(line: bytes) -> None:
    """A line without type and id, or with a member of the wrong type, is damage: DecodeError."""
    with pytest.raises(msgspec.DecodeError):
        lines.decode(line)


@pytest.mark.parametrize(
    "line", [b'{"type":"update","version":1,"id":"x","cwd":"/","agent":"a"}', b'{"type":"session","id":"x"}', b"{}"]
)
def test_a_bad_header_is_refused(line: bytes) -> None:
    """A first line of another type, or without version, id, cwd and agent, is no header."""
    with pytest.raises(msgspec.DecodeError):
        lines.decode_header(line)
