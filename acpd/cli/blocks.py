"""Values of the protocol as short texts. What agents wrote may have any shape: nothing here fails on it."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from acpd.cli.output import one_line

TITLE = 100
"""Characters of a title or of the first line of a text."""


def parsed(raw: Raw | UnsetType) -> Any:
    """The value, or None where there is none or it is no JSON."""
    if raw is UNSET:
        return None
    try:
        return msgspec.json.decode(raw)
    except msgspec.DecodeError:
        return None


def member(value: Any, *names: str) -> Any:
    """`value[names[0]][names[1]]...`, or None."""
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def words(value: Any, *names: str) -> str:
    found = member(value, *names)
    return found if isinstance(found, str) else ""


def items(value: Any, *names: str) -> list[Any]:
    found = member(value, *names)
    return found if isinstance(found, list) else []


def block(value: Any) -> str:
    """One content block (ACP v1 content): its text, or what it is in brackets."""
    kind = words(value, "type")
    if kind == "text":
        return words(value, "text")
    if kind in {"image", "audio"}:
        return f"[{kind} {words(value, 'mimeType')}, {len(words(value, 'data')) * 3 // 4} bytes]"
    if kind == "resource_link":
        return f"[{words(value, 'name') or 'link'}: {words(value, 'uri')}]"
    if kind == "resource":
        return f"[{words(value, 'resource', 'uri')}]\n{words(value, 'resource', 'text')}".rstrip("\n")
    return f"[{kind or 'unreadable content'}]"


def prompt(raw: Raw | UnsetType) -> str:
    """The content blocks of a prompt, each beginning on a line of its own."""
    value = parsed(raw)
    return "\n".join(block(one) for one in value) if isinstance(value, list) else ""


def tool_content(value: Any) -> str:
    """One item of a tool call's content: content, diff or terminal."""
    kind = words(value, "type")
    if kind == "content":
        return block(member(value, "content"))
    if kind == "diff":
        return f"[diff {words(value, 'path')}]"
    return f"[{kind} {words(value, 'terminalId')}]".replace(" ]", "]")


def question(method: str, params: Any, title: str) -> str:
    """What an ask asks, on one line; `title` is used where it names only a tool call."""
    asked = words(params, "toolCall", "title") or words(params, "message") or title or words(params, "toolCall", "toolCallId")
    return one_line(asked or method, TITLE)


def answer(params: Any, result: Any, error: Any) -> str:
    """What was answered: the option's name, the action, or that it was not."""
    if error is not None:
        return f"error: {one_line(words(error, 'message'), TITLE)}"
    chosen = words(result, "outcome", "optionId")
    for option in items(params, "options"):
        if chosen and words(option, "optionId") == chosen:
            return f"{one_line(words(option, 'name'), TITLE)} ({words(option, 'kind') or chosen})"
    return chosen or words(result, "outcome", "outcome") or words(result, "action") or "answered"
