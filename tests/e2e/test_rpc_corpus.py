"""The wire corpus against acpd, with a good and with a minimal agent behind it, and the store after each case.

Each case also through a shim and the daemon that it starts: what the editor sees is the same.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.support import commands, daemons, proc, store
from tests.support.paths import SHARED
from tests.support.walk import contents
from tests.support.wire import checks, wrong_to_agent

# The player leaves closing the file of its case to the garbage collector.
pytestmark = pytest.mark.filterwarnings(
    r"ignore:Exception ignored in. <_io.FileIO name=.*\.ndjson:pytest.PytestUnraisableExceptionWarning"
)

RPC = SHARED / "corpus" / "rpc"
CASES = sorted(path.stem for path in RPC.glob("*.ndjson"))
PLAY = commands.play_module()
CANARY = "canary-h-4711"

NEEDS_WORDS = {
    "22_line_separator": "the agent must say the text of the prompt",
    "23_lone_surrogate": "the second turn's words must come back",
    "26_load_replay": "counts the chunks of `chunks 3`",
    "32_close_running": "waits for two chunks of a slow turn",
    "34_cancel_running": "waits for two chunks of a slow turn",
    "36_permission_cancel": "the agent must ask for a permission",
    "37_permission_bad_option": "the agent must ask for a permission",
    "38_second_prompt": "the first turn must be slow, its words come back",
    "39_two_sessions": "one turn must be slower than the other",
    "41_eof_in_turn": "waits for two chunks of a slow turn",
}
"""What the minimal agent, which says "works" to everything, cannot play. It plays all the others."""

LONG_WAIT = {"42_mcp_silent", "43_mcp_exits", "44_mcp_bad_config", "45_mcp_secret_header"}
"""A real agent may wait for its MCP servers; here they prove acpd's validation and its redaction."""


class RecordingPlay(PLAY.Play):  # type: ignore[name-defined,misc]  # a module loaded by path has no types
    """The corpus player, but everything that is said is kept, and the end is orderly: EOF first, no folder removed."""

    def __init__(self, command: list[str]) -> None:
        self.written = bytearray()
        self.received: list[list[bytes]] = []
        self.ended = 0.0
        """Unix time."""
        super().__init__(command, "ACPD_HOME", verbose=False)

    def write(self, data: bytes) -> None:
        self.written += data
        super().write(data)

    def read(self, p: subprocess.Popen[bytes]) -> None:
        mine: list[bytes] = []
        self.received.append(mine)
        p.stdout = _Tee(p.stdout, mine)  # type: ignore[assignment]
        super().read(p)

    def until(self, what: str, f: Callable[[], bool]) -> bool:
        """As the player's, but a process that has ended is not waited for."""
        if not super().until(what, lambda: f() or not self.t.is_alive()):
            return False
        if not f():
            self.fails.append(f"no {what}: the process has ended")
        return bool(f())

    def stop(self) -> None:
        self.shut()
        try:
            self.p.wait(20)
            self.ended = time.time()
        except subprocess.TimeoutExpired:
            self.fails.append("did not end within 20 s of the end of its stdin")
            self.p.kill()
            self.p.wait()
        self.t.join(5)
        self.p.stdout.close()
        self.err.close()

    def start(self) -> None:
        if hasattr(self, "p"):
            self.p.stdout.close()
            self.err.close()
        super().start()

    @property
    def home(self) -> Path:
        return Path(self.tmp) / "state"


class _Tee:
    """An iterable over lines that keeps what it gives."""

    def __init__(self, source: Any, kept: list[bytes]) -> None:
        self._source = source
        self._kept = kept

    def __iter__(self) -> Iterator[bytes]:
        for line in self._source:
            self._kept.append(line)
            yield line

    def close(self) -> None:
        self._source.close()


def requests(written: bytes) -> list[dict[str, Any]]:
    """The well-formed requests among what was written, in order."""
    found = []
    for line in written.split(b"\n"):
        try:
            message = json.loads(line.decode())
        except (ValueError, RecursionError):
            continue
        if isinstance(message, dict) and "id" in message and isinstance(message.get("params"), dict):
            found.append(message)
    return found


def exchanges(play: RecordingPlay) -> list[store.Exchange]:
    """Each request with its answer; an id that was used again takes the answers in order."""
    taken: dict[str, int] = {}
    found = []
    for message in requests(bytes(play.written)):
        key = PLAY.KEY(message["id"])
        place = taken.get(key, 0)
        answers = play.replies.get(key, [])
        if place < len(answers) and isinstance(message.get("method"), str):
            taken[key] = place + 1
            found.append(store.Exchange(message["method"], message["params"], answers[place][1]))
    return found


def violations(play: RecordingPlay) -> list[str]:
    """What is wrong with the messages that left acpd, by the schema of their methods."""
    found: list[str | None] = []
    sent = [line + b"\n" for line in bytes(play.written).split(b"\n") if line]
    for lines in play.received:
        check = checks()
        for line in sent:
            check.from_client(line)
        found += [check.to_client(line) for line in lines]
    return [problem for problem in found if problem]


def expectation(case: str) -> dict[str, Any]:
    text = (RPC / f"{case}.expect.md").read_text(encoding="utf-8")
    block = re.search(r"```json\n(.*?)```", text, re.DOTALL)
    assert block is not None
    expected: dict[str, Any] = json.loads(block[1])
    return expected


