"""What a client sees: `session/update` params folded by the rules of ACP v1 alone.

An oracle. It imports nothing of the product, so that a bug there cannot hide here. Two lists of params that give the
same `View` look the same to a client; `message_ids` is compared beside it, because ids are no part of what is seen.

Sources: ACP v1 prompt-turn (chunks, messageId), tool-calls (patches), agent-plan, session-list (info), the RFDs on
message ids, compaction and plan operations.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]

CHUNKS = {"user_message_chunk": "user", "agent_message_chunk": "agent", "agent_thought_chunk": "thought"}
OPEN = {"pending", "in_progress"}
TERMINAL_TEXT = "[terminal output is not kept]"
_OURS = "acpd.dev/"


@dataclass
class View:
    """What stands on the screen in the end. Two views are equal if a client could not tell them apart."""

    timeline: list[Json] = field(default_factory=list)
    """In order of first appearance: {"message": kind, "blocks": [...]}, {"tool": id}, {"compaction": id}."""
    tools: dict[str, Json] = field(default_factory=dict)
    plan: list[Json] | None = None
    plans: dict[str, Json] = field(default_factory=dict)
    compactions: dict[str, Json] = field(default_factory=dict)
    commands: list[Json] | None = None
    mode: str | None = None
    config: list[Json] | None = None
    info: Json = field(default_factory=dict)
    usage: Json | None = None
    others: list[Json] = field(default_factory=list)

    @property
    def title(self) -> str | None:
        return self.info.get("title")

    @property
    def messages(self) -> list[tuple[str, list[Json]]]:
        """(kind, blocks) of each message."""
        return [(item["message"], item["blocks"]) for item in self.timeline if "message" in item]

    @property
    def texts(self) -> list[str]:
        """The text of each message, whoever said it."""
        return ["".join(block.get("text", "") for block in blocks) for _, blocks in self.messages]

    def closed(self) -> View:
        """The same after the turn was over: a call that is still open has failed (ACP v1 has no "cancelled")."""
        view = copy.deepcopy(self)
        for tool in view.tools.values():
            if tool["status"] in OPEN:
                tool["status"] = "failed"
        return view


class _Folder:
    """Takes one update after the other. What the schema does not allow raises KeyError or TypeError."""

    def __init__(self) -> None:
        self.view = View()
        self.named: dict[tuple[str, str], Json] = {}
        self.ids: list[tuple[str, str | None]] = []
        self.last: dict[str, str | None] = {}
        self.resumed: list[tuple[str, str | None]] = []

    def add(self, params: Json) -> None:
        update = clean(params["update"])
        kind = update.pop("sessionUpdate")
        if kind in CHUNKS:
            self._chunk(CHUNKS[kind], update)
        elif kind in {"tool_call", "tool_call_update"}:
            self._tool(update)
        elif kind.startswith("compaction_"):
            self._compaction(kind, update)
        elif kind != "notice":  # a notice is shown and forgotten
            self._state(kind, update)

    def _chunk(self, kind: str, update: Json) -> None:
        identifier = update.pop("messageId", None)
        message = self.named.get((kind, identifier)) if identifier is not None else self._adjacent(kind)
        if message is None:
            message = Json(message=kind, blocks=[])
            self.view.timeline.append(message)
            self.ids.append((kind, identifier))
            if identifier is not None:
                self.named[kind, identifier] = message
        elif self.last[kind] != identifier:
            self.resumed.append((kind, identifier))
        self.last[kind] = identifier
        block = update.pop("content")
        append_block(message["blocks"], {**block, "chunk": update} if update else block)

    def _adjacent(self, kind: str) -> Json | None:
        last = self.view.timeline[-1] if self.view.timeline else {}
        return last if last.get("message") == kind else None

    def _tool(self, update: Json) -> None:
        name = update["toolCallId"]
        if name not in self.view.tools:
            self.view.timeline.append({"tool": name})
            self.view.tools[name] = {"title": name, "kind": "other", "status": "pending", "content": [], "locations": []}
        patch = {key: value for key, value in update.items() if value is not None}
        if "content" in patch:
            patch["content"] = [without_terminal(item) for item in patch["content"]]
        self.view.tools[name] |= patch

    def _compaction(self, kind: str, update: Json) -> None:
        name = update.pop("compactionId")
        if name not in self.view.compactions:
            self.view.timeline.append({"compaction": name})
            self.view.compactions[name] = {"summary": []}
        entity = self.view.compactions[name]
        summary: list[Json] = entity["summary"]
        if kind == "compaction_summary_chunk":
            append_block(summary, update["content"])
            return
        for key, value in update.items():
            if key == "summary":
                summary.clear()
                for block in value or []:
                    append_block(summary, block)
            elif value is None:
                entity.pop(key, None)
            else:
                entity[key] = value

    def _state(self, kind: str, update: Json) -> None:
        view = self.view
        match kind:
            case "plan":
                view.plan = update["entries"]
            case "plan_update":
                view.plans[update["plan"]["planId"]] = update["plan"]
            case "plan_removed":
                view.plans.pop(update["planId"], None)
            case "available_commands_update":
                view.commands = update["availableCommands"]
            case "current_mode_update":
                view.mode = update["currentModeId"]
            case "config_option_update":
                view.config = update["configOptions"]
            case "session_info_update":
                view.info = {key: value for key, value in (view.info | update).items() if value is not None}
            case "usage_update":
                view.usage = update
            case _:
                view.others.append({"sessionUpdate": kind, **update})


def fold(updates: Iterable[Json]) -> View:
    """The view after these `session/update` params, all of one session."""
    return _folded(updates).view


def message_ids(updates: Iterable[Json]) -> list[tuple[str, str | None]]:
    """(kind, messageId) of each message in order of appearance; None where a chunk came without."""
    return _folded(updates).ids


def check_ids(updates: Iterable[Json]) -> list[tuple[str, str]]:
    """The ids of all messages. Raises AssertionError if a message has none, or an id comes back after another message of its
    kind: then it names two messages ("a changed messageId indicates a new message"). Kinds have id spaces of their own.
    """
    folder = _folded(updates)
    missing = [kind for kind, identifier in folder.ids if not identifier]
    assert not missing, f"{len(missing)} messages without messageId: {missing[:3]}"
    assert not folder.resumed, f"messageId of two messages: {folder.resumed[:3]}"
    return [(kind, str(identifier)) for kind, identifier in folder.ids]


def prompt(session_id: str, blocks: Sequence[Json], name: str) -> list[Json]:
    """The user's own prompt, which a client shows without being told; `name` is unique among the prompts."""
    return [
        {
            "sessionId": session_id,
            "update": {"sessionUpdate": "user_message_chunk", "content": block, "messageId": f"prompt:{name}"},
        }
        for block in blocks
    ]


