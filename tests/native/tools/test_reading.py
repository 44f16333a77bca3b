"""read and list."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.native.tools.bench import Bench, bench

PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 20


async def test_lines_are_numbered(work: Bench) -> None:
    """A text file is given with the number of each line, and shown to the user as a read of that place."""
    (work.root / "a.txt").write_text("one\ntwo\n")
    output = await work.call("read", path="a.txt")
    assert (output.text, output.failed) == ("1\tone\n2\ttwo", False)
    shown = work.shown()
    assert (shown["title"], shown["kind"], shown["status"]) == ("Read a.txt", "read", "completed")
    assert shown["locations"] == [{"path": str(work.root / "a.txt"), "line": 1}]
    assert shown["rawInput"] == {"path": "a.txt"}


async def test_a_part_without_numbers(work: Bench) -> None:
    """A part is given by line and limit, on demand without numbers, and the output says how to go on."""
    (work.root / "a.txt").write_text("".join(f"{number}\n" for number in range(1, 11)))
    output = await work.call("read", path="a.txt", line=3, limit=2, numbered=False)
    assert output.text == "3\n4\n[The file goes on: read it with line=5.]"


async def test_a_long_file_is_given_in_parts(work: Bench) -> None:
    """Read after read, as each output says, a file of any length is given whole and each line once."""
    (work.root / "a.txt").write_text("".join(f"{number:0100d}\n" for number in range(5000)))
    line, found = 1, list[str]()
    while line:
        output = await work.call("read", path="a.txt", line=line)
        assert len(output.text.encode()) <= 64 * 1024
        found += [each.partition("\t")[2] for each in output.text.splitlines() if "\t" in each]
        line = int(output.text.rpartition("line=")[2].rstrip(".]")) if output.text.endswith(".]") else 0
    assert [f"{number:0100d}" for number in range(5000)] == found


async def test_a_huge_file_costs_no_more_than_its_part(work: Bench) -> None:
    """Of a file of 4 GiB, most of it a hole, the first lines are given like those of any other."""
    with (work.root / "huge").open("wb") as file:
        file.write(b"x\n" * 10_000)
        file.truncate(4 << 30)
    output = await work.call("read", path="huge", limit=2)
    assert output.text == "1\tx\n2\tx\n[The file goes on: read it with line=3.]"


@pytest.mark.parametrize(
    ("start", "mime"), [(PNG, "image/png"), (b"RIFF\0\0\0\0WEBPVP8 ", "image/webp"), (b"GIF89a", "image/gif")]
)
async def test_images_come_as_images(work: Bench, start: bytes, mime: str) -> None:
    """An image, known by its first bytes, is given as an image and shown to the user."""
    (work.root / "picture").write_bytes(start)
    output = await work.call("read", path="picture")
    assert ((start, mime),) == output.images
    assert work.shown()["content"][-1]["content"]["mimeType"] == mime


async def test_binary_files_are_not_text(work: Bench) -> None:
    """A binary file is an error that says what it is and what to do."""
    (work.root / "b").write_bytes(b"\x7fELF\0\0\0")
    output = await work.call("read", path="b")
    assert output.failed
    assert "binary file of 7 bytes" in output.text
    assert work.shown()["status"] == "failed"


@pytest.mark.parametrize("name", ["read", "edit", "write", "grep", "list"])
async def test_a_pipe_is_never_opened(work: Bench, name: str) -> None:
    """At a FIFO no tool waits: it is an error that says what it is, and a device is none the better."""
    os.mkfifo(work.root / "pipe")
    more = {"edit": {"old": "a", "new": "b"}, "write": {"content": ""}, "grep": {"pattern": "a"}}.get(name, {})
    work.client.decide = lambda _: "yes"
    for path in ("pipe", "/dev/zero"):
        output = await work.call(name, {"path": path, **more})
        assert output.failed
        assert "no plain file" in output.text


async def test_outside_is_asked_for_by_folder(work: Bench, tmp_path: Path) -> None:
    """Reading outside of the session's folders is asked for; "always" is about that folder, and lasts."""
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "a").write_text("secret\n")
    (tmp_path / "b").write_text("secret\n")
    work.client.decide = lambda _: "no"
    assert (await work.call("read", path="../other/a")).failed
    assert "secret" not in str(work.client.updates)
    work.client.decide = lambda _: "always"
    for _ in range(2):
        assert (await work.call("read", path=str(tmp_path / "other" / "a"))).text == "1\tsecret"
    assert len(work.client.asked) == 2
    assert (await work.call("read", path="../b")).text == "1\tsecret"
    assert len(work.client.asked) == 3


async def test_a_link_counts_where_it_leads(work: Bench, tmp_path: Path) -> None:
    """A link out of the folder is outside, whatever its name; one within is inside."""
    (tmp_path / "secret").write_text("secret\n")
    (work.root / "out").symlink_to(tmp_path / "secret")
    (work.root / "folder").symlink_to(tmp_path)
    (work.root / "a").write_text("a\n")
    (work.root / "in").symlink_to("a")
    work.client.decide = lambda _: "no"
    assert (await work.call("read", path="in")).text == "1\ta"
    for path in ("out", "folder/secret", "folder/project/../secret"):
        output = await work.call("read", path=path)
        assert output.failed
        assert "secret\n" not in output.text
    assert len(work.client.asked) == 3


async def test_reading_is_the_clients_where_it_can(tmp_path: Path) -> None:
    """A client that has files is asked for the text, and so is known what is not saved; a pipe is not its business."""
    async with bench(tmp_path / "p", {"fs": {"readTextFile": True}}) as work:
        (work.root / "a.txt").write_text("saved\n")
        work.client.handlers["fs/read_text_file"] = lambda said: {"content": f"unsaved {said['line']}\n"}
        assert (await work.call("read", path="a.txt")).text == "1\tunsaved 1"


async def test_a_folder_is_listed(work: Bench) -> None:
    """Each entry is one line whatever its name: folders, links and sizes are told apart."""
    (work.root / "sub").mkdir()
    (work.root / "two\nlines").write_text("abc")
    (work.root / "link").symlink_to("/etc")
    (work.root / os.fsdecode(b"\xff")).write_text("")
    output = await work.call("list")
    assert output.text.splitlines() == ["link@", "sub/", '"two\\nlines" (3)', "\\xff (0)"]
    assert (await work.call("read", path="two\nlines")).text == "1\tabc"


async def test_the_second_folder_of_a_session_is_inside(tmp_path: Path) -> None:
    """Additional directories are as free as the working directory."""
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "a").write_text("a\n")
    async with bench(tmp_path / "p", {}, tmp_path / "more") as work:
        assert (await work.call("read", path=str(tmp_path / "more" / "a"))).text == "1\ta"
        assert work.client.asked == []


async def test_what_is_not_there(work: Bench) -> None:
    """A missing file, a folder and an impossible path are errors that name it."""
    (work.root / "sub").mkdir()
    for path, why in (("none", "no such file"), ("sub", "a folder"), ("a\0b", "not a path"), ("x" * 300, "too long")):
        output = await work.call("read", path=path)
        assert output.failed
        assert why in output.text.lower()
