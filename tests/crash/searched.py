"""What a search finds after a crash, once the index has caught up: everything promised, nothing of a deleted session."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from acpd.indexing import catch_up_all, searchable
from acpd.needs import Store
from acpd.storage.hits import Find, Hit
from acpd.storage.queries import parse
from tests.crash.scene import readable
from tests.support.store import Json


async def faults(store: Store, logs: Mapping[str, bytes], deleted: set[str]) -> Iterator[str]:
    """What is wrong, in words. `logs`: what is promised of each session, also of the `deleted` ones."""
    await catch_up_all(store, None, gently=False)
    hits: dict[str, list[Hit]] = {}
    said = {name: list(_said(log)) for name, log in logs.items()}
    for text in sorted({text for found in said.values() for _, text in found}):
        hits[text] = list((await searchable(store).search(Find(query=parse(f'"{text}"'), limit=1000, each=0))).hits)
    return _faults(said, hits, deleted)


def _faults(said: Mapping[str, list[tuple[str, str]]], hits: Mapping[str, list[Hit]], deleted: set[str]) -> Iterator[str]:
    for text, found in hits.items():
        for hit in found:
            if hit.row.id in deleted:
                yield f"session {hit.row.id} was deleted and is found by {text!r}"
    for name, lines in said.items():
        if name in deleted:
            continue
        for entry, text in lines:  # by the entry, because what a fork shares with its source is found once
            if entry not in {hit.entry for hit in hits[text]}:
                yield f"{text!r} was promised of session {name} and is not found"


def _said(log: bytes) -> Iterator[tuple[str, str]]:
    """(entry, text) of each prompt and of each message of an agent, all its chunks; acpd's own notices are not searched."""
    lines = [line for line in map(readable, log.split(b"\n")) if line is not None]
    messages: dict[str, list[Json]] = {}
    for line in lines:
        if line["type"] == "prompt":
            yield line["id"], line["prompt"][-1]["text"]
        elif line["type"] == "update" and line.get("kind") == "agent_message_chunk":
            messages.setdefault(line["messageId"], []).append(line)
    for chunks in messages.values():
        if not any("blobs" in line or "acpd.dev/notice" in line["params"].get("_meta", {}) for line in chunks):
            yield chunks[0]["id"], "".join(line["params"]["update"]["content"]["text"] for line in chunks)
