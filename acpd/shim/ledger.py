"""What a shim knows of its link to the daemon: which lines went up and are not settled, and where each session is. Sans-IO.

docs/protocol.md, "The shim", has the rules. No JSON is looked at, only the prefixes, and those many at once.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

LINE = 64 * 1024 * 1024
"""Bytes of a line, as everywhere in acpd."""
KEPT = 2 * LINE
"""Bytes of unsettled lines at which no more is read; a cancel must pass behind a prompt of the greatest length."""
OVERHEAD = 128
"""Bytes that keeping a line costs beside its own."""


class Ledger:
    """One shim's side of the link, over all connections. What comes down is booked when it is taken: who takes it must
    have given all of it to the editor before `hello` is asked for.
    """

    def __init__(self) -> None:
        self.next = 1
        """The number of the next new line."""
        self.rest = b""
        """What was left of the last block that came down: a line or a run that is not whole."""
        self.unsettled = 0
        """Bytes of lines that must be sent again, with what keeping them costs."""
        self._lines: dict[int, bytes] = {}
        self._held: set[int] = set()
        """Numbers of lines that are settled and still kept: set-up lines, and the one of initialize."""
        self._cursors: dict[bytes, bytes] = {}
        self._setups: dict[bytes, int] = {}

    def up(self, lines: list[bytes]) -> bytes:
        """New lines of the editor, as they go up. They are kept."""
        first, self.next = self.next, self.next + len(lines)
        numbered = range(first, self.next)
        self._lines.update(zip(numbered, lines, strict=True))
        self.unsettled += sum(map(len, lines)) + OVERHEAD * len(lines)
        return b"".join([b"%d %b\n" % pair for pair in zip(numbered, lines, strict=True)])

    def down(self, block: bytes) -> bytes:
        """What of these lines and runs is for the editor; the `rest` of the block before stands first in it.

        Raises ValueError for a line without its prefix.
        """
        told = []
        at = 0
        while (end := block.find(b"\n", at) + 1) > 0:
            cursor, settled, text = block[at:end].split(b" ", 2)
            if settled[:1] == b"=" and settled[1:].isdigit():
                start, end = end, end + int(settled[1:])
                if end > len(block):
                    break  # it is passed on as a whole, like its cursor
                text, settled = block[start:end], b"-"
            at = end
            session = self._moved(cursor)
            if settled != b"-" and not self._settle(session, settled):
                continue  # the editor has its answer: this one is only for the cursor
            if text != b"\n":
                told.append(text)
        self.rest = block[at:]
        return b"".join(told)

    def _moved(self, cursor: bytes) -> bytes:
        """The session of this cursor; empty if there is none."""
        if cursor == b"-":
            return b""
        session, _, where = cursor.rpartition(b":")
        if where == b"x":
            self._forget(session)
        else:
            self._cursors[session] = where
        return session

    def hello(self) -> "Iterator[bytes]":
        """The items that say where this shim is, once it has sent something."""
        yield b"next=%d" % self.next
        for session, cursor in self._cursors.items():
            setup = self._setups.get(session)
            yield b"session=%b %b %b" % (session, cursor, b"-" if setup is None else b"%d" % setup)

    def again(self) -> "Iterator[bytes]":
        """What must be sent again on a new connection, in order, under the old numbers; not what is settled meanwhile."""
        for number in sorted(self._lines):
            if (line := self._lines.get(number)) is not None:
                yield b"%d %b\n" % (number, line)

    def _settle(self, session: bytes, settled: bytes) -> bool:
        """Whether the line of this number was not settled before."""
        how = settled[-1:]
        number = int(settled.rstrip(b"+*"))
        line = self._lines.get(number)
        fresh = line is not None and number not in self._held
        if line is not None and fresh:
            self.unsettled -= len(line) + OVERHEAD
            if how in b"+*":
                self._held.add(number)
            else:
                del self._lines[number]
        if how == b"+" and number in self._held and (old := self._setups.get(session)) != number:
            self._setups[session] = number
            if old is not None:
                self._drop(old)
        return fresh

    def _forget(self, session: bytes) -> None:
        self._cursors.pop(session, None)
        if (number := self._setups.pop(session, None)) is not None:
            self._drop(number)

    def _drop(self, number: int) -> None:
        self._held.discard(number)
        self._lines.pop(number, None)
