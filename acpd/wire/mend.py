"""Repair JSON text after a shape: what ACP calls default-on-error and skip-invalid-items.

A shape is the annotation of a value: `str`, a Struct, a tagged union of Structs, a list of these. It holds for every
Struct that is used as a shape (ACP v1 schema, `x-deserialize-*`):

- a malformed optional member counts as absent and is left out;
- a malformed item of a list is left out; a malformed list that is required becomes `[]`;
- a missing or malformed member that is required makes the whole value malformed.

`Annotated[..., STRICT]` takes a member out of the first two rules, `Annotated[..., Or(shape)]` allows a second shape where
msgspec cannot tell the two apart. All bytes that are not at fault stay as they were written.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from types import UnionType
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin

import msgspec
from msgspec import Struct

from acpd.wire import splice

FAULTS = (msgspec.DecodeError, RecursionError)
"""What a decoder raises for text that has not its shape; RecursionError: nested too deeply to look into."""


class Or(NamedTuple):
    """A second shape that is as good."""

    shape: Any


STRICT = "strict"


def mend(shape: Any, raw: bytes, notes: list[str], path: str = "") -> bytes | None:
    """`raw` itself where it has this shape, else the repaired text, or None if it cannot be repaired.

    `raw` must be valid JSON. `notes` gets the path of what was left out, e.g. `content[2].annotations`; never a value.
    """
    if fits(shape, raw):
        return raw
    for arm, strict in _arms(shape):
        found: list[str] = []
        mended = _mend_arm(arm, raw, found, path, strict=strict)
        if mended is not None:
            notes += found
            return mended
    return None


def fits(shape: Any, raw: bytes) -> bool:
    """Whether this text has exactly this shape, as far as msgspec decides it."""
    try:
        value = decoder(shape).decode(raw)
    except FAULTS:
        return False
    return type(value) is not int or value < 2**64  # no integer of the protocol is longer; msgspec cannot say so


def blame(shape: Any, raw: bytes, path: str) -> str:
    """Which member makes this text unfit for repair, e.g. `content.text is missing`; never a value."""
    arms = [arm for arm, _ in _arms(shape) if isinstance(arm, type) and issubclass(arm, Struct)]
    try:
        found = splice.members(raw) if arms else {}
    except FAULTS:
        return f"{path} must be an object"
    for arm in arms:
        if not _tagged(arm, raw, found):
            continue
        for part in _parts(arm):
            where = f"{path}.{part.name}" if path else part.name
            if part.name not in found:
                if part.required:
                    return f"{where} is missing"
                continue
            value = raw[slice(*found[part.name])]
            if part.otherwise is None and mend(part.shape, value, []) is None:
                return blame(part.shape, value, where)
        return f"{path} is malformed"
    field = arms[0].__struct_config__.tag_field if arms else None
    if field is None:
        return f"{path} is malformed"
    where = f"{path}.{field}" if path else field
    return f"{where} is not a known one" if field in found else f"{where} is missing"


@functools.lru_cache(maxsize=512)
def decoder(shape: Any) -> msgspec.json.Decoder[Any]:
    """Made when it is first needed: msgspec evaluates the annotations then, which takes up to milliseconds."""
    return msgspec.json.Decoder(shape)


def _arms(shape: Any, *, strict: bool = False) -> Iterator[tuple[Any, bool]]:
    """The Structs and lists that this shape may be, and whether they are exempt from repair."""
    origin = get_origin(shape)
    if origin is Annotated:
        inner, *marks = get_args(shape)
        strict = strict or STRICT in marks
        yield from _arms(inner, strict=strict)
        for mark in marks:
            if isinstance(mark, Or):
                yield from _arms(mark.shape, strict=strict)
    elif origin is Union or origin is UnionType:
        for arm in get_args(shape):
            yield from _arms(arm, strict=strict)
    elif origin is list or (isinstance(shape, type) and issubclass(shape, Struct)):
        yield shape, strict


def _mend_arm(arm: Any, raw: bytes, notes: list[str], path: str, *, strict: bool) -> bytes | None:
    try:
        if get_origin(arm) is list:
            return _mend_items(get_args(arm)[0], raw, notes, path, strict=strict)
        return _mend_members(arm, raw, notes, path)
    except FAULTS:
        return None


def _mend_items(shape: Any, raw: bytes, notes: list[str], path: str, *, strict: bool) -> bytes | None:
    spans = splice.items(raw)
    edits: list[splice.Edit] = []
    gone: set[int] = set()
    for index, (start, end) in enumerate(spans):
        value = raw[start:end]
        mended = mend(shape, value, notes, f"{path}[{index}]")
        if mended is None:
            if strict:
                return None
            gone.add(index)
            notes.append(f"{path}[{index}]")
        elif mended is not value:
            edits.append((start, end, mended))
    return splice.apply(raw, edits + splice.cuts(spans, gone)) if edits or gone else raw


def _mend_members(shape: type[Struct], raw: bytes, notes: list[str], path: str) -> bytes | None:
    found = splice.entries(raw)
    place = {member.name: index for index, member in enumerate(found)}
    if not _tagged(shape, raw, {member.name: (member.start, member.end) for member in found}):
        return None
    edits: list[splice.Edit] = []
    gone = {index for index, member in enumerate(found) if place[member.name] != index}  # the last of a name counts
    for part in _parts(shape):
        if part.name not in place:
            if part.required:
                return None
            continue
        member = found[place[part.name]]
        value = raw[member.start : member.end]
        where = f"{path}.{part.name}" if path else part.name
        mended = mend(part.shape, value, notes, where)
        if mended is None:
            notes.append(where)
            if part.otherwise is None:
                return None
            mended = part.otherwise
        if not mended:
            gone.add(place[part.name])
        elif mended is not value:
            edits.append((member.start, member.end, mended))
    text = (
        splice.apply(raw, edits + splice.cuts([(member.key, member.end) for member in found], gone)) if edits or gone else raw
    )
    return text if _whole(shape, text) else None


def _tagged(shape: type[Struct], raw: bytes, spans: dict[str, tuple[int, int]]) -> bool:
    """Whether the object says that it is of this shape, if objects of this shape have to."""
    config = shape.__struct_config__
    if config.tag_field is None:
        return True
    span = spans.get(config.tag_field)
    return span is not None and decoder(Any).decode(raw[slice(*span)]) == config.tag


def _whole(shape: type[Struct], text: bytes) -> bool:
    """Whether the rules that span several members hold."""
    return not hasattr(shape, "__post_init__") or fits(shape, text)


class _Part(NamedTuple):
    """One member of a Struct. `otherwise`: what stands for a malformed value; empty: nothing; None: there is no repair."""

    name: str
    shape: Any
    required: bool
    otherwise: bytes | None


@functools.lru_cache(maxsize=128)
def _parts(shape: type[Struct]) -> tuple[_Part, ...]:
    parts = []
    for field in msgspec.structs.fields(shape):
        if STRICT in _marks(field.type):
            otherwise = None
        elif field.required:
            otherwise = b"[]" if any(get_origin(arm) is list for arm, _ in _arms(field.type)) else None
        else:
            otherwise = b""
        parts.append(_Part(field.encode_name, field.type, field.required, otherwise))
    return tuple(parts)


def _marks(shape: Any) -> list[Any]:
    if get_origin(shape) is Annotated:
        return list(get_args(shape)[1:])
    return [mark for arm in get_args(shape) for mark in _marks(arm)] if get_origin(shape) in (Union, UnionType) else []
