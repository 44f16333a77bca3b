"""The stage of every test that plays the scriptable agent."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.scripted import Stage


@pytest.fixture
def play(tmp_path: Path) -> Iterator[Stage]:
    """acpd around the scriptable agent; whatever happens, its processes end with the test."""
    stage = Stage(tmp_path)
    yield stage
    stage.end()
