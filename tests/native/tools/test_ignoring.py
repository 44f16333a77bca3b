"""What .gitignore excludes: git itself is asked."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acpd.native.tools.walk import Budget, files

NAMES = ["a", "b", "a.log", "b.log", "build", "x y", ".hidden", "A"]
FILES = [
    *(name for name in NAMES if name != "build"),
    *(f"{folder}/{name}" for folder in ("src", "src/deep", "build", "a.d") for name in NAMES),
]
LINES = [
    "*.log", "!a.log", "/a", "a", "build/", "build", "src/*", "!src/deep", "**/b", "src/**", "src/**/a", "/src/deep/", "*",
    "!*/", "!.gitignore", "#a", "\\#a", "x y", "x\\ y", "a ", "a\\ ", "[ab]", "[!a]", "?", "/*", "!/src", "**", "a.d/",
    "*.d", "!", "/", "", ".*", "A", "s*c", "deep/a", "deep/", "!build/a", "src/deep/../a", "./a", "**/deep/**", "a/**",
    "!**/a", "[a-b]*", "[]a]", "[^a]", "[[:alpha:]]", "[a", "a\\", "\\!a", "\\a", "src/**b", "**b", "a**", "/**/", "**/",
    "src/", "/src/", "!src", "x\\ y", "*/a", "/*/a", "\ta", "a\t", "!.log", "?.log", "s?c/[a-z]", "deep/**/a", "**/**",
    "a/**/**", "**/**/a",
]  # fmt: skip
RULES = st.lists(st.sampled_from(LINES), max_size=5)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tree")
    for name in FILES:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("")
    git(root, "init", "-q")
    return root


def git(root: Path, *words: str) -> str:
    env = {"PATH": "/usr/bin:/bin:/usr/local/bin", "HOME": str(root), "GIT_CONFIG_NOSYSTEM": "1"}
    return subprocess.run(["git", *words], cwd=root, env=env, check=True, capture_output=True, text=True).stdout


@settings(max_examples=60)
@given(top=RULES, inner=RULES)
def test_as_git_does(tree: Path, top: list[str], inner: list[str]) -> None:
    """Files are left out exactly where git does not see them, whatever the lines of two .gitignore files are."""
    (tree / ".gitignore").write_text("\n".join(top))
    (tree / "src" / ".gitignore").write_text("\n".join(inner))
    seen = git(tree, "ls-files", "--others", "--exclude-standard", "-z").split("\0")
    assert sorted(filter(None, seen)) == sorted(found.below for found in files(str(tree), Budget(), ignored=False))
