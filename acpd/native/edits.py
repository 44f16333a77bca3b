"""Lines of a TOML file are set and taken away; every other byte of it stays as it is."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from acpd.errors import ConfigError


def changed(text: str, section: str, values: Mapping[str, str | None], file: str) -> str:
    """The text with these members in this table ("": those before the first table); None takes one away. Values are short
    and have no control characters.

    The result is parsed and compared before it is returned. Raises ConfigError, which names `file`: it is no TOML, or written
    in a way that cannot be changed by lines; the hint then says what to write by hand.
    """
    wanted = "".join(f"{name} = {_quoted(value)}\n" for name, value in values.items() if value is not None)
    before = _parsed(text, file)
    result = "\n".join(_edited(text.split("\n"), section, values))
    if _parsed(result, file, wanted, section) != _expected(before, section, values):
        raise _by_hand(file, wanted, section)
    return result


def _edited(lines: list[str], section: str, values: Mapping[str, str | None]) -> list[str]:
    start, end = _table(lines, section)
    if start is None:
        while lines and not lines[-1].strip():
            lines = lines[:-1]
        return [*lines, *([""] if lines else []), f"[{section}]", *_new(values), ""]
    body, left = [], dict(values)
    for line in lines[start:end]:
        name = _name(line)
        if name not in values:
            body.append(line)
        elif (value := left.pop(name)) is not None:
            body.append(f"{name} = {_quoted(value)}{_comment(line)}")
    at = len(body)
    while at and not body[at - 1].strip():
        at -= 1
    body[at:at] = _new(left)
    return [*lines[:start], *body, *lines[end:]]


def _table(lines: list[str], section: str) -> tuple[int | None, int]:
    """From where to where the members of a table stand; None: it has no head."""
    heads = [number for number, line in enumerate(lines) if line.lstrip().startswith("[")]
    if not section:
        return 0, heads[0] if heads else len(lines)
    for number in heads:
        bare = lines[number].split("#", 1)[0].replace(" ", "").replace("\t", "").replace('"', "").rstrip("\r")
        if bare == f"[{section}]":
            return number + 1, next((head for head in heads if head > number), len(lines))
    return None, 0


def _name(line: str) -> str:
    """The bare key that a line sets, or ""."""
    match = re.match(r'\s*"?([A-Za-z0-9_-]+)"?\s*=', line)
    return match[1] if match else ""


def _comment(line: str) -> str:
    """What stands behind a value on one line, if that is plain."""
    match = re.fullmatch(r"[^=]*=\s*(?:\"[^\"\\]*\"|[^\"'#\[{]*?)(\s*#.*)?", line)
    return match[1] or "" if match else ""


def _new(values: Mapping[str, str | None]) -> list[str]:
    return [f"{name} = {_quoted(value)}" for name, value in values.items() if value is not None]


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _parsed(text: str, file: str, wanted: str = "", section: str = "") -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError):
        if section:
            raise _by_hand(file, wanted, section) from None
        raise ConfigError(
            f"{file} is not TOML: nothing was changed", hint="correct it first: 'acpd config' says where"
        ) from None


def _expected(before: dict[str, Any], section: str, values: Mapping[str, str | None]) -> dict[str, Any]:
    """`before` with the change, without sharing a changed table with it."""
    result = table = dict(before)
    for name in section.split(".") if section else ():
        inner = table.get(name, {})
        table[name] = dict(inner) if isinstance(inner, dict) else {}
        table = table[name]
    for name, value in values.items():
        if value is None:
            table.pop(name, None)
        else:
            table[name] = value
    return result


def _by_hand(file: str, wanted: str, section: str) -> ConfigError:
    lines = "; ".join(wanted.split("\n")[:-1]) if section else "the key"
    where = f"[{section}]" if section else "its top"
    return ConfigError(
        f"{file} is written in a way that cannot be changed here", hint=f"write it into {where} yourself: {lines}"
    )
