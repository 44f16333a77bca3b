"""The runtime folder of agent links."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from acpd.errors import StoreError
from acpd_backends.links import OLD_STDERR, LinkFolder


def test_stderr_is_appended_to_and_its_tail_read(tmp_path: Path) -> None:
    """An agent's stderr is one file that is only appended to; its tail is there for error messages."""
    folder = LinkFolder(tmp_path / "run" / "links")
    assert folder.tail("l1", 10) == b""
    fd, path = folder.open_stderr("l1")
    os.write(fd, b"one\ntwo\n")
    again, same = folder.open_stderr("l1")
    os.write(again, b"three\n")
    os.write(fd, b"four\n")
    os.close(fd)
    os.close(again)
    assert (path, b"one\ntwo\nthree\nfour\n") == (same, Path(path).read_bytes())
    assert b"four\n" == folder.tail("l1", 5)


def test_stderr_is_shortened_while_it_is_written(tmp_path: Path) -> None:
    """A big stderr keeps its last whole lines in the same file, and the writer goes on behind them."""
    folder = LinkFolder(tmp_path)
    fd, path = folder.open_stderr("l1")
    lines = [b"line %04d\n" % number for number in range(1000)]
    os.write(fd, b"".join(lines))
    folder.trim_stderr("l1", keep=105, when=10_001)
    assert 10_000 == os.fstat(fd).st_size
    folder.trim_stderr("l1", keep=105, when=10_000)
    os.write(fd, b"after\n")
    os.close(fd)
    assert b"".join(lines[-10:]) + b"after\n" == Path(path).read_bytes()
    folder.trim_stderr("absent")


def test_records_come_back_until_they_are_forgotten(tmp_path: Path) -> None:
    """What was recorded last of each link is listed until it is forgotten; other files are left out and alone."""
    folder = LinkFolder(tmp_path / "links")
    assert folder.recorded() == []
    folder.record("B/1", {"pid": 1})
    folder.record("B/1", {"pid": 2, "boot": "x"})
    folder.record("a", {"pid": 3})
    (tmp_path / "links" / "torn.json").write_bytes(b'{"pid":')
    (tmp_path / "links" / "Foreign.json").write_bytes(b"{}")
    assert [("B/1", {"pid": 2, "boot": "x"}), ("a", {"pid": 3})] == sorted(folder.recorded())
    folder.forget("B/1")
    folder.forget("B/1")
    assert [("a", {"pid": 3})] == folder.recorded()
    assert (tmp_path / "links" / "torn.json").exists()


def test_old_stderr_goes(tmp_path: Path) -> None:
    """Of links that are forgotten only the newest files of stderr stay; those of living ones all do."""
    folder = LinkFolder(tmp_path)
    folder.record("living", {"pid": 1})
    for number, name in enumerate(["living", *(f"l{number}" for number in range(OLD_STDERR + 5))]):
        fd, path = folder.open_stderr(name)
        os.close(fd)
        os.utime(path, (number, number))
    folder.open_stderr("last")
    left = {path.name for path in tmp_path.glob("*.stderr")}
    assert {"living.stderr", "last.stderr"} | {f"l{number}.stderr" for number in range(5, OLD_STDERR + 5)} == left


def test_failures_are_store_errors(tmp_path: Path) -> None:
    """A runtime folder that cannot be used is told with its path."""
    (tmp_path / "file").touch()
    folder = LinkFolder(tmp_path / "file" / "links")
    with pytest.raises(StoreError, match="links"):
        folder.open_stderr("l1")
    with pytest.raises(StoreError, match="too long"):
        LinkFolder(tmp_path).record("x" * 300, {})
