# Runs under an interpreter that has the SDK; acpd's own has not.
# mypy: disable-error-code="import-not-found,misc"
# pyright: reportMissingImports=false, reportUntypedBaseClass=false
"""A client on the official Python SDK: steps in on stdin, events out on stdout, one JSON line each.

argv[1] is `{"command": [...], "env": {...}, "cwd": "..."}`. Steps: initialize, authenticate, new, load, resume, list,
close, set_mode, prompt (with `cancelAfter`: cancel once that many updates of this prompt came), cancel, nonsense (a request of
an unknown method), policy (the kind of permission option to choose, "cancelled", "hold": never answer, or "told": as a step
choose says, with toolCallId and optionId). A step with `apart` is not waited for. Events: result, error, update (params as
received), asked and withdrawn (id, as received), replied (id: an answer leaves), handled (the SDK gave an update to its
handler), permission, closed. The end of stdin ends the connection.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

import acp
from acp import schema
from acp.connection import StreamDirection, StreamEvent

LIMIT = 64 << 20
"""Bytes in a line; the SDK's own 64 KiB is less than what real agents send."""


def emit(event: str, **fields: Any) -> None:
    """Write one event."""
    sys.stdout.write(json.dumps({"event": event, **fields}) + "\n")
    sys.stdout.flush()


class Editor(acp.Client):
    """What the agent may ask of us."""

    policy = "allow_once"

    def __init__(self) -> None:
        self._choices: dict[str, asyncio.Future[str]] = {}

    def choice(self, tool_call_id: str) -> asyncio.Future[str]:
        """What is, or will be, chosen there."""
        return self._choices.setdefault(tool_call_id, asyncio.get_running_loop().create_future())

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
        """The SDK understood an update."""
        emit("handled", sessionId=session_id, kind=update.session_update)

    async def request_permission(
        self, session_id: str, tool_call: Any, options: list[schema.PermissionOption], **_: Any
    ) -> acp.RequestPermissionResponse:
        """Answer by policy: by kind, never by place or id."""
        chosen = next((option.option_id for option in options if option.kind == self.policy), None)
        emit("permission", sessionId=session_id, toolCallId=tool_call.tool_call_id, chosen=chosen)
        if self.policy == "hold":
            await asyncio.Event().wait()
        if self.policy == "told":
            chosen = await self.choice(tool_call.tool_call_id)
        if chosen is None:
            return acp.RequestPermissionResponse(outcome=schema.DeniedOutcome(outcome="cancelled"))
        return acp.RequestPermissionResponse(outcome=schema.AllowedOutcome(outcome="selected", option_id=chosen))


class Driver:
    """Carries the steps out on one connection."""

    def __init__(self, editor: Editor) -> None:
        self.editor = editor
        self.count = 0
        self.cancel_at: int | None = None
        self.reached = asyncio.Event()

    def observe(self, event: StreamEvent) -> None:
        """Report every update and question as it came, before the SDK looks at it, and every answer as it leaves."""
        message: dict[str, Any] = event.message
        if event.direction is not StreamDirection.INCOMING:
            if "method" not in message:
                emit("replied", id=message["id"])
            return
        match message.get("method"):
            case "session/request_permission":
                emit("asked", id=message["id"], params=message["params"])
            case "$/cancel_request":
                emit("withdrawn", id=message["params"]["requestId"])
            case "session/update":
                self.updated(message.get("params"))
            case _:
                pass

    def updated(self, params: Any) -> None:
        emit("update", params=params)
        self.count += 1
        if self.cancel_at is not None and self.count >= self.cancel_at:
            self.reached.set()

    async def step(self, conn: acp.Agent, step: dict[str, Any]) -> Any:
        """Do one step and give its result."""
        session = step.get("sessionId", "")
        match step["op"]:
            case "initialize":
                capabilities = schema.ClientCapabilities.model_validate(step.get("capabilities", {}))
                info = schema.Implementation(name="py-client", version="1")
                return await conn.initialize(1, client_capabilities=capabilities, client_info=info)
            case "authenticate":
                return await conn.authenticate(step["methodId"])
            case "new":
                return await conn.new_session(cwd=step["cwd"], mcp_servers=[])
            case "load":
                return await conn.load_session(cwd=step["cwd"], session_id=session, mcp_servers=[])
            case "resume":
                return await conn.resume_session(cwd=step["cwd"], session_id=session, mcp_servers=[])
            case "list":
                return await conn.list_sessions(cwd=step.get("cwd"))
            case "close":
                return await conn.close_session(session)
            case "set_mode":
                return await conn.set_session_mode(session_id=session, mode_id=step["modeId"])
            case "policy":
                self.editor.policy = step["kind"]
                return None
            case "choose":
                choice = self.editor.choice(step["toolCallId"])
                if not choice.done():  # the SDK has withdrawn it meanwhile
                    choice.set_result(step["optionId"])
                return None
            case "cancel":
                return await conn.cancel(session)
            case "nonsense":
                return await conn.ext_method("acpd/nonsense", {})
            case "prompt":
                return await self.prompt(conn, session, step)
            case other:
                raise ValueError(other)

    async def prompt(self, conn: acp.Agent, session: str, step: dict[str, Any]) -> Any:
        """Prompt, and cancel after so many updates if the step says so."""
        self.count, self.cancel_at = 0, step.get("cancelAfter")
        self.reached.clear()
        new_task = asyncio.create_task  # noqa: TID251  (acpd is not installed where this program runs)
        asking = new_task(conn.prompt(session_id=session, prompt=[acp.text_block(step["text"])]))
        if self.cancel_at is not None:
            waiting = new_task(self.reached.wait())
            await asyncio.wait({asking, waiting}, return_when=asyncio.FIRST_COMPLETED)
            if waiting.done():
                await conn.cancel(session)
            waiting.cancel()
        return await asking


async def run(conn: acp.Agent, driver: Driver) -> None:
    """Carry out the steps of stdin one after the other."""
    steps = asyncio.StreamReader(limit=LIMIT)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(steps), sys.stdin)
    number = 0
    apart: set[asyncio.Task[None]] = set()
    while line := await steps.readline():
        step = json.loads(line)
        if step.get("apart"):
            task = asyncio.create_task(carry_out(conn, driver, number, step))  # noqa: TID251  (acpd is not installed here)
            apart.add(task)
            task.add_done_callback(apart.discard)
            await asyncio.sleep(0)  # its request leaves before that of the next step
        else:
            await carry_out(conn, driver, number, step)
        number += 1


async def carry_out(conn: acp.Agent, driver: Driver, number: int, step: dict[str, Any]) -> None:
    """Do one step and report how it went."""
    try:
        result = await driver.step(conn, step)
    except acp.RequestError as error:
        emit("error", step=number, code=error.code, message=str(error), data=error.data)
    except ConnectionError as error:
        emit("error", step=number, code=None, message=str(error))
    else:
        plain = result.model_dump(mode="json", by_alias=True, exclude_none=True) if result is not None else None
        emit("result", step=number, op=step["op"], result=plain)


async def main() -> None:
    """Start the agent and talk to it."""
    setup = json.loads(sys.argv[1])
    editor = Editor()
    driver = Driver(editor)
    command, *args = setup["command"]
    async with acp.spawn_agent_process(
        editor,
        command,
        *args,
        env=setup["env"],
        cwd=setup["cwd"],
        use_unstable_protocol=True,
        observers=[driver.observe],
        transport_kwargs={"limit": LIMIT, "stderr": os.dup(2)},
    ) as (conn, process):
        await run(conn, driver)
    emit("closed", code=process.returncode)


if __name__ == "__main__":
    asyncio.run(main())
