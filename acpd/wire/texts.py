r"""Texts of others as lines. A line ends at `\n` and nowhere else; what could look like an end besides is a space."""

from __future__ import annotations

import re

_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_ENDS = re.compile(r"[\r\v\f\x1c-\x1e\x85\u2028\u2029]")


def plain_lines(text: str) -> list[str]:
    """As editors count them: none of an empty text, and none behind the last end."""
    return [_ENDS.sub(" ", line.removesuffix("\r")) for line in text.removesuffix("\n").split("\n")] if text else []


def flat(text: str, limit: int) -> str:
    """On one line, white space joined, without control characters; at most `limit` characters."""
    return _CONTROLS.sub("", " ".join(text[: 8 * limit].split()))[:limit]
