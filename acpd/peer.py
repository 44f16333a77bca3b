"""One JSON-RPC protocol on one byte stream: framing, order, backpressure.

Everything here runs on the event loop and nothing waits: a line is handled by plain calls to the owner, in the
order of the stream. Output leaves in the order of the calls, one write a tick.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Sequence
from typing import BinaryIO, Literal
from typing import Protocol as Interface

from acpd.errors import ConnectionBroken, RequestError, Unanswered
from acpd.rpc import framing, protocol
from acpd.rpc.protocol import Params, Then
from acpd.wire import envelope

HIGH_WATER = 256 * 1024
FULL = 1024 * 1024
"""Bytes of output that wait for a client at which nothing more of it is handled: it asks and does not read the answers."""
LINES_A_TURN = 200
"""Lines of a client that are handled before others have their turn."""
AT_ONCE = 32 * 1024
"""Bytes of one send that are handed on in place, so that `paused` is true behind the send that filled the pipe."""
_OUTPUT, _TURN = "output", "turn"
"""Why a client's input is held; see Peer."""


def pipe_end(fd: int, mode: Literal["rb", "wb"]) -> BinaryIO:
    """This descriptor, for `connect_read_pipe` and `connect_write_pipe`, which close it in the end. Call it on the loop.

    uvloop closes the descriptor itself and then this object as well: were it to close the number again, that could be
    another file's by then, a log's or an agent's. asyncio's own loop leaves the closing to the object.
    """
    own = not type(asyncio.get_running_loop()).__module__.startswith("uvloop")
    return os.fdopen(fd, mode, buffering=0, closefd=own)


class Owner(Interface):
    """Who handles what comes in. Plain calls; they must not raise but for bugs."""

    def on_request(self, identifier: bytes, method: str, params: Params, /) -> None: ...
    def on_notification(self, method: str, params: Params, /) -> None: ...
    def on_bad_line(self, why: str, /) -> None: ...
    def on_batch_end(self) -> None:
        """All complete lines of one read are handled: write what is buffered."""

    def on_writable(self) -> None:
        """The peer reads again after `paused`."""

    def on_closed(self) -> None:
        """The peer's stream has ended. Called once."""


