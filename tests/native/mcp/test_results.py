"""What a model is told of results that are odd."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp_types import CallToolResult, ImageContent

from acpd.native.mcp.hiding import Secrets
from acpd.native.mcp.results import of_call
from acpd.native.toolbox import ToolOutput

NONE = Secrets({}, (), "")
PNG = b"\x89PNG\r\n\x1a\n" + b"0" * 100
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


def structured(value: Any, **env: str) -> ToolOutput:
    return of_call(CallToolResult(content=[], structured_content=value), Secrets(env, (), ""))


@pytest.mark.parametrize(
    ("secret", "value"), [("1234567890", 1234567890), ("12345678.5", 12345678.5), ("-12345678", -12345678)]
)
def test_numbers_that_are_secrets(secret: str, value: float) -> None:
    """They are hidden like any other value, wherever they stand, and what is left is JSON."""
    for each, hidden in ((value, "***"), ({"n": [value, 1]}, {"n": ["***", 1]}), ({f"a {secret}": "x"}, {"a ***": "x"})):
        output = structured(each, PIN_TOKEN=secret)
        assert hidden == output.structured == json.loads(output.text)


@given(JSON)
def test_structured_results_stay(value: Any) -> None:
    """Where nothing is secret they are what the server has sent."""
    assert value == structured({"value": value}, API_KEY="canary-4711-x").structured["value"]  # type: ignore[index]


@given(JSON, st.text(st.characters(codec="utf-8"), min_size=8, max_size=12))
def test_nothing_makes_a_result_fail(value: Any, secret: str) -> None:
    """Whatever is secret, a result can be read."""
    output = structured({"value": value, secret: [secret]}, API_KEY=secret)
    assert output.structured == json.loads(output.text)


def image(data: str, mime: str = "image/png") -> ToolOutput:
    return of_call(CallToolResult(content=[ImageContent(type="image", data=data, mime_type=mime)]), NONE)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ("!!!!", "its data is not valid base64; not shown"),
        ("iVBORw0KGgo\u00e9", "its data is not valid base64; not shown"),
        ("iVBOR", "its data is not valid base64; not shown"),
        ("AAAA", "3 bytes: it is no image; not shown"),
        ("", "0 bytes: it is no image; not shown"),
    ],
)
def test_images_that_are_none(data: str, why: str) -> None:
    """A model is given no image that its provider would refuse, and is told why."""
    output = image(data)
    assert () == output.images
    assert why in output.text


def test_images_in_lines_and_by_a_wrong_name() -> None:
    """Line ends within base64 are no fault, and an image has the type that its bytes have."""
    assert ((PNG, "image/png"),) == image(base64.encodebytes(PNG).decode(), "image/jpeg").images
