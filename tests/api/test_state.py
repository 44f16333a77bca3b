"""What an agent keeps: by acpd, or for this process alone; and what follows from it for the conversation."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from msgspec import Raw, Struct

from acpd.api.channel import encode_exactly
from acpd.api.turn import Turn
from acpd.errors import INTERNAL_ERROR, RESOURCE_NOT_FOUND, RequestError, StateTooBig, StateUnreadable
from tests.api.desk import PATIENCE, Json, Scripted, joined, keeps, option


class Count(Struct):
    n: int = 0


async def count(turn: Turn) -> None:
    """The agent of these tests: it counts its turns."""
    state = turn.session.state
    found = state.get("count", Count) or Count()
    found.n += 1
    state.put("count", found)
    await turn.say(f"{found.n}")


async def test_acpd_keeps_the_state() -> None:
    """A value goes out at once, the turn's answer waits until it is kept, and another process finds it by load or resume."""
    kept: Json = {}
    async with joined(Scripted(count)) as (editor, _):
        editor.answers["_acpd/state"] = lambda _: None
        name = await editor.new()
        answer = editor.begin(name)
        asked = await editor.asked("_acpd/state")
        assert {"sessionId": name, "name": "count", "value": {"n": 1}} == asked
        await editor.until(lambda: editor.text() == "1")
        assert not answer.done()
        editor.settle("_acpd/state", {})
        assert {"stopReason": "end_turn"} == await answer
        kept["count"] = asked["value"]
    for method, n in (("session/load", "2"), ("session/resume", "3")):
        async with joined(Scripted(count)) as (editor, _):
            editor.answers["_acpd/state"] = keeps(kept)
            params = {"sessionId": name, "cwd": "/tmp", "mcpServers": [], "_meta": {"acpd.dev/state": dict(kept)}}
            await editor.call(method, params)
            assert [] == editor.updates()
            assert "end_turn" == await editor.prompt(name)
            assert n == editor.text()


async def test_names_of_an_earlier_process_are_not_used_again() -> None:
    """Message and call ids of a session that is loaded in a new process are others than those of the old one."""
    kept: Json = {}
    ids: list[str] = []

    async def work(turn: Turn) -> None:
        async with turn.tool("t"):
            await count(turn)

    for attempt in range(2):
        async with joined(Scripted(work)) as (editor, _):
            editor.answers["_acpd/state"] = keeps(kept)
            name = await editor.new() if attempt == 0 else "old"
            if attempt:
                await editor.load(name, state=dict(kept))
            await editor.prompt(name)
            ids += [
                update.get("messageId") or update["toolCallId"] for update in editor.updates("tool_call", "agent_message_chunk")
            ]
    assert 4 == len(ids) == len(set(ids))


async def test_who_keeps_the_state_keeps_the_conversation() -> None:
    """Behind acpd nothing is replayed: acpd has it all."""
    async with joined(Scripted(count)) as (editor, _):
        editor.answers["_acpd/state"] = keeps({})
        name = await editor.new()
        await editor.prompt(name)
        del editor.story[:]
        await editor.load(name)
        assert [] == editor.updates()


async def test_for_another_client_it_is_kept_here() -> None:
    """A client that does not know `_acpd/state` is asked once; the state lives on here, and load replays the conversation."""

    async def work(turn: Turn) -> None:
        await count(turn)
        await turn.say("a")
        await turn.think("b")
        async with turn.tool("t") as call:
            await call.finish()
        turn.session.notice("info", "not kept")
        await turn.say("c")

    async with joined(Scripted(work)) as (editor, _):
        name = await editor.new()
        await editor.prompt(name, "one")
        await editor.prompt(name, "two")
        assert 1 == len(editor.said("_acpd/state"))
        del editor.story[:]
        assert {} == await editor.load(name)
        told = [
            (update["sessionUpdate"], update["content"]["text"] if "content" in update else update["status"])
            for update in editor.updates()
        ]
        turns = [
            [
                ("user_message_chunk", prompt),
                ("agent_message_chunk", f"{n}a"),
                ("agent_thought_chunk", "b"),
                ("tool_call", "pending"),
                ("tool_call_update", "completed"),
                ("agent_message_chunk", "c"),
            ]
            for n, prompt in ((1, "one"), (2, "two"))
        ]
        assert turns[0] + turns[1] == told
        assert ("answer", {"method": "session/load"}) == editor.story[-1]
        del editor.story[:]
        await editor.call("session/resume", {"sessionId": name, "cwd": "/tmp"})
        assert [] == editor.updates()
        await editor.prompt(name)
        assert editor.text().startswith("3")


