"""One client on one session: a cursor into the log, and no buffer.

The cursor is the `seq` of the last line that the client got. A client that reads along is fed the frames as
they are made. One that does not is left alone and later reads on from the log, from its cursor: each line once,
in order, late, at nobody else's cost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple, Protocol

from msgspec import Struct

from acpd import cursors
from acpd.errors import RequestError
from acpd.rpc.protocol import Then


class ClientCapabilities(NamedTuple):
    """What a client said that it can do, as far as acpd must know (ACP v1 initialization)."""

    read_text_file: bool = False
    write_text_file: bool = False
    terminal: bool = False
    elicitation: frozenset[str] = frozenset()
    """Modes: "form", "url"."""
    terminal_login: bool = False


class Client(Protocol):
    """What a session needs of a connection."""

    kinds: frozenset[str]
    """The kinds of update that may be sent to it."""
    capabilities: ClientCapabilities
    token: str
    """Not empty: each of its lines carries its place (acpd.cursors), and it may come back under this name."""
    runs: bool
    """Many of its lines may carry one place together."""
    reading: asyncio.Lock
    """Held while a window of a log is read and sent: a client has one in memory, however many sessions it is behind in."""

    @property
    def paused(self) -> bool: ...
    def send(self, data: bytes, /) -> None: ...
    def call(self, method: str, params: bytes, then: Then, identifier: bytes | None = None, place: bytes = b"", /) -> bytes: ...
    def expect(self, identifier: bytes, then: Then, /) -> None: ...
    def forget(self, identifier: bytes, /) -> None: ...
    def notify(self, method: str, params: bytes, /) -> None: ...
    def settle(self, identifier: bytes, result: bytes | None, error: RequestError | None, /) -> bytes: ...
    async def drained(self) -> None: ...


class Staged(Struct, gc=False):
    """One new line, ready for clients: its frames, or (ask) the id of the ask to send."""

    seq: int
    kind: str
    frame: bytes
    lines: int = 1
    """How many lines, up to `seq`, with a frame each."""
    ask: str = ""
    origin: Client | None = None
    """Who caused it and knows it already: it gets no frame."""


class Attachment:
    """See the module. `behind(attachment)` starts the reading of the log; `ask(attachment, id)` sends one ask."""

    __slots__ = ("_after", "_ask", "_behind", "_name", "client", "cursor", "live", "observer", "own", "seen", "skip")

    def __init__(
        self,
        session_id: str,
        client: Client,
        cursor: int,
        behind: Callable[[Attachment], None],
        ask: Callable[[Attachment, str], None],
        *,
        observer: bool = False,
    ) -> None:
        self.client = client
        self.observer = observer
        """It sees everything, is never asked, and steers nothing."""
        self.cursor = cursor
        self.skip = 0
        """Frames of the line behind the cursor that the client has already."""
        self.seen = 0
        """Asks up to this seq were sent to the client over an earlier connection."""
        self.live = False
        self.own: set[str] = set()
        """Ids of prompt entries that this client sent and that its cursor has not passed."""
        self._name = cursors.name(session_id) if client.token else b""
        self._ask = ask
        self._behind = behind
        self._after: list[tuple[int, bytes]] = []

    def place(self, seq: int = 0) -> bytes:
        """The session and the cursor, for an answer that the client gets now, or for the line that has this seq."""
        return b"%b:%d" % (self._name, max(self.cursor, seq))

    def placed(self, seq: int, frames: bytes) -> bytes:
        """The frames of one line as this client gets them, or as `told` wants them."""
        if not self._name or not frames:
            return frames
        skip = self.skip if seq == self.cursor + 1 else 0
        if self.client.runs:
            return frames.split(b"\n", skip)[-1] if skip else frames
        return cursors.placed(self._name, seq, frames, skip)

    def told(self, seq: int, placed: list[bytes]) -> bytes:
        """What the client gets: the frames of lines up to `seq`, each as `placed`."""
        data = b"".join(placed)
        return cursors.run(self._name, b"%d" % seq, data) if self.client.runs else data

    def _placed(self, item: Staged) -> bytes:
        if item.lines == 1 or self.client.runs:
            return self.placed(item.seq, item.frame)
        return cursors.each_placed(self._name, item.seq - item.lines + 1, item.frame)

    def unplaced(self, frame: bytes) -> bytes:
        """A frame that is in no log, as this client gets it."""
        return b"- - %b" % frame if self._name else frame

    def told_in_replay(self, until: int, count: int, frames: list[bytes]) -> bytes:
        """What the client gets: the last frames of the first `count` of a replay up to `until`."""
        if not self._name:
            return b"".join(frames)
        if self.client.runs:
            return cursors.run(self._name, b"r%d.%d" % (until, count), b"".join(frames))
        numbered = enumerate(frames, count - len(frames) + 1)
        return b"".join([b"%b:r%d.%d - %b" % (self._name, until, number, frame) for number, frame in numbered])

    def feed(self, staged: list[Staged], seq: int) -> None:
        """New lines up to `seq` are in the log."""
        if not self.live:
            return
        if self.client.paused:
            self.fall_behind()
            return
        client = self.client
        kinds = client.kinds
        frames: list[bytes] = []
        told = 0
        for item in staged:
            if item.ask:
                client.send(self.told(told, frames))
                frames.clear()
                self._ask(self, item.ask)
            elif item.kind in kinds and item.origin is not client:
                frames.append(self._placed(item) if self._name else item.frame)
                told = item.seq
        if frames:
            client.send(self.told(told, frames))
        self.cursor = seq
        self.own.clear()

    def take_over(self, old: Attachment) -> None:
        """What an earlier attachment of the same client still owed it: the lines behind its cursor, and answers."""
        old.live = False
        self.cursor = old.cursor
        self._after, old._after = old._after, []
        self.own |= old.own

    def fall_behind(self) -> None:
        """Read the log from the cursor until it is reached, then be live."""
        self.live = False
        self._behind(self)

    def deliver(self, seq: int, line: bytes) -> None:
        """Send this line (an answer) after everything up to `seq`."""
        if self.cursor >= seq:
            self.client.send(line)
        else:
            self._after.append((seq, line))

    def let_go(self) -> None:
        """It is fed no more; the answers that it still waits for leave all the same."""
        self.live = False
        after, self._after = self._after, []
        for _, line in after:
            self.client.send(line)

    def reached(self, seq: int) -> None:
        """The cursor moves to `seq`; answers that waited for it leave."""
        self.cursor, self.skip = seq, 0
        while self._after and self._after[0][0] <= seq:
            self.client.send(self._after.pop(0)[1])
