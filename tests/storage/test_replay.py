"""A session's stored lines as a client sees them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from acpd.storage import replay as module
from acpd.storage import slots
from acpd.storage.fold import Fold
from acpd.storage.replay import Replay, live
from acpd.wire import frames
from acpd.wire.framer import Framer
from acpd.wire.lines import Stored
from tests.storage.history import INNER, KINDS, SESSION, Log, content, dumps, params, text, updates
from tests.support import fold as oracle
from tests.support.schema import WireCheck

Json = dict[str, Any]
TERMINAL = {"type": "terminal", "terminalId": "t1"}
FRAME = (
    b'{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"outer-1","update":%b,'
    b'"_meta":{"acpd.dev/seq":%d,"acpd.dev/at":"2026-11-30T10:00:%02d.000Z"}}}\n'
)


def test_prompt_is_a_chunk_per_block() -> None:
    """A prompt is replayed as one user_message_chunk per content block, whose messageId is the entry's id."""
    image = {"type": "image", "mimeType": "image/png", "data": "AAAA"}
    log = Log().prompt(text("look"), image, text("here"))
    expected = [
        {"sessionUpdate": "user_message_chunk", "content": block, "messageId": "e1"}
        for block in (text("look"), image, text("here"))
    ]
    assert expected == updates(log.replay())


def test_chunks_of_a_message_are_joined() -> None:
    """Adjacent text chunks of one message come as one chunk, their tokens joined as they were written."""
    log = Log()
    for token in (rb'"a\u00e9\"', rb'"\ud83d\ude00', '"é\\n'.encode()):
        log.update(b'{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":%b"}}' % token)
    text_token = rb"a\u00e9\"\ud83d\ude00" + "é\\n".encode()
    update = b'{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"%b"},"messageId":"e1"}' % text_token
    assert [FRAME % (update, 1, 1)] == log.replay()


def test_agents_message_id_joins_and_parts() -> None:
    """Where the agent names its messages, its names decide what is one message, and stay."""
    log = Log().say("a", 'm"1').say("b", 'm"1').say("c", "m2").say("d", "m2", "agent_thought_chunk")
    assert [(item["content"]["text"], item["messageId"]) for item in updates(log.replay())] == [
        ("ab", 'm"1'),
        ("c", "m2"),
        ("d", "m2"),
    ]


@pytest.mark.parametrize(
    "chunk",
    [
        {"content": {"type": "text", "text": "x", "annotations": {"priority": 1}}},
        {"content": {"type": "text", "text": "x", "_meta": {"a": 1}}},
        {"content": text("x"), "_meta": {"a": 1}},
        {"content": {"type": "image", "mimeType": "image/png", "data": "AAAA"}},
        {"content": {"type": "resource_link", "uri": "file:///a", "name": "a"}},
    ],
)
def test_other_blocks_stay_in_place(chunk: Json) -> None:
    """A chunk that is more than text stays one, byte for byte, between the joined texts around it."""
    log = Log()
    for name in "ab":
        log.say(name, "m")
    stored = {"sessionUpdate": "agent_message_chunk", "messageId": "m"} | chunk
    log.update(stored).say("c", "m").say("d", "m")
    got = updates(log.replay())
    assert [text("ab"), stored["content"], text("cd")] == [item["content"] for item in got]
    assert FRAME % (dumps(stored), 3, 3) == log.replay()[1]


def test_meta_beside_the_update_is_kept() -> None:
    """A chunk whose params carry _meta is not joined with others, so that the _meta stays where it was."""
    log = Log().say("a", "m")
    log.update(
        {"sessionUpdate": "agent_message_chunk", "messageId": "m", "content": text("b")},
        wrap=b'{"sessionId":"i","update":%b,"_meta":{"k":1}}',
    )
    assert [item["_meta"].get("k") for item in params(log.replay())] == [None, 1]


def test_composed_text_stays_below_the_limit() -> None:
    """A message longer than the limit comes as several chunks with one messageId, none of them above it."""
    log = Log()
    for _ in range(10):
        log.say("x" * 30)
    got = updates(log.replay(limit=100))
    assert [len(item["content"]["text"]) for item in got] == [90, 90, 90, 30]
    assert {"e1"} == {item["messageId"] for item in got}


