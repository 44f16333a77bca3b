"""Clients of others with acpd's own agent, as it is configured: `acpd --agent native`."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.peers import checks
from tests.e2e.peers.drive import WAIT, Stage, tapped
from tests.e2e.peers.table import HERE, Place
from tests.e2e.peers.test_full_peers import acpx, cancelled_by_acpx
from tests.support import fold, proc, store
from tests.support.commands import acpd

Json = dict[str, Any]

pytestmark = [pytest.mark.peers, pytest.mark.e2e]


class Configured(Stage):
    """acpd with its own agent, named in acpd.toml."""

    def __init__(self, place: Place, client_name: str) -> None:
        super().__init__(place, client_name, "native")
        folder = place.folder / "acpd" / "config"
        folder.mkdir(parents=True)
        (folder / "acpd.toml").write_text(f'[agents.native]\nmodel = "openai:fake-model"\nbase_url = "{place.model_url}/v1"\n')

    def command(self) -> tuple[list[str], dict[str, str]]:
        _, env = super().command()
        env = {name: value for name, value in env.items() if not name.startswith("ACPD_AGENTS_")}
        return tapped(self.runs[-1] / "client-%p", acpd("--agent", "native")), env

    def finish(self) -> None:
        """Nothing is left running, and all that left acpd was valid."""
        proc.assert_none_left(self.mark)
        for run in self.runs:
            checks.assert_valid(run)


@pytest.mark.parametrize("client_name", ["python", "typescript"])
def test_sdk_clients(place: Place, client_name: str) -> None:
    """A tool call that is allowed, one that is refused, a cancel; then another client loads all of it and goes on."""
    stage = Configured(place, client_name)
    try:
        with stage.editor() as editor:
            session = stage.begin(editor)
            assert "end_turn" == editor.call("prompt", sessionId=session, text=stage.agent.tool(place))["stopReason"]
            assert "made by a tool\n" == (place.work / "made.txt").read_text()
            editor.call("policy", kind="reject_once")
            refused = '[[tool write {"path": "refused.txt", "content": "x"}]]'
            assert "end_turn" == editor.call("prompt", sessionId=session, text=refused)["stopReason"]
            assert not (place.work / "refused.txt").exists()
            assert ["completed", "completed", "failed"] == [tool["status"] for tool in fold.fold(editor.shown).tools.values()]
            assert 2 == len(editor.of("permission"))
            assert "cancelled" == editor.call("prompt", sessionId=session, text=stage.agent.slow, cancelAfter=2)["stopReason"]
            editor.call("close", sessionId=session)
        checks.assert_handled(editor.events)
        with stage.editor(other=True) as again:
            stage.greet(again)
            again.call("load", sessionId=session, cwd=str(place.work))
            checks.assert_same(editor.shown, again.shown)
            assert "end_turn" == again.call("prompt", sessionId=session, text=stage.agent.plain)["stopReason"]
        checks.assert_handled(again.events)
        stage.finish()
    finally:
        stage.close()


@pytest.mark.slow
def test_acpx(full_place: Place) -> None:
    """A tool call that acpx allows, a prompt that another acpx cancels, and a conversation that goes on."""
    stage = Configured(full_place, "python")
    try:
        command, env = stage.command()
        acpx(full_place, command, env, "sessions", "new")
        assert "completed" in acpx(full_place, command, env, stage.agent.tool(full_place))
        assert "made by a tool\n" == (full_place.work / "made.txt").read_text()
        cancelled_by_acpx(full_place, command, env, stage.agent.slow)
        assert "hello there" in acpx(full_place, command, env, stage.agent.plain)
        acpx(full_place, command, env, "sessions", "close")
    finally:
        stage.close()
    (log,) = store.logs(full_place.folder / "acpd", torn=True).values()
    assert [ask["id"] for ask in log.of("ask")] == [answer["ask"] for answer in log.of("answer")] != []
    for run in stage.runs:
        checks.assert_valid(run)


@pytest.mark.slow
def test_jupyter(jupyter_place: Place) -> None:
    """A tool call that is allowed by a click, in the client's own terminal, and a turn that is stopped; again after a load."""
    stage = Configured(jupyter_place, "python")
    try:
        first = _in_jupyter(stage, None)
        second = _in_jupyter(stage, first["session"])
        assert first["session"] == second["session"]
        for report in (first, second):
            assert ["end_turn", "cancelled"] == report["stops"]
            assert ["allow_always", "allow_once", "reject_always", "reject_once"] == report["asked"]
            assert {"completed"} == set(report["calls"].values())
            assert "fake-model: tool result was" in "".join(report["chat"])
        stage.finish()
    finally:
        stage.close()


def _in_jupyter(stage: Stage, session: str | None) -> Json:
    command, env = stage.command()
    made = Path(stage.place.work, "made.txt")
    made.unlink(missing_ok=True)
    tool, slow = stage.agent.tool(stage.place), stage.agent.slow
    setup = {"command": command, "cwd": str(stage.place.work), "session": session, "tool": tool, "slow": slow}
    program = [str(stage.place.installed.groups["jupyter"].python), str(HERE / "clients" / "jupyter_run.py")]
    ran = subprocess.run([*program, json.dumps(setup)], env=env, stdout=subprocess.PIPE, text=True, timeout=2 * WAIT)
    assert 0 == ran.returncode
    assert "made by a tool\n" == made.read_text()
    report: Json = json.loads(ran.stdout)
    return report
