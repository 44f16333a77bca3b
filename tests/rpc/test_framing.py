"""Lines out of a byte stream: whole, byte by byte, with a tail, and around the limit."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acpd.rpc import framing
from acpd.rpc.framing import BOM, Lines, TooLong

Found = list[bytes | TooLong]

STREAM = b'{"a":1}\n\n{"b":"\xe2\x80\xa8"}\r\n \t \n{"c":[]}\n'
LINES = [b'{"a":1}', b"", b'{"b":"\xe2\x80\xa8"}\r', b" \t ", b'{"c":[]}']


def read(chunks: Iterable[bytes], limit: int = framing.MAX_LINE) -> tuple[Found, bytes]:
    """Every line of these chunks, and what is left."""
    lines = Lines(limit)
    found = [line for chunk in chunks for line in lines.receive(chunk)]
    return found, lines.rest()


def singly(data: bytes) -> list[bytes]:
    return [data[at : at + 1] for at in range(len(data))]


def taken(found: Found) -> int:
    return sum(line.size + 1 if isinstance(line, TooLong) else len(line) + 1 for line in found)


def model(data: bytes, limit: int) -> tuple[Found, bytes]:
    """The same by `split`, which is slow and plain."""
    *lines, tail = data.split(b"\n")
    if lines and lines[0].startswith(BOM) and len(lines[0]) <= limit:
        lines[0] = b"   " + lines[0][3:]
    elif not lines and tail.startswith(BOM):
        tail = b"   " + tail[3:]
    return [line if len(line) <= limit else TooLong(len(line), line[: min(32, limit)]) for line in lines], tail if len(
        tail
    ) <= limit else b""


def test_a_stream_read_at_once() -> None:
    r"""Only \n ends a line: not \r, not U+2028; blank lines and a \r at the end are there as they were."""
    assert (LINES, b"") == read([STREAM])


def test_a_stream_read_byte_by_byte() -> None:
    """The same lines come out however the stream is cut."""
    assert (LINES, b"") == read(singly(STREAM))


@pytest.mark.parametrize("cut", [list, singly])
def test_a_tail(cut: object) -> None:
    """What stands behind the last newline is no line yet, and is there when it is asked for, once."""
    lines = Lines()
    found = [line for chunk in ([STREAM + b'{"d'] if cut is list else singly(STREAM + b'{"d')) for line in lines.receive(chunk)]
    assert LINES == found
    assert (b'{"d', b"") == (lines.rest(), lines.rest())


@pytest.mark.parametrize("size", [0, 1, 7, 8])
def test_a_line_within_the_limit_comes_whole(size: int) -> None:
    """A line may have `limit` bytes, without its newline."""
    data = b"x" * size + b"\n"
    assert ([b"x" * size], b"") == read([data], 8) == read(singly(data), 8)


@pytest.mark.parametrize("size", [9, 10, 16, 17, 1000])
def test_a_line_over_the_limit_is_told_by_its_size(size: int) -> None:
    """Over the limit a line is its size and how it begins; the next one comes as if nothing had been."""
    data = b"1234567" + b"x" * (size - 7) + b"\nok\n"
    expected: Found = [TooLong(size, b"1234567x"), b"ok"]
    for chunks in ([data], singly(data), [data[:5], data[5:]], [data[:9], data[9:]], [data[:-3], data[-3:]]):
        assert (expected, b"") == read(chunks, 8)


def test_a_long_line_between_short_ones_in_one_read() -> None:
    """The limit holds for the lines in the middle of a read as well."""
    data = b"a\n" + b"x" * 9 + b"\nb\n" + b"y" * 20 + b"\n" + b"z" * 8
    expected: Found = [b"a", TooLong(9, b"x" * 8), b"b", TooLong(20, b"y" * 8)]
    assert (expected, b"z" * 8) == read([data], 8)


def test_no_more_than_the_limit_is_held() -> None:
    """However long a line is, what is kept of it stays within the limit, and its size is counted on."""
    lines = Lines(8)
    for _ in range(1000):
        assert [] == lines.receive(b"12345")
        assert sum(map(len, lines._parts)) <= 8
    assert [TooLong(5003, b"12345123")] == lines.receive(b"678\n")


def test_a_tail_over_the_limit_is_gone() -> None:
    """The rest of a stream that ends in a line over the limit is empty."""
    assert ([], b"") == read([b"x" * 9], 8)


@pytest.mark.parametrize(
    "chunks", [[BOM + b"{}\n{}\n"], singly(BOM + b"{}\n{}\n"), [BOM, b"{}\n{}\n"], [BOM[:2], BOM[2:] + b"{}\n{}\n"]]
)
def test_a_byte_order_mark_at_the_start_is_white_space(chunks: list[bytes]) -> None:
    """A mark at the very start is white space of its length, however it is cut, so that positions stay right."""
    found, _ = read(chunks)
    assert ([b"   {}", b"{}"], 9) == (found, taken(found))


def test_a_byte_order_mark_elsewhere_stays() -> None:
    """A mark anywhere but at the start is the sender's own."""
    data = b"\n" + BOM + b"{}\na" + BOM + b"\n"
    assert ([b"", BOM + b"{}", b"a" + BOM], b"") == read([data]) == read(singly(data))


def test_a_byte_order_mark_in_a_stream_without_newline() -> None:
    """A stream that is one line without its end has its mark taken as well."""
    assert ([], b"   {}") == read([BOM + b"{}"]) == read(singly(BOM + b"{}"))


pieces = st.lists(
    st.sampled_from([b"\n", b"\n\n", b"a", b"bc", b"x" * 7, b"x" * 8, b"x" * 9, b"y" * 30, BOM, b"\r\n", b" "]), max_size=40
)


def holds(data: bytes, cuts: list[int], limit: int) -> None:
    """What is true of every stream, cut anywhere."""
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    chunks = [data[start:end] for start, end in itertools.pairwise(edges)]
    found, rest = read(chunks, limit)
    assert model(data, limit) == (found, rest)
    assert data.rfind(b"\n") + 1 == taken(found)


@given(pieces, st.lists(st.integers(0, 1000)), st.integers(1, 12))
def test_cutting_changes_nothing(parts: list[bytes], cuts: list[int], limit: int) -> None:
    """For every stream, cut and limit: the lines are those of `split`, and their positions add up to the stream's."""
    holds(b"".join(parts), cuts, limit)


def test_the_property_finds_a_planted_bug() -> None:
    """The property is no ornament: an off-by-one in the limit and a forgotten count are found."""
    dice = random.Random(7)

    def forgetful(self: Lines, tail: bytes) -> None:
        if self._held + len(tail) > self.limit:
            self._parts, self._held = [], 0
        else:
            self._parts.append(tail)
            self._held += len(tail)

    def search() -> None:
        for _ in range(500):
            data = b"".join(dice.choices([b"\n", b"x" * 5, b"y" * 9], k=12))
            holds(data, [dice.randrange(100) for _ in range(6)], 8)

    search()
    with patch.object(Lines, "_hold", forgetful), pytest.raises(AssertionError):
        search()
