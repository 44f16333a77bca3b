"""Requests about the tree: `_acpd/tree`, `_acpd/branch`, `_acpd/label`, and `session/fork` at an entry."""

from __future__ import annotations

import json
from typing import Any

import pytest

from acpd.errors import INVALID_PARAMS, INVALID_REQUEST, RESOURCE_NOT_FOUND, RequestError
from acpd.trees import RUN
from tests.agents.house import House
from tests.core.desk import Desk, desk, until
from tests.support.store import Json


async def talked(one: Desk, *scripts: str) -> tuple[str, list[str]]:
    """A session with a turn for each script; the last entry of each turn."""
    session = await one.new()
    ends: list[str] = []
    for script in scripts:
        assert {"stopReason": "end_turn"} == await one.prompt(session, script)
        ends.append((await one.ask("_acpd/tree", sessionId=session))["leaf"])
    return session, ends


async def refused(one: Desk, method: str, **params: Any) -> RequestError:
    with pytest.raises(RequestError) as error:
        await one.ask(method, **params)
    return error.value


async def test_the_tree(house: House) -> None:
    """A row for each turn: the entry behind which one can go on, where it hangs, what was asked, how it ended, its label."""
    async with desk(house, house.host()) as one:
        session, ends = await talked(one, "say one", "say two")
        await one.ask("_acpd/label", sessionId=session, entry=ends[1], label="tried")
        assert {"leaf": ends[0]} == await one.ask("_acpd/branch", sessionId=session, entry=ends[0])
        await one.prompt(session, "say three")
        tree = await one.ask("_acpd/tree", sessionId=session)
    first, side, last = tree["rows"]
    assert (2, last["entry"]) == (tree["branches"], tree["leaf"])
    assert sum(row["entries"] for row in tree["rows"]) == tree["entries"]
    assert {"parent": None, "entry": ends[0], "depth": 0, "prompt": "say one", "end": "end_turn", "onPath": True} == _known(
        first
    )
    assert {
        "parent": ends[0],
        "entry": ends[1],
        "depth": 1,
        "prompt": "say two",
        "end": "end_turn",
        "label": "tried",
    } == _known(side)
    assert (ends[0], 0, "say three", True) == (last["parent"], last["depth"], last["prompt"], last["onPath"])


def _known(row: Json) -> Json:
    return {name: value for name, value in row.items() if name not in {"first", "entries"}}


async def test_a_long_tree_is_shortened(house: House) -> None:
    """A result has a bounded size: long rows of turns are told by their number."""
    async with desk(house, house.host()) as one:
        session = await one.new()
        live = house.registry.live[session]
        for number in range(RUN + 100):
            live.recorder.entry("prompt", b',"prompt":[{"type":"text","text":"p%d"}]' % number)
        tree = await one.ask("_acpd/tree", sessionId=session)
    (hidden,) = [row["hidden"] for row in tree["rows"] if "hidden" in row]
    assert {"turns": 99, "entries": 99, "branches": 0} == hidden
    assert RUN + 2 == len(tree["rows"])


async def test_who_may_ask(house: House) -> None:
    """A client that has not opened the session may; it is opened for that, and given up again."""
    async with desk(house, house.host()) as one:
        session, ends = await talked(one, "say one", "say two")
        await one.ask("session/close", sessionId=session)
        assert ends[1] == (await one.ask("_acpd/tree", sessionId=session))["leaf"]
        assert session not in house.registry.live, "reading takes no lease"
        assert {"leaf": ends[0]} == await one.ask("_acpd/branch", sessionId=session, entry=ends[0])
        assert {"entry": ends[0], "label": "L"} == await one.ask("_acpd/label", sessionId=session, entry=ends[0], label="L")
        assert {"entry": ends[0], "label": None} == await one.ask("_acpd/label", sessionId=session, entry="L", label=None)
        await until(lambda: session not in house.registry.live)
        await one.load(session)
        assert ["say one", "one"] == one.texts[-2:]


