"""What every provider takes of a model's answer and of a tool's output, whoever gave it: the rules of the strictest one.

| what came | what is kept |
|---|---|
| half a surrogate pair, which is no text | U+FFFD; two halves that belong together become their letter |
| a text of blanks only (Anthropic refuses it) | nothing |
| thoughts behind the last text or call (Anthropic, OpenAI) | nothing |
| an answer without a text, a call or a file | nothing: for some dialects there would be no message |
| an id that another call has; signs in ids and names of tools that Anthropic refuses | one of its own; `_` |
| arguments that are no JSON object | an object that has them as a text; the call itself is made as it came |
| an output without any text | a word that says so |
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

import msgspec

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ModelResponse, ModelResponsePart

LONGEST_ID = 40
"""Characters; OpenAI takes no more."""
LONGEST_NAME = 64
NO_TEXT = "[no text]"
NO_OBJECT = "arguments that were not a JSON object"
LONGEST_TEXT = 4000
"""Characters of such arguments."""
_SURROGATE = re.compile("[\ud800-\udfff]")
_NOT_IN_NAMES = re.compile("[^a-zA-Z0-9_-]")


def text_of(text: str) -> str:
    """The text, with what is no text mended."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace") if _SURROGATE.search(text) else text


def mended(value: Any) -> Any:
    """A JSON value with every text in it mended."""
    if isinstance(value, str):
        return text_of(value)
    if isinstance(value, dict):
        return {text_of(name): mended(each) for name, each in value.items()}
    return [mended(each) for each in value] if isinstance(value, list) else value


def output_of(text: str) -> str:
    """What a tool has said, never blank."""
    return text_of(text) if text.strip() else NO_TEXT


def ids_in(messages: Sequence[ModelMessage]) -> set[str]:
    """Of all calls."""
    from pydantic_ai.messages import ModelResponse

    return {call.tool_call_id for message in messages if isinstance(message, ModelResponse) for call in message.tool_calls}


def response_of(response: ModelResponse, taken: Iterable[str]) -> ModelResponse:
    """The response as it can be sent back; without parts if there is nothing of it. `taken`: the ids of earlier calls."""
    from dataclasses import replace  # imports inspect

    from pydantic_ai.messages import TextPart, ThinkingPart, ToolCallPart

    seen, parts = set(taken), list[Any]()
    for part in response.parts:
        if isinstance(part, TextPart | ThinkingPart):
            mine: Any = replace(part, content=text_of(part.content))
        elif isinstance(part, ToolCallPart):
            name = _NOT_IN_NAMES.sub("_", part.tool_name)[:LONGEST_NAME] or "unknown"
            call: Any = part
            mine = replace(call, tool_name=name, args=mended(part.args), tool_call_id=_own(part.tool_call_id, seen))
            seen.add(mine.tool_call_id)
        else:
            mine = part
        if not (isinstance(mine, TextPart) and not mine.content.strip()):
            parts.append(mine)
    while parts and isinstance(parts[-1], ThinkingPart):
        parts.pop()
    return replace(response, parts=cast("list[ModelResponsePart]", parts))


def with_objects(response: ModelResponse) -> ModelResponse:
    """The response as it is kept: some providers read the arguments of earlier calls, and refuse all for one that is bad."""
    from dataclasses import replace

    from pydantic_ai.messages import ToolCallPart

    parts = list[Any]()
    for part in response.parts:
        call: Any = part
        bad = isinstance(part, ToolCallPart) and isinstance(part.args, str) and not _is_object(part.args)
        parts.append(replace(call, args={NO_OBJECT: call.args[:LONGEST_TEXT]}) if bad else call)
    return replace(response, parts=parts)


def _is_object(text: str) -> bool:
    try:
        return not text or isinstance(msgspec.json.decode(text), dict)
    except (msgspec.DecodeError, RecursionError):
        return False


def _own(identifier: str, seen: set[str]) -> str:
    """Some servers number the calls of each answer anew, or give them all the same id, or `functions.read:0`."""
    safe = _NOT_IN_NAMES.sub("_", identifier)[:LONGEST_ID] or "call"
    own, number = safe, len(seen)
    while own in seen:
        own, number = f"{safe[: LONGEST_ID - 8]}_{number}", number + 1
    return own
