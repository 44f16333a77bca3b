"""A client on the Python SDK and one on the TypeScript SDK, each behind a shim, on one session of one daemon: in all orders."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.peers.drive import Editor
from tests.e2e.peers.table import Place, client
from tests.support import proc
from tests.support.commands import acpd
from tests.support.scripted import AGENT
from tests.support.seats import WAIT, Changes, Json, Seat
from tests.support.two_clients import is_seeded, play

pytestmark = [pytest.mark.peers, pytest.mark.e2e]

SDK = {"A": "python", "B": "typescript"}


class SdkSeat(Seat):
    """A client process on one of the SDKs, and the shim that it started."""

    def __init__(self, who: str, changes: Changes, place: Place, env: dict[str, str], tag: str) -> None:
        super().__init__(who, changes)
        self._chosen: list[str] = []
        """What was answered; an SDK sends an answer when it comes to it."""
        command = acpd("run", "--name", "script", "--", sys.executable, "-E", "-S", str(AGENT))
        self._editor = Editor(client(SDK[who], place.installed), command, env, place, tag, self._take)
        self._editor.call("initialize")
        self._editor.call("policy", kind="told")

    def _take(self, event: Json) -> None:
        match event["event"]:
            case "update":
                self.tell("update", params=event["params"])
            case "asked":
                self.tell("asked", id=event["id"], params=event["params"])
            case "withdrawn" | "replied" as kind:
                self.tell(kind, id=event["id"])
            case "result":
                self.tell("answered", key=event["step"], result=event["result"])
            case "error" if not self.left:  # what the SDK itself says of a connection that it has closed is no answer
                self.tell("answered", key=event["step"], error=event)
            case _:
                pass

    def begin(self, how: str, session: str, cwd: Path) -> Any:
        return self._editor.start(how, sessionId=session, cwd=str(cwd))

    def prompt(self, session: str, text: str) -> Any:
        return self._editor.start("prompt", sessionId=session, text=text, apart=True)

    def nonsense(self) -> Any:
        return self._editor.start("nonsense")

    def cancel(self, session: str) -> None:
        self._editor.call("cancel", sessionId=session)

    def barrier(self) -> None:
        for ask in self._chosen:
            self.changes.until(f"{self.who}'s answer to {ask}", partial(self._has_left, ask), self.story)
        self._chosen.clear()
        super().barrier()

    def _has_left(self, ask: str) -> bool:
        return any(each["id"] == ask for each in (*self.of("replied"), *self.of("withdrawn")))

    def choose(self, ask: Json, option: str) -> None:
        self._chosen.append(ask["id"])
        self._editor.start("choose", toolCallId=ask["params"]["toolCall"]["toolCallId"], optionId=option)

    def close_session(self, session: str) -> None:
        self._editor.call("close", sessionId=session)

    def close(self) -> None:
        """As its SDK does it."""
        self.left = True
        with self._editor:
            pass

    def kill(self) -> None:
        self.left = True
        self._editor.kill()


class SdkHouse:
    """One daemon, and the two clients, which live as long as they can."""

    can_stall = False

    def __init__(self, place: Place) -> None:
        self.home = place.folder / "acpd"
        self.work = place.work
        self.changes = Changes()
        self.mark = proc.new_mark()
        self._place = place
        self._seats: dict[str, Seat] = {}
        self._started = 0
        place.work.mkdir()
        place.home.mkdir()
        self._env = {
            "PATH": f"{place.installed.node_bin}:{os.environ['PATH']}",
            "HOME": str(place.home),
            "LANG": "C.UTF-8",
            "ACPD_HOME": str(self.home),
            proc.MARK: self.mark,
        }
        self._daemon = subprocess.Popen(acpd("serve"), env=self._env, cwd=place.folder, stdin=subprocess.DEVNULL)
        self._wait_for_it()

    def _wait_for_it(self) -> None:
        end = time.monotonic() + WAIT
        with socket.socket(socket.AF_UNIX) as probe:
            while probe.connect_ex(str(self.home / "run" / "acpd.sock")):
                assert time.monotonic() < end, "acpd serve does not listen"
                assert self._daemon.poll() is None, "acpd serve has ended"
                time.sleep(0.02)

    def seat(self, who: str) -> Seat:
        if who not in self._seats or self._seats[who].left:
            self._started += 1
            self._seats[who] = SdkSeat(who, self.changes, self._place, self._env, f"{SDK[who]}-{self._started}")
        return self._seats[who]

    def clear(self) -> None:
        for seat in self._seats.values():
            if not seat.left:
                seat.kill()

    def end(self) -> None:
        self.clear()
        self._daemon.send_signal(signal.SIGTERM)
        try:
            assert 0 == self._daemon.wait(WAIT)
            proc.assert_none_left(self.mark)
        finally:
            self._daemon.kill()
            proc.kill_marked(self.mark)


@pytest.fixture
def house(place: Place) -> Iterator[SdkHouse]:
    """Afterwards no process of it is left."""
    made = SdkHouse(place)
    yield made
    made.end()


def test_two_sdks(house: SdkHouse, pytestconfig: pytest.Config) -> None:
    """Two ordinary clients, whatever they do at the same time, see what the log has: all of it, once, in order."""
    play(house, 10, 30, seeded=is_seeded(pytestconfig))
