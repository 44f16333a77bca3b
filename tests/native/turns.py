"""A turn, a session and tools for tests of the model loop, without a connection."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from acpd.api.shapes import Client
from acpd.native.cutting import Rules
from acpd.native.history import History
from acpd.native.loop import RULES, Loop
from acpd.native.models import Chosen, Loaded, load
from acpd.native.outcomes import Limits, Outcome
from acpd.native.toolbox import Tool, Toolbox, ToolOutput
from tests.support.models import Json

if TYPE_CHECKING:
    from acpd.api.session import Session
    from acpd.api.turn import Turn

CHOSEN = {
    "chat": ("openai", "m", "/v1"),
    "responses": ("openai-responses", "gpt-5.6-terra", "/v1"),
    "anthropic": ("anthropic", "claude-sonnet-5-5", ""),
    "gemini": ("google", "gemini-3.8-flash", ""),
}
KEY = "sk-canary-1234567890"
ENV: dict[str, str] = dict.fromkeys(("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GOOGLE_API_KEY"), KEY)
QUICK = Limits(requests=5, attempts=3, patience=0.02, first=10, silence=10)


async def loaded(dialect: str, url: str) -> Loaded:
    provider, name, path = CHOSEN[dialect]
    return await asyncio.to_thread(load, Chosen(provider, name, url + path), ENV)


class Told:
    """What a session and its turn were told, in order: (kind, value)."""

    def __init__(self, text: str = "", blocks: Sequence[Json] = ()) -> None:
        self.heard: list[tuple[str, Any]] = []
        self.choices: dict[str, str] = {"mode": "code"}
        self.blocks: Sequence[Json] = blocks or [{"type": "text", "text": text}]
        self.session = self.channel = self
        self.client = Client(compaction=True)
        self.newest = ""
        self.pauses = 0
        """Await so often in `say`, as a client does that reads slowly."""

    def texts(self, kind: str = "say") -> str:
        return "".join(value for name, value in self.heard if name == kind)

    def name(self, kind: str) -> str:
        return f"{kind}-{len(self.heard)}"

    def update(self, update: Mapping[str, object]) -> None:
        self.heard.append(("update", update))

    async def say(self, text: str) -> None:
        self.newest = f"said-{len(self.heard)}"
        for _ in range(self.pauses):
            await asyncio.sleep(0)
        self.heard.append(("say", text))

    async def think(self, text: str) -> None:
        self.heard.append(("think", text))

    async def show(self, block: Mapping[str, object]) -> None:
        self.heard.append(("show", block))

    def notice(self, severity: str, title: str, description: str = "") -> None:
        self.heard.append(("notice", f"{severity}: {title}: {description}"))

    def used(self, used: int, size: int, cost: tuple[float, str] | None = None) -> None:
        self.heard.append(("used", (used, size, cost)))


class Look(Tool):
    """A harmless tool. `running` counts how many run at once."""

    name = "read"
    description = "Read a file"
    schema: Mapping[str, object] = {"type": "object", "properties": {"path": {"type": "string"}}}
    harmless = True

    def __init__(self) -> None:
        self.running = 0
        self.most = 0

    def scope(self, session: Session, arguments: Mapping[str, Any]) -> str:
        return ""

    async def run(self, turn: Turn, call: Any, arguments: Mapping[str, Any]) -> ToolOutput:
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            for _ in range(5):
                await asyncio.sleep(0)
            return ToolOutput(f"text of {arguments.get('path')}")
        finally:
            self.running -= 1


class Change(Look):
    """One that changes something."""

    name = "write"
    description = "Write a file"
    harmless = False


class Box(Toolbox):
    """A toolbox that runs its tools without telling anybody."""

    def __init__(self) -> None:
        self.tools = {tool.name: tool for tool in (Look(), Change())}
        super().__init__(list(self.tools.values()))

    async def call(self, turn: Turn, name: str, arguments: str | Mapping[str, Any]) -> ToolOutput:
        import json

        if name not in self.tools:
            return ToolOutput(f"no tool {name}", failed=True)
        try:
            given = json.loads(arguments) if isinstance(arguments, str) else arguments
        except ValueError:
            given = None
        if not isinstance(given, dict):
            return ToolOutput(f"no arguments {arguments}", failed=True)
        return await self.tools[name].run(turn, cast("Any", None), given)


async def talk(
    told: Told,
    model: Loaded,
    history: History,
    box: Box | None = None,
    limits: Limits = QUICK,
    thought: str = "default",
    saving: Callable[[], Awaitable[None]] | None = None,
    rules: Rules = RULES,
) -> Outcome:
    """One turn, with its last words."""
    loop = Loop(
        cast("Turn", told),
        model,
        history,
        box or Box(),
        instructions=_be_good,
        thought=thought,
        secrets=[KEY],
        limits=limits,
        rules=rules,
        saving=saving,
    )
    return await loop.run()


async def _be_good() -> str:
    return "Be good."
