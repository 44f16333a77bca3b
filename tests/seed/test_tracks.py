"""Two tracks: what our agent keeps of a session, and the log, after every outcome and in another process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.seed.stage import Stage
from tests.support.client import RpcError
from tests.support.models import ModelServer, answer, http, model_server

pytestmark = pytest.mark.e2e


@pytest.fixture
def model() -> Iterator[ModelServer]:
    with model_server() as made:
        yield made
        assert [] == made.wrong


@pytest.fixture
def stage(tmp_path: Path, model: ModelServer) -> Stage:
    return Stage(tmp_path, model)


PLAN = {"steps": [{"content": "look for the blue key", "status": "in_progress"}, {"content": "open the door"}]}


def test_the_next_process_goes_on_with_memory_plan_and_usage(stage: Stage) -> None:
    """Each is kept under its name, and the next process goes on with it."""
    stage.model.canned = [answer("chat", calls=[("c1", "plan", PLAN)]), answer("chat", "It begins.")]
    with stage.client() as client:
        session = client.new(stage.cwd)
        client.prompt(session, "remember the number 4711")
    assert ["look for the blue key", "open the door"] == [step["content"] for step in stage.value(session, "plan")]
    assert {"requests": 2, "input": 22, "output": 14, "cost": None} == stage.value(session, "usage")
    with stage.client() as client:
        client.load(session, stage.cwd)
        client.prompt(session, "go on")
    assert "4711" in stage.told()
    assert "- [in_progress] look for the blue key" in stage.model.bodies[-1]["messages"][0]["content"]
    assert 3 == stage.value(session, "usage")["requests"]


@pytest.mark.parametrize("outcome", ["error", "cancel", "killed"])
def test_whatever_becomes_of_a_turn_the_next_one_knows_it(stage: Stage, outcome: str) -> None:
    """An error, a cancel, and a client and an acpd that are killed: the prompt and what had been done stay."""
    done = [answer("chat", calls=[("c1", "plan", PLAN)])]
    stage.model.canned = [*done, http(401, {"error": {"message": "no"}})] if outcome == "error" else done
    with stage.client() as client:
        session = client.new(stage.cwd)
        if outcome == "error":
            with pytest.raises(RpcError):
                client.prompt(session, "remember the number 4711")
        else:
            ident = client.start_prompt(session, "remember the number 4711 [[slow 200 50]]")
            client.wait_update("agent_message_chunk", 2)
            if outcome == "killed":
                client.kill()
            else:
                client.notify("session/cancel", {"sessionId": session})
                assert "cancelled" == client.result(ident)["stopReason"]
    assert stage.value(session, "memory") is not None
    assert 2 == len(stage.value(session, "plan"))
    with stage.client() as client:
        client.load(session, stage.cwd)
        assert "end_turn" == client.prompt(session, "go on")
    assert "4711" in stage.told()
    assert '"c1"' in stage.told()


def test_a_lost_snapshot_is_made_again_of_the_log(stage: Stage) -> None:
    """Without the model's memory the agent is told the conversation from the log, and the user is told so.

    What is kept beside it - what was always allowed, the plan, what was used - stays.
    """
    run = {"command": "true"}
    stage.model.canned = [
        answer("chat", calls=[("c1", "plan", PLAN)]),
        answer("chat", calls=[("c2", "run", run)]),
        answer("chat", "Done: 4711."),
    ]
    with stage.client(lambda _: {"outcome": {"outcome": "selected", "optionId": "always"}}) as client:
        session = client.new(stage.cwd)
        client.prompt(session, "remember the word oleander")
    stage.state(session, "memory").unlink()
    stage.model.canned = [answer("chat", calls=[("c3", "run", run)])]
    with stage.client() as client:
        client.load(session, stage.cwd)
        before = len(client.lines)
        assert "end_turn" == client.prompt(session, "which word was it?")
        shown = "".join(
            line.message["params"]["update"].get("content", {}).get("text", "")
            for line in client.lines[before:]
            if line.kind == "agent_message_chunk"
        )
        assert "could not restore its own memory of this session" in shown
        assert [] == [line for line in client.lines if line.method == "session/request_permission"]
    assert "oleander" in stage.told()
    assert "4711" in stage.told()
    assert "look for the blue key" in stage.model.bodies[-1]["messages"][0]["content"]
    assert 5 == stage.value(session, "usage")["requests"]
    assert stage.value(session, "memory") is not None


def test_an_unreadable_snapshot_is_an_error_and_stays(stage: Stage) -> None:
    """Nothing is begun anew over a state that cannot be read; other sessions go on."""
    with stage.client() as client:
        session, other = client.new(stage.cwd), client.new(stage.cwd)
        client.prompt(session, "one")
        client.prompt(other, "two")
    file = stage.state(session, "memory")
    file.write_bytes(broken := file.read_bytes()[:-9])
    with stage.client() as client:
        client.load(session, stage.cwd)
        with pytest.raises(RpcError, match="memory"):
            client.prompt(session, "which?")
        client.load(other, stage.cwd)
        client.prompt(other, "three")
    kept = [path.read_bytes() for path in file.parent.iterdir()]
    assert broken in kept
