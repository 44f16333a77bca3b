"""The commands under test, and what stands behind them."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.paths import SHARED

AGENTS = SHARED / "corpus" / "agents"
STREAMER = Path(__file__).with_name("streamer.py")


def acpd(*arguments: str) -> list[str]:
    """The installed console script: so that a built wheel is tested the same way as the work tree."""
    return [str(Path(sys.executable).with_name("acpd")), *arguments]


def wrapping(agent: str | Path, *flags: str) -> list[str]:
    """An acpd around an agent: a file, or the name of one in the corpus."""
    path = AGENTS / f"{agent}.py" if isinstance(agent, str) else agent
    return acpd("run", *flags, "--", sys.executable, str(path))


def tapped(agent: str, folder: Path) -> list[str]:
    """The same with a tap between acpd and each agent process: folder/PID.wire has what passed (see tap.py)."""
    tap = Path(__file__).with_name("tap.py")
    python = sys.executable
    return acpd("run", "--", python, str(tap), str(folder / "%p"), python, str(AGENTS / f"{agent}.py"))


def backends(*others: pytest.MarkDecorator) -> list[object]:
    """The default backend, and the others where there is time: with `make e2e` or by these marks."""
    marks = others or (pytest.mark.e2e,)
    return ["workspace", *(pytest.param(name, marks=marks) for name in ("json", "sqlite"))]


def play_module() -> ModuleType:
    """The corpus player, as a module."""
    spec = importlib.util.spec_from_file_location("corpus_play", SHARED / "corpus" / "play.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.dont_write_bytecode, before = True, sys.dont_write_bytecode  # the corpus is read-only
    try:
        spec.loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = before
    return module
