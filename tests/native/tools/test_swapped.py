"""What was asked for is what is read: places that change while a question is open, and names that are no text."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from acpd.native.tools import walk
from tests.native.tools.bench import Bench, Json
from tests.support.walk import contents

CALLS: list[tuple[str, Json]] = [
    ("read", {"path": "{}/inner/a.txt"}),
    ("read", {"path": "{}/inner/a.png"}),
    ("list", {"path": "{}/inner"}),
    ("glob", {"path": "{}/inner", "pattern": "*"}),
    ("grep", {"path": "{}/inner", "pattern": "."}),
    ("grep", {"path": "{}/inner/a.txt", "pattern": "."}),
    ("write", {"path": "{}/inner/new.txt", "content": "x"}),
    ("edit", {"path": "{}/inner/a.txt", "old": "s", "new": "x"}),
]


def filled(folder: Path, word: str) -> None:
    folder.mkdir(parents=True)
    (folder / "a.txt").write_text(word)
    (folder / f"{word}.txt").write_text(word)
    (folder / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n" + word.encode())


@pytest.mark.parametrize("swapped", ["outside", "outside/inner"])
@pytest.mark.parametrize(("tool", "arguments"), CALLS)
async def test_a_folder_becomes_a_link(work: Bench, tmp_path: Path, tool: str, arguments: Json, swapped: str) -> None:
    """A link that is put into the path while the user is asked is not followed, and the model is told."""
    filled(tmp_path / "outside" / "inner", "harmless")
    filled(tmp_path / "private" / "inner", "secret")
    before = contents(tmp_path / "private")
    given: dict[str, Any] = {name: value.format(tmp_path / "outside") for name, value in arguments.items()}

    def decide(_: Json) -> str:
        (tmp_path / swapped).rename(tmp_path / "gone")
        (tmp_path / swapped).symlink_to(tmp_path / "private" / swapped.removeprefix("outside").strip("/"))
        return "yes"

    work.client.decide = decide
    output = await work.call(tool, given)
    assert 1 == len(work.client.asked)
    assert "secret" not in output.text
    assert () == output.images
    assert output.failed or "Nothing was found" in output.text
    assert before == contents(tmp_path / "private")


def test_a_folder_becomes_a_link_during_the_walk(tmp_path: Path) -> None:
    """A search that has begun follows no link either."""
    filled(tmp_path / "tree" / "b", "harmless")
    filled(tmp_path / "private", "secret")
    found = walk.files(str(tmp_path / "tree"), walk.Budget(), ignored=True)
    first = next(found)
    (tmp_path / "tree" / "b").rename(tmp_path / "gone")
    (tmp_path / "tree" / "b").symlink_to(tmp_path / "private")
    assert "b/a.png" == first.below
    assert {"b/a.txt", "b/harmless.txt"} == {each.below for each in found}


@pytest.mark.parametrize(
    ("tool", "more"),
    [
        ("read", {}),
        ("list", {}),
        ("glob", {"pattern": "*"}),
        ("grep", {"pattern": "x"}),
        ("write", {"content": "x"}),
        ("edit", {"old": "x", "new": "y"}),
        ("run", {"command": "true"}),
    ],
)
@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("path", ["lnk", "lnk/a.txt", "lnk/../lnk2", "lnk/../lnk2/a.txt", "lnk/new.txt"])
async def test_names_that_are_no_text(work: Bench, tmp_path: Path, tool: str, more: Json, path: str, *, inside: bool) -> None:
    """A folder whose name is not UTF-8 is used by links, or refused in clear words; nothing breaks."""
    base = work.root if inside else tmp_path / "outside"
    odd = os.fsencode(base) + b"/bad\xff"
    for folder in (odd, odd + b"/deep\xfe"):
        os.makedirs(folder)
        with open(folder + b"/a.txt", "w") as file:
            file.write("x")
    os.symlink(odd + b"/deep\xfe", base / "lnk")
    os.symlink(b"deep\xfe", odd + b"/lnk2")
    given = {"cwd": f"{base}/{path}"} if tool == "run" else {"path": f"{base}/{path}"}
    output = await work.call(tool, {**given, **more})
    assert "internal error" not in output.text
    if output.failed:
        assert any(word in output.text for word in ("UTF-8", "folder", "not there", "outside", "read it")), output.text
