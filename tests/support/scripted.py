"""acpd around the scriptable agent, one store, as many starts as a test needs.

What the agents wrote and got stands in `wire` (see agent.py, `--wire`), what they remember in `state`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from tests.support import commands, daemons, proc, store
from tests.support.agent import read_wire
from tests.support.client import WAIT, Client, Json, Line, Policy, RpcError, allow
from tests.support.paths import ROOT

T = TypeVar("T")
AGENT = ROOT / "tests" / "support" / "agent.py"
EVERYTHING: Json = {
    "fs": {"readTextFile": True, "writeTextFile": True},
    "terminal": True,
    "elicitation": {"form": {}, "url": {}},
    "session": {"notices": {}, "compaction": {}, "configOptions": {"boolean": {}}},
    "plan": {},
    "auth": {"terminal": True},
}
"""Capabilities of a client that can do all of ACP v1 that acpd passes on."""


class ByDaemon(Client):
    """A shim. Killed is the daemon with it: what a test of a killed acpd means."""

    def kill(self) -> None:
        super().kill()
        daemons.kill(self.mark)


class Stage:
    """The folders of one test, and the acpd processes that it started. `finish` ends the newest and judges it.

    `way`: "standalone", or "daemon": then each client is a shim, and to end or to kill acpd is to do so to both.
    """

    def __init__(self, tmp: Path, way: str = "standalone") -> None:
        self.tmp = tmp
        self.way = way
        self.home = tmp / "home"
        self.cwd = tmp / "work"
        self.cwd.mkdir()
        self.wire = tmp / "agent.wire"
        self.state = tmp / "agent.state"
        self.mark = proc.new_mark()
        self._clients: list[Client] = []

    def command(self, *options: str, flags: tuple[str, ...] = ()) -> list[str]:
        """An acpd around the scriptable agent with these options of its own; `flags` are acpd's."""
        agent = [sys.executable, str(AGENT), "--wire", str(self.wire), "--state", str(self.state), *options]
        return commands.acpd("run", *flags, "--", *agent)

    def launch(
        self,
        *options: str,
        flags: tuple[str, ...] = (),
        command: list[str] | None = None,
        policy: Policy | None = allow,
        env: Mapping[str, str] | None = None,
    ) -> Client:
        """A new acpd on the same store, not yet initialized."""
        made = ByDaemon if self.way == "daemon" else Client
        command = command or self.command(*options, flags=flags)
        client = made(
            command, self.home, mark=self.mark, policy=policy, env={**daemons.BY[self.way], **(env or {})}, cwd=self.tmp
        )
        self._clients.append(client)
        return client

    def start(self, *options: str, capabilities: Json | None = None, **more: Any) -> Client:
        """The same, initialized; by default the client has every capability."""
        client = self.launch(*options, **more)
        client.initialize(**(EVERYTHING if capabilities is None else capabilities))
        return client

    def finish(self, client: Client) -> dict[str, store.Log]:
        """End acpd by the end of its input: exit code 0, a clean wire, no process left, a whole store."""
        client.close_stdin()
        assert 0 == client.wait_exit(), client.story()
        client.stop()
        client.assert_clean()
        if self.way == "daemon":
            assert "no daemon" not in client.stderr()
            daemons.stop(self.mark, self.home)
        proc.assert_none_left(self.mark)
        return store.check_store(self.home)

    def agents(self) -> list[proc.Process]:
        """Those that run."""
        return [each for each in proc.marked(self.mark) if str(AGENT) in each.command and " run " not in each.command]

    def agent_got(self, method: str = "") -> list[Json]:
        """What agents were sent so far, by all of acpd's processes."""
        messages = [json.loads(line) for line in read_wire(self.wire)[0]] if self.wire.exists() else []
        return [message for message in messages if method in ("", message.get("method"))]

    def wait_agent_got(self, method: str, count: int = 1) -> list[Json]:
        """Until agents were sent so many of this method. A file tells nobody that it grew, so it is looked at again."""
        return until(f"{count} {method} at the agent", lambda: found if len(found := self.agent_got(method)) >= count else None)

    def agent_wrote(self) -> list[bytes]:
        return read_wire(self.wire)[1]

    def end(self) -> None:
        for client in self._clients:
            client.stop()
        proc.kill_marked(self.mark)


def failing(client: Client, method: str, params: Json) -> RpcError:
    """The error that this request is answered with."""
    try:
        result = client.call(method, params)
    except RpcError as error:
        return error
    raise AssertionError(f"{method} was answered with {result}")


def until(what: str, found: Callable[[], T | None], within: float = WAIT) -> T:
    """The first true value of `found`, for what only a file or /proc can say."""
    end = time.monotonic() + within
    while not (value := found()):
        assert time.monotonic() < end, f"waited {within:g} s for {what}"
        time.sleep(0.005)
    return value


def prompt_params(session: str, text: str) -> Json:
    return {"sessionId": session, "prompt": [{"type": "text", "text": text}]}


def after(client: Client, line: Line) -> list[Line]:
    """The lines that came behind this one."""
    return client.lines[line.number + 1 :]
