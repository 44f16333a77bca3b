"""Two tracks: what our agent keeps of a session, and the log, after every outcome and in another process."""

from __future__ import annotations

import pytest

from tests.seed.stage import Stage as Native
from tests.support.client import RpcError
from tests.support.models import answer, http
from tests.support.scripted import Stage
from tests.support.walk import contents

pytestmark = pytest.mark.e2e


PLAN = {"steps": [{"content": "look for the blue key", "status": "in_progress"}, {"content": "open the door"}]}


def test_s01_the_next_process_goes_on_with_memory_plan_and_usage(native: Native) -> None:
    """Each is kept under its name, and the next process goes on with it."""
    native.model.canned = [answer("chat", calls=[("c1", "plan", PLAN)]), answer("chat", "It begins.")]
    with native.client() as client:
        session = client.new(native.cwd)
        client.prompt(session, "remember the number 4711")
    assert ["look for the blue key", "open the door"] == [step["content"] for step in native.value(session, "plan")]
    assert {"requests": 2, "input": 22, "output": 14, "cost": None} == native.value(session, "usage")
    with native.client() as client:
        client.load(session, native.cwd)
        client.prompt(session, "go on")
    assert "4711" in native.told()
    assert "- [in_progress] look for the blue key" in native.model.bodies[-1]["messages"][0]["content"]
    assert 3 == native.value(session, "usage")["requests"]


@pytest.mark.parametrize("outcome", ["error", "cancel", "killed"])
def test_s03_whatever_becomes_of_a_turn_the_next_one_knows_it(native: Native, outcome: str) -> None:
    """An error, a cancel, and a client and an acpd that are killed: the prompt and what had been done stay."""
    done = [answer("chat", calls=[("c1", "plan", PLAN)])]
    native.model.canned = [*done, http(401, {"error": {"message": "no"}})] if outcome == "error" else done
    with native.client() as client:
        session = client.new(native.cwd)
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
    assert native.value(session, "memory") is not None
    assert 2 == len(native.value(session, "plan"))
    with native.client() as client:
        client.load(session, native.cwd)
        assert "end_turn" == client.prompt(session, "go on")
    assert "4711" in native.told()
    assert '"c1"' in native.told()


@pytest.mark.parametrize("left", [None, b"{}"])
def test_a_lost_snapshot_is_made_again_of_the_log(native: Native, left: bytes | None) -> None:
    """Without the model's memory, or with an empty one, the agent is told the conversation from the log; the user is told so.

    What is kept beside it - what was always allowed, the plan, what was used - stays.
    """
    run = {"command": "true"}
    native.model.canned = [
        answer("chat", calls=[("c1", "plan", PLAN)]),
        answer("chat", calls=[("c2", "run", run)]),
        answer("chat", "Done: 4711."),
    ]
    with native.client(lambda _: {"outcome": {"outcome": "selected", "optionId": "always"}}) as client:
        session = client.new(native.cwd)
        client.prompt(session, "remember the word oleander")
    memory = native.state(session, "memory")
    memory.unlink() if left is None else memory.write_bytes(left)
    native.model.canned = [answer("chat", calls=[("c3", "run", run)])]
    with native.client() as client:
        client.load(session, native.cwd)
        before = len(client.lines)
        assert "end_turn" == client.prompt(session, "which word was it?")
        shown = "".join(
            line.message["params"]["update"].get("content", {}).get("text", "")
            for line in client.lines[before:]
            if line.kind == "agent_message_chunk"
        )
        assert "could not restore its own memory of this session" in shown
        assert [] == [line for line in client.lines if line.method == "session/request_permission"]
    assert "oleander" in native.told()
    assert "4711" in native.told()
    assert "look for the blue key" in native.model.bodies[-1]["messages"][0]["content"]
    assert 5 == native.value(session, "usage")["requests"]
    assert native.value(session, "memory") is not None


def test_a15_an_unreadable_snapshot_is_an_error_and_stays(native: Native) -> None:
    """Nothing is begun anew over a state that cannot be read; other sessions go on."""
    with native.client() as client:
        session, other = client.new(native.cwd), client.new(native.cwd)
        client.prompt(session, "one")
        client.prompt(other, "two")
    file = native.state(session, "memory")
    file.write_bytes(broken := file.read_bytes()[:-9])
    with native.client() as client:
        client.load(session, native.cwd)
        with pytest.raises(RpcError, match="memory"):
            client.prompt(session, "which?")
        client.load(other, native.cwd)
        client.prompt(other, "three")
    kept = [path.read_bytes() for path in file.parent.iterdir()]
    assert broken in kept


def test_what_an_agent_keeps_is_forgotten_where_it_is_of_another_branch_only(play: Stage) -> None:
    """A resume that the agent refuses loses nothing that it keeps; after a branch that is of another conversation."""

    def kept() -> dict[str, bytes]:
        return {path.name: data for path, data in contents(play.home / "data").items() if "context" in path.parts}

    client = play.start()
    session = client.new(play.cwd)
    client.prompt(session, "say one")
    first = client.call("_acpd/tree", {"sessionId": session})["leaf"]
    client.prompt(session, "state notes 7\nstate usage 8")
    play.finish(client)
    play.state.unlink()
    client = play.start()
    client.load(session, play.cwd)
    client.prompt(session, "say two")
    assert "could not restore its own memory" in client.told(session)
    assert (b"7", b"8") == (kept()["notes.json"], kept()["usage.json"])
    client.call("_acpd/branch", {"sessionId": session, "entry": first})
    client.prompt(session, "say three")
    assert ("notes.json" in kept(), kept()["usage.json"]) == (False, b"8")
    play.finish(client)
