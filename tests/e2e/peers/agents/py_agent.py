# Runs under an interpreter that has the SDK; acpd's own has not.
# mypy: disable-error-code="import-not-found,misc"
# pyright: reportMissingImports=false, reportUntypedBaseClass=false
"""A small agent on the official Python SDK: `tool` asks for permission, `slow N MS` streams, anything else is echoed.

Its session/load answers and replays nothing, as the SDK's own examples do.
"""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import acp
from acp import schema

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


class Echo(acp.Agent):
    """One connection's sessions."""

    client: acp.Client

    def on_connect(self, conn: acp.Client) -> None:
        """Keep the client and start with nothing to stop."""
        self.client = conn
        self.stopped: set[str] = set()

    async def initialize(self, protocol_version: int, **_: Any) -> acp.InitializeResponse:
        """Announce session/load."""
        info = schema.Implementation(name="py-echo", version="1")
        able = schema.AgentCapabilities(load_session=True)
        return acp.InitializeResponse(protocol_version=1, agent_capabilities=able, agent_info=info)

    async def new_session(self, cwd: str, **_: Any) -> acp.NewSessionResponse:
        """A session that is nothing but an id."""
        return acp.NewSessionResponse(session_id=uuid.uuid4().hex)

    async def load_session(self, cwd: str, session_id: str, **_: Any) -> acp.LoadSessionResponse:
        """Accept every id."""
        return acp.LoadSessionResponse()

    async def cancel(self, session_id: str, **_: Any) -> None:
        """Make the running turn stop before its next chunk."""
        self.stopped.add(session_id)

    async def prompt(self, prompt: list[Any], session_id: str, **_: Any) -> acp.PromptResponse:
        """Do what the last block says."""
        self.stopped.discard(session_id)
        words = str(getattr(prompt[-1], "text", "")).split()
        if words[:1] == ["tool"]:
            await self.tool(session_id)
        elif words[:1] == ["slow"]:
            for number in range(int(words[1])):
                await asyncio.sleep(int(words[2]) / 1000)
                if session_id in self.stopped:
                    return acp.PromptResponse(stop_reason="cancelled")
                await self.say(session_id, acp.update_agent_message_text(f"chunk {number} "))
        else:
            await self.say(session_id, acp.update_agent_message_text("py-echo: " + " ".join(words)))
        return acp.PromptResponse(stop_reason="end_turn")

    async def tool(self, session_id: str) -> None:
        """Think, plan, ask, act, show a picture."""
        call = uuid.uuid4().hex
        options = [
            schema.PermissionOption(option_id="always", name="Always", kind="allow_always"),
            schema.PermissionOption(option_id="once", name="Once", kind="allow_once"),
            schema.PermissionOption(option_id="no", name="No", kind="reject_once"),
        ]
        await self.say(session_id, acp.update_agent_thought_text("thinking about it"))
        await self.say(session_id, acp.update_plan([acp.plan_entry("touch it", status="in_progress")]))
        await self.say(session_id, acp.start_tool_call(call, "touch", kind="edit", status="pending", raw_input={"n": 1}))
        answer = await self.client.request_permission(
            session_id=session_id, tool_call=schema.ToolCallUpdate(tool_call_id=call, title="touch"), options=options
        )
        allowed = answer.outcome.outcome == "selected" and answer.outcome.option_id in ("always", "once")
        content = [acp.tool_content(acp.image_block(PIXEL, "image/png")), acp.tool_content(acp.text_block("touched"))]
        status = "completed" if allowed else "failed"
        await self.say(session_id, acp.update_tool_call(call, status=status, content=content if allowed else []))
        await self.say(session_id, acp.update_plan([acp.plan_entry("touch it", status="completed")]))
        await self.say(session_id, acp.update_agent_message(acp.image_block(PIXEL, "image/png")))
        await self.say(session_id, acp.update_agent_message_text("done" if allowed else "refused"))

    async def say(self, session_id: str, update: Any) -> None:
        """Send one update."""
        await self.client.session_update(session_id=session_id, update=update)


if __name__ == "__main__":
    asyncio.run(acp.run_agent(Echo()))
