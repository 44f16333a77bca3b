"""What the peer tests stand on: the installed peers, the fake model, a folder of their own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.peers.install import Installed, InstallError, install
from tests.e2e.peers.table import Place
from tests.support.paths import SHARED


def _installed(*groups: str) -> Installed:
    try:
        return install(groups)
    except InstallError as error:
        if os.environ.get("CI"):
            raise
        sys.stderr.write(f"\n*** PEERS ARE NOT TESTED: {error}\n")
        pytest.skip(f"PEERS ARE NOT TESTED: {error}")


@pytest.fixture(scope="session")
def push_peers() -> Installed:
    """The peers of every push. Not to be had: an error where CI is set, a loud skip elsewhere."""
    return _installed("push")


@pytest.fixture(scope="session")
def all_peers() -> Installed:
    """The peers of every push and the big ones."""
    return _installed("push", "full")


@pytest.fixture(scope="session")
def jupyter_peers() -> Installed:
    """The peers of every push, and Jupyter AI's client."""
    return _installed("push", "jupyter")


@pytest.fixture(scope="session")
def mcp_peers() -> Installed:
    """The MCP servers that were not written here."""
    return _installed("mcp")


@pytest.fixture(scope="session")
def model_url() -> Iterator[str]:
    """The URL of the scripted model that all agents talk to."""
    command = [sys.executable, "-u", str(SHARED / "peers" / "fake_model.py"), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as model:
        assert model.stdout is not None
        match = re.search(rb"http://127\.0\.0\.1:\d+", model.stdout.readline())
        assert match is not None, "the fake model did not start"
        yield match[0].decode()
        model.kill()


@pytest.fixture
def place(push_peers: Installed, model_url: str, tmp_path: Path) -> Place:
    """A folder with the peers of every push."""
    return Place(push_peers, model_url, tmp_path)


@pytest.fixture
def jupyter_place(jupyter_peers: Installed, model_url: str, tmp_path: Path) -> Place:
    """A folder with Jupyter AI's client."""
    return Place(jupyter_peers, model_url, tmp_path)


@pytest.fixture
def full_place(all_peers: Installed, model_url: str, tmp_path: Path) -> Place:
    """A folder with all peers."""
    return Place(all_peers, model_url, tmp_path)
