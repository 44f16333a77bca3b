"""Every tree of the corpus, healthy or sick, as a log on disk: what opens, the path, the findings, and no byte changed.

The corpus has pi's shape; `convert` puts it into ours, line by line, and keeps what is wrong with each line.
"""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path
from typing import Any

import msgspec
import pytest

from acpd.errors import SessionReadOnly
from acpd.storage.contract import Key
from acpd.storage.replay import Replay
from acpd.wire.lines import Stored, entry
from acpd_backends.jsonl import JsonlJournals
from acpd_backends.names import Layout
from tests.support.paths import SHARED

TREES = SHARED / "corpus" / "trees"
CASES = sorted(path.name.removesuffix(".jsonl") for path in TREES.glob("*.jsonl"))
KEY = Key("pi", "s")
KINDS = frozenset({"user_message_chunk", "agent_message_chunk", "agent_thought_chunk", "tool_call", "tool_call_update"})
DAMAGE = {"json", "nul", "utf8", "depth", "record", "torn-tail"}
NOT_OF_THE_TREE = {"open-call", "orphan-result"}
"""Warnings of who makes a model's context of a path, not of who reads the file."""

_RECORD = re.compile(rb'(?=\{"type":"[a-z_]+","id":"[^"]*","parentId":)')
_HEAD = re.compile(rb'(\{"type":")([a-z_]+)(","id":"[^"]*","parentId":(?:"[^"]*"|null)),"timestamp":')
_HEADER = re.compile(rb'\{"type":"session","version":(\d+),("id":"[^"]*"),"timestamp":("[^"]*"),("cwd":"[^"]*")')


def convert(raw: bytes) -> bytes:
    """The lines of pi as ours: the same lines with the same breakage.

    In pi the last entry is the leaf; where that is not what our rule says (a branch), a leaf fact follows at the end.
    """
    out = []
    seqs = itertools.count(1)
    seen: list[str] = []
    moved = False
    for line in raw.split(b"\n"):
        parts = []
        for part in _RECORD.split(line):
            match = _HEAD.match(part)
            if match is None:
                parts.append(_HEADER.sub(_header, part))
                continue
            seq = next(seqs)
            whole, rest = _whole(part)
            parts.append(_record(whole, seq) + rest if whole else _HEAD.sub(b'\\1\\2\\3,"seq":%d,"at":' % seq, part))
            if whole:
                moved |= whole["parentId"] in seen[:-1] and whole["parentId"] != seen[-1]
                seen.append(whole["id"])
        out.append(b"".join(parts))
    if moved:
        out[-1] = b'{"type":"leaf","id":"leaf","seq":%d,"at":"x","entry":"%b"}\n' % (next(seqs), seen[-1].encode())
    return b"\n".join(out)


def _header(match: re.Match[bytes]) -> bytes:
    version = b"1" if match[1] == b"3" else match[1]
    return b'{"type":"session","version":%b,%b,"createdAt":%b,%b,"agent":"pi"' % (version, match[2], match[3], match[4])


def _whole(part: bytes) -> tuple[dict[str, Any] | None, bytes]:
    text = part.rstrip(b"\r")
    try:
        return json.loads(text), part[len(text) :]
    except ValueError:
        return None, b""


def _record(value: dict[str, Any], seq: int) -> bytes:
    head = {"id": value["id"], "parentId": value["parentId"], "seq": seq, "at": value["timestamp"]}
    message = value.get("message", {})
    role = message.get("role")
    if role == "user":
        return _dumps({"type": "prompt", **head, "prompt": [_block(block) for block in message["content"]]})
    if role in {"assistant", "toolResult"}:
        update = _update(message)
        params = {"sessionId": "inner", "update": update}
        return _dumps({"type": "update", **head, "kind": update["sessionUpdate"], "params": params})
    if value["type"] == "session_info":
        return _dumps({"type": "info", **head, "title": value["name"]})
    return _dumps({"type": value["type"], **head, **{name: rest for name, rest in value.items() if name not in head}})


