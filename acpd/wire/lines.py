"""The lines of a session's log (docs/architecture.md, "The log").

Line 1 is the header. Every other line is an *entry* (a node of the tree, with `parentId`) or a *fact*
(the last one of its type wins). What an agent or client wrote stays raw and is stored as it came;
only its string values of 64 KiB and more stand in blobs, named at the offsets in `blobs`.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

VERSION = 1


class Parent(Struct, frozen=True):
    """Where a fork comes from; provenance only, may dangle."""

    sessionId: str
    entryId: str | None = None


class Header(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="session"):
    """Line 1 of a log. `command` has no secret argument values; `createdAt` is RFC 3339, UTC."""

    version: int
    id: str
    cwd: str
    agent: str
    command: tuple[str, ...] = ()
    user: str | None = None
    createdAt: str = ""
    parent: Parent | None = None
    additionalDirectories: tuple[str, ...] = ()
    folder: str = ""
    """The real path of `cwd` when the session was made, where that is another text: what listings compare."""


class Stored(Struct, gc=False, kw_only=True, rename={"meta": "_meta"}):
    """Any line but the header, decoded as far as acpd looks into it.

    | type | members besides type, id, seq, at, parentId, src |
    |---|---|
    | prompt | prompt: the client's content blocks; _meta; by: the line of a shim that it was, `<token>:<number>` |
    | update, compaction | kind: sessionUpdate; params: of session/update, as the agent wrote it; messageId: given by acpd; |
    | | of: the agent's own messageId or toolCallId; state: a tool call's new status; cut: where the update begins in params |
    | | that are just `{"sessionId":..,"update":..}` and valid as they are, so that a replay need not look into them; |
    | | background: true where the agent said it while no turn ran |
    | ask | method; params: of the request, as the agent wrote it |
    | answer | ask: entry id; result or error; by: "client", "cancel", "agent", "acpd" |
    | turn | state: "running", "ended", "interrupted"; stopReason; error; usage |
    | gap | none: what was lost here, in a repaired log |
    | leaf | entry |
    | link | link; agent; inner: the agent's session id; state: "adopting" while the agent's own conversation is recorded |
    | config | modes; configOptions; kind and params if an update said it |
    | commands, usage | kind; params |
    | info | kind and params, or title, or cwd, folder and additionalDirectories: where the project is now, as in a header |
    | queue | prompts: [{prompt, by}] not yet begun |
    | label | entry; label: text, or null to remove it |

    The members stand in the order in which they are written, or decoding would take a tenth longer.
    """

    type: str
    id: str
    parentId: str | UnsetType | None = UNSET
    seq: int = 0
    at: str = ""
    src: tuple[str, int] | None = None
    kind: str = ""
    messageId: str = ""
    of: str = ""
    state: str = ""
    cut: int = 0
    background: bool = False
    blobs: tuple[int, ...] = ()
    params: Raw | UnsetType = UNSET
    prompt: Raw | UnsetType = UNSET
    meta: Raw | UnsetType = UNSET
    method: str = ""
    ask: str = ""
    by: str = ""
    result: Raw | UnsetType = UNSET
    error: Raw | UnsetType = UNSET
    stopReason: str = ""
    usage: Raw | UnsetType = UNSET
    entry: str | None = None
    link: str = ""
    agent: str = ""
    inner: str = ""
    capabilities: Raw | UnsetType = UNSET
    modes: Raw | UnsetType = UNSET
    configOptions: Raw | UnsetType = UNSET
    title: str | None = None
    prompts: Raw | UnsetType = UNSET
    label: str | None = None
    cwd: str = ""
    folder: str = ""
    additionalDirectories: tuple[str, ...] = ()

    @property
    def is_entry(self) -> bool:
        """Whether this line is a node of the tree: it says so by having a parentId, known type or not."""
        return self.parentId is not UNSET


encode = msgspec.json.Encoder().encode
decode_header = msgspec.json.Decoder(Header).decode
decode = msgspec.json.Decoder(Stored).decode


def header_line(header: Header) -> bytes:
    return encode(header) + b"\n"


def entry(kind: str, identifier: str, parent: str | None, seq: int, at: str, body: bytes) -> bytes:
    """A line of the tree. `body` is `,"name":value` text, or empty."""
    above = encode(parent).decode()
    head = f'{{"type":"{kind}","id":"{identifier}","parentId":{above},"seq":{seq},"at":"{at}"'
    return b"".join((head.encode(), body, b"}\n"))


def literal(text: bytes) -> bytes:
    """This text as it stands in a format of bytes."""
    return text.replace(b"%", b"%%")


def chain(
    kind: str, ids: list[str], parent: str | None, seq: int, at: str, body: bytes, *columns: Sequence[bytes | int]
) -> bytes:
    """Lines as `entry` makes them, each behind the one before it. `body` is a format of the columns' values for one line."""
    between = '"\n"'
    names = f'"{between.join(ids)}"'.encode().split(b"\n")
    parents = [encode(parent), *names[:-1]]
    line = b'{"type":"%b","id":%%b,"parentId":%%b,"seq":%%d,"at":"%b"%b}\n' % (kind.encode(), at.encode(), body)
    numbers = range(seq, seq + len(ids))
    return b"".join([line % values for values in zip(names, parents, numbers, *columns, strict=True)])


def fact(kind: str, identifier: str, seq: int, at: str, body: bytes) -> bytes:
    """A line outside the tree. `body` as for `entry`."""
    head = f'{{"type":"{kind}","id":"{identifier}","seq":{seq},"at":"{at}"'
    return b"%b%b}\n" % (head.encode(), body)
