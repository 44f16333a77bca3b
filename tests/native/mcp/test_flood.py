"""A server that says or asks more than anybody could want is ended; one with much to tell is not."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from acpd.native.mcp import streams
from tests.native.mcp.seat import opened, program
from tests.native.mcp.test_servers import until
from tests.support import proc

KINDS = ["words", "progress", "news", "unknown", "pings", "questions", "answers", "big", "noise"]


@pytest.fixture
def mark() -> Iterator[str]:
    """What all processes of a test's servers have in their environment; none is left in the end."""
    value = proc.new_mark()
    yield value
    proc.assert_none_left(value, within=0.5)


@pytest.mark.e2e
@pytest.mark.parametrize("kind", KINDS)
async def test_a_server_that_floods_is_ended(tmp_path: Path, mark: str, kind: str) -> None:
    """Whatever it floods with, it is told once, its process ends, and it is not started again before a call wants it."""
    used = os.times().user
    async with opened(tmp_path, program("flooding", kind, ACPD_TEST_MARK=mark)) as session:
        await until(lambda: session.seat.notices)
        (notice,) = session.seat.notices
        assert "MCP server flooding has ended" == notice.title
        assert notice.description.startswith("It floods (more than 1000 messages")
        await until(lambda: not proc.marked(mark))
        await asyncio.sleep(1.5)  # it would have been connected again
        assert not proc.marked(mark)
        output = await session.call("flooding_echo")
        assert output.failed or "echo" == output.text
        assert 1 == len(session.seat.notices)
    assert os.times().user - used < 10


@pytest.mark.e2e
async def test_a_server_that_does_not_read(tmp_path: Path, mark: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that asks in moderation and reads no answer is ended too: the answers would be kept for it."""
    monkeypatch.setattr(streams, "ASKING", 1)
    async with opened(tmp_path, program("flooding", "unread", ACPD_TEST_MARK=mark)) as session:
        await until(lambda: session.seat.notices)
        assert session.seat.notices[0].description.startswith("It asks, and leaves more than 1000 answers unread")


async def test_much_progress_is_no_flood(tmp_path: Path, mark: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four thousand words at once and two hundred of progress cost nothing but their place in the measure."""
    monkeypatch.setattr(streams, "BURST", 5_000)
    async with opened(tmp_path, program("rich", ACPD_TEST_MARK=mark)) as session:
        assert "flooded" == (await session.call("rich_flood")).text
        assert "counted" == (await session.call("rich_count")).text
        assert [] == session.seat.notices
