"""What a model is told of a server's answer: texts, images, and a word about everything that it cannot be shown."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from acpd.native.toolbox import ToolOutput, bounded
from acpd.native.tools.reading import image_type

if TYPE_CHECKING:
    import mcp_types as types

    from acpd.native.mcp.hiding import Secrets

MAX_IMAGES = 8
MAX_IMAGE = 5 * 1024 * 1024
"""Bytes of one image; models take no bigger ones."""
MAX_STRUCTURED = 64 * 1024
"""Characters of JSON that the client is given besides the text."""
_PICTURES = {"image/png", "image/jpeg", "image/gif", "image/webp"}


class _Told:
    """What has been gathered."""

    def __init__(self, secrets: Secrets) -> None:
        self._secrets = secrets
        self.texts: list[str] = []
        self.images: list[tuple[bytes, str]] = []

    def text(self, text: str) -> None:
        self.texts.append(self._secrets.told(text))

    def image(self, data: str, mime: str) -> None:
        mime = mime.lower()
        try:
            decoded = base64.b64decode("".join(data.split()), validate=True)
        except ValueError:
            self.text(f"[image {mime}: its data is not valid base64; not shown]")
            return
        if mime in _PICTURES and image_type(decoded[:16]) not in _PICTURES:
            self.text(f"[image {mime}, {len(decoded)} bytes: it is no image; not shown]")
        elif mime not in _PICTURES or len(decoded) > MAX_IMAGE or len(self.images) == MAX_IMAGES:
            self.text(f"[image {mime}, {len(decoded)} bytes: not shown]")
        else:
            self.images.append((decoded, image_type(decoded[:16])))

    def contents(self, resource: types.TextResourceContents | types.BlobResourceContents) -> None:
        from mcp_types import TextResourceContents

        mime = resource.mime_type or ""
        if isinstance(resource, TextResourceContents):
            self.text(f"[resource {resource.uri}]\n{resource.text}")
        elif mime.lower() in _PICTURES:
            self.image(resource.blob, mime)
        else:
            self.text(f"[resource {resource.uri}{_mime(mime)}, about {len(resource.blob) * 3 // 4} bytes: not a text]")

    def block(self, block: types.ContentBlock) -> None:
        if block.type == "text":
            self.text(block.text)
        elif block.type == "image":
            self.image(block.data, block.mime_type)
        elif block.type == "audio":
            self.text(f"[audio{_mime(block.mime_type)}, about {len(block.data) * 3 // 4} bytes: it cannot be heard here]")
        elif block.type == "resource":
            self.contents(block.resource)
        else:
            self.text(link(block))

    def output(self, *, failed: bool = False, structured: object = None) -> ToolOutput:
        text = "\n".join(self.texts)
        return ToolOutput(bounded(text), tuple(self.images), failed, structured)


def link(resource: Any) -> str:
    """One line about a resource, or a template of some."""
    uri = getattr(resource, "uri", None) or resource.uri_template
    about = ": ".join(filter(None, (resource.title or resource.name, " ".join((resource.description or "").split())[:300])))
    return f"[{uri}{_mime(resource.mime_type)}] {about}"


def _mime(mime: str | None) -> str:
    return f", {mime}" if mime else ""


def of_call(result: types.CallToolResult, secrets: Secrets) -> ToolOutput:
    """An output with the server's word on whether it failed. Its `structured` stands in the text where there is no other."""
    told = _Told(secrets)
    for block in result.content:
        told.block(block)
    structured = None
    if result.structured_content is not None:
        hidden = _hidden(result.structured_content, secrets)
        rendered = json.dumps(hidden, ensure_ascii=False)
        if not told.texts and not told.images:
            told.texts.append(rendered)
        if len(rendered) <= MAX_STRUCTURED:
            structured = hidden
    return told.output(failed=result.is_error, structured=structured)


def _hidden(value: Any, secrets: Secrets) -> Any:
    """The same JSON without secrets: in names, texts, and numbers, which may be one too."""
    if isinstance(value, str):
        return secrets.told(value)
    if isinstance(value, dict):
        return {secrets.told(name): _hidden(each, secrets) for name, each in value.items()}
    if isinstance(value, list):
        return [_hidden(each, secrets) for each in value]
    written = json.dumps(value)
    told = secrets.told(written)
    return value if told == written else told


def of_contents(contents: Iterable[types.TextResourceContents | types.BlobResourceContents], secrets: Secrets) -> ToolOutput:
    """What a resource has."""
    told = _Told(secrets)
    for each in contents:
        told.contents(each)
    if not told.texts and not told.images:
        told.text("The resource is empty.")
    return told.output()


def of_prompt(result: types.GetPromptResult, secrets: Secrets) -> ToolOutput:
    """A prompt's messages."""
    told = _Told(secrets)
    for message in result.messages:
        told.text(f"{message.role}:")
        told.block(message.content)
    return told.output()


def lines(texts: Sequence[str], secrets: Secrets, otherwise: str) -> ToolOutput:
    """A list, or the word that there is nothing."""
    told = _Told(secrets)
    told.text("\n".join(texts) or otherwise)
    return told.output()
