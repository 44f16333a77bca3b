"""Schemas of tools as every provider takes them: an object with properties, no alternatives at the top, nothing broken."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from acpd.native.mcp.sifting import Unusable, measure, sifted, target_of

__all__ = ["Unusable", "plain"]

DEEPEST = 8
"""Alternatives within alternatives, and references to references; what is deeper is left out."""
_REFUSED = frozenset({"$schema", "$ref", "anyOf", "oneOf", "allOf", "not", "enum", "const"})
"""Members of the top that one provider or the other refuses, and with them every request that offers the tool."""


def plain(given: Mapping[str, Any]) -> dict[str, Any]:
    """The schema, with what stands in alternatives or behind a reference at its top as properties of its own.

    It may allow more than the server does, which checks what it is sent. A member that alternatives have in several
    shapes may have each of them; required is what all of them require. Raises Unusable if there is too much in it.
    """
    given = sifted(given)
    properties, required = _members(given, given, DEEPEST)
    kept = {name: value for name, value in given.items() if name not in _REFUSED}
    found: dict[str, Any] = {**kept, "type": "object", "properties": properties}
    found.pop("required", None)
    if required:
        found["required"] = sorted(required)
    measure(found)
    return found


def _members(part: Any, whole: Mapping[str, Any], depth: int) -> tuple[dict[str, Any], set[str]]:
    """Properties, and the names of those that are required."""
    if not isinstance(part, dict) or not depth:
        return {}, set()
    own = part.get("properties")
    properties: dict[str, Any] = dict(own) if isinstance(own, dict) else {}
    required = {name for name in _list(part, "required") if isinstance(name, str)}
    further = [_members(each, whole, depth - 1) for each in (target_of(part.get("$ref"), whole), *_list(part, "allOf"))]
    for more, needed in further:
        properties = more | properties
        required |= needed
    for word in ("anyOf", "oneOf"):
        branches = [_members(each, whole, depth - 1) for each in _list(part, word)]
        if branches:
            properties = _either([names for names, _ in branches]) | properties
            required |= set.intersection(*(needed for _, needed in branches))
    return properties, required & set(properties)


def _either(branches: list[dict[str, Any]]) -> dict[str, Any]:
    """Each property of any of them; of different ones with one name it may be each."""
    found: dict[str, Any] = {}
    for name in dict.fromkeys(name for branch in branches for name in branch):
        different: list[Any] = []
        for branch in branches:
            if name in branch and branch[name] not in different:
                different.append(branch[name])
        found[name] = different[0] if len(different) == 1 else {"anyOf": different}
    return found


def _list(part: Mapping[str, Any], name: str) -> Iterator[Any]:
    found = part.get(name)
    return iter(found if isinstance(found, list) else ())
