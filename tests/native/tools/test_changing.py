"""write and edit."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from tests.native.tools.bench import Bench, Json, bench


async def test_an_edit_is_shown_before_it_is_asked_for(work: Bench) -> None:
    """The call is reported, its diff shown, then the user is asked, then it is done: in this order."""
    file = work.root / "a.py"
    file.write_text("x = 1\ny = 2\n")
    before: list[str] = []

    def decide(_: Json) -> str:
        before.append(file.read_text())
        return "yes"

    work.client.decide = decide
    output = await work.call("edit", path="a.py", old="x = 1", new="x = 3")
    assert (before, file.read_text()) == (["x = 1\ny = 2\n"], "x = 3\ny = 2\n")
    assert ["pending", "tool_call_update", "ask", "in_progress", "completed"] == work.client.seen
    shown = work.shown()
    diff = {"type": "diff", "path": str(file), "oldText": "x = 1\ny = 2\n", "newText": "x = 3\ny = 2\n"}
    assert (shown["kind"], shown["title"], shown["content"]) == ("edit", "Edit a.py", [diff])
    assert work.client.asked[0]["toolCall"]["toolCallId"] == shown["toolCallId"]
    assert "1\tx = 3" in output.text


async def test_a_refused_edit_changes_nothing(work: Bench) -> None:
    """A refusal is the call's failure, and tells the model not to try it another way."""
    (work.root / "a").write_text("a")
    work.client.decide = lambda _: "no"
    output = await work.call("edit", path="a", old="a", new="b")
    assert output.failed
    assert "refused" in output.text
    assert (work.root / "a").read_text() == "a"
    assert work.shown()["status"] == "failed"


async def test_in_the_mode_code_nobody_is_asked(work: Bench) -> None:
    """In the mode `code` files inside the folders are changed without asking, and new ones are made with their folders."""
    work.mode("code")
    output = await work.call("write", path="new/deep/a.txt", content="one\ntwo\n")
    assert "2 lines" in output.text
    assert (work.root / "new/deep/a.txt").read_text() == "one\ntwo\n"
    assert work.shown()["content"][0]["oldText"] is None
    assert work.client.asked == []


@pytest.mark.parametrize("path", [".git/hooks/pre-commit", "sub/.vscode/tasks.json", ".GIT/config", "link/config", ".envrc"])
async def test_what_runs_by_itself_is_always_asked_for(work: Bench, path: str) -> None:
    """Hooks and tasks are ways to run commands: changing them is asked for in the mode `code` too."""
    (work.root / ".git").mkdir()
    (work.root / "link").symlink_to(".git")
    work.mode("code")
    work.client.decide = lambda _: "no"
    assert (await work.call("write", path=path, content="#!/bin/sh\n")).failed
    assert len(work.client.asked) == 1


@pytest.mark.parametrize("path", ["../out", "link", "folder/out", "sub/../../out"])
async def test_writing_outside_needs_a_permission_in_every_mode(work: Bench, tmp_path: Path, path: str) -> None:
    """What is outside after links is not written, and not even looked at, before the user has allowed it; then it is."""
    (tmp_path / "out").write_text("old and secret")
    (work.root / "link").symlink_to(tmp_path / "out")
    (work.root / "folder").symlink_to(tmp_path)
    (work.root / "sub").mkdir()
    work.mode("code")
    work.client.decide = lambda _: "no"
    assert (await work.call("edit", path=path, old="old", new="new")).failed
    assert (tmp_path / "out").read_text() == "old and secret"
    assert "secret" not in json.dumps(work.client.updates)
    work.client.decide = lambda _: "yes"
    assert not (await work.call("edit", path=path, old="old", new="new")).failed
    assert (tmp_path / "out").read_text() == "new and secret"
    assert len(work.client.asked) == 2


