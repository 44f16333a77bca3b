"""An MCP server on stdio that tells its environment to everybody: on stderr, in an error, in its instructions (stdlib only)."""

import json
import os
import sys


def send(message: dict[str, object]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


SECRET = os.environ["MCP_TOKEN"]
TOOLS = [{"name": name, "description": "d", "inputSchema": {"type": "object"}} for name in ("length", "fail")]
sys.stderr.write(f"{dict(os.environ)}\n")
sys.stderr.flush()
for line in sys.stdin:
    message = json.loads(line)
    match message.get("method"):
        case "initialize":
            version = message["params"]["protocolVersion"]
            info = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": {"name": "t", "version": "1"}}
            send({"id": message["id"], "result": {**info, "instructions": f"my token is {SECRET}"}})
        case "tools/list":
            send({"id": message["id"], "result": {"tools": TOOLS}})
        case "tools/call" if message["params"]["name"] == "length":
            text = f"a token of {len(SECRET)} characters: {SECRET}"
            send({"id": message["id"], "result": {"content": [{"type": "text", "text": text}]}})
        case "tools/call":
            send({"id": message["id"], "error": {"code": -32603, "message": f"refused: {SECRET}"}})
        case _ if "id" in message:
            send({"id": message["id"], "error": {"code": -32601, "message": "no such method"}})
        case _:
            pass