def test_chunk_alone_is_as_stored() -> None:
    """A line with nothing to fold goes out byte for byte as the agent wrote it, with what acpd adds."""
    raw = b'{ "sessionUpdate" : "agent_message_chunk","content":{"text":"a\\u0041","type":"text"} , "x":1.50}'
    log = Log().update(raw)
    assert [FRAME % (raw[:-1] + b',"messageId":"e1"}', 1, 1)] == log.replay() == log.live()


def test_tool_call_is_folded_where_it_began() -> None:
    """A tool call comes once, in its final state, at the place of its first line; each member in the agent's own bytes."""
    log = Log().prompt(text("go")).turn("running").say("before")
    log.update(
        b'{"sessionUpdate":"tool_call","toolCallId":"c1","title":"T","rawInput":{"n": 1.50},'
        b'"content":[{"type":"content","content":{"type":"text","text":"old"}}]}'
    )
    log.say("after")
    log.update(
        b'{"sessionUpdate":"tool_call_update","toolCallId":"c1","title":null,"status":"completed","content":[],"rawOutput":[1e3]}'
    )
    log.turn("ended")
    call = (
        b'{"sessionUpdate":"tool_call","toolCallId":"c1","title":"T","rawInput":{"n": 1.50},'
        b'"content":[],"status":"completed","rawOutput":[1e3]}'
    )
    got = log.replay()
    assert FRAME % (call, 4, 4) == got[2]
    assert [item["sessionUpdate"] for item in updates(got)] == [
        "user_message_chunk",
        "agent_message_chunk",
        "tool_call",
        "agent_message_chunk",
    ]


def test_text_around_a_folded_update_is_one_message() -> None:
    """Where the lines between two chunks of a message are folded away, the chunks are joined."""
    log = Log().call("c1").say("a", "m").patch("c1", status="completed").say("b", "m")
    assert [item["sessionUpdate"] for item in updates(log.replay())] == ["tool_call", "agent_message_chunk"]


def test_repeated_tool_call_is_sent_once() -> None:
    """A second tool_call with an id that is known patches the first; clients would show a second card."""
    log = Log().call("c1", kind="read").call("c1", status="completed")
    assert updates(log.replay()) == [
        {"sessionUpdate": "tool_call", "toolCallId": "c1", "title": "do c1", "kind": "read", "status": "completed"}
    ]
    assert [item["sessionUpdate"] for item in updates(log.replay(window=1))] == ["tool_call", "tool_call_update"]


def test_call_over_windows_goes_on_as_update() -> None:
    """A call that is open at the end of a window is sent as it stands, and what follows as tool_call_update."""
    log = (
        Log()
        .call("c1")
        .patch("c1", status="in_progress")
        .patch("c1", status="completed", content=[content("x")])
        .patch("c1", kind="read")
    )
    got = updates(log.replay(window=2))
    assert [(item["sessionUpdate"], item["status"]) for item in got] == [
        ("tool_call", "in_progress"),
        ("tool_call_update", "completed"),
    ]
    assert "title" not in got[1]
    assert got[1]["kind"] == "read"


@pytest.mark.parametrize("state", ["interrupted", "ended"])
@pytest.mark.parametrize("window", [1, 3, 100])
@pytest.mark.parametrize("status", [None, "pending", "in_progress"])
def test_turn_over_closes_its_calls(state: str, window: int, status: str | None) -> None:
    """A call that is still open when its turn is over has failed, also if it was sent before."""
    log = (
        Log()
        .prompt(text("go"))
        .turn("running")
        .call("c1", **({"status": status} if status else {}))
        .call("c2", status="completed")
        .turn(state)
    )
    view = oracle.fold(params(log.replay(window=window)))
    assert {name: tool["status"] for name, tool in view.tools.items()} == {"c1": "failed", "c2": "completed"}


def test_closing_changes_nothing_else() -> None:
    """Of a single line that is closed only the status changes."""
    raw = b'{"sessionUpdate":"tool_call", "toolCallId":"c1","status": "pending" ,"title":"T","n":1.0}'
    log = Log().turn("running").update(raw).turn("interrupted")
    assert [FRAME % (raw.replace(b'"pending"', b'"failed"'), 2, 2)] == log.replay()


def test_lost_turn_end_closes_too() -> None:
    """A prompt that follows a running turn ends it: two turns never run at once."""
    log = Log().prompt(text("a")).turn("running").call("c1").prompt(text("b"))
    assert oracle.fold(params(log.replay())).tools["c1"]["status"] == "failed"