async def test_what_is_said_in_a_replay_comes_behind_it() -> None:
    """A load in a running turn: the client gets the conversation in its order, a question and the turn's answer behind it."""
    loaded = asyncio.Event()
    said: list[str] = []

    async def work(turn: Turn) -> None:
        if turn.text == "first":
            for n in range(100):
                async with turn.tool(f"t{n}"):
                    await turn.say("x")
            return
        while not loaded.is_set():
            said.append(f"{len(said)},")
            await turn.say(said[-1])

    async with joined(Scripted(work)) as (editor, _):
        name = await editor.new()
        await editor.prompt(name, "first")
        answer = editor.begin(name, "second")
        await editor.until(lambda: "0," in editor.text())
        await editor.load(name)
        loaded.set()
        assert {"stopReason": "end_turn"} == await answer
        shown = editor.updates()
        del editor.story[:]
        again = next(n for n, update in enumerate(shown) if update["sessionUpdate"] == "user_message_chunk")
        texts = [update["content"]["text"] for update in shown[again:] if "content" in update]
        assert "first" + "x" * 100 + "second" + "".join(said) == "".join(texts)


async def test_a_replay_holds_back_questions_and_answers() -> None:
    """What is asked, and how the turn ends, is told when the replay is over."""
    go = asyncio.Event()

    async def work(turn: Turn) -> None:
        if turn.text == "first":
            for n in range(300):
                async with turn.tool(f"t{n}") as call:
                    await call.text("x" * 10_000)
            return
        await turn.say("on")
        await go.wait()
        async with turn.tool("last") as call:
            await turn.allowed(call, "s")

    async with joined(Scripted(work)) as (editor, _):
        editor.answers["session/request_permission"] = option("yes")
        name = await editor.new()
        await editor.prompt(name, "first")
        answer = editor.begin(name, "second")
        await editor.until(lambda: editor.text() == "on")
        loading = editor.start("session/load", {"sessionId": name, "cwd": "/tmp", "mcpServers": []})
        await editor.until(lambda: editor.updates("user_message_chunk"))
        go.set()
        await loading
        await answer
        told = [said.get("title", what) for what, said in editor.story]
        assert told.index("last") > len(told) - 1 - told[::-1].index("t299")
        assert told.index("last") < told.index("session/request_permission") < len(told) - 1
        assert ("answer", {"method": "session/prompt"}) == editor.story[-1]