def play_case(
    case: str, command: list[str], tmp: Path, monkeypatch: pytest.MonkeyPatch, *, by_daemon: bool = False
) -> RecordingPlay:
    """Play it, check it, check the store, the wire and the processes afterwards."""
    mark = proc.new_mark()
    if by_daemon:
        monkeypatch.setenv("ACPD_STANDALONE", "0")
        monkeypatch.setenv("ACPD_DAEMON_DRAIN", "0")
    monkeypatch.setenv(proc.MARK, mark)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp))
    monkeypatch.setattr(PLAY, "WAIT", 60.0 if case in LONG_WAIT else 20.0)
    play = RecordingPlay(command)
    try:
        play.run(str(RPC / f"{case}.ndjson"))
        play.check(expectation(case))
    finally:
        play.stop()
    stderr = (Path(play.tmp) / "stderr").read_text(errors="replace")
    assert [] == play.fails, f"{play.fails}\n{stderr[-3000:]}"
    assert "Traceback (most recent call last)" not in stderr, stderr[-3000:]
    if by_daemon:
        assert "" == stderr, "this was no shim"
        daemons.stop(mark, play.home)
    store.check_store(play.home, exchanges(play))
    assert [] == violations(play)
    proc.assert_none_left(mark)
    return play


def ways() -> Iterator[object]:
    """Backends, and whether the agent remembers its sessions: each by itself with `make e2e`."""
    for backend in ("workspace", "json", "sqlite"):
        for kept, name in ((False, "forgetful"), (True, "stateful")):
            others = (backend != "workspace") + kept
            marks = [[], [pytest.mark.e2e], [pytest.mark.e2e, pytest.mark.slow]][others]
            yield pytest.param(backend, kept, id=f"{backend}-{name}", marks=marks)


def assert_nowhere(secret: str, folder: Path) -> None:
    told = [str(path) for path, held in contents(folder).items() if secret.encode() in held]
    assert [] == told, f"{secret} stands in {told}"


@pytest.mark.parametrize(("backend", "kept"), [*ways()])
@pytest.mark.parametrize("case", CASES)
def test_case_with_the_good_agent(case: str, backend: str, kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every case holds, whether or not the agent behind acpd remembers its sessions over a restart."""
    monkeypatch.setenv("ACPD_STORAGE_BACKEND", backend)
    if kept:
        monkeypatch.setenv("ACP_STATE", str(tmp_path / "agent.json"))
    else:
        monkeypatch.delenv("ACP_STATE", raising=False)
    taps = tmp_path / "taps"
    taps.mkdir()
    command = commands.tapped("good_agent", taps) if kept else commands.wrapping("good_agent")
    play = play_case(case, command, tmp_path, monkeypatch)
    assert_nowhere(CANARY, Path(play.tmp))
    records = [path.read_bytes().split(b"\n")[:-1] for path in taps.glob("*.wire")]
    assert bool(records) == kept
    assert [] == [problem for record in records for problem in wrong_to_agent(record)]


@pytest.mark.e2e
@pytest.mark.parametrize("backend", commands.backends(pytest.mark.slow))
@pytest.mark.parametrize("case", [case for case in CASES if case not in NEEDS_WORDS])
def test_case_with_the_minimal_agent(case: str, backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an agent that knows four methods cannot do is acpd's doing, and the case holds all the same."""
    monkeypatch.setenv("ACPD_STORAGE_BACKEND", backend)
    play = play_case(case, commands.wrapping("minimal_agent"), tmp_path, monkeypatch)
    assert_nowhere(CANARY, Path(play.tmp))


def by_daemon(cases: Iterable[str], *always: str) -> list[object]:
    """All with `make e2e`, these in every run."""
    return [pytest.param(case, marks=[] if case in always else [pytest.mark.e2e]) for case in cases]


@pytest.mark.parametrize("case", by_daemon(CASES, "26_load_replay", "41_eof_in_turn"))
def test_case_by_daemon_with_the_good_agent(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through a shim every case holds; a turn whose editor went away goes on, and what ends it is the end of the daemon."""
    play = play_case(case, commands.wrapping("good_agent"), tmp_path, monkeypatch, by_daemon=True)
    assert_nowhere(CANARY, Path(play.tmp))
    if case == "41_eof_in_turn":
        (log,) = store.logs(play.home).values()
        assert ["running", "interrupted"] == [entry["state"] for entry in log.of("turn")]
        assert play.ended < datetime.fromisoformat(log.of("turn")[-1]["at"]).timestamp(), "the turn ended with the editor"


@pytest.mark.parametrize("case", by_daemon([case for case in CASES if case not in NEEDS_WORDS]))
def test_case_by_daemon_with_the_minimal_agent(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an agent that knows four methods cannot do is the daemon's doing."""
    play = play_case(case, commands.wrapping("minimal_agent"), tmp_path, monkeypatch, by_daemon=True)
    assert_nowhere(CANARY, Path(play.tmp))


def test_the_cases_left_out_exist() -> None:
    """What is left out with the minimal agent is named after cases of the corpus."""
    assert set() == (set(NEEDS_WORDS) | LONG_WAIT) - set(CASES)
    assert 46 == len(CASES)
