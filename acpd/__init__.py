"""acpd makes the sessions of coding agents durable. Nothing is imported here: importing it must cost nothing.

What an agent is written with comes from acpd.api, when it is first asked for (docs/agents-in-python.md).
"""

TYPE_CHECKING = False  # typing's own costs its import
if TYPE_CHECKING:
    from acpd.api.agent import Agent, serve
    from acpd.api.calls import ToolCall
    from acpd.api.hands import Terminal
    from acpd.api.session import Session
    from acpd.api.shapes import Choice, Client, Command, Exit, Location, McpServer, Option, PlanEntry, RemoteServer, StdioServer
    from acpd.api.state import State
    from acpd.api.turn import Turn
    from acpd.calling import Reply, RuntimeContext, call
    from acpd.errors import FileFailed, Refused, StateTooBig, StateUnreadable, TerminalFailed
    from acpd.version import __version__
else:
    _HOMES = {
        "version": ("__version__",),
        "errors": ("FileFailed", "Refused", "StateTooBig", "StateUnreadable", "TerminalFailed"),
        "api.agent": ("Agent", "serve"),
        "api.calls": ("ToolCall",),
        "api.hands": ("Terminal",),
        "api.session": ("Session",),
        "api.shapes": (
            *("Choice", "Client", "Command", "Exit", "Location"),
            *("McpServer", "Option", "PlanEntry", "RemoteServer", "StdioServer"),
        ),
        "api.state": ("State",),
        "api.turn": ("Turn",),
        "calling": ("Reply", "RuntimeContext", "call"),
    }

    def __getattr__(name: str) -> object:
        """A public name, from the module that has it."""
        for home, names in _HOMES.items():
            if name in names:
                import importlib

                return getattr(importlib.import_module(f"acpd.{home}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "Agent",
    "Choice",
    "Client",
    "Command",
    "Exit",
    "FileFailed",
    "Location",
    "McpServer",
    "Option",
    "PlanEntry",
    "Refused",
    "RemoteServer",
    "Reply",
    "RuntimeContext",
    "Session",
    "State",
    "StateTooBig",
    "StateUnreadable",
    "StdioServer",
    "Terminal",
    "TerminalFailed",
    "ToolCall",
    "Turn",
    "__version__",
    "call",
    "serve",
]