class Peer(asyncio.Protocol):
    """The stream's two halves may be one transport (a socket) or two (pipes): both get this object as their protocol.

    `position`: bytes of the input up to and including the line that is being handled and its newline, which is counted
    too where the stream ends without it.

    `polite` is for clients: one that does not read what it has asked for is not listened to until it does, and many lines at
    once are handled in turns. An agent is always listened to: it may well write all that it has before it reads again.
    """

    def __init__(
        self, owner: Owner, *, strict: bool, polite: bool = False, limit: int = framing.MAX_LINE, first_id: int = 0
    ) -> None:
        """`first_id`: where the numbers of our own requests begin."""
        self._owner = owner
        self._lines = framing.Lines(limit)
        self._rpc = protocol.Protocol(strict=strict, first_id=first_id)
        self._todo: deque[bytes | framing.TooLong] = deque()
        self._holds: set[str] = set()
        self._polite = polite
        self._ended = False
        self._working = False
        self._out: list[bytes] = []
        self._scheduled = False
        self._reader: asyncio.ReadTransport | None = None
        self._writer: asyncio.WriteTransport | None = None
        self._drained: asyncio.Event | None = None
        self.position = 0
        self.shortcut: Callable[[Sequence[bytes | framing.TooLong]], int] | None = None
        """Sees the lines that are there first, one at least, and says how many of them it has handled, which are not too long.
        It must be as strict as the protocol.
        """
        self.paused = False
        self.closed = False
        self._loop = asyncio.get_running_loop()

    # -- asyncio.Protocol

    def use_reader(self, transport: asyncio.ReadTransport) -> None:
        """Where input comes from: what `hold` pauses."""
        self._reader = transport
        if self._holds:
            transport.pause_reading()

    def use_writer(self, transport: asyncio.WriteTransport) -> None:
        """Where output goes. Call before the first send leaves."""
        self._writer = transport
        transport.set_write_buffer_limits(HIGH_WATER)

    def data_received(self, data: bytes) -> None:
        self._todo.extend(self._lines.receive(data))
        self._work()

    def eof_received(self) -> bool:
        self._finish()
        return True

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  asyncio's signature
        self._holds -= {_OUTPUT, _TURN}  # what it has said counts, and nobody will read
        self._finish()

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False
        self.release(_OUTPUT)
        if self._drained is not None:
            self._drained.set()
            self._drained = None
        self._owner.on_writable()

    # -- in

    def hold(self, why: str = "") -> None:
        """Handle no further line until this `why` is released; what was read already is kept, the rest waits in the pipe."""
        if not self._holds and self._reader is not None and not self._reader.is_closing():
            self._reader.pause_reading()
        self._holds.add(why)

    def release(self, why: str = "") -> None:
        """Go on where `hold` stopped, unless something else holds too. Not held is no error."""
        if why not in self._holds:
            return
        self._holds.discard(why)
        if self._holds:
            return
        if self._reader is not None and not self._reader.is_closing():
            self._reader.resume_reading()
        self._loop.call_soon(self._go_on)

    @property
    def held(self) -> bool:
        return bool(self._holds)

    def _go_on(self) -> None:
        if self._ended:
            self._finish()
        else:
            self._work()

    def _work(self) -> None:
        if self._working:
            return
        self._working = True
        left = LINES_A_TURN if self._polite else len(self._todo)
        try:
            while self._todo and not self._holds:
                if self.shortcut is not None and (count := self.shortcut(self._todo)):
                    self._pass(count)
                    continue
                if not left:
                    self._take_turns()
                    break
                left -= 1
                self._one(self._todo.popleft())
        finally:
            self._working = False
        self._owner.on_batch_end()

    def _take_turns(self) -> None:
        """Go on when the others had theirs."""
        self.hold(_TURN)
        self._loop.call_soon(self.release, _TURN)

    def _one(self, line: bytes | framing.TooLong) -> None:
        if isinstance(line, framing.TooLong):
            self.position += line.size + 1
            self._bad(self._rpc.too_long(line.size, self._lines.limit))
            return
        self.position += len(line) + 1
        if not line or line.isspace():
            return
        event = self._rpc.receive(line)
        if type(event) is protocol.Notification:
            self._owner.on_notification(event.method, event.params)
        elif type(event) is protocol.Request:
            self._requested(event.id, event.method)
            self._owner.on_request(event.id, event.method, event.params)
        elif type(event) is protocol.Response:
            event.then(event.result, event.error)
        elif type(event) is protocol.Bad:
            self._bad(event)

    def _pass(self, count: int) -> None:
        """So many lines are handled."""
        for _ in range(count):
            self.position += len(self._todo.popleft()) + 1

    def _bad(self, event: protocol.Bad) -> None:
        self._owner.on_bad_line(event.why)
        if event.reply:
            self.send(self._dressed(event.reply))

    def _requested(self, identifier: bytes, method: str, /) -> None:
        """A request was read and is handled next. For streams that number their lines."""

    def number(self, identifier: bytes, /) -> int:  # noqa: ARG002
        """Of the line that this open request came in, where the stream numbers its lines; 0: it does not."""
        return 0

    def _last(self) -> bytes:
        """The line at the end of the stream that has no newline, where such a one counts; else empty."""
        return self._lines.rest()

    def _finish(self) -> None:
        """The input has ended. Lines that `hold` keeps back are handled first."""
        if self.closed:
            return
        if not self._ended:
            self._ended = True
            if rest := self._last():
                self._todo.append(rest)
        self._work()
        if self._todo:
            return
        self.closed = True
        if self._drained is not None:
            self._drained.set()
        broken = Unanswered("the connection has ended")
        for then in self._rpc.broken():
            then(None, broken)
        self._owner.on_closed()

    # -- out

    def send(self, data: bytes) -> None:
        """Whole lines, in order. Leaves at the end of this tick at the latest. Dropped when the stream has ended."""
        if not data or self._writer is None or self._writer.is_closing():
            return
        self._out.append(data)
        if len(data) >= AT_ONCE:
            self._flush()
        elif not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._scheduled = False
        if self._out and self._writer is not None and not self._writer.is_closing():
            self._writer.write(b"".join(self._out) if len(self._out) > 1 else self._out[0])
            if self._polite and self.paused and self._writer.get_write_buffer_size() > FULL:
                self.hold(_OUTPUT)
        self._out.clear()

    def call(self, method: str, params: bytes, then: Then, identifier: bytes | None = None, place: bytes = b"") -> bytes:
        """Send a request; `then(result, error)` comes once. Returns its id. `place`: as for `answer`."""
        if self.closed:
            self._loop.call_soon(then, None, Unanswered("the connection has ended"))
            return b""
        identifier, line = self._rpc.call(method, params, then, identifier)
        self.send(self._dressed(line, place=place))
        return identifier

    def expect(self, identifier: bytes, then: Then) -> None:
        """As `call`, for a request that this peer got over an earlier stream."""
        self._rpc.expect(identifier, then)

    def forget(self, identifier: bytes) -> None:
        """A later answer to this call is dropped; its `then` is not called."""
        self._rpc.forget(identifier)

    async def ask(self, method: str, params: bytes, *, withdraw: bool = False) -> bytes:
        """The raw result. Raises the peer's RequestError. Cancelling it drops the answer; `withdraw`: and tells the peer."""
        future: asyncio.Future[bytes] = self._loop.create_future()

        def then(result: bytes | None, error: RequestError | None) -> None:
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            elif result is not None:
                future.set_result(result)

        identifier = self.call(method, params, then)
        try:
            return await future
        except asyncio.CancelledError:
            if withdraw and identifier and not self.closed:
                self.notify("$/cancel_request", b'{"requestId":%b}' % identifier)
            raise
        finally:
            self._rpc.forget(identifier)

    def notify(self, method: str, params: bytes) -> None:
        self.send(self._dressed(envelope.notification(method, params)))

    @property
    def open_requests(self) -> int:
        """How many requests of the peer wait for their answers."""
        return self._rpc.open_requests

    def answer(self, identifier: bytes, result: bytes, place: bytes = b"", *, sets_up: bool = False) -> None:
        """`place`: where the client stands in a session behind it (acpd.cursors); `sets_up`: the request attached it."""
        if line := self._rpc.answer(identifier, result):
            self.send(self._dressed(line, identifier, place, sets_up=sets_up))

    def refuse(self, identifier: bytes, error: RequestError) -> None:
        self.send(self.settle(identifier, None, error))

    def settle(self, identifier: bytes, result: bytes | None, error: RequestError | None) -> bytes:
        """The answer's line, not sent: for output that must keep its place behind other output. Empty if answered already."""
        if error is not None:
            line = self._rpc.refuse(identifier, error)
        else:
            line = self._rpc.answer(identifier, result if result is not None else b"{}")
        return self._dressed(line, identifier) if line else b""

    def _dressed(self, line: bytes, answered: bytes | None = None, place: bytes = b"", *, sets_up: bool = False) -> bytes:  # noqa: ARG002
        """The line as this stream carries it. `answered`: the id of the request that it answers."""
        return line

    async def drained(self) -> None:
        """Until the peer takes more. Raises ConnectionBroken when it is gone."""
        while self.paused and not self.closed:
            if self._drained is None:
                self._drained = asyncio.Event()
            await self._drained.wait()
        if self.closed:
            raise ConnectionBroken("the connection has ended")

    def abort(self) -> None:
        """As if the stream had ended now; what was not sent yet is lost."""
        self._todo.clear()
        self._holds.clear()
        if self._writer is not None:
            self._writer.abort()
        self._finish()

    def close(self) -> None:
        """Close both halves after what was sent has left. Idempotent."""
        self._flush()
        if self._writer is not None:
            self._writer.close()
        if self._reader is not None:
            self._reader.close()
