"""Driving a real client against a real agent, with or without acpd between them, and keeping all that was shown.

The client is a program of its own (clients/): it gets steps on stdin and writes events to stdout. Every wait is for an
event, with a deadline that fails the test.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from tests.e2e.peers.table import AGENTS, Launch, Peer, Place, client
from tests.support import fold, proc
from tests.support.commands import acpd

Json = dict[str, Any]
T = TypeVar("T")

WAIT = 40.0
"""Seconds until a wait fails: the slowest agents need five to start, and two cores serve many processes."""
OTHER = {"python": "typescript", "typescript": "python"}
TAP = Path(__file__).resolve().parents[2] / "support" / "tap.py"


class StepError(AssertionError):
    """A step was answered with an error."""

    def __init__(self, op: str, event: Json, trouble: str) -> None:
        super().__init__(f"{op}: {event}{trouble}")
        self.event = event


class Editor:
    """One client process; `shown` is what its user has seen, as session/update params, own prompts included.

    Use as a context manager: leaving it ends the client as its SDK does it, and kills what does not end.
    """

    def __init__(
        self,
        launch: Launch,
        command: Sequence[str],
        env: Mapping[str, str],
        place: Place,
        tag: str,
        on_event: Callable[[Json], None] = lambda _: None,
    ) -> None:
        """`on_event` is called in the reader's thread, for each event."""
        self._on_event = on_event
        self.shown: list[Json] = []
        self.events: list[Json] = []
        self.tag = tag
        self.stderr = place.folder / f"{tag}.stderr"
        self._steps = 0
        self._changed = threading.Condition()
        setup = json.dumps({"command": list(command), "env": dict(env), "cwd": str(place.work)})
        own = {"PATH": env["PATH"], "HOME": str(place.home), **launch.env}
        with self.stderr.open("wb") as stderr:
            self.process = subprocess.Popen(
                [*launch.command, setup], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, env=own
            )
        self._reader = threading.Thread(target=self._read, name=f"editor:{tag}", daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._end(10.0 if kind is None else 0.5)

    # Steps

    def call(self, op: str, **fields: Any) -> Any:
        """Carry one step out and give its result. Raises StepError where the answer is an error."""
        return self.answer(self.start(op, **fields), op)

    def start(self, op: str, **fields: Any) -> int:
        """Send one step and give its number."""
        if op == "prompt":
            block = {"type": "text", "text": fields["text"]}
            self.shown += fold.prompt(fields["sessionId"], [block], f"{self.tag}:{self._steps}")
        line = json.dumps({"op": op, **fields}) + "\n"
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode())
        self.process.stdin.flush()
        self._steps += 1
        return self._steps - 1

    def answer(self, step: int, op: str = "") -> Any:
        """The result of that step."""
        event = self.wait(lambda events: next((e for e in events if e.get("step") == step), None), f"the answer to {op}")
        if event["event"] == "error":
            raise StepError(op, event, self._trouble())
        return event["result"]

    def until_updates(self, count: int) -> None:
        """Return once so many updates were received, prompts of our own not counted."""
        self.wait(lambda events: sum(e["event"] == "update" for e in events) >= count, f"{count} updates")

    def wait(self, found: Callable[[list[Json]], T | None], what: str) -> T:
        """What `found` makes of the events, as soon as it is true."""
        end = time.monotonic() + WAIT
        with self._changed:
            while not (result := found(self.events)):
                left = end - time.monotonic()
                alive = self._reader.is_alive()
                assert left > 0, f"{self.tag}: {what} did not come in {WAIT:.0f} s{self._trouble()}"
                assert alive, f"{self.tag}: the client ended before {what} came{self._trouble()}"
                self._changed.wait(min(left, 1.0))
            return result

    # What came

    def of(self, kind: str) -> list[Json]:
        """All events of one kind so far."""
        with self._changed:
            return [event for event in self.events if event["event"] == kind]

    @property
    def updates(self) -> list[Json]:
        """The params of every session/update so far, as they came."""
        return [event["params"] for event in self.of("update")]

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            event = json.loads(line)
            with self._changed:
                self.events.append(event)
                if event["event"] == "update":
                    self.shown.append(event["params"])
                self._changed.notify_all()
            self._on_event(event)
        with self._changed:
            self._changed.notify_all()

    def kill(self) -> None:
        """Kill -9 the client itself."""
        self.process.kill()
        self._end(10.0)

    def _trouble(self) -> str:
        return f"\nlast events: {self.events[-4:]}\nstderr: {self.stderr.read_text(errors='replace')[-2500:]}"

    def _end(self, patience: float) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(patience)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._reader.join(5)
        self.process.stdout.close()


