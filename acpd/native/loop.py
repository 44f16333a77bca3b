"""One turn with a model: ask, stream what it says, run the tools it calls, ask again, until it calls none.

The order in which things happen is what makes a cancelled or broken turn harmless: a response is in the history before its
calls run, results are in it before the next request, and what is between is closed by the history without awaiting anything.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import sys
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from acpd.errors import AcpdError, ConnectionBroken, RequestError
from acpd.native.answers import check
from acpd.native.asking import patient, streamed
from acpd.native.compacting import Compacting
from acpd.native.cutting import Rules
from acpd.native.history import PARTIAL, History
from acpd.native.outcomes import (
    LIMITS,
    TRY_DEFAULT,
    AnswerBroken,
    Limits,
    Outcome,
    StreamCut,
    brief,
    empty,
    is_broken,
    is_known,
    is_rejected,
    is_too_long,
    outcome,
    refused,
    too_long,
    too_many,
    wait_before,
    without,
)
from acpd.native.sound import NO_TEXT, output_of

if TYPE_CHECKING:
    import httpx2
    from pydantic_ai.messages import ModelResponse, ModelResponseStreamEvent, ToolCallPart, ToolReturnPart, UserContent
    from pydantic_ai.models import ModelRequestParameters, StreamedResponse
    from pydantic_ai.settings import ModelSettings

    from acpd.api.turn import Turn
    from acpd.native.models import Loaded
    from acpd.native.toolbox import Tool, Toolbox, ToolOutput

SAID_EVERY = 1.0
"""Seconds; the text is kept whole each time."""
RULES = Rules()
THOUGHT_LEVELS = ("minimal", "low", "medium", "high", "xhigh", "max")


class Loop:
    """A turn. `instructions` makes the system prompt of each request. `thought`: one of THOUGHT_LEVELS, "off", or "default" for
    the model's own way. `secrets` are taken out of everything that is shown. `rules`: of compaction. `saving` is called where
    the history is complete, and may be cancelled. `saying` is given the text of an answer that comes, every SAID_EVERY seconds.
    """

    def __init__(
        self,
        turn: Turn,
        loaded: Loaded,
        history: History,
        toolbox: Toolbox,
        *,
        instructions: Callable[[], Awaitable[str]],
        thought: str = "default",
        secrets: Sequence[str] = (),
        limits: Limits = LIMITS,
        rules: Rules = RULES,
        saving: Callable[[], Awaitable[None]] | None = None,
        saying: Callable[[str], None] | None = None,
    ) -> None:
        self._turn = turn
        self._loaded = loaded
        self._history = history
        self._toolbox = toolbox
        self._instructions = instructions
        self._thought = thought
        self._secrets = secrets
        self._limits = limits
        self._saving = saving
        self._saying = saying
        self._said_at = 0.0
        self._compacting = Compacting(turn, loaded, history, rules, secrets=secrets, limits=limits)
        self._heard = False
        self._worked = False
        """Whether a request of this turn was answered."""
        self._pieces: list[str] = []
        """Of the text of the answer that comes."""
        self.said = False
        """Whether there is any text of the model in this turn."""

    async def run(self) -> Outcome:
        """The turn's outcome; its text is still to be said. The history is complete then, and also after CancelledError."""
        self._history.begin(content_of(self._turn.blocks))
        await self._saved()
        try:
            ended = await self._until_done()
        except (ConnectionBroken, RequestError):
            raise
        except Exception as error:  # noqa: BLE001  the SDKs raise what they like; a turn ends, whatever it was
            ended = outcome(error, self._loaded.chosen, self._secrets, begun=self._heard, worked=self._worked)
            if self._thought != "default" and is_rejected(error):
                ended = ended._replace(text=ended.text + TRY_DEFAULT)
            if not is_known(error):
                sys.stderr.write(without("".join(traceback.format_exception(error)), self._secrets))
        finally:
            self._history.close()
        if ended.forget:
            self._history.forget()
        return ended

    async def _until_done(self) -> Outcome:
        chosen = self._loaded.chosen
        for _ in range(self._limits.requests):
            if await self._compacting.if_due():
                await self._saved()
            response = await self._request()
            self._worked = True
            if response.finish_reason == "content_filter":
                return refused(chosen, without(str((response.provider_details or {}).get("refusal") or ""), self._secrets))
            if response.finish_reason == "length":
                return too_long(chosen)
            if not response.tool_calls:
                return Outcome("", stop="end_turn") if response.parts else empty(chosen)
            harmless = self._harmless()
            if any(call.tool_name not in harmless for call in response.tool_calls):
                await self._saved()  # whoever is killed in a call that has effects must not make it again
            await self._call(response.tool_calls, harmless)
            await self._saved()
        return too_many(self._limits)

    async def _saved(self) -> None:
        if self._saving is not None:
            await self._saving()

    # -- a request

    async def _request(self) -> ModelResponse:
        """A whole response, in the history. Tried again only while nothing of it was heard."""
        self._heard = False
        attempt, shortened = 0, False
        while True:
            attempt += 1
            try:
                return await self._stream()
            except Exception as error:
                if not self._heard and is_too_long(error):
                    compacted, shortened = not shortened and await self._compacting.overflown(), True
                    if compacted or self._shrunk():
                        continue
                wait = None if self._heard else wait_before(error, attempt, self._limits)
                if wait is None:
                    raise
                words = brief(error, self._loaded.chosen)
            again = f"trying again in {wait:.0f} s, attempt {attempt + 1} of {self._limits.attempts}"
            self._turn.session.notice("warning", f"{self._loaded.chosen.title}: {words}", again)
            await asyncio.sleep(wait)

    def _shrunk(self) -> bool:
        """Whether something could be left out of a conversation that is too long. Each time there is less of it."""
        gone = self._history.shrink()
        if gone:
            what = f"{gone} characters of older tool results were left out of what the model is given; you still have them"
            self._turn.session.notice("info", "The conversation is too long for the model", what)
        return gone > 0

    async def _stream(self) -> ModelResponse:
        parameters = await self._parameters()
        stream: StreamedResponse | None = None
        whole, self._pieces = False, []
        answers: list[httpx2.Response] = []
        try:
            async with streamed(self._loaded, self._history.given(), self._settings(), parameters, answers) as stream:
                async for event in stream:
                    self._heard = True
                    await self._show(event)
            response = stream.get()
            check(response)
            whole = response.state == "complete" and response.finish_reason not in {None, "error"}
            if not whole:
                raise StreamCut
        except AcpdError:
            raise
        except Exception as error:
            if answers and is_broken(error):
                raise AnswerBroken(answers[-1].status_code) from error
            raise
        finally:
            if stream is not None:
                self._spend(stream)
                if not whole:
                    self._history.partial("".join(self._pieces))
                    self._mark()
        return self._keep(response)

    def _keep(self, response: ModelResponse) -> ModelResponse:
        """Into the history: all of a response that ended well, the text of one that was stopped at a limit."""
        if response.finish_reason in {"length", "content_filter"}:
            self._history.partial("".join(self._pieces))
        else:
            response = self._history.answered(response)
        self._mark()
        return response

    def _mark(self) -> None:
        """What is now the end of the history is where the client's conversation is."""
        self._history.mark(self._turn.session.channel.newest)

    async def _show(self, event: ModelResponseStreamEvent) -> None:
        from pydantic_ai import messages

        if isinstance(event, messages.PartStartEvent):
            part = event.part
            if isinstance(part, messages.TextPart) and part.content:
                await self._say(part.content)
            elif isinstance(part, messages.ThinkingPart) and part.content:
                await self._think(part.content)
            elif isinstance(part, messages.FilePart) and part.content.is_image:
                await self._turn.show({"type": "image", "data": part.content.base64, "mimeType": part.content.media_type})
        elif isinstance(event, messages.PartDeltaEvent):
            delta = event.delta
            if isinstance(delta, messages.TextPartDelta) and delta.content_delta:
                await self._say(delta.content_delta)
            elif isinstance(delta, messages.ThinkingPartDelta) and delta.content_delta:
                await self._think(delta.content_delta)

    async def _think(self, text: str) -> None:
        _check(text)
        await self._turn.think(text)

    async def _say(self, text: str) -> None:
        _check(text)
        self.said = True
        self._pieces.append(text)
        await self._turn.say(text)
        now = asyncio.get_running_loop().time()
        if self._saying is not None and now - self._said_at >= SAID_EVERY:
            self._said_at = now
            self._saying("".join(self._pieces)[-PARTIAL:])

    def _settings(self) -> ModelSettings:
        settings = patient(self._limits)
        settings["cache"] = True
        if self._thought == "off":
            settings["thinking"] = False
        elif self._thought in THOUGHT_LEVELS:
            settings["thinking"] = self._thought  # type: ignore[typeddict-item]
        return settings

    async def _parameters(self) -> ModelRequestParameters:
        from pydantic_ai.messages import InstructionPart
        from pydantic_ai.models import ModelRequestParameters
        from pydantic_ai.tools import ToolDefinition

        return ModelRequestParameters(
            function_tools=[
                ToolDefinition(
                    name=tool.name, parameters_json_schema=dict(tool.schema), description=tool.description, strict=False
                )
                for tool in self._offered()
            ],
            instruction_parts=[InstructionPart(content=await self._instructions())],
        )

    def _offered(self) -> Sequence[Tool]:
        return self._toolbox.offered(self._toolbox.mode_of(self._turn.session))

    def _spend(self, stream: StreamedResponse) -> None:
        """Tell what the session has used."""
        usage = stream.usage
        if not self._history.pay(usage, stream.get) or not self._loaded.window:
            return  # usage_update needs the size of the context, and a made-up one would be shown as the truth
        spent = self._history.usage.cost
        told = None if spent is None else (spent, "USD")
        self._turn.session.used(usage.input_tokens + usage.output_tokens, self._loaded.window, told)

    # -- the calls of a response

    def _harmless(self) -> set[str]:
        return {tool.name for tool in self._offered() if tool.harmless}

    async def _call(self, calls: Sequence[ToolCallPart], harmless: set[str]) -> None:
        """Run them in order, neighbours that change nothing side by side; what has a result when it is cancelled keeps it."""
        results: dict[str, ToolReturnPart] = {}
        try:
            for group in _groups(calls, harmless):
                if len(group) == 1:
                    await self._run(group[0], results)
                else:
                    await self._side_by_side(group, results)
        finally:
            self._history.results(calls, results)
            self._mark()

    async def _side_by_side(self, calls: Sequence[ToolCallPart], results: dict[str, ToolReturnPart]) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                for call in calls:
                    tasks.create_task(self._run(call, results), name=f"tool:{call.tool_name}")
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        if any(call.tool_call_id not in results for call in calls):
            raise asyncio.CancelledError  # one of them was: a group takes that for its own end

    async def _run(self, call: ToolCallPart, results: dict[str, ToolReturnPart]) -> None:
        output = await self._toolbox.call(self._turn, call.tool_name, call.args if call.args is not None else "{}")
        results[call.tool_call_id] = _result(call, output)