async def test_what_is_kept_here_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a conversation that is longer than the limit the oldest part is forgotten; a long message is replayed in pieces."""
    monkeypatch.setattr("acpd.api.channel.KEPT", 100_000)
    monkeypatch.setattr("acpd.api.channel.PIECE", 10_000)

    async def work(turn: Turn) -> None:
        for _ in range(200):
            await turn.say("x" * 999 + "\n")
        await turn.say("end")

    async with joined(Scripted(work)) as (editor, _):
        name = await editor.new()
        await editor.prompt(name, "begin")
        del editor.story[:]
        await editor.load(name)
        assert 50_000 < len(editor.text()) < 110_000
        assert editor.text().endswith("x\nend")
        assert 1 == len({update["messageId"] for update in editor.updates()})
        assert 5 < len(editor.updates()) < 12


async def test_an_unknown_session_is_unknown() -> None:
    """Without values that a client brings, load, resume, prompt and the options of an unknown session are -32002."""
    async with joined(Scripted(count)) as (editor, _):
        params: Json = {"sessionId": "x", "cwd": "/tmp", "mcpServers": [], "prompt": [{"type": "text", "text": "a"}]}
        metas: list[Json] = [{}, {"_meta": {"acpd.dev/state": {}}}, {"_meta": {"acpd.dev/state": 7}}]
        for method in ("session/load", "session/resume", "session/prompt", "session/set_mode", "session/set_config_option"):
            for meta in metas:
                error = await editor.refusal(method, {**params, "modeId": "m", "configId": "c", "value": "v", **meta})
                assert (RESOURCE_NOT_FOUND, {"sessionId": "x"}) == (error.code, json.loads(error.raw or b"{}")["data"])


async def test_what_cannot_be_read_is_left_alone() -> None:
    """A value of another shape raises StateUnreadable; it is not overwritten, and the other values go on."""
    heard: list[object] = []

    async def work(turn: Turn) -> None:
        with pytest.raises(
            StateUnreadable, match=r"cannot read state 'count' of this session: .* \(put it back from a backup, or remove it"
        ):
            turn.session.state.get("count", Count)
        heard.append(turn.session.state.get("other", str))
        heard.append(turn.session.state.get("none", str))

    async with joined(Scripted(work)) as (editor, _):
        await editor.load("x", state={"count": 7, "other": "o"})
        assert "end_turn" == await editor.prompt("x")
        assert (["o", None], []) == (heard, editor.said("_acpd/state"))


async def test_a_full_disk_costs_no_value() -> None:
    """What the client could not keep is sent again at the end of the turn."""
    kept: Json = {}
    full = [True]

    def keep(params: Json) -> Json:
        if full:
            full.pop()
            raise RequestError(INTERNAL_ERROR, "disk full")
        return keeps(kept)(params) or {}

    async def work(turn: Turn) -> None:
        turn.session.state.put("n", 1)
        await turn.session.state.saved()
        assert {} == kept
        await turn.say("a")

    async with joined(Scripted(work)) as (editor, _):
        editor.answers["_acpd/state"] = keep
        await editor.prompt(await editor.new())
        assert {"n": 1} == kept


async def test_a_silent_client_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that never answers `_acpd/state` delays the first turn of the connection and no other."""
    monkeypatch.setattr("acpd.api.state.SAVE_TIMEOUT", 0.05)
    async with joined(Scripted(count)) as (editor, _):
        editor.answers["_acpd/state"] = lambda _: None
        assert "end_turn" == await editor.prompt(await editor.new())
        monkeypatch.setattr("acpd.api.state.SAVE_TIMEOUT", 1000)
        name = await editor.new()
        assert ["end_turn", "end_turn"] == [await editor.prompt(name), await editor.prompt(name)]
        assert "112" == editor.text()


@pytest.mark.parametrize("meta", [None, 5, {}, {"acpd.dev/state": None}, {"acpd.dev/state": True}])
async def test_a_client_that_keeps_nothing_is_asked_nothing(meta: object) -> None:
    """Who has not announced that it keeps values gets none and is not waited for, until it brings some all the same."""
    kept: Json = {}
    async with joined(Scripted(count), {"_meta": meta}) as (editor, _):
        editor.answers["_acpd/state"] = keeps(kept)
        name = await editor.new()
        assert ["end_turn", "end_turn"] == [await editor.prompt(name), await editor.prompt(name)]
        assert "12" == editor.text()
        assert [] == editor.said("_acpd/state")
        other = await editor.new()
        await editor.load(other, state={"count": 7, "n": 7, "turns": 7})
        await editor.prompt(name)
        assert editor.said("_acpd/state")


