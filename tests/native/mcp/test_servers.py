"""What a server on stdio can do: results of all kinds, progress, cancellation, lists that change, its death and its end."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

from acpd.api.shapes import McpServer
from acpd.native.mcp import server as server_module
from acpd.native.mcp import sifting
from acpd.native.mcp.child import Started, spawn
from tests.native.mcp.seat import Opened, opened, program, remote
from tests.support import proc

SECRET = "canary-4711-env"
KINDS: tuple[Literal["http", "sse"], ...] = ("http", "sse")


@pytest.fixture
def mark() -> Iterator[str]:
    """What all processes of a test's servers have in their environment; none is left in the end."""
    value = proc.new_mark()
    yield value
    proc.assert_none_left(value, within=0.5)


async def until(condition: object, *, within: float = 10.0) -> None:
    """Wait for what another task or process does."""
    assert callable(condition)
    async with asyncio.timeout(within):
        while not condition():
            await asyncio.sleep(0.02)


def lines(record: Path) -> list[str]:
    return record.read_text().splitlines() if record.exists() else []


async def test_results_of_all_kinds(tmp_path: Path, mark: str) -> None:
    """Texts, images, structured results and embedded resources are given as they are; of others there is a word."""
    async with opened(tmp_path, program("rich", ACPD_TEST_MARK=mark)) as session:
        assert "echo hi" == (await session.call("rich_echo", text="hi")).text
        image = await session.call("rich_image")
        assert ("a picture", "image/png") == (image.text, image.images[0][1])
        assert "[audio, audio/wav, about 3 bytes: it cannot be heard here]" == (await session.call("rich_audio")).text
        structured = await session.call("rich_structured")
        assert ('{"answer": 42}', {"answer": 42}) == (structured.text, structured.structured)
        failed = await session.call("rich_fail")
        assert (True, "it cannot be done") == (failed.failed, failed.text)
        links = await session.call("rich_links")
        assert (
            "[file:///a.txt, text/plain] a: the first\n[resource mem://b]\ninside b\n"
            "[resource mem://c, application/zip, about 3 bytes: not a text]" == links.text
        )
        assert 1 == len(links.images)


async def test_all_pages_of_the_list(tmp_path: Path, mark: str) -> None:
    """tools/list is read to its last page, and what the server says of itself can be told to the model."""
    async with opened(tmp_path, program("rich", ACPD_TEST_MARK=mark)) as session:
        assert ["rich_echo", "rich_fail", "rich_image"] == session.names[:3]
        assert ["rich_mute", "mcp_resources", "mcp_prompts"] == session.names[-3:]
        assert "# MCP server rich\nUse echo." == session.servers.instructions()