def test_running_turn_keeps_its_calls_open() -> None:
    """While the turn runs its calls stay as they are: their updates come live."""
    log = Log().prompt(text("a")).turn("running").call("c1", status="in_progress")
    assert oracle.fold(params(log.replay())).tools["c1"]["status"] == "in_progress"


def test_finished_calls_stay_finished() -> None:
    """The end of a turn closes no call that was finished, in whatever window."""
    log = (
        Log()
        .turn("running")
        .call("c1", status="in_progress")
        .patch("c1", status="completed")
        .patch("c1", kind="read")
        .turn("ended")
    )
    for window in (1, 2, 3):
        assert oracle.fold(params(log.replay(window=window))).tools["c1"]["status"] == "completed"


def test_order_is_that_of_the_log() -> None:
    """What cannot be folded parts what could."""
    log = Log().say("a", "m").update({"sessionUpdate": "subagent_update", "sessionId": "s"}).say("b", "m").gap().say("c", "m")
    kinds = [item["sessionUpdate"] for item in updates(log.replay(kinds=KINDS | {"subagent_update"}))]
    assert kinds == [
        "agent_message_chunk",
        "subagent_update",
        "agent_message_chunk",
        "agent_message_chunk",
        "agent_message_chunk",
    ]


def test_late_result_reopens_nothing() -> None:
    """What an agent says of a call after its turn follows as an update."""
    log = Log().turn("running").call("c1").turn("ended").patch("c1", status="completed")
    assert [(item["sessionUpdate"], item["status"]) for item in updates(log.replay())] == [
        ("tool_call", "failed"),
        ("tool_call_update", "completed"),
    ]


@pytest.mark.parametrize("members", [{}, {"title": None}, {"title": "real"}])
def test_update_of_an_unknown_call(members: Json) -> None:
    """An update whose call was never announced becomes a tool_call, with its id for a title if it has none."""
    log = Log().patch("c9", status="completed", **members)
    got = updates(log.replay())
    assert [("tool_call", members.get("title") or "c9", "completed")] == [
        (item["sessionUpdate"], item["title"], item["status"]) for item in got
    ]