@pytest.mark.parametrize(
    ("name", "arguments", "before", "wanted", "after"),
    [
        ("write", {"content": "new\n"}, "", (None, "new\n"), ("", "new\n")),
        ("write", {"content": "new\n"}, None, (None, "new\n"), (None, "new\n")),
        ("edit", {"old": "b", "new": "x"}, "a\nb\n", ("b", "x"), ("a\nb\n", "a\nx\n")),
    ],
)
async def test_what_is_wanted_outside_is_shown_before_it_is_asked_for(
    work: Bench,
    tmp_path: Path,
    name: str,
    arguments: Json,
    before: str | None,
    wanted: tuple[str | None, str],
    after: tuple[str | None, str],
) -> None:
    """Nobody decides blindly: the question shows what the arguments say, the call that was allowed what became of the file."""
    file = tmp_path / "out"
    if before is not None:
        file.write_text(before)
    assert not (await work.call(name, path=str(file), **arguments)).failed
    assert after[1] == file.read_text()
    diff = {"type": "diff", "path": str(file)}
    asked, shown = work.client.asked[0]["toolCall"]["content"], work.shown()["content"]
    assert diff | {"oldText": wanted[0], "newText": wanted[1]} == asked[0]
    assert "is read only once you allow the change" in asked[1]["content"]["text"]
    assert [diff | {"oldText": after[0], "newText": after[1]}] == shown


@pytest.mark.parametrize(
    ("content", "told"), [("", "0 lines, 0 bytes"), ("a", "1 line, 1 byte"), ("a\nb\n", "2 lines, 4 bytes")]
)
async def test_what_was_written_is_counted(work: Bench, content: str, told: str) -> None:
    """One is not told as many."""
    assert (await work.call("write", path="a", content=content)).text.endswith(f": {told}.")


async def test_a_text_that_occurs_often(work: Bench) -> None:
    """A text that is not unique is an error that says where it is; with `all` it is replaced everywhere."""
    (work.root / "a").write_text("x\ny\nx\n")
    output = await work.call("edit", path="a", old="x", new="z")
    assert output.failed
    assert "2 times" in output.text
    assert "lines 1, 3" in output.text
    assert not (await work.call("edit", path="a", old="x", new="z", all=True)).failed
    assert (work.root / "a").read_text() == "z\ny\nz\n"


async def test_a_text_that_does_not_occur(work: Bench) -> None:
    """The error shows what comes nearest, so that the next call can be right."""
    (work.root / "a.py").write_text("def one():\n    return 1\n\n\ndef two(value):\n    return value * 2\n")
    output = await work.call("edit", path="a.py", old="def two(values):\n    return values * 2", new="pass")
    assert "nearest is at line 5:\n5\tdef two(value):\n6\t    return value * 2" in output.text
    output = await work.call("edit", path="a.py", old="def one():\n  return 1", new="pass")
    assert "But for blanks it is at line 1" in output.text
    output = await work.call("edit", path="a.py", old="§§§§§§", new="pass")
    assert "Nothing in it is like it" in output.text


async def test_the_nearest_text_is_found_in_time(work: Bench) -> None:
    """A file that is long and alike everywhere does not hold up the turn."""
    (work.root / "a").write_text(("ab" * 200 + "\n") * 60_000)
    began = time.monotonic()
    assert (await work.call("edit", path="a", old="ba" * 150 + "c" * 50, new="")).failed
    assert time.monotonic() - began < 5


async def test_a_file_that_changed_meanwhile_is_not_written(work: Bench) -> None:
    """What the user was shown is what is done, or nothing: a change while they decide is an error."""
    file = work.root / "a"
    file.write_text("one\n")

    def decide(_: Json) -> str:
        file.write_text("one, changed\n")
        return "yes"

    work.client.decide = decide
    output = await work.call("edit", path="a", old="one", new="two")
    assert output.failed
    assert "changed meanwhile" in output.text
    assert file.read_text() == "one, changed\n"


async def test_a_link_that_is_changed_while_the_user_decides(work: Bench, tmp_path: Path) -> None:
    """What was allowed inside the folders is not done outside of them, wherever a link leads by then."""
    for file in (tmp_path / "out", work.root / "in"):
        file.write_text("same\n")
    link = work.root / "link"
    link.symlink_to("in")

    def decide(_: Json) -> str:
        link.unlink()
        link.symlink_to(tmp_path / "out")
        return "yes"

    work.client.decide = decide
    assert (await work.call("edit", path="link", old="same", new="new")).failed
    assert ("same\n", "same\n") == ((tmp_path / "out").read_text(), (work.root / "in").read_text())


