"""Schemas of tools as every provider takes them."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acpd.native.mcp.schemas import plain

A = {"type": "string"}
B = {"type": "integer"}
REFUSED = {"$schema", "$ref", "anyOf", "oneOf", "allOf", "not", "enum", "const"}
NAMES = st.sampled_from(["a", "b", "c"])


def _branch(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    branches = st.lists(inner, min_size=1, max_size=3)
    more = {"anyOf": branches, "oneOf": branches, "allOf": branches, "required": st.lists(NAMES, max_size=2)}
    return st.fixed_dictionaries({"properties": st.dictionaries(NAMES, st.sampled_from([A, B]))}, optional=more)


SCHEMAS = st.recursive(_branch(st.nothing() | st.just({})), _branch, max_leaves=6)


@settings(max_examples=60)
@given(SCHEMAS, st.dictionaries(NAMES, st.sampled_from(["x", 1])))
def test_nothing_more_is_required(schema: dict[str, Any], arguments: dict[str, Any]) -> None:
    """Nothing at the top is refused by a provider, and nothing is required of arguments that the server would take."""
    made = plain(schema)
    assert not REFUSED & set(made)
    assert "object" == made["type"]
    assert made == plain(made)
    if jsonschema.Draft202012Validator(schema).is_valid(arguments):
        assert set(made.get("required", ())) <= set(arguments)


def test_alternatives_are_properties() -> None:
    """Each alternative's members can be given; required is what all of them require; one with two shapes may be either."""
    one = {"properties": {"kind": {"const": "one"}, "path": A}, "required": ["kind", "path"]}
    two = {"properties": {"kind": {"const": "two"}, "line": B}, "required": ["kind"]}
    made = plain({"$schema": "x", "description": "d", "oneOf": [one, {"$ref": "#/$defs/two"}], "$defs": {"two": two}})
    assert {"kind": {"anyOf": [{"const": "one"}, {"const": "two"}]}, "path": A, "line": B} == made["properties"]
    assert ["kind"] == made["required"]
    assert "d" == made["description"]


@pytest.mark.parametrize("schema", [{}, {"type": "object", "properties": None}, {"$ref": "#"}, {"anyOf": 1, "required": "a"}])
def test_what_is_no_schema_of_an_object(schema: dict[str, Any]) -> None:
    """It is one without properties, and a reference to itself comes to an end."""
    assert {"type": "object", "properties": {}} == plain(schema)


def test_ordinary_ones_stay() -> None:
    """What every provider takes is as the server has it."""
    schema = {
        "type": "object",
        "properties": {"a": A, "b": {"anyOf": [A, B]}},
        "required": ["a"],
        "additionalProperties": False,
    }
    assert schema == plain(schema)
