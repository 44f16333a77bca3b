"""A short turn of every in-process fuzzer with fixed seeds; `make fuzz` is for breadth."""

from __future__ import annotations

import random

import pytest

from tests.fuzz import pure


@pytest.mark.parametrize("name", pure.PROPERTIES)
def test_no_input_breaks_it(name: str) -> None:
    """Framing, protocol, decoding and the reading of logs take any bytes: 2,000 fixed cases each."""
    for case in range(2000):
        pure.PROPERTIES[name](random.Random(case))


@pytest.mark.parametrize("name", pure.PROPERTIES)
def test_the_cases_differ(name: str) -> None:
    """The fuzzers try different inputs: 200 seeds give more than 150 of them."""
    assert len({pure.PROPERTIES[name](random.Random(case)) for case in range(200)}) > 150