def test_forgotten_calls_are_updated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Past the number of calls that are remembered an update stays an update."""
    monkeypatch.setattr(module, "KNOWN_CALLS", 2)
    log = Log().call("c1").call("c2").call("c3").turn("ended").patch("c1", status="completed")
    assert updates(log.replay())[-1]["sessionUpdate"] == "tool_call_update"


@pytest.mark.parametrize("lines", [1, 2])
@pytest.mark.parametrize("spelling", [b"terminal", rb"te\u0072minal"])
def test_terminals_become_text(lines: int, spelling: bytes) -> None:
    """The terminal of a client that is gone is replayed as text; what stands beside it is unchanged."""
    item = b'{"type":"%b","terminal\\u0049d":"t1"}' % spelling
    kept = b'{"type":"content","content": {"type":"text","text":"\\u0061"}}'
    log = Log().update(
        b'{"sessionUpdate":"tool_call","toolCallId":"c1","title":"T","content":[%b,%b],"status":"completed"}' % (item, kept)
    )
    for _ in range(lines - 1):
        log.patch("c1", status="completed")
    frame = log.replay()[0]
    assert b'"content":[%b,%b]' % (slots.NO_TERMINAL, kept) in frame
    assert item in log.live()[0]


@pytest.mark.parametrize("kind", ["tool_call", "tool_call_update"])
def test_terminals_of_acpd_are_text_to_who_reads_along(kind: str) -> None:
    """A client that reads the log on gets a text for a terminal that acpd has; one of a client stays."""
    theirs = b'{"type":"terminal","terminalId":"t1"}'
    ours = b'{"type": "terminal", "terminalId":"acpd-link-1-1"}'
    head = b'{"sessionUpdate":"%b","toolCallId":"c1","title":"\\u0061 \\"acpd-\\"","content":' % kind.encode()
    log = Log().update(b"%b[%b, %b]}" % (head, theirs, ours)).update(b"%b[%b, %b]}" % (head, theirs, theirs))
    first, second = log.live()
    assert b'"update":%b[%b,%b]}' % (head, theirs, slots.NO_TERMINAL) in first
    assert b'"update":%b[%b, %b]}' % (head, theirs, theirs) in second


@pytest.mark.parametrize(
    "content",
    [
        b"null",
        b"[]",
        b"[1]",
        b'[{"type":"terminal","terminalId":"t1"}]',
        b'[{"type":"content","content":{"type":"text","text":"x"},"terminalId":"acpd-1"}]',
        b'[{"type":"content","content":{"type":"text","text":"x"},"terminalId":5}]',
    ],
)
def test_what_is_no_terminal_of_acpd(content: bytes) -> None:
    """Nothing is changed in what only looks like one."""
    text = b'{"sessionUpdate":"tool_call","toolCallId":"acpd-1","_meta":{"terminalId":"acpd-1"},"content":%b}' % content
    assert None is slots.without_own_terminals(text)
    assert None is slots.without_own_terminals(text.replace(b"tool_call", b"plan"))


def test_call_above_the_limit_is_not_composed() -> None:
    """Lines of a call that would make too big a frame together are sent one by one."""
    log = Log().turn("running").call("c1", rawInput="x" * 80).patch("c1", rawOutput="y" * 80).turn("ended")
    got = updates(log.replay(limit=150))
    assert [item["sessionUpdate"] for item in got] == ["tool_call", "tool_call_update"]
    assert got[-1]["status"] == "failed"


def test_last_plan_of_a_turn() -> None:
    """Of the plans of one turn the last is sent, where the first stood; the next turn has its own."""
    entry = {"content": "x", "priority": "high", "status": "pending"}
    log = Log()
    for turn in (1, 2):
        log.prompt(text(str(turn))).turn("running")
        for count in range(3):
            log.update({"sessionUpdate": "plan", "entries": [entry] * count}).say(f"{turn}{count}", f"m{turn}")
        log.turn("ended")
    got = updates(log.replay())
    assert [item["sessionUpdate"] for item in got] == ["user_message_chunk", "plan", "agent_message_chunk"] * 2
    assert [len(item["entries"]) for item in got if item["sessionUpdate"] == "plan"] == [2, 2]


def named_plan(name: str, size: int) -> Json:
    return {"sessionUpdate": "plan_update", "plan": {"type": "markdown", "planId": name, "content": "x" * size}}


def test_plan_operations() -> None:
    """The last plan_update of each planId is sent; a removed plan is not, and its removal only where it was sent."""
    removed = {"sessionUpdate": "plan_removed", "planId": "p"}
    log = Log().update(named_plan("p", 1)).update(named_plan("q", 1)).update(named_plan("q", 2)).update(removed)
    assert [named_plan("q", 2)] == updates(log.replay())
    assert [named_plan("p", 1), named_plan("q", 1), named_plan("q", 2), removed] == updates(log.replay(window=1))
    assert log.replay(kinds=KINDS - {"plan_update", "plan_removed"}) == []


def test_compaction_is_materialised() -> None:
    """A compaction comes as one update with its state and the whole summary, where it began."""
    log = (
        Log()
        .update({"sessionUpdate": "compaction_update", "compactionId": "k", "status": "in_progress", "error": "e"})
        .say("x")
    )
    for token in "ab":
        log.update({"sessionUpdate": "compaction_summary_chunk", "compactionId": "k", "content": text(token)})
    log.update({"sessionUpdate": "compaction_update", "compactionId": "k", "status": "completed", "error": None})
    expected = {"sessionUpdate": "compaction_update", "compactionId": "k", "status": "completed", "summary": [text("ab")]}
    assert expected == updates(log.replay())[0]
    assert len(log.replay()) == 2
    assert oracle.fold(params(log.live())) == oracle.fold(params(log.replay(window=1)))
    assert [item for item in updates(log.replay(kinds=frozenset({"agent_message_chunk"}))) if "compactionId" in item] == []


def test_summary_is_cleared_and_replaced() -> None:
    """Null clears a compaction's summary, a list replaces it, chunks go on from there."""
    log = Log().update(
        {"sessionUpdate": "compaction_update", "compactionId": "k", "status": "in_progress", "summary": [text("a")]}
    )
    for summary in (None, [text("b")], None):
        log.update({"sessionUpdate": "compaction_summary_chunk", "compactionId": "k", "content": text("x")})
        log.update({"sessionUpdate": "compaction_update", "compactionId": "k", "status": "in_progress", "summary": summary})
    assert updates(log.replay()) == [{"sessionUpdate": "compaction_update", "compactionId": "k", "status": "in_progress"}]
    log.update({"sessionUpdate": "compaction_summary_chunk", "compactionId": "k", "content": text("y")})
    assert updates(log.replay())[0]["summary"] == [text("y")]


