"""One client on one session: a cursor into the log, and no buffer.

The cursor is the `seq` of the last line that the client got. A client that reads along is fed the frames as
they are made. One that does not is left alone and later reads on from the log, from its cursor: each line once,
in order, late, at nobody else's cost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from msgspec import Struct

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

    @property
    def paused(self) -> bool: ...
    def send(self, data: bytes, /) -> None: ...
    def call(self, method: str, params: bytes, then: Then, identifier: bytes | None = None, /) -> bytes: ...
    def forget(self, identifier: bytes, /) -> None: ...
    def notify(self, method: str, params: bytes, /) -> None: ...
    def settle(self, identifier: bytes, result: bytes | None, error: RequestError | None, /) -> bytes: ...
    async def drained(self) -> None: ...


class Staged(Struct, gc=False):
    """One new line, ready for clients: its frame, or (ask) the id of the ask to send."""

    seq: int
    kind: str
    frame: bytes
    ask: str = ""
    origin: Client | None = None
    """Who caused it and knows it already: it gets no frame."""


class Attachment:
    """See the module. `behind(attachment)` starts the reading of the log; `ask(attachment, id)` sends one ask."""

    __slots__ = ("_after", "_ask", "_behind", "client", "cursor", "live", "observer", "own")

    def __init__(
        self,
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
        self.live = False
        self.own: set[str] = set()
        """Ids of prompt entries that this client sent and that its cursor has not passed."""
        self._ask = ask
        self._behind = behind
        self._after: list[tuple[int, bytes]] = []

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
        for item in staged:
            if item.ask:
                client.send(b"".join(frames))
                frames.clear()
                self._ask(self, item.ask)
            elif item.kind in kinds and item.origin is not client:
                frames.append(item.frame)
        client.send(b"".join(frames))
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
        self.cursor = seq
        while self._after and self._after[0][0] <= seq:
            self.client.send(self._after.pop(0)[1])