def append_block(blocks: list[Json], block: Json) -> None:
    """One block more. Text that carries nothing but text flows into the text before it."""
    if blocks and is_plain(block) and is_plain(blocks[-1]):
        blocks[-1] = {"type": "text", "text": blocks[-1]["text"] + block["text"]}
    else:
        blocks.append(block)


def is_plain(block: Json) -> bool:
    return block.get("type") == "text" and block.keys() == {"type", "text"}


def without_terminal(item: Json) -> Json:
    """The terminal of a client that is gone is a line of text; to be comparable, every terminal is."""
    if item.get("type") != "terminal":
        return item
    return {"type": "content", "content": {"type": "text", "text": TERMINAL_TEXT}}


def clean(value: Any) -> Any:
    """A copy without what acpd adds under `_meta`, and without an emptied `_meta`."""
    if isinstance(value, list):
        return [clean(item) for item in value]
    if not isinstance(value, dict):
        return value
    result = {key: clean(item) for key, item in value.items()}
    meta = result.get("_meta")
    if isinstance(meta, dict):
        result["_meta"] = {key: item for key, item in meta.items() if not key.startswith(_OURS)}
    if "_meta" in result and not result["_meta"]:
        del result["_meta"]
    return result


def _folded(updates: Iterable[Json]) -> _Folder:
    folder = _Folder()
    for params in updates:
        folder.add(params)
    return folder
