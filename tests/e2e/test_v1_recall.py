"""`[sessions] tools` as an agent meets it: what it is given in session/new is a program that finds earlier sessions."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from mcp.client.session import ClientSession
from mcp.client.stdio import StdioServerParameters, stdio_client

from tests.support import proc
from tests.support.client import Client
from tests.support.scripted import Stage
from tests.support.store import Json

TOOLS = {"ACPD_SESSIONS_TOOLS": "true"}


def searched(stage: Stage, server: Json, **arguments: Any) -> str:
    """What this server finds, started as agents do it: its command in a folder and a home of the agent's own."""
    home = stage.tmp / "agent-home"
    home.mkdir(exist_ok=True)

    async def ask() -> str:
        env = {"PATH": os.environ["PATH"], "HOME": str(home), "ACPD_HOME": str(home), proc.MARK: stage.mark}
        given = StdioServerParameters(command=server["command"], args=server["args"], env=env, cwd=home)
        with (stage.tmp / "server.stderr").open("a") as stderr:
            async with (
                asyncio.timeout(30),
                stdio_client(given, errlog=stderr) as (reader, writer),
                ClientSession(reader, writer) as client,
            ):
                await client.initialize()
                found = await client.call_tool("session_search", arguments)
                return "".join(getattr(block, "text", "") for block in found.content)

    return asyncio.run(ask())


def given(stage: Stage, client: Client, text: str) -> Json:
    """The server that the agent of a new session was given; the session has said this."""
    client.prompt(client.new(stage.cwd), f"say {text}")
    (server,) = stage.wait_agent_got("session/new")[-1]["params"]["mcpServers"]
    assert isinstance(server, dict)
    return server


@pytest.mark.e2e
def test_the_server_that_an_agent_is_given(play: Stage) -> None:
    """It finds the store by its arguments alone, while acpd has it open: what was answered just now, of its user only."""
    alice = play.start(flags=("--user", "alice"), env=TOOLS)
    mine = given(play, alice, "the port is 8080")
    if play.way == "standalone":
        play.finish(alice)
    bob = play.start(flags=("--user", "bob"), env=TOOLS)
    other = given(play, bob, "the port is 9090")
    assert ("acpd", []) == (mine["name"], mine["env"])
    text = searched(play, mine, query="port")
    assert ("8080" in text, "9090" in text) == (True, False)
    text = searched(play, other, query="port")
    assert ("8080" in text, "9090" in text) == (False, True)
    bob.prompt(bob.new(play.cwd), "say hay in the port")
    assert "hay" in searched(play, other, query="hay")
    assert not Path(play.tmp / "agent-home" / "data").exists()
    if play.way == "daemon":
        alice.stop()
    play.finish(bob)
