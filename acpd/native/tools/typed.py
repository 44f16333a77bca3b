"""Tools whose arguments are a Struct: one source for the schema that a model sees and for the check of what it sends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec
from msgspec import Struct

from acpd.native.toolbox import Tool, ToolFailed
from acpd.native.tools.places import Place, place
from acpd.recall.tools import schema

if TYPE_CHECKING:
    from acpd.api.session import Session

_PLACE = "\0place"
"""No argument of a model has this name."""
Arguments = TypeVar("Arguments", bound=Struct)


class Typed(Tool, Generic[Arguments]):
    """`arguments`: a Struct with `forbid_unknown_fields`, each member with a description."""

    arguments: type[Struct]

    def __init__(self) -> None:
        self.schema = schema(self.arguments)

    def check(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Numbers and booleans may be written as strings, as some models do. Raises ToolFailed, which names the argument."""
        try:
            msgspec.convert(arguments, type=self.arguments, strict=False)
        except msgspec.ValidationError as error:
            raise ToolFailed(f"{self.name}: {error}. Its arguments: {_told(self.schema)}. Call it again.") from None
        return arguments

    def said(self, arguments: Mapping[str, Any]) -> Arguments:
        """What `check` has passed."""
        plain = {name: value for name, value in arguments.items() if name != _PLACE}
        return msgspec.convert(plain, type=self.arguments, strict=False)  # type: ignore[return-value] # pyright: ignore[reportReturnType]


class Placed(Typed[Arguments]):
    """Typed, with the argument `path`. What is asked for is where it leads then; a change fails if it leads elsewhere later."""

    def settled(self, session: Session, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**arguments, _PLACE: place(session, arguments.get("path", "."))}

    def place(self, arguments: Mapping[str, Any]) -> Place:
        found: Place = arguments[_PLACE]
        return found


def _told(schema: Mapping[str, Any]) -> str:
    """The arguments in few words: `path (string, required), line (integer)`."""
    required = schema.get("required", ())
    told: list[str] = []
    for name, value in schema["properties"].items():
        kind = _kind(value)
        told.append(f"{name} ({kind}, required)" if name in required else f"{name} ({kind})")
    return ", ".join(told)


def _kind(value: Mapping[str, Any]) -> str:
    """What a member may be: `string`, `a | b`, `array of objects with: ...`."""
    if "enum" in value:
        return " | ".join(map(str, value["enum"]))
    if "properties" in value:
        return f"objects with: {_told(value)}"
    if "items" in value:
        return f"array of {_kind(value['items'])}"
    kinds = [value["type"]] if "type" in value else [each["type"] for each in value.get("anyOf", ()) if "type" in each]
    return " or ".join(kind for kind in kinds if kind != "null")
