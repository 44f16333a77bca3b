"""The big agents, and two clients that are products of their own, through acpd."""

from __future__ import annotations

import json
import shlex
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.peers import checks
from tests.e2e.peers.drive import WAIT, Stage
from tests.e2e.peers.table import AGENTS, HERE, Place
from tests.e2e.peers.test_push_peers import survive_two_kills
from tests.support import fold, proc, store
from tests.support.scripted import until

Json = dict[str, Any]

pytestmark = [pytest.mark.peers, pytest.mark.e2e, pytest.mark.slow]

FULL = [name for name, agent in AGENTS.items() if agent.group == "full"]


@pytest.mark.parametrize("client_name", ["python", "typescript"])
@pytest.mark.parametrize("agent_name", FULL)
def test_big_agents_survive_two_kills(full_place: Place, agent_name: str, client_name: str) -> None:
    """The same conversation as with the agents of every push."""
    survive_two_kills(Stage(full_place, client_name, agent_name))


@pytest.mark.parametrize("agent_name", ["py-echo", "ts-echo", "codex", "native"])
def test_acp_client_goes_on_after_a_kill(full_place: Place, agent_name: str) -> None:
    """acp-client asks, acpd is killed, a new acp-client loads the session and sees what the first one saw; and one cancels."""
    stage = Stage(full_place, "python", agent_name)
    try:
        first = _ask(stage, None, stage.agent.tool(full_place), kill=True)
        assert len(first["asked"]) == 1
        second = _ask(stage, first["session"], stage.agent.plain, kill=False)
        assert second["session"] == first["session"]
        shown = fold.prompt("", [{"type": "text", "text": stage.agent.tool(full_place)}], "1") + _params(first["updates"])
        checks.assert_same(shown, _params(second["replayed"]))
        assert "hello there" in second["answer"]
        proc.assert_none_left(stage.mark)  # until the second acpd has ended, the session is open there
        third = _ask(stage, first["session"], stage.agent.slow, kill=False, cancel=1)
        assert third["session"] == first["session"]
        assert "cancelled" == store.log(full_place.folder / "acpd", first["session"]).of("turn")[-1]["stopReason"]
        proc.assert_none_left(stage.mark)
        for run in stage.runs:
            checks.assert_valid(run)
    finally:
        stage.close()


def _params(updates: list[Json]) -> list[Json]:
    return [{"sessionId": "", "update": update} for update in updates]


def _ask(stage: Stage, session: str | None, text: str, *, kill: bool, cancel: int = 0) -> Json:
    command, env = stage.command()
    setup = {"command": command, "cwd": str(stage.place.work), "session": session, "text": text, "cancel": cancel}
    program = [str(stage.place.installed.groups["full"].python), str(HERE / "clients" / "acp_client_run.py")]
    with subprocess.Popen([*program, json.dumps(setup)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env) as client:
        assert client.stdout is not None
        line = client.stdout.readline()
        assert line, "acp-client ended without a report; its stderr is above"
        report: Json = json.loads(line)
        if kill:
            stage.kill()
        client.communicate(timeout=WAIT)
    return report


@pytest.mark.parametrize("agent_name", ["py-echo", "ts-echo", "codex", "native"])
def test_acpx_goes_on_after_a_kill(full_place: Place, agent_name: str) -> None:
    """An acpx session goes on over its calls and over a kill of acpd; another client loads all of it."""
    stage = Stage(full_place, "python", agent_name)
    try:
        command, env = stage.command()
        acpx(full_place, command, env, "sessions", "new")
        assert "completed" in acpx(full_place, command, env, stage.agent.tool(full_place))
        (log,) = store.logs(full_place.folder / "acpd", torn=True).values()
        assert [ask["id"] for ask in log.of("ask")] == [answer["ask"] for answer in log.of("answer")] != []
        cancelled_by_acpx(full_place, command, env, stage.agent.slow)
        for pid in stage.pids():
            stage.kill(pid)
        assert "hello there" in acpx(full_place, command, env, stage.agent.plain)
        acpx(full_place, command, env, "sessions", "close")
        runs = stage.runs[:]
        with stage.editor() as editor:
            stage.greet(editor)
            (session,) = editor.call("list", cwd=str(full_place.work))["sessions"]
            editor.call("load", sessionId=session["sessionId"], cwd=str(full_place.work))
            view = fold.fold(editor.updates)
            assert {tool["status"] for tool in view.tools.values()} == {"completed"}
            assert len([kind for kind, _ in view.messages if kind == "user"]) == 3
        stage.close()  # acpx leaves a queue owner behind that lives on for its own time
        for run in runs:
            checks.assert_valid(run)
    finally:
        stage.close()


def cancelled_by_acpx(place: Place, command: list[str], env: dict[str, str], text: str) -> None:
    """A prompt that runs in one acpx is cancelled by another; the log says so."""
    home = place.folder / "acpd"

    def turns() -> list[str]:
        (log,) = store.logs(home, torn=True).values()
        return [turn.get("stopReason") or turn["state"] for turn in log.of("turn")]

    before = turns()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(acpx, place, command, env, text)
        until("the turn", lambda: turns()[len(before) :] == ["running"] or None, within=WAIT)
        acpx(place, command, env, "cancel")
        running.result(timeout=WAIT)
    assert ["running", "cancelled"] == turns()[len(before) :]


def acpx(place: Place, command: list[str], env: dict[str, str], *words: str) -> str:
    program = [str(place.installed.node_bin / "node"), str(Path(place.installed.command("full", "acpx")).resolve())]
    options = ["--approve-all", "--cwd", str(place.work), "--ttl", "5", "--agent", shlex.join(command)]
    done = subprocess.run([*program, *options, *words], env=env, cwd=place.work, capture_output=True, text=True, timeout=WAIT)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
