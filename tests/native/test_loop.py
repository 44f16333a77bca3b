"""The model loop against every dialect: turns, tools, errors, cut streams, cancels."""

from __future__ import annotations

import asyncio
import base64
import json
import types
from collections.abc import Coroutine, Generator, Iterator

import pytest

from acpd.native.cutting import Rules
from acpd.native.history import History, Memory, Usage
from acpd.native.models import Chosen, load
from acpd.native.toolbox import ToolOutput
from tests.native.turns import KEY, QUICK, Box, Told, loaded, talk
from tests.support.models import DIALECTS, STALL, Json, ModelServer, answer, http, model_server

NEVER = Rules(0, 0)
PNG = base64.b64encode(bytes.fromhex("89504e470d0a1a0a0000000d49484452")).decode()


PLAIN_CHAT = [DIALECTS[0], *(pytest.param(dialect, marks=pytest.mark.e2e) for dialect in DIALECTS[1:])]
"""The import of each SDK costs one to three seconds."""


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with model_server() as made:
        yield made
        assert [] == made.wrong


@pytest.fixture(params=PLAIN_CHAT)
def dialect(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def test_a_turn_streams_text_and_ends(server: ModelServer, dialect: str) -> None:
    """What a model says is passed on as it comes, and its end ends the turn. Usage is told where the context is known."""
    told = Told("[[say one two three]]")
    model = await loaded(dialect, server.url)
    ended = await talk(told, model, History())
    assert ("end_turn", "") == (ended.stop, ended.text)
    assert "one two three" == told.texts()
    assert (dialect != "chat") == (model.window > 0)
    assert ([(18, model.window)] if model.window else []) == [value[:2] for kind, value in told.heard if kind == "used"]


async def test_a_tool_call_is_run_and_its_result_is_given_back(server: ModelServer, dialect: str) -> None:
    """A call is run, and the model goes on with its result."""
    told = Told('[[tool read {"path":"/x"}]]')
    history = History()
    ended = await talk(told, await loaded(dialect, server.url), history)
    assert "end_turn" == ended.stop
    assert "text of /x" in told.texts()
    assert "Be good." in json.dumps(server.bodies[0])
    again = Told("[[say more]]")
    await talk(again, await loaded(dialect, server.url), history)
    assert "more" == again.texts()


@pytest.mark.parametrize("one", ["chat", *(pytest.param(each, marks=pytest.mark.e2e) for each in ("anthropic", "gemini"))])
async def test_thoughts_are_passed_on_as_thoughts(server: ModelServer, one: str) -> None:
    """What a model thinks comes before what it says, as a thought."""
    server.canned = [answer(one, "said", thought="thought")]
    told = Told("x")
    await talk(told, await loaded(one, server.url), History())
    assert [("think", "thought"), ("say", "said")] == [each for each in told.heard if each[0] in {"think", "say"}]


async def test_images_and_resources_reach_the_model(server: ModelServer, dialect: str) -> None:
    """An image is given as an image, a resource's text and a link as text with where they are from."""
    blocks: list[Json] = [
        {"type": "text", "text": "look"},
        {"type": "image", "data": PNG, "mimeType": "image/png"},
        {"type": "resource", "resource": {"uri": "file:///a.py", "text": "print(1)"}},
        {"type": "resource_link", "uri": "file:///b.py", "name": "b.py"},
    ]
    await talk(Told(blocks=blocks), await loaded(dialect, server.url), History())
    sent = json.dumps(server.bodies[0])
    assert PNG in sent
    assert "print(1)" in sent
    assert "file:///a.py" in sent
    assert "[b.py](file:///b.py)" in sent


async def test_harmless_calls_run_side_by_side(server: ModelServer, dialect: str) -> None:
    """Neighbouring calls that change nothing run at once; one that changes something runs alone; results keep their order."""
    calls = [
        ("a", "read", {"path": "1"}),
        ("b", "read", {"path": "2"}),
        ("c", "write", {"path": "3"}),
        ("d", "write", {"path": "4"}),
    ]
    server.canned = [answer(dialect, "", calls), answer(dialect, "done")]
    box, told = Box(), Told("x")
    await talk(told, await loaded(dialect, server.url), History(), box)
    assert "done" == told.texts()
    assert 2 == box.tools["read"].most
    assert 1 == box.tools["write"].most
    sent = json.dumps(server.bodies[1])
    places = [sent.rindex(f"text of {number}") for number in (1, 2, 3, 4)]
    assert sorted(places) == places


async def test_calls_that_share_an_id_are_told_apart(server: ModelServer) -> None:
    """Some servers give all calls of an answer one id; each gets its own result all the same."""
    server.canned = [
        answer("chat", "", [("call_0", "read", {"path": "1"}), ("call_0", "read", {"path": "2"})]),
        answer("chat", "done"),
    ]
    await talk(Told("x"), await loaded("chat", server.url), History())
    results = [message["content"] for message in server.bodies[1]["messages"] if message["role"] == "tool"]
    assert ["text of 1", "text of 2"] == results


HALF = "a \ud83d b"


async def test_half_a_surrogate_pair_costs_nothing(server: ModelServer, dialect: str) -> None:
    """What is no text, in an answer, a call or a result, is mended, so that the session can be kept and gone on with."""

    class Odd(Box):
        async def call(self, turn: object, name: str, arguments: object) -> ToolOutput:
            return ToolOutput(HALF)

    calls = [("a", "read", {"path": HALF})]
    server.canned = [answer(dialect, HALF, calls, thought="" if dialect == "responses" else HALF), answer(dialect, HALF)]
    history, model = History(), await loaded(dialect, server.url)
    assert "end_turn" == (await talk(Told("x"), model, history, Odd())).stop
    kept = History.restored(history.dump())
    await talk(Told("[[say on]]"), model, kept)
    assert json.dumps(server.bodies[-1]).count("a \\ufffd b") >= 2


ODD = [
    {"text": "\n\n"},
    {"thought": "hm"},
    {"thought": "hm", "text": " "},
    {"text": " ", "calls": [("functions.read:0", "functions.read", {}), ("functions.read:0", "read", {})]},
]


@pytest.mark.parametrize("odd", ODD)
async def test_an_odd_answer_costs_no_later_request(server: ModelServer, dialect: str, odd: Json) -> None:
    """Blank texts, thoughts alone, ids used again or with odd signs: the next request is one that a strict provider takes."""
    model, history = await loaded(dialect, server.url), History()
    server.canned = [answer(dialect, **odd), *[answer(dialect, "seen")] * ("calls" in odd)] * 2
    for _ in range(2):
        await talk(Told("x"), model, history)
    other = await loaded("anthropic", server.url) if dialect == "chat" else model
    assert "end_turn" == (await talk(Told("[[say on]]"), other, History.restored(history.dump()))).stop


@pytest.mark.parametrize("dialect", ["chat", pytest.param("anthropic", marks=pytest.mark.e2e)])
async def test_an_output_of_images_alone_has_no_blank_text(server: ModelServer, dialect: str) -> None:
    """Images without a word, and no word at all, reach the model with a word that says so."""

    class Mute(Box):
        async def call(self, turn: object, name: str, arguments: object) -> ToolOutput:
            return ToolOutput("", ((base64.b64decode(PNG), "image/png"),) if name == "read" else ())

    server.canned = [answer(dialect, "", [("a", "read", {}), ("b", "write", {})]), answer(dialect, "seen")]
    await talk(Told(" "), await loaded(dialect, server.url), History(), Mute())
    sent = json.dumps(server.bodies[1])
    assert PNG in sent
    assert 3 == sent.count("[no text]")


async def test_thoughts_alone_are_an_empty_answer(server: ModelServer) -> None:
    """An answer of which nothing can be kept is told as an empty one."""
    server.canned = [answer("chat", thought="hm")]
    assert "empty answer" in (await talk(Told("x"), await loaded("chat", server.url), History())).text


ERRORS = [
    (401, None, -32000, "did not accept the key"),
    (402, None, -32603, "Top it up, or choose another model; then say `go on`"),
    (403, None, -32000, "did not accept the key"),
    (404, None, -32603, "has no model"),
    (400, None, -32603, "rejected the request"),
    (409, None, -32603, "failed (HTTP 409)"),
    (413, "max_tokens", -32603, "is too long"),
    (415, None, -32603, "rejected the request"),
    (422, None, -32603, "rejected the request"),
    (429, None, -32603, "takes no more requests"),
    (500, None, -32603, "failed (HTTP 500)"),
    (503, None, -32603, "is overloaded (HTTP 503)"),
    (529, None, -32603, "is overloaded (HTTP 529)"),
]


@pytest.mark.parametrize(("status", "stop", "code", "words"), ERRORS)
async def test_an_error_of_the_provider_has_a_clear_outcome(
    server: ModelServer, dialect: str, status: int, stop: str | None, code: int, words: str
) -> None:
    """Each error is told in words, ends the turn in its way, shows no key, and the next prompt works.

    What was rejected is no part of it, or it would be rejected too; nor is what is sent again once key or model are mended.
    """
    history, model = History(), await loaded(dialect, server.url)
    body: Json = {"error": {"message": f"bad {KEY}", "type": "x", "code": status, "status": "X"}, "type": "error"}
    server.canned = [http(status, body)] * QUICK.attempts
    told = Told("first")
    ended = await talk(told, model, history)
    assert (stop, code) == (ended.stop, ended.code)
    assert words.lower() in ended.text.lower()
    assert KEY not in ended.text + str(told.heard)
    server.canned.clear()
    again = Told("[[say well]]")
    assert "end_turn" == (await talk(again, model, history)).stop
    assert "well" == again.texts()
    kept = status in {402, 409, 429, 500, 503, 529}
    assert kept == ("first" in json.dumps(server.bodies[-1]))
    assert ("is kept" in ended.text, "left out" in ended.text or "does not remember" in ended.text) == (kept, not kept)


async def test_a_key_that_ends_in_a_turn_costs_no_work(server: ModelServer) -> None:
    """A key that is refused after tools have run leaves the turn in the memory, and says how to go on."""
    history, model = History(), await loaded("chat", server.url)
    server.canned = [answer("chat", "", [("call", "read", {"path": "/x"})]), http(401, {"error": {"message": "expired"}})]
    ended = await talk(Told("first"), model, history)
    assert "say `go on`" in ended.text
    await talk(Told("[[say well]]"), model, history)
    assert "first" in json.dumps(server.bodies[-1])
    assert "text of /x" in json.dumps(server.bodies[-1])


async def test_a_request_that_is_too_large_makes_room(server: ModelServer) -> None:
    """HTTP 413 is tried again without the older half of what tools have said."""
    history, model = History(), await loaded("chat", server.url)
    for path in ("a" * 2000, "b" * 2000):
        server.canned = [answer("chat", "", [("call", "read", {"path": path})]), answer("chat", "seen")]
        await talk(Told("x"), model, history)
    server.canned = [http(413, {"error": {"message": "request too large"}})]
    told = Told("[[say still here]]")
    assert "end_turn" == (await talk(told, model, history, rules=NEVER)).stop
    sent = json.dumps(server.bodies[-1])
    assert (False, True) == ("text of aaa" in sent, "text of bbb" in sent)


OVERFLOW: dict[str, Json] = {
    "chat": {"error": {"message": "too long", "type": "invalid_request_error", "code": "context_length_exceeded"}},
    "responses": {"error": {"message": "too long", "type": "invalid_request_error", "code": "context_length_exceeded"}},
    "anthropic": {
        "type": "error",
        "error": {"type": "invalid_request_error", "message": "prompt is too long: 3 tokens > 2 maximum"},
    },
    "gemini": {
        "error": {
            "code": 400,
            "status": "INVALID_ARGUMENT",
            "message": "The input token count (3) exceeds the maximum number of tokens allowed (2).",
        }
    },
}


async def test_a_conversation_that_is_too_long_can_go_on(server: ModelServer, dialect: str) -> None:
    """What does not fit into the model's context ends with `max_tokens`, and is left out of the next prompt."""
    history, model = History(), await loaded(dialect, server.url)
    await talk(Told("[[say early]]"), model, history)
    server.canned = [http(400, OVERFLOW[dialect])]
    ended = await talk(Told("enormous"), model, history, rules=NEVER)
    assert "max_tokens" == ended.stop
    assert "too long" in ended.text
    await talk(Told("[[say late]]"), model, history)
    assert "enormous" not in json.dumps(server.bodies[-1])
    assert "early" in json.dumps(server.bodies[-1])


async def test_older_tool_results_make_room(server: ModelServer, dialect: str) -> None:
    """A conversation that is too long is tried again without the older half of what tools have said, and the user is told."""
    history, model = History(), await loaded(dialect, server.url)
    paths = [letter * 2000 for letter in "abcd"]
    for path in paths:
        server.canned = [answer(dialect, "", [("call", "read", {"path": path})]), answer(dialect, "seen")]
        await talk(Told("x"), model, history)
    server.canned = [http(400, OVERFLOW[dialect])]
    told = Told("[[say still here]]")
    ended = await talk(told, model, history, rules=NEVER)
    assert ("end_turn", "still here") == (ended.stop, told.texts())
    assert 1 == sum(kind == "notice" for kind, _ in told.heard)
    sent = json.dumps(server.bodies[-1])
    assert [False, False, True, True] == [f"text of {path}" in sent for path in paths]
    assert 2 == sent.count("This result was left out")


@pytest.mark.e2e
async def test_a_call_that_the_model_could_not_write_is_told(server: ModelServer) -> None:
    """An answer that ends with a provider's word for a failure is tried again if nothing was said, else it is an error."""
    history, model = History(), await loaded("gemini", server.url)
    server.canned = [answer("gemini", "I look", finish="MALFORMED_FUNCTION_CALL")]
    ended = await talk(Told("x"), model, history)
    assert None is ended.stop
    assert "broke off" in ended.text
    server.canned = [answer("gemini", finish="MALFORMED_FUNCTION_CALL")]
    assert "end_turn" == (await talk(Told("[[say on]]"), model, history)).stop
    assert "I look" in json.dumps(server.bodies[-1])
    assert 3 == len(server.bodies)


async def test_a_step_is_kept_once_and_before_what_has_effects(server: ModelServer) -> None:
    """The history is kept with the prompt, after each step, and before calls that may have effects; each time it is sound."""
    server.canned = [
        answer("chat", "", [("a", "read", {}), ("b", "read", {})]),
        answer("chat", "", [("c", "read", {}), ("d", "write", {})]),
        answer("chat", "done"),
    ]
    history, kept = History(), list[int]()

    async def saving() -> None:
        kept.append(len(History.restored(history.dump()).messages))

    await talk(Told("x"), await loaded("chat", server.url), history, saving=saving)
    assert [1, 3, 5, 5] == kept


@pytest.mark.parametrize("dialect", ["chat", pytest.param("anthropic", marks=pytest.mark.e2e)])
async def test_only_the_newest_images_are_kept(server: ModelServer, dialect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of more images than a request may have the older ones are left out, with a word in their place."""

    class Shots(Box):
        async def call(self, turn: object, name: str, arguments: object) -> ToolOutput:
            images = [(letter * 30_000, "image/png") for letter in (b"b", b"c", b"d", b"e")]
            return ToolOutput("shots", tuple(images))

    monkeypatch.setattr("acpd.native.history.FILES", 120_000)
    blocks = [{"type": "image", "data": base64.b64encode(b"a" * 300).decode(), "mimeType": "image/png"}]
    server.canned = [answer(dialect, "", [("a", "read", {})]), answer(dialect, "seen")] * 2
    history, model = History(), await loaded(dialect, server.url)
    await talk(Told(blocks=blocks), model, history, Shots())
    assert 1 == json.dumps(server.bodies[1]).count("was left out here")
    await talk(Told(blocks=blocks), model, history, Shots())
    sent = json.dumps(server.bodies[-1])
    assert 6 == sent.count("was left out here")
    assert 160_000 < len(sent) < 180_000
    assert 160_000 < len(bytes(history.dump().messages)) < 180_000


REFUSALS = {"chat": "content_filter", "responses": "content_filter", "anthropic": "refusal", "gemini": "SAFETY"}
LENGTHS = {"chat": "length", "responses": "max_output_tokens", "anthropic": "max_tokens", "gemini": "MAX_TOKENS"}


async def test_a_refusal_is_no_part_of_the_next_prompt(server: ModelServer, dialect: str) -> None:
    """A refused prompt ends with `refusal`, and neither it nor what followed is in the next request (ACP StopReason)."""
    history, model = History(), await loaded(dialect, server.url)
    server.canned = [answer(dialect, "I will", finish=REFUSALS[dialect])]
    ended = await talk(Told("something bad"), model, history)
    assert "refusal" == ended.stop
    assert "refused" in ended.text
    await talk(Told("[[say fine]]"), model, history)
    assert "something bad" not in json.dumps(server.bodies[-1])


async def test_a_refusal_shows_no_key(server: ModelServer) -> None:
    """Also where the provider says in its own words why it refuses."""
    refusal = answer("chat", finish=REFUSALS["chat"]).replace(b'"content": ""', b'"refusal": "not for %b"' % KEY.encode())
    server.canned = [refusal]
    ended = await talk(Told("x"), await loaded("chat", server.url), History())
    assert "refusal" == ended.stop
    assert "not for ***" in ended.text


async def test_an_answer_that_was_too_long_stays(server: ModelServer, dialect: str) -> None:
    """An answer cut at the limit of tokens ends with `max_tokens`; its text stays, half a call does not."""
    history, model = History(), await loaded(dialect, server.url)
    server.canned = [answer(dialect, "so far", [("a", "read", {"path": "1"})], finish=LENGTHS[dialect])]
    told = Told("x")
    ended = await talk(told, model, history)
    assert "max_tokens" == ended.stop
    await talk(Told("[[say on]]"), model, history)
    assert "so far" in json.dumps(server.bodies[-1])
    assert '"read"' not in json.dumps([body for key, body in server.bodies[-1].items() if key != "tools"])


async def test_a_request_is_tried_again_before_its_first_token(server: ModelServer, dialect: str) -> None:
    """429, 5xx and a connection that ends are tried again, told as notices, and the turn is as if nothing had happened."""
    error = {"error": {"message": "slow down", "code": 429, "status": "X"}}
    server.canned = [http(429, error, retry_after="0"), b""]
    told = Told("[[say at last]]")
    ended = await talk(told, await loaded(dialect, server.url), History())
    assert ("end_turn", "at last") == (ended.stop, told.texts())
    notices = [value for kind, value in told.heard if kind == "notice"]
    assert 2 == len(notices)
    assert "too many requests (HTTP 429)" in notices[0]
    assert "cannot be reached" in notices[1]


async def test_a_provider_that_asks_for_more_patience_than_there_is_is_not_waited_for(server: ModelServer) -> None:
    """A retry-after above the limit ends the turn at once, and says how long the provider wants to wait."""
    server.canned = [http(429, {"error": {"message": "no"}}, retry_after="3600")]
    ended = await talk(Told("x"), await loaded("chat", server.url), History())
    assert "it asks to wait 3600 s" in ended.text
    assert 1 == len(server.bodies)


async def test_the_number_of_requests_of_a_turn_is_bounded(server: ModelServer) -> None:
    """A model that never stops calling tools is stopped, and the next prompt works."""
    server.canned = [answer("chat", "", [(f"c{n}", "read", {"path": "1"})]) for n in range(QUICK.requests)]
    history, model = History(), await loaded("chat", server.url)
    ended = await talk(Told("x"), model, history)
    assert "max_turn_requests" == ended.stop
    assert QUICK.requests == len(server.bodies)
    assert "end_turn" == (await talk(Told("[[say ok]]"), model, history)).stop


@pytest.mark.parametrize("step", [41, pytest.param(1, marks=pytest.mark.e2e)])
async def test_a_stream_that_is_cut_anywhere_leaves_no_half_call(server: ModelServer, dialect: str, step: int) -> None:
    """Whatever byte is an answer's last one: the turn ends, and the next request is one that a strict provider takes."""
    whole = answer(dialect, "I look", [("a", "read", {"path": "/x"})])
    model, head = await loaded(dialect, server.url), whole.index(b"\r\n\r\n") + 4
    limits, seen = QUICK._replace(attempts=1), set[str]()
    for cut in range(head, len(whole), step):
        history, server.canned = History(), [whole[:cut]]
        first = await talk(Told("x"), model, history, limits=limits)
        assert first.stop == "end_turn" or first.text
        shape = str([[type(part).__name__ for part in message.parts] for message in history.messages])
        if shape not in seen:
            seen.add(shape)
            kept = History.restored(history.dump())
            assert "end_turn" == (await talk(Told("[[say on]]"), model, kept)).stop
            assert [] == server.wrong, f"cut at {cut}: {whole[:cut][-80:]!r}"
    assert len(seen) > 1


async def test_a_cancel_at_every_await_leaves_a_sound_history(server: ModelServer, dialect: str) -> None:
    """Wherever a turn is cancelled: what is kept is accepted by a strict provider, before and after it was stored."""
    model, step = await loaded(dialect, server.url), 0
    calls = [("a", "read", {"path": "1"}), ("b", "read", {"path": "2"}), ("c", "write", {})]
    while True:
        step += 1
        history, told = History(), Told("x")
        told.pauses = 2
        server.canned = [answer(dialect, "I look", calls), answer(dialect, "done")]
        try:
            await cancelled_at(step, talk(told, model, history))
            break
        except asyncio.CancelledError:
            server.canned.clear()
        for kept in (History.restored(history.dump()), history):
            assert "end_turn" == (await talk(Told("[[say on]]"), model, kept)).stop
            assert [] == server.wrong, f"cancelled at await {step}"
    assert "done" in told.texts()
    assert step > 15


@types.coroutine
def cancelled_at(step: int, work: Coroutine[object, None, object]) -> Generator[object, None, None]:
    """Run the work, and cancel it while it waits for the `step`th time; returns if it never waits so often."""
    waited, error = 0, None
    while True:
        try:
            waits_for = work.send(None) if error is None else work.throw(error)
        except StopIteration:
            return
        waited, error = waited + 1, None
        if waited == step:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
        try:
            yield waits_for
        except asyncio.CancelledError as cancelled:
            error = cancelled


MIDDLES = {
    "chat": b'"finish_reason": "stop"',
    "responses": b"response.output_item.done",
    "anthropic": b"content_block_stop",
    "gemini": b"STOP",
}


async def test_what_was_said_before_a_cancel_is_remembered(server: ModelServer, dialect: str) -> None:
    """A cancel ends the request to the provider, and the text that was seen of it is what the model remembers."""
    whole = answer(dialect, "half of it")
    before = whole[: whole.index(MIDDLES[dialect])]
    before = before[: before.rindex(b"\n\n") + 2]
    server.canned = [before + STALL + whole[len(before) :]]
    history, told, model = History(), Told("x"), await loaded(dialect, server.url)
    task = asyncio.get_running_loop().create_task(talk(told, model, history))
    while not told.texts():
        await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.to_thread(server.left.wait, 2)
    await talk(Told("[[say on]]"), model, history)
    assert "half of it" in json.dumps(server.bodies[-1])


@pytest.mark.e2e
async def test_the_thought_level_reaches_the_provider(server: ModelServer) -> None:
    """A level that was chosen is in the request; `off` and none differ."""
    model = await loaded("responses", server.url)
    for level in ("default", "high", "off"):
        await talk(Told("[[say x]]"), model, History(), thought=level)
    efforts = [(body.get("reasoning") or {}).get("effort") for body in server.bodies]
    assert "high" == efforts[1]
    assert efforts[0] != efforts[1] != efforts[2]


@pytest.mark.parametrize("provider", ["openai", "openai-chat", "ollama"])
@pytest.mark.parametrize("name", ["m", "gpt-4o", "qwen3"])
async def test_a_level_that_was_chosen_reaches_a_server_that_nobody_knows(
    server: ModelServer, provider: str, name: str
) -> None:
    """As `reasoning_effort`, whatever the model's name; where none was chosen nothing is sent."""
    model = await asyncio.to_thread(load, Chosen(provider, name, f"{server.url}/v1"), {})
    for level in ("default", "high", "max", "off"):
        await talk(Told("[[say x]]"), model, History(), thought=level)
    assert [None, "high", "none"] == [server.bodies[at].get("reasoning_effort") for at in (0, 1, 3)]
    assert server.bodies[2]["reasoning_effort"] in {"xhigh", "max"}


@pytest.mark.parametrize(("level", "hint"), [("default", False), ("high", True)])
async def test_a_server_that_refuses_a_level_is_told_of(server: ModelServer, level: str, hint: bool) -> None:
    """Its words are shown, with what to do; without it the next prompt works."""
    server.canned = [http(400, {"error": {"message": "unknown parameter reasoning_effort"}})]
    history, model = History(), await loaded("chat", server.url)
    ended = await talk(Told("x"), model, history, thought=level)
    assert "unknown parameter reasoning_effort" in ended.text
    assert hint == ("set Thinking to Default" in ended.text)
    assert "end_turn" == (await talk(Told("[[say on]]"), model, history)).stop


@pytest.mark.e2e
async def test_a_cost_is_told_and_kept(server: ModelServer) -> None:
    """The cost of a session grows with each request and is there again in another process, once."""
    server.canned = [answer("anthropic", "x").replace(b'"model": "m"', b'"model": "claude-sonnet-5-5"') for _ in range(2)]
    history, model = History(), await loaded("anthropic", server.url)
    told = Told("x")
    await talk(told, model, history)
    first = history.usage.cost
    assert first is not None
    assert ("used", (18, 1_000_000, (first, "USD"))) in told.heard
    kept = History.restored(history.dump(), history.usage)
    await talk(Told("y"), model, kept)
    assert Usage(requests=2, input=2 * history.usage.input, output=2 * history.usage.output, cost=2 * first) == kept.usage


def test_a_memory_of_a_newer_version_is_left_alone() -> None:
    """What a newer acpd-agent has written is an error that says so, not an empty history."""
    from acpd.native.history import MemoryUnreadable

    with pytest.raises(MemoryUnreadable, match="newer"):
        History.restored(Memory(version=99))
