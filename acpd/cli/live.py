"""A conversation for people to read while it goes on. Pure: updates in, text out, in the form of `transcript`.

What a message says appears as it comes; a tool call is told when it begins and when it has ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from acpd.cli import blocks
from acpd.cli.transcript import COMPACTIONS, SPEAKERS, Compaction, Plan, Tool, speaker_of

KNOWN = 500
"""Tool calls that are remembered."""
_OVER = {"completed", "failed"}


class Live:
    """Each method gives what must be written now: whole lines, but for a message that is not over."""

    def __init__(self) -> None:
        self._speaking: tuple[str, str] | None = None
        """Who, and in which message."""
        self._fresh = True
        """Whether nothing stands on the line yet."""
        self._held = ""
        """Newlines that are told only if more follows."""
        self._tools: dict[str, tuple[Tool, str]] = {}
        """The newest, each with the state in which it was told last."""

    def update(self, params: Any) -> str:
        """The params of one session/update."""
        update = blocks.member(params, "update")
        kind = blocks.words(update, "sessionUpdate")
        if kind in SPEAKERS:
            speaker = speaker_of(kind, params)
            told = self._chunk(speaker, blocks.words(update, "messageId"), blocks.member(update, "content"))
            return told + self.over() if speaker == "acpd" else told  # a notice is whole: what is typed stands below it
        if kind in {"tool_call", "tool_call_update"}:
            return self._tool(update)
        if kind == "plan":
            plan = Plan()
            plan.entries = blocks.items(update, "entries")
            return self.lines(plan.lines())
        if kind in COMPACTIONS:
            return self._compaction(update)
        return ""  # modes, commands, usage: for clients that have a place for them

    def recall(self, update: Any) -> None:
        """What was said of a tool call before anything was told here. Nothing is told of it now."""
        if blocks.words(update, "sessionUpdate") in {"tool_call", "tool_call_update"}:
            name = blocks.words(update, "toolCallId")
            tool, told = self._tools.get(name, (Tool(), ""))
            tool.update(update)
            self._keep(name, tool, told)

    def lines(self, lines: Sequence[str]) -> str:
        """These, behind whatever was being said."""
        return self.over() + "".join(f"{line}\n" for line in lines)

    def said(self, speaker: str, text: str) -> str:
        """A whole message."""
        return self._chunk(speaker, "", {"type": "text", "text": text}) + self.over()

    def over(self) -> str:
        """The message that is being told has ended."""
        end = "" if self._speaking is None or self._fresh else "\n"
        self._speaking, self._fresh, self._held = None, True, ""
        return end

    def typed(self) -> None:
        """Somebody typed a line: the terminal's cursor stands at the beginning of the next."""
        self._fresh = True
        self.over()

    def title(self, tool: str) -> str:
        """Of the tool call with this id, as far as it was told."""
        known = self._tools.get(tool)
        return blocks.words(known[0].members, "title") if known is not None else ""

    def _chunk(self, speaker: str, name: str, content: Any) -> str:
        text = blocks.block(content)
        head = ""
        if self._speaking != (speaker, name):
            head = f"{self.over()}{speaker}:\n"
            self._speaking = (speaker, name)
        elif blocks.words(content, "type") != "text":
            text = "\n" + text
        return head + self._flow(text)

    def _flow(self, text: str) -> str:
        text = self._held + text
        told = text.rstrip("\n")
        self._held = text[len(told) :]
        parts: list[str] = []
        for at, line in enumerate(told.split("\n")):
            if at:
                parts.append("\n")
                self._fresh = True
            if line:
                parts.append(f"  {line}" if self._fresh else line)
                self._fresh = False
        return "".join(parts)

    def _tool(self, update: Any) -> str:
        name = blocks.words(update, "toolCallId")
        tool, told = self._tools.get(name, (Tool(), ""))
        tool.update(update)
        status = blocks.words(tool.members, "status") or "pending"
        self._keep(name, tool, status)
        if told and (status == told or status not in _OVER):
            return ""
        return self.lines(tool.lines())

    def _compaction(self, update: Any) -> str:
        """How it ended, in one line. That it has begun is told by nobody: it may be over in a moment."""
        compaction = Compaction()
        compaction.update(update)
        return self.lines([compaction.head()]) if compaction.status in _OVER else ""

    def _keep(self, name: str, tool: Tool, told: str) -> None:
        self._tools.pop(name, None)
        self._tools[name] = (tool, told)
        if len(self._tools) > KNOWN:
            del self._tools[next(iter(self._tools))]
