"""The backend that docs/storage.md shows, taken from there as its reader would: it passes the suite, and acpd works on it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from acpd.storage.testing import SessionConformance
from tests.cli import acpd
from tests.support import commands
from tests.support.client import Client
from tests.support.paths import ROOT
from tests.support.walk import below

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def block(language: str, text: str) -> str:
    """The one block of docs/storage.md in this language that has this text."""
    (found,) = [
        code for kind, code in _BLOCK.findall((ROOT / "docs" / "storage.md").read_text()) if kind == language and text in code
    ]
    return str(found)


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A folder with `mystore` and its test, installed as far as Python looks."""
    folder = tmp_path / "site"
    about = folder / "mystore-1.dist-info"
    about.mkdir(parents=True)
    (folder / "mystore.py").write_text(block("python", "class MemorySession"))
    (folder / "test_mystore.py").write_text(block("python", "class TestMyStore"))
    group, entry = block("toml", "entry-points").splitlines()
    name, _, target = entry.partition(" = ")
    group = re.sub(r'\[project\.entry-points\."(.*)"\]', r"[\1]", group)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: mystore\nVersion: 1\n")
    (about / "entry_points.txt").write_text(f"{group}\n{name} = {target.strip(chr(34))}\n")
    return folder


def path_with(package: Path) -> str:
    return os.pathsep.join((str(package), str(ROOT), str(ROOT / "backends")))


def test_it_is_about_thirty_lines() -> None:
    """What a third party must write stays small."""
    assert len(block("python", "class MemorySession").splitlines()) <= 36


def test_it_passes_the_suite(package: Path) -> None:
    """The documented command runs every test of SessionConformance on it, with success."""
    (line,) = [line for line in block("sh", "pytest -o").splitlines() if line.startswith("pytest ")]
    ran = subprocess.run(
        [sys.executable, "-m", *line.split(), "-q", "-p", "no:cacheprovider"],
        cwd=package,
        env={**os.environ, "PYTHONPATH": path_with(package)},
        capture_output=True,
        text=True,
    )
    assert 0 == ran.returncode, ran.stdout + ran.stderr
    count = sum(name.startswith("test_") for name in dir(SessionConformance))
    assert f"{count} passed" in ran.stdout


@pytest.mark.e2e
def test_a_suite_that_fails_is_noticed(package: Path) -> None:
    """A store that keeps something else than it was given does not pass."""
    code = (package / "mystore.py").read_text()
    (package / "mystore.py").write_text(code.replace("bytes(value)", "bytes(value).strip()"))
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-o",
        "asyncio_mode=auto",
        "-q",
        "-p",
        "no:cacheprovider",
        "-k",
        "byte_for_byte",
        "test_mystore.py",
    ]
    env = {**os.environ, "PYTHONPATH": path_with(package)}
    ran = subprocess.run(command, cwd=package, env=env, capture_output=True, text=True)
    assert "FAILED test_mystore.py::TestMyStore::test_a_value_comes_back_byte_for_byte" in ran.stdout


def test_acpd_works_on_it(package: Path, tmp_path: Path) -> None:
    """By its entry point: a session is made, listed, shown, checked and removed; its states are on no disk."""
    home = tmp_path / "home"
    env = {"ACPD_STORAGE_BACKEND": "mine", "PYTHONPATH": path_with(package)}
    with Client(commands.acpd("run", "--name", "demo", "--", "acpd-agent", "--offline"), home, env={
        **env, "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])),
    }, cwd=tmp_path) as client:  # fmt: skip
        client.initialize()
        session = client.new(tmp_path)
        client.prompt(session, "say hello")
        client.call("session/close", {"sessionId": session})
        client.load(session, tmp_path)
        client.prompt(session, "say again")
        assert "(turn 2) again" in client.text(session), "the agent was given back what it keeps"
    assert [] == below(home, "offline.json")
    listed, shown, checked, removed, gone = acpd.run_many(
        home, ["ls", "--all", "--json"], ["show", session], ["fsck"], ["rm", session], ["ls", "--all", "--json"], env=env
    )
    assert [session] == [row["id"] for row in json.loads(listed.out)]
    assert "hello" in shown.out
    assert (0, 0, "[]\n") == (checked.code, removed.code, gone.out)