def _update(message: dict[str, Any]) -> dict[str, Any]:
    if message["role"] == "toolResult":
        return {"sessionUpdate": "tool_call_update", "toolCallId": message["toolCallId"], "status": "completed"}
    for block in message["content"]:
        if block["type"] == "text":
            return {"sessionUpdate": "agent_message_chunk", "content": block}
        if block["type"] == "toolCall":
            return {"sessionUpdate": "tool_call", "toolCallId": block["id"], "title": block["name"], "status": "pending"}
    return {"sessionUpdate": "agent_thought_chunk", "content": {"type": "text", "text": ""}}


def _block(block: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in block.items() if key in {"type", "text", "mimeType", "data"}}


def _dumps(value: object) -> bytes:
    try:
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
    except UnicodeEncodeError:  # a lone surrogate stays the escape that it was
        return json.dumps(value, separators=(",", ":")).encode()


def expected(case: str) -> dict[str, Any]:
    text = (TREES / f"{case}.expect.md").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text[text.index("```json") + 7 : text.rindex("```")])
    return found


def place(root: Path, data: bytes) -> tuple[JsonlJournals, Path]:
    journals = JsonlJournals(Layout(root))
    log = Path(journals.log_path(KEY))
    log.parent.mkdir(parents=True)
    log.write_bytes(data)
    return journals, log


async def path_of(journals: JsonlJournals, leaf: str | None = None) -> list[Stored]:
    return [line async for window in journals.path(KEY, leaf=leaf) for line in window]


def ids(path: list[Stored]) -> list[str]:
    return [line.id for line in path if line.type != "gap"]


def shown(path: list[Stored]) -> list[dict[str, Any]]:
    """The content blocks that a client gets, in order."""
    replay = Replay("s", KINDS)
    frames = replay.feed(path) + replay.finish()
    updates = [msgspec.json.decode(frame)["params"]["update"] for frame in frames]
    return [update["content"] for update in updates if update["sessionUpdate"].endswith("message_chunk")]


@pytest.mark.parametrize("case", CASES)
async def test_corpus_tree(case: str, tmp_path: Path) -> None:
    """The tree loads as its expectation says, and reading leaves every byte as it was."""
    want = expected(case)
    data = convert((TREES / f"{case}.jsonl").read_bytes())
    journals, log = place(tmp_path, data)
    tree = await journals.tree(KEY)
    header, fold = await journals.peek(KEY)
    path = await path_of(journals)

    want_path = [name.removesuffix("#1") for name in want["path"]]
    assert ids(path) in (want_path, want.get("also_ok", {}).get("path"))
    assert ids(path) == [tree.ids[position] for position in tree.path()] == ids(await journals.last(KEY, 1000))
    assert want["leaf"] == tree.leaf == fold.leaf
    assert want["branches"] == max(1, len(tree.leaves()))
    assert want.get("leaves", [tree.ids[leaf] for leaf in tree.leaves()]) == [tree.ids[leaf] for leaf in tree.leaves()]
    assert want["damaged_lines"] == sorted({finding.line for finding in tree.findings if finding.kind in DAMAGE})
    found = {finding.kind for finding in tree.findings}
    assert set(want["warn"]) - NOT_OF_THE_TREE <= found
    assert bool(found) == bool(set(want["warn"]) - NOT_OF_THE_TREE)
    if "replay" in want:
        assert want["replay"] == [block["text"] for block in shown(path)]
    if "replay_blocks" in want:
        assert want["replay_blocks"] == [block["type"] for block in shown(path)]
    if "replay_has_gap_mark_after" in want:
        gap = next(place for place, line in enumerate(path) if line.type == "gap")
        assert want["replay_has_gap_mark_after"] == path[gap - 1].id
    if "title" in want:
        assert want["title"] == fold.title
    assert header.version == (99 if case.startswith("26") else 1)
    assert data == log.read_bytes()


