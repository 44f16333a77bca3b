r"""What a model remembers of a session, always in a shape that every provider takes: no call without its result.

    begin --> answered --> [results --> answered ...] --> close
                       \-> partial (a stream that was cut or cancelled)

Nothing here awaits, so that a cancelled turn cannot leave anything half done. A response that broke off is kept as far as
its text goes: half a call, and thoughts whose signature is missing, are refused by providers. What is kept between
processes is JSON of pydantic_ai's messages, the state `memory`; beside it what is being said, and what it has cost.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from acpd.errors import AcpdError
from acpd.native.sound import ids_in, mended, response_of, text_of, with_objects
from acpd.native.summarising import clipped

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ModelRequestPart, ModelResponse, ToolCallPart, ToolReturnPart, UserContent
    from pydantic_ai.usage import RequestUsage

STATE = "memory"
USAGE = "usage"
SAYING = "saying"
VERSION = 1
INTERRUPTED = (
    "This call was interrupted before it had a result: the user has cancelled the turn, or it failed. It may have had effects."
)

MARK = "named"
"""In the metadata of a message, which no model is given."""
SUMMARY = (
    "[The beginning of this conversation is not here any more. This summary stands for it.]\n<summary>\n{}\n</summary>\n"
    "{}[The conversation goes on here.]"
)
RUNNING = "[What the user asked for last, word for word, and what you are at:]\n<prompt>\n{}\n</prompt>\n"
ASKED = 4_000
"""Bytes of a prompt that are given beside the summary that stands for it, as long as its turn runs."""

WORTH = 500
"""Characters of a result that is worth leaving out."""
LEFT_OUT = "[This result was left out, because the conversation became too long. Call the tool again if you need it.]"

PARTIAL = 1024 * 1024
"""Of an answer that was meant to end, twice what the largest model can say; what goes on and on is not worth more."""
FILES = 16 * 1024 * 1024
"""Bytes of images and other files of which a conversation keeps the newest. All of it is sent with each request, of which
providers take 20 to 50 MB, and kept as one state.
"""
FILE_LEFT_OUT = (
    "[A file or an image was left out here: this conversation has more of them than fit. Ask for it if you need it.]"
)


class MemoryUnreadable(AcpdError):
    """What was kept of a session cannot be read; it is left as it is."""


class Memory(Struct, kw_only=True):
    """The state `memory`."""

    version: int = VERSION
    messages: msgspec.Raw = msgspec.Raw(b"[]")
    summary: str = ""
    """Of what came before the messages."""


class Usage(Struct, kw_only=True):
    """The state `usage`: what the session has used so far. Tokens as the provider counts them, those from its cache too; `cost`
    in US dollars, None: of no request was it known.
    """

    requests: int = 0
    input: int = 0
    output: int = 0
    cost: float | None = None


class Saying(Struct, kw_only=True):
    """The state `saying`: the text of an answer that comes, so that a process that is killed leaves what the user has seen.
    `after`: how many messages the memory has then; with another number it is of no use any more.
    """

    after: int
    text: str


class History:
    """The messages of one session, and what they have cost. `summary` as in Memory."""

    def __init__(self) -> None:
        self.messages: list[ModelMessage] = []
        self.usage = Usage()
        self.summary = ""
        self.rest = 0
        """Messages that there must be before a compaction is tried again by itself."""
        self.unsummarised = ""
        """Why the last compaction has failed, as the user was told."""
        self._begun = 0
        self._before: ModelMessage | None = None
        self._asked = ""
        """What the newest prompt says."""
        self._summarised = False
        """Whether that prompt is among what the summary stands for."""

    @classmethod
    def restored(cls, memory: Memory | None, usage: Usage | None = None) -> History:
        """What `dump` has made of a history. Imports pydantic_ai. Raises MemoryUnreadable."""
        history = cls()
        history.usage = usage or history.usage
        if memory is None:
            return history
        from pydantic import ValidationError
        from pydantic_ai.messages import ModelMessagesTypeAdapter

        if memory.version > VERSION:
            raise MemoryUnreadable("the model's memory of this session was written by a newer acpd-agent", hint="update acpd")
        try:
            history.messages = paired(ModelMessagesTypeAdapter.validate_json(bytes(memory.messages)))
        except ValidationError as error:
            where = ".".join(str(step) for step in error.errors(include_input=False)[0]["loc"])
            raise MemoryUnreadable(
                f"the model's memory of this session cannot be read (at {where})",
                hint="put memory.json back from a backup, or remove it: the conversation is then told from the log",
            ) from None
        history.summary = memory.summary
        return history

    def dump(self) -> Memory:
        """The history as it may be kept: calls that have no result yet are closed in it, not in the history."""
        from pydantic_ai.messages import ModelMessagesTypeAdapter

        closed = [*self.messages, *_closing(self.messages)]
        messages = msgspec.Raw(ModelMessagesTypeAdapter.dump_json(closed))
        return Memory(messages=messages, summary=self.summary)

    def given(self) -> list[ModelMessage]:
        """What a model is given: the summary is the beginning of the first prompt, because roles must take turns."""
        from dataclasses import replace

        from pydantic_ai.messages import ModelRequest, UserPromptPart

        if not self.summary:
            return self.messages
        said = SUMMARY.format(self.summary, RUNNING.format(clipped(self._asked, ASKED)) if self._summarised else "")
        first = self.messages[0] if self.messages else None
        if isinstance(first, ModelRequest) and first.parts and isinstance(part := first.parts[0], UserPromptPart):
            content = [said, *([part.content] if isinstance(part.content, str) else part.content)]
            begun = replace(first, parts=[replace(part, content=content), *first.parts[1:]])
            return [begun, *self.messages[1:]]
        return [ModelRequest(parts=[UserPromptPart(said)]), *self.messages]

    def compact(self, at: int, summary: str) -> None:
        """The summary takes the place of all before this message, and of the earlier summary. What a provider has counted for
        the messages that stay was the longer conversation.
        """
        from dataclasses import replace

        from pydantic_ai.messages import ModelResponse
        from pydantic_ai.usage import RequestUsage

        kept = self.messages[at:]
        self.messages[:] = [replace(each, usage=RequestUsage()) if isinstance(each, ModelResponse) else each for each in kept]
        self.summary = summary
        if self._begun < at:
            self._before, self._summarised = None, bool(self._asked)
        self._begun = max(0, self._begun - at)

    def mark(self, name: str) -> None:
        """The newest message ends with what the client knows by this name."""
        if self.messages and name:
            self.messages[-1].metadata = {MARK: name}

    def named(self, at: int) -> str:
        """What the client knows as the last thing before this message, "" if that is not known."""
        marks = ((message.metadata or {}).get(MARK, "") for message in reversed(self.messages[:at]))
        return str(next(filter(None, marks), ""))

    def begin(self, content: Sequence[UserContent]) -> None:
        """A prompt. One that follows an unanswered one, or results, becomes one message with it: roles must take turns."""
        from pydantic_ai.messages import ModelRequest, UserPromptPart

        self.close()
        content = mended(list(content))
        self._begun, self._before = len(self.messages), None
        self._asked, self._summarised = "\n".join(each for each in content if isinstance(each, str)), False
        parts: list[ModelRequestPart] = []
        if self.messages and isinstance(last := self.messages[-1], ModelRequest):
            self._begun, self._before = self._begun - 1, last
            parts = list(last.parts)
            if parts and isinstance(said := parts[-1], UserPromptPart):
                earlier = [said.content] if isinstance(said.content, str) else list(said.content)
                content = [*earlier, *content]
                parts.pop()
        metadata = self._before.metadata if self._before is not None else None
        prompt = UserPromptPart(content=list(content))
        self.messages[self._begun :] = [ModelRequest(parts=[*parts, prompt], metadata=metadata)]
        self._leave_out_files()

    def forget(self) -> None:
        """Drop the newest prompt and everything after it (ACP: what was refused is not part of the next prompt)."""
        self.messages[self._begun :] = [] if self._before is None else [self._before]

    def answered(self, response: ModelResponse) -> ModelResponse:
        """A whole response, mended (acpd.native.sound). One without parts is not kept. Its calls wait for `results`."""
        response = response_of(response, ids_in(self.messages))
        if response.parts:
            self.messages.append(with_objects(response))
        return response

    def partial(self, text: str) -> None:
        """What was said of a response that broke off: the newest PARTIAL characters."""
        from pydantic_ai.messages import ModelResponse, TextPart

        text = text_of(text[-PARTIAL:])
        if text.strip():
            self.messages.append(ModelResponse(parts=[TextPart(text)]))

    def results(self, calls: Sequence[ToolCallPart], results: Mapping[str, ToolReturnPart], why: str = INTERRUPTED) -> None:
        """The results of the newest response's calls, in its order; a call that has none gets `why`."""
        from pydantic_ai.messages import ModelRequest

        self.messages.append(ModelRequest(parts=[results.get(call.tool_call_id) or _interrupted(call, why) for call in calls]))
        self._leave_out_files()

    def close(self) -> None:
        """Give every call at the end of the history a result."""
        self.messages += _closing(self.messages)

    def shrink(self) -> int:
        """Leave out the older half of what tools have said, but for the newest results: a model can call them again.

        Returns the characters that are gone, 0 if there is nothing worth it. Calls keep their results, as a word.
        """
        from dataclasses import replace

        from pydantic_ai.messages import ToolReturnPart

        found = [
            (at, part, size)
            for at, message in enumerate(self.messages[:-1])
            for part in message.parts
            if isinstance(part, ToolReturnPart) and (size := _size(part)) > WORTH
        ]
        left, gone = sum(size for *_, size in found) / 2, 0
        for at, part, size in found:
            if gone >= left:
                break
            long: Any = part
            parts: Any = [replace(long, content=LEFT_OUT) if each is part else each for each in self.messages[at].parts]
            self.messages[at] = replace(self.messages[at], parts=parts)
            gone += size
        return gone

    def _leave_out_files(self) -> None:
        """All but the newest FILES bytes."""
        from dataclasses import replace

        room = FILES
        for at in range(len(self.messages) - 1, -1, -1):
            before: Sequence[Any] = self.messages[at].parts
            parts: list[Any] = []
            for part in reversed(before):
                kept, room = _slimmed(part, room)
                parts.insert(0, kept)
            if any(one is not other for one, other in zip(parts, before, strict=True)):
                message: Any = self.messages[at]
                self.messages[at] = replace(message, parts=parts)

    def pay(self, usage: RequestUsage, answer: Callable[[], ModelResponse]) -> bool:
        """Count one request: whether there was anything to count. One whose price nobody knows adds nothing to the cost."""
        counts: list[object] = [usage.input_tokens, usage.output_tokens]
        if not any(counts) or any(not isinstance(count, int) for count in counts):
            return False
        cost = self.usage.cost
        with contextlib.suppress(LookupError, ValueError, AssertionError, TypeError, AttributeError):  # it may be no answer
            cost = (cost or 0.0) + float(answer().cost().total_price)
        before = self.usage
        self.usage = Usage(
            requests=before.requests + 1,
            input=before.input + usage.input_tokens,
            output=before.output + usage.output_tokens,
            cost=cost,
        )
        return True