@pytest.mark.parametrize(
    ("method", "params", "at_fault"),
    [
        ("_acpd/tree", {"sessionId": 1}, "params.sessionId"),
        ("_acpd/tree", {}, "sessionId"),
        ("_acpd/branch", {}, "entry"),
        ("_acpd/branch", {"entry": 7}, "params.entry"),
        ("_acpd/branch", {"entry": ""}, "params.entry"),
        ("_acpd/label", {"entry": "x"}, "label"),
        ("_acpd/label", {"entry": "x", "label": 1}, "params.label"),
        ("_acpd/label", {"entry": "x", "label": "a\nb"}, "label must be"),
        ("session/fork", {"cwd": "/", "_meta": {"acpd.dev/entry": 5}}, 'params._meta["acpd.dev/entry"]'),
        ("session/fork", {"cwd": "/", "_meta": {"acpd.dev/entry": ""}}, 'params._meta["acpd.dev/entry"]'),
    ],
)
async def test_bad_params(method: str, params: Json, at_fault: str, house: House) -> None:
    """-32602 that names the member at fault."""
    async with desk(house, house.host()) as one:
        known = {"sessionId": await one.new(), **params} if method != "_acpd/tree" else params
        error = await refused(one, method, **known)
        assert INVALID_PARAMS == error.code
        assert at_fault in str(error)


async def test_unknown_sessions_and_entries(house: House) -> None:
    """An unknown session is -32002; an unknown entry is -32602 and named, in every request that names one."""
    async with desk(house, house.host()) as one:
        session, _ = await talked(one, "say one")
        fork = {"cwd": str(house.root), "_meta": {"acpd.dev/entry": "nowhere"}}
        for method, params in (
            ("_acpd/branch", {"entry": "nowhere"}),
            ("_acpd/label", {"entry": "nowhere", "label": "L"}),
            ("session/fork", fork),
        ):
            error = await refused(one, method, sessionId=session, **params)
            assert (INVALID_PARAMS, {"entry": "nowhere"}) == (error.code, json.loads(error.raw or b"{}")["data"])
            assert f"entry nowhere of session {session}" in str(error)
            assert RESOURCE_NOT_FOUND == (await refused(one, method, sessionId="gone", **params)).code
        assert RESOURCE_NOT_FOUND == (await refused(one, "_acpd/tree", sessionId="gone")).code
        assert [session] == list(house.registry.live), "no half of a fork"


async def test_not_in_a_turn(house: House) -> None:
    """Branching is refused while a turn runs; labelling and looking are not, and forking at an entry is not."""
    async with desk(house, house.host()) as one:
        session, ends = await talked(one, "say one")
        running = house.tasks.spawn(one.prompt(session, "say half\nhang"), name="prompt", watched=True)
        await until(lambda: "half" in one.texts)
        error = await refused(one, "_acpd/branch", sessionId=session, entry=ends[0])
        assert (INVALID_REQUEST, True) == (error.code, "is running" in str(error))
        await one.ask("_acpd/label", sessionId=session, entry=ends[0], label="L")
        fork = await one.ask("session/fork", sessionId=session, cwd=str(house.root), _meta={"acpd.dev/entry": "L"})
        assert ends[0] == (await one.ask("_acpd/tree", sessionId=fork["sessionId"]))["leaf"]
        one.peer.notify("session/cancel", b'{"sessionId":"%b"}' % session.encode())
        assert {"stopReason": "cancelled"} == await running


async def test_a_fork_in_the_middle_of_a_turn(house: House) -> None:
    """The turn ends there, and it is said so; what came after it is in the source alone."""
    async with desk(house, house.host()) as one:
        session, _ = await talked(one, "say one", "say half\nsay whole")
        updates = house.log(house.registry.live[session]).of("update")
        half = next(line["id"] for line in updates if line["params"]["update"]["content"]["text"] == "half")
        fork = await one.ask("session/fork", sessionId=session, cwd=str(house.root), _meta={"acpd.dev/entry": half})
        before = len(one.texts)
        await one.load(fork["sessionId"])
        texts = one.texts[before:]
        assert ["say one", "one", "say half\nsay whole", "half"] == texts[:4]
        assert "forked in the middle of this turn" in texts[4]
        assert 5 == len(texts)
        assert {"stopReason": "end_turn"} == await one.prompt(fork["sessionId"], "say on")
        assert house.log(house.registry.live[fork["sessionId"]]).header["parent"] == {"sessionId": session, "entryId": half}


async def test_two_clients(house: House) -> None:
    """One branches; the other is told so, and its next prompt goes on from there."""
    async with desk(house, house.host()) as one, desk(house, house.host()) as other:
        session, ends = await talked(one, "say one", "say two")
        await other.load(session)
        seen = len(other.texts)
        await one.ask("_acpd/branch", sessionId=session, entry=ends[0])
        await until(lambda: len(other.texts) > seen)
        assert "goes on at another point" in other.texts[seen]
        assert {"stopReason": "end_turn"} == await other.prompt(session, "context")
        assert "say one" in other.texts[-1]
        assert "say two" not in other.texts[-1]
        seen = len(other.texts)
        await other.load(session)
        assert ["say one", "one", "context"] == other.texts[seen : seen + 3]
