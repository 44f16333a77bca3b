"""Schemas with something broken in them: what is left is one that every provider reads."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic_ai import InlineDefsJsonSchemaTransformer
from pydantic_ai.profiles.google import GoogleJsonSchemaTransformer
from pydantic_ai.profiles.openai import OpenAIJsonSchemaTransformer
from pydantic_ai.providers.anthropic import AnthropicJsonSchemaTransformer

from acpd.native.mcp.schemas import Unusable, plain

PROVIDERS = [
    InlineDefsJsonSchemaTransformer,
    OpenAIJsonSchemaTransformer,
    GoogleJsonSchemaTransformer,
    AnthropicJsonSchemaTransformer,
]
WORDS = [
    *(
        "$defs",
        "$ref",
        "$schema",
        "$id",
        "$dynamicRef",
        "additionalProperties",
        "allOf",
        "anyOf",
        "const",
        "contains",
        "default",
    ),
    *("definitions", "dependentRequired", "description", "enum", "examples", "format", "if", "items", "maxItems", "minLength"),
    *("minimum", "multipleOf", "not", "oneOf", "pattern", "patternProperties", "prefixItems", "properties", "propertyNames"),
    *("required", "title", "type", "unevaluatedProperties", "uniqueItems", "x-own"),
]
REFERENCES = ["#", "#/$defs/a", "#/definitions/a", "#/properties/a", "#/anyOf/0", "#/$defs/%61~1", "a", "http://127.0.0.1:9/x"]
LEAVES = st.none() | st.booleans() | st.integers(-2, 5) | st.floats() | st.sampled_from(["a", "object", "string", *REFERENCES])


def _inside(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    named = st.dictionaries(st.sampled_from(["a", "b", "$ref"]), inner, max_size=2)
    return st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner | named, max_size=4)


BROKEN = st.dictionaries(st.sampled_from(WORDS), st.recursive(LEAVES, _inside, max_leaves=20), max_size=5)


def taken(made: dict[str, Any]) -> None:
    """It is a schema of an object, JSON, and each provider's way of rewriting it works."""
    jsonschema.Draft202012Validator.check_schema(made)
    json.dumps(made, allow_nan=False)
    assert "object" == made["type"]
    for provider in PROVIDERS:
        provider(made, strict=False).walk()


@settings(max_examples=100)
@given(BROKEN)
def test_anything_can_be_mended(schema: dict[str, Any]) -> None:
    """Whatever stands in a schema, what is left is taken, and mending it again changes nothing."""
    made = plain(schema)
    taken(made)
    assert made == plain(made)


def within(part: Any) -> dict[str, Any]:
    """A schema with this as the property `a`, beside one that is sound."""
    return {"type": "object", "properties": {"a": part, "b": {"type": "string"}}, "required": ["a"]}


@pytest.mark.parametrize(
    ("broken", "left"),
    [
        ("string", {}),
        ({"anyOf": 5}, {}),
        ({"anyOf": []}, {}),
        ({"anyOf": [5, True, {"type": "string"}]}, {"anyOf": [{}, {"type": "string"}]}),
        ({"type": "array", "items": {"anyOf": {"type": "string"}}}, {"type": "array", "items": {}}),
        ({"type": "int", "description": "d"}, {"description": "d"}),
        ({"type": ["string", "null"], "minLength": "1"}, {"type": ["string", "null"]}),
        ({"type": "object", "properties": ["x"]}, {"type": "object"}),
        ({"type": "object", "properties": {"x": 1}, "required": "x"}, {"type": "object", "properties": {"x": {}}}),
        ({"$ref": "#/$defs/nothing", "description": "d"}, {"description": "d"}),
        ({"$ref": "http://127.0.0.1:9/x"}, {}),
        ({"$ref": 5}, {}),
        ({"$ref": "#/properties/b"}, {"type": "string"}),
        ({"$ref": "#/properties/a"}, {}),
        ({"items": [{"type": "string"}]}, {"items": {"anyOf": [{"type": "string"}]}}),
        ({"default": float("nan"), "maximum": float("inf")}, {}),
        ({"default": None, "const": None}, {"default": None, "const": None}),
    ],
)
def test_what_is_broken_is_left_out(broken: Any, left: dict[str, Any]) -> None:
    """Deep in a schema only what is broken goes; its neighbours stay as they are."""
    made = plain(within(broken))
    assert {"a": left, "b": {"type": "string"}} == made["properties"]
    taken(made)


def test_definitions() -> None:
    """Those that can be followed stay, also where they come back to themselves; a circle of nothing else is anything."""
    tree = {"type": "object", "properties": {"next": {"$ref": "#/definitions/tree"}, "odd": {"$ref": "#/definitions/one"}}}
    given = {**within({"$ref": "#/definitions/tree"}), "definitions": {"tree": tree}}
    given["definitions"] |= {"one": {"$ref": "#/definitions/two"}, "two": {"$ref": "#/definitions/one"}}
    made = plain(given)
    assert {"$ref": "#/$defs/tree"} == made["properties"]["a"]
    assert {"next": {"$ref": "#/$defs/tree"}, "odd": {}} == made["$defs"]["tree"]["properties"]
    taken(made)


@pytest.mark.parametrize("word", ["items", "properties", "anyOf", "default"])
def test_depth_is_bounded(word: str) -> None:
    """What is nested a thousand times ends somewhere."""
    part: Any = {"type": "string"}
    for _ in range(1000):
        part = {"properties": {"x": part}} if word == "properties" else {word: [part] if word == "anyOf" else part}
    made = plain(within(part))
    taken(made)
    assert len(json.dumps(made)) < 3000


def test_too_much() -> None:
    """A schema whose references multiply, or with more words than a model can be told, is none that can be offered."""
    laughs = {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}, {"$ref": f"#/$defs/d{n + 1}"}]} for n in range(22)}
    wide = {"properties": {f"p{n}": {"type": "string"} for n in range(20_000)}}
    for schema in (within({"$ref": "#/$defs/d0"}) | {"$defs": laughs | {"d22": {}}}, wide, within({"enum": ["x" * 3_000_000]})):
        with pytest.raises(Unusable):
            plain(schema)
    taken(plain(within({"description": "x" * 5_000_000})))
