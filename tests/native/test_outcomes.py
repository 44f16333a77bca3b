"""What a failure of a provider is to the user."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acpd.native.outcomes import without
from tests.native.turns import KEY

SPELLINGS: dict[str, Callable[[str], str]] = {
    "plain": str,
    "json": lambda key: json.dumps(key)[1:-1],
    "url": lambda key: quote(key, safe=""),
    "base64": lambda key: base64.b64encode(key.encode()).decode(),
    "unpadded": lambda key: base64.urlsafe_b64encode(key.encode()).decode().rstrip("="),
}


@pytest.mark.parametrize("spell", SPELLINGS.values(), ids=SPELLINGS)
@pytest.mark.parametrize("key", [KEY, "sk-ant/api03+A?B>C~D~~==", 'a"b\\c&d%25e f'.replace(" ", "")])
def test_a_key_is_hidden_however_it_is_spelled(spell: Callable[[str], str], key: str) -> None:
    """An error that quotes a request shows nothing of the key in it: the word is gone, and what stands beside it stays."""
    assert "bad *** here" == without(f"bad {spell(key)} here", [key, "another-key"])


@given(st.binary(max_size=20), st.binary(max_size=20), st.sampled_from([base64.b64encode, base64.urlsafe_b64encode]))
def test_a_key_is_hidden_inside_of_what_was_encoded(before: bytes, after: bytes, encode: Callable[[bytes], bytes]) -> None:
    """As in `Basic` credentials: from what is left, nobody gets a piece of the key."""
    shown = without(encode(before + b"\0" + KEY.encode() + b"\0" + after).decode(), [KEY])
    pieces = {KEY[at : at + 4].encode() for at in range(len(KEY) - 3)}
    for part in shown.split("***"):
        for at in range(4):
            text = part[at:].rstrip("=")
            decoded = base64.b64decode(
                text[: len(text) // 4 * 4], altchars=b"-_" if encode is base64.urlsafe_b64encode else None
            )
            assert not [piece for piece in pieces if piece in decoded and piece not in before + after]