async def test_an_acpd_of_before_is_known_by_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that announces nothing yet keeps values all the same, and names itself in the environment of its agents."""
    monkeypatch.setenv("ACPD_LINK", "x")
    kept: Json = {}
    async with joined(Scripted(count), {"_meta": None}) as (editor, _):
        editor.answers["_acpd/state"] = keeps(kept)
        await editor.prompt(await editor.new())
        assert kept


async def test_the_last_value_counts() -> None:
    """Values are sent in order, each whole; what an earlier answer says does not touch a later value."""
    seen: list[int] = []

    async def work(turn: Turn) -> None:
        for n in range(50):
            turn.session.state.put("n", n)
        await turn.session.state.saved()
        assert turn.session.state.get("n", int) == 49

    def keep(params: Json) -> Json:
        seen.append(params["value"])
        return {}

    async with joined(Scripted(work)) as (editor, _):
        editor.answers["_acpd/state"] = keep
        assert "end_turn" == await editor.prompt(await editor.new())
        assert list(range(50)) == seen


async def test_what_is_too_big_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """All values of a session are bounded together: one too many raises StateTooBig, small ones always go."""
    monkeypatch.setattr("acpd.api.state.LIMIT", 1000)
    monkeypatch.setattr("acpd.api.state.SMALL", 100)
    kept: Json = {}

    async def work(turn: Turn) -> None:
        state = turn.session.state
        state.put("a", "x" * 900)
        state.put("b", "y" * 90)
        for name in ("a", "c"):
            with pytest.raises(StateTooBig, match=f"state '{name}' of session"):
                state.put(name, "z" * 910)
        state.put("d", "w" * 90)
        state.put("a", "v" * 899)
        assert (state.get("c", str), state.get("a", str)) == (None, "v" * 899)

    async with joined(Scripted(work)) as (editor, _):
        editor.answers["_acpd/state"] = keeps(kept)
        assert "end_turn" == await editor.prompt(await editor.new())
        assert {"a": "v" * 899, "b": "y" * 90, "d": "w" * 90} == kept


async def test_a_value_that_is_never_answered_ends_no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that keeps the state and leaves a value unanswered: the turn ends, and it is sent again."""
    kept: Json = {}
    monkeypatch.setattr("acpd.api.state.ANSWER_TIMEOUT", 0.05)
    async with joined(Scripted(count)) as (editor, _):
        editor.answers["_acpd/state"] = keeps(kept)
        name = await editor.new()
        assert "end_turn" == await editor.prompt(name)
        editor.answers["_acpd/state"] = lambda _: None
        assert "end_turn" == await editor.prompt(name)
        editor.answers["_acpd/state"] = keeps(kept)
        assert {"count": {"n": 1}} == kept
        assert "end_turn" == await editor.prompt(name)
        assert {"count": {"n": 3}} == kept


@pytest.mark.parametrize("before", [True, False])
async def test_a_cancel_ends_the_waiting_for_the_state(monkeypatch: pytest.MonkeyPatch, before: bool) -> None:
    """A turn that is cancelled does not wait for a value that is never answered, whenever the cancel comes."""
    monkeypatch.setattr("acpd.api.conversation.SAVE_CANCELLED", 0.05)

    async def work(turn: Turn) -> None:
        await count(turn)
        if before:
            await asyncio.Event().wait()

    async with joined(Scripted(work)) as (editor, _):
        editor.answers["_acpd/state"] = lambda _: None
        name = await editor.new()
        await editor.load(name, state={"count": {"n": 7}})
        answer = editor.begin(name)
        await editor.until(lambda: editor.text() == "8")
        editor.cancel(name)
        assert {"stopReason": "cancelled"} == await asyncio.wait_for(answer, PATIENCE)


async def test_a_client_that_never_answers_costs_no_memory() -> None:
    """However often a value is put, the connection remembers the last request for it alone."""

    async def work(turn: Turn) -> None:
        for n in range(100):
            turn.session.state.put("n", [n] * 1000)
            turn.session.state.put("m", n)
        await turn.say("put")

    async with joined(Scripted(work)) as (editor, connection):
        editor.answers["_acpd/state"] = lambda _: None
        editor.begin(await editor.new())
        await editor.until(lambda: editor.text() == "put")
        assert 2 == len(connection.peer._rpc._calls)


async def test_acpds_own_names_are_refused() -> None:
    """A name that begins with acpd. is a mistake of the agent's."""

    async def work(turn: Turn) -> None:
        for name in ("", "acpd.x"):
            with pytest.raises(ValueError, match="acpd"):
                turn.session.state.put(name, 1)

    async with joined(Scripted(work)) as (editor, _):
        assert "end_turn" == await editor.prompt(await editor.new())


