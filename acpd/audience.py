"""The clients of one session: who is attached, what each has seen, how the log reaches them.

Replay, catching up and reading along are one path: a cursor into the log.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Protocol

from acpd.attachment import Attachment, Client, Staged
from acpd.cursors import Cursor
from acpd.errors import ConnectionBroken, SessionNotFound, StoreError
from acpd.scribe import RETRY_EVERY, Scribe
from acpd.storage.contract import Journals, Key
from acpd.tasks import Tasks
from acpd.wire.envelope import encode
from acpd.wire.framer import Framer
from acpd.wire.lines import Stored

if TYPE_CHECKING:
    from acpd.storage.replay import Replay

PATIENCE = 0.1
"""Seconds that an agent waits, each time, for a client that has fallen behind it a little: to read the log costs more."""


class Held(Protocol):
    """A stream that can be held, as acpd.peer.Peer."""

    def hold(self, why: str, /) -> None: ...
    def release(self, why: str, /) -> None: ...


class Watcher(Protocol):
    """Who wants to know who is there."""

    def came(self) -> None:
        """Somebody is attached, or has another role now."""

    def left(self) -> None:
        """Somebody was disconnected."""


class Audience:
    """See the module.

    `session`: its id as JSON text; `on_live(attachment)` is called when a client has reached the end of the log.
    """

    __slots__ = (
        "_ask",
        "_catching",
        "_id",
        "_journals",
        "_key",
        "_on_live",
        "_scribe",
        "_skipped",
        "_staged",
        "_tasks",
        "attachments",
        "watcher",
    )

    def __init__(
        self,
        key: Key,
        session: bytes,
        journals: Journals,
        scribe: Scribe,
        tasks: Tasks,
        *,
        ask: Callable[[Attachment, str], None],
        on_live: Callable[[Attachment], None],
    ) -> None:
        self.attachments: list[Attachment] = []
        self.watcher: Watcher | None = None
        self._key = key
        self._id = session
        self._journals = journals
        self._scribe = scribe
        self._tasks = tasks
        self._ask = ask
        self._on_live = on_live
        self._staged: list[Staged] = []
        self._skipped = False
        self._catching: list[asyncio.Task[None]] = []

    def attachment(self, client: Client) -> Attachment | None:
        for each in self.attachments:
            if each.client is client:
                return each
        return None

    @property
    def controllers(self) -> list[Attachment]:
        """Those that may be asked, longest attached first."""
        return [each for each in self.attachments if not each.observer]

    def attach(self, client: Client, *, observer: bool = False) -> Attachment:
        """A new attachment of this client, not live: `start` makes it so. It goes on where its old one was, else at the end."""
        old = self.attachment(client)
        new = Attachment(self._key.session, client, self._scribe.flushed, self._behind, self._ask, observer=observer)
        if old is None:
            self.attachments.append(new)
        else:
            new.take_over(old)
            self.attachments[self.attachments.index(old)] = new
        if self.watcher is not None:
            self.watcher.came()
        return new

    def detach(self, client: Client) -> None:
        """It leaves; answers that it still waits for leave with it."""
        if (attachment := self.attachment(client)) is not None:
            self.attachments = [each for each in self.attachments if each is not attachment]
            attachment.let_go()
            if self.watcher is not None:
                self.watcher.left()

    async def dismiss(self, patience: float) -> None:
        """Everybody leaves. Who is behind has so many seconds to read on first; its answers leave in any case."""
        if self._catching:
            await asyncio.wait(self._catching, timeout=patience)
        for attachment in self.attachments:
            attachment.let_go()
        self.attachments = []

    def start(self, attachment: Attachment) -> None:
        """Everything after the cursor, then live."""
        if attachment.cursor >= self._scribe.flushed:
            self._live(attachment)
        else:
            attachment.fall_behind()

    @property
    def is_watched(self) -> bool:
        """Whether anybody reads along, so that frames are wanted at once."""
        for each in self.attachments:  # noqa: SIM110  a third of the time of any()
            if each.live:
                return True
        return False

    def stage(self, item: Staged) -> None:
        """A line that was appended; its frame leaves with the next `publish`."""
        self._staged.append(item)

    def skip(self) -> None:
        """A line that was appended while nobody read along: it has no frame, whoever is live by now must read the log."""
        self._skipped = True

    @property
    def is_staged(self) -> bool:
        return bool(self._staged)

    def publish(self) -> bool:
        """Write what was appended, then feed it to everyone who reads along. Whether the write worked."""
        if not self._scribe.commit():
            return False
        staged, self._staged = self._staged, []
        skipped, self._skipped = self._skipped, False
        for attachment in self.attachments:
            if skipped and attachment.live:
                attachment.fall_behind()
            else:
                attachment.feed(staged, self._scribe.flushed)
        return True

    def pace(self, link: Held) -> None:
        """Let the agent wait, not for long, if somebody who reads along is full by now."""
        full = [each.client for each in self.attachments if each.live and each.client.paused]
        if full:
            link.hold("clients")
            self._tasks.spawn(self._wait_for(full, link), name=f"pace:{self._key.session}")

    async def _wait_for(self, clients: list[Client], link: Held) -> None:
        try:
            async with asyncio.timeout(PATIENCE):
                for client in clients:
                    await client.drained()
        except (TimeoutError, ConnectionBroken):
            pass  # whoever is still full reads the log
        finally:
            link.release("clients")

    async def replay(self, attachment: Attachment, done: Cursor | None = None) -> None:
        """Send the whole conversation, folded, then the newest facts; the cursor stands behind it then.

        `done`: what of it the client got over an earlier connection.

        Raises ConnectionBroken when the client is gone, StoreError when the log cannot be read. Whoever is not told all of it
        reads on from where it would have ended; so does who cancels it.
        """
        from acpd.storage.replay import Replay  # 13 ms that a start need not pay

        self.publish()
        until = min(done.seq, self._scribe.flushed) if done else self._scribe.flushed
        told = Replay(self._key.session, attachment.client.kinds)
        sending = _Sending(attachment, until, done.frames if done else 0)
        is_running = self._scribe.fold.turn is not None
        facts = told.facts(self._scribe.fold, until)  # now: later ones come behind the cursor
        try:
            windows = aiter(self._journals.path(self._key, until=until, straight=self._scribe.fold.straight))
            while await sending.next(windows, told):
                pass
            await sending.send([*told.finish(is_running=is_running), *facts])
        except (asyncio.CancelledError, StoreError):
            if attachment in self.attachments:
                attachment.reached(until)
                self.start(attachment)
            raise
        attachment.reached(until)

    def _live(self, attachment: Attachment) -> None:
        attachment.live = True
        attachment.reached(self._scribe.flushed)
        self._on_live(attachment)

    def _behind(self, attachment: Attachment) -> None:
        task = self._tasks.spawn(self._catch_up(attachment), name=f"catch-up:{self._key.session}")
        self._catching.append(task)
        task.add_done_callback(self._catching.remove)

    async def _catch_up(self, attachment: Attachment) -> None:
        while attachment in self.attachments and not attachment.live:
            try:
                await attachment.client.drained()
                await self._read_on(attachment)
            except (ConnectionBroken, SessionNotFound):
                return
            except StoreError:  # e.g. no descriptor is free: what it owes is still in the log
                await asyncio.sleep(RETRY_EVERY)

    async def _read_on(self, attachment: Attachment) -> None:
        """From the cursor to the end of the log as it is now; if it is there already, the attachment is live."""
        until = self._scribe.flushed
        if attachment.cursor >= until:
            self._live(attachment)
            return
        client = attachment.client
        windows = aiter(self._journals.read(self._key, after=attachment.cursor, until=until))
        while True:
            async with client.reading:
                await client.drained()
                window = await anext(windows, None)
                if attachment not in self.attachments:
                    return
                if window is None:
                    break
                client.send(attachment.told(window[-1].seq, self._frames(attachment, window)))
                attachment.reached(window[-1].seq)  # before waiting: whoever takes over must not send it again
                await client.drained()
        attachment.reached(until)

    def _frames(self, attachment: Attachment, window: list[Stored]) -> list[bytes]:
        """Line by line, but for the prompts that this client sent itself."""
        from acpd.storage import replay

        framer = Framer(self._id)
        frames: list[bytes] = []
        own = f"{attachment.client.token}:" if attachment.client.token else None
        for line in window:
            if line.id in attachment.own:
                attachment.own.discard(line.id)
            elif own is None or not line.by.startswith(own):
                frames.append(attachment.placed(line.seq, b"".join(replay.live(line, framer, attachment.client.kinds))))
        return frames

    def notify(self, frame: bytes, kind: str) -> None:
        """A frame that is not stored, to every client that may get this kind and reads."""
        for attachment in self.attachments:
            if kind in attachment.client.kinds and not attachment.client.paused:
                attachment.client.send(attachment.unplaced(frame))

    def notice(self, severity: str, title: str, description: str, but: str = "") -> None:
        """Something passing for the user: a `notice` where the client knows them, else a message. Not stored. `but`: not for
        clients that know this kind of update.
        """
        for attachment in self.attachments:
            if but not in attachment.client.kinds:
                self.tell(attachment, severity, title, description)

    def tell(self, attachment: Attachment, severity: str, title: str, description: str) -> None:
        """A notice for one client."""
        said = encode({"sessionUpdate": "notice", "severity": severity, "title": title, "description": description})
        text = encode({"type": "text", "text": f"[acpd] {title}: {description}\n\n"})
        message = b'{"sessionUpdate":"agent_message_chunk","content":%b,"messageId":"%b"}' % (
            text,
            self._scribe.new_id().encode(),
        )
        update = said if "notice" in attachment.client.kinds else message
        params = b'{"sessionId":%b,"update":%b,"_meta":{"acpd.dev/notice":true}}' % (self._id, update)
        attachment.client.notify("session/update", params)


def import_replay() -> None:
    """What a first session/load would wait 13 ms for, and a first session/new 4."""
    for name in ("acpd.storage.replay", "acpd.wire.answers"):
        importlib.import_module(name)


class _Sending:
    """The frames of one replay; the first `skip` of them are not sent."""

    def __init__(self, attachment: Attachment, until: int, skip: int) -> None:
        self._attachment = attachment
        self._until = until
        self._skip = skip
        self._count = 0

    async def next(self, windows: AsyncIterator[list[Stored]], told: Replay) -> bool:
        """Send what the next window of the log says. Whether there was one."""
        client = self._attachment.client
        async with client.reading:
            await client.drained()
            window = await anext(windows, None)
            if window is not None:
                await self.send(told.feed(window))
        return window is not None

    async def send(self, frames: list[bytes]) -> None:
        client = self._attachment.client
        seen = max(0, self._skip - self._count)
        self._count += len(frames)
        client.send(self._attachment.told_in_replay(self._until, self._count, frames[seen:]))
        await client.drained()
