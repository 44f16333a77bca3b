"""A session as its agent sees it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from acpd.api import options
from acpd.api.channel import Channel, encode
from acpd.api.shapes import Client, Command, McpServer, Severity, servers
from acpd.api.state import State
from acpd.errors import StateUnreadable
from acpd.tasks import Tasks
from acpd.wire.messages import NewSession

if TYPE_CHECKING:
    from pathlib import Path

    from acpd.api.agent import Agent
    from acpd.api.hands import Hands
    from acpd.api.turn import Turn

T = TypeVar("T")
CHOICES = "choices"
"""The state that keeps the values of the options."""


class Session:
    """One conversation. The same object as long as the agent's process has it, through load, resume and close."""

    def __init__(self, agent: Agent, channel: Channel, client: Client, hands: Hands, tasks: Tasks) -> None:
        """`tasks`: end with the session."""
        self.id: str = channel.id
        self.cwd: Path
        self.roots: tuple[Path, ...]
        """cwd and the additional folders, absolute: where files may be touched."""
        self.mcp_servers: Sequence[McpServer]
        """In memory only, as they hold secrets."""
        self.client: Client = client
        self.choices: dict[str, str] = {}
        """The values that were chosen, by option."""
        self.state: State = State(channel)
        self.turn: Turn | None = None
        """The one that runs."""
        self.new: bool = True
        """Begun by session/new; else it was loaded or resumed."""
        self.channel = channel
        self.hands = hands
        self.tasks = tasks
        self.agent = agent
        self._where: object = None
        self._told: bytes = b""
        self._mode: str | None = None
        self._told_unreadable: set[str] = set()
        self._untold: list[StateUnreadable] = []

    def update(self, update: Mapping[str, object]) -> None:
        """Send any session/update. It is part of the conversation, and of a replay if its kind is."""
        self.channel.send(update)

    def notice(self, severity: Severity, title: str, description: str = "") -> None:
        """Tell the user something that is not part of the conversation. Where the client knows no notices it is a message
        that begins with the agent's name.
        """
        if self.client.notices:
            said = {"sessionUpdate": "notice", "severity": severity, "title": title}
            self.channel.send({**said, "description": description} if description else said)
            return
        text = f"[{self.agent.title or self.agent.name}] {title}" + (f": {description}" if description else "") + "\n"
        self.channel.next_message()
        message = self.channel.name("notice")
        block = {"type": "text", "text": text}
        self.channel.send({"sessionUpdate": "agent_message_chunk", "messageId": message, "content": block}, keep=False)

    def rename(self, title: str) -> None:
        self.channel.send({"sessionUpdate": "session_info_update", "title": title})

    def used(self, used: int, size: int, cost: tuple[float, str] | None = None) -> None:
        """Tokens in the context, and how many it may have; `cost`: of the whole session, (amount, currency of ISO 4217).

        Raises TypeError for a cost that is no such pair, a number alone for example: ACP wants the currency too.
        """
        said: dict[str, object] = {"sessionUpdate": "usage_update", "used": used, "size": size}
        if cost is not None:
            said["cost"] = _cost(cost)
        self.channel.send(said)

    def changed(self) -> None:
        """The options are others now, or have other values: the client is told what it does not know yet."""
        found = self.agent.options(self)
        told = encode(options.rendered(found))
        mode = options.mode_of(found)
        if mode is not None and mode.value != self._mode:
            self._mode = mode.value
            self.channel.send({"sessionUpdate": "current_mode_update", "currentModeId": mode.value})
        if told != self._told:
            self._told = told
            self.channel.send({"sessionUpdate": "config_option_update", "configOptions": msgspec.Raw(told)})

    def offer(self) -> None:
        """Tell the client which commands the agent has now."""
        commands = [_command(each) for each in self.agent.commands]
        self.channel.send({"sessionUpdate": "available_commands_update", "availableCommands": commands})

    async def request(self, method: str, params: Mapping[str, object]) -> Any:
        """Ask the client something beyond ACP, by a method that begins with `_`; the params get the sessionId. What it says,
        decoded. Raises RequestError, which is the client's, ConnectionBroken. Cancelling it withdraws the question.
        """
        return msgspec.json.decode(await self.channel.ask(method, params))

    def spared(self, name: str, type: type[T]) -> T | None:  # noqa: A002  as in State
        """As `state.get`, for a value without which a session can go on: of one that cannot be read None, which the user is
        told once. It stays with the client as it is, and what is put from then on holds as long as this process only.
        """
        try:
            return self.state.get(name, type)
        except StateUnreadable as error:
            self.state.leave(name)
            if name not in self._told_unreadable:
                self._told_unreadable.add(name)
                self._tell(error) if self.turn is not None else self._untold.append(error)
            return None

    def spawn(self, coroutine: Coroutine[Any, Any, object], name: str) -> asyncio.Task[object]:
        """A task that ends with the session. Its failure goes to stderr."""
        return self.tasks.spawn(coroutine, name=f"{name}:{self.id}")

    # -- for the connection

    def tell(self) -> None:
        """A turn begins: what could not be read before there was one is told now."""
        pending, self._untold = self._untold, []
        for error in pending:
            self._tell(error)

    def _tell(self, error: StateUnreadable) -> None:
        self.notice("warning", "A part of what was kept of this session cannot be read; it goes on without", str(error))

    def set_up(self, request: NewSession) -> bool:
        """Take what a request says about where and with what to work. Whether that is something else than before."""
        from pathlib import Path  # 5 ms that the answer to initialize need not wait for

        cwd = Path(request.cwd)
        found = cwd, (cwd, *map(Path, request.directories)), servers(bytes(request.mcpServers), remote=self.agent.mcp)
        changed = found != self._where
        self._where = self.cwd, self.roots, self.mcp_servers = found
        return changed

    def knows(self, *, mode: str | None = None, listed: list[dict[str, object]] | None = None) -> None:
        """The client knows the mode, or the options, by an answer or by its own request."""
        if mode is not None:
            self._mode = mode
        if listed is not None:
            self._told = encode(listed)

    def setup(self) -> dict[str, object]:
        """Modes and options for the answer to new, load and resume."""
        found = self.agent.options(self)
        mode = options.mode_of(found)
        self.knows(mode=mode.value if mode is not None else None, listed=options.rendered(found))
        return options.setup(found)

    def restore(self, values: Mapping[str, bytes]) -> None:
        """Take the state that a client has kept."""
        self.state.restore(values)
        self.choices = self.spared(CHOICES, dict[str, str]) or {}


def _command(command: Command) -> dict[str, object]:
    found: dict[str, object] = {"name": command.name, "description": command.description}
    return {**found, "input": {"hint": command.hint}} if command.hint else found


def _cost(cost: object) -> dict[str, object]:
    match cost:
        case (int() | float() as amount, str(currency)) if currency:
            return {"amount": amount, "currency": currency}
        case _:
            raise TypeError(f'a cost is (amount, currency), such as (0.12, "USD"), not {cost!r}')
