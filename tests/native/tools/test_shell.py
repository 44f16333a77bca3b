"""What is known by its program runs nothing else: the shell itself is asked."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acpd.native.tools.shellwords import only_program

PARTS = [
    "git", "rm", ";", "&", "|", "'", '"', "\\", "$", "(", ")", "`", "{", "}", "<", ">", " ", "\n", "\t", "#", "!", "=",
    "*", "a", "~", "[", "]", ",", "?", "-", "%", ":", "^", "\r", "\x0b", "\u00a0", "\u2028", "||", "&&", "$(rm)", "$'",
    '$"', "\\'", "<<", "<(", "${a:=", "git ", " rm", ";rm", "'\\''", "if", "env", "<<<", "$((", "@(", "git=",
]  # fmt: skip


class Shell:
    """bash with no other programs than `git` and `rm`, which write down that they ran and do nothing."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._log = folder / "log"
        (folder / "bin").mkdir()
        (folder / "work").mkdir()
        for name in ("git", "rm"):
            program = folder / "bin" / name
            program.write_text(f'#!/bin/sh\necho {name} >> "{self._log}"\n')
            program.chmod(0o755)

    def run(self, command: str) -> set[str]:
        """The programs that have run, and whether a file was made."""
        self._log.write_text("")
        subprocess.run(
            ["/bin/bash", "-c", command],
            cwd=self._folder / "work",
            env={"PATH": str(self._folder / "bin"), "LC_ALL": "C.UTF-8"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=20,
        )
        made = list((self._folder / "work").iterdir())
        for path in made:
            path.unlink()
        return set(self._log.read_text().split()) | {"a file was made" for _ in made}


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    return Shell(tmp_path_factory.mktemp("shell"))


@settings(max_examples=150)
@given(parts=st.lists(st.sampled_from(PARTS), max_size=12))
def test_nothing_else_runs(shell: Shell, parts: list[str]) -> None:
    """Whatever stands behind it, a line that is known by `git` runs git and nothing else."""
    command = "git " + "".join(parts)
    if only_program(command):
        assert shell.run(command) <= {"git"}


def test_the_shell_would_tell(shell: Shell) -> None:
    """The test above can fail: what runs besides is seen."""
    assert shell.run("git $(rm); git > a") == {"git", "rm", "a file was made"}
