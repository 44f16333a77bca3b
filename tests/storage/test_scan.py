"""Many lines at once and line by line: the same records."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from acpd.storage.scan import Block, any_records, parse, pieces, records
from acpd.wire.lines import Stored

GOOD = b'{"type":"update","id":"e1","seq":1,"params":{"a":[{},{"b":"}\\n{"}]}}'
parts = st.sampled_from(
    [
        GOOD,
        GOOD,
        GOOD,
        b'{"type":"update","id":"e2","params":',
        b"{}",
        b'{"a":1}',
        b"}",
        b"[",
        b'"x',
        b'"',
        b",",
        b"\xff",
        b"\0",
    ]
)
ends = st.sampled_from([b"\n", b"\n", b"\n", b"\n", b"", b"\r\n", b" \n", b"\n\n", b"\n "])
texts = st.lists(st.tuples(parts, ends), max_size=6).map(lambda pairs: b"".join(part + end for part, end in pairs))
around = [at + side for at, byte in enumerate(GOOD) if byte in b"{}" for side in (0, 1)]  # where it looks most like an end
cut_up = st.sampled_from(around).map(lambda at: GOOD[:at] + b"\n" + GOOD[at:] + b"\n")


@given(st.lists(texts | cut_up | st.just(GOOD + b"\n"), max_size=4).map(b"".join))
def test_many_lines_at_once_are_the_same_records(data: bytes) -> None:
    """What is read at once is what line by line gives, and `records` only where each line is one; else None."""
    items = list(parse(Block(0, 2, data)))
    found = any_records(data)
    assert found is None or [item for _, _, item in items] == found
    exact = records(data)
    assert exact is None or list(enumerate(exact, 2)) == [(number, item) for number, _, item in items]


def test_sound_lines_are_read_at_once() -> None:
    """The fast way is taken for lines as a session writes them, and for two that stand on one."""
    assert [3, 3] == [len(found or []) for found in (any_records((GOOD + b"\n") * 3), records((GOOD + b"\n") * 3))]
    assert (3, None) == (
        len(any_records(GOOD + GOOD + b"\n" + GOOD + b"\n") or []),
        records(GOOD + GOOD + b"\n" + GOOD + b"\n"),
    )
    assert all(isinstance(item, Stored) for item in any_records(GOOD + b"\n") or [])


@given(st.lists(st.sampled_from([b"a", b"bc", b"\n", b"\n\n"]), max_size=12), st.booleans())
def test_pieces_are_whole_lines(chunks: list[bytes], first: bool) -> None:
    """However a file is read, its pieces end with lines, hold all of it, and line 1 is one of its own if that is wanted."""
    found = list(pieces(chunks, first=first))
    assert b"".join(chunks) == b"".join(found)
    assert all(piece.endswith(b"\n") for piece in found[:-1])
    if first and found:
        assert found[0].count(b"\n") <= 1
