"""Where a path of a model leads, and what is asked for there.

A path counts where its links lead. Inside the session's folders reading is free and a change has the scope "write". Outside,
both are asked for in every mode, by folder, and so is a change to what programs run by themselves (`PROTECTED`), which would be
a way round the question for a command.
"""

from __future__ import annotations

import json
import os
import stat
from typing import TYPE_CHECKING, NamedTuple

from acpd.native.plain import one_line
from acpd.native.toolbox import WRITE, ToolFailed

if TYPE_CHECKING:
    from acpd.api.session import Session

PROTECTED = frozenset({".git", ".hg", ".jj", ".svn", ".husky", ".vscode", ".idea", ".zed", ".envrc"})
"""Hooks, tasks and settings in these are run by git, by editors and by shells without being asked for."""


class Place(NamedTuple):
    """`path`: absolute, as a client is asked for it. `real`: after links. `root`: the session's folder it is in, or ""."""

    path: str
    real: str
    root: str

    @property
    def folder(self) -> str:
        return os.path.dirname(self.real)

    @property
    def to_read(self) -> str:
        """The scope of reading this file."""
        return "" if self.root else f"read {shown(self.folder)}"

    @property
    def to_list(self) -> str:
        """The scope of reading this folder and what is in it."""
        return "" if self.root else f"read {shown(self.real)}"

    @property
    def to_write(self) -> str:
        """The scope of changing this file."""
        if not self.root:
            return f"write {shown(self.folder)}"
        parts = self.real[len(self.root) :].lower().split("/")
        guarded = next((part for part in parts if part in PROTECTED), "")
        return f"write {guarded}" if guarded else WRITE


def place(session: Session, path: str) -> Place:
    """Looks at the disk. `path`: absolute, from the session's working directory, or from `~`. Raises ToolFailed."""
    if not path or "\0" in path:
        raise ToolFailed(f"not a path: {shown(path)}")
    whole = os.path.join(session.cwd, os.path.expanduser(path) if path.startswith("~/") else path)
    try:
        real = os.path.realpath(whole)
    except OSError as error:
        raise ToolFailed(f"{shown(path)}: {error.strerror}") from None
    if ".." in whole.split("/"):  # behind a link `..` is not what it looks like, and a client may go by its looks
        whole = real
    if not is_text(whole):
        raise ToolFailed(f"{shown(path)} leads to a name that is not UTF-8: {shown(real)}. Use `run` for it.")
    root = next((root for root in map(os.path.realpath, session.roots) if _within(real, root)), "")
    return Place(os.path.normpath(whole), real, root)


def is_text(path: str) -> bool:
    """Whether it can be named in JSON: a name on disk may have bytes that are no UTF-8."""
    return not any("\ud800" <= each <= "\udfff" for each in path)


def _within(path: str, root: str) -> bool:
    return path == root or path.startswith(os.path.join(root, ""))


def kind(path: str) -> str:
    """What is there: "file", "folder", "nothing", or another thing. Looks at the disk and opens nothing."""
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return "nothing"
    except OSError as error:
        raise ToolFailed(f"{shown(path)}: {error.strerror}") from None
    if stat.S_ISREG(mode):
        return "file"
    return "folder" if stat.S_ISDIR(mode) else "no plain file (a device, pipe or socket)"


def shown(name: str) -> str:
    """A name on one line: as a JSON string if it has characters that are not seen; bytes that are no UTF-8 as escapes."""
    text = name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return text if text.isprintable() else one_line(json.dumps(text, ensure_ascii=False))


def from_root(session: Session, path: str) -> str:
    """The path as a title or an output has it: from the working directory where it is below it."""
    inside = os.path.join(session.cwd, "")
    return shown(path[len(inside) :] if path.startswith(inside) and path != inside else path)
