"""What becomes of a live session that is left alone: its turns without a controller, its agent without anybody.

Who left may come back at once (a client that reconnects): nothing happens within RETURN seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from acpd.session import LiveSession
from acpd.turn import Turn

RETURN = 5.0
"""Seconds in which a client that was disconnected may come back before its turns are cancelled."""


class Presence:
    """Two timers of one session. `close` is called with its id when it has been idle and alone for `settings.keep_idle`
    seconds, `save` when a turn has ended and none waits.
    """

    __slots__ = ("_alone", "_close", "_idle", "_save", "_seq", "_session")

    def __init__(self, session: LiveSession, close: Callable[[str], None], save: Callable[[], None]) -> None:
        self._session = session
        self._close = close
        self._save = save
        self._alone: asyncio.TimerHandle | None = None
        """Until the turns of a session without a controller are cancelled."""
        self._idle: asyncio.TimerHandle | None = None
        """Until a session without any client is looked at."""
        self._seq = 0
        """The newest line when that timer began."""
        session.audience.watcher = self
        session.on_idle = self.settled
        self._watch()

    def came(self) -> None:
        """Somebody is attached, or has another role now."""
        if self._alone is not None and self._session.audience.controllers:
            self._alone.cancel()
            self._alone = None
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None

    def left(self) -> None:
        """Somebody was disconnected."""
        audience = self._session.audience
        if self._session.settings.cancel_alone and not audience.controllers and self._alone is None:
            self._alone = asyncio.get_running_loop().call_later(RETURN, self._cancel)
        if not audience.attachments:
            self._watch()

    def settled(self) -> None:
        """A turn has ended, and none waits."""
        self._save()
        self.again()

    def again(self) -> None:
        """Wait `keep_idle` seconds from now, if it waits at all."""
        if self._idle is not None:
            self._watch()

    def stop(self) -> None:
        """The session is closed."""
        for timer in (self._alone, self._idle):
            if timer is not None:
                timer.cancel()

    def _cancel(self) -> None:
        self._alone = None
        self._session.cancel()

    def _watch(self) -> None:
        """Look at it when it has been alone for `keep_idle` seconds from now."""
        if self._idle is not None:
            self._idle.cancel()
        self._seq = self._session.fold.seq
        self._idle = asyncio.get_running_loop().call_later(self._session.settings.keep_idle, self._look)

    def _look(self) -> None:
        """Close it if nothing runs, waits or was said meanwhile; else, and where it cannot be closed, look again later."""
        session = self._session
        busy = session.state is not Turn.IDLE or session.fold.asks or session.recorder.is_storing
        if not busy and session.fold.seq == self._seq:
            self._close(session.id)
        self._watch()
