"""What a provider's answer may cost, and that one which is none is known as such.

Whatever a server sends, it costs its own request and no more: a bound for each line and for the whole answer, for the calls
in it, and for how deep their arguments go. No honest answer comes near them.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import msgspec

from acpd.native.sound import response_of

if TYPE_CHECKING:
    import httpx2
    from pydantic_ai.messages import ModelResponse
    from pydantic_ai.models import Model

LINE = 16 * 1024 * 1024
"""Bytes of a line, which all libraries keep in memory until it ends. An image may come in one."""
WHOLE = 64 * 1024 * 1024
"""Bytes of an answer, unpacked: 200,000 tokens of the most verbose dialect."""
CALLS = 256
"""Tool calls of one answer."""
DEPTH = 64
"""How deep the arguments of a call go. Deeper ones cannot be written by every library."""
SEEN: ContextVar[list[httpx2.Response] | None] = ContextVar("answers", default=None)
"""The HTTP answers of the request that is being made. Google's SDK leaves one that is not read to its end to the garbage
collector, and the provider would go on for who knows how long: whoever gives up a request closes them.
"""


class AnswerTooLarge(Exception):
    """More than LINE, WHOLE, CALLS or DEPTH; its text says of what."""


def client() -> httpx2.AsyncClient:
    """The HTTP client of one provider, as pydantic_ai makes it, with bounds for what it reads. Imports it."""
    from pydantic_ai.models import create_async_httpx2_client

    made = create_async_httpx2_client()
    made.event_hooks = {**made.event_hooks, "response": [*made.event_hooks["response"], _seen]}
    return made


async def _seen(response: httpx2.Response) -> None:
    if (answers := SEEN.get()) is not None:
        answers.append(response)
    read = response.aiter_bytes  # the one way of all libraries to a body, unpacked

    async def bounded(chunk_size: int | None = None) -> AsyncGenerator[bytes]:
        whole = line = 0
        async with contextlib.aclosing(read(chunk_size)) as parts:
            async for part in parts:
                whole, line = whole + len(part), line + len(part)
                if line > LINE:
                    raise AnswerTooLarge(f"a line of it has more than {LINE >> 20} MiB")
                if whole > WHOLE:
                    raise AnswerTooLarge(f"it has more than {WHOLE >> 20} MiB")
                line = len(part) - 1 - end if (end := max(part.rfind(b"\n"), part.rfind(b"\r"))) >= 0 else line
                yield part

    response.aiter_bytes = bounded  # type: ignore[method-assign]


def check(response: ModelResponse) -> None:
    """Raises AnswerTooLarge for what it has of calls; ValidationError, TypeError and the like for values of another type than
    they should be of, which libraries let through: it could be neither kept nor sent back.
    """
    if len(response.tool_calls) > CALLS:
        raise AnswerTooLarge(f"it has {len(response.tool_calls)} tool calls, of at most {CALLS}")
    for call in response.tool_calls:
        arguments: object = call.args
        if isinstance(arguments, str):
            with contextlib.suppress(msgspec.DecodeError, RecursionError):  # what is no JSON is told to the model
                arguments = msgspec.json.decode(arguments)
        if _is_deep(arguments):
            raise AnswerTooLarge(f"the arguments of a call go deeper than {DEPTH} levels")
    from pydantic_ai.messages import ModelMessagesTypeAdapter

    written = ModelMessagesTypeAdapter.dump_json([response_of(response, ())], warnings="none")
    ModelMessagesTypeAdapter.validate_json(written)


def _is_deep(value: object) -> bool:
    level = [value]
    for _ in range(DEPTH):
        maps: list[Any] = [each for each in level if isinstance(each, dict)]
        lists: list[Any] = [each for each in level if isinstance(each, list)]
        level = [inner for each in maps for inner in each.values()] + [inner for each in lists for inner in each]
    return bool(level)


def lean(model: Model) -> Model:
    """The model for chat completions, made such that an answer costs as much as it is long.

    pydantic_ai puts each piece of a text behind a copy of all that came before, for the places of citations, with which
    nothing is done here: 10,000 pieces of 500 letters took ten seconds of CPU.
    """
    kind: Any = type(model)
    usual: Any = model
    stream: Any = usual._streamed_response_cls  # to be overridden, as its docstring says

    def map_text_delta(self: Any, choice: Any) -> Any:
        self._raw_text_content = ""
        return stream._map_text_delta(self, choice)

    made = type(stream.__name__, (stream,), {"_map_text_delta": map_text_delta})
    usual.__class__ = type(kind.__name__, (kind,), {"_streamed_response_cls": made})
    return model