def test_gap_is_visible() -> None:
    """Where lines were lost the client reads that a part is missing, as a message of its own."""
    log = Log().say("a", "m").gap().say("b", "m")
    got = updates(log.replay())
    assert [item["content"]["text"] for item in got] == ["a", "[A part of the history could not be read.]", "b"]
    assert got[1]["messageId"] == "gap-2"
    assert live(log.lines[1], Framer(dumps(SESSION)), KINDS) == []


def test_never_replayed() -> None:
    """Notices, facts, asks, answers, and kinds that the client did not declare are left out."""
    log = Log().other("ask", b',"method":"session/request_permission","params":{}').other("answer", b',"ask":"e1","result":{}')
    log.lines.append(Stored(type="update", id="n", seq=3, parentId="e2", kind="notice"))
    log.update({"sessionUpdate": "usage_update", "used": 1, "size": 2}).update(
        {"sessionUpdate": "subagent_update", "sessionId": "s"}
    )
    assert log.replay() == []
    assert updates(log.replay(kinds=KINDS | {"subagent_update"})) == [{"sessionUpdate": "subagent_update", "sessionId": "s"}]


def test_facts_once() -> None:
    """After the history the newest commands, usage and title are sent once, with their own seq."""
    log = Log()
    for size in (1, 2):
        log.update({"sessionUpdate": "usage_update", "used": size, "size": 9})
        log.update(
            {"sessionUpdate": "available_commands_update", "availableCommands": [{"name": "a", "description": "b"}] * size}
        )
        log.update({"sessionUpdate": "session_info_update", "title": f"T{size}"})
        log.update({"sessionUpdate": "current_mode_update", "currentModeId": "m"})
    got = params(Replay(SESSION, KINDS).facts(log.fold()))
    assert {item["update"]["sessionUpdate"]: item["_meta"]["acpd.dev/seq"] for item in got} == {
        "available_commands_update": 6,
        "usage_update": 5,
        "session_info_update": 7,
    }
    assert Replay(SESSION, frozenset()).facts(log.fold()) == []
    assert Replay(SESSION, KINDS).facts(Fold()) == []


@pytest.mark.parametrize(("last", "expected"), [({}, "T1"), ({"title": None}, None), ({"title": "T2"}, "T2")])
def test_title_outlives_a_partial_info(last: Json, expected: str | None) -> None:
    """An info that says nothing of the title keeps the one before it; null clears it."""
    log = Log().update({"sessionUpdate": "session_info_update", "title": "T1"})
    log.update({"sessionUpdate": "session_info_update", "updatedAt": "2026-01-01T00:00:00Z"} | last)
    [got] = updates(Replay(SESSION, KINDS).facts(log.fold()))
    assert (expected, "2026-01-01T00:00:00Z") == (got["title"], got["updatedAt"])


def test_unreadable_lines_are_left_out() -> None:
    """A stored line that is not what its kind says is left out, and all others are replayed."""
    log = Log().say("a")
    for kind in ("tool_call", "plan_update", "compaction_update", "agent_thought_chunk"):
        log.lines.append(Stored(type="update", id="x", seq=9, parentId="e1", kind=kind))
    log.lines.append(Stored(type="update", id="z", seq=9, parentId="e1", kind="tool_call", params=log.lines[0].params))
    log.lines.append(
        Stored(type="update", id="z", seq=9, parentId="e1", kind="agent_thought_chunk", params=log.lines[0].params)
    )
    log.lines.append(Stored(type="prompt", id="y", seq=10, parentId="x", prompt=Raw(b"7")))
    log.say("b")
    replay = Replay(SESSION, KINDS)
    assert [item["content"]["text"] for item in updates(replay.feed(log.path()))] == ["a", "b"]
    assert [item["content"]["text"] for item in updates(log.live())] == ["a", "b"]


def test_what_is_not_valid_is_mended_or_left_out() -> None:
    """An update that was kept though it is not valid goes out as it went live: mended, or not at all."""
    log = Log().update({"sessionUpdate": "tool_call", "toolCallId": "c1", "title": "T", "status": 5, "kind": "read"})
    log.update({"sessionUpdate": "tool_call", "title": "no id"}).update({"sessionUpdate": "agent_message_chunk"})
    log.update({"sessionUpdate": "agent_message_chunk", "content": text("a") | {"annotations": 7}})
    call = {"sessionUpdate": "tool_call", "toolCallId": "c1", "title": "T", "kind": "read"}
    assert [call, text("a")] == [item if "title" in item else item["content"] for item in updates(log.replay())]
    assert log.live() == log.replay()


