"""Files that acpd serves itself: what may be read and written, and what may not."""

from __future__ import annotations

import json
import os
import socket
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from acpd.agents import files
from acpd.errors import INTERNAL_ERROR, INVALID_PARAMS, RESOURCE_NOT_FOUND, RequestError
from tests.core.world import dumps


class Place:
    """A root with something outside of it."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "root"
        self.more = folder / "more"
        self.outside = folder / "outside"
        for each in (self.root, self.more, self.outside):
            each.mkdir()
        (self.outside / "secret").write_text("secret")
        self.roots: tuple[str, ...] = (str(self.root), str(self.more))

    def read(self, path: object, **more: object) -> str:
        return str(json.loads(files.read(dumps({"path": str(path), **more}), self.roots))["content"])

    def write(self, path: object, content: str) -> object:
        return json.loads(files.write(dumps({"path": str(path), "content": content}), self.roots))

    def names(self) -> list[str]:
        return sorted(os.listdir(self.root))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def refused(work: Callable[[], object]) -> tuple[int, str]:
    with pytest.raises(RequestError) as caught:
        work()
    return caught.value.code, str(caught.value)


def test_what_is_written_is_read(place: Place) -> None:
    """The text comes back as it was, line ends and all; so it is in the file."""
    text = "a\r\nb\n\ufeff\0 \U0001f600 no end"
    assert {} == place.write(place.root / "f", text)
    assert text == place.read(place.root / "f")
    assert text.encode() == (place.root / "f").read_bytes()
    assert ["f"] == place.names()


@pytest.mark.parametrize(
    ("line", "limit", "expected"),
    [
        (None, None, "one\ntwo\nthree"),
        (1, None, "one\ntwo\nthree"),
        (0, 1, "one\n"),
        (2, None, "two\nthree"),
        (2, 1, "two\n"),
        (3, 9, "three"),
        (4, None, ""),
        (None, 2, "one\ntwo\n"),
        (1, 0, ""),
    ],
)
def test_a_part_of_a_file(place: Place, line: int | None, limit: int | None, expected: str) -> None:
    """`line` counts from 1 and `limit` is a number of lines; behind the end there is nothing."""
    (place.root / "f").write_text("one\ntwo\nthree")
    assert expected == place.read(place.root / "f", line=line, limit=limit)


def test_long_lines_are_one_line(place: Place) -> None:
    """A line that is longer than what is read at once counts once."""
    (place.root / "f").write_text("x" * 3_000_000 + "\nlast\n")
    assert "last\n" == place.read(place.root / "f", line=2)


def test_a_file_that_is_not_there(place: Place) -> None:
    """It is an error of its own, which names the path."""
    path = place.root / "nothing"
    assert (RESOURCE_NOT_FOUND, f"{path}: no such file or folder") == refused(lambda: place.read(path))


@pytest.mark.parametrize("path", ["relative", "", "/a\0b"])
def test_paths_are_absolute(place: Place, path: str) -> None:
    """A path that is none is refused before anything is looked at."""
    assert INVALID_PARAMS == refused(lambda: place.read(path))[0] == refused(lambda: place.write(path, ""))[0]


def test_every_root_counts(place: Place) -> None:
    """Additional folders are inside, also by a way through `..`; a folder whose name only begins alike is not."""
    place.write(place.more / "f", "x")
    assert "x" == place.read(f"{place.root}/../more/f")
    beside = place.root.with_name("root2")
    beside.mkdir()
    assert INVALID_PARAMS == refused(lambda: place.write(beside / "f", "x"))[0]


def test_outside_is_outside(place: Place) -> None:
    """Neither `..`, nor a link to a file, to a folder, or to nothing leads out, to read or to write."""
    (place.root / "file").symlink_to(place.outside / "secret")
    (place.root / "folder").symlink_to(place.outside)
    (place.root / "dangling").symlink_to(place.outside / "new")
    for way in ("../outside/secret", "file", "folder/secret", "folder/../outside/secret", "dangling", "folder/a/b"):
        for work in (place.read, lambda path: place.write(path, "x")):
            code, words = refused(lambda way=way, work=work: work(f"{place.root}/{way}"))  # type: ignore[misc]
            assert (INVALID_PARAMS, True) == (code, "outside the folders of the session" in words)
    assert [("secret", "secret")] == [(each.name, each.read_text()) for each in place.outside.iterdir()]


def test_a_root_may_be_a_link(place: Place, tmp_path: Path) -> None:
    """A session whose folder is a link works in what it leads to."""
    (tmp_path / "link").symlink_to(place.root)
    place.roots = (str(tmp_path / "link"),)
    place.write(tmp_path / "link" / "f", "x")
    assert "x" == place.read(place.root / "f")


def test_links_inside_are_followed(place: Place) -> None:
    """The file that a link leads to is written, the link stays one; one that leads to nothing makes its file."""
    (place.root / "real").write_text("old")
    (place.root / "link").symlink_to("real")
    (place.root / "hopeful").symlink_to("made")
    place.write(place.root / "link", "new")
    place.write(place.root / "hopeful", "hope")
    assert ("new", "hope") == ((place.root / "real").read_text(), (place.root / "made").read_text())
    assert (place.root / "link").is_symlink()
    assert (place.root / "hopeful").is_symlink()


def test_links_in_a_ring(place: Place) -> None:
    """They lead to no file."""
    (place.root / "a").symlink_to("b")
    (place.root / "b").symlink_to("a")
    for work in (place.read, lambda path: place.write(path, "x")):
        assert INVALID_PARAMS == refused(lambda work=work: work(place.root / "a"))[0]  # type: ignore[misc]


@pytest.mark.parametrize("replaced", ["folder", "folder/f"])
def test_a_link_that_is_put_there_meanwhile(place: Place, monkeypatch: pytest.MonkeyPatch, replaced: str) -> None:
    """A folder or the file that becomes a link to the outside after the look at its path: nothing is read or written."""
    (place.root / "folder").mkdir()
    (place.root / "folder" / "f").write_text("inside")
    (place.outside / "f").write_text("secret")
    resolve = files.resolved

    def then_swap(path: str, roots: tuple[str, ...]) -> tuple[str, str]:
        found = resolve(path, roots)
        target = place.outside / "f" if replaced.endswith("f") else place.outside
        (place.root / replaced).rename(place.root / "moved")
        (place.root / replaced).symlink_to(target)
        return found

    def swap_back() -> None:
        (place.root / replaced).unlink()
        (place.root / "moved").rename(place.root / replaced)

    monkeypatch.setattr(files, "resolved", then_swap)
    for work in (place.read, lambda path: place.write(path, "x")):
        with pytest.raises(RequestError):
            work(place.root / "folder" / "f")
        swap_back()
    assert ("secret", "inside") == ((place.outside / "f").read_text(), (place.root / "folder" / "f").read_text())


def test_racing_links_never_lead_out(place: Place) -> None:
    """While somebody swaps a folder and a link to the outside as fast as can be, no read finds the secret."""
    (place.root / "real").mkdir()
    (place.root / "real" / "secret").write_text("inside")
    (place.root / "link").symlink_to(place.outside)
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            for name in ("real", "link"):
                os.rename(place.root / name, place.root / "way")
                os.rename(place.root / "way", place.root / name)

    swapping = threading.Thread(target=swap)
    swapping.start()
    found: set[str] = set()
    try:
        for _ in range(1_500):
            try:
                found.add(place.read(place.root / "way" / "secret"))
            except RequestError:
                continue
    finally:
        stop.set()
        swapping.join()
    assert {"inside"} == found


def test_only_plain_files(place: Place) -> None:
    """A folder, a FIFO, a socket and a device are refused at once; nobody waits for somebody at the other end."""
    os.mkfifo(place.root / "fifo")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(place.root / "socket"))
    place.roots = (str(place.root), "/dev")
    (place.root / "folder").mkdir()
    found = {f"{place.root}/fifo": "no plain file", f"{place.root}/socket": "no plain file", "/dev/null": "no plain file"}
    found |= {str(place.root): "a folder", f"{place.root}/folder": "a folder", f"{place.root}/new/": "a folder"}
    for path, what in found.items():
        for work in (place.read, lambda path: place.write(path, "x")):
            assert (INVALID_PARAMS, f"{path} is {what}") == refused(lambda path=path, work=work: work(path))  # type: ignore[misc]
    assert ["fifo", "folder", "socket"] == place.names()


def test_what_is_no_text(place: Place) -> None:
    """A binary file is an error that says where, not replacement characters that would be written back."""
    (place.root / "f").write_bytes(b"text\xff\xfe")
    assert (INVALID_PARAMS, f"{place.root}/f is not text in UTF-8: the byte at 4 is none") == refused(
        lambda: place.read(place.root / "f")
    )


@pytest.mark.parametrize("text", [b"x" * files.MAX_ANSWER, b"\0" * (files.MAX_ANSWER // 6)])
def test_what_is_too_big(place: Place, text: bytes) -> None:
    """An answer has a size, as it is on the wire; the error says how to get at the rest, and that works."""
    (place.root / "f").write_bytes(b"first\n" + text)
    code, words = refused(lambda: place.read(place.root / "f"))
    assert (INVALID_PARAMS, True) == (code, "ask for a part of it by line and limit" in words)
    assert "first\n" == place.read(place.root / "f", limit=1)


def test_a_file_without_end(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking for a line ends at some point."""
    monkeypatch.setattr(files, "MAX_LOOKED_AT", 1_000_000)
    (place.root / "f").write_bytes(b"short\n" * 200_000)
    assert INVALID_PARAMS == refused(lambda: place.read(place.root / "f", line=190_000, limit=1))[0]
    assert "short\n" == place.read(place.root / "f", line=100_000, limit=1)


