"""glob and grep."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from acpd.native.tools import patterns, walk
from tests.native.tools.bench import Bench


def plant(root: Path, *names: str, text: str = "needle\n") -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


async def test_files_by_name(work: Bench) -> None:
    """A pattern without / is about the name in any folder, one with / about the path; links are not followed."""
    plant(work.root, "a.py", "src/b.py", "src/deep/c.ts", "src/d.tsx", ".hidden/e.py")
    (work.root / "loop").symlink_to(".")
    for pattern, found in (
        ("*.py", [".hidden/e.py", "a.py", "src/b.py"]),
        ("src/**/*.{ts,tsx}", ["src/d.tsx", "src/deep/c.ts"]),
        ("src/*", ["src/b.py", "src/d.tsx"]),
        ("**/?.p[xy]", [".hidden/e.py", "a.py", "src/b.py"]),
        ("[!a]*.py", [".hidden/e.py", "src/b.py"]),
    ):
        assert sorted((await work.call("glob", pattern=pattern)).text.splitlines()) == found


async def test_what_git_ignores_is_left_out(work: Bench) -> None:
    """.gitignore counts in every folder up to the repository's root, with negations; `ignored` takes it back."""
    plant(work.root, "a.log", "keep.log", "build/x", "sub/build/y", "sub/b.log", "sub/only", ".git/config", "excluded")
    plant(work.root, ".gitignore", text="*.log\n!keep.log\nbuild/\n")
    plant(work.root, "sub/.gitignore", text="!b.log\n/only\n")
    plant(work.root, ".git/info/exclude", text="excluded\n")
    output = await work.call("glob", pattern="*")
    assert sorted(output.text.splitlines()) == [".gitignore", "keep.log", "sub/.gitignore", "sub/b.log"]
    assert "a.log" in (await work.call("glob", pattern="*.log", ignored=True)).text
    assert (await work.call("glob", pattern="*", path="sub")).text.splitlines() == ["sub/.gitignore", "sub/b.log"]
    assert (await work.call("glob", pattern="*", path="build")).text == "build/x"


async def test_lines_by_pattern(work: Bench) -> None:
    """The lines that match are given by file, with their numbers and those around them, each once."""
    plant(work.root, "a.txt", text="one\nNeedle 1\nthree\nneedle 2\nfive\nsix\n")
    plant(work.root, "b.py", text="needle\n")
    assert (await work.call("grep", pattern="needle")).text == "a.txt\n4: needle 2\nb.py\n1: needle"
    output = await work.call("grep", pattern="needle", ignore_case=True, context=1, glob="*.txt")
    assert output.text == "a.txt\n1- one\n2: Needle 1\n3- three\n4: needle 2\n5- five"
    assert (await work.call("grep", pattern="needle", names_only=True)).text == "a.txt\nb.py"
    assert (await work.call("grep", pattern="^five$", path="a.txt")).text == "a.txt\n5: five"
    assert (await work.call("grep", pattern="^$")).text.startswith("Nothing was found")
    assert (await work.call("grep", pattern=r"six(?!\s)")).text == "a.txt\n6: six"
    shown = work.shown()
    assert (shown["kind"], shown["status"], shown["title"]) == ("search", "completed", r"grep six(?!\s)")


async def test_output_is_bounded(work: Bench) -> None:
    """Many hits, long lines and binary files are cut or left out, and the output says so."""
    plant(work.root, "many", text="needle\n" * 5000)
    plant(work.root, "long", text="needle" + "x" * 1_000_000)
    (work.root / "binary").write_bytes(b"\0needle")
    output = await work.call("grep", pattern="needle", limit=1000)
    assert "more than 1000" in output.text
    assert "binary" not in output.text
    assert "999706 more characters" in output.text
    assert len(output.text.encode()) < 64 * 1024
    (work.root / "names").mkdir()
    for number in range(600):
        (work.root / "names" / str(number)).touch()
    assert "more than 500" in (await work.call("glob", pattern="names/*")).text


