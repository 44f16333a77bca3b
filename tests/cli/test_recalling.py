"""`acpd mcp`: earlier sessions as an MCP server, to a client that was not written here."""

from __future__ import annotations

import asyncio
import io
import json
import os
import subprocess
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from mcp.client.session import ClientSession
from mcp.client.stdio import StdioServerParameters, stdio_client

from acpd.cli import recalling
from acpd.config import Config
from acpd.storage.contract import Key
from acpd.wire.ids import Ids
from tests.cli import acpd
from tests.core.recalled import agent, end, opened, user, write
from tests.support.commands import backends

LIMIT = 30
"""Seconds for a server that starts while the machine has other work."""
_PARAMS = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
HELLO = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": _PARAMS}).encode() + b"\n"


@asynccontextmanager
async def serving(home: Path, *words: str) -> AsyncGenerator[ClientSession]:
    server = StdioServerParameters(command=acpd.ACPD[0], args=[*acpd.ACPD[1:], "mcp", *words], env=acpd.environment(home))
    with (home / "stderr").open("w+") as stderr:
        async with (
            asyncio.timeout(LIMIT),
            stdio_client(server, errlog=stderr) as (reader, writer),
            ClientSession(reader, writer) as client,
        ):
            await client.initialize()
            yield client


async def said(client: ClientSession, tool: str, **arguments: Any) -> tuple[bool, str]:
    """Whether it has failed, and the text."""
    found = await client.call_tool(tool, arguments)
    (block,) = found.content
    return bool(found.is_error), getattr(block, "text", "")


async def filled(home: Path, backend: str = "workspace") -> None:
    for name in ("alice", "bob"):
        async with opened(home / "data", name, backend) as store:
            for other in ("claude", "codex"):
                key = Key(other, f"{name}-{other}", name)
                await write(store, key, user(f"the port of {name} for {other}"), agent("is 8080"), end())


@pytest.mark.parametrize("backend", backends())
async def test_the_tools_of_a_session(tmp_path: Path, backend: str) -> None:
    """The table's tools, for the user and by default the agent of the session, whatever a model asks for."""
    await filled(tmp_path, backend)
    async with serving(tmp_path, "--session", "alice-claude", "--user", "alice", "--backend", backend) as client:
        tools = (await client.list_tools()).tools
        assert ["session_search", "session_list", "session_history", "memory_search", "memory_get"] == [
            tool.name for tool in tools
        ]
        assert {True} == {tool.annotations.read_only_hint for tool in tools if tool.annotations is not None}
        assert ["query"] == tools[0].input_schema["required"]
        assert {"type": "integer", "default": 10} == {
            name: tools[0].input_schema["properties"]["maxResults"][name] for name in ("type", "default")
        }
        failed, text = await said(client, "session_search", query="port")
        assert (False, True) == (failed, text.startswith('Found 1 match for "port"'))
        assert "[USER]: the port of alice for claude" in text
        assert "for codex" in (await said(client, "session_search", query="port", agentId="codex"))[1]
        assert "alice-claude" in (await said(client, "session_list"))[1]
        assert "[ASSISTANT]: is 8080" in (await said(client, "session_history", sessionId="alice-claude"))[1]
        for wrong in ("bob-claude", "alice-codex", "../bob/bob-claude", "none"):
            failed, text = await said(client, "session_history", sessionId=wrong)
            assert (True, True) == (failed, text.startswith(f"Session not found: {wrong}. "))
        assert (True, True) == ((bad := await said(client, "session_search", query="x", n=1))[0], "`n`" in bad[1])
        assert (True, True) == ((bad := await said(client, "nothing"))[0], "There is no tool nothing" in bad[1])


async def test_no_memory_no_tools_of_it(tmp_path: Path) -> None:
    """`[agents.native] memory = false` takes memory_search and memory_get away; so does a store without memory."""
    await filled(tmp_path)
    (tmp_path / "off.toml").write_text("[agents.native]\nmemory = false\n")
    who = ["--session", "alice-claude", "--user", "alice"]
    async with serving(tmp_path, *who, "--config", str(tmp_path / "off.toml")) as client:
        listed = [tool.name for tool in (await client.list_tools()).tools]
        assert ["session_search", "session_list", "session_history"] == listed
        failed, text = await said(client, "memory_search", query="port")
        assert (True, True) == (failed, text.startswith("There is no tool memory_search."))
    async with opened(tmp_path / "data", "alice") as store, AsyncExitStack() as stack:
        scope = recalling._Scope(SimpleNamespace(config=Config(), values=SimpleNamespace(session="s")), stack)  # type: ignore[arg-type]
        assert 5 == len(scope.tools())
        scope._store = store._replace(memory=None)
        assert 3 == len(scope.tools())


@pytest.mark.parametrize("words", [["--session", "none"], ["--session", "bob-claude", "--user", "alice"], ["--session", ".."]])
async def test_a_session_that_there_is_not(tmp_path: Path, words: list[str]) -> None:
    """One line on stderr that names it, exit code 1, and nothing on stdout; no store is made for it."""
    if "--user" in words:
        await filled(tmp_path)
    ran = await asyncio.to_thread(acpd.run, tmp_path, "mcp", *words)
    assert (1, "") == (ran.code, ran.out)
    assert f"session {words[1]}" in ran.err
    assert 1 == ran.err.count("\n")
    assert ("--user" in words) == (tmp_path / "data").exists()


