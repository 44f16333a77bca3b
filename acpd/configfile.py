"""A TOML file that is read: its tables, on which line a key stands, and what is said about a value that is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from acpd.errors import ConfigError

Seconds = Annotated[float, Meta(gt=0, le=86_400)]
NO_NUL = r"\A[^\0]*\Z"  # the system ends every path, argument and variable there


class Source:
    """A file that is being read; it finds the line of a key when that is asked for."""

    def __init__(self, path: str, text: str) -> None:
        self.path = path
        self._lines = text.split("\n")

    def at(self, section: str, key: str = "") -> str:
        """`FILE line N` of a key, or of a section's head; only `FILE` where neither stands alone on a line."""
        head = ""
        for number, line in enumerate(self._lines, 1):
            bare = line.split("#", 1)[0].strip().replace('"', "").replace(" ", "")
            if bare.startswith("["):
                head = bare.strip("[]")
                found = head == (f"{section}.{key}" if key else section)
            else:
                found = bool(key) and head == section and bare.split("=", 1)[0] == key
            if found:
                return f"{self.path} line {number}"
        return self.path


def parse(path: str) -> tuple[dict[str, Any], Source]:
    """Raises ConfigError, which names the file and what is wrong with it."""
    import tomllib

    try:
        with open(path, "rb") as file:
            text = file.read().decode()
        return tomllib.loads(text), Source(path, text)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 at byte {error.start}") from None
    except ValueError as error:  # also Python's own, for a number of thousands of digits
        raise ConfigError(f"{path} is not TOML: {error}") from None
    except RecursionError:
        raise ConfigError(f"{path} is not TOML: nested too deeply") from None


def converted(
    into: type[Struct],
    name: str,
    value: object,
    where: str,
    wanted: str,
    *,
    strict: bool,
    shown: bool = True,
    beside: Mapping[str, object] | None = None,
) -> Any:
    """`value` as that field of the Struct has it. `shown`: whether the error may show it; `beside`: what the Struct requires.

    Raises ConfigError: `where`, the value, and what is `wanted`.
    """
    wrapped = {**(beside or {}), name: value}
    try:
        return getattr(msgspec.convert(wrapped, into, strict=strict), name)
    except msgspec.ValidationError:
        what = f"is {value!r}, must be" if shown and isinstance(value, str | int | float) else "must be"
        raise ConfigError(f"{where} {what} {wanted}") from None


def meant(word: str, known: list[str], otherwise: str = "") -> str:
    import difflib

    close = difflib.get_close_matches(word, known, 1)
    return f"did you mean {close[0]}?" if close else otherwise or f"known: {listed(known)}"


def listed(names: Mapping[str, object] | list[str]) -> str:
    return ", ".join(names)
