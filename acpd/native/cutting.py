"""When a conversation is too long to be given to a model whole, and where it may be cut. Pure.

A cut never separates a call from its result, nor a prompt from its answer, whatever runs in parallel. What is kept is the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage

BYTES_PER_TOKEN = 4
"""What a token is only a model knows: about right for English and code, and on the safe side of most other scripts."""
FILE = 6_000
"""Bytes that an image or another file counts."""
ANSWER = 20_000
"""Tokens of the model's window that are left for its answer; of a small window a quarter."""


class Rules(NamedTuple):
    """`messages`, `tokens`: from which on a conversation is compacted, 0: never for that. `keep`: messages that stay."""

    messages: int = 50
    tokens: int = 80_000
    keep: int = 20

    def limit(self, window: int) -> int:
        """Tokens from which on it is too long for a model with this window (0: unknown); 0: never."""
        if not self.tokens or not window:
            return self.tokens
        return min(self.tokens, window - min(ANSWER, window // 4))


def due(messages: Sequence[ModelMessage], summary: str, rules: Rules, window: int) -> bool:
    """Whether this is to be compacted before it is given to a model."""
    if rules.messages and len(messages) >= rules.messages:
        return True
    limit = rules.limit(window)
    return limit > 0 and tokens(messages, summary) >= limit


def tokens(messages: Sequence[ModelMessage], summary: str) -> int:
    """Of the whole conversation: what the provider has counted up to the newest response, and what followed, by its size."""
    from pydantic_ai.messages import ModelResponse

    behind = 0
    for message in reversed(messages):
        if isinstance(message, ModelResponse) and message.usage.input_tokens:
            return message.usage.input_tokens + message.usage.output_tokens + behind // BYTES_PER_TOKEN
        behind += size(message)
    return (behind + length(summary)) // BYTES_PER_TOKEN


def size(message: ModelMessage) -> int:
    """Bytes of what a model is given of it, about."""
    parts: Sequence[Any] = message.parts
    return sum(map(_part_size, parts))


def _part_size(part: Any) -> int:
    content = getattr(part, "content", None)
    items = content if isinstance(content, list | tuple) else [content]
    args = getattr(part, "args", None) or ""
    return sum(map(_item_size, items)) + length(args if isinstance(args, str) else str(args))


def _item_size(item: object) -> int:
    if item is None:
        return 0
    return length(item) if isinstance(item, str) else FILE


def length(text: str) -> int:
    """In bytes."""
    return len(text) if text.isascii() else len(text.encode(errors="replace"))


def boundaries(messages: Sequence[ModelMessage]) -> list[int]:
    """Before which messages the conversation may be cut, but for the first one."""
    from pydantic_ai.messages import ModelResponse, ToolReturnPart, UserPromptPart

    found: list[int] = []
    waiting: set[str] = set()
    for at, message in enumerate(messages):
        answers = at > 0 and isinstance(message, ModelResponse) and isinstance(messages[at - 1].parts[-1], UserPromptPart)
        if at and not waiting and not answers:
            found.append(at)
        if isinstance(message, ModelResponse):
            waiting.update(call.tool_call_id for call in message.tool_calls)
        else:
            waiting.difference_update(part.tool_call_id for part in message.parts if isinstance(part, ToolReturnPart))
    return found


def cut(messages: Sequence[ModelMessage], keep: int, room: int) -> int:
    """Where to cut: the end is the longest one of at most `keep` messages and `room` tokens, never more than half of all.

    If none is so short, the shortest. 0: there is no cut.
    """
    keep = min(keep, len(messages) // 2)
    left = [0] * (len(messages) + 1)
    for at in range(len(messages) - 1, -1, -1):
        left[at] = left[at + 1] + size(messages[at])
    legal = boundaries(messages)
    for at in legal:
        if len(messages) - at <= keep and left[at] <= room * BYTES_PER_TOKEN:
            return at
    return legal[-1] if legal else 0