async def test_a_session_that_is_just_being_made(tmp_path: Path) -> None:
    """An agent starts its servers before its session is in the store: the tools are there, and work as soon as it is."""
    name = Ids().new()
    async with opened(tmp_path / "data", None) as store:
        await store.catalog.get("")
        async with serving(tmp_path, "--session", name) as client:
            assert 5 == len((await client.list_tools()).tools)
            failed, text = await said(client, "session_list")
            assert (True, True) == (failed, name in text)
            await write(store, Key("claude", name), user("the port is 8080"), end())
            assert name in (await said(client, "session_list"))[1]
    old = Ids(lambda: time.time_ns() - 3600 * 10**9).new()
    assert 1 == (await asyncio.to_thread(acpd.run, tmp_path, "mcp", "--session", old)).code


async def test_only_protocol_on_stdout(tmp_path: Path) -> None:
    """Each line is a message, and the end of stdin ends it; the logs are as they were."""
    async with opened(tmp_path / "data", None) as store:
        await write(store, Key("claude", "s"), user("the port is 8080"), end())
        log = Path(store.journals.log_path(Key("claude", "s")))
    before = log.read_bytes()
    more = b'{"jsonrpc":"2.0","method":"notifications/initialized"}\nno JSON\n{"jsonrpc":"2.0","id":2,"method":"tools/list"}\n'
    process = await asyncio.create_subprocess_exec(
        *acpd.ACPD, "mcp", "--session", "s", env=acpd.environment(tmp_path), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(HELLO + more)
    async with asyncio.timeout(LIMIT):
        lines = [await process.stdout.readline() for _ in range(2)]
        process.stdin.close()
        lines += io.BytesIO(await process.stdout.read()).readlines()
        assert 0 == await process.wait()
    assert all(line.startswith(b'{"jsonrpc":"2.0"') for line in lines)
    assert before == log.read_bytes()


async def test_a_reader_that_is_gone_is_no_failure(tmp_path: Path) -> None:
    """As of every command: it ends well and says nothing, least of all a traceback."""
    async with opened(tmp_path / "data", None) as store:
        await write(store, Key("claude", "s"), user("hi"), end())
    reader, writer = os.pipe()
    process = await asyncio.create_subprocess_exec(
        *acpd.ACPD,
        "mcp",
        "--session",
        "s",
        env=acpd.environment(tmp_path),
        stdin=subprocess.PIPE,
        stdout=writer,
        stderr=subprocess.PIPE,
    )
    os.close(writer)
    os.close(reader)
    async with asyncio.timeout(LIMIT):
        _, err = await process.communicate(HELLO)
    assert (0, b"") == (process.returncode, err)


async def test_half_a_character_is_answered(tmp_path: Path) -> None:
    """A lone surrogate, in whatever argument or name, counts as U+FFFD: the call is answered, and the server goes on."""
    async with opened(tmp_path / "data", None) as store:
        await write(store, Key("claude", "s"), user("the port is 8080"), end())
    calls = [
        ("session_history", {"sessionId": "\ud800"}),
        ("session_search", {"query": "\ud800"}),
        ("session_list", {"agentId": "a\udfff"}),
        ("session_history", {"sessionId": "s", "agentId": "\\ud800 \ud83d"}),
        ("session_list", {"\ud800": 1}),
        ("\ud800", {}),
        ("session_list", {}),
    ]
    process = await asyncio.create_subprocess_exec(
        *acpd.ACPD, "mcp", "--session", "s", env=acpd.environment(tmp_path), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(HELLO + b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')
    answers = {}
    async with asyncio.timeout(LIMIT):
        await process.stdout.readline()
        for number, (name, arguments) in enumerate(calls, 2):
            params = {"name": name, "arguments": arguments}
            call = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}
            process.stdin.write(json.dumps(call).encode() + b"\n")
            answer = json.loads(await process.stdout.readline())
            answers[answer["id"]] = answer["result"]
        process.stdin.close()
        assert 0 == await process.wait()
    texts = [answers[number]["content"][0]["text"] for number in range(2, 2 + len(calls))]
    assert [True, True, False, True, True, True, False] == [answers[number]["isError"] for number in range(2, 9)]
    assert texts[0].startswith("Session not found: \ufffd. ")
    assert "it has no word to look for" in texts[1]
    assert "`\ufffd`" in texts[4]
    assert texts[5].startswith("There is no tool \ufffd.")


async def test_while_another_process_has_the_session(tmp_path: Path) -> None:
    """It takes no lease and needs none: what the holder's turns have said is found, also what was said after the start."""
    key = Key("claude", "mine")
    async with opened(tmp_path / "data", None) as store:
        await write(store, key, user("the port is 8080"), end())
        await store.lease.take(key)
        journal = await store.journals.open(key)
        async with serving(tmp_path, "--session", "mine") as client:
            assert "the port is 8080" in (await said(client, "session_search", query="port"))[1]
            await write(store, Key("claude", "other"), user("the port is 9090"), end())
            assert "the port is 9090" in (await said(client, "session_search", query="port"))[1]
        assert await store.lease.holder(key) is not None
        await journal.close()
        await store.lease.give_up(key)


def test_no_session_is_named(tmp_path: Path) -> None:
    """The command line is wrong then."""
    ran = acpd.run(tmp_path, "mcp")
    assert (2, "") == (ran.code, ran.out)
    assert "--session" in ran.err
