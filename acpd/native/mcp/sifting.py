"""What of a schema every provider can read: one part that it cannot costs every request that offers the tool.

What is broken is left out, so that more may be allowed than the server takes; it checks what it is sent. A reference stays
where it names a definition, any other is put in; one that leads nowhere is left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import unquote

DEEPEST = 24
"""Schemas within schemas; what is deeper may be anything."""
VALUES = 20_000
"""Of a schema, its references followed."""
TEXT = 4_000
"""Characters of a description."""
_TYPES = {"string", "number", "integer", "boolean", "object", "array", "null"}
_ONE = ("items", "additionalProperties", "propertyNames", "contains", "not", "if", "then", "else", "unevaluatedProperties")
_MANY = ("allOf", "anyOf", "oneOf", "prefixItems")
_NAMED = ("properties", "patternProperties", "dependentSchemas")
_DEFINITIONS = ("#/$defs/", "#/definitions/")
_GONE = object()


class Unusable(Exception):
    """There is too much in a schema."""


def _any(_: Any) -> bool:
    """A member that nobody knows is let through."""
    return True


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _count(value: Any) -> bool:
    return _number(value) and value == int(value) and value >= 0


def _words(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _type(value: Any) -> bool:
    words = value if isinstance(value, list) else [value]
    return _words(words) and bool(words) and len(set(words)) == len(words) and set(words) <= _TYPES


_CHECKS: dict[str, Callable[[Any], bool]] = {
    "type": _type,
    "enum": lambda value: isinstance(value, list) and bool(value),
    "required": _words,
    "examples": lambda value: isinstance(value, list),
    "multipleOf": lambda value: _number(value) and value > 0,
    "dependentRequired": lambda value: isinstance(value, dict) and all(map(_words, value.values())),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _number),
    **dict.fromkeys(("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"), _count),
    **dict.fromkeys(("minContains", "maxContains"), _count),
    **dict.fromkeys(("title", "description", "format", "pattern"), lambda value: isinstance(value, str)),
    **dict.fromkeys(("contentEncoding", "contentMediaType"), lambda value: isinstance(value, str)),
    **dict.fromkeys(("uniqueItems", "deprecated", "readOnly", "writeOnly"), lambda value: isinstance(value, bool)),
}


def sifted(given: Mapping[str, Any]) -> dict[str, Any]:
    """The schema without what is broken in it, however deep. Raises Unusable."""
    measure(given, text=False)
    return _Sieve(given).schema(given, ())


class _Sieve:
    """`whole`: where references lead."""

    def __init__(self, whole: Mapping[str, Any]) -> None:
        self._whole = whole

    def schema(self, part: Any, path: tuple[str, ...]) -> dict[str, Any]:
        """`path`: a name for each schema around it, or the reference by which it was reached."""
        if not isinstance(part, dict) or len(path) > DEEPEST:
            return {}
        made: dict[str, Any] = {}
        for name, value in part.items():
            if name == "$ref":
                made = self._reference(value, path) | made
            elif name in {"$defs", "definitions"}:
                made["$defs"] = made.get("$defs", {}) | self._named(value, (*path, name))
            elif (kept := self._member(name, value, path)) is not _GONE:
                made[name] = kept
        if isinstance(made.get("properties"), dict) and "required" in made:
            made["required"] = [name for name in dict.fromkeys(made["required"]) if name in made["properties"]]
        return made

    def _member(self, name: str, value: Any, path: tuple[str, ...]) -> Any:
        """_GONE: it is left out."""
        deeper = (*path, name)
        if name == "items" and isinstance(value, list):  # as older drafts have it
            members = self._schemas(value, deeper)
            return {"anyOf": members} if members else _GONE
        if name in _ONE:
            return self.schema(value, deeper) if isinstance(value, dict) else value if isinstance(value, bool) else _GONE
        if name in _MANY:
            return self._schemas(value, deeper) or _GONE
        if name in _NAMED:
            return self._named(value, deeper) if isinstance(value, dict) else _GONE
        if name.startswith("$") or not _plain(value) or not _CHECKS.get(name, _any)(value):
            return _GONE
        return value[:TEXT] if name == "description" else value

    def _schemas(self, value: Any, path: tuple[str, ...]) -> list[dict[str, Any]]:
        members = value if isinstance(value, list) else ()
        return [self.schema(each, path) for each in members if isinstance(each, dict) or each is True]

    def _named(self, value: Any, path: tuple[str, ...]) -> dict[str, Any]:
        members = value if isinstance(value, dict) else {}
        return {name: self.schema(each, path) for name, each in members.items() if each is not False}

    def _reference(self, reference: Any, path: tuple[str, ...]) -> dict[str, Any]:
        if not isinstance(reference, str) or reference in path:
            return {}
        target = target_of(reference, self._whole)
        if not isinstance(target, dict):
            return {}
        name = next((reference[len(each) :] for each in _DEFINITIONS if reference.startswith(each)), "")
        if name and "/" not in name and not self._circles(reference):
            return {"$ref": f"#/$defs/{name}"}
        return self.schema(target, (*path, reference))

    def _circles(self, reference: str) -> bool:
        """Whether it leads from reference to reference for ever."""
        seen: set[str] = set()
        target: Any = {"$ref": reference}
        while isinstance(target, dict) and isinstance(following := target.get("$ref"), str):
            if following in seen:
                return True
            seen.add(following)
            target = target_of(following, self._whole)
        return False


def _plain(value: Any, depth: int = DEEPEST) -> bool:
    """Whether it can be written as JSON, and is not too deep."""
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict | list):
        return depth > 0 and all(_plain(each, depth - 1) for each in (value.values() if isinstance(value, dict) else value))
    return True


def target_of(reference: Any, whole: Mapping[str, Any]) -> Any:
    """What `#/$defs/Name` stands for; None where it is no reference, or none that can be followed."""
    if not isinstance(reference, str) or (reference != "#" and not reference.startswith("#/")):
        return None
    found: Any = whole
    for step in reference.split("/")[1:]:
        name = unquote(step).replace("~1", "/").replace("~0", "~")
        if isinstance(found, list):
            found = found[int(name)] if name.isascii() and name.isdigit() and int(name) < len(found) else None
        else:
            found = found.get(name) if isinstance(found, dict) else None
    return found


def measure(whole: Mapping[str, Any], *, text: bool = True) -> None:
    """As providers count that put definitions in the place of references. `text`: long ones count for more. Raises Unusable."""
    left = VALUES
    stack: list[tuple[Any, tuple[str, ...]]] = [(whole, ())]
    while stack:
        part, followed = stack.pop()
        left -= 1 + (len(part) // 100 if text and isinstance(part, str) else 0)
        if left < 0:
            raise Unusable
        stack.extend((each, followed) for each in _values(part))
        reference = part.get("$ref") if isinstance(part, dict) else None
        if isinstance(reference, str) and reference not in followed and len(followed) < DEEPEST:
            stack.append((target_of(reference, whole), (*followed, reference)))


def _values(part: Any) -> Iterator[Any]:
    if isinstance(part, dict):
        return iter(part.values())
    return iter(part if isinstance(part, list) else ())