def test_live_is_the_stored_line() -> None:
    """A client that catches up gets one frame per update, a prompt block by block, facts as they were, and nothing else."""
    log = (
        Log()
        .prompt(text("a"), text("b"))
        .turn("running")
        .say("c")
        .say("d")
        .update({"sessionUpdate": "current_mode_update", "currentModeId": "m"})
    )
    log.other("ask", b',"method":"session/request_permission","params":{"sessionId":"i","update":{}}').turn("ended")
    assert [item.get("content", {}).get("text") for item in updates(log.live())] == ["a", "b", "c", "d", None]


def test_message_ids_are_the_same_in_every_replay() -> None:
    """Whatever the windows, each message has one id, its own, and the same one live."""
    log = (
        Log()
        .prompt(text("p"))
        .turn("running")
        .say("a")
        .say("b")
        .call("c")
        .say("c")
        .say("t", kind="agent_thought_chunk")
        .turn("ended")
        .prompt(text("q"))
    )
    expected = oracle.check_ids(params(log.live()))
    assert len(expected) == 5
    for window in (1, 2, 3, 100):
        assert expected == oracle.check_ids(params(log.replay(window=window)))


# Any history: what was seen live and what is loaded are the same

words = st.text(max_size=6)
names = st.sampled_from(["m1", "m2", None])
calls = st.sampled_from(["c1", "c2", "c3"])
blocks = st.one_of(
    words.map(text),
    words.map(lambda value: {"type": "text", "text": value, "annotations": {"priority": 0.5}}),
    st.just({"type": "image", "mimeType": "image/png", "data": "AAAA"}),
)
items = st.one_of(
    words.map(content), st.just(TERMINAL), st.just({"type": "diff", "path": "/a", "newText": "b", "oldText": None})
)
states = st.sampled_from(["pending", "in_progress", "completed", "failed", None])
tool_members = st.fixed_dictionaries(
    {},
    optional={
        "status": states,
        "title": st.none() | words,
        "content": st.none() | st.lists(items, max_size=3),
        "rawInput": st.none() | st.dictionaries(words, st.integers() | words, max_size=2),
        "_meta": st.just({"claude": {"x": 1}}),
        "kind": st.sampled_from(["read", "edit"]),
    },
)


def chunk(kind: str, block: Json, name: str | None, meta: bool) -> Json:
    update: Json = {"sessionUpdate": kind, "content": block}
    return update | ({"messageId": name} if name else {}) | ({"_meta": {"k": 1}} if meta else {})


chunks = st.builds(
    chunk,
    st.sampled_from(["agent_message_chunk", "agent_thought_chunk", "user_message_chunk"]),
    blocks,
    names,
    st.just(False) | st.booleans(),
)
talk = st.builds(
    chunk, st.sampled_from(["agent_message_chunk", "agent_thought_chunk"]), words.map(text), names, st.just(value=False)
)
tools = st.builds(lambda name, new, members: (name, new, members), calls, st.booleans(), tool_members).map(
    lambda parts: (
        {"sessionUpdate": "tool_call" if parts[1] else "tool_call_update", "toolCallId": parts[0]}
        | ({"title": "t"} | {key: value for key, value in parts[2].items() if value is not None} if parts[1] else parts[2])
    )
)
plans = st.one_of(
    st.integers(0, 3).map(
        lambda n: {"sessionUpdate": "plan", "entries": [{"content": str(n), "priority": "low", "status": "pending"}] * n}
    ),
    st.builds(named_plan, st.sampled_from("pq"), st.integers(0, 3)),
    st.sampled_from("pq").map(lambda name: {"sessionUpdate": "plan_removed", "planId": name}),
)
compactions = st.one_of(
    st.builds(
        lambda name, more: {"sessionUpdate": "compaction_update", "compactionId": name, "status": "completed"} | more,
        st.just("k"),
        st.fixed_dictionaries(
            {}, optional={"summary": st.none() | st.lists(blocks, max_size=2), "error": st.none() | words, "_meta": st.none()}
        ),
    ),
    st.builds(
        lambda name, block: {"sessionUpdate": "compaction_summary_chunk", "compactionId": name, "content": block},
        st.sampled_from("kl"),
        blocks,
    ),
)
facts = st.one_of(
    st.integers(0, 9).map(lambda n: {"sessionUpdate": "usage_update", "used": n, "size": 9}),
    words.map(lambda value: {"sessionUpdate": "session_info_update", "title": value or "t"}),
    st.just({"sessionUpdate": "notice", "severity": "info", "title": "n"}),
)
said = st.one_of(chunks, chunks, chunks, tools, tools, plans, compactions, facts)
Turn = tuple[list[Json], list[Json], str, list[Json]]


