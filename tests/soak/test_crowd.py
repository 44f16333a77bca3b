"""A daemon and a small crowd, for a moment: `make soak` takes longer, and judges."""

from __future__ import annotations

from pathlib import Path

from tests.soak.crowd import crowd


def test_a_daemon_serves_a_crowd(tmp_path: Path) -> None:
    """Every prompt of every session is answered while another client never reads, and nothing is left at the end."""
    found = crowd(tmp_path, 1, connections=30, sessions=12, at_once=6, alone=20)
    assert found.prompts > 12
    assert 0 < found.pinned < found.p99
    assert found.late < 2 * found.early
