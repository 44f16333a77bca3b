"""A conversation for people to read. Pure: stored lines in, lines of text out.

What was said is indented and headings are not, so no text can pass for a heading. A turn is told when it is over, because a
tool call and an ask stand where they began and in the state in which they ended.
"""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from acpd.cli import blocks
from acpd.cli.output import one_line
from acpd.wire.lines import Stored

HELD = 2000
"""Items of one turn that are held back at most; then what there is, is told."""
OUTPUT_LINES = 20
"""Lines of a tool's output that are shown."""

SPEAKERS = {"user_message_chunk": "you", "agent_message_chunk": "agent", "agent_thought_chunk": "thought"}

COMPACTIONS = {"compaction_update", "compaction_summary_chunk"}


def speaker_of(kind: str, params: Any) -> str:
    """Who says a chunk of this kind (a key of SPEAKERS): acpd's own words are acpd's."""
    return "acpd" if blocks.member(params, "_meta", "acpd.dev/notice") is True else SPEAKERS[kind]


class _Message:
    """Adjacent chunks of one speaker."""

    def __init__(self, speaker: str, name: str) -> None:
        self.speaker = speaker
        self.name = name
        self.parts: list[str] = []

    def lines(self) -> list[str]:
        return [f"{self.speaker}:", *indented("".join(self.parts))]


class Tool:
    """A tool call: what its updates said of it last."""

    def __init__(self) -> None:
        self.members: dict[str, Any] = {}
        self.turn_over = False

    def update(self, value: Any) -> None:
        if isinstance(value, dict):
            self.members.update({name: one for name, one in value.items() if one is not None})

    def lines(self) -> list[str]:
        status = blocks.words(self.members, "status") or "pending"
        if self.turn_over and status in {"pending", "in_progress"}:
            status += ", never ended"
        title = blocks.words(self.members, "title") or blocks.words(self.members, "toolCallId")
        kind = blocks.words(self.members, "kind")
        head = f"tool: {one_line(title, blocks.TITLE)}{f' ({kind})' if kind else ''}: {status}"
        text = "\n".join(blocks.tool_content(one) for one in blocks.items(self.members, "content"))
        shown = indented(text)
        more = len(shown) - OUTPUT_LINES
        return [head, *shown[:OUTPUT_LINES], *([f"  ... and {more} more lines"] if more > 0 else [])]


class Plan:
    def __init__(self) -> None:
        self.entries: list[Any] = []

    def lines(self) -> list[str]:
        marks = {"completed": "x", "in_progress": ">"}
        return [
            "plan:",
            *(
                f"  [{marks.get(blocks.words(one, 'status'), ' ')}] {one_line(blocks.words(one, 'content'))}"
                for one in self.entries
            ),
        ]


class Compaction:
    """A summary that takes the place of what is old: what its updates said of it last."""

    def __init__(self) -> None:
        self.status = ""
        self._summary: list[Any] = []
        self._error = ""

    def update(self, value: Any) -> None:
        """An update, or a chunk of the summary."""
        self.status = blocks.words(value, "status") or self.status
        self._error = blocks.words(value, "error") or self._error
        if "summary" in value:
            self._summary = blocks.items(value, "summary")
        elif "content" in value:
            self._summary = [*self._summary, value["content"]]

    def head(self) -> str:
        """One line."""
        why = f": {one_line(self._error, blocks.TITLE)}" if self._error and self.status == "failed" else ""
        return f"compaction: {one_line(self.status, blocks.TITLE) or 'in_progress'}{why}"

    def lines(self) -> list[str]:
        """With the summary, once it counts."""
        text = "".join(map(blocks.block, self._summary)) if self.status == "completed" else ""
        return [self.head(), *indented(text)]


class _Ask:
    """`title`: of the tool call that it is about, as far as that was told before."""

    def __init__(self, method: str, params: Any, title: str) -> None:
        self.params = params
        self.question = blocks.question(method, params, title)
        self.answer = ""

    def lines(self) -> list[str]:
        return [f"ask: {self.question} -> {self.answer or 'no answer yet'}"]


class _Line:
    def __init__(self, text: str) -> None:
        self.text = text

    def lines(self) -> list[str]:
        return [self.text]


_Item = _Message | Tool | Plan | Compaction | _Ask | _Line


