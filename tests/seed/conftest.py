"""acpd around the scriptable agent, and around its own with the scripted model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.seed.stage import Stage as Native
from tests.support.models import ModelServer, model_server
from tests.support.scripted import Stage


@pytest.fixture
def play(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path)
    yield stage
    stage.end()


@pytest.fixture
def model() -> Iterator[ModelServer]:
    """It refuses nothing, but whatever a strict provider would have refused fails the test."""
    with model_server() as made:
        yield made
        assert [] == made.wrong


@pytest.fixture
def native(tmp_path: Path, model: ModelServer) -> Native:
    return Native(tmp_path, model)
