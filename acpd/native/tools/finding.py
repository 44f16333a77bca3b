"""glob and grep: in a thread, within a time, on what is on disk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from msgspec import Meta, Struct

from acpd.native.toolbox import ToolFailed, ToolOutput
from acpd.native.tools import walk
from acpd.native.tools.local import first_bytes
from acpd.native.tools.patterns import Glob, Pattern
from acpd.native.tools.places import Place, from_root, kind, shown
from acpd.native.tools.reading import location
from acpd.native.tools.typed import Placed
from acpd.native.tools.walk import Budget, Found

if TYPE_CHECKING:
    from acpd.api.calls import ToolCall
    from acpd.api.session import Session
    from acpd.api.shapes import Location
    from acpd.api.turn import Turn

FILES = 500
"""Names that one glob gives."""
MAX_FILE = 8 * 1024 * 1024
LINE = 300
"""Characters of a line that are shown."""
MAX_BYTES = 48 * 1024

Arguments = TypeVar("Arguments", bound=Struct)
_IGNORED = "Also what .gitignore excludes."


class Searching(Placed[Arguments]):
    """Below a folder, `path` of the arguments."""

    kind = "search"
    harmless = True

    def locations(self, session: Session, arguments: Mapping[str, Any]) -> Sequence[Location]:
        """None for the whole project: clients open what is named here."""
        return () if arguments.get("path", ".") == "." else location(self.place(arguments))

    def scope(self, session: Session, arguments: Mapping[str, Any]) -> str:
        return self.place(arguments).to_list

    def title(self, session: Session, arguments: Mapping[str, Any]) -> str:
        where = from_root(session, self.place(arguments).path)
        return f"{self.name} {shown(arguments['pattern'])[:200]}" + ("" if where == str(session.cwd) else f" in {where}")


async def _threaded(work: Callable[[Budget], str]) -> ToolOutput:
    """Cancelling it ends the search at the next file."""
    budget = Budget()
    try:
        return ToolOutput(await asyncio.to_thread(work, budget))
    finally:
        budget.stop()


class GlobArguments(Struct, forbid_unknown_fields=True):
    pattern: Annotated[str, Meta(min_length=1, description="For example *.py, src/**/*.{ts,tsx} or **/test_*.")]
    path: Annotated[str, Meta(description="Folder to look in.")] = "."
    ignored: Annotated[bool, Meta(description=_IGNORED)] = False


class GlobTool(Searching[GlobArguments]):
    name = "glob"
    arguments = GlobArguments
    description = (
        "Find files by name. `*` stays within a name, `**` goes through folders; a pattern without / is about the name, in any"
        " folder. What .gitignore excludes is left out."
    )

    async def run(self, turn: Turn, call: ToolCall, arguments: Mapping[str, Any]) -> ToolOutput:
        said = self.said(arguments)
        return await _threaded(lambda budget: _globbed(turn.session, said, self.place(arguments), budget))


def _globbed(session: Session, said: GlobArguments, where: Place, budget: Budget) -> str:
    if kind(where.real) != "folder":
        raise ToolFailed(f"{shown(where.path)} is no folder")
    glob = Glob(said.pattern, budget)
    lines: list[str] = []
    for found in walk.files(where.real, budget, ignored=said.ignored):
        if glob.matches(found.below):
            if len(lines) == FILES:
                budget.why = f"there are more than {FILES}"
                break
            lines.append(_named(session, where, found))
    return _told(lines, budget, ignored=said.ignored)


def _named(session: Session, where: Place, found: Found) -> str:
    """As the model may name it in its next call: below the folder that it has named."""
    return from_root(session, where.path.rstrip("/") + "/" + found.below)


def _told(lines: list[str], budget: Budget, *, ignored: bool, more: str = "") -> str:
    if not lines:
        lines = ["Nothing was found." + ("" if ignored else " What .gitignore excludes was left out; set `ignored` for that.")]
    if budget.why:
        lines.append(f"[This is not all: {budget.why}. Say more exactly what you look for, or where.]")
    return "\n".join([*lines, more] if more else lines)


class GrepArguments(Struct, forbid_unknown_fields=True):
    pattern: Annotated[str, Meta(min_length=1, description="Regular expression, as Python has them, within one line.")]
    path: Annotated[str, Meta(description="Folder or file to look in.")] = "."
    glob: Annotated[str, Meta(description="Only in files whose names match, for example *.py or src/**/*.ts.")] = ""
    ignore_case: bool = False
    context: Annotated[int, Meta(ge=0, le=10, description="Lines to show before and after each.")] = 0
    names_only: Annotated[bool, Meta(description="Only the names of the files.")] = False
    limit: Annotated[int, Meta(ge=1, le=1000, description="Lines that match, at most.")] = 100
    ignored: Annotated[bool, Meta(description=_IGNORED)] = False


class Grep(Searching[GrepArguments]):
    name = "grep"
    arguments = GrepArguments
    description = (
        "Find lines in files by a regular expression. What .gitignore excludes is left out, and so are binary files and"
        f" those above {MAX_FILE >> 20} MiB."
    )

    async def run(self, turn: Turn, call: ToolCall, arguments: Mapping[str, Any]) -> ToolOutput:
        said = self.said(arguments)
        return await _threaded(lambda budget: _Search(turn.session, said, self.place(arguments), budget).run())


class _Search:
    def __init__(self, session: Session, said: GrepArguments, where: Place, budget: Budget) -> None:
        self._session = session
        self._said = said
        self._budget = budget
        self._where = where
        self._pattern = Pattern(said.pattern, budget, ignore_case=said.ignore_case)
        self._hits = 0
        self._lines: list[str] = []
        self._size = 0
        self._too_big = 0

    def run(self) -> str:
        for found in self._files():
            text = self._text(found)
            if text is None or (self._pattern.by_text and not self._pattern.found(text)):
                continue
            self._file(
                _named(self._session, self._where, found) if found.below else self._title(), text.removesuffix("\n").split("\n")
            )
            if self._budget.why:
                break
        more = (
            f"[{self._too_big} file{'s' * (self._too_big != 1)} above {MAX_FILE >> 20} MiB: not searched.]"
            if self._too_big
            else ""
        )
        return _told(self._lines, self._budget, ignored=self._said.ignored, more=more)

    def _title(self) -> str:
        return from_root(self._session, self._where.path)

    def _files(self) -> Generator[Found]:
        what = kind(self._where.real)
        if what == "file":
            yield Found(self._where.real, "")
            return
        if what != "folder":
            raise ToolFailed(f"{shown(self._where.path)} is {'not there' if what == 'nothing' else what}")
        glob = Glob(self._said.glob, self._budget) if self._said.glob else None
        for found in walk.files(self._where.real, self._budget, ignored=self._said.ignored):
            if glob is None or glob.matches(found.below):
                yield found

    def _text(self, found: Found) -> str | None:
        try:
            data = first_bytes(found.path, MAX_FILE + 1, found.inside)
        except ToolFailed:  # gone meanwhile, or not ours to read
            return None
        self._too_big += len(data) > MAX_FILE
        return None if len(data) > MAX_FILE or b"\0" in data[:8192] else data.decode("utf-8", "replace")

    def _file(self, name: str, lines: Sequence[str]) -> None:
        """Add the lines of one file that match, and those around them, each once."""
        said, hits = self._said, self._matching(lines)
        if not hits:
            return
        self._add(name)
        shown_to = 0
        for index in () if said.names_only else hits:
            last = min(len(lines) - 1, index + said.context)
            for at in range(max(shown_to, index - said.context), last + 1):
                self._add(f"{at + 1}{':' if at in hits else '-'} {_cut(lines[at])}")
            shown_to = last + 1

    def _matching(self, lines: Sequence[str]) -> dict[int, None]:
        """The places of lines that match, in order, as many as there is room for."""
        hits: dict[int, None] = {}
        for index, line in enumerate(lines):
            if not self._budget.left:
                break
            if not self._pattern.found(line):
                continue
            if self._hits >= self._said.limit or self._size > MAX_BYTES:
                self._budget.why = f"there are more than {self._hits}"
                break
            self._hits += 1
            hits[index] = None
            if self._said.names_only:
                break
        return hits

    def _add(self, line: str) -> None:
        self._lines.append(line)
        self._size += len(line.encode("utf-8", "replace")) + 1


def _cut(line: str) -> str:
    line = line.rstrip("\r")
    return line if len(line) <= LINE else f"{line[:LINE]} [... {len(line) - LINE} more characters]"
