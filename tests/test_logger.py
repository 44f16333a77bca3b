"""acpd's own log: its form, what nobody reads, and the bound on noise."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from acpd import logger


def test_the_log_is_logfmt_on_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    """One line an event, time and level first, nothing on stdout, and what is below the level is not said."""
    log = logger.Logger("info")
    log("debug", "too quiet")
    log("info", "agent did not start", text='no "such" program', number=3)
    log.close()
    out, err = capfd.readouterr()
    assert "" == out
    assert 1 == err.count("\n")
    assert all(part in err for part in ("timestamp=", "level=info", 'event="agent did not start"', "number=3"))
    assert err.index("timestamp=") < err.index("level=") < err.index("event=")


def test_a_start_logs_nothing_and_imports_no_logging() -> None:
    """structlog costs 17 ms, which are paid with the first line."""
    script = "import sys; from acpd import daemon, logger; logger.Logger('info'); print('structlog' in sys.modules)"
    root = Path(__file__).resolve().parents[1]
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=root, env={**os.environ, "PYTHONPATH": str(root)}
    )
    assert ("False\n", "") == (done.stdout, done.stderr)


@pytest.fixture
def unread(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The reading end of what is stderr for the log; nobody reads it, so the pipe is full soon."""
    reading, writing = os.pipe()
    monkeypatch.setattr(logger.Stderr, "FD", writing)
    monkeypatch.setattr(logger.Logger, "CLOSE_SECONDS", 0.05)
    yield reading
    os.close(writing)
    os.close(reading)


@pytest.mark.parametrize("blocking", [True, False])
def test_a_log_that_nobody_reads_stops_nothing(unread: int, *, blocking: bool) -> None:
    """What finds no room is dropped; whoever reads later sees how much that was, and what was logged before it."""
    os.set_blocking(logger.Stderr.FD, blocking)
    log = logger.Logger("info")
    for number in range(3000):
        log("info", "flood", number=number, text="x" * 200)
    log.close()
    read = b""
    while b"nobody read it" not in read:
        read += os.read(unread, 1 << 16)
    *lines, told = read.splitlines()
    numbers = [int(line.split()[3].removeprefix(b"number=")) for line in lines]
    assert sorted(set(numbers)) == numbers
    assert told.endswith(b" count=%d" % (3000 - len(lines)))
    assert len(lines) >= 1000


def test_a_log_that_nobody_can_read_stops_nothing(unread: int) -> None:
    """A closed stderr is no failure, now or later, and does not keep acpd from ending."""
    log = logger.Logger("info")
    null = os.open("/dev/null", os.O_RDONLY)
    os.dup2(null, unread)
    os.close(null)
    for number in range(3000):
        log("info", "flood", number=number)
    log.close()


def test_an_agents_noise_is_bounded(capfd: pytest.CaptureFixture[str]) -> None:
    """Twenty lines of each agent, each cut to 200 characters, the last one marked; others are not silenced by it."""
    noise = logger.Noise(log := logger.Logger("info"))
    for number in range(100):
        noise.noise("loud", f"{number} " + "x" * 1000)
    noise.noise("quiet", "once")
    log.close()
    lines = capfd.readouterr().err.splitlines()
    assert (21, 1) == (len(lines), sum("agent=loud" in line and "last=false" not in line for line in lines))
    assert all(len(line) < 400 for line in lines)
    assert "agent=quiet" in lines[-1]