@pytest.mark.parametrize("case", CASES)
async def test_opening_a_corpus_tree(case: str, tmp_path: Path) -> None:
    """Opening for writing cuts a torn tail aside and changes no line; a file that it cannot vouch for it leaves alone."""
    data = convert((TREES / f"{case}.jsonl").read_bytes())
    journals, log = place(tmp_path, data)
    if case[:2] in {"20", "21", "26"}:
        with pytest.raises(SessionReadOnly):
            await journals.open(KEY)
        assert data == log.read_bytes()
        assert [log.name] == [path.name for path in log.parent.iterdir()]
        return
    journal = await journals.open(KEY)
    whole = data[: data.rfind(b"\n") + 1]
    parent = journal.fold.leaf
    journal.append(entry("prompt", "new", parent, 99, "2026-11-30T09:57:03.234Z", b',"prompt":[]'))
    journal.flush()
    await journal.close()
    opened = await journals.open(KEY)
    assert opened.fold.leaf == "new"
    assert ids(await path_of(journals))[-2:] == ([parent, "new"] if parent else ["new"])
    after = log.read_bytes()
    torn = log.with_name(log.name + ".torn-1")
    if case[:2] in {"11", "16"}:
        assert after.startswith(whole + b'{"type":"prompt","id":"new"')
        assert data[len(whole) :] == torn.read_bytes()
        assert expected(case)["leaf"] == parent
    else:
        assert after.startswith(data)
        assert not torn.exists()
    await journals.close()


BIG = {
    "chain": (5_000, 20_000),
    "fan": (5_000, 20_000),
    "cycle": (5_000, 20_000),
    "branches": (500, 2_000),
    "torn": (5_000, 20_000),
    "dup": (5_000, 20_000),
    "long-line": (8 << 20, 32 << 20),
    "images": (4, 16),
}


def made(kind: str, count: int, folder: Path) -> bytes:
    out = folder / f"{kind}-{count}"
    subprocess.run([sys.executable, str(TREES / "make_big.py"), kind, str(count), str(out)], check=True)
    raw = out.read_bytes()
    out.unlink()
    return convert(raw)


async def seconds(journals: JsonlJournals) -> float:
    best = 99.0
    for _ in range(2):
        start = time.process_time()
        await journals.tree(KEY)
        async for _ in journals.path(KEY):
            pass
        best = min(best, time.process_time() - start)
    return best


@pytest.mark.e2e
@pytest.mark.parametrize("kind", BIG)
async def test_a_big_tree_takes_linear_time(kind: str, tmp_path: Path) -> None:
    """Four times the size takes about four times as long, and everything is there."""
    took = []
    for count in BIG[kind]:
        journals, log = place(tmp_path / str(count), made(kind, count, tmp_path))
        took.append(await seconds(journals))
        tree = await journals.tree(KEY)
        path = [line async for window in journals.path(KEY) for line in window if line.type != "gap"]
        assert size_of(kind, count) == (len(tree), len(path), len(tree.leaves()))
        assert [path[-1].id] == [line.id for line in await journals.last(KEY, 1)]
        log.unlink()
    assert took[1] < 4 * took[0] * 2.5 + 0.1


def size_of(kind: str, count: int) -> tuple[int, int, int]:
    """(entries, length of the path, branches)."""
    sizes = {
        "fan": (count + 1, 2, count),
        "branches": (10 * count + 1, 11, count),
        "long-line": (2, 2, 1),
    }
    return sizes.get(kind, (count, count, 1))


async def test_images_are_not_all_held_at_once(tmp_path: Path) -> None:
    """The memory of a walk over many big lines is a few lines."""
    journals, _ = place(tmp_path, made("images", 48, tmp_path))
    tracemalloc.start()
    count = 0
    async for window in journals.path(KEY):
        count += len(window)
    await journals.tree(KEY)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert 48 == count
    assert peak < 12 << 20
