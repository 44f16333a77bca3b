"""Values after a definition of the ACP schema, and what the schema's x-deserialize hints make of a malformed one.

Written from the schema alone, on Python values: it shares nothing with acpd's Structs or its work on bytes.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

from tests.support.schema import definitions

Json = Any
INVALID = object()
DEFAULT = "x-deserialize-default-on-error"
SKIP = "x-deserialize-skip-invalid-items"

RANGES = {
    "uint16": (0, 2**16 - 1),
    "uint32": (0, 2**32 - 1),
    "uint64": (0, 2**64 - 1),
    "int32": (-(2**31), 2**31 - 1),
    "int64": (-(2**63), 2**63 - 1),
}

_OPTIONAL = {DEFAULT: True}
_META = {"type": ["object", "null"], **_OPTIONAL}
# Two anyOf that msgspec cannot tell apart are one shape in acpd, a little stricter about members that the taken arm ignores.
MERGED: dict[str, Json] = {
    "EmbeddedResourceResource": {
        "type": "object",
        "properties": {
            "uri": {"type": "string"},
            "text": {"type": "string", **_OPTIONAL},
            "blob": {"type": "string", **_OPTIONAL},
            "mimeType": {"type": ["string", "null"], **_OPTIONAL},
            "_meta": _META,
        },
        "required": ["uri"],
        "one of": ["text", "blob"],
    },
    "StateUpdate": {
        "type": "object",
        "properties": {
            "state": {"type": "string"},
            "stopReason": {"type": ["string", "null"], **_OPTIONAL},
            "usage": {"anyOf": [{"$ref": "#/$defs/Usage"}, {"type": "null"}], **_OPTIONAL},
            "error": {"anyOf": [{"$ref": "#/$defs/Error"}, {"type": "null"}], **_OPTIONAL},
            "_meta": _META,
        },
        "required": ["state"],
    },
}


def _definition(reference: str) -> Json:
    name = reference.rsplit("/", 1)[1]
    return MERGED.get(name) or definitions()[name]


def mended(schema: Json, value: Json) -> Json:
    """The value as a reader that follows the hints has it, or INVALID."""
    if "$ref" in schema:
        return mended(_definition(schema["$ref"]), value)
    if not _right_type(schema, value) or ("const" in schema and schema["const"] != value):
        return INVALID
    for part in schema.get("allOf", ()):
        if (value := mended(part, value)) is INVALID:
            return INVALID
    arms = schema.get("oneOf") or schema.get("anyOf")
    if arms and (value := _first(arms, value)) is INVALID:
        return INVALID
    if isinstance(value, dict):
        return _mended_object(schema, value)
    return _mended_array(schema, value) if isinstance(value, list) and "items" in schema else value


def _first(arms: list[Json], value: Json) -> Json:
    results = [result for arm in arms if (result := mended(arm, value)) is not INVALID]
    return next((result for result in results if result == value), results[0] if results else INVALID)


def _mended_object(schema: Json, value: dict[str, Json]) -> Json:
    result = dict(value)
    required = schema.get("required", ())
    if any(name not in value for name in required):
        return INVALID
    for name, part in schema.get("properties", {}).items():
        if name not in value:
            continue
        inner = mended(part, value[name])
        if inner is not INVALID:
            result[name] = inner
        elif not part.get(DEFAULT):
            return INVALID
        elif name not in required:
            del result[name]
        else:
            result[name] = []
    if schema.get("one of") and not result.keys() & set(schema["one of"]):
        return INVALID
    return result


def _mended_array(schema: Json, value: list[Json]) -> Json:
    items = [mended(schema["items"], item) for item in value]
    if schema.get(SKIP):
        return [item for item in items if item is not INVALID]
    return INVALID if any(item is INVALID for item in items) else items


def _right_type(schema: Json, value: Json) -> bool:
    kinds = schema.get("type")
    if kinds is None:
        return True
    return any(_is(kind, schema, value) for kind in ([kinds] if isinstance(kinds, str) else kinds))


def _is(kind: str, schema: Json, value: Json) -> bool:
    match kind:
        case "object":
            return isinstance(value, dict)
        case "array":
            return isinstance(value, list)
        case "string":
            return isinstance(value, str) and len(value) >= schema.get("minLength", 0)
        case "boolean":
            return isinstance(value, bool)
        case "null":
            return value is None
        case "integer":
            low, high = RANGES[schema["format"]]
            return type(value) is int and low <= value <= high
        case _:
            return type(value) in (int, float) and math.isfinite(value)


def fullest(schema: Json) -> list[Json]:
    """Values that fit and have every member; together they take every arm of every choice."""
    if "$ref" in schema:
        return fullest(definitions()[schema["$ref"].rsplit("/", 1)[1]])
    if "const" in schema:
        return [schema["const"]]
    parts = [fullest(part) for part in schema.get("allOf", ())]
    arms = [arm for arm in schema.get("oneOf") or schema.get("anyOf") or () if "not" not in arm and arm != {"type": "null"}]
    if arms:
        parts.append([value for arm in arms for value in fullest(arm)])
    if "properties" in schema:
        members = {name: fullest(part) for name, part in schema["properties"].items()}
        parts.append(
            [{name: _nth(values, n) for name, values in members.items()} for n in range(max(map(len, members.values())))]
        )
    if len(parts) == 1:
        return parts[0]
    if parts:
        return [_union(tuple(_nth(part, n) for part in parts)) for n in range(max(map(len, parts)))]
    kinds = _kinds(schema)
    if "array" in kinds:
        return [[item] for item in fullest(schema["items"])]
    return [_SAMPLES[kinds[0]]]


_SAMPLES: dict[str, Json] = {
    "object": {"a": [1]},
    "string": "text",
    "boolean": True,
    "null": None,
    "integer": 7,
    "number": 1.5,
    "anything": {"b": None},
}
ODD: list[Json] = [None, True, 5, -1, 1.0, 2**70, "x", "", [], {}, [5], [None, "x"], {"type": "text"}]
"""Values of every type, of which each place of a message allows few."""


def _nth(values: list[Json], index: int) -> Json:
    return values[index % len(values)]


def spoilt(value: Json) -> Iterator[Json]:
    """The value with each of its members and items removed, and replaced by each odd value, one at a time."""
    places: list[Json] = (
        sorted(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []
    )
    for place in places:
        for odd in ODD:
            yield _with(value, place, odd)
        without = _with(value, place, None)
        del without[place]
        yield without
        for inner in spoilt(value[place]):
            yield _with(value, place, inner)


def _with(value: Json, place: Json, inner: Json) -> Json:
    changed = dict(value) if isinstance(value, dict) else list(value)
    changed[place] = inner
    return changed


TEXT = st.text(max_size=6)
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.sampled_from([0.5, 1.0, -3.25]) | TEXT,
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(TEXT | st.sampled_from(["type", "text", "state"]), inner, max_size=2)
    ),
    max_leaves=4,
)


@functools.cache
def valid(name: str) -> st.SearchStrategy[Json]:
    """Values that fit the definition of this name."""
    return _valid(definitions()[name])


def _valid(schema: Json) -> st.SearchStrategy[Json]:
    if "$ref" in schema:
        return valid(schema["$ref"].rsplit("/", 1)[1])
    if "const" in schema:
        return st.just(schema["const"])
    arms = [arm for arm in schema.get("oneOf") or schema.get("anyOf") or () if "not" not in arm]
    parts = [_valid(part) for part in schema.get("allOf", ())]
    if arms:
        parts.append(st.one_of([_valid(arm) for arm in arms]))
    if "properties" in schema:
        parts.append(_valid_object(schema))
    if len(parts) == 1:
        return parts[0]
    if parts:
        return st.tuples(*parts).map(_union)
    return st.one_of([_of_type(kind, schema) for kind in _kinds(schema)])


def _kinds(schema: Json) -> list[str]:
    kinds = schema.get("type", "anything")
    return [kinds] if isinstance(kinds, str) else kinds


def _union(objects: tuple[Json, ...]) -> Json:
    return {name: value for part in objects for name, value in part.items()}


def _valid_object(schema: Json) -> st.SearchStrategy[Json]:
    required = set(schema.get("required", ()))
    properties = {name: _valid(part) for name, part in schema["properties"].items()}
    return st.fixed_dictionaries(
        {name: part for name, part in properties.items() if name in required},
        optional={name: part for name, part in properties.items() if name not in required},
    )


def _of_type(kind: str, schema: Json) -> st.SearchStrategy[Json]:
    match kind:
        case "object":
            return st.dictionaries(TEXT, JUNK, max_size=2)
        case "array":
            return st.lists(_valid(schema["items"]), max_size=3)
        case "string":
            return st.text(min_size=schema.get("minLength", 0), max_size=8)
        case "boolean":
            return st.booleans()
        case "null":
            return st.none()
        case "integer":
            return st.integers(*RANGES[schema["format"]])
        case "number":
            return st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**60), 2**60)
        case _:
            return JUNK


@st.composite
def mutated(draw: st.DrawFn, name: str) -> Json:
    """A value that fits, with a few members or items replaced, removed or added."""
    value = draw(valid(name))
    for _ in range(draw(st.integers(1, 3))):
        _mutate(draw, value)
    return value


def _mutate(draw: st.DrawFn, value: Json) -> None:
    inner = value
    while True:
        nested = [
            part for part in (inner.values() if isinstance(inner, dict) else inner) if isinstance(part, dict | list) and part
        ]
        if not nested or draw(st.booleans()):
            break
        inner = draw(st.sampled_from(nested))
    if isinstance(inner, list):
        inner[draw(st.integers(0, len(inner) - 1))] = draw(JUNK)
        return
    what = draw(st.sampled_from(["replace", "replace", "remove", "add"]))
    if what == "add" or not inner:
        inner[draw(TEXT)] = draw(JUNK)
    elif what == "remove":
        del inner[draw(st.sampled_from(sorted(inner)))]
    else:
        inner[draw(st.sampled_from(sorted(inner)))] = draw(JUNK)
