"""What an agent asks a person, on a terminal: permissions and forms. Pure: lines that were typed in, a result out."""

from __future__ import annotations

from typing import Any

from msgspec import Raw

from acpd.cli import blocks
from acpd.cli.output import one_line
from acpd.wire.envelope import encode

DECLINE, CANCEL = "/decline", "/dismiss"
_YES = {"y", "yes", "true", "1"}
_NO = {"n", "no", "false", "0"}
_TYPES = {"string", "boolean", "integer", "number"}


class Permission:
    """session/request_permission: a number chooses."""

    def __init__(self, params: Any, title: str) -> None:
        self._params = params
        self._options = blocks.items(params, "options")
        self._question = blocks.question("permission", params, title)
        self._content = blocks.items(params, "toolCall", "content")

    def shown(self) -> list[str]:
        shown = [f"  {line}" for one in self._content for line in blocks.tool_content(one).split("\n")[:20]]
        options = [
            f"  {number}) {one_line(blocks.words(one, 'name'), blocks.TITLE)} ({blocks.words(one, 'kind')})"
            for number, one in enumerate(self._options, 1)
        ]
        return [f"ask: {self._question}", *shown, *options]

    def take(self, line: str) -> bytes | None:
        """The result. Raises ValueError that says what is wanted."""
        word = line.strip()
        if not word.isascii() or not word.isdigit() or not 1 <= int(word) <= len(self._options):
            raise ValueError(f"a number from 1 to {len(self._options)} answers; /cancel ends the turn")
        chosen = blocks.words(self._options[int(word) - 1], "optionId")
        return encode({"outcome": {"outcome": "selected", "optionId": chosen}})

    def answer(self, result: bytes) -> str:
        """A result of `take`, for people."""
        return blocks.answer(self._params, blocks.parsed(Raw(result)), None)


class Form:
    """elicitation/create by a form: one line for each field, in order."""

    def __init__(self, params: Any) -> None:
        schema = blocks.member(params, "requestedSchema")
        found = blocks.member(schema, "properties")
        self._fields: list[tuple[str, Any]] = list(found.items()) if isinstance(found, dict) else []
        self._required = set(map(str, blocks.items(schema, "required")))
        self._message = one_line(blocks.words(params, "message"))
        self._content: dict[str, object] = {}
        self._begun = False
        self._skip()
        self._answerable = all(name not in self._required or _known(field) for name, field in self._fields)

    def shown(self) -> list[str]:
        """The question, the first time; then what is wanted next."""
        head = [] if self._begun else [f"ask: {self._message}"]
        self._begun = True
        if not self._answerable:
            return [*head, f"  it cannot be answered here: {DECLINE} or {CANCEL}, or another client"]
        if not self._fields:
            return [*head, f"  an empty line agrees; {DECLINE} or {CANCEL}"]
        name, field = self._fields[0]
        return [*head, f"  {_wanted(name, field, required=name in self._required)}"]

    def take(self, line: str) -> bytes | None:
        """The result; None: there are more fields. Raises ValueError that says what is wanted."""
        word = line.strip()
        if word in {DECLINE, CANCEL}:
            return encode({"action": "decline" if word == DECLINE else "cancel"})
        if not self._answerable:
            raise ValueError(f"{DECLINE} or {CANCEL}")
        if self._fields:
            name, field = self._fields[0]
            if word:
                self._content[name] = _value(line, field)
            elif "default" in field:
                self._content[name] = field["default"]
            elif name in self._required:
                raise ValueError(f"{name} is needed; {DECLINE} refuses")
            del self._fields[0]
            self._skip()
        return None if self._fields else encode({"action": "accept", "content": self._content})

    def answer(self, result: bytes) -> str:
        """A result of `take`, for people."""
        return blocks.words(blocks.parsed(Raw(result)), "action")

    def _skip(self) -> None:
        """Optional fields of a kind that cannot be asked for on a line are left out."""
        while self._fields and not _known(self._fields[0][1]) and self._fields[0][0] not in self._required:
            del self._fields[0]


Question = Permission | Form


def _known(field: Any) -> bool:
    return blocks.words(field, "type") in _TYPES


def _choices(field: Any) -> list[str]:
    named = [blocks.words(one, "const") for one in blocks.items(field, "oneOf")]
    return named or [str(one) for one in blocks.items(field, "enum")]


def _wanted(name: str, field: Any, *, required: bool) -> str:
    kind = blocks.words(field, "type")
    choices = _choices(field)
    what = "/".join(choices) if choices else "yes/no" if kind == "boolean" else kind
    if "default" in field:
        what += f", empty: {field['default']}"
    elif not required:
        what += ", may be empty"
    title = blocks.words(field, "title")
    return one_line(f"{name} ({title}: {what}):" if title else f"{name} ({what}):", 2 * blocks.TITLE)


def _value(line: str, field: Any) -> object:
    kind = blocks.words(field, "type")
    word = line.strip()
    if (choices := _choices(field)) and word not in choices:
        raise ValueError(f"one of {', '.join(choices)}")
    if kind == "boolean":
        if word.lower() not in _YES | _NO:
            raise ValueError("yes or no")
        return word.lower() in _YES
    if kind == "string":
        return line
    try:
        return int(word) if kind == "integer" else float(word)
    except ValueError:
        raise ValueError(f"{'a whole' if kind == 'integer' else 'a'} number") from None