def turn(theme: st.SearchStrategy[Json]) -> st.SearchStrategy[Turn]:
    """A turn's prompt, what is said in it, how it ends ("": not in the log), what is said after it."""
    prompts = st.lists(blocks, min_size=1, max_size=2)
    return st.tuples(
        prompts,
        st.lists(theme, min_size=1, max_size=12),
        st.sampled_from(["ended", "interrupted", ""]),
        st.lists(theme, max_size=3),
    )


# One theme a history, or all: what is folded together has to meet often.
turns = st.sampled_from([talk, chunks, tools, plans, compactions, said]).flatmap(
    lambda theme: st.lists(turn(theme), max_size=3)
)


def history(parts: list[Turn], *, told: bool = False) -> Log:
    log = Log(told=told)
    begun: set[str] = set()
    for prompt, during, end, late in parts:
        log.prompt(*prompt).turn("running")
        for update in [*during, None, *late]:
            if update is None:
                if end:
                    log.turn(end)
            elif update["sessionUpdate"] != "compaction_summary_chunk" or update["compactionId"] in begun:
                begun.add(update.get("compactionId", ""))
                log.update(update)
    return log


@settings(max_examples=300, deadline=None)
@given(turns, st.integers(1, 12), st.sampled_from([8, 64, 1 << 22]))
def test_loaded_is_what_was_seen(parts: list[Turn], window: int, limit: int) -> None:
    """For every history, windowing and limit a client that loads sees what a client saw live, under the same message ids."""
    log = history(parts)
    frames_live = params(log.live())
    frames_load = params(log.replay(window=window, limit=limit) + Replay(SESSION, KINDS).facts(log.fold()))
    seen, loaded = oracle.fold(frames_live).closed(), oracle.fold(frames_load).closed()
    assert seen == loaded
    assert oracle.message_ids(frames_live) == oracle.message_ids(frames_load)


@settings(max_examples=100, deadline=None)
@given(turns, st.integers(1, 12), st.sampled_from([8, 64, 1 << 22]))
def test_what_a_line_tells_changes_nothing(parts: list[Turn], window: int, limit: int) -> None:
    """Frames are the same, byte for byte, whether lines tell what is in them or have to be looked into; loaded and live."""
    told, silent = history(parts, told=True), history(parts)
    assert silent.replay(window=window, limit=limit) == told.replay(window=window, limit=limit)
    assert silent.live() == told.live()


@settings(max_examples=100, deadline=None)
@given(turns, st.integers(1, 12))
def test_replay_keeps_the_rules(parts: list[Turn], window: int) -> None:
    """Each frame is valid by ACP's schema, each tool call is announced once and before its updates, no terminal is left."""
    announced: list[str] = []
    frames_load = history(parts).replay(window=window)
    for frame in frames_load:
        WireCheck().sent_by_acpd_to_client(frame)
    for update in updates(frames_load):
        if update["sessionUpdate"] == "tool_call":
            announced.append(update["toolCallId"])
            assert isinstance(update["title"], str)
        elif update["sessionUpdate"] == "tool_call_update":
            assert update["toolCallId"] in announced
        assert "terminal" not in [item["type"] for item in update.get("content", []) or [] if isinstance(item, dict)]
    assert len(set(announced)) == len(announced)


def test_inner_session_id_is_never_sent() -> None:
    """No frame names the agent's own session id."""
    log = Log().prompt(text("a")).say("x").say("y").call("c").patch("c", status="completed")
    assert [frame for frame in log.replay() + log.replay(window=1) + log.live() if INNER.encode() in frame] == []


def test_frames_are_those_of_the_stored_line() -> None:
    """A replayed line that stands alone is the frame that went out live."""
    log = Log().prompt(text("a")).turn("running").say("x").call("c", status="completed").turn("ended")
    assert log.live() == log.replay()
    assert frames.decode_params(json.dumps({"sessionId": "i", "update": {}}).encode()).update == Raw(b"{}")
