"""Compaction: what is old in a conversation is replaced by a summary that the session's model makes of it.

Nothing changes unless there is a summary that is shorter than what it replaces. A failure is told once and not tried again
before there are REST more messages; a cancel leaves everything as it was, and asks no model again.
"""

from __future__ import annotations

import asyncio
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from acpd.errors import ConnectionBroken, RequestError
from acpd.native import cutting, summarising
from acpd.native.asking import patient, streamed
from acpd.native.outcomes import fault, is_known, is_too_long, without
from acpd.native.sound import text_of

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage

    from acpd.api.turn import Turn
    from acpd.native.cutting import Rules
    from acpd.native.history import History
    from acpd.native.models import Loaded
    from acpd.native.outcomes import Limits

REST = 10
"""Messages that come before it is tried again after it did not help."""
NEXT = f"The conversation goes on as it was. It is tried again after {REST} more messages, and by /compact at once."
NOTHING = "There is nothing yet that could be summarised.\n"


class Useless(Exception):
    """A summary that cannot take the place of what it is about. The message says why."""


class Compacting:
    """What a turn needs for it. `secrets`, `limits` as of acpd.native.loop.Loop."""

    def __init__(
        self, turn: Turn, loaded: Loaded, history: History, rules: Rules, *, secrets: Sequence[str], limits: Limits
    ) -> None:
        self._session = turn.session
        self._loaded = loaded
        self._history = history
        self._rules = rules
        self._secrets = secrets
        self._limits = limits

    async def if_due(self) -> bool:
        """Before a request: whether the conversation is another one now. Raises CancelledError."""
        return self._due() and not self._resting() and await self._at(self._cut(self._limit // 2)) == ""

    async def overflown(self) -> bool:
        """The provider says that it is too long, whatever was thought: whether it is shorter now. Raises CancelledError."""
        if self._resting() or not (self._rules.messages or self._rules.tokens):
            return False
        return await self._at(self._cut(min(self._limit, self._tokens()) // 2)) == ""

    async def by_hand(self, words: str) -> str:
        """The user wants it: what to say then. `words`: what matters. Raises CancelledError."""
        why = await self._at(self._cut(self._limit // 2), words, by_hand=True)
        if why is None:
            return NOTHING
        return f"Nothing was changed. {why}\n" if why else "What came before is summarised now.\n"

    # -- where

    @property
    def _limit(self) -> int:
        return self._rules.limit(self._loaded.window) or sys.maxsize

    def _tokens(self) -> int:
        return cutting.tokens(self._history.messages, self._history.summary)

    def _due(self) -> bool:
        return cutting.due(self._history.messages, self._history.summary, self._rules, self._loaded.window)

    def _resting(self) -> bool:
        return len(self._history.messages) < self._history.rest

    def _cut(self, room: int) -> int:
        return cutting.cut(self._history.messages, self._rules.keep, room)

    # -- how

    async def _at(self, at: int, words: str = "", *, by_hand: bool = False) -> str | None:
        """Cut here. Empty: done; else why not; None: there is nothing to cut. What is tried again by itself is shown once it
        has come to something new.
        """
        if not at:
            return None
        name = self._session.channel.name("compaction")
        if shown := by_hand or not self._history.unsummarised:
            self._show(name, "in_progress")
        try:
            summary = await self._summary(self._history.messages[:at], words)
        except asyncio.CancelledError:
            if shown:
                self._show(name, "cancelled")
            raise
        except (ConnectionBroken, RequestError):
            raise
        except Exception as error:  # noqa: BLE001  the SDKs raise what they like; the conversation stays as it is
            why = self._why(error)
            if shown or why != self._history.unsummarised:
                self._tell_failure(name, why, by_hand=by_hand)
            self._history.unsummarised = why
        else:
            why = self._history.unsummarised = ""
            up_to = self._history.named(at)
            self._history.compact(at, summary)
            meta = {"_meta": {"acpd.dev/upTo": up_to}} if up_to else {}
            self._show(name, "completed", summary=[{"type": "text", "text": summary}], **meta)
            self._tell_usage()
        self._history.rest = len(self._history.messages) + REST if why or self._due() else 0
        return why

    def _tell_failure(self, name: str, why: str, *, by_hand: bool) -> None:
        text = why if by_hand else f"{why.rstrip('.')}. {NEXT}"
        self._show(name, "failed", error=text)
        if not self._session.client.compaction and not by_hand:  # whose answer says it
            self._session.notice("warning", "The conversation could not be summarised", text)

    def _show(self, name: str, status: str, **more: object) -> None:
        if self._session.client.compaction:
            said: Mapping[str, object] = {"sessionUpdate": "compaction_update", "compactionId": name, "status": status}
            self._session.update({**said, **more})

    def _tell_usage(self) -> None:
        if self._loaded.window:
            spent = self._history.usage.cost
            self._session.used(self._tokens(), self._loaded.window, None if spent is None else (spent, "USD"))

    def _why(self, error: Exception) -> str:
        if isinstance(error, Useless):
            return str(error)
        if not is_known(error):
            sys.stderr.write(without("".join(traceback.format_exception(error)), self._secrets))
        return fault(error, self._loaded.chosen, self._secrets)

    async def _summary(self, messages: Sequence[ModelMessage], words: str) -> str:
        """Of these messages and the earlier summary; in smaller parts if it is too much for a model whose window is unknown.

        Raises Useless, and what the SDKs raise.
        """
        room = summarising.room_of(self._loaded.window)
        summary = ""
        while not summary:
            try:
                summary = await self._of_parts(messages, words, room)
            except Exception as error:
                if not is_too_long(error) or room // 4 < summarising.LEAST:
                    raise
                room //= 4
        if cutting.length(summary) >= cutting.length(self._history.summary) + sum(map(cutting.size, messages)):
            raise Useless("The summary is not shorter than what it would replace.")
        if cutting.length(summary) > summarising.longest(room):
            raise Useless("The summary is so long that the next one could not be made from it.")
        return summary

    async def _of_parts(self, messages: Sequence[ModelMessage], words: str, room: int) -> str:
        summary = self._history.summary
        for part in summarising.parts(messages, room):
            summary = await self._ask(summarising.question(summary, part, words, room))
        return summary

    async def _ask(self, text: str) -> str:
        from pydantic_ai.messages import InstructionPart, ModelRequest, UserPromptPart
        from pydantic_ai.models import ModelRequestParameters

        parameters = ModelRequestParameters(instruction_parts=[InstructionPart(content=summarising.INSTRUCTIONS)])
        messages = [ModelRequest(parts=[UserPromptPart(text)])]
        async with streamed(self._loaded, messages, patient(self._limits), parameters) as stream:
            try:
                async for _ in stream:
                    pass
            finally:
                self._history.pay(stream.usage, stream.get)
        response = stream.get()
        if response.state != "complete" or response.finish_reason != "stop":
            raise Useless(f"The summary was not finished ({response.finish_reason or 'it broke off'}).")
        summary = text_of(response.text or "").strip()
        if not any(map(str.isalnum, summary)):
            raise Useless("The summary is empty.")
        return summary
