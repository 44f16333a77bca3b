"""Several acpd processes that write one store at the same time: they make sessions, prompt, list, close and load.

At the end nothing is lost, nobody met a locked database, and catalog and `sessions.json` say what the logs say.
"""

from __future__ import annotations

import json
import random
import threading
import time
from pathlib import Path
from typing import Any

from tests.cli.acpd import run
from tests.support import commands, proc, store
from tests.support.client import Client
from tests.support.walk import contents

Json = dict[str, Any]
SESSIONS = 12
"""Of each writer at most."""


class Writer(threading.Thread):
    """One acpd and its client. `turns`: how many prompts of a session were answered. `error`: why it stopped too early."""

    def __init__(self, home: Path, backend: str, mark: str, seed: int, seconds: float) -> None:
        super().__init__(name=f"writer-{seed}")
        self.turns: dict[str, int] = {}
        self.lists = 0
        self.error: BaseException | None = None
        self.stderr = ""
        self._home, self._mark, self._seconds = home, mark, seconds
        self._env = {"ACPD_STORAGE_BACKEND": backend}
        self._rng = random.Random(seed)

    def run(self) -> None:
        try:
            with Client(commands.wrapping("good_agent"), self._home, mark=self._mark, env=self._env) as client:
                client.initialize()
                end = time.monotonic() + self._seconds
                self._make(client)
                while time.monotonic() < end:
                    self._step(client)
                client.close_stdin()
                assert 0 == client.wait_exit(60)
                self.stderr = client.stderr()
        except BaseException as error:  # noqa: BLE001 - raised again by `write_together`
            self.error = error

    def _make(self, client: Client) -> None:
        session = client.new(self._home)
        self.turns[session] = 0
        self._prompt(client, session)

    def _prompt(self, client: Client, session: str) -> None:
        assert "end_turn" == client.prompt(session, f"say {self._rng.random()}")
        self.turns[session] += 1

    def _step(self, client: Client) -> None:
        session = self._rng.choice(list(self.turns))
        pick = self._rng.random()
        if pick < 0.1 and len(self.turns) < SESSIONS:
            self._make(client)
        elif pick < 0.2:
            listed = client.call("session/list", {"cwd": str(self._home)})["sessions"]
            assert session in {each["sessionId"] for each in listed} or len(listed) >= 100
            self.lists += 1
        elif pick < 0.3:
            client.call("session/close", {"sessionId": session})
            client.load(session, self._home)
        else:
            self._prompt(client, session)


def write_together(home: Path, backend: str, seconds: float, writers: int = 4, seed: int = 1) -> tuple[int, int, int]:
    """(sessions, prompts, lists), after all was checked. Raises AssertionError."""
    mark = proc.new_mark()
    threads = [Writer(home, backend, mark, seed * 100 + number, seconds) for number in range(writers)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        proc.kill_marked(mark)
    for thread in threads:
        if thread.error is not None:
            raise thread.error
        assert "locked" not in thread.stderr, thread.stderr
    turns = {session: count for thread in threads for session, count in thread.turns.items()}
    assert len(turns) == sum(len(thread.turns) for thread in threads), "one id twice"
    check(home, backend, turns)
    return len(turns), sum(turns.values()), sum(thread.lists for thread in threads)


def check(home: Path, backend: str, turns: dict[str, int]) -> None:
    """Each session has its log with every turn, its row, and its entry in `sessions.json`."""
    logs = store.check_store(home)
    assert turns == {session: len([end for end in store.turns(log) if end.end]) for session, log in logs.items()}
    env = {"ACPD_STORAGE_BACKEND": backend}
    checked = run(home, "fsck", env=env)
    assert 0 == checked.code, checked.out
    rows = {row["id"]: row for row in json.loads(run(home, "ls", "--all", "--limit", "0", "--json", env=env).out)}
    assert set(turns) == set(rows)
    listed: Json = {}
    for raw in contents(home, "sessions.json").values():
        listed |= json.loads(raw)["sessions"]
    entries = {session: [one for one in log.entries if "parentId" in one] for session, log in logs.items()}
    wanted = {session: (rows[session]["messages"], found[-1]["id"]) for session, found in entries.items()}
    said = {session: (each["messageCount"], each["leaf"]) for session, each in listed.items()}
    assert set() == set(wanted.items()) ^ set(said.items())
