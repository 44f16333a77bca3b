"""The table of the tools with which a model looks up what was said before. Pure.

One table for all who offer them: the requests of an agent's link, the tools of our own agent, and `acpd mcp`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

RESULTS, MOST_RESULTS = 10, 50
MESSAGES, MOST_MESSAGES = 20, 200

ANNOUNCED = "acpd.dev/tools"
"""The member of `clientCapabilities._meta` that names the groups an agent may ask for."""
GROUPS = ("search", "list", "history", "memory")
MEMORY = "memory"
"""The group of what an agent keeps beyond its sessions."""


class Recalling(NamedTuple):
    """A tool as a model sees it. `group`: of GROUPS, what must be announced; `method`: the request that answers it."""

    name: str
    group: str
    method: str
    description: str
    schema: Mapping[str, Any]


def _schema(required: tuple[str, ...] = (), **properties: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


def text(description: str) -> Mapping[str, Any]:
    return {"type": "string", "description": description}


def number(description: str, *, default: int | None = None, most: int | None = None) -> Mapping[str, Any]:
    """A whole number from 1 on."""
    bounds: dict[str, Any] = {"type": "integer", "description": description, "minimum": 1}
    if most is not None:
        bounds["maximum"] = most
    return bounds if default is None else {**bounds, "default": default}


_AGENT = text("Name of another agent of this user, e.g. as session_search shows it. Without it: your own sessions.")

TOOLS = (
    Recalling(
        "session_search",
        "search",
        "_acpd/search",
        "Search everything that was said and done in earlier conversations of this user, also what you have forgotten of"
        " this one: prompts, answers, thoughts, tool calls and their results. The newest matches come first, each with the"
        " text around it and the session's id for session_history.",
        _schema(
            ("query",),
            query=text('Words that must all occur; "several words" in a row; begin* for words that begin so; -word for none.'),
            agentId=_AGENT,
            maxResults=number("How many matches at most.", default=RESULTS, most=MOST_RESULTS),
        ),
    ),
    Recalling(
        "session_list",
        "list",
        "_acpd/list",
        "List earlier conversations of this user, the newest first: id, title, folder, number of messages, last change.",
        _schema(agentId=_AGENT),
    ),
    Recalling(
        "session_history",
        "history",
        "_acpd/history",
        "Read the last messages of a conversation, its tool calls with their results (shortened) among them.",
        _schema(
            ("sessionId",),
            agentId=_AGENT,
            sessionId=text("The session's id, as session_search and session_list show it."),
            lastN=number("How many messages at most.", default=MESSAGES, most=MOST_MESSAGES),
        ),
    ),
    Recalling(
        "memory_search",
        MEMORY,
        "_acpd/memory/search",
        "Search what you remember of earlier conversations with this user, MEMORY.md and the notes of each day, for a literal"
        " text, whatever its case and accents. The newest lines come first, each with its source.",
        _schema(("query",), query=text("The text to look for; no patterns.")),
    ),
    Recalling(
        "memory_get",
        MEMORY,
        "_acpd/memory/get",
        "Read lines of MEMORY.md or of the notes of a day, with their numbers: what stands around a match of memory_search.",
        _schema(
            ("path", "startLine", "endLine"),
            path=text("As memory_search names it: memory/2026-05-01.md."),
            startLine=number("The first line."),
            endLine=number("The last line. At most 400 lines are shown."),
        ),
    ),
)
