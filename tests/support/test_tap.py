"""The tap: what it passes on, and what it writes down."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TAP = Path(__file__).with_name("tap.py")


def _run(log: Path, program: str, data: bytes) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-I", "-S", str(TAP), str(log), sys.executable, "-I", "-S", "-c", program]
    return subprocess.run(command, input=data, capture_output=True, timeout=30)


@pytest.mark.parametrize("data", [b"", b"one\n", b"one\ntwo", b"\xff\x00\r\n\n" * 3, b"x" * 3_000_000 + b"\nend\n"])
def test_bytes_pass_unchanged(tmp_path: Path, data: bytes) -> None:
    """Every byte passes both ways, whatever it is; whole lines are written down, each once a direction."""
    done = _run(tmp_path / "log", "import shutil, sys; shutil.copyfileobj(sys.stdin.buffer, sys.stdout.buffer)", data)
    assert (done.returncode, done.stdout) == (0, data)
    log = (tmp_path / "log.wire").read_bytes().split(b"\n")[:-1]
    whole = data.split(b"\n")[:-1]
    assert [line[1:] for line in log if line[:1] == b">"] == whole
    assert [line[1:] for line in log if line[:1] == b"<"] == whole


def test_an_answer_stands_after_its_request(tmp_path: Path) -> None:
    """The log has both directions in the order of cause and effect."""
    echo = "import sys\nfor line in sys.stdin: print('got', line, end='', flush=True)"
    _run(tmp_path / "log", echo, b"1\n2\n3\n")
    log = (tmp_path / "log.wire").read_text().splitlines()
    for word in "123":
        assert log.index(f">{word}") < log.index(f"<got {word}")


def test_the_end_passes_too(tmp_path: Path) -> None:
    """The tap ends with its command, with its exit code, though stdin is still open."""
    command = [sys.executable, "-I", "-S", str(TAP), str(tmp_path / "log"), sys.executable, "-c", "raise SystemExit(3)"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as tap:
        assert tap.wait(30) == 3
    assert int((tmp_path / "log.pid").read_text()) > 0
