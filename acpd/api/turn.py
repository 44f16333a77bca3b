"""A turn as its agent sees it: one prompt, and all that can be done while it runs."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec import Struct

from acpd.api import hands
from acpd.api.calls import ToolCall
from acpd.api.session import Session
from acpd.api.shapes import Location, PlanEntry, ToolKind, Verdict
from acpd.errors import RequestError

if TYPE_CHECKING:
    from pathlib import Path

PERMISSIONS = "tool_context"
"""The state that keeps what was answered with "always"."""
_MESSAGE, _THOUGHT = "agent_message_chunk", "agent_thought_chunk"


class _Remembered(Struct):
    """By scope."""

    always: dict[str, Literal["allow", "reject"]] = {}


class _Outcome(Struct):
    outcome: str
    optionId: str = ""


class _Permission(Struct):
    outcome: _Outcome


class _Form(Struct):
    action: str
    content: dict[str, Any] | None = None


_decode_permission = msgspec.json.Decoder(_Permission).decode
_decode_form = msgspec.json.Decoder(_Form).decode


class Turn:
    """Every `async` method may be cancelled, and is when the client cancels the turn: CancelledError leaves `prompt`.

    What is said after the turn has ended is sent as work in the background.
    """

    def __init__(self, session: Session, blocks: Sequence[Mapping[str, Any]]) -> None:
        self.session = session
        self.blocks = blocks
        """The prompt, as ACP has it (ContentBlock)."""
        self.text = "\n\n".join(str(block["text"]) for block in blocks if block.get("type") == "text")
        """The texts of the prompt."""
        self.cancelled = False
        self.open: list[ToolCall] = []
        """Tool calls that were begun and have not come to an end."""
        self._questions: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        """By scope: one question at a time, whose answer may be that of the next."""

    # -- what the user sees

    async def say(self, text: str) -> None:
        """A part of the agent's message. Waits while the client does not read."""
        await self._chunk(_MESSAGE, {"type": "text", "text": text})

    async def think(self, text: str) -> None:
        """A part of its thoughts."""
        await self._chunk(_THOUGHT, {"type": "text", "text": text})

    async def show(self, block: Mapping[str, object]) -> None:
        """Any content block, an image for example, as a part of the message."""
        await self._chunk(_MESSAGE, block)

    async def _chunk(self, kind: str, block: Mapping[str, Any]) -> None:
        if block.get("text") != "":
            self.session.channel.chunk(kind, block)
        await self.session.channel.room()

    async def plan(self, entries: Sequence[PlanEntry]) -> None:
        """The whole plan as it is now; it takes the place of the one before."""
        self.session.channel.send({"sessionUpdate": "plan", "entries": entries})
        await self.session.channel.room()

    def tool(
        self,
        title: str,
        *,
        kind: ToolKind = "other",
        name: str = "",
        input: object = None,  # noqa: A002  ACP calls it rawInput
        locations: Sequence[Location] = (),
    ) -> ToolCall:
        """A tool call, to be used with `async with`. `name`: the tool's own name."""
        return ToolCall(self, title, kind, name, input, locations)

    # -- what the user is asked

    async def allowed(self, call: ToolCall, scope: str, what: str = "") -> bool:
        """Whether the user allows this. An answer with "always" is remembered, in this session and for this scope.

        Calls of one scope are asked for one after another, so that "always" answers those that wait.

        `what`: how the scope is called in the question. Only a clear yes is one. Raises CancelledError if the answer is
        that the turn was cancelled.
        """
        return (await self.verdict(call, scope, what)).allowed

    async def verdict(self, call: ToolCall, scope: str, what: str = "") -> Verdict:
        """As `allowed`, with a word on how it was decided."""
        async with self._questions[scope]:
            return await self._decided(call, scope, what)

    async def _decided(self, call: ToolCall, scope: str, what: str) -> Verdict:
        if self.cancelled:  # by the answer to another question of this scope
            raise asyncio.CancelledError
        remembered = self._remembered()
        if scope in remembered.always:
            allowed = remembered.always[scope] == "allow"
            return Verdict(allowed, "allowed before, always" if allowed else "refused before, always")
        try:
            chosen = await self._permission(call, what or scope)
        except RequestError as error:
            return Verdict(allowed=False, why=f"not answered: {error}")
        except msgspec.DecodeError:
            return Verdict(allowed=False, why="not answered in a way that I understand")
        if chosen in _ALWAYS:
            self._remember(scope, _ALWAYS[chosen])
        return Verdict(allowed=True, why="allowed") if chosen in {"yes", "always"} else Verdict(allowed=False, why="refused")

    async def _permission(self, call: ToolCall, what: str) -> str:
        """The option that was chosen; empty: none. Raises RequestError, DecodeError, CancelledError."""
        options = [
            {"optionId": "yes", "name": "Allow", "kind": "allow_once"},
            {"optionId": "always", "name": f"Always allow in this session: {what}", "kind": "allow_always"},
            {"optionId": "no", "name": "Refuse", "kind": "reject_once"},
            {"optionId": "never", "name": f"Always refuse in this session: {what}", "kind": "reject_always"},
        ]
        params = {"toolCall": call.described(), "options": options}
        said = _decode_permission(await self.session.channel.ask("session/request_permission", params)).outcome
        if said.outcome == "cancelled":
            self.cancelled = True
            raise asyncio.CancelledError
        return said.optionId if said.outcome == "selected" else ""

    def _remembered(self) -> _Remembered:
        """What was answered with "always"."""
        return self.session.spared(PERMISSIONS, _Remembered) or _Remembered()

    def _remember(self, scope: str, answer: Literal["allow", "reject"]) -> None:
        remembered = self._remembered()  # a call of another scope may have been answered meanwhile
        self.session.state.put(PERMISSIONS, _Remembered({**remembered.always, scope: answer}))

    async def elicit(self, message: str, schema: Mapping[str, object]) -> Mapping[str, object] | None:
        """Ask the user to fill in a form (a flat JSON schema of an object). None: declined, or this client has no forms.

        Never ask for a secret so (ACP v1 elicitation).
        """
        if not self.session.client.form:
            return None
        params = {"mode": "form", "message": message, "requestedSchema": schema}
        try:
            said = _decode_form(await self.session.channel.ask("elicitation/create", params))
        except (RequestError, msgspec.DecodeError):
            return None
        return said.content or {} if said.action == "accept" else None

    # -- files and commands

    async def read_text(self, path: Path, line: int | None = None, limit: int | None = None) -> str:
        """A file's text, by the client where it can (it knows what is not saved), else here. `line` counts from 1; `limit`
        is a number of lines. A relative path counts from the session's cwd; links may not lead out of the session's folders.

        Raises FileFailed.
        """
        return await hands.read_text(self.session, path, line, limit)

    async def write_text(self, path: Path, text: str) -> None:
        """Write a whole file, which is made if it is not there. The rules are those of `read_text`. Raises FileFailed."""
        await hands.write_text(self.session, path, text)

    def terminal(
        self,
        command: str,
        args: Sequence[str] = (),
        *,
        cwd: Path | None = None,
        env: Mapping[str, str] = {},
        limit: int = 1 << 20,
    ) -> AbstractAsyncContextManager[hands.Terminal]:
        """Run a command in a terminal of the client's where it has them, else here; gone with all that it started when the
        `async with` is left. `limit`: bytes of output that are kept, the newest. Raises TerminalFailed on entry.
        """
        return hands.terminal(self.session, command, args, cwd, env, limit)


_ALWAYS: dict[str, Literal["allow", "reject"]] = {"always": "allow", "never": "reject"}
