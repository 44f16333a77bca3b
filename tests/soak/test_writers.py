"""Four processes on one store, for a moment: `make soak` takes longer."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak.writers import write_together


@pytest.mark.parametrize("backend", ["workspace", "json", "sqlite"])
def test_four_processes_write_one_store(backend: str, tmp_path: Path) -> None:
    """Nothing is lost, nobody meets a locked database, and catalog and `sessions.json` are right at the end."""
    sessions, prompts, _ = write_together(tmp_path, backend, seconds=1)
    assert sessions >= 4
    assert prompts >= sessions
