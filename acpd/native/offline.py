"""The offline agent: deterministic, no model. What it does in a turn is acpd.native.script's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from acpd.api.agent import Agent
from acpd.api.shapes import Choice, Command, Option
from acpd.native.words import SETUP_METHOD
from acpd.version import __version__

if TYPE_CHECKING:
    from acpd.api.session import Session
    from acpd.api.turn import Turn

MODES = (
    Choice("ask", "Ask", "A tool call that needs a permission asks for it"),
    Choice("code", "Code", "Every tool call is allowed"),
)
PACES = (Choice("instant", "Instant"), Choice("calm", "Calm", "Word by word"))


class Offline(Agent):
    """It answers each prompt by the words of it alone."""

    name = "acpd-agent"
    title = "acpd's offline agent"
    version = __version__
    audio = True
    auth_methods = (SETUP_METHOD,)
    commands = (
        Command("say", "Answer with a text", "text"),
        Command("think", "Think, then answer"),
        Command("plan", "Show a plan and follow it", "first|second|third"),
        Command("tool", "Run a tool call", "name"),
        Command("ask", "Run a tool call that needs a permission", "name"),
        Command("slow", "Count slowly", "how far"),
        Command("help", "Say which words there are"),
    )

    def options(self, session: Session, /) -> Sequence[Option]:
        mode, pace = session.choices.get("mode", "ask"), session.choices.get("pace", "instant")
        return (Option("mode", "Mode", mode, MODES, category="mode"), Option("pace", "Pace", pace, PACES))

    async def prompt(self, turn: Turn, /) -> None:
        from acpd.native import script  # 2 ms that a start need not pay

        await script.follow(turn)


def serve() -> int:
    """Serve ACP on stdin and stdout until stdin ends: the exit code."""
    return Offline().run()
