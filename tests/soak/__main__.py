"""`python -m tests.soak [--seconds 300] [--sessions 50] [--seed N]`: one acpd, many sessions, everything at once; before it
four processes that write one store, behind it a daemon with a crowd of clients (`--daemon 120`, crowd.py).

Prompts, cancels, permissions, closes, loads, forks, deletes, and agents that are killed. At the end: every request was
answered once, memory and descriptors did not grow, no process is left, every log is whole.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.soak.crowd import crowd, told
from tests.soak.writers import write_together
from tests.support import commands, proc, store
from tests.support.client import Client

MIB = 1 << 20
GROWTH = 48 * MIB
"""How much resident memory may grow between the end of the first quarter and the end."""
P99, GREW = 20, 1.05
"""Of a daemon with a crowd: the p99 of a prompt in pinned p50s, its memory at the end in that after a quarter of the time."""
PROMPTS = ["say hello", "chunks 40", "slow 20 20", "think hard", "tool file", "ask", "fail", "something else"]
STEP = 0.02
"""Seconds between two actions; answers are taken as they come."""


class Soak:
    """One run. `open` has the unanswered requests: id -> (what, session)."""

    def __init__(self, client: Client, cwd: Path, sessions: int, rng: random.Random) -> None:
        self.client = client
        self.cwd = cwd
        self.rng = rng
        self.sessions = [client.new(cwd) for _ in range(sessions)]
        self.open: dict[Any, tuple[str, str]] = {}
        self.done: dict[str, int] = {}
        self.errors: dict[str, int] = {}

    def ask(self, what: str, method: str, session: str, **more: Any) -> None:
        self.open[self.client.request(method, {"sessionId": session, **more})] = (what, session)

    def setup(self) -> dict[str, Any]:
        return {"cwd": str(self.cwd), "mcpServers": []}

    def step(self) -> None:
        """One action on one session."""
        session = self.rng.choice(self.sessions)
        pick = self.rng.random()
        if pick < 0.6:
            prompt = [{"type": "text", "text": self.rng.choice(PROMPTS)}]
            self.ask("prompt", "session/prompt", session, prompt=prompt)
        elif pick < 0.75:
            self.client.notify("session/cancel", {"sessionId": session})
        elif pick < 0.83:
            self.ask("close", "session/close", session)
        elif pick < 0.91:
            self.ask("load", "session/load", session, **self.setup())
        elif pick < 0.93:
            self.ask("resume", "session/resume", session, **self.setup())
        elif pick < 0.95:
            self.ask("list", "session/list", session)
        elif pick < 0.97:
            self.kill_agent()
        else:
            self.replace(session)

    def kill_agent(self) -> None:
        """Any agent process of this acpd; acpd itself is not among them."""
        agents = [process for process in proc.marked(self.client.mark) if process.pid != self.client.pid]
        if agents:
            os.kill(self.rng.choice(agents).pid, 9)
            self.count("killed agent")

    def replace(self, session: str) -> None:
        """Delete it, or fork it; the number of sessions stays."""
        self.sessions.remove(session)
        if self.rng.random() < 0.5:
            self.ask("delete", "session/delete", session)
            self.open[self.client.request("session/new", self.setup())] = ("new", "")
        else:
            self.ask("close", "session/close", session)
            self.ask("fork", "session/fork", session, **self.setup())

    def collect(self) -> None:
        """Take the answers that have come."""
        for message in self.client.forget():
            what, _ = self.open.pop(message["id"], ("", ""))
            if not what:  # of a call that was waited for
                continue
            self.count(what)
            if "error" in message:
                text = f"{what}: {message['error']['code']} {message['error']['message'][:80]}"
                self.errors[text] = self.errors.get(text, 0) + 1
            if what in {"new", "fork"}:
                made = message.get("result", {}).get("sessionId")
                self.sessions.append(made or self.client.new(self.cwd))

    def count(self, what: str) -> None:
        self.done[what] = self.done.get(what, 0) + 1

    def run(self, seconds: float) -> tuple[int, int, int, int]:
        """(memory, descriptors) after a quarter of the time and at the end."""
        end = time.monotonic() + seconds
        early: tuple[int, int] | None = None
        while time.monotonic() < end:
            self.step()
            assert not self.client.wait_end(STEP), f"acpd ended: {self.client.story()}"
            if self.rng.random() < 0.05:
                self.collect()
            if early is None and time.monotonic() > end - 0.75 * seconds:
                early = self.measure()
        self.settle()
        early = early or self.measure()
        return (*early, *self.measure())

    def settle(self) -> None:
        """Cancel everything and wait for every answer."""
        for session in self.sessions:
            self.client.notify("session/cancel", {"sessionId": session})
        idents = list(self.open)
        self.client.wait_settled(idents, within=120)
        self.collect()
        assert {} == self.open, f"never answered: {self.open}"

    def measure(self) -> tuple[int, int]:
        return proc.rss(self.client.pid), proc.fds(self.client.pid)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak")
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--sessions", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--together", type=float, default=30, metavar="SECONDS", help="four processes on one store, on each backend; 0: not"
    )
    parser.add_argument(
        "--daemon", type=float, default=120, metavar="SECONDS", help="one daemon, 1,000 connections, 50 turns at once; 0: not"
    )
    options = parser.parse_args()
    if options.together:
        together(options.together, options.seed)
    code = alone(options) if options.seconds else 0
    crowded(options.daemon)
    return code


def crowded(seconds: float) -> None:
    """Judged by the figures of the same run: p99 and memory."""
    if seconds:
        with tempfile.TemporaryDirectory(prefix="acpd-soak-") as folder:
            found = crowd(Path(folder), seconds)
        print(f"soak: a daemon with 1,000 connections, 200 sessions, 50 turns at once for {seconds:g} s: {told(found)}")
        print(f"soak: load {os.getloadavg()[0]:.1f}; targets: p99 <= {P99:g}x the pinned p50, memory <= +{GREW - 1:.0%}")
        assert found.p99 <= P99 * found.pinned, "prompts wait too long"
        assert found.late <= GREW * found.early, "the daemon's memory grows"


def together(seconds: float, seed: int) -> None:
    """Four processes on one store, for so long on each backend."""
    for backend in ("workspace", "json", "sqlite"):
        with tempfile.TemporaryDirectory(prefix="acpd-soak-") as folder:
            sessions, prompts, lists = write_together(Path(folder), backend, seconds, seed=seed)
        print(
            f"soak: 4 processes on one {backend} store: {sessions} sessions, {prompts} prompts, {lists} listings; all is right"
        )


def alone(options: argparse.Namespace) -> int:
    mark = proc.new_mark()
    with tempfile.TemporaryDirectory(prefix="acpd-soak-") as folder:
        home = Path(folder) / "home"
        try:
            with Client(commands.wrapping("good_agent"), home, mark=mark) as client:
                client.initialize()
                soak = Soak(client, Path(folder), options.sessions, random.Random(options.seed))
                early_rss, early_fds, rss, fds = soak.run(options.seconds)
                client.close_stdin()
                assert 0 == client.wait_exit(60)
            proc.assert_none_left(mark)
        finally:
            proc.kill_marked(mark)
        logs = store.check_store(home)
    print(f"soak: {json.dumps(soak.done)} in {options.seconds:g} s on {options.sessions} sessions; {len(logs)} logs are whole")
    for text, count in sorted(soak.errors.items(), key=lambda item: -item[1])[:12]:
        print(f"soak: {count} x {text}")
    print(f"soak: memory {early_rss // MIB} -> {rss // MIB} MiB, descriptors {early_fds} -> {fds}")
    assert rss - early_rss < GROWTH, "memory grows"
    assert fds <= early_fds + options.sessions * 4 + 32, "descriptors grow"
    return 0


if __name__ == "__main__":
    sys.exit(main())
