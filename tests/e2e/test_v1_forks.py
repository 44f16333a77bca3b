"""session/fork (ACP v1, unstable): the past of a session, and a future of its own."""

from __future__ import annotations

import pytest

from tests.support import store
from tests.support.scripted import Stage, failing


@pytest.mark.parametrize("able", [True, False], ids=["agent-forks", "primed"])
def test_a_fork_has_the_past_and_a_future_of_its_own(able: bool, play: Stage) -> None:
    """A new id whose load shows the source's past; prompts in one are not in the other; the source is untouched."""
    client = play.start(*(() if able else ("--no-fork",)))
    session = client.new(play.cwd)
    client.prompt(session, "say root\ntool x")
    source = store.log(play.home, session).path.read_bytes()
    answer = client.call("session/fork", {"sessionId": session, "cwd": str(play.cwd), "mcpServers": []})
    fork = answer["sessionId"]
    assert fork != session
    assert "ask" == answer["modes"]["currentModeId"]
    assert source == store.log(play.home, session).path.read_bytes()
    client.prompt(fork, "say branch\ncontext" if not able else "say branch\nhistory")
    client.prompt(session, "say trunk")
    assert "branch" not in client.text(session)
    assert "trunk" not in client.text(fork)
    assert ("root" in client.text(fork)) is not able, "told as text, or the agent's own fork"
    logs = play.finish(client)
    assert session == logs[fork].header["parent"]["sessionId"]
    client = play.start()
    client.load(fork, play.cwd)
    assert client.text(fork).startswith("rootbranch")
    client.load(session, play.cwd)
    assert "roottrunk" == client.text(session)
    assert "end_turn" == client.prompt(fork, "say on")
    play.finish(client)


def test_a_fork_in_a_turn_takes_what_is_over_and_disturbs_nothing(play: Stage) -> None:
    """The source's turn goes on to its end and is not in the fork; before the first turn is over there is nothing to fork."""
    client = play.start()
    session = client.new(play.cwd)
    params = {"sessionId": session, "cwd": str(play.cwd), "mcpServers": []}
    hanging = client.start_prompt(session, "say first\nhang")
    client.wait_update("agent_message_chunk")
    assert -32600 == failing(client, "session/fork", params).code
    client.notify("session/cancel", {"sessionId": session})
    assert {"stopReason": "cancelled"} == client.result(hanging)
    running = client.start_prompt(session, "say half\nsleep 400\nsay whole")
    client.wait("half", lambda: client.text(session).endswith("half"))
    fork = client.call("session/fork", params)["sessionId"]
    assert {"stopReason": "end_turn"} == client.result(running)
    assert "firsthalfwhole" == client.text(session)
    assert "end_turn" == client.prompt(fork, "say on")
    logs = play.finish(client)
    assert ["cancelled", "end_turn"] == [turn.end["stopReason"] for turn in store.turns(logs[fork]) if turn.end]
    client = play.start()
    client.load(fork, play.cwd)
    assert "firston" == client.text(fork)
    play.finish(client)
