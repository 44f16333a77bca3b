"""Values that nobody may see: those of a server's environment, of its headers, and of secrets in its URL."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from urllib.parse import parse_qsl, unquote, urlsplit

from acpd.config import HIDDEN
from acpd.native.spellings import spellings
from acpd.redaction import masked

SECRET_NAME = re.compile(r"key|token|secret|passw|passphrase|credential|auth|cookie", re.IGNORECASE)
SHORTEST = 4
"""Characters: to hide shorter values would hide parts of ordinary words."""
SHORTEST_SECRET = 8
"""Characters of a value that is hidden in results too, where a wrong hit does harm."""


class Secrets:
    """What has to be hidden of one server. Its own texts are never shown by `repr`."""

    def __init__(self, env: Mapping[str, str], headers: Iterable[tuple[str, str]], url: str) -> None:
        parts = urlsplit(url)
        credentials = [unquote(value) for value in (parts.username, parts.password) if value]
        given = [*env.items(), *headers, *parse_qsl(parts.query)]
        secret = [*credentials, *(value for name, value in given if SECRET_NAME.search(name))]
        self._all = _pattern([*credentials, *(value for _, value in given)], SHORTEST)
        self._secret = _pattern(secret, SHORTEST_SECRET)

    def shown(self, text: str) -> str:
        """A text about the server, e.g. an error or its stderr, with no value in it."""
        return masked(self._all.sub(HIDDEN, text) if self._all else text)

    def told(self, text: str) -> str:
        """A text that is a result: only values that are secrets by their name are hidden, so that paths and words stay."""
        return self._secret.sub(HIDDEN, text) if self._secret else text


def _pattern(values: Iterable[str], shortest: int) -> re.Pattern[str] | None:
    """Every spelling of every value, the longest first."""
    wanted = {spelling for value in values for part in _parts(value, shortest) for spelling in spellings(part)}
    return re.compile("|".join(map(re.escape, sorted(wanted, key=len, reverse=True)))) if wanted else None


def _parts(value: str, shortest: int) -> set[str]:
    """The value, its lines, and the words of "Bearer xyz"."""
    return {part for part in (value.strip(), *value.splitlines(), *value.split()) if len(part) >= shortest} - {
        "Bearer",
        "Basic",
    }
