"""`[sessions] tools`: which agents are given acpd's MCP server, and how."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from acpd.agents.equipping import equipped
from acpd.cli.arguments import parser
from acpd.config import Config, Paths, tools_command
from tests.agents.house import House, wire
from tests.core.desk import desk
from tests.support.store import Json
from tests.support.walk import contents

COMMAND = ("/bin/acpd", "mcp", "--storage", "/s")
CLIENTS: list[Json] = [{"name": "acpd", "command": "/x", "args": [], "env": [{"name": "TOKEN", "value": "canary"}]}]


def with_tools(house: House) -> None:
    house.pool.settings = house.pool.settings._replace(tools=COMMAND)


def servers(path: Path, method: str) -> list[list[Json]]:
    """The `mcpServers` of each request of this method that an agent got."""
    return [message["params"]["mcpServers"] for message in wire(path) if message.get("method") == method]


def ours(session: str, name: str = "acpd") -> Json:
    return {"name": name, "command": "/bin/acpd", "args": [*COMMAND[1:], f"--session={session}"], "env": []}


@pytest.mark.parametrize("options", [(), ("--no-resume",), ("--no-resume", "--no-load")])
async def test_in_every_request_that_sets_up(house: House, tmp_path: Path, options: tuple[str, ...]) -> None:
    """session/new, resume and load, and a new inner session: behind the client's own servers, with acpd's id of the session."""
    with_tools(house)
    path = tmp_path / "wire"
    host = house.host("--wire", str(path), "--state", str(tmp_path / "state"))
    async with desk(house, host) as one:
        session = await one.new()
        await one.prompt(session, "say hi")
        await one.ask("session/close", sessionId=session)
    assert [[ours(session)]] == servers(path, "session/new")
    again = house.host("--wire", str(path), "--state", str(tmp_path / "state"), *options)
    async with desk(house, again) as one:
        await one.ask("session/load", sessionId=session, cwd=str(house.root), mcpServers=CLIENTS)
        await one.prompt(session, "servers")
        assert "servers acpd acpd-2" in json.dumps(one.got)
        await one.ask("session/close", sessionId=session)
    method = ("session/resume", "session/load", "session/new")[len(options)]
    assert [[*CLIENTS, ours(session, "acpd-2")]] == servers(path, method)[-1:]
    stored = b"".join(contents(tmp_path / "store").values())
    assert (0, 0) == (stored.count(b"--storage"), stored.count(b"canary"))


async def test_forks_and_adopted_sessions(house: House, tmp_path: Path) -> None:
    """The agent's own fork is told of the new session; a session that only the agent knew, of its own id."""
    with_tools(house)
    path = tmp_path / "wire"
    options = ("--wire", str(path), "--state", str(tmp_path / "state"), "--fork", "--list")
    async with desk(house, house.host(*options)) as one:
        session = await one.new()
        await one.prompt(session, "say hi")
        forked = (await one.ask("session/fork", sessionId=session, cwd=str(house.root), mcpServers=CLIENTS))["sessionId"]
        await one.prompt(forked, "servers")
    assert [[*CLIENTS, ours(forked, "acpd-2")]] == servers(path, "session/fork")
    inner = house.registry.live[session].fold.inner
    await house.registry.delete(session)
    async with desk(house, house.host(*options)) as one:
        await one.ask("session/load", sessionId=inner, cwd=str(house.root), mcpServers=[])
    assert [ours(inner)] == servers(path, "session/load")[-1]


@pytest.mark.parametrize("own", [True, False])
async def test_not_for_our_own_agent_and_not_unasked(house: House, tmp_path: Path, own: bool) -> None:
    """acpd-agent asks over its link; without the setting nobody gets anything."""
    if own:
        with_tools(house)
    path = tmp_path / "wire"
    async with desk(house, house.host("--wire", str(path), *(("--name", "acpd-agent") if own else ()))) as one:
        await one.new()
    assert [[]] == servers(path, "session/new")


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ([], "acpd"),
        (["other"], "acpd"),
        (["acpd"], "acpd-2"),
        (["acpd-2", "acpd"], "acpd-3"),
        (["acpd", "acpd", "acpd-2"], "acpd-3"),
    ],
)
async def test_names(house: House, given: list[str], name: str) -> None:
    """A client's own server keeps its name; what else the params have stays as it is, byte for byte."""
    link = await house.start(house.host())
    own = [{"name": each, "type": "http", "url": "http://x", "headers": []} for each in given]
    params = b'{"cwd" : "/w","mcpServers":%b, "x":1.50}' % json.dumps(own).encode()
    found = equipped(link, COMMAND, params, "s", "a user")
    told: dict[str, Any] = json.loads(found)
    assert own == told["mcpServers"][:-1]
    assert {**ours("s", name), "args": [*COMMAND[1:], "--user=a user", "--session=s"]} == told["mcpServers"][-1]
    assert (True, True) == (found.startswith(b'{"cwd" : "/w","mcpServers":['), found.endswith(b', "x":1.50}'))
    await link.stop()


async def test_names_that_look_like_flags(house: House) -> None:
    """A session whose id is the agent's own, and a user, may be called as they like: `acpd mcp` understands it."""
    link = await house.start(house.host())
    told: dict[str, Any] = json.loads(equipped(link, COMMAND, b'{"mcpServers":[]}', "-abc", "--new"))
    values = await asyncio.to_thread(lambda: parser().parse_args(told["mcpServers"][0]["args"]))
    assert ("mcp", "-abc", "--new", "/s") == (values.command, values.session, values.user, values.storage)
    await link.stop()


def test_the_command_finds_the_same_store(tmp_path: Path) -> None:
    """Whatever acpd was told, by a file, variables or flags, the server is told the outcome."""
    paths = Paths.find({"ACPD_HOME": str(tmp_path)})
    (tmp_path / "other.toml").write_text('[storage]\npath = "here"\n[sessions]\ntools = true\n')
    config = Config.load(paths, {"ACPD_CONFIG": str(tmp_path / "other.toml"), "ACPD_STORAGE_BACKEND": "sqlite"})
    assert config.sessions.tools
    words = tools_command(config)
    program = words[: words.index("mcp")]
    assert ("mcp", "--config", str(tmp_path / "other.toml"), "--backend", "sqlite", "--storage", str(tmp_path / "here")) == (
        words[len(program) :]
    )
    assert Path(program[0]).is_absolute()
    assert "--config" not in tools_command(Config.load(paths, {}))
