"""Lines of stdin, whatever stdin is."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from acpd.cli import typed
from acpd.cli.typed import Typed
from acpd.errors import AcpdError


class Reader:
    """Takes lines while `wants` is true."""

    def __init__(self, fd: int) -> None:
        self.lines: list[str] = []
        self.ended: list[AcpdError | None] = []
        os.set_blocking(fd, False)  # so that the watch over blocking calls lets it be read on the loop
        self.wants = True
        self.over = asyncio.Event()
        self.typed = Typed(fd, lambda: self.wants, self.lines.append, self.end)

    def end(self, error: AcpdError | None) -> None:
        self.ended.append(error)
        self.over.set()

    async def all(self) -> list[str]:
        self.typed.more()
        async with asyncio.timeout(10):
            await self.over.wait()
        assert 1 == len(self.ended)
        return self.lines


TEXT = b"one\ntwo \\\nand\\\n\nthree\n\xff\nlast\\"
LINES = ["one", "two \nand\n", "three", "\ufffd", "last"]


@pytest.mark.parametrize("size", [1, 5, 1000])
async def test_a_pipe(size: int) -> None:
    """However it is cut: lines, those joined that end with a backslash, and a last one without a newline."""
    ours, theirs = os.pipe()
    reader = Reader(ours)
    for at in range(0, len(TEXT), size):
        os.write(theirs, TEXT[at : at + size])
        reader.typed.more()
        await asyncio.sleep(0)
    os.close(theirs)
    assert LINES == await reader.all()
    os.close(ours)


async def test_a_file(tmp_path: Path) -> None:
    """It is always ready, and read all the same."""
    (tmp_path / "in").write_bytes(TEXT)
    for path, lines in ((tmp_path / "in", LINES), (Path(os.devnull), [])):
        opened = os.open(path, os.O_RDONLY)
        assert lines == await Reader(opened).all()
        os.close(opened)


async def test_one_line_at_a_time(tmp_path: Path) -> None:
    """Nothing is taken, and the end is not told, while nothing is wanted."""
    (tmp_path / "in").write_bytes(b"a\nb\n")
    opened = os.open(tmp_path / "in", os.O_RDONLY)
    reader = Reader(opened)

    def take(line: str) -> None:
        reader.lines.append(line)
        reader.wants = False

    reader.typed = Typed(opened, lambda: reader.wants, take, reader.end)
    reader.typed.more()
    for expected in (["a"], ["a", "b"]):
        async with asyncio.timeout(10):
            while reader.lines != expected:
                await asyncio.sleep(0)
        assert [] == reader.ended
        reader.wants = True
        reader.typed.more()
    assert ["a", "b"] == await reader.all()
    os.close(opened)


async def test_a_line_has_a_limit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A longer one ends the input with an error; nothing of it is taken."""
    monkeypatch.setattr(typed, "LIMIT", 1 << 20)
    (tmp_path / "in").write_bytes(b"a\n" + b"x" * (2 << 20))
    opened = os.open(tmp_path / "in", os.O_RDONLY)
    reader = Reader(opened)
    assert ["a"] == await reader.all()
    assert "a line of stdin is over 1 MiB" == str(reader.ended[0])
    os.close(opened)