def test_folders_are_made(place: Place) -> None:
    """Those above a new file are; a root that is gone is not made anew."""
    place.write(place.root / "a" / "b" / "f", "x")
    assert "x" == place.read(place.root / "a" / "b" / "f")
    place.more.rmdir()
    assert RESOURCE_NOT_FOUND == refused(lambda: place.write(place.more / "f", "x"))[0]
    assert not place.more.exists()


def test_modes(place: Place) -> None:
    """A file keeps its mode; a new one has what the umask leaves."""
    script = place.root / "script"
    script.write_text("old")
    script.chmod(0o4751)
    place.write(script, "new")
    assert ("new", 0o4751) == (script.read_text(), stat.S_IMODE(script.stat().st_mode))
    before = os.umask(0o027)
    try:
        place.write(place.root / "a" / "f", "x")
    finally:
        os.umask(before)
    assert [0o640, 0o750] == [stat.S_IMODE((place.root / name).stat().st_mode) for name in ("a/f", "a")]


def test_a_write_that_fails_changes_nothing(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file has what it had, and nothing lies beside it."""
    (place.root / "f").write_text("old")

    def full(_fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert (INTERNAL_ERROR, f"{place.root}/f: No space left on device") == refused(lambda: place.write(place.root / "f", "new"))
    assert ("old", ["f"]) == ((place.root / "f").read_text(), place.names())


def test_a_file_that_may_not_be_written(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not replaced either, though its folder would allow it."""
    (place.root / "f").write_text("old")
    monkeypatch.setattr(os, "access", lambda *_, **__: False)  # root may write everything
    assert (INTERNAL_ERROR, f"{place.root}/f: the file may not be written") == refused(
        lambda: place.write(place.root / "f", "x")
    )
    assert "old" == place.read(place.root / "f")


def test_nothing_stays_open(place: Place) -> None:
    """Neither what works nor what is refused leaves a descriptor."""
    os.mkfifo(place.root / "fifo")
    (place.root / "binary").write_bytes(b"\xff")
    before = len(os.listdir("/proc/self/fd"))
    for path in ("a/b/c", "fifo", "binary", "../outside/secret", "fifo/x", "nothing"):
        for work in (lambda path: place.write(path, "x"), place.read):
            try:
                work(place.root / path)
            except RequestError:
                continue
    assert before == len(os.listdir("/proc/self/fd"))