class Pair(Struct):
    left: object
    right: object = None


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (object(), "object"),
        ({"at": [Path("/x")]}, "Path"),
        (float("inf"), "holds inf"),
        (Pair([float("nan")]), "holds nan"),
        ({"a": {1: 2}}, "the key 1"),
        (Pair(object()), "object"),
    ],
)
async def test_what_json_has_not_is_refused(value: object, said: str) -> None:
    """A value that would come back as another one is an error that names the state and the value; what was there stays."""

    async def work(turn: Turn) -> None:
        turn.session.state.put("kept", 1)
        with pytest.raises((TypeError, ValueError), match="state 'kept'") as caught:
            turn.session.state.put("kept", value)
        assert said in str(caught.value)
        assert 1 == turn.session.state.get("kept", int)

    async with joined(Scripted(work)) as (editor, _):
        assert "end_turn" == await editor.prompt(await editor.new())
        assert 1 == len(editor.said("_acpd/state"))


async def test_what_json_has_comes_back() -> None:
    """Structs, texts with half a surrogate pair, ready JSON, and any depth of lists and objects are kept."""

    async def work(turn: Turn) -> None:
        state = turn.session.state
        state.put("value", Pair({"a": [1, 2.5, None, True]}, Raw(b'{"b":2}')))
        assert {"left": {"a": [1, 2.5, None, True]}, "right": {"b": 2}} == state.get("value", dict)
        state.put("half", ["\ud83d"])
        assert ["\ufffd"] == state.get("half", list)

    async with joined(Scripted(work)) as (editor, _):
        assert "end_turn" == await editor.prompt(await editor.new())


# -- permissions


def asks(scope: str, verdicts: list[bool]) -> Scripted:
    async def work(turn: Turn) -> None:
        async with turn.tool("Run git", kind="execute", input={"c": "git"}) as call:
            await call.diff(Path("f"), "old", "new")
            verdicts.append(await turn.allowed(call, scope, "to run git"))

    return Scripted(work)


async def test_always_is_remembered_durably() -> None:
    """After allow_always or reject_always the scope is not asked again in this session, in another process neither."""
    for chosen, verdict in (("always", True), ("never", False)):
        kept: Json = {}
        verdicts: list[bool] = []
        async with joined(asks("run git", verdicts)) as (editor, _):
            editor.answers |= {"_acpd/state": keeps(kept), "session/request_permission": option(chosen)}
            name = await editor.new()
            await editor.prompt(name)
            await editor.prompt(name)
            assert 1 == len(editor.said("session/request_permission"))
        async with joined(asks("run git", verdicts)) as (editor, _):
            await editor.load(name, state=dict(kept))
            await editor.prompt(name)
            assert [verdict] * 3 == verdicts
        async with joined(asks("run rm", verdicts)) as (editor, _):
            await editor.load(name, state=dict(kept))
            await editor.prompt(name)
            assert 1 == len(editor.said("session/request_permission"))


async def test_what_is_asked() -> None:
    """The question names the call with what it shows, and has all four kinds of answers; the lasting ones name the scope."""
    async with joined(asks("run git", [])) as (editor, _):
        editor.answers["session/request_permission"] = option("no")
        await editor.prompt(await editor.new())
        (asked,) = editor.said("session/request_permission")
        assert editor.updates("tool_call")[0]["toolCallId"] == asked["toolCall"]["toolCallId"]
        assert {"c": "git"} == asked["toolCall"]["rawInput"]
        assert [{"type": "diff", "path": "/tmp/f", "oldText": "old", "newText": "new"}] == asked["toolCall"]["content"]
        assert ["allow_once", "allow_always", "reject_once", "reject_always"] == [each["kind"] for each in asked["options"]]
        assert "Always allow in this session: to run git" == asked["options"][1]["name"]


@pytest.mark.parametrize(
    "answer",
    [
        {"outcome": {"outcome": "selected", "optionId": "no"}},
        {"outcome": {"outcome": "selected", "optionId": "what"}},
        {"outcome": {"outcome": "odd", "optionId": "yes"}},
        {"outcome": "selected"},
        {},
    ],
)
async def test_only_a_clear_yes_is_one(answer: Json) -> None:
    """A refusal, an option that is none and a malformed answer are no permission, and nothing of it is remembered."""
    verdicts: list[bool] = []
    async with joined(asks("s", verdicts)) as (editor, _):
        editor.answers["session/request_permission"] = lambda _: answer
        assert "end_turn" == await editor.prompt(await editor.new())
        assert ([False], []) == (verdicts, editor.said("_acpd/state"))


