"""Entry ids and time stamps."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acpd.wire.ids import Clock, Ids

MS = 1_000_000


@given(st.lists(st.integers(0, 2**43), min_size=1, max_size=50))
def test_ids_only_ever_grow(times: list[int]) -> None:
    """Also when the clock stands still or goes back."""
    clock = iter([ms * MS for ms in times])
    ids = Ids(lambda: next(clock))
    made = [ids.new() for _ in times]
    assert sorted(set(made)) == made


def test_ten_thousand_ids_of_one_millisecond_are_different_and_in_order() -> None:
    """The counter has 12 bits; when they are used up, the millisecond is advanced."""
    ids = Ids(lambda: 1_800_000_000_000 * MS)
    made = [ids.new() for _ in range(10_000)]
    assert sorted(set(made)) == made


@given(st.lists(st.integers(1, 5000), max_size=4))
def test_ids_made_together_are_as_those_made_one_by_one(counts: list[int]) -> None:
    """They grow, none comes twice, and single ones between them go on behind them."""
    ids = Ids(lambda: 1_700_000_000_000_000_000)
    found = [each for count in counts for each in (*ids.some(count), ids.new())]
    assert sum(counts) + len(counts) == len(set(found))
    assert sorted(found) == found


@given(st.integers(0, 2**47))
def test_an_id_is_a_uuid_of_version_7(ms: int) -> None:
    """RFC 9562: 48 bits of milliseconds, version 7, variant 10, lower case with dashes."""
    made = Ids(lambda: ms * MS).new()
    parsed = uuid.UUID(made)
    assert (made, 7, uuid.RFC_4122) == (str(parsed), parsed.version, parsed.variant)
    assert max(ms, 0) == parsed.int >> 80


@given(st.integers(0, 2**47), st.integers(0, 2**47))
def test_ids_go_on_after_those_of_another_process(then: int, now: int) -> None:
    """After the newest id of a log every new one is greater, whatever the clock says by now."""
    last = Ids(lambda: then * MS).new()
    ids = Ids(lambda: now * MS)
    ids.after(last)
    assert last < ids.new() < ids.new()


@pytest.mark.parametrize(
    "last",
    [
        "",
        "root",
        "x" * 36,
        "0193b0f0-aaaa-4000-8000-000000000002",
        "ffffffff-ffff-7fff-bfff-ffffffffffff",
        "f_f_f_ff-ffff-7fff-bfff-ffffffffffff",
    ],
)
def test_a_foreign_id_changes_nothing(last: str) -> None:
    """Logs may have been imported: what is no UUIDv7 is passed over, and so is a time after which there is no other."""
    ids = Ids(lambda: 1_800_000_000_000 * MS)
    ids.after(last)
    made = ids.new()
    assert uuid.UUID(made).int >> 80 == 1_800_000_000_000


@given(st.integers(0, 4_000_000_000_000))
def test_now_is_rfc_3339_in_utc_with_milliseconds(ms: int) -> None:
    """Readers in every language parse it."""
    text = Clock(lambda: ms * MS + 999).now()
    assert datetime.fromtimestamp(ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S") + f".{ms % 1000:03d}Z" == text
    assert datetime.fromisoformat(text).tzinfo is not None


def test_the_clock_goes_on_within_and_after_a_second() -> None:
    """The text of a second is made once; the next second makes the next."""
    times = iter([1999 * MS, 2000 * MS, 1000 * MS])
    clock = Clock(lambda: next(times))
    assert [clock.now()[17:] for _ in range(3)] == ["01.999Z", "02.000Z", "01.000Z"]