def _check(text: object) -> None:
    """Libraries pass on what they were sent."""
    if not isinstance(text, str):
        raise TypeError(f"a text is a {type(text).__name__}")


def _groups(calls: Sequence[ToolCallPart], harmless: set[str]) -> list[list[ToolCallPart]]:
    groups: list[list[ToolCallPart]] = []
    for call in calls:
        if groups and call.tool_name in harmless and groups[-1][-1].tool_name in harmless:
            groups[-1].append(call)
        else:
            groups.append([call])
    return groups


def _result(call: ToolCallPart, output: ToolOutput) -> ToolReturnPart:
    from pydantic_ai.messages import BinaryContent, ToolReturnPart

    images = [BinaryContent(data=data, media_type=mime) for data, mime in output.images]
    text = output_of(output.text)
    content: Any = [text, *images] if images else text
    return ToolReturnPart(
        tool_name=call.tool_name,
        content=content,
        tool_call_id=call.tool_call_id,
        outcome="failed" if output.failed else "success",
    )


# -- the prompt


def content_of(blocks: Sequence[Mapping[str, Any]]) -> list[UserContent]:
    """A prompt as a model is given it: texts, images; files and links as texts that say where they are from."""
    content = [made for block in blocks if (made := _content(block)) is not None]
    return content or [NO_TEXT]


