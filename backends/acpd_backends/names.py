"""Names from outside (user, agent, session, state name) as names of files, and where everything lies.

`encode` is reversible and leaves `a-z 0-9 _ -`; every other byte of the UTF-8 text becomes `%xx`, `.` and
capitals included: so no name is `.` or `..`, none carries a separator or a suffix of ours, and names that
differ only in case stay apart on file systems that ignore it. A name whose encoded form has more than 200
bytes is stored as `~` and 40 hex digits of its SHA-256; the name itself then lies beside it in a small file
(`remember` writes it, `recall` reads it), so that a listing shows the name that was given.

Windows' device names (`con`, `nul`, `com1`) are left as they are: they are ordinary names on the platforms
that acpd runs on, and would have to be escaped before a port.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from acpd.errors import StoreError
from acpd.storage.contract import Key
from acpd_backends.files import FILES, Files

LIMIT = 200
"""Bytes of an encoded name. Every suffix of ours fits into the 255 that file systems allow."""

NAME_SUFFIX = ".name"
_KEEP = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789_-")
_HASHED = re.compile(r"~[0-9a-f]{40}\Z")
_PLAIN = re.compile(rf"[a-z0-9_-]{{1,{LIMIT}}}\Z")
"""Names that are encoded as they are: a session's id, and most others."""
_ENCODED = re.compile(r"(?:[a-z0-9_-]|%[0-9a-f]{2})+\Z")


def encode(name: str) -> str:
    """The file name for `name`, at most 200 bytes. Raises StoreError for the empty name."""
    if not name:
        raise StoreError("store", "an empty name", hint="give it a name of at least one character")
    if _PLAIN.match(name):
        return name
    raw = name.encode("utf-8", "surrogatepass")
    text = "".join(chr(byte) if byte in _KEEP else f"%{byte:02x}" for byte in raw)
    return text if len(text) <= LIMIT else "~" + hashlib.sha256(raw).hexdigest()[:40]


def decode(text: str) -> str:
    """The name that `encode` made this from. Raises ValueError for what it never makes, and for hashed names."""
    if _PLAIN.match(text):
        return text
    if _ENCODED.match(text) is None:
        raise ValueError(f"not an encoded name: {text!r}")
    raw = bytearray()
    first, *escaped = text.split("%")
    raw += first.encode()
    for part in escaped:
        raw.append(int(part[:2], 16))
        raw += part[2:].encode()
    name = raw.decode("utf-8", "surrogatepass")
    if encode(name) != text:
        raise ValueError(f"not an encoded name: {text!r}")
    return name


def is_hashed(text: str) -> bool:
    return _HASHED.match(text) is not None


def remember(folder: Path, name: str, *, prefix: str = "", sync: bool = True, files: Files = FILES) -> str:
    """The encoded name, after a name that is too long was written beside where it will be used. `folder` must exist.

    Raises OSError. Blocks, but only for long names.
    """
    text = encode(name)
    if is_hashed(text):
        beside = folder / (prefix + text + NAME_SUFFIX)
        if not beside.exists():
            files.write_atomic(beside, name.encode("utf-8", "surrogatepass"), sync=sync)
    return prefix + text


def recall(folder: Path, text: str, *, prefix: str = "") -> str | None:
    """The name behind an encoded one in this folder; None if it is not one of ours. Blocks for hashed names."""
    if not text.startswith(prefix):
        return None
    text = text[len(prefix) :]
    try:
        if not is_hashed(text):
            return decode(text)
        name = (folder / (prefix + text + NAME_SUFFIX)).read_bytes().decode("utf-8", "surrogatepass")
    except (OSError, ValueError):
        return None
    return name if name and encode(name) == text else None


def contained(root: Path, path: Path) -> Path:
    """`path`, if it lies below `root` once `.` and `..` are gone; the last check before a path is used.

    Symbolic links are not followed: a user may have put a part of the store on another disk.
    Raises StoreError.
    """
    inside, whole = os.path.normpath(root), os.path.normpath(path)
    if not whole.startswith(inside.rstrip(os.sep) + os.sep):
        raise StoreError("use", str(path), cause=f"it lies outside {root}")
    return path