class Stage:
    """One pair of a client and an agent in a folder of its own; `through` says whether acpd stands between them."""

    def __init__(self, place: Place, client_name: str, agent_name: str, *, through: bool = True) -> None:
        self.place = place
        self.client_name = client_name
        self.agent: Peer = AGENTS[agent_name]
        self.through = through
        self.mark = proc.new_mark()
        self.runs: list[Path] = []
        place.work.mkdir()
        place.home.mkdir()

    def editor(self, *, other: bool = False) -> Editor:
        """A new client process with a new acpd (or agent) below it; `other`: the client on the other SDK."""
        command, env = self.command()
        peer = client(OTHER[self.client_name] if other else self.client_name, self.place.installed)
        return Editor(peer, command, env, self.place, self.runs[-1].name)

    def command(self) -> tuple[list[str], dict[str, str]]:
        """What a client has to start, and in which environment; begins a new run."""
        logs = self.place.folder / f"run{len(self.runs)}"
        logs.mkdir()
        self.runs.append(logs)
        launch = self.agent.launch(self.place)
        command = launch.command
        if self.through:
            command = acpd("run", "--name", self.agent.name, "--", *tapped(logs / "agent-%p", command))
        env = {
            "PATH": f"{self.place.installed.node_bin}:{os.environ['PATH']}",
            "HOME": str(self.place.home),
            "LANG": "C.UTF-8",
            "ACPD_STANDALONE": "1",
            "ACPD_HOME": str(self.place.folder / "acpd"),
            proc.MARK: self.mark,
            **launch.env,
        }
        return tapped(logs / "client-%p", command), env

    def begin(self, editor: Editor) -> str:
        """initialize, authenticate, session/new, set_mode: up to the session id."""
        self.greet(editor)
        session = str(editor.call("new", cwd=str(self.place.work))["sessionId"])
        if self.agent.mode is not None:
            editor.call("set_mode", sessionId=session, modeId=self.agent.mode)
        return session

    def greet(self, editor: Editor) -> Json:
        """initialize, and authenticate where the agent wants it; gives the answer to initialize."""
        hello: Json = editor.call("initialize")
        if self.agent.authenticate is not None:
            editor.call("authenticate", methodId=self.agent.authenticate)
        return hello

    def kill(self, pid: int = 0) -> None:
        """Send SIGKILL to what the client started (acpd) in the newest run, or to this process."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid or self.pids()[-1], signal.SIGKILL)

    def pids(self) -> list[int]:
        """The process ids of acpd in the newest run, oldest first; most clients start it once."""
        logs = sorted(self.runs[-1].glob("client-*.pid"), key=lambda path: path.stat().st_mtime_ns)
        return [int(path.read_text()) for path in logs]

    def agent_pids(self) -> list[int]:
        """The process ids of the agents of the newest run."""
        return [int(path.read_text()) for path in self.runs[-1].glob("agent-*.pid")]

    def close(self) -> None:
        """End what a failed test, or an agent without acpd, left behind."""
        proc.kill_marked(self.mark)


def tapped(log: Path, command: Sequence[str]) -> list[str]:
    """The command with a program before it that writes down what passes."""
    return [sys.executable, "-I", "-S", str(TAP), str(log), *command]
