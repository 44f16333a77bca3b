"""Patterns that a model writes: regular expressions and globs, matched within a time.

By the package `regex` and not by `re`: a pattern like (a+)+$ takes `re` for ever, and with the interpreter's lock held, so that
the whole agent stands still. `regex` understands the same patterns, ends after a time and lets other threads run meanwhile.
"""

from __future__ import annotations

import re
from typing import Any

from acpd.native.toolbox import ToolFailed
from acpd.native.tools.walk import Budget

LONGEST = 1000
SLOW = 2.0
"""Seconds of the processor that one text may take: a search that was cancelled runs for so long at most."""
_LOOKS_ROUND = re.compile(r"\(\?|\\[AZzGKR]|[*+?}]\+")
"""What can make a pattern match a line and yet not the text that the line is in."""
_PARTS = re.compile(r"\*\*/|\*\*|\*|\?|\[!?\]?[^\]/]*\]|\{|\}|,|\\.|.", re.DOTALL)


class Pattern:
    """Compiled, with a budget for all that it is asked. What it cannot decide in time counts as no match."""

    def __init__(self, pattern: str, budget: Budget, *, ignore_case: bool = False) -> None:
        import regex

        if len(pattern) > LONGEST:
            raise ToolFailed(f"The pattern has more than {LONGEST} characters.")
        try:
            self._pattern = regex.compile(pattern, regex.MULTILINE | (regex.IGNORECASE if ignore_case else 0))
        except (regex.error, RecursionError, OverflowError) as error:
            raise ToolFailed(
                f"The pattern is no regular expression: {error}. Put a \\ before what is meant as it is."
            ) from None
        self._budget = budget
        self.by_text = not _LOOKS_ROUND.search(pattern)
        """Whether a text in which nothing is found has no line in which something would be."""

    def found(self, text: str) -> bool:
        return self._asked(self._pattern.search, text)

    def whole(self, text: str) -> bool:
        return self._asked(self._pattern.fullmatch, text)

    def _asked(self, question: Any, text: str) -> bool:
        left = self._budget.left
        if not left:
            return False
        try:
            return question(text, timeout=min(left, SLOW), concurrent=True) is not None
        except TimeoutError:
            self._budget.why = "the pattern takes too long: write a simpler one"
            return False


class Glob:
    """`*` and `?` stay within a name, `**` does not, `{a,b}` is either. Without a / it is about the name, in any folder."""

    def __init__(self, glob: str, budget: Budget) -> None:
        glob = glob.removeprefix("./")
        self._by_name = "/" not in glob
        self._pattern = Pattern("".join(_translated(glob)), budget)

    def matches(self, below: str) -> bool:
        return self._pattern.whole(below.rpartition("/")[2] if self._by_name else below)


def _translated(glob: str) -> list[str]:
    depth = 0
    found: list[str] = []
    for part in _PARTS.findall(glob):
        if part == "{":
            depth += 1
        elif part == "}" and depth:
            depth -= 1
        found.append(_part(part, within=depth > 0 or part == "}"))
    return found if not depth else [re.escape(glob)]


def _part(part: str, *, within: bool) -> str:
    plain = {"**/": "(?:[^/]+/)*", "**": "(?s:.*)", "*": "[^/]*", "?": "[^/]"}
    if part in plain:
        return plain[part]
    if within and part in "{,}":
        return {"{": "(?:", ",": "|", "}": ")"}[part]
    if part.startswith("[") and len(part) > 2:
        return "[" + ("^/" if part[1] == "!" else "") + re.escape(part[1:-1].removeprefix("!")).replace(r"\-", "-") + "]"
    return re.escape(part[1:] if part.startswith("\\") and len(part) == 2 else part)
