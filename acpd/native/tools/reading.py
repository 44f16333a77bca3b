"""read and list."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta, Struct

from acpd.native.toolbox import ToolFailed, ToolOutput
from acpd.native.tools import local
from acpd.native.tools.places import Place, from_root, kind, shown
from acpd.native.tools.typed import Placed

if TYPE_CHECKING:
    from acpd.api.calls import ToolCall
    from acpd.api.session import Session
    from acpd.api.shapes import Location
    from acpd.api.turn import Turn

LINES = 2000
"""Lines of one read, if nothing else is asked for."""
MAX_BYTES = 60 * 1024
"""Of one read: what is more is left to the next one."""
LINE_BYTES = 4000
MAX_IMAGE = 3_700_000
"""Bytes: the smallest limit of a provider is 5 MB in base64."""
ENTRIES = 1000
_IMAGES = {b"\x89PNG\r\n\x1a\n": "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF8": "image/gif"}


class ReadArguments(Struct, forbid_unknown_fields=True):
    path: Annotated[str, Meta(description="File to read, absolute or from the working directory.")]
    line: Annotated[int, Meta(ge=1, description="First line, counted from 1.")] = 1
    limit: Annotated[int, Meta(ge=1, le=LINES, description="Number of lines.")] = LINES
    numbered: Annotated[bool, Meta(description="Put its number and a tab before each line.")] = True


class Read(Placed[ReadArguments]):
    name = "read"
    kind = "read"
    harmless = True
    arguments = ReadArguments
    description = (
        "Read a text file, or a part of it by lines; images (PNG, JPEG, GIF, WebP) are shown to you. Lines are numbered:"
        " the number and the tab are not part of the file. A long file is given in parts: the last line says how to go on."
    )

    def __init__(self, seen: local.Seen) -> None:
        super().__init__()
        self._seen = seen

    def title(self, session: Session, arguments: Mapping[str, Any]) -> str:
        said = self.said(arguments)
        part = f" from line {said.line}" if said.line > 1 else ""
        return f"Read {from_root(session, self.place(arguments).path)}{part}"

    def locations(self, session: Session, arguments: Mapping[str, Any]) -> Sequence[Location]:
        said = self.said(arguments)
        return location(self.place(arguments), said.line)

    def scope(self, session: Session, arguments: Mapping[str, Any]) -> str:
        return self.place(arguments).to_read

    async def run(self, turn: Turn, call: ToolCall, arguments: Mapping[str, Any]) -> ToolOutput:
        said = self.said(arguments)
        where = self.place(arguments)
        await asyncio.to_thread(local.check, where)
        start = await asyncio.to_thread(local.first_bytes, where.real, 8192)
        if mime := image_type(start):
            return await asyncio.to_thread(_image, where, mime)
        if b"\0" in start:
            size = await asyncio.to_thread(os.path.getsize, where.real)
            raise ToolFailed(
                f"{shown(where.path)} is a binary file of {size} bytes. Use `run` with a program that knows its format."
            )
        text = await local.read_text(turn, where, said.line, said.limit + 1)
        await asyncio.to_thread(self._seen.note, where.real)
        return ToolOutput(_lines(text, said))


def _lines(text: str, said: ReadArguments) -> str:
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    if not lines:
        return f"(nothing at line {said.line}: the file is shorter)" if said.line > 1 else "(the file is empty)"
    parts: list[str] = []
    size = 0
    for number, line in enumerate(lines[: said.limit], said.line):
        part = f"{number}\t{_line(line)}" if said.numbered else _line(line)
        size += len(part.encode("utf-8", "replace")) + 1
        if size > MAX_BYTES:
            break
        parts.append(part)
    if len(parts) < len(lines):
        parts.append(f"[The file goes on: read it with line={said.line + len(parts)}.]")
    return "\n".join(parts)


def _line(line: str) -> str:
    line = line.removesuffix("\r")
    if len(line) <= LINE_BYTES:
        return line
    return f"{line[:LINE_BYTES]} [... {len(line) - LINE_BYTES} more characters in this line]"


def image_type(start: bytes) -> str:
    """The mime type that these first bytes of a file have, "" if it is no image that models know."""
    if start[:4] == b"RIFF" and start[8:12] == b"WEBP":
        return "image/webp"
    return next((mime for magic, mime in _IMAGES.items() if start.startswith(magic)), "")


def _image(where: Place, mime: str) -> ToolOutput:
    data = local.first_bytes(where.real, MAX_IMAGE + 1)
    if len(data) > MAX_IMAGE:
        raise ToolFailed(f"{shown(where.path)} is an image of more than {MAX_IMAGE} bytes: make it smaller first, with `run`.")
    return ToolOutput(f"{shown(where.path)}: {mime}, {len(data)} bytes", images=((data, mime),))


def location(where: Place, line: int | None = None) -> Sequence[Location]:
    from acpd.api.shapes import Location

    return (Location(where.path, line),)


class ListArguments(Struct, forbid_unknown_fields=True):
    path: Annotated[str, Meta(description="Folder, absolute or from the working directory.")] = "."


class List(Placed[ListArguments]):
    name = "list"
    kind = "read"
    harmless = True
    arguments = ListArguments
    description = (
        "List the entries of one folder, hidden ones too: folders end in /, links in @, files have their size in bytes."
    )

    def title(self, session: Session, arguments: Mapping[str, Any]) -> str:
        return f"List {from_root(session, self.place(arguments).path)}"

    def locations(self, session: Session, arguments: Mapping[str, Any]) -> Sequence[Location]:
        return () if self.said(arguments).path == "." else location(self.place(arguments))

    def scope(self, session: Session, arguments: Mapping[str, Any]) -> str:
        return self.place(arguments).to_list

    async def run(self, turn: Turn, call: ToolCall, arguments: Mapping[str, Any]) -> ToolOutput:
        return ToolOutput(await asyncio.to_thread(_listed, self.place(arguments)))


def _listed(where: Place) -> str:
    what = kind(where.real)
    if what != "folder":
        raise ToolFailed(f"{shown(where.path)} is {'not there' if what == 'nothing' else what}, no folder")
    try:
        with local.folder(where.real) as folder, os.scandir(folder) as found:
            entries = sorted(found, key=lambda entry: entry.name)
            lines = [_entry(entry) for entry in entries[:ENTRIES]]
    except OSError as error:
        raise local.failed(where.real, error) from None
    if len(entries) > ENTRIES:
        lines.append(f"[{len(entries) - ENTRIES} more entries: look for them with `glob`]")
    return "\n".join(lines) or "(the folder is empty)"


def _entry(entry: os.DirEntry[str]) -> str:
    name = shown(entry.name)
    if entry.is_symlink():
        return f"{name}@"
    if entry.is_dir(follow_symlinks=False):
        return f"{name}/"
    if not entry.is_file(follow_symlinks=False):
        return f"{name} (no plain file)"
    try:
        return f"{name} ({entry.stat(follow_symlinks=False).st_size})"
    except OSError:
        return name
