"""Every misbehaving server of the corpus costs only itself, and is ended with its session."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path

import pytest

from acpd.api.shapes import StdioServer
from tests.native.mcp.seat import CORPUS, corpus, opened
from tests.support import proc

pytestmark = pytest.mark.e2e
SECRET = "canary-4711-env"


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch) -> str:
    """What every process of a test's servers has in its environment."""
    return proc.new_mark()


@pytest.fixture(autouse=True)
def nothing_is_left(mark: str) -> object:
    """No process of a server, no zombie and no descriptor after the session was closed."""
    before, others = set(os.listdir("/proc/self/fd")), set(proc.children())  # of other tests, such as the scripted model
    yield
    proc.assert_none_left(mark, within=0.5)
    after = {fd for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")}
    assert len(after - before) <= 1, sorted(os.readlink(f"/proc/self/fd/{fd}") for fd in after - before)
    assert set(proc.children()) <= others


async def test_a_server_that_dies_in_a_call(tmp_path: Path, mark: str) -> None:
    """The call fails with the server's name, it is told once, and the next call starts the server again."""
    async with opened(tmp_path, corpus("crash_mid_call", ACPD_TEST_MARK=mark)) as session:
        for _ in range(2):
            output = await session.call("crash_mid_call_echo", text="x")
            assert output.failed
            assert "MCP server crash_mid_call: it ended during this call: exit code 0" in output.text
        assert ["MCP server crash_mid_call has ended"] == [notice.title for notice in session.seat.notices]


async def test_tools_of_one_name(tmp_path: Path, mark: str) -> None:
    """Names are distinct and legal towards the model, the right tool is called, and there is a warning."""
    async with opened(tmp_path, corpus("duplicate_tools", ACPD_TEST_MARK=mark)) as session:
        echo, dash, dot, space = session.names
        assert ("duplicate_tools_echo", "duplicate_tools_do-it", "duplicate_tools_do_it") == (echo, dash, dot)
        assert space.startswith("duplicate_tools_do_it_")
        called = [(await session.call(name)).text for name in session.names]
        assert ["called echo", "called do-it", "called do.it", "called do it"] == called
        assert [("warning", "Once is enough: echo.")] == [(each.severity, each.description) for each in session.seat.notices]


async def test_a_server_that_ends_at_once(tmp_path: Path, mark: str) -> None:
    """It is noticed at once; the reason is shown without a value of its environment."""
    server = StdioServer(
        "gone", sys.executable, (str(CORPUS / "exits_at_once.py"),), {"API_KEY": SECRET, "ACPD_TEST_MARK": mark}
    )
    started = time.monotonic()
    async with opened(tmp_path, server) as session:
        assert time.monotonic() - started < 5
        (notice,) = session.seat.notices
        assert "MCP server gone is not available" == notice.title
        assert "Exit code 3; its last words: cannot start, key=***. The session goes on without it." == notice.description
        assert [] == session.names


async def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    """A command that does not exist is told with its name."""
    async with opened(tmp_path, StdioServer("none", "/no/such/binary", (), {})) as session:
        (notice,) = session.seat.notices
        assert "/no/such/binary was not found, or may not be executed. The session goes on without it." == notice.description


async def test_noise_on_stdout(tmp_path: Path, mark: str) -> None:
    """Banners, escape sequences and JSON that is no message are skipped."""
    async with opened(tmp_path, corpus("garbage_stdout", ACPD_TEST_MARK=mark)) as session:
        assert "ok" == (await session.call("garbage_stdout_echo", text="x")).text
        assert [] == session.seat.notices


@pytest.mark.parametrize("size", [1 << 20, 40 << 20])
async def test_a_huge_result(tmp_path: Path, mark: str, size: int) -> None:
    """A result is read whole and cut for the model; one above the limit fails for its call only. The next call works."""
    async with opened(tmp_path, corpus("huge_result", SIZE=str(size), ACPD_TEST_MARK=mark)) as session:
        for _ in range(2):
            output = await session.call("huge_result_echo", text="x")
            assert len(output.text) < 65 * 1024
            assert (size > 32 << 20) == output.failed
        assert [] == session.seat.notices


async def test_a_server_that_ignores_eof(tmp_path: Path, mark: str) -> None:
    """It is killed when the session closes, within two seconds."""
    async with opened(tmp_path, corpus("ignores_eof", ACPD_TEST_MARK=mark)) as session:
        assert "x" == (await session.call("ignores_eof_echo", text="x")).text
        closing = time.monotonic()
    assert time.monotonic() - closing < 2


async def test_a_server_that_never_answers(tmp_path: Path, mark: str) -> None:
    """After the limit the session goes on without it, and others are not held up by it."""
    dead, good = corpus("never_answers", ACPD_TEST_MARK=mark), corpus("garbage_stdout", ACPD_TEST_MARK=mark)
    started = time.monotonic()
    async with opened(tmp_path, dead, good, timeout=3) as session:
        assert 2.9 < time.monotonic() - started < 5
        (notice,) = session.seat.notices
        assert "MCP server never_answers has not answered within 3 seconds" == notice.title
        assert ["garbage_stdout_echo"] == session.names


async def test_a_late_server_is_used_when_it_answers(tmp_path: Path, mark: str) -> None:
    """One that is slower than the session's patience is used from the moment that it answers, and the user is told."""
    async with opened(tmp_path, corpus("slow_start", SLOW_S="2.5", ACPD_TEST_MARK=mark), timeout=1.5) as session:
        assert [] == session.names
        async with asyncio.timeout(10):
            while not session.names:
                await asyncio.sleep(0.05)
        assert "x" == (await session.call("slow_start_echo", text="x")).text
        assert ["MCP server slow_start is ready now"] == [each.title for each in session.seat.notices[1:]]


async def test_noise_on_stderr(tmp_path: Path, mark: str) -> None:
    """stderr is drained all the time: a flood blocks nothing."""
    async with opened(tmp_path, corpus("stderr_flood", ACPD_TEST_MARK=mark)) as session:
        for _ in range(3):
            assert "ok" == (await session.call("stderr_flood_echo", text="x")).text
