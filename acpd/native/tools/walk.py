"""All files below a folder, as git sees them: what .gitignore excludes is left out. Blocking, bounded, never follows a link.

Reading .gitignore is left to pathspec: its rules (anchors, `**`, negation, what counts for folders only) are many and known by
it; git itself would start a process, which the folder's own configuration can tell to run others.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from acpd.native.toolbox import ToolFailed
from acpd.native.tools.local import first_bytes

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

SECONDS = 20.0
ENTRIES = 500_000
_RULES = 256 * 1024
"""Bytes of a .gitignore that are read."""
_OWN = frozenset({".git", ".hg", ".jj", ".svn"})
_TOO_MANY_STARS = re.compile(r"\*[^/]*[^/*]\*[^/]*[^/*]\*[^/]*[^/*]\*")
"""Four in one name: the regular expression for such a line can take minutes for one file."""


class Budget:
    """How long a search may still take. `stop` ends it from another thread."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self._end = time.monotonic() + seconds
        self._seconds = seconds
        self._stopped = threading.Event()
        self.why = ""
        """Why it ended before it was through."""

    def stop(self) -> None:
        self._stopped.set()

    @property
    def left(self) -> float:
        """Seconds; 0: it is over."""
        if self.why or self._stopped.is_set():
            return 0.0
        left = self._end - time.monotonic()
        if left <= 0:
            self.why = f"it took longer than {self._seconds:.0f} s"
        return max(0.0, left)


class Found(NamedTuple):
    """`path`: absolute. `below`: from the folder where the walk began."""

    path: str
    below: str


class _Rules(NamedTuple):
    folder: str
    spec: GitIgnoreSpec


def files(start: str, budget: Budget, *, ignored: bool) -> Generator[Found]:
    """By name, folder by folder. `ignored`: those too that .gitignore excludes. What may not be read is left out."""
    stack: list[tuple[str, tuple[_Rules, ...]]] = [(start, () if ignored else _rules_above(start))]
    seen = 0
    while stack:
        folder, rules = stack.pop()
        if not ignored:
            rules = (*rules, *_rules(folder, os.path.join(folder, ".gitignore")))
        deeper: list[tuple[str, tuple[_Rules, ...]]] = []
        for entry in _entries(folder):
            seen += 1
            if seen > ENTRIES:
                budget.why = f"there are more than {ENTRIES} entries"
            if not budget.left:
                return
            is_folder = entry.is_dir(follow_symlinks=False)
            if (is_folder and entry.name in _OWN) or _excluded(entry.path, is_folder, rules):
                continue
            if is_folder:
                deeper.append((entry.path, rules))
            elif entry.is_file(follow_symlinks=False):
                yield Found(entry.path, os.path.relpath(entry.path, start))
        stack.extend(reversed(deeper))


def _entries(folder: str) -> Sequence[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return sorted(found, key=lambda entry: entry.name)
    except OSError:
        return ()


def _rules_above(start: str) -> tuple[_Rules, ...]:
    """Of the repository that this folder is in. None of them if they exclude the folder itself: it was asked for by name."""
    above = [start]
    while not os.path.lexists(os.path.join(above[-1], ".git")):
        parent = os.path.dirname(above[-1])
        if parent == above[-1]:
            return ()
        above.append(parent)
    top = above[-1]
    found = [*_rules(top, os.path.join(top, ".git", "info", "exclude"))]
    for folder in reversed(above[1:]):
        found += _rules(folder, os.path.join(folder, ".gitignore"))
    for folder in reversed(above[:-1]):
        if _excluded(folder, True, found):
            return ()
    return tuple(found)


def _excluded(path: str, is_folder: bool, rules: Sequence[_Rules]) -> bool:  # noqa: FBT001  as the entry says
    """The nearest file that says something about it decides, and in it the last line (gitignore)."""
    for folder, spec in reversed(rules):
        if not path.startswith(folder):
            continue
        below = os.path.relpath(path, folder)
        verdict = spec.check_file(below + "/" if is_folder else below).include
        if verdict is not None:
            return verdict
    return False


def _rules(folder: str, path: str) -> tuple[_Rules, ...]:
    from pathspec import GitIgnoreSpec  # 20 ms that a start need not pay

    try:
        text = first_bytes(path, _RULES).decode("utf-8", "replace")
    except ToolFailed:  # a link, or no plain file: git does not read it either
        return ()
    lines = [line for line in text.splitlines() if line.strip() and not _TOO_MANY_STARS.search(line)]
    if not lines:
        return ()
    try:
        return (_Rules(folder, GitIgnoreSpec.from_lines(lines)),)
    except ValueError:
        return (_Rules(folder, GitIgnoreSpec.from_lines([line for line in lines if _sound(line)])),)


def _sound(line: str) -> bool:
    from pathspec import GitIgnoreSpec

    try:
        GitIgnoreSpec.from_lines([line])
    except ValueError:
        return False
    return True