@pytest.mark.parametrize("able", [True, False], ids=["by the client", "by us"])
async def test_a_link_that_leads_to_a_hook_by_then(tmp_path: Path, *, able: bool) -> None:
    """What was allowed as a change of a plain file is no change of what git runs by itself, wherever a link leads by then."""
    async with bench(tmp_path / "p", {"fs": {"writeTextFile": True}} if able else {}) as work:
        hooks, link = work.root / ".git" / "hooks", work.root / "l"
        for folder in (hooks, work.root / "docs"):
            folder.mkdir(parents=True)
        link.symlink_to("docs")
        written: list[Json] = []

        def write(said: Json) -> Json:
            written.append(said)
            return {}

        def decide(_: Json) -> str:
            link.unlink()
            link.symlink_to(hooks)
            return "yes"

        work.client.handlers["fs/write_text_file"] = write
        work.client.decide = decide
        output = await work.call("write", path="l/pre-commit", content="#!/bin/sh\n")
        assert output.failed
        assert "leads to another place now; nothing was written" in output.text
        assert ([], [], 1) == (written, list(hooks.iterdir()), len(work.client.asked))


async def test_a_permission_is_for_the_place_that_was_asked_for(work: Bench, tmp_path: Path) -> None:
    """A link that leads to another folder by the time of the answer gives neither its text nor a change of it."""
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a").write_text(f"{folder}\n")
    link = work.root / "link"

    def decide(_: Json) -> str:
        link.unlink()
        link.symlink_to(tmp_path / "two")
        return "yes"

    work.client.decide = decide
    for name, more in (("read", {}), ("list", {}), ("grep", {"pattern": "."}), ("edit", {"old": "two", "new": "x"})):
        link.unlink(missing_ok=True)
        link.symlink_to(tmp_path / "one")
        output = await work.call(name, {"path": "link" if name == "list" else "link/a", **more})
        assert "two" not in output.text.replace("`two`", "")
    assert (tmp_path / "two" / "a").read_text() == "two\n"
    assert len(work.client.asked) == 4


async def test_nothing_is_overwritten_unseen(work: Bench) -> None:
    """`write` replaces a file only if the model has seen it as it is now."""
    work.mode("code")
    file = work.root / "a"
    file.write_text("precious\n")
    assert "have not read it" in (await work.call("write", path="a", content="x")).text
    await work.call("read", path="a")
    assert not (await work.call("write", path="a", content="new\n")).failed
    assert not (await work.call("write", path="a", content="newer\n")).failed
    file.write_text("somebody else's\n")
    os.utime(file, ns=(1, 1))
    assert "has changed since" in (await work.call("write", path="a", content="x")).text
    assert file.read_text() == "somebody else's\n"


async def test_line_ends_stay(work: Bench) -> None:
    """In a file with CRLF the model's lines match and the new ones end like the others."""
    (work.root / "a").write_bytes(b"one\r\ntwo\r\nthree\r\n")
    assert not (await work.call("edit", path="a", old="one\ntwo", new="1\n2")).failed
    assert (work.root / "a").read_bytes() == b"1\r\n2\r\nthree\r\n"


async def test_modes_stay(work: Bench) -> None:
    """A script that was executable still is."""
    work.mode("code")
    (work.root / "run.sh").write_text("a")
    (work.root / "run.sh").chmod(0o750)
    await work.call("edit", path="run.sh", old="a", new="b")
    assert (work.root / "run.sh").stat().st_mode & 0o777 == 0o750


async def test_no_text_is_no_edit(work: Bench) -> None:
    """A binary file, a missing one and an edit that changes nothing are errors, and nobody is asked."""
    (work.root / "b").write_bytes(b"\xff\xfe")
    (work.root / "a").write_text("a")
    for arguments in (
        {"path": "b", "old": "a"},
        {"path": "none", "old": "a"},
        {"path": "a", "old": "a"},
        {"path": "a", "old": ""},
    ):
        output = await work.call("edit", {**arguments, "new": "a"})
        assert output.failed
    assert work.client.asked == []


async def test_the_clients_text_counts(tmp_path: Path) -> None:
    """Where the client has files an edit is made in what it has, saved or not, and written by it."""
    buffer = {"text": "unsaved\n"}

    def write(said: dict[str, Any]) -> dict[str, Any]:
        buffer["text"] = said["content"]
        return {}

    async with bench(tmp_path / "p", {"fs": {"readTextFile": True, "writeTextFile": True}}) as work:
        (work.root / "a").write_text("saved\n")
        work.client.handlers["fs/read_text_file"] = lambda _: {"content": buffer["text"]}
        work.client.handlers["fs/write_text_file"] = write
        assert not (await work.call("edit", path="a", old="unsaved", new="edited")).failed
        assert buffer["text"] == "edited\n"
        assert (work.root / "a").read_text() == "saved\n"
