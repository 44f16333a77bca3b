"""Lines to fuzz with: the corpus and what ACP agents say, mutated. Deterministic for a seed."""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path

from tests.support.paths import SHARED

METHODS = [
    *("initialize", "authenticate", "logout", "session/new", "session/load", "session/resume", "session/list", "session/close"),
    *("session/delete", "session/fork", "session/prompt", "session/cancel", "session/set_mode", "session/set_config_option"),
    *("$/cancel_request", "_acpd/state", "_x/y", "session/update", "session/request_permission", "fs/read_text_file"),
    *("fs/write_text_file", "terminal/create", "terminal/output", "terminal/release", "elicitation/create"),
]
KINDS = [
    *(
        "user_message_chunk",
        "agent_message_chunk",
        "agent_thought_chunk",
        "tool_call",
        "tool_call_update",
        "plan",
        "plan_update",
    ),
    *("available_commands_update", "current_mode_update", "config_option_update", "session_info_update", "usage_update"),
    *("notice", "compaction_update", "compaction_summary_chunk", "hologram"),
]
MEMBERS = [
    *("content", "text", "type", "toolCallId", "title", "status", "kind", "entries", "rawInput", "rawOutput", "locations"),
    *("messageId", "availableCommands", "currentModeId", "configOptions", "used", "size", "cost", "severity", "description"),
    *("compactionId", "summary", "_meta"),
]
ODD = [
    *(b"null", b"true", b"0", b"-1", b"1e999", b"NaN", b"9" * 400, b"1.0", b'""', b'"\\ud83d"', b'"\\u0000"', b"[]", b"{}"),
    *(b'{"a":{"a":{"a":1}}}', b"\xff\xfe", b"\xe2\x80\xa8", b"\x00", b"[" * 2000, b'"' + b"x" * 70_000 + b'"'),
    *(b'"../../etc/passwd"', b'"/"', b'"yes"'),
]


@cache
def seeds() -> list[bytes]:
    """What the corpus sends: the lines of all rpc cases that are no directives. Without the corpus: a few of our own."""
    found: list[bytes] = []
    for path in sorted((SHARED / "corpus" / "rpc").glob("*.ndjson")):
        found += [line for line in path.read_bytes().split(b"\n") if line and not line.startswith(b"@")]
    ours = [
        json.dumps({"jsonrpc": "2.0", "id": n, "method": method, "params": {}}).encode() for n, method in enumerate(METHODS)
    ]
    return found + ours


def value(rng: random.Random, depth: int = 0) -> object:
    """A JSON value of any kind."""
    pick = rng.randrange(9 if depth < 4 else 6)
    if pick == 0:
        return None
    if pick == 1:
        return rng.random() < 0.5
    if pick == 2:
        return rng.choice([0, -1, 1, 2**53 + 1, 10**30, 1.5, -0.0])
    if pick < 6:
        return rng.choice(
            ["", "x", "text", "/tmp", "pending", "completed", "\u2028", "\x00", "é" * 50, "selected", *KINDS, *METHODS]
        )
    if pick == 6:
        return [value(rng, depth + 1) for _ in range(rng.randrange(4))]
    return {rng.choice(MEMBERS): value(rng, depth + 1) for _ in range(rng.randrange(5))}


def update(rng: random.Random) -> dict[str, object]:
    """An update that may be right."""
    kind = rng.choice(KINDS)
    made: dict[str, object] = {"sessionUpdate": kind}
    if rng.random() < 0.6:
        made["content"] = {
            "type": rng.choice(["text", "image", "hologram"]),
            "text": rng.choice(["hello", "", "\x00", "\u2028"]),
        }
    if kind.startswith("tool_call"):
        made |= {"toolCallId": f"c{rng.randrange(5)}", "title": "t"}
    for _ in range(rng.randrange(4)):
        made[rng.choice(MEMBERS)] = value(rng)
    return made


def message(rng: random.Random, sessions: list[str], methods: list[str]) -> bytes:
    """A JSON-RPC message that may be right."""
    params: dict[str, object] = {
        "sessionId": rng.choice([*sessions, "nobody"]),
        "cwd": rng.choice(["/tmp", "x", ""]),
        "mcpServers": [],
    }
    if rng.random() < 0.5:
        params["prompt"] = [{"type": "text", "text": rng.choice(["say hi", "chunks 3", "tool x", "fail", "think so"])}]
    if rng.random() < 0.3:
        params["update"] = update(rng)
    for _ in range(rng.randrange(3)):
        params[rng.choice([*MEMBERS, "requestId", "cursor", "modeId", "prompt", "cwd"])] = value(rng)
    made: dict[str, object] = {"jsonrpc": "2.0", "method": rng.choice(methods), "params": params}
    if rng.random() < 0.7:
        made["id"] = rng.choice([rng.randrange(1000), f"s{rng.randrange(1000)}", None])
    return json.dumps(made, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")


def mutate(rng: random.Random, line: bytes) -> bytes:
    """A few bytes, tokens or members changed."""
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(line) + 1)
        pick = rng.randrange(7)
        if pick == 0:
            line = line[:at] + bytes([rng.randrange(256)]) + line[at + 1 :]
        elif pick == 1:
            line = line[:at] + rng.choice(ODD) + line[at:]
        elif pick == 2:
            line = line[:at]
        elif pick == 3:
            end = rng.randrange(at, min(len(line), at + 40) + 1)
            line = line[:at] + line[end:]
        elif pick == 4:
            line = line[:at] + line[at : at + 30] * rng.randrange(1, 4) + line[at:]
        elif pick == 5:
            line = line.replace(rng.choice([b'"id"', b'"method"', b'"params"', b":", b",", b"{"]), rng.choice(ODD), 1)
        else:
            line = line.replace(b'"2.0"', rng.choice([b'"1.0"', b"2.0", b"null"]), 1)
    return line


def save(folder: Path, name: str, data: bytes) -> Path:
    """Keep an input that failed."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_bytes(data)
    return path
