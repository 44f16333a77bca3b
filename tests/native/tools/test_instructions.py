"""What a model is told before the conversation."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from acpd.native import instructions as told
from acpd.native.instructions import MAX_ALL, MAX_FILE, SYSTEM, agents_files, instructions
from tests.native.tools.bench import Bench, bench


def test_agents_files_up_to_the_repository(tmp_path: Path) -> None:
    """AGENTS.md of the working directory and of the folders up to the repository's root count, the nearest last."""
    inner = tmp_path / "repository" / "a" / "b"
    inner.mkdir(parents=True)
    (tmp_path / "repository" / ".git").mkdir()
    for folder, text in ((tmp_path, "not ours"), (tmp_path / "repository", "root"), (inner, "inner")):
        (folder / "AGENTS.md").write_text(text + "\n")
    root = str(tmp_path / "repository" / "AGENTS.md")
    assert agents_files(str(inner)) == [(root, "root"), (str(inner / "AGENTS.md"), "inner")]


def test_without_a_repository_only_the_nearest_counts(tmp_path: Path) -> None:
    """Outside of a repository what lies above the working directory is somebody else's."""
    (tmp_path / "AGENTS.md").write_text("not ours")
    (tmp_path / "a").mkdir()
    assert agents_files(str(tmp_path / "a")) == []
    assert agents_files(str(tmp_path / "none")) == []


@pytest.mark.parametrize(
    ("theirs", "left"),
    [
        (["a/AGENTS.md"], ["AGENTS.md", "a/b/AGENTS.md"]),
        (["target"], ["a/AGENTS.md", "a/b/AGENTS.md"]),
        ([".git"], ["a/b/AGENTS.md"]),
        (["a/b", "a/b/AGENTS.md", "AGENTS.md", ".git"], ["AGENTS.md", "a/AGENTS.md", "a/b/AGENTS.md"]),
    ],
)
def test_what_another_user_owns(tmp_path: Path, theirs: list[str], left: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the working directory only files of ours, of root and of its own owner count, and so does `.git`."""
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / ".git").mkdir()
    for name in ("a/AGENTS.md", "a/b/AGENTS.md", "target"):
        (tmp_path / name).write_text(name)
    (tmp_path / "AGENTS.md").symlink_to("target")
    owned = {str(tmp_path / name) for name in theirs}
    monkeypatch.setattr(told, "_owner", lambda path: 4711 if path in owned else os.geteuid())
    assert left == [os.path.relpath(path, tmp_path) for path, _ in agents_files(str(tmp_path / "a" / "b"))]


def test_agents_files_are_bounded(tmp_path: Path) -> None:
    """Many long files stay within the limit, and the nearest ones have precedence."""
    (tmp_path / ".git").mkdir()
    folder = tmp_path
    for number in range(6):
        (folder / "AGENTS.md").write_text(f"file {number}\n" + "x" * 100_000)
        folder /= "deeper"
        folder.mkdir()
    found = agents_files(str(folder))
    assert sum(len(text.encode()) for _, text in found) <= MAX_ALL
    assert all(len(text.encode()) <= MAX_FILE for _, text in found)
    assert found[-1][1].startswith("file 5\n")


def test_what_is_no_such_file(tmp_path: Path) -> None:
    """A pipe, a link out of the repository, a folder and a binary file are left out; a link within is followed."""
    (tmp_path / "secret").write_text("secret")
    folder = tmp_path / "repository"
    folder.mkdir()
    (folder / ".git").mkdir()
    file = folder / "AGENTS.md"
    os.mkfifo(file)
    assert agents_files(str(folder)) == []
    file.unlink()
    file.symlink_to("../secret")
    assert agents_files(str(folder)) == []
    file.unlink()
    file.mkdir()
    assert agents_files(str(folder)) == []
    file.rmdir()
    file.write_bytes(b"\0\1")
    assert agents_files(str(folder)) == []
    file.unlink()
    (folder / "CLAUDE.md").write_text("linked")
    file.symlink_to("CLAUDE.md")
    assert agents_files(str(folder)) == [(str(file), "linked")]


async def test_the_whole(work: Bench) -> None:
    """The model is told who it is, where it works, in which mode, and what the project says."""
    (work.root / "AGENTS.md").write_text("Use tabs.\n")
    text = await instructions(work.session, "ask")
    assert text.startswith(SYSTEM)
    assert f"Working directory: {work.root} (linux)" in text
    assert "Mode `ask`" in text
    assert text.endswith(f"from {work.root}/AGENTS.md:\n\nUse tabs.")
    assert "Mode `plan`" in await instructions(work.session, "plan")


async def test_the_other_folders_are_named(tmp_path: Path) -> None:
    """Additional directories are named too."""
    (tmp_path / "more").mkdir()
    async with bench(tmp_path / "p", {}, tmp_path / "more") as work:
        assert f"Also yours: {tmp_path / 'more'}." in await instructions(work.session, "ask")
