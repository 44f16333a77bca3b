"""What must hold of every conversation through acpd, whoever the peers are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.e2e.peers.wirelog import compare, frames, lines
from tests.support import fold
from tests.support.wire import checks

Json = dict[str, Any]

ASKS = ("session/request_permission", "fs/read_text_file", "fs/write_text_file", "elicitation/create")


def assert_same(shown: Sequence[Json], replayed: Sequence[Json]) -> None:
    """What a load shows equals what was shown: messages, tool calls, plans, compactions, commands and usage."""
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
    """In a run without a load the client gets each update and each request as the agent wrote it, in order, once."""
    said, asked = [], []
    for log in sorted(run.glob("agent-*.out")):
        said += frames(log, inner)
        asked += frames(log, inner, *ASKS)
    got = frames(run / "client.out", outer)
    assert compare(said, got) == []
    assert compare(asked, frames(run / "client.out", outer, *ASKS)) == []
    assert len(got) > 3


def assert_valid(run: Path) -> None:
    """Each line that left acpd validates against the schema of its method."""
    client = checks()
    for line in lines(run / "client.in"):
        client.to_agent(line.encode())
    wrong = [problem for line in lines(run / "client.out") if (problem := client.to_client(line.encode()))]
    for log in run.glob("agent-*.in"):
        agent = checks()
        for line in lines(log.with_suffix(".out")):
            agent.to_client(line.encode())
        wrong += [problem for line in lines(log) if (problem := agent.to_agent(line.encode()))]
    assert wrong == []


def assert_handled(events: Sequence[Json]) -> None:
    """The SDK understood every update that it received."""
    received = sorted(event["params"]["update"]["sessionUpdate"] for event in events if event["event"] == "update")
    assert received == sorted(event["kind"] for event in events if event["event"] == "handled")
