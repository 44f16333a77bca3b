"""Content blocks and what else several ACP messages share, as shapes (ACP v1 schema: ContentBlock, ToolCallContent, ...).

Optional members are nullable exactly where the schema allows null. Nothing here is read but what acpd acts upon; what is
heavy or free of form stays Raw.
"""

from __future__ import annotations

import functools
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

MAX_UINT64 = 2**64 - 1

Uint64 = Annotated[int, Meta(ge=0)]
"""msgspec has no upper bound of 64 bits; Structs check it in `__post_init__`."""


class Anything(Struct, gc=False):
    """An object whose members are not looked at."""


class Open(Struct, gc=False, rename={"meta": "_meta"}, kw_only=True):
    """A type of the schema: it has `_meta`, and members that nobody knows are kept."""

    meta: Anything | UnsetType | None = UNSET


class Annotations(Open, gc=False):
    audience: list[Literal["assistant", "user"]] | UnsetType | None = UNSET
    lastModified: str | UnsetType | None = UNSET
    priority: float | UnsetType | None = UNSET


class Block(Open, gc=False, kw_only=True):
    """Any content block."""

    annotations: Annotations | UnsetType | None = UNSET


class Text(Block, gc=False, kw_only=True, tag_field="type", tag="text"):
    text: str


class Image(Block, gc=False, kw_only=True, tag_field="type", tag="image"):
    data: str
    mimeType: str
    uri: str | UnsetType | None = UNSET


class Audio(Block, gc=False, kw_only=True, tag_field="type", tag="audio"):
    data: str
    mimeType: str


class ResourceLink(Block, gc=False, kw_only=True, tag_field="type", tag="resource_link"):
    name: str
    uri: str
    title: str | UnsetType | None = UNSET
    description: str | UnsetType | None = UNSET
    mimeType: str | UnsetType | None = UNSET
    size: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | UnsetType | None = UNSET


class Contents(Open, gc=False, kw_only=True):
    """TextResourceContents or BlobResourceContents."""

    uri: str
    text: str | UnsetType = UNSET
    blob: str | UnsetType = UNSET
    mimeType: str | UnsetType | None = UNSET

    def __post_init__(self) -> None:
        if self.text is UNSET and self.blob is UNSET:
            raise ValueError("Object missing required field `text` or `blob`")


class Resource(Block, gc=False, kw_only=True, tag_field="type", tag="resource"):
    resource: Contents


ContentBlock = Text | Image | Audio | ResourceLink | Resource


class Content(Open, gc=False, kw_only=True, tag_field="type", tag="content"):
    content: ContentBlock


class Diff(Open, gc=False, kw_only=True, tag_field="type", tag="diff"):
    path: str
    newText: str
    oldText: str | UnsetType | None = UNSET


class Terminal(Open, gc=False, kw_only=True, tag_field="type", tag="terminal"):
    terminalId: str


ToolCallContent = Content | Diff | Terminal


class Location(Open, gc=False, kw_only=True):
    path: str
    line: Annotated[int, Meta(ge=0, le=2**32 - 1)] | UnsetType | None = UNSET


ToolKind = Literal["read", "edit", "delete", "move", "search", "execute", "think", "fetch", "switch_mode", "other"]
ToolStatus = Literal["pending", "in_progress", "completed", "failed"]


class PlanEntry(Open, gc=False, kw_only=True):
    content: str
    priority: Literal["high", "medium", "low"]
    status: Literal["pending", "in_progress", "completed"]


class CommandInput(Open, gc=False, kw_only=True):
    hint: str


class Command(Open, gc=False, kw_only=True):
    name: str
    description: str
    input: CommandInput | UnsetType | None = UNSET


class Cost(Open, gc=False, kw_only=True):
    amount: float
    currency: str


class Usage(Open, gc=False, kw_only=True):
    totalTokens: Uint64
    inputTokens: Uint64
    outputTokens: Uint64
    thoughtTokens: Uint64 | UnsetType | None = UNSET
    cachedReadTokens: Uint64 | UnsetType | None = UNSET
    cachedWriteTokens: Uint64 | UnsetType | None = UNSET

    def __post_init__(self) -> None:
        counts = (self.thoughtTokens, self.cachedReadTokens, self.cachedWriteTokens)
        within_uint64(self.totalTokens, self.inputTokens, self.outputTokens, *(n for n in counts if isinstance(n, int)))


class Failure(Struct, gc=False, kw_only=True):
    """A JSON-RPC error object."""

    code: Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
    message: str
    data: Raw | UnsetType = UNSET


def within_uint64(*numbers: int) -> None:
    """Raises ValueError if one does not fit into 64 bits, as readers in Rust have it."""
    if max(numbers) > MAX_UINT64:
        raise ValueError("Expected `int` of 64 bits")


@functools.cache
def blocks_decoder() -> msgspec.json.Decoder[list[ContentBlock]]:
    """For the blocks of a prompt; made when it is first needed."""
    return msgspec.json.Decoder(list[ContentBlock])
