"""Secrets out of what is logged: values that are named like one, and texts that look like one.

It is a net below the rule that environments, headers and MCP `env` are not logged at all: agents and their libraries
write what they like to stderr, and their errors come back as texts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from acpd.config import HIDDEN

if TYPE_CHECKING:
    from structlog.typing import EventDict

LIMIT = 8_000
"""Characters of a value; the rest is cut off before anything is looked for."""
_ALL_HIDDEN = {"env", "environ", "environment", "headers"}
_NAME_OF_VALUE = re.compile(
    r"(?:^|[-_.])(?:secret|token|passw(?:or)?d|passphrase|credentials?|cookie|authorization)$|(?:api|access|auth|private)[-_]?key",
    re.IGNORECASE,
)
_NAME_IN_TEXT = re.compile(r"key|token|secret|passw(?:or)?d|passphrase|credential", re.IGNORECASE)
# Possessive, and begun where a word begins: linear in any text.
_HEADER = re.compile(
    r"""\b((?:proxy-)?authorization|(?:set-)?cookie|x-api-key)(['"]?\s*[:=]\s*['"]?)(?!\s)[^"'\n]++""", re.IGNORECASE
)
_BEARER = re.compile(r"\b(bearer|basic)\s+(?=\S*[\d=_-])[\w.~+/-]{8,}+=*", re.IGNORECASE)
_ASSIGNED = re.compile(r"""(?<![\w.-])([\w.-]++)(['"]?(?:=|:\s*(?=['"]))['"]?)([^\s'",;&]++)""")
_FLAG = re.compile(r"""(?<!\S)(--?[\w-]++)(\s++)(?!-)([^\s'",;]++)""")
_URL = re.compile(r"(?<=://)([^\s/@:]*+:)[^\s/@]++(?=@)")
_KNOWN = re.compile(
    r"(?<![\w-])(?:[spr]k-[\w-]{8,}+|gh[pousr]_\w{16,}+|github_pat_\w{16,}+|glpat-[\w-]{16,}+|xox[a-z]-[\w-]{8,}+"
    r"|A[KS]IA[0-9A-Z]{16}|AIza[\w-]{30,}+|eyJ[\w-]{8,}+\.[\w-]++(?:\.[\w-]*+)?)"
)


def masked(text: str, limit: int = LIMIT) -> str:
    """The text, at most `limit` characters of it, with HIDDEN in the place of what looks like a secret."""
    text = text if len(text) <= limit else f"{text[:limit]}..."
    text = _HEADER.sub(rf"\1\2{HIDDEN}", text)
    text = _BEARER.sub(rf"\1 {HIDDEN}", text)
    text = _ASSIGNED.sub(_hide_named, text)
    text = _FLAG.sub(_hide_named, text)
    text = _URL.sub(rf"\1{HIDDEN}", text)
    return _KNOWN.sub(HIDDEN, text)


def _hide_named(match: re.Match[str]) -> str:
    """Of name, separator and value the value, if the name is that of a secret."""
    return f"{match[1]}{match[2]}{HIDDEN}" if _NAME_IN_TEXT.search(match[1]) else match[0]


def redacted(_: Any, _name: str, event: EventDict) -> EventDict:
    """For structlog: every value, whatever is in it."""
    return {key: _value(key, value) for key, value in event.items()}


def _value(key: str, value: object) -> object:
    if value is None or isinstance(value, bool | int | float):
        return value
    if _NAME_OF_VALUE.search(key):
        return HIDDEN
    if isinstance(value, Mapping):
        if key in _ALL_HIDDEN:
            return dict.fromkeys(map(str, value), HIDDEN)
        return {str(name): _value(str(name), inner) for name, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return HIDDEN if key in _ALL_HIDDEN else [_value(key, inner) for inner in value]
    return masked(value if isinstance(value, str) else str(value))
