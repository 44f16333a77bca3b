# Runs under an interpreter that has Jupyter AI's client; acpd's own has not.
# mypy: disable-error-code="import-not-found"
# pyright: reportMissingImports=false
"""Jupyter AI's ACP client with a stand-in for its persona and chat: a tool call that is allowed, one turn that is stopped.

argv[1] is `{"command": [...], "cwd": "...", "session": id or null, "tool": "...", "slow": "..."}`; one JSON line comes out:
`{"session": id, "stops": [reason...], "asked": [option kinds...], "chat": [text...], "calls": {id: status}}`, `chat` being what
each message of the chat holds in the end.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from jupyter_ai_acp_client.default_acp_client import JaiAcpClient


class Chat:
    """The messages of a room."""

    def __init__(self) -> None:
        self.messages: dict[str, Any] = {}
        self.written = asyncio.Event()

    def add_message(self, message: Any, **_: Any) -> str:
        name = f"m{len(self.messages)}"
        self.messages[name] = SimpleNamespace(id=name, body=message.body, metadata={})
        return name

    def get_message(self, name: str) -> Any:
        return self.messages.get(name)

    def update_message(self, message: Any, append: bool = False, **_: Any) -> None:
        kept = self.messages[message.id]
        if append:
            kept.body += message.body
            self.written.set()
        elif message is not kept:
            self.messages[message.id] = message


class Persona:
    """What the client asks of a persona; what it only tells it is nobody's business here."""

    id = "persona"
    log = logging.getLogger("persona")

    def __init__(self, cwd: str) -> None:
        self.chat = Chat()
        self.parent = SimpleNamespace(root_dir=cwd)

    def get_mcp_settings(self) -> None:
        return None

    def get_chat_dir(self) -> str:
        return str(self.parent.root_dir)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: None


async def clicked(client: Any, session: str, persona: Persona) -> list[str]:
    """Click on the button "allow once" of the first question that the chat shows; the kinds of all its buttons."""
    while True:
        for message in persona.chat.messages.values():
            for call in message.metadata.get("tool_calls", ()):
                if call.get("permission_status") == "pending":
                    options = call["permission_options"]
                    chosen = next(option for option in options if option["kind"] == "allow_once")
                    client.resolve_permission(session, call["tool_call_id"], chosen["option_id"])
                    return sorted(option["kind"] for option in options)
        await asyncio.sleep(0.02)  # the chat tells nobody of its buttons


async def main() -> None:
    """One conversation."""
    setup = json.loads(sys.argv[1])
    command, *words = setup["command"]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(command, *words, stdin=pipe, stdout=pipe, cwd=setup["cwd"], limit=64 << 20)
    client = JaiAcpClient(agent_subprocess=process, event_loop=asyncio.get_running_loop())
    persona = Persona(setup["cwd"])
    if setup["session"] is None:
        session = (await client.create_session(persona)).session_id
    else:
        session = setup["session"]
        await client.load_session(persona, session)
    asking = asyncio.ensure_future(client.prompt_and_reply(session, setup["tool"]))  # noqa: TID251  (acpd is not installed here)
    asked = await clicked(client, session, persona)
    stops = [(await asking).stop_reason]
    calls = {
        call["tool_call_id"]: call["status"]
        for m in persona.chat.messages.values()
        for call in m.metadata.get("tool_calls", ())
    }
    persona.chat.written.clear()
    running = asyncio.ensure_future(client.prompt_and_reply(session, setup["slow"]))  # noqa: TID251
    await persona.chat.written.wait()
    await client.stop_streaming(session)
    stops.append((await running).stop_reason)
    chat = [message.body for message in persona.chat.messages.values()]
    report = {"session": session, "stops": stops, "asked": asked, "chat": chat, "calls": calls}
    sys.stdout.write(json.dumps(report) + "\n")
    sys.stdout.flush()
    assert process.stdin is not None
    process.stdin.close()
    await process.wait()


if __name__ == "__main__":
    Path(json.loads(sys.argv[1])["cwd"]).mkdir(exist_ok=True)
    asyncio.run(main())
