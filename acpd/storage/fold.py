"""What a log says in the end: leaf, newest facts, open turn, open asks. Pure.

`Fold.add` takes the lines in file order; what it keeps does not grow with the length of the log,
but for labels and open asks.
"""

# The table of handlers below the class uses its methods.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from msgspec import UNSET, Raw
from msgspec.structs import replace

from acpd.wire.lines import Header, Stored
from acpd.wire.titles import is_command, plain_title


class Fold:
    """The state of one log after the lines that were added.

    Leaf rule: an entry whose parent is the leaf becomes the leaf; a `leaf` fact sets it; any other entry hangs where it
    says and moves nothing. `parentId` must already be mended where lines were lost (SessionTree does that).
    """

    __slots__ = (
        "_kind",
        "asks",
        "branched",
        "commands",
        "config",
        "created_at",
        "cwd",
        "directories",
        "folder",
        "info",
        "inner",
        "labels",
        "last_entry",
        "last_id",
        "leaf",
        "link",
        "may_be_named",
        "messages",
        "plan",
        "prompted",
        "queue",
        "seq",
        "src",
        "title",
        "turn",
        "updated_at",
        "usage",
        "warnings",
    )

    def __init__(self) -> None:
        self.seq = 0
        """Of the last line; 0: only a header."""
        self.last_id = ""
        self.last_entry: str | None = None
        self.leaf: str | None = None
        self.branched = False
        """Whether the path to the leaf is not simply every entry of the file in order."""
        self.title = ""
        self.may_be_named = True
        """Whether the next prompt may give it a title: it has none, or only that of a prompt that was a command."""
        self.cwd = self.folder = ""
        """Where the project is now, if it has moved since the header was written: see `moved`."""
        self.directories: tuple[str, ...] = ()
        """Likewise its additional directories, if it has any."""
        self.config: Stored | None = None
        self.commands: Stored | None = None
        self.usage: Stored | None = None
        self.info: Stored | None = None
        self.plan: Stored | None = None
        """The newest update of kind "plan"."""
        self.queue: Raw | None = None
        """JSON array of prompts that were accepted and not begun; None: empty."""
        self.labels: dict[str, str] = {}
        self.link: Stored | None = None
        self.inner = ""
        """The agent's own id of the session, if that holds the path to the leaf: the newest `link`, if no `leaf` is newer."""
        self.src: tuple[str, int] | None = None
        self.turn: str | None = None
        """The id of the newest `turn` entry if that turn is still running."""
        self.asks: dict[str, Stored] = {}
        """Asks without an answer, by entry id, oldest first."""
        self.messages = 0
        """Prompts, and messages of the agent counted where a chunk follows something else."""
        self.prompted = False
        self.created_at = ""
        self.updated_at = ""
        """`at` of the newest line in file order: the clock does not order anything."""
        self.warnings: list[str] = []
        self._kind = ""

    @property
    def adopting(self) -> bool:
        """Whether the agent's own conversation was being recorded when the log ends: the agent still has all of it."""
        return self.link is not None and self.link.state == "adopting"

    @property
    def last_inner(self) -> str:
        """The agent's own id of the session that it had last, whether that still fits or not."""
        return self.link.inner if self.link is not None else ""

    @property
    def straight(self) -> bool:
        """Whether the path to the leaf is simply every entry of the file, all of them readable."""
        return not self.branched and not self.warnings

    def add(self, line: Stored) -> None:
        if line.seq > self.seq or not self.last_id:  # lines that stand twice take no number back
            self.seq = line.seq
            self.last_id = line.id
        if line.at:
            self.updated_at = line.at
        if line.src is not None:
            self.src = line.src
        handler = _HANDLERS.get(line.type)
        if handler is not None:
            handler(self, line)
        if line.parentId is not UNSET:
            if line.parentId == self.leaf:
                self.leaf = line.id
            if line.parentId != self.last_entry:
                self.branched = True
            self.last_entry = line.id
            self._kind = line.kind

    def advance(self, kind: str, what: str, identifier: str, parent: str | None, seq: int, at: str) -> None:
        """`add` for an entry that was just written, without decoding it again: a prompt, a turn or an update.

        `what` is the state of the turn, the kind of the update. Not for plans.
        """
        if kind == "turn":
            self.turn = identifier if what == "running" else None
        elif kind == "prompt":
            self.prompted = True
            self.messages += 1
        elif what == "agent_message_chunk":
            self.messages += self._kind != what
        elif what == "user_message_chunk":
            self.prompted = True
        self.seq = seq
        self.last_id = identifier
        self.updated_at = at
        if parent == self.leaf:
            self.leaf = identifier
        if parent != self.last_entry:
            self.branched = True
        self.last_entry = identifier
        self._kind = what if kind == "update" else ""

    def go_on(self, identifier: str, seq: int) -> None:
        """As `advance` for more entries of the same kind, each behind the one before it: the last of them."""
        if self.leaf == self.last_entry:
            self.leaf = identifier
        self.seq, self.last_id, self.last_entry = seq, identifier, identifier

    def _prompt(self, _line: Stored) -> None:
        self.prompted = True
        self.messages += 1

    def _update(self, line: Stored) -> None:
        if line.kind == "plan":
            self.plan = line
        elif line.kind == "agent_message_chunk" and self._kind != "agent_message_chunk":
            self.messages += 1
        elif line.kind == "user_message_chunk":
            self.prompted = True

    def _ask(self, line: Stored) -> None:
        self.asks[line.id] = line

    def _answer(self, line: Stored) -> None:
        self.asks.pop(line.ask, None)

    def _turn(self, line: Stored) -> None:
        self.turn = line.id if line.state == "running" else None

    def _leaf(self, line: Stored) -> None:
        if line.entry != self.leaf:
            self.branched = True
        self.leaf = line.entry
        self.inner = ""

    def _link(self, line: Stored) -> None:
        self.link = line
        self.inner = line.inner

    def _config(self, line: Stored) -> None:
        self.config = line

    def _commands(self, line: Stored) -> None:
        self.commands = line

    def _info(self, line: Stored) -> None:
        if line.params is not UNSET:
            self.info = line
        if line.title is not None:
            self.title = plain_title(line.title)
            self.may_be_named = not self.title or (line.params is UNSET and is_command(self.title))
        if line.cwd:
            self.cwd, self.folder, self.directories = line.cwd, line.folder, line.additionalDirectories

    def _usage(self, line: Stored) -> None:
        self.usage = line

    def _queue(self, line: Stored) -> None:
        prompts = b"[]" if line.prompts is UNSET else bytes(line.prompts)
        self.queue = None if prompts == b"[]" or not prompts.startswith(b"[") else Raw(prompts)

    def _label(self, line: Stored) -> None:
        if line.entry is not None:
            if line.label is None:
                self.labels.pop(line.entry, None)
            else:
                self.labels[line.entry] = line.label


_HANDLERS = {
    "prompt": Fold._prompt,
    "update": Fold._update,
    "ask": Fold._ask,
    "answer": Fold._answer,
    "turn": Fold._turn,
    "leaf": Fold._leaf,
    "link": Fold._link,
    "config": Fold._config,
    "commands": Fold._commands,
    "info": Fold._info,
    "usage": Fold._usage,
    "queue": Fold._queue,
    "label": Fold._label,
}


def moved(header: Header, fold: Fold) -> Header:
    """The header with the folders in which the project is now."""
    if not fold.cwd:
        return header
    directories = fold.directories or header.additionalDirectories
    return replace(header, cwd=fold.cwd, folder=fold.folder, additionalDirectories=directories)
