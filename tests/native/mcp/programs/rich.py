"""An MCP server on stdio whose tools do what the tests want. It writes what it is told to the file RECORD, a line each."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import threading
import time
from typing import Any

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"0" * 100).decode()
PAGE = 3
MODERN = "2026-07-28"
lock = threading.Lock()
names = ["echo", "fail", "image", "audio", "structured", "links", "env", "slow", "count", "grow"]
names += ["child", "hide", "die", "flood", "hang", "noise", "leave", "mute"]
stays = threading.Event()
cancelled: set[Any] = set()
subscriptions: list[Any] = []


def send(message: dict[str, Any]) -> None:
    with lock:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()


def record(line: str) -> None:
    if path := os.environ.get("RECORD"):
        with open(path, "a") as file:
            file.write(line + "\n")


def tool(name: str) -> dict[str, Any]:
    return {"name": name, "description": f"tool {name}", "inputSchema": {"type": "object"}}


def text(*texts: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": each} for each in texts]}


def tools_list(params: dict[str, Any]) -> dict[str, Any]:
    record("tools/list")
    if given := os.environ.get("TOOLS"):
        return {"tools": json.loads(given)}
    start = int(params.get("cursor", 0))
    page = {"tools": [tool(name) for name in names[start : start + PAGE]]}
    return {**page, "nextCursor": str(start + PAGE)} if start + PAGE < len(names) else page


def links() -> dict[str, Any]:
    return {
        "content": [
            {
                "type": "resource_link",
                "uri": "file:///a.txt",
                "name": "a",
                "description": "the  first",
                "mimeType": "text/plain",
            },
            {"type": "resource", "resource": {"uri": "mem://b", "mimeType": "text/plain", "text": "inside b"}},
            {"type": "resource", "resource": {"uri": "mem://c", "mimeType": "application/zip", "blob": "AAAA"}},
            {"type": "resource", "resource": {"uri": "mem://d", "mimeType": "image/png", "blob": PNG}},
        ]
    }


def count(identifier: Any, params: dict[str, Any]) -> dict[str, Any]:
    token = params.get("_meta", {}).get("progressToken")
    for step in range(1, 201):
        told = {"progressToken": token, "progress": step, "total": 200, "message": f"step {step}"}
        send({"method": "notifications/progress", "params": told})
    time.sleep(0.3)
    return text("counted")


def slow(identifier: Any) -> dict[str, Any] | None:
    record("slow")
    for _ in range(600):
        if identifier in cancelled:
            record("stopped")
            return None
        time.sleep(0.05)
    return text("slept")


def child() -> dict[str, Any]:
    """A grandchild in a session of its own that ignores everything, and holds stdout."""
    code = "import signal, time; [signal.signal(n, signal.SIG_IGN) for n in (1, 2, 15)]; time.sleep(3600)"
    return text(str(subprocess.Popen([sys.executable, "-c", code], start_new_session=True).pid))


def hide() -> dict[str, Any]:
    """A grandchild in a session of its own with nothing of our environment."""
    return text(str(subprocess.Popen(["sleep", "3600"], env={"PATH": os.environ["PATH"]}, start_new_session=True).pid))


def leave() -> None:
    """The end, but for one that goes on to write to stdout."""
    code = "import sys, time\nwhile True: sys.stdout.write('noise\\n'), sys.stdout.flush(), time.sleep(0.01)"
    subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    os._exit(7)


def mute() -> None:
    """No word any more, but the process stays, also at the end of its stdin."""
    stays.set()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def call(identifier: Any, params: dict[str, Any]) -> dict[str, Any] | None:
    given = params.get("arguments") or {}
    match params["name"]:
        case "fail":
            return {**text("it cannot be done"), "isError": True}
        case "image":
            return {"content": [{"type": "image", "data": PNG, "mimeType": "image/png"}, {"type": "text", "text": "a picture"}]}
        case "audio":
            return {"content": [{"type": "audio", "data": "AAAA", "mimeType": "audio/wav"}]}
        case "structured":
            return {"content": [], "structuredContent": {"answer": 42}}
        case "links":
            return links()
        case "env":
            return text(json.dumps(dict(os.environ)), os.getcwd(), str(os.getpgid(0)), str(os.getpid()))
        case "slow":
            return slow(identifier)
        case "count":
            return count(identifier, params)
        case "grow":
            names.append(given.get("name", "grown"))
            for _ in range(20):
                send({"method": "notifications/tools/list_changed"})
            return text("grown")
        case "child":
            return child()
        case "hide":
            return hide()
        case "die":
            os._exit(int(given.get("code", 7)))
        case "leave":
            leave()
            return None
        case "mute":
            mute()
            return None
        case "flood":
            for number in range(4_000):
                send({"method": "notifications/message", "params": {"level": "info", "data": f"{number} {'x' * 100}"}})
            return text("flooded")
        case "hang":
            while True:
                time.sleep(3600)
        case "noise":
            while True:
                sys.stdout.write(given["text"])
        case name:
            return text(f"{name} {given.get('text', '')}")


def resources(method: str, params: dict[str, Any]) -> dict[str, Any]:
    match method:
        case "resources/list":
            return {"resources": [{"uri": "mem://one", "name": "one", "description": "number one"}], "nextCursor": "more"}
        case "resources/templates/list":
            return {"resourceTemplates": [{"uriTemplate": "mem://{name}", "name": "any"}]}
        case "resources/read":
            return {"contents": [{"uri": params["uri"], "text": f"content of {params['uri']}"}]}
        case "prompts/list":
            return {"prompts": [{"name": "greet", "arguments": [{"name": "who", "required": True}]}]}
        case _:
            said = f"Greet {params['arguments']['who']}"
            return {"messages": [{"role": "user", "content": {"type": "text", "text": said}}]}


def initialized(params: dict[str, Any]) -> dict[str, Any]:
    capabilities: dict[str, Any] = {"tools": {"listChanged": True}, "resources": {}, "prompts": {}}
    info = {"name": "rich", "version": "1"}
    said = {"protocolVersion": params["protocolVersion"], "capabilities": capabilities, "serverInfo": info}
    return {**said, "instructions": "Use echo."}


def modern(message: dict[str, Any]) -> None:
    """A server that has never heard of the old handshake."""
    method, identifier, params = message["method"], message["id"], message.get("params", {})
    if method == "initialize":
        data = {"supported": [MODERN], "requested": params.get("protocolVersion")}
        send({"id": identifier, "error": {"code": -32022, "message": "unsupported protocol version", "data": data}})
    elif method == "server/discover":
        said = {"supportedVersions": [MODERN], "capabilities": {"tools": {"listChanged": True}}, "ttlMs": 0}
        send({"id": identifier, "result": {**said, "cacheScope": "private", "resultType": "complete"}})
    elif method == "subscriptions/listen":
        told = {"_meta": {"io.modelcontextprotocol/subscriptionId": identifier}, "notifications": params["notifications"]}
        subscriptions.append(identifier)
        send({"method": "notifications/subscriptions/acknowledged", "params": told})
    elif method == "tools/list":
        listed = {"tools": [tool(name) for name in names], "ttlMs": 0, "cacheScope": "private"}
        send({"id": identifier, "result": {**listed, "resultType": "complete"}})
    else:
        result = call(identifier, params)
        for subscription in subscriptions:
            meta = {"io.modelcontextprotocol/subscriptionId": subscription}
            send({"method": "notifications/tools/list_changed", "params": {"_meta": meta}})
        send({"id": identifier, "result": {**(result or {}), "resultType": "complete"}})


def answer(message: dict[str, Any]) -> None:
    method, identifier, params = message["method"], message["id"], message.get("params", {})
    if os.environ.get("ERA") == "modern":
        modern(message)
        return
    if method == "initialize":
        result: dict[str, Any] | None = initialized(params)
    elif method == "tools/list":
        result = tools_list(params)
    elif method == "tools/call":
        result = call(identifier, params)
    elif method == "ping":
        result = {}
    else:
        result = resources(method, params)
    if result is not None:
        send({"id": identifier, "result": result})


def main() -> None:
    record(f"started {os.getpid()}")
    for line in sys.stdin:
        message = json.loads(line)
        if message.get("method") == "notifications/cancelled":
            record("cancelled")
            cancelled.add(message["params"]["requestId"])
        elif "id" in message and "method" in message:
            threading.Thread(target=answer, args=(message,), daemon=True).start()
    record("eof")
    while stays.is_set():
        time.sleep(3600)


main()
