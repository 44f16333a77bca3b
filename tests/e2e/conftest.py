"""The stage of every test that plays the scriptable agent."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.scripted import Stage

ALSO_BY_DAEMON = {"test_v1_asks", "test_v1_recall", "test_v1_services", "test_v1_sessions", "test_v1_turns", "test_v1_updates"}
"""Files whose tests hold for a shim and its daemon too, which `make e2e` shows."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "play" in metafunc.fixturenames:
        ways: list[object] = ["standalone"]
        if metafunc.definition.path.stem in ALSO_BY_DAEMON:
            ways.append(pytest.param("daemon", marks=pytest.mark.e2e))
        metafunc.parametrize("play", ways, indirect=True)


@pytest.fixture
def play(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Stage]:
    """acpd around the scriptable agent; whatever happens, its processes end with the test."""
    stage = Stage(tmp_path, request.param)
    yield stage
    stage.end()