def _content(block: Mapping[str, Any]) -> UserContent | None:
    kind = block.get("type")
    if kind == "text":
        text = str(block.get("text", ""))
        return text if text.strip() else None
    if kind in {"image", "audio"}:
        return _binary(block.get("data"), block.get("mimeType")) or f"[{kind} that could not be read]"
    if kind == "resource_link":
        title = block.get("title") or block.get("name") or ""
        return f"[{title}]({block.get('uri', '')})"
    if kind == "resource" and isinstance(resource := block.get("resource"), Mapping):
        return _resource(resource)
    return f"[{kind}: not supported]"


def _resource(resource: Mapping[str, Any]) -> UserContent:
    uri, mime = resource.get("uri", ""), str(resource.get("mimeType") or "")
    if isinstance(text := resource.get("text"), str):
        return f'<resource uri="{uri}">\n{text}\n</resource>'
    if mime.startswith(("image/", "application/pdf")) and (made := _binary(resource.get("blob"), mime)) is not None:
        return made
    return f'<resource uri="{uri}" mimeType="{mime}">[binary, not shown]</resource>'


def _binary(data: object, mime: object) -> UserContent | None:
    from pydantic_ai.messages import BinaryContent

    try:
        raw = base64.b64decode(str(data or ""), validate=True)
    except binascii.Error:
        return None
    return BinaryContent(data=raw, media_type=str(mime or "application/octet-stream")) if raw else None
