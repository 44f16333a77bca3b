"""Row 15: a start of acpd on a store of very many sessions, against one on a store of few."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from acpd.storage.contract import Key
from acpd.wire import lines
from acpd.wire.ids import Clock, Ids
from acpd_backends.names import Layout, encode
from acpd_backends.stores import open_store
from tests.support.paths import ROOT


class Started(NamedTuple):
    """Milliseconds from the start of the process to the answer to session/new, and to that of session/list behind it."""

    ready: float
    listed: float


def _log(number: int, ids: Ids, clock: Clock) -> tuple[str, bytes]:
    """A session of two turns, about 3 KB."""
    identifier, at = ids.new(), clock.now()
    header = lines.Header(version=lines.VERSION, id=identifier, cwd=f"/src/{number % 40}", agent="bench", createdAt=at)
    parent: str | None = None
    text = [lines.header_line(header)]
    for seq, (kind, body) in enumerate(_turn(number) * 2, 1):
        name = ids.new()
        text.append(lines.entry(kind, name, parent, seq, at, body))
        parent = name
    return identifier, b"".join(text)


def _turn(number: int) -> list[tuple[str, bytes]]:
    chunk = b'{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"%b"}}' % (b"some words " * 12)
    update = b',"kind":"agent_message_chunk","params":{"sessionId":"inner","update":%b}' % chunk
    return [
        ("prompt", b',"prompt":[{"type":"text","text":"Fix the flaky test number %d"}]' % number),
        ("turn", b',"state":"running"'),
        *(("update", update) for _ in range(4)),
        ("turn", b',"state":"ended","stopReason":"end_turn"'),
    ]


async def fill_sessions(home: str, count: int) -> dict[str, float]:
    """A store of `count` sessions, and how long its catalog takes to be made of their logs."""
    root = Path(home, "data")
    folder = Layout(root).sessions(Key(agent="bench", session=""))
    folder.mkdir(parents=True)
    ids, clock = Ids(), Clock()
    for number in range(count):
        identifier, text = _log(number, ids, clock)
        (folder / f"{encode(identifier)}.log.jsonl").write_bytes(text)
    backend = open_store("workspace", root, sync="process")
    assert backend.catalog is not None
    assert backend.journals is not None
    started = time.perf_counter()
    assert count == await backend.catalog.recover(backend.journals)
    seconds = time.perf_counter() - started
    await backend.catalog.close()
    return {"seconds": seconds}


def start(command: Sequence[str], env: Mapping[str, str]) -> Started:
    """One start. The agent's own is a part of it."""
    began = time.perf_counter()
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, bufsize=0, env={**os.environ, **env}
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        asked: list[tuple[str, dict[str, Any]]] = [
            ("initialize", {"protocolVersion": 1, "clientCapabilities": {}}),
            ("session/new", {"cwd": str(ROOT), "mcpServers": []}),
            ("session/list", {}),
        ]
        answers = _messages(process.stdout.fileno())
        at: list[float] = []
        for number, (method, params) in enumerate(asked):
            request = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
            process.stdin.write(json.dumps(request).encode() + b"\n")
            assert "result" in next(message for message in answers if message.get("id") == number)
            at.append((time.perf_counter() - began) * 1e3)
        process.stdin.close()
        process.wait()
    return Started(at[1], at[2])


def _messages(descriptor: int) -> Iterator[dict[str, Any]]:
    rest = b""
    while data := os.read(descriptor, 1 << 16):
        *whole, rest = (rest + data).split(b"\n")
        yield from map(json.loads, whole)
