"""Real clients and real agents through acpd, killed twice: nothing that was shown is lost."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.peers import checks
from tests.e2e.peers.drive import Editor, Stage, StepError
from tests.e2e.peers.table import AGENTS, Place
from tests.e2e.peers.wirelog import frames
from tests.support import fold, proc

Json = dict[str, Any]

pytestmark = [pytest.mark.peers, pytest.mark.e2e]

PUSH = [name for name, agent in AGENTS.items() if agent.group == "push"]


@pytest.mark.parametrize("client_name", ["python", "typescript"])
@pytest.mark.parametrize("agent_name", PUSH)
def test_conversation_survives_two_kills(place: Place, agent_name: str, client_name: str) -> None:
    """A tool call with a permission, a cancel, kill -9 twice, once in the middle of a turn: each load shows it all."""
    survive_two_kills(Stage(place, client_name, agent_name))


def survive_two_kills(stage: Stage) -> None:
    """The conversation that every pair has."""
    try:
        session, shown = first_run(stage)
        shown = second_run(stage, session, shown)
        last_run(stage, session, shown)
        proc.assert_none_left(stage.mark)
        for run in stage.runs:
            checks.assert_valid(run)
    finally:
        stage.close()


def first_run(stage: Stage) -> tuple[str, list[Json]]:
    """Tool call, permission, cancel; then acpd is killed while nothing runs."""
    agent = stage.agent
    with stage.editor() as editor:
        session = stage.begin(editor)
        assert editor.call("prompt", sessionId=session, text=agent.tool(stage.place))["stopReason"] == "end_turn"
        assert [event["chosen"] is not None for event in editor.of("permission")] == [True]
        assert {tool["status"] for tool in fold.fold(editor.shown).tools.values()} == {"completed"}
        assert editor.call("prompt", sessionId=session, text=agent.slow, cancelAfter=2)["stopReason"] == "cancelled"
        editor.call("policy", kind="cancelled")
        stage.kill()
        proc.assert_gone(stage.pids()[-1], within=5)
        fold.check_ids(editor.updates)
    checks.assert_handled(editor.events)
    checks.assert_bytes_kept(stage.runs[-1], _inner(stage), session)
    return session, editor.shown


def second_run(stage: Stage, session: str, shown: list[Json]) -> list[Json]:
    """Load, go on, and kill in the middle of a turn; gives what stands on the screen then."""
    before = stage.agent_pids()
    with stage.editor() as editor:
        replayed = _load(stage, editor, session)
        checks.assert_same(shown, replayed)
        assert editor.call("prompt", sessionId=session, text=stage.agent.plain)["stopReason"] == "end_turn"
        for pid in before:
            proc.assert_gone(pid, within=10)
        so_far = len(editor.updates)
        running = editor.start("prompt", sessionId=session, text=stage.agent.slow)
        editor.until_updates(so_far + 3)
        stage.kill()
        with pytest.raises(StepError):
            editor.answer(running, "the prompt of the killed turn")
    checks.assert_handled(editor.events)
    return editor.shown


def last_run(stage: Stage, session: str, shown: list[Json]) -> None:
    """Load what was interrupted into another client, go on, and leave as a client does."""
    with stage.editor(other=True) as editor:
        replayed = _load(stage, editor, session)
        checks.assert_holds(shown, replayed)
        assert editor.call("prompt", sessionId=session, text=stage.agent.plain)["stopReason"] == "end_turn"
        listed = editor.call("list", cwd=str(stage.place.work))["sessions"]
        assert [session] == [entry["sessionId"] for entry in listed]
        editor.call("close", sessionId=session)
    checks.assert_handled(editor.events)
    assert [event["code"] for event in editor.of("closed")] == [0]


@pytest.mark.parametrize(
    ("agent_name", "client_name"), [("py-echo", "typescript"), ("codex", "python"), ("native", "typescript")]
)
def test_kill_while_a_permission_is_pending(place: Place, agent_name: str, client_name: str) -> None:
    """A turn that was waiting for the user when acpd was killed is shown, closed, and nothing of it is run."""
    stage = Stage(place, client_name, agent_name)
    try:
        with stage.editor() as editor:
            session = stage.begin(editor)
            editor.call("policy", kind="hold")
            running = editor.start("prompt", sessionId=session, text=stage.agent.tool(place))
            editor.wait(lambda _: editor.of("permission"), "the permission request")
            stage.kill()
            with pytest.raises(StepError):
                editor.answer(running, "the prompt of the killed turn")
        with stage.editor() as again:
            checks.assert_holds(editor.shown, _load(stage, again, session))
            statuses = [tool["status"] for tool in fold.fold(again.shown).tools.values()]
            assert statuses[-1:] in ([], ["failed"])  # codex shows the call later
            assert again.call("prompt", sessionId=session, text=stage.agent.plain)["stopReason"] == "end_turn"
            assert again.of("permission") == []
        assert not (place.work / "made.txt").exists()
        proc.assert_none_left(stage.mark)
        for run in stage.runs:
            checks.assert_valid(run)
    finally:
        stage.close()


def _load(stage: Stage, editor: Editor, session: str) -> list[Json]:
    stage.greet(editor)
    editor.call("load", sessionId=session, cwd=str(stage.place.work))
    events = editor.events
    end = next(number for number, event in enumerate(events) if event.get("op") == "load")
    return [event["params"] for event in events[:end] if event["event"] == "update"]


def _inner(stage: Stage) -> str:
    """The agent's own id of the session of the newest run."""
    prompts = [frame for log in stage.runs[-1].glob("agent-*.wire") for frame in frames(log, ">", "", "session/prompt")]
    return str(prompts[0].value["sessionId"])