class Transcript:
    """`feed` every entry of a path in order, then `finish`."""

    def __init__(self) -> None:
        self._items: list[_Item] = []
        self._tools: dict[str, Tool] = {}
        self._asks: dict[str, _Ask] = {}
        self._plan: Plan | None = None
        self._compactions: dict[str, Compaction] = {}

    def feed(self, line: Stored) -> list[str]:
        """What can be told now."""
        told: list[str] = []
        match line.type:
            case "prompt":
                told = self._settle(over=True)
                self._items.append(_said("you", blocks.prompt(line.prompt)))
            case "update" | "compaction":
                self._update(line)
            case "ask":
                self._ask(line)
            case "answer":
                self._answer(line)
            case "turn":
                told = self._turn(line)
            case "gap":
                self._items.append(_Line("gap: a part of the history could not be read"))
            case _:
                self._items.append(_Line(f"{one_line(line.type, blocks.TITLE)}: not known to this version"))
        return told or (self._settle(over=False) if len(self._items) > HELD else [])

    def finish(self) -> list[str]:
        return self._settle(over=False)

    def _update(self, line: Stored) -> None:
        params = blocks.parsed(line.params)
        update = blocks.member(params, "update")
        kind = line.kind or blocks.words(update, "sessionUpdate")
        if kind in SPEAKERS:
            speaker = speaker_of(kind, params)
            self._chunk(speaker, line.messageId or blocks.words(update, "messageId"), blocks.member(update, "content"))
        elif kind in {"tool_call", "tool_call_update"}:
            self._tool(blocks.words(update, "toolCallId"), update)
        elif kind == "plan":
            if self._plan is None:
                self._plan = Plan()
                self._items.append(self._plan)
            self._plan.entries = blocks.items(update, "entries")
        elif kind in COMPACTIONS and isinstance(update, dict):
            self._compaction(blocks.words(update, "compactionId"), update)
        else:
            self._items.append(_Line(f"update: {one_line(kind, blocks.TITLE)}"))

    def _chunk(self, speaker: str, name: str, content: Any) -> None:
        last = self._items[-1] if self._items else None
        text = blocks.block(content)
        if not (isinstance(last, _Message) and last.speaker == speaker and last.name == name):
            last = _Message(speaker, name)
            self._items.append(last)
        elif blocks.words(content, "type") != "text":
            text = "\n" + text
        last.parts.append(text)

    def _tool(self, name: str, update: Any) -> None:
        tool = self._tools.get(name)
        if tool is None:
            tool = self._tools[name] = Tool()
            self._items.append(tool)
        tool.update(update)

    def _compaction(self, name: str, update: dict[str, Any]) -> None:
        known = self._compactions.get(name)
        if known is None:
            known = self._compactions[name] = Compaction()
            self._items.append(known)
        known.update(update)

    def _ask(self, line: Stored) -> None:
        params = blocks.parsed(line.params)
        tool = self._tools.get(blocks.words(params, "toolCall", "toolCallId"))
        self._asks[line.id] = ask = _Ask(line.method, params, blocks.words(tool.members, "title") if tool else "")
        self._items.append(ask)

    def _answer(self, line: Stored) -> None:
        ask = self._asks.pop(line.ask, None)
        error = blocks.parsed(line.error) if line.error is not UNSET else None
        text = blocks.answer(ask.params if ask else None, blocks.parsed(line.result), error)
        text += {"cancel": ", by cancelling", "acpd": ", by acpd"}.get(line.by, "")
        if ask is not None and ask in self._items:
            ask.answer = text
        else:
            self._items.append(_Line(f"answer: {text}"))

    def _turn(self, line: Stored) -> list[str]:
        if line.state == "running":
            return []
        reason = line.stopReason or one_line(blocks.words(blocks.parsed(line.error), "message"), blocks.TITLE)
        told = self._settle(over=True)
        return [*told, f"turn {line.state}" + (f": {reason}" if reason else ""), ""]

    def _settle(self, *, over: bool) -> list[str]:
        for tool in self._tools.values():
            tool.turn_over = over
        told = [line for item in self._items for line in item.lines()]
        self._items.clear()
        self._plan = None
        if over:
            self._tools.clear()
            self._compactions.clear()
        return told


def _said(speaker: str, text: str) -> _Message:
    message = _Message(speaker, "")
    message.parts.append(text)
    return message


def indented(text: str) -> list[str]:
    """Without the empty lines at its end: models end their paragraphs with them."""
    text = text.rstrip("\n")
    return [f"  {line}".rstrip() for line in text.split("\n")] if text else []
