"""What must hold of every conversation through acpd, whoever the peers are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.e2e.peers.wirelog import certain, compare, frames, lines
from tests.support import fold
from tests.support.schema import WireCheck

Json = dict[str, Any]

ASKS = ("session/request_permission", "fs/read_text_file", "fs/write_text_file", "elicitation/create")


def assert_same(shown: Sequence[Json], replayed: Sequence[Json]) -> None:
    """What a load shows equals what was shown: messages, tool calls, plans, compactions and commands."""
    before, after = fold.fold(shown).closed(), fold.fold(replayed).closed()
    assert before.timeline == after.timeline
    assert before.tools == after.tools
    assert before.plan == after.plan
    assert before.plans == after.plans
    assert before.compactions == after.compactions
    assert (before.commands or None) == (after.commands or None)
    said = [pair for pair in fold.message_ids(shown) if pair[0] != "user"]
    assert said == [pair for pair in fold.message_ids(replayed) if pair[0] != "user"]


def assert_holds(shown: Sequence[Json], replayed: Sequence[Json]) -> None:
    """A load after a kill in the middle of a turn shows all that was shown; the stored turn may be longer."""
    before, after = fold.fold(shown).closed(), fold.fold(replayed).closed()
    assert len(before.timeline) <= len(after.timeline)
    assert before.timeline[:-1] == after.timeline[: len(before.timeline) - 1]
    cut, whole = before.timeline[-1], after.timeline[len(before.timeline) - 1]
    assert cut.get("message") == whole.get("message")
    assert cut.get("tool") == whole.get("tool")
    if "message" in cut:
        assert _text(whole).startswith(_text(cut))
    assert before.tools.keys() <= after.tools.keys()
    assert before.plan == after.plan


def _text(item: Json) -> str:
    return "".join(str(block.get("text", block)) for block in item["blocks"])


def assert_bytes_kept(run: Path, inner: str, outer: str) -> None:
    """In a run without a load the client gets each update and each request as the agent wrote it, in order, once.

    And the agent gets each prompt as the client wrote it.
    """
    (client,) = run.glob("client-*.wire")
    agent = [log for log in run.glob("agent-*.wire") if frames(log, ">", inner, "session/prompt")]
    assert len(agent) == 1
    got = frames(client, "<", outer)
    assert len(got) > 3
    said = frames(agent[0], "<", inner)
    must = certain(agent[0], inner)
    if all(compare(said[:whole], got) for whole in range(must, len(said) + 1)):
        assert compare(said, got) == []
    assert compare(frames(agent[0], "<", inner, *ASKS), frames(client, "<", outer, *ASKS)) == []
    prompts = frames(client, ">", outer, "session/prompt")
    assert compare(prompts, frames(agent[0], ">", inner, "session/prompt")) == []


def assert_valid(run: Path) -> None:
    """Each line that left acpd, to either side, validates against the schema of its method."""
    for log in run.glob("client-*.wire"):
        client = WireCheck()
        for direction, line in lines(log):
            (client.seen_from_client if direction == ">" else client.sent_by_acpd_to_client)(line)
        assert client.sent > 0
    for log in run.glob("agent-*.wire"):
        agent = WireCheck()
        for direction, line in lines(log):
            (agent.seen_from_agent if direction == "<" else agent.sent_by_acpd_to_agent)(line)
        assert agent.sent > 0


def assert_handled(events: Sequence[Json]) -> None:
    """The SDK understood every update that it received."""
    received = sorted(event["params"]["update"]["sessionUpdate"] for event in events if event["event"] == "update")
    assert received == sorted(event["kind"] for event in events if event["event"] == "handled")