async def test_a_huge_file_is_left_out(work: Bench) -> None:
    """A file above the limit is not searched, and that is said."""
    with (work.root / "huge").open("wb") as file:
        file.truncate(4 << 30)
    assert "[1 file above 8 MiB: not searched.]" in (await work.call("grep", pattern="x")).text


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|aa)+$", r"(.*)*\1b", "^(([a-z])+.)+[A-Z]([a-z])+$"])
async def test_a_catastrophic_pattern_ends(work: Bench, monkeypatch: pytest.MonkeyPatch, pattern: str) -> None:
    """A pattern that takes for ever is given up, and meanwhile the agent answers."""
    monkeypatch.setattr(walk.Budget.__init__, "__defaults__", (0.5,))
    plant(work.root, "a", text="a" * 5000 + "!\n")
    ticks, began = 0, time.monotonic()
    call = work.begin([["grep", {"pattern": pattern}]])
    while not call.done():
        await asyncio.wait([call], timeout=0.02)
        ticks += 1
    assert time.monotonic() - began < 5
    await call
    output = work.agent.outputs[-1]
    assert "takes too long" in output.text or "Nothing" in output.text or "a\n1: " in output.text
    if "takes too long" in output.text:
        assert ticks >= 5


async def test_a_pattern_is_given_up_in_time(work: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that is known to be exponential is told to be too slow."""
    monkeypatch.setattr(walk.Budget.__init__, "__defaults__", (0.3,))
    plant(work.root, "a", text="a" * 60 + "b\n")
    assert "takes too long" in (await work.call("grep", pattern="(a|aa)+$")).text
    plant(work.root, "a" * 200, text="x")
    output = await work.call("glob", pattern="*a" * 30 + "b")
    assert "takes too long" in output.text or "Nothing" in output.text


async def test_a_hostile_gitignore_costs_no_time(work: Bench) -> None:
    """A line of .gitignore that would be catastrophic as a regular expression counts for nothing."""
    plant(work.root, ".gitignore", text="*a*a*a*a*a*b\n!\n[\n")
    plant(work.root, "a" * 200)
    began = time.monotonic()
    assert "a" * 200 in (await work.call("glob", pattern="*")).text
    assert time.monotonic() - began < 2


async def test_a_cancel_ends_a_search(work: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The turn is over at once when it is cancelled while a search runs."""
    monkeypatch.setattr(patterns, "SLOW", 0.3)
    plant(work.root, "a", text="a" * 60 + "b\n")
    turn = work.begin([["grep", {"pattern": "(a|aa)+$"}]])
    await work.agent.running.wait()
    while "in_progress" not in work.client.seen:
        work.client.changed.clear()
        await work.client.changed.wait()
    began = time.monotonic()
    work.cancel()
    assert await turn == "cancelled"
    assert time.monotonic() - began < 2
    assert work.shown()["status"] == "failed"


async def test_what_is_no_pattern(work: Bench) -> None:
    """A wrong expression, and one too long, are errors that say why."""
    for pattern, why in (("(", "no regular expression"), ("a" * 1001, "1000 characters"), ("(" * 900, "no regular expression")):
        output = await work.call("grep", pattern=pattern)
        assert output.failed
        assert why in output.text


async def test_searching_outside_is_asked_for(work: Bench, tmp_path: Path) -> None:
    """A folder outside is asked for, as one behind a link is."""
    (work.root / "out").symlink_to(tmp_path)
    work.client.decide = lambda _: "no"
    for path in ("..", "out", "/"):
        assert (await work.call("grep", pattern="x", path=path)).failed
        assert (await work.call("glob", pattern="x", path=path)).failed
    assert len(work.client.asked) == 6


async def test_names_with_newlines(work: Bench) -> None:
    """A name with a newline is one line of the output, quoted."""
    plant(work.root, "two\nlines")
    assert (await work.call("glob", pattern="two*")).text == '"two\\nlines"'
    assert (await work.call("grep", pattern="needle")).text == '"two\\nlines"\n1: needle'