class Layout(Struct, frozen=True):
    """Where the files of one store lie: the one difference between the workspace and the json backend.

    `per_agent` True: `<root>/[u-<user>/]agents/<agent>/{sessions,context}`; False: without the level of the agent.
    """

    root: Path
    per_agent: bool = True

    def home(self, user: str | None) -> Path:
        """The folder that holds everything of this user. None: the root itself."""
        return self.root if user is None else contained(self.root, self.root / ("u-" + encode(user)))

    def private(self, user: str | None) -> Path:
        """Catalog and locks."""
        return self.home(user) / ".acpd"

    def place(self, key: Key) -> Path:
        home = self.home(key.user)
        return contained(self.root, home / "agents" / encode(key.agent)) if self.per_agent else home

    def sessions(self, key: Key) -> Path:
        """The folder of the key's log."""
        return self.place(key) / "sessions"

    def context(self, key: Key) -> Path:
        """The folder of the key's state modules, one file each."""
        return contained(self.root, self.place(key) / "context" / encode(key.session))

    def memory(self, key: Key) -> Path:
        """The folder of what this user and agent remember. Agents are apart also where they share the folder of their logs."""
        if self.per_agent:
            return self.place(key) / "memory"
        return contained(self.root, self.home(key.user) / "memory" / encode(key.agent))

    def make_memory(self, key: Key, *, sync: bool, files: Files = FILES) -> Path:
        """Make that folder, names that are too long included. Raises OSError. Blocks."""
        self._make_user(key, sync=sync, files=files)
        agents = self.home(key.user) / ("agents" if self.per_agent else "memory")
        files.make_folders(agents, sync=sync)
        remember(agents, key.agent, sync=sync, files=files)
        folder = self.memory(key)
        files.make_folders(folder, sync=sync)
        return folder

    def memories(self, user: str | None) -> Iterator[tuple[str, Path]]:
        """Each agent of this user that remembers something, with the folder. Blocks."""
        parent = self.home(user) / ("agents" if self.per_agent else "memory")
        for entry in _folders(parent):
            folder = parent / entry / "memory" if self.per_agent else parent / entry
            if (name := recall(parent, entry)) is not None and folder.is_dir():
                yield name, folder

    def make(self, key: Key, kind: str, *, sync: bool, files: Files = FILES) -> Path:
        """Make the key's folder `kind` ("sessions" or "context"), names that are too long included. Raises OSError. Blocks.

        Gives the folder that will hold what is named after the session.
        """
        self._make_user(key, sync=sync, files=files)
        if self.per_agent and is_hashed(encode(key.agent)):
            files.make_folders(self.home(key.user) / "agents", sync=sync)
            remember(self.home(key.user) / "agents", key.agent, sync=sync, files=files)
        folder = self.place(key) / kind
        files.make_folders(folder, sync=sync)
        remember(folder, key.session, sync=sync, files=files)
        return folder

    def _make_user(self, key: Key, *, sync: bool, files: Files) -> None:
        if key.user is not None and is_hashed(encode(key.user)):
            files.make_folders(self.root, sync=sync)
            remember(self.root, key.user, prefix="u-", sync=sync, files=files)

    def users(self) -> Iterator[str | None]:
        """None, then every user that has a folder here. Blocks."""
        yield None
        for entry in _folders(self.root):
            name = recall(self.root, entry, prefix="u-")
            if name is not None:
                yield name

    def places(self, user: str | None) -> Iterator[tuple[str | None, Path]]:
        """Each agent with its folder; (None, home) where agents have no folder of their own. Blocks."""
        home = self.home(user)
        if not self.per_agent:
            yield None, home
            return
        for entry in _folders(home / "agents"):
            name = recall(home / "agents", entry)
            if name is not None:
                yield name, home / "agents" / entry


def _folders(folder: Path) -> list[str]:
    """Names of the folders in this one; links to folders are none of ours and are left out. Absent: none."""
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except (FileNotFoundError, NotADirectoryError):
        return []