async def test_a_cancelled_question_ends_the_turn() -> None:
    """The outcome `cancelled` ends the turn as cancelled, without a session/cancel."""
    async with joined(asks("s", [])) as (editor, _):
        editor.answers["session/request_permission"] = lambda _: {"outcome": {"outcome": "cancelled"}}
        assert "cancelled" == await editor.prompt(await editor.new())


async def test_two_answers_at_once() -> None:
    """Two calls of one turn that are both allowed for ever are both remembered."""

    async def one(turn: Turn, scope: str) -> None:
        async with turn.tool(scope) as call:
            await turn.allowed(call, scope)

    async def work(turn: Turn) -> None:
        await asyncio.gather(one(turn, "a"), one(turn, "b"))

    kept: Json = {}
    async with joined(Scripted(work)) as (editor, _):
        editor.answers |= {"_acpd/state": keeps(kept), "session/request_permission": option("always")}
        await editor.prompt(await editor.new())
        assert {"always": {"a": "allow", "b": "allow"}} == kept["tool_context"]


@pytest.mark.parametrize(
    ("outcome", "verdicts", "asked"),
    [
        ({"outcome": "selected", "optionId": "always"}, [True] * 4, 1),
        ({"outcome": "selected", "optionId": "never"}, [False] * 4, 1),
        ({"outcome": "selected", "optionId": "yes"}, [True] * 4, 3),
        ({"outcome": "cancelled"}, [], 1),
    ],
    ids=lambda value: str(value.get("optionId", "cancelled")) if isinstance(value, dict) else "",
)
async def test_calls_of_one_scope_at_once(outcome: Json, verdicts: list[bool], asked: int) -> None:
    """They are asked for one after another: an answer for all of them is not asked for again; another scope need not wait."""
    found: list[bool] = []

    async def one(turn: Turn, scope: str) -> None:
        async with turn.tool(scope) as call:
            found.append(await turn.allowed(call, scope))

    async def work(turn: Turn) -> None:
        await asyncio.gather(*(one(turn, scope) for scope in ("a", "a", "a", "b")))

    async with joined(Scripted(work)) as (editor, _):
        editor.answers["session/request_permission"] = lambda _: None
        ending = editor.begin(await editor.new())
        await editor.asked("session/request_permission", 2)
        assert ["a", "b"] == sorted(each["toolCall"]["title"] for each in editor.said("session/request_permission"))
        editor.answers["session/request_permission"] = lambda _: {"outcome": outcome}
        while editor.open:
            editor.settle("session/request_permission", {"outcome": outcome})
        await ending
        titles = [each["toolCall"]["title"] for each in editor.said("session/request_permission")]
        assert (asked, 1) == (titles.count("a"), titles.count("b"))
        assert verdicts == found


async def test_a_form() -> None:
    """An elicitation gives what was filled in, {} for an empty form, None where it was declined or the client has none."""
    heard: list[object] = []

    async def work(turn: Turn) -> None:
        heard.append(await turn.elicit("How many?", {"type": "object", "properties": {"n": {"type": "integer"}}}))

    answers: list[Json] = [
        {"action": "accept", "content": {"n": 3}},
        {"action": "accept"},
        {"action": "decline"},
        {"action": "cancel"},
    ]
    async with joined(Scripted(work), {"elicitation": {"form": {}}}) as (editor, _):
        name = await editor.new()
        for answer in answers:
            editor.answers["elicitation/create"] = lambda _, answer=answer: answer  # type: ignore[misc]
            await editor.prompt(name)
        assert "form" == editor.said("elicitation/create")[0]["mode"]
    async with joined(Scripted(work)) as (editor, _):
        await editor.prompt(await editor.new())
        assert [] == editor.said("elicitation/create")
    assert [{"n": 3}, {}, None, None, None] == heard


def test_half_a_character_beside_raw_json() -> None:
    """What is no text is mended where it stands; JSON beside it stays JSON."""

    class Kept(Struct):
        text: str
        raw: Raw

    kept = encode_exactly(Kept("a\ud800", Raw(b'[1,{"b":null}]')), "x")
    assert {"text": "a\ufffd", "raw": [1, {"b": None}]} == json.loads(kept)
