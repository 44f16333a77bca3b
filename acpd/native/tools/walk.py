"""All files below a folder, as git sees them: what .gitignore excludes is left out. Blocking, bounded, never follows a link."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Generator, Sequence
from typing import NamedTuple

from acpd.native.toolbox import ToolFailed
from acpd.native.tools.ignoring import Rules, parsed
from acpd.native.tools.local import first_bytes, folder

SECONDS = 20.0
ENTRIES = 500_000
_RULES = 256 * 1024
"""Bytes of a .gitignore that are read."""
_OWN = frozenset({".git", ".hg", ".jj", ".svn"})


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
    """`path`: absolute. `below`: from the folder where the walk began. `inside`: a descriptor of its folder,
    which is closed when the walk goes on.
    """

    path: str
    below: str
    inside: int | None = None


def files(start: str, budget: Budget, *, ignored: bool) -> Generator[Found]:
    """By name, folder by folder. `ignored`: those too that .gitignore excludes. What may not be read is left out."""
    stack: list[tuple[str, tuple[Rules, ...]]] = [(start, () if ignored else _rules_above(start))]
    seen = 0
    while stack:
        here, rules = stack.pop()
        if not ignored:
            rules = (*rules, *_rules(here, os.path.join(here, ".gitignore")))
        deeper: list[tuple[str, tuple[Rules, ...]]] = []
        with contextlib.suppress(OSError), folder(here) as inside:
            for name, is_folder in _entries(inside):
                seen += 1
                if seen > ENTRIES:
                    budget.why = f"there are more than {ENTRIES} entries"
                if not budget.left:
                    return
                path = os.path.join(here, name)
                if (is_folder and name in _OWN) or _excluded(path, is_folder, rules):
                    continue
                if is_folder:
                    deeper.append((path, rules))
                else:
                    yield Found(path, os.path.relpath(path, start), inside)
        stack.extend(reversed(deeper))


def _entries(inside: int) -> Sequence[tuple[str, bool]]:
    """Names of folders (True) and plain files."""
    with os.scandir(inside) as found:
        kinds = [(each.name, each.is_dir(follow_symlinks=False), each.is_file(follow_symlinks=False)) for each in found]
    return sorted((name, is_folder) for name, is_folder, is_file in kinds if is_folder or is_file)


def _rules_above(start: str) -> tuple[Rules, ...]:
    """Of the repository that this folder is in. None of them if they exclude the folder itself: it was asked for by name."""
    above = [start]
    while not os.path.lexists(os.path.join(above[-1], ".git")):
        parent = os.path.dirname(above[-1])
        if parent == above[-1]:
            return ()
        above.append(parent)
    top = above[-1]
    found = [*_rules(top, os.path.join(top, ".git", "info", "exclude"))]
    for each in reversed(above[1:]):
        found += _rules(each, os.path.join(each, ".gitignore"))
    for each in reversed(above[:-1]):
        if _excluded(each, True, found):
            return ()
    return tuple(found)


def _excluded(path: str, is_folder: bool, rules: Sequence[Rules]) -> bool:  # noqa: FBT001  as the entry says
    """The nearest file that says something about it decides."""
    for each in reversed(rules):
        verdict = each.verdict(os.path.relpath(path, each.folder), is_folder=is_folder)
        if verdict is not None:
            return verdict
    return False


def _rules(folder: str, path: str) -> tuple[Rules, ...]:
    try:
        text = first_bytes(path, _RULES).decode("utf-8", "surrogateescape")
    except ToolFailed:  # a link, or no plain file: git does not read it either
        return ()
    rules = parsed(folder, text)
    return (rules,) if rules.rules else ()
