"""Agents in Python behind acpd: what they keep is durable, and what they started does not outlive them."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.support import commands
from tests.support.client import WAIT, Client, Json
from tests.support.paths import ROOT

pytestmark = pytest.mark.e2e

COUNTER = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "agents-in-python.md").read_text(), re.DOTALL)[0]
ASKS = """
from acpd import Turn, serve
async def prompt(turn: Turn) -> None:
    async with turn.tool("Run") as call:
        await turn.say(str(await turn.allowed(call, "run")))
raise SystemExit(serve(prompt))
"""
RUNS = """
import asyncio, os
from acpd import Turn, serve
async def prompt(turn: Turn) -> None:
    async with turn.terminal("sh", ["-c", "sleep 1000 & echo $!; wait"]) as terminal:
        while not (output := (await terminal.output())[0]):
            await asyncio.sleep(0.01)
        await turn.say(f"{os.getpid()} {output}")
        await terminal.wait()
raise SystemExit(serve(prompt))
"""


def behind_acpd(source: str, folder: Path, **more: object) -> Client:
    (folder / "agent.py").write_text(source)
    command = commands.acpd("--standalone", "run", "--", sys.executable, "-P", str(folder / "agent.py"))
    return Client(command, folder / "home", env={"PYTHONPATH": str(ROOT)}, **more)  # type: ignore[arg-type]


def test_the_counter_counts_on(tmp_path: Path) -> None:
    """The twenty-line agent goes on counting after a kill -9 of acpd, and the conversation is replayed by acpd, once."""
    with behind_acpd(COUNTER, tmp_path) as client:
        client.initialize()
        session = client.new(tmp_path)
        assert "end_turn" == client.prompt(session, "one two")
        client.kill()
    with behind_acpd(COUNTER, tmp_path) as client:
        client.initialize()
        client.load(session, tmp_path)
        assert "That were 2 words, in turn 1. " == client.text(session)
        assert "end_turn" == client.prompt(session, "one")
        assert client.text(session).endswith("That were 1 words, in turn 2. ")


def test_always_is_kept_by_acpd(tmp_path: Path) -> None:
    """A permission that was given for ever is not asked for again after a new start."""
    asked: list[Json] = []

    def always(request: Json) -> Json | None:
        if request["method"] != "session/request_permission":
            return None
        asked.append(request)
        (option,) = [each for each in request["params"]["options"] if each["kind"] == "allow_always"]
        return {"outcome": {"outcome": "selected", "optionId": option["optionId"]}}

    with behind_acpd(ASKS, tmp_path, policy=always) as client:
        client.initialize()
        session = client.new(tmp_path)
        client.prompt(session, "a")
    with behind_acpd(ASKS, tmp_path, policy=always) as client:
        client.initialize()
        client.load(session, tmp_path)
        client.prompt(session, "b")
        assert "TrueTrue" == client.text(session)
    assert 1 == len(asked)


def test_a_killed_agent_leaves_no_command(tmp_path: Path) -> None:
    """Kill -9 of an agent ends the commands that it ran itself, in groups of their own as they are."""
    with behind_acpd(RUNS, tmp_path) as client:
        client.initialize()
        session = client.new(tmp_path)
        prompt = client.start_prompt(session, "a")
        client.wait_update("agent_message_chunk")
        agent, child = map(int, client.text(session).split())
        os.kill(child, 0)
        os.kill(agent, signal.SIGKILL)
        assert "error" in client.answer(prompt).message
        end = time.monotonic() + WAIT
        while exists(child):
            assert time.monotonic() < end
            time.sleep(0.02)  # there is no event for the end of somebody else's process


def exists(pid: int) -> bool:
    try:
        return b") Z " not in Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