async def test_tools_with_broken_schemas(tmp_path: Path, mark: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are mended; one that cannot be is left out, which is told once, and what remains can be called."""
    monkeypatch.setattr(sifting, "VALUES", 100)
    wide = {"type": "object", "properties": {f"p{number}": {"type": "string"} for number in range(60)}}
    broken = {"type": "object", "properties": {"a": {"anyOf": 5}}}
    listed = [{"name": "wide", "inputSchema": wide}, {"name": "echo", "inputSchema": broken}]
    async with opened(tmp_path, program("rich", ACPD_TEST_MARK=mark, TOOLS=json.dumps(listed))) as session:
        tools = {tool.name: tool.schema for tool in session.servers.tools()}
        assert {"type": "object", "properties": {"a": {}}} == tools["rich_echo"]
        assert "rich_wide" not in tools
        (notice,) = session.seat.notices
        assert "MCP server rich has tools that no model can be offered" == notice.title
        assert "Their arguments are described by too much: wide." == notice.description
        await session.call("rich_grow")  # the list is read again
        assert "echo x" == (await session.call("rich_echo", text="x")).text
        assert 1 == len(session.seat.notices)


async def test_names_that_would_deceive(tmp_path: Path, mark: str) -> None:
    """Titles, questions and notices of a server are one line with nothing hidden in it."""
    bad = "a\n\x1b[2Jred\u202e"
    schema = {"type": "object"}
    listed = [{"name": bad, "title": f"Read {bad}", "inputSchema": schema}, {"name": "die", "inputSchema": schema}] * 2
    server = program("rich", label=f"rich\n{bad}", ACPD_TEST_MARK=mark, TOOLS=json.dumps(listed))
    async with opened(tmp_path, server) as session:
        names = session.names
        await session.call(names[0])
        await session.call(f"no\n{bad}")
        await session.call(names[1])
        seat = session.seat
        assert [f"mcp:rich\n{bad}/{bad}", f"mcp:rich\n{bad}/die"] == seat.asked
        assert r"mcp:rich\na\n\x1b[2Jred\u202e/a\n\x1b[2Jred\u202e" == seat.questions[0]
        told = [*seat.questions, *seat.titles, *(part for notice in seat.notices for part in notice)]
        assert 2 + 3 + 2 * 3 == len(told)
        assert [] == [each for each in told if not each.isprintable()]


async def test_what_a_server_has_hidden_ends_with_it(tmp_path: Path, mark: str) -> None:
    """A program in a session of its own and without our environment is ended with the server that has started it."""
    async with opened(tmp_path, program("rich", ACPD_TEST_MARK=mark)) as session:
        pid = int((await session.call("rich_hide")).text)
        assert proc.alive(pid)
    await until(lambda: not proc.alive(pid), within=10)


async def test_resources_and_prompts(tmp_path: Path, mark: str) -> None:
    """Both can be listed and read by tools that are harmless."""
    async with opened(tmp_path, program("rich", ACPD_TEST_MARK=mark)) as session:
        listed = (await session.call("mcp_resources")).text
        assert (
            "[mem://one] one: number one\ntemplate [mem://{name}] any\nThere are more: call it again with cursor 'more'."
            == listed
        )
        assert "[resource mem://x]\ncontent of mem://x" == (await session.call("mcp_resources", uri="mem://x")).text
        assert "greet(who): " == (await session.call("mcp_prompts", server="rich")).text
        greeted = await session.call("mcp_prompts", name="greet", arguments={"who": "Ada"})
        assert "user:\nGreet Ada" == greeted.text
        assert "Say the server: one of rich." == (await session.call("mcp_resources", server="poor")).text
        assert {"mcp_resources", "mcp_prompts"} == {tool.name for tool in session.toolbox.offered("plan")}
        assert [] == session.seat.asked


async def test_a_call_is_asked_for_by_server_and_tool(tmp_path: Path, mark: str) -> None:
    """The scope of "always" is one tool of one server."""
    async with opened(tmp_path, program("rich", ACPD_TEST_MARK=mark)) as session:
        await session.call("rich_echo")
        assert ["mcp:rich/echo"] == session.seat.asked


async def test_a_server_gets_little_of_our_environment(tmp_path: Path, mark: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It gets what is given, over what programs need; runs in the session's folder and in a group of its own."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-model-4711")
    monkeypatch.setenv("ACPD_LINK", "link-4711")
    async with opened(tmp_path, program("rich", ACPD_TEST_MARK=mark, API_KEY=SECRET, PLACE="/here")) as session:
        output = (await session.call("rich_env")).text
        variables, cwd, group, pid = output.splitlines()
        seen = json.loads(variables)
        assert "OPENAI_API_KEY" not in seen
        assert ("link-4711", "/here", os.environ["PATH"]) == (seen["ACPD_LINK"], seen["PLACE"], seen["PATH"])
        assert (str(tmp_path), pid) == (cwd, group)
        assert "***" == seen["API_KEY"]  # a secret by its name is hidden from the model too


async def test_progress_is_shown(tmp_path: Path, mark: str) -> None:
    """What a server tells of its progress is shown in the tool call, not more often than a user can read."""
    async with opened(tmp_path, program("rich", ACPD_TEST_MARK=mark)) as session:
        output = await session.call("rich_count")
        *progress, result = session.seat.calls[0].shown
        assert ("counted", "counted") == (output.text, result)
        assert 1 <= len(progress) <= 2
        assert all(f"{step}/200 step {step}" in progress[0] for step in [progress[0].split("/")[0]])


async def test_a_cancelled_call_is_cancelled_at_the_server(tmp_path: Path, mark: str) -> None:
    """The server is told (notifications/cancelled), the turn does not wait for it, and the next call works."""
    record = tmp_path / "record"
    async with opened(tmp_path, program("rich", ACPD_TEST_MARK=mark, RECORD=str(record))) as session:
        call = asyncio.ensure_future(session.call("rich_slow"))  # noqa: TID251
        await until(lambda: "slow" in lines(record))
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await until(lambda: "stopped" in lines(record))
        assert "echo " == (await session.call("rich_echo")).text


async def test_a_list_that_changes(tmp_path: Path, mark: str) -> None:
    """After tools/list_changed the new tools are offered; twenty such words in a crowd cost few readings."""
    record = tmp_path / "record"
    async with opened(tmp_path, program("rich", ACPD_TEST_MARK=mark, RECORD=str(record))) as session:
        before = lines(record).count("tools/list")
        await session.call("rich_grow", name="new one")
        await until(lambda: "rich_new_one" in session.names)
        assert "new one x" == (await session.call("rich_new_one", text="x")).text
        assert lines(record).count("tools/list") - before <= 2 * before + 2


@pytest.mark.e2e
async def test_a_server_that_died_is_started_again(tmp_path: Path, mark: str) -> None:
    """Its end is told once, with its exit code; a second later it runs again, before anybody calls."""
    record = tmp_path / "record"
    async with opened(tmp_path, program("rich", ACPD_TEST_MARK=mark, RECORD=str(record))) as session:
        died = await session.call("rich_die", code=9)
        assert "MCP server rich: it ended during this call: exit code 9. The next call connects again." == died.text
        await until(lambda: len([line for line in lines(record) if line.startswith("started")]) == 2)
        assert "echo " == (await session.call("rich_echo")).text
        (notice,) = session.seat.notices
        assert ("MCP server rich has ended", "Exit code 9. It is connected again when it is needed.") == notice[1:]


async def test_a_server_that_is_killed_while_idle(tmp_path: Path, mark: str) -> None:
    """It is noticed at once."""
    async with opened(tmp_path, program("rich", ACPD_TEST_MARK=mark)) as session:
        (process,) = proc.marked(mark)
        os.kill(process.pid, 9)
        await until(lambda: session.seat.notices, within=1)
        assert "Ended by SIGKILL. It is connected again when it is needed." == session.seat.notices[0].description
        assert "echo " == (await session.call("rich_echo")).text


@pytest.mark.e2e
async def test_a_flood_of_notifications(tmp_path: Path, mark: str) -> None:
    """A server that floods is read in turns, and its call ends."""
    async with opened(
        tmp_path, program("rich", ACPD_TEST_MARK=mark), program("rich", label="other", ACPD_TEST_MARK=mark)
    ) as session:
        flood = asyncio.ensure_future(session.call("rich_flood"))  # noqa: TID251
        assert "echo " == (await session.call("other_echo")).text
        assert "flooded" == (await flood).text


@pytest.mark.e2e
async def test_what_a_server_started_ends_with_it(tmp_path: Path, mark: str) -> None:
    """A grandchild that left the group, ignores signals and holds stdout is gone after close; so is that of a dead server."""
    async with opened(tmp_path, program("rich", ACPD_TEST_MARK=mark)) as session:
        first = int((await session.call("rich_child")).text)
        assert (await session.call("rich_die")).failed
        second = int((await session.call("rich_child")).text)
        proc.assert_gone(first, within=3)
        assert proc.alive(second)
    proc.assert_gone(second, within=0.1)


async def test_a_call_while_a_server_ends(tmp_path: Path, mark: str) -> None:
    """A call that comes between the end of a connection and that of its process is made on a new one."""
    async with opened(tmp_path, program("rich", ACPD_TEST_MARK=mark)) as session:
        (server,) = session.servers._servers
        link = server.link
        assert link is not None
        muted = asyncio.ensure_future(session.call("rich_mute"))  # noqa: TID251
        await until(link._ended.is_set)
        assert not muted.done()
        assert "echo " == (await session.call("rich_echo")).text
        assert "it ended during this call" in (await muted).text


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left behind is not waited for. Imports the package before a loop runs."""
    monkeypatch.setattr("acpd.native.mcp.pipe.LINGER", 0.05)


@pytest.mark.usefixtures("impatient")
async def test_what_a_server_leaves_behind_writes_on(tmp_path: Path, mark: str, caplog: pytest.LogCaptureFixture) -> None:
    """It is not read any more once its server has ended, nothing fails by it, and the server is connected again."""
    async with opened(tmp_path, program("rich", ACPD_TEST_MARK=mark)) as session:
        assert "it ended during this call: exit code 7" in (await session.call("rich_leave")).text
        assert "echo " == (await session.call("rich_echo")).text
    assert [] == caplog.records


@pytest.mark.e2e
async def test_a_call_that_hangs(tmp_path: Path, mark: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call has a deadline: the model is told, the server too."""
    monkeypatch.setattr("acpd.native.mcp.tools.IDLE", 0.5)
    record = tmp_path / "record"
    async with opened(tmp_path, program("rich", ACPD_TEST_MARK=mark, RECORD=str(record))) as session:
        hung = await session.call("rich_hang")
        assert "MCP server rich: hang took too long and was cancelled." == hung.text
        await until(lambda: "cancelled" in lines(record))


async def test_without_the_package(tmp_path: Path, mark: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the package for MCP is not installed, each server's notice says what to install; nothing of them is left."""
    monkeypatch.delitem(sys.modules, "acpd.native.mcp.link", raising=False)
    monkeypatch.setitem(sys.modules, "mcp.client.session", None)  # pyright: ignore[reportArgumentType]
    servers = (program("rich", ACPD_TEST_MARK=mark), remote("web", "http", "http://127.0.0.1:9/mcp"))
    async with opened(tmp_path, *servers) as session:
        titles = {f"MCP server {name} is not available" for name in ("rich", "web")}
        assert titles == {notice.title for notice in session.seat.notices}
        for notice in session.seat.notices:
            assert "pip install '.[models]'" in notice.description
        assert 2 == len(session.seat.notices)


async def test_two_servers_of_one_name(tmp_path: Path, mark: str) -> None:
    """Both are used, and people and models can tell them apart."""
    two = (program("rich", label="a b", ACPD_TEST_MARK=mark), program("rich", label="a b", ACPD_TEST_MARK=mark))
    async with opened(tmp_path, *two) as session:
        echoes = [name for name in session.names if "echo" in name]
        assert "a_b_echo" == echoes[0]
        assert 2 == len(set(echoes))
        await session.call(echoes[1])
        assert ["mcp:a b (2)/echo"] == session.seat.asked


@pytest.mark.e2e
async def test_closing_while_servers_start(tmp_path: Path, mark: str) -> None:
    """A session that is closed at any moment of its opening leaves no process and no descriptor."""
    before = len(os.listdir("/proc/self/fd"))
    for step in range(6):
        async with opened(tmp_path, program("rich", ACPD_TEST_MARK=mark), timeout=step * 0.02):
            pass
        proc.assert_none_left(mark, within=0.5)
    assert len(os.listdir("/proc/self/fd")) <= before + 1


async def test_closing_before_a_process_is_there(tmp_path: Path, mark: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long its start takes, the close waits for a process that nobody wants any more, and ends it."""
    closing, started = threading.Event(), threading.Event()

    def late(*given: Any) -> Started:
        started.set()
        assert closing.wait(10)
        return spawn(*given)

    monkeypatch.setattr(server_module, "spawn", late)
    async with opened(tmp_path, program("rich", ACPD_TEST_MARK=mark), timeout=0):
        await asyncio.to_thread(started.wait)
        asyncio.get_running_loop().call_later(0.3, closing.set)  # in the middle of the close
    assert closing.is_set()
    proc.assert_none_left(mark, within=0)


async def test_closing_in_the_middle_of_a_call(tmp_path: Path, mark: str) -> None:
    """Close ends calls that hang, and everything else, in less than two seconds."""
    async with opened(tmp_path, program("rich", ACPD_TEST_MARK=mark)) as session:
        call = asyncio.ensure_future(session.call("rich_hang"))  # noqa: TID251
        await asyncio.sleep(0.1)
        began = time.monotonic()
    assert time.monotonic() - began < 2
    with pytest.raises(asyncio.CancelledError):
        await call


@pytest.mark.e2e
async def test_a_server_that_dies_again_and_again(tmp_path: Path, mark: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told once, and after some attempts only a call starts it."""
    monkeypatch.setattr(server_module, "TRIES", 2)
    async with opened(tmp_path, program("rich", ACPD_TEST_MARK=mark)) as session:
        for _ in range(5):
            assert (await session.call("rich_die")).failed
        assert 1 == len(session.seat.notices)
        assert await ends(session)


async def ends(session: Opened) -> bool:
    """Whether the next call still works."""
    return "echo " == (await session.call("rich_echo")).text


async def test_a_server_of_the_newer_protocol(tmp_path: Path, mark: str) -> None:
    """One that refuses the old handshake is asked in the new way, and tells of changes in its own."""
    async with opened(tmp_path, program("rich", ACPD_TEST_MARK=mark, ERA="modern")) as session:
        assert [] == session.seat.notices
        assert "echo x" == (await session.call("rich_echo", text="x")).text
        await session.call("rich_grow", name="new")
        await until(lambda: "rich_new" in session.names)


@pytest.mark.e2e
@pytest.mark.parametrize("text", ["x" * 65536, "noise\n", "\n"])
async def test_a_server_that_writes_without_end(tmp_path: Path, mark: str, text: str) -> None:
    """Noise without end is given up: the call fails, memory is bounded, and the server is started again."""
    async with opened(tmp_path, program("rich", ACPD_TEST_MARK=mark)) as session:
        output = await session.call("rich_noise", text=text)
        assert output.failed
        assert "it writes" in output.text
        assert "echo x" == (await session.call("rich_echo", text="x")).text


async def test_values_that_cannot_be_sent(tmp_path: Path) -> None:
    """A value with a NUL, a newline or a letter that headers cannot have fails that server only, and is not shown."""
    servers: list[McpServer] = [
        program("rich", label="nul", KEY=f"{SECRET}\0x"),
        program("rich", label="equals", **{"A=B": SECRET}),
    ]
    for label, value in (("newline", f"{SECRET}\n{SECRET}-2"), ("letter", f"{SECRET}-\u20ac")):
        servers += [remote(f"{label} {kind}", kind, "http://127.0.0.1:9/mcp", Key=value) for kind in KINDS]
    async with opened(tmp_path, *servers) as session:
        titles = {notice.title for notice in session.seat.notices}
        assert {f"MCP server {server.name} is not available" for server in servers} == titles
        assert SECRET not in repr(session.seat.notices)
