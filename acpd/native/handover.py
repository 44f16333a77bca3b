"""What bare `acpd` starts where nothing is configured: the offline agent, until acpd.toml names a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from acpd.api.agent import Agent
from acpd.native.offline import Offline

if TYPE_CHECKING:
    from acpd.api.session import Session
    from acpd.api.shapes import Command, Option, Stop
    from acpd.api.turn import Turn


class UntilSetup(Agent):
    """`look` finds the agent that takes over, None: there is none yet. Asked for each session that is opened, each prompt."""

    name = Offline.name
    title = Offline.title
    version = Offline.version
    audio = Offline.audio
    mcp = True
    auth_methods = Offline.auth_methods
    commands: Sequence[Command] = Offline.commands

    def __init__(self, look: Callable[[], Agent | None]) -> None:
        self._look = look
        self._acting: Agent = Offline()
        self._open: dict[str, Session] = {}
        self._prepared: set[str] = set()
        """The sessions that the one which acts knows of."""

    def options(self, session: Session, /) -> Sequence[Option]:
        return self._acting.options(session)

    def choose(self, session: Session, option: str, value: str, /) -> None:
        self._acting.choose(session, option, value)

    async def opened(self, session: Session, /) -> None:
        self._open[session.id] = session
        await self._prepare(session)

    async def closed(self, session: Session, /) -> None:
        self._open.pop(session.id, None)
        self._prepared.discard(session.id)
        await self._acting.closed(session)

    async def disconnected(self) -> None:
        await self._acting.disconnected()

    async def prompt(self, turn: Turn, /) -> Stop | None:
        await self._prepare(turn.session)
        return await self._acting.prompt(turn)

    async def _prepare(self, session: Session) -> None:
        """With whoever acts now. Cancelled, it is done anew the next time."""
        if isinstance(self._acting, Offline) and (found := self._look()) is not None:
            self._take_over(found)
        if session.id in self._prepared:
            return
        try:
            await self._acting.opened(session)
        except BaseException:
            await self._acting.closed(session)
            raise
        self._prepared.add(session.id)

    def _take_over(self, found: Agent) -> None:
        self._acting = found
        self.commands = found.commands
        self._prepared.clear()
        found.connected()
        for session in self._open.values():
            session.offer()
            session.changed()


def serve(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Serve ACP on stdin and stdout until stdin ends: the exit code. `argv` as of acpd.native.settings.load."""

    def look() -> Agent | None:
        from acpd.errors import ConfigError
        from acpd.native.settings import load

        try:
            settings = load(argv, environ)
        except ConfigError:
            return None  # whoever changes the file is told by what they change it with
        if not settings.model:
            return None
        from acpd.native.agent import NativeAgent

        return NativeAgent(settings, environ, lambda: load(argv, environ))

    return UntilSetup(look).run()
