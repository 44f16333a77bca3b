"""acpd's own log: its form, what nobody reads, and the bound on noise."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from acpd import logger
from acpd.config import Log
from acpd_backends.rotated import RotatedFile


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


def test_a_log_that_nobody_can_read_stops_nothing(unread: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A closed stderr is no failure, now or later, and does not keep acpd from ending."""
    monkeypatch.setattr(logger.Logger, "CLOSE_SECONDS", 20.0)  # of which it needs what it takes to drop the lines
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


# -- forms


def lines_of(capfd: pytest.CaptureFixture[str], form: logger.Form, *, secret: str = "x") -> list[str]:
    log = logger.Logger("debug", form)
    log("warning", "an agent\x1b[31m spoke", agent="codex", text="two\nlines", authorization=secret)
    try:
        raise ValueError(f"token={secret}")
    except ValueError as error:
        log("error", "task failed", exc_info=error)
    log.close()
    return capfd.readouterr().err.splitlines()


def test_a_line_is_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    """Whatever an agent said, an event is one line and steers no terminal; a secret stands in none, nor in tracebacks."""
    for form in logger.Form:
        first, second = lines_of(capfd, form, secret="hunter2hunter2")
        assert "an agent" in first
        assert "ValueError" in second
        assert "\x1b" not in first + second
        assert "hunter2" not in first + second


def test_the_journal_gets_priorities(capfd: pytest.CaptureFixture[str]) -> None:
    """A line begins with its priority as syslog counts, and has no time: the journal has its own."""
    first, second = lines_of(capfd, logger.Form.JOURNAL)
    assert first.startswith("<4>level=warning event=")
    assert second.startswith("<3>level=error event=")
    assert "timestamp" not in first + second


def test_json_lines(capfd: pytest.CaptureFixture[str]) -> None:
    """Time, level and event first, then the values as they are."""
    log = logger.Logger("info", logger.Form.JSON)
    log("info", "listening", connections=3, path=Path("/run/x"), nothing=None, surrogate="\udc80")
    log.close()
    line = json.loads(capfd.readouterr().err)
    assert ["timestamp", "level", "event"] == list(line)[:3]
    assert (3, "/run/x", None) == (line["connections"], line["path"], line["nothing"])
    assert line["timestamp"].endswith("Z")


def test_bound_ids(capfd: pytest.CaptureFixture[str]) -> None:
    """Each line says whom it is about; what a line says itself wins."""
    log = logger.Logger("info")
    one = log.bind(connection="c1").bind(session="s1")
    one("info", "attached", agent="codex")
    one("info", "moved", session="s2")
    log.bind(link="l1")("debug", "too quiet")
    log.close()
    first, second = capfd.readouterr().err.splitlines()
    assert first.endswith("event=attached connection=c1 session=s1 agent=codex")
    assert second.endswith("event=moved connection=c1 session=s2")


def test_the_level_changes_while_it_runs(capfd: pytest.CaptureFixture[str]) -> None:
    """From then on, for what is bound too."""
    log = logger.Logger("warning")
    bound = log.bind(session="s")
    bound("info", "one")
    log.level("debug")
    bound("debug", "two")
    log.level("error")
    bound("warning", "three")
    log.close()
    assert ["two"] == re.findall(r"event=(\w+)", capfd.readouterr().err)


# -- where it goes


def settings(path: Path, size: int = 1, keep: int = 2) -> Log:
    return Log(file=str(path), size=size, keep=keep)


