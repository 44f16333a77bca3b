"""A session's title: the agent's, else the first line of its first prompt that is no command, else of the first one.

Wherever it is from, it is one line of at most LIMIT characters without tags that an editor has put in, and without controls.
"""

from __future__ import annotations

import re
import unicodedata

import msgspec
from msgspec import Struct

LIMIT = 80
"""Characters of a title."""

_ANYWHERE = re.compile(r"<(system-reminder|context)\b[^<>]*>")
_LEADING = re.compile(r"\s*<([A-Za-z][\w.:-]*)([^<>]*)>")
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_COMMAND = re.compile(r"/[A-Za-z][\w:.-]*(?:\s|\Z)")
_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]")
_JOINERS = "\u200d\ufe0e\ufe0f"


class _Block(Struct, gc=False):
    type: str
    text: str = ""


_decode = msgspec.json.Decoder(list[_Block]).decode


def first_line_title(prompt: bytes) -> str:
    """The first line that a person wrote, at most 80 characters; empty if there is none.

    `prompt` is a JSON array of content blocks. Editors inject blocks such as `<system-reminder>...</system-reminder>` and
    `<context ...>...</context>`, and other tags before the text; they are cut with their content. Linear in its length.
    """
    try:
        blocks = _decode(prompt)
    except (msgspec.DecodeError, RecursionError):
        return ""
    for block in blocks:
        if block.type == "text" and (title := plain_title(block.text)):
            return title
    return ""


def is_command(title: str) -> bool:
    """Whether it says `/compact`, and not what the session is about."""
    return _COMMAND.match(title) is not None


def plain_title(text: str) -> str:
    """As of a prompt, of any text: what an agent calls its session, for example."""
    text = _without_injected(text)
    for line in text[_after_leading(text) :].splitlines():
        clean = " ".join(_CONTROL.sub("", _ESCAPE.sub("", line)).split())
        if clean:
            return _shortened(clean)
    return ""


def _without_injected(text: str) -> str:
    """The text without injected blocks. A reminder that is never closed goes to the end; such a context is text."""
    parts: list[str] = []
    at = 0
    open_ended: set[str] = set()
    while tag := _ANYWHERE.search(text, at):
        name = tag[1]
        end = -1 if name in open_ended else text.find(f"</{name}>", tag.end())
        if end >= 0:
            parts.append(text[at : tag.start()])
            at = end + len(name) + 3
        elif name == "system-reminder":
            parts.append(text[at : tag.start()])
            at = len(text)
        else:
            open_ended.add(name)  # so that the text is searched once only
            parts.append(text[at : tag.end()])
            at = tag.end()
    parts.append(text[at:])
    return "".join(parts)


def _after_leading(text: str) -> int:
    """Where the text goes on after the tags, with their content, that it begins with."""
    at = 0
    while tag := _LEADING.match(text, at):
        if tag[2].endswith("/"):
            at = tag.end()
            continue
        close = f"</{tag[1]}>"
        end = text.find(close, tag.end())
        if end < 0:
            break
        at = end + len(close)
    return at


def _shortened(line: str) -> str:
    """At most LIMIT characters, without cutting between a character and the marks that belong to it."""
    if len(line) <= LIMIT:
        return line
    end = LIMIT
    while end > LIMIT // 2 and (_belongs(line[end]) or line[end - 1] == "\u200d"):
        end -= 1
    return line[:end].rstrip()


def _belongs(character: str) -> bool:
    return character in _JOINERS or unicodedata.combining(character) != 0