def _slimmed(part: Any, room: int) -> tuple[Any, int]:
    """The part with as much of its files as there is room for, the last ones first; and the room that is left then."""
    from dataclasses import replace

    from pydantic_ai.messages import BinaryContent, FilePart, TextPart

    content = getattr(part, "content", None)
    items, gone = list(content) if isinstance(content, list) else [content], False
    for at in range(len(items) - 1, -1, -1):
        if isinstance(file := items[at], BinaryContent):
            if len(file.data) > room:
                items[at], gone = FILE_LEFT_OUT, True
            room = 0 if gone else room - len(file.data)
    if gone:
        part = TextPart(FILE_LEFT_OUT) if isinstance(part, FilePart) else replace(part, content=items)
    return part, room


def _size(part: ToolReturnPart) -> int:
    """Characters; of a file, its bytes."""
    items = part.content if isinstance(part.content, list) else [part.content]
    return sum(len(each) if isinstance(each, str) else len(getattr(each, "data", "")) for each in items)


def paired(messages: Sequence[ModelMessage]) -> list[ModelMessage]:
    """These messages with a result for each call right behind it, and no result without its call, whoever has written them."""
    from dataclasses import replace

    from pydantic_ai.messages import ModelResponse, ToolReturnPart

    found: list[ModelMessage] = []
    waiting: dict[str, ToolCallPart] = {}
    for message in messages:
        if isinstance(message, ModelResponse):
            found += _closing(found)
            waiting = {call.tool_call_id: call for call in message.tool_calls}
            found.append(message)
            continue
        results = [
            part
            for part in message.parts
            if isinstance(part, ToolReturnPart) and waiting.pop(part.tool_call_id, None) is not None
        ]
        others = [part for part in message.parts if not isinstance(part, ToolReturnPart)]
        parts = [*results, *(_interrupted(call, INTERRUPTED) for call in waiting.values()), *others]
        waiting = {}
        if parts:
            found.append(message if parts == list(message.parts) else replace(message, parts=parts))
    return [*found, *_closing(found)]


def _closing(messages: Sequence[ModelMessage]) -> list[ModelMessage]:
    from pydantic_ai.messages import ModelRequest, ModelResponse

    if messages and isinstance(last := messages[-1], ModelResponse) and last.tool_calls:
        return [ModelRequest(parts=[_interrupted(call, INTERRUPTED) for call in last.tool_calls])]
    return []


def _interrupted(call: ToolCallPart, why: str) -> ToolReturnPart:
    from pydantic_ai.messages import ToolReturnPart

    return ToolReturnPart(tool_name=call.tool_name, content=why, tool_call_id=call.tool_call_id, outcome="interrupted")
