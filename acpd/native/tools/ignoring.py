"""What the lines of a .gitignore exclude (gitignore): one entry of a folder at a time, as git itself asks.

Our own and not a library's: pathspec takes a line about a folder to be also about all that is in it, so that `!/src` takes back
what `/src/deep/` excludes; git does not. And its patterns are regular expressions of `re`, for which one line of a stranger's
.gitignore can take for ever. A test compares this with git. git itself would be a process for each search, and the repository's
configuration can tell it to start others.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

SLOW = 0.1
"""Seconds of the processor that one line may take for one name; what takes longer excludes nothing."""
_LONGEST = 500
_PARTS = re.compile(r"\*\*|\*|\?|\[[!^]?\]?(?:\[:\w+:\]|\\.|[^\]\\])*\]|\[|\\.|.", re.DOTALL)
_WILD = re.compile(r"[*?\[\\]")


class Rule(NamedTuple):
    """A line. `matches` gets the path below the file's folder, or its last name if the line is about names."""

    excludes: bool
    folders_only: bool
    by_name: bool
    matches: Callable[[str], bool]


class Rules(NamedTuple):
    """The lines of one file; the last that says something about an entry decides."""

    folder: str
    rules: tuple[Rule, ...]

    def verdict(self, below: str, *, is_folder: bool) -> bool | None:
        """Whether they exclude what is there; None: no line is about it."""
        name = below.rpartition("/")[2]
        for rule in reversed(self.rules):
            if (is_folder or not rule.folders_only) and rule.matches(name if rule.by_name else below):
                return rule.excludes
        return None


def parsed(folder: str, text: str) -> Rules:
    found = (_rule(line) for line in text.removeprefix("\ufeff").split("\n"))
    return Rules(folder, tuple(rule for rule in found if rule is not None))


def _rule(line: str) -> Rule | None:
    line = _without_blanks(line.removesuffix("\r"))
    if not line or line.startswith("#") or len(line) > _LONGEST:
        return None
    excludes = not line.startswith("!")
    pattern = line if excludes else line[1:]
    folders_only = pattern.endswith("/")
    pattern = pattern.removesuffix("/")
    if not pattern:
        return None
    by_name = "/" not in pattern
    matches = _matcher(pattern.removeprefix("/"))
    return Rule(excludes, folders_only, by_name, matches)


def _without_blanks(line: str) -> str:
    """Blanks at the end do not count, but for one behind a backslash."""
    bare = line.rstrip(" ")
    slashes = len(bare) - len(bare.rstrip("\\"))
    return bare + " " if bare != line and slashes % 2 else bare


def _matcher(pattern: str) -> Callable[[str], bool]:
    if not _WILD.search(pattern):
        return pattern.__eq__
    import regex  # 15 ms, only where it is needed

    try:
        compiled = regex.compile(_translated(pattern))
    except regex.error:
        return lambda _: False

    def matches(path: str) -> bool:
        try:
            return compiled.fullmatch(path, timeout=SLOW) is not None
        except TimeoutError:
            return False

    return matches


def _translated(pattern: str) -> str:
    """`**` is any folders where it is a whole name, else as `*`."""
    start = end = ""
    while pattern.startswith("**/"):
        start, pattern = "(?:.*/)?", pattern[3:]
    while pattern.endswith("/**"):
        end, pattern = "/.+", pattern[:-3]
    if pattern == "**":
        return f"(?s).+{end}"
    inner = (_name(part) for part in pattern.split("/**/"))
    return f"(?s){start}{'/(?:.*/)?'.join(inner)}{end}"


def _name(part: str) -> str:
    return "".join(map(_piece, _PARTS.findall(part)))


def _piece(piece: str) -> str:
    if piece in {"*", "**"}:
        return "[^/]*"
    if piece == "?":
        return "[^/]"
    if piece == "[":  # without an end: git takes the line for nothing
        return "(?!)"
    if piece.startswith("["):
        inner = piece[1:-1]
        negated = inner[:1] in {"!", "^"}
        inner = re.sub(r"(?<!\\)\[(?!:)", r"\\[", inner[1:] if negated else inner)
        if inner.startswith("]"):
            inner = "\\" + inner
        return f"(?!/)[{'^' if negated else ''}{inner}]"
    return re.escape(piece[1:] if piece.startswith("\\") and len(piece) == 2 else piece)
