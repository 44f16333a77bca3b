"""The tools with which a model looks into earlier sessions: one table, for our own agent, for `acpd mcp`, for the link. Pure.

Names, parameters and defaults are those of AgentScope. Every tool sees one user's sessions, by default those of its agent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta, Struct

_AGENT = "Another agent whose sessions to look at; left out: your own."


class SearchArguments(Struct, forbid_unknown_fields=True):
    query: Annotated[str, Meta(description='Words that all occur; also "an exact phrase", prefix*, prompt:word, -unwanted.')]
    agentId: Annotated[str, Meta(description=_AGENT)] = ""
    maxResults: Annotated[int, Meta(ge=1, le=100, description="How many matches at most.")] = 10


class ListArguments(Struct, forbid_unknown_fields=True):
    agentId: Annotated[str, Meta(description=_AGENT)] = ""


class HistoryArguments(Struct, forbid_unknown_fields=True):
    sessionId: Annotated[str, Meta(description="The id of the session, as session_list and session_search give it.")]
    agentId: Annotated[str, Meta(description=_AGENT)] = ""
    lastN: Annotated[int, Meta(ge=1, le=200, description="How many messages, from the end.")] = 20


class Described(NamedTuple):
    """`method`: of the request by which an agent asks its client. `offered`: the word of `acpd.dev/tools` that announces it."""

    name: str
    method: str
    offered: str
    description: str
    arguments: type[Struct]


TOOLS = (
    Described(
        "session_search",
        "_acpd/search",
        "search",
        "Find what was said and done in earlier sessions: prompts, answers, tool calls. Newest first, with the words around.",
        SearchArguments,
    ),
    Described(
        "session_list",
        "_acpd/list",
        "list",
        "List the sessions there were, newest first: id, title, number of messages, time of the last one, working directory.",
        ListArguments,
    ),
    Described(
        "session_history",
        "_acpd/history",
        "history",
        "Read the last messages of a session, with the tools that were called. Nothing is missing that was compacted since.",
        HistoryArguments,
    ),
)
BY_NAME = {tool.name: tool for tool in TOOLS}


def schema(arguments: type[Struct]) -> dict[str, Any]:
    """The JSON schema of an object, without references, which some models cannot follow."""
    (whole,), named = msgspec.json.schema_components([arguments], ref_template="{name}")
    found: dict[str, Any] = _inlined(whole, named)
    return found


def _inlined(part: Any, named: Mapping[str, Any]) -> Any:
    if isinstance(part, list):
        return [_inlined(each, named) for each in part]
    if not isinstance(part, dict):
        return part
    if "$ref" in part:
        return _inlined(named[part["$ref"]], named)
    found = {key: _inlined(value, named) for key, value in part.items() if key != "title" or not isinstance(value, str)}
    return {"type": "string", **found} if "enum" in found else found  # one provider refuses words without a type
