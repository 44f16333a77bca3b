"""What a live session needs of the rest: its store, its limits, and an agent."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from acpd.errors import RequestError
from acpd.storage.contract import Catalog, Journals, Lease, Memory, Session
from acpd.turn import Prompt

if TYPE_CHECKING:
    from acpd.session import LiveSession


class Store(NamedTuple):
    """The parts of a backend. `memory` None: what is to be remembered is refused."""

    session: Session
    journals: Journals
    catalog: Catalog
    lease: Lease
    memory: Memory | None = None


class Settings(NamedTuple):
    """Limits of live sessions. Seconds, and numbers of prompts, tokens and agents.

    `cancel_alone`: whether turns are cancelled when the last controller was disconnected; `keep_idle`: how long a session is
    kept live without any client. `tools`: the command of `acpd mcp`, without a session, that agents get; empty: none.
    """

    queue: int = 32
    cancel_timeout: float = 10.0
    stop_grace: float = 1.0
    start_timeout: float = 30.0
    primer_tokens: int = 50_000
    cancel_alone: bool = False
    keep_idle: float = 600.0
    agents: int = 2000
    tools: tuple[str, ...] = ()


class Link(Protocol):
    """What a session needs of the pipes to its agent."""

    id: str
    name: str
    inner: bytes
    """The agent's own id of the session, as JSON text."""

    @property
    def gone(self) -> bool:
        """Whether it has ended: a prompt would not reach it."""
        ...

    def prompt(self, prompt: Prompt, then: Callable[[bytes | None, RequestError | None], None], /) -> None: ...
    def cancel(self) -> None: ...
    def hold(self, why: str, /) -> None: ...
    def release(self, why: str, /) -> None: ...
    async def ask(self, method: str, params: bytes, /) -> bytes: ...
    async def stop(self) -> None: ...


class Agents(Protocol):
    """Who starts agents for sessions."""

    async def bring_up(self, session: LiveSession, /) -> Link:
        """An agent that has this session's context. Raises AgentError, RequestError (the agent's own)."""
        ...