def test_a_daemons_log_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where stderr is neither journal nor terminal: JSON lines in the named file or in one of the data folder,
    its owner's alone.
    """
    named, usual = tmp_path / "there" / "my.log", tmp_path / "data" / "logs" / "acpd.log"
    with (tmp_path / "stderr").open("wb") as stderr:
        monkeypatch.setattr(logger.Stderr, "FD", stderr.fileno())
        for path, said in ((named, settings(named)), (usual, Log())):
            log = logger.Logger.of_service(said, str(tmp_path / "data"), {"JOURNAL_STREAM": "1:2"})
            log("info", "listening")
            log.close()
            assert "listening" == json.loads(path.read_text())["event"]
            assert (0o600, 0o700) == (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777)
    assert b"" == (tmp_path / "stderr").read_bytes()


def test_a_daemons_log_is_the_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where stderr is what JOURNAL_STREAM names, there and in no file."""
    with (tmp_path / "stderr").open("wb") as stderr:
        monkeypatch.setattr(logger.Stderr, "FD", stderr.fileno())
        there = os.fstat(stderr.fileno())
        stream = {"JOURNAL_STREAM": f"{there.st_dev}:{there.st_ino}"}
        log = logger.Logger.of_service(Log(), str(tmp_path / "data"), stream)
        log("info", "listening")
        log.close()
    assert b"<6>level=info event=listening\n" == (tmp_path / "stderr").read_bytes()
    assert not (tmp_path / "data").exists()


def test_a_daemons_log_is_the_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where stderr is one, as lines that people can read."""
    ours, theirs = os.openpty()
    monkeypatch.setattr(logger.Stderr, "FD", theirs)
    log = logger.Logger.of_service(Log(), str(tmp_path / "data"), {})
    log("info", "listening")
    log.close()
    assert os.read(ours, 1000).endswith(b"level=info event=listening\r\n")
    os.close(theirs)
    os.close(ours)


class Moved(RotatedFile):
    """Somebody moves the file away just before it is opened again."""

    def reopen(self) -> None:
        self._path.rename(self._path.with_name("old"))
        super().reopen()


def test_the_file_is_opened_again(tmp_path: Path) -> None:
    """What was logged before goes to the old file, what is logged after to a new one of its name."""
    path = tmp_path / "acpd.log"
    log = logger.Logger("info", logger.Form.JSON, lambda: Moved(str(path), size=1000, keep=0))
    log.reopen()  # nothing is open yet
    log("info", "one")
    log("info", "two")
    log.reopen()
    log("info", "three")
    log.close()
    events = [[json.loads(line)["event"] for line in file.read_text().splitlines()] for file in (tmp_path / "old", path)]
    assert [["one", "two"], ["three"]] == events


class Full:
    """A disk that is full for the first lines."""

    def __init__(self, times: int) -> None:
        self.times = times
        self.written: list[bytes] = []

    def write(self, data: bytes) -> None:
        if self.times:
            self.times -= 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.written.append(data)

    def reopen(self) -> None: ...

    def close(self) -> None: ...


def test_what_cannot_be_written_is_counted() -> None:
    """A full disk ends no log: the lines that it cost are counted, with the cause, when there is room again."""
    disk = Full(4)
    log = logger.Logger("info", logger.Form.LOGFMT, lambda: disk)
    for number in range(5):
        log("info", "event", number=number)
    log.close()
    text = b"".join(disk.written).decode()
    numbers = [int(number) for number in re.findall(r"number=(\d)", text)]
    lost = sum(int(count) for count in re.findall(r'cause="No space left on device" count=(\d)', text))
    assert 5 == len(numbers) + lost
    assert 0 < lost


def test_where_a_daemon_logs() -> None:
    """The file that is configured, else one in the folder of its store: two daemons never write one file."""
    assert "/var/log/acpd" == logger.path_of(Log(file="/var/log/acpd"), "/store")
    assert "/store/logs/acpd.log" == logger.path_of(Log(), "/store")


def test_a_line_that_cannot_be_rendered_ends_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    """It is counted like one that cannot be written, and the lines behind it are there."""

    class Bad:
        def __str__(self) -> str:
            raise ZeroDivisionError

    log = logger.Logger("info")
    log("info", "first", value=Bad())
    log("info", "second")
    log.close()
    err = capfd.readouterr().err
    assert "event=second" in err
    assert "first cannot be written: ZeroDivisionError" in err
