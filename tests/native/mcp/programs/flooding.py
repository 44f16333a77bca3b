"""An MCP server that floods: `flooding.py KIND`, from its first list of tools on.."""

from __future__ import annotations

import json
import sys
import threading
from typing import Any

CHUNK = 200
FLOODS: dict[str, dict[str, Any] | str] = {
    "words": {"method": "notifications/message", "params": {"level": "info", "data": "x"}},
    "progress": {"method": "notifications/progress", "params": {"progressToken": 4711, "progress": 1}},
    "news": {"method": "notifications/tools/list_changed"},
    "unknown": {"method": "foo/bar", "params": {"a": 1}},
    "pings": {"id": 7, "method": "ping"},
    "questions": {"id": 7, "method": "sampling/createMessage", "params": {"messages": [], "maxTokens": 1}},
    "unread": {"id": 7, "method": "ping"},
    "answers": {"id": 4711, "result": {}},
    "big": {"method": "notifications/message", "params": {"level": "info", "data": "x" * 1_000_000}},
    "noise": "noise\n{}\n",
}
lock = threading.Lock()


def send(message: dict[str, Any]) -> None:
    with lock:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()


def flood(what: dict[str, Any] | str) -> None:
    lines = what if isinstance(what, str) else json.dumps({"jsonrpc": "2.0", **what}) + "\n"
    if isinstance(what, str):
        lines += json.dumps({"jsonrpc": "2.0", "method": "notifications/nothing"}) + "\n"
    while True:
        with lock:
            sys.stdout.write(lines * (CHUNK if len(lines) < 1000 else 1))
            sys.stdout.flush()


def answer(message: dict[str, Any]) -> dict[str, Any]:
    match message["method"]:
        case "initialize":
            info = {"name": "flooding", "version": "1"}
            version = message["params"]["protocolVersion"]
            return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
        case "tools/list":
            return {"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]}
        case _:
            return {"content": [{"type": "text", "text": "echo"}]}


def main() -> None:
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message or "method" not in message:
            continue
        send({"id": message["id"], "result": answer(message)})
        if message["method"] == "tools/list":
            threading.Thread(target=flood, args=(FLOODS[sys.argv[1]],), daemon=True).start()
            if sys.argv[1] == "unread":
                threading.Event().wait()


main()
