"""What an agent is: subclass `Agent`, or hand `serve` a function.

ACP itself is kept by acpd.api.connection: an agent never sees a request, only sessions and turns.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from acpd.api.options import refusal
from acpd.api.shapes import Command, Option, Stop

if TYPE_CHECKING:
    from acpd.api.session import Session
    from acpd.api.turn import Turn

CLOSE_TIMEOUT = 5.0
"""Seconds that `closed` may take."""


class Agent(ABC):
    """One instance serves one connection. Sessions run at the same time on one event loop, each with one turn at a time.

    What leaves a method as `Refused` is the client's answer; any other exception is told as the agent's failure, with its
    traceback on stderr, and everything else goes on.
    """

    name: str = "agent"
    title: str = ""
    version: str = "0"
    images: bool = True
    audio: bool = False
    embedded: bool = True
    """What a prompt may have besides text and links: images, audio, resources with their content."""
    mcp: bool = False
    """Whether it connects to MCP servers at URLs (http, sse) and not only to those that are programs."""
    commands: Sequence[Command] = ()
    auth_methods: Sequence[Mapping[str, object]] = ()
    """As ACP has them (authMethods). Those of type "terminal" are told to clients only that can run them."""

    @abstractmethod
    async def prompt(self, turn: Turn, /) -> Stop | None:
        """Answer one prompt; None: "end_turn". Cancelled by the client's cancel, wherever it waits; then the answer is
        "cancelled" whatever this returns or raises. Raises Refused to answer with an error.
        """

    def connected(self) -> None:
        """The client was answered its `initialize`: what takes long and belongs to no session can begin in the background."""

    def remembers(self, session: Session, /) -> bool:  # noqa: ARG002  for those that remember
        """Whether a session that is loaded or resumed in a new process can go on with what the client has kept of it
        (`session.state`). If not it is answered "unknown session": acpd begins anew then, and tells the conversation as text.
        """
        return True

    async def opened(self, session: Session, /) -> None:
        """A session was begun, loaded or resumed, and the client has its answer. Its first prompt waits for this.

        Called again, after `closed`, when a later load or resume brings other MCP servers or folders. An exception is told
        to the user, and the session goes on without what was prepared here. Cancelled when the session is closed.
        """

    async def closed(self, session: Session, /) -> None:
        """A session was closed, or the connection has ended. Given up after CLOSE_TIMEOUT seconds."""

    async def disconnected(self) -> None:
        """The client is gone, and all its sessions are closed: what was begun in `connected` ends. Given up after LAST_WAIT
        seconds (acpd.api.connection).
        """

    def answered(self, session: Session, /) -> None:
        """A prompt's answer was sent, whatever it was, and the state is kept: what nobody should wait for can begin now."""

    def options(self, session: Session, /) -> Sequence[Option]:  # noqa: ARG002  for those that have some
        """The session's settings with their values now (`session.choices`). One of the category "mode" is its mode too."""
        return ()

    def choose(self, session: Session, option: str, value: str, /) -> None:
        """The client sets an option. What is put into `session.choices` is durable. Raises Refused for a value that is none."""
        found = self.options(session)
        if not any(each.id == option and any(choice.value == value for choice in each.choices) for each in found):
            raise refusal(found, option, value)
        session.choices[option] = value

    def run(self) -> int:
        """Serve ACP on stdin and stdout until the client ends: the exit code. Whatever else is printed goes to stderr."""
        from acpd.api.running import run  # what only a running agent needs

        return run(self)


class _Function(Agent):
    def __init__(self, function: Callable[[Turn], Awaitable[Stop | None]]) -> None:
        self._function = function

    async def prompt(self, turn: Turn, /) -> Stop | None:
        return await self._function(turn)


def serve(
    prompt: Callable[[Turn], Awaitable[Stop | None]],
    *,
    name: str = "agent",
    title: str = "",
    version: str = "0",
    images: bool = True,
    audio: bool = False,
    embedded: bool = True,
    commands: Sequence[Command] = (),
) -> int:
    """Run the agent that answers prompts with this function. The names are those of `Agent`; returns the exit code."""
    agent = _Function(prompt)
    agent.name, agent.title, agent.version = name, title, version
    agent.images, agent.audio, agent.embedded = images, audio, embedded
    agent.commands = commands
    return agent.run()
