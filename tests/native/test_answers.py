"""What a provider's answer may cost, and what becomes of one that is none."""

from __future__ import annotations

import functools
import gzip
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from acpd.native import answers
from acpd.native.answers import CALLS, DEPTH
from acpd.native.cutting import Rules
from acpd.native.history import History
from acpd.native.models import Chosen, load
from tests.native.turns import QUICK, Box, Told, loaded, talk
from tests.support.models import DIALECTS, SSE, Json, ModelServer, answer, model_server

PLAIN_CHAT = [DIALECTS[0], *(pytest.param(dialect, marks=pytest.mark.e2e) for dialect in DIALECTS[1:])]
"""The import of each SDK costs one to three seconds."""


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with model_server() as made:
        yield made
        assert [] == made.wrong


@pytest.mark.e2e
@pytest.mark.parametrize("one", ["chat", "anthropic", "gemini", "responses"])
async def test_many_pieces_cost_as_much_as_they_are_long(server: ModelServer, one: str) -> None:
    """Four times as many pieces of an answer cost four times as much CPU, not sixteen times: none copies those before."""
    model, spent = await loaded(one, server.url), list[float]()
    for count in (1000, 1000, 4000):  # the first one warms up
        server.canned = [_in_pieces(one, count, 1000)]
        told, began = Told("x"), time.thread_time()
        await talk(told, model, History())
        spent.append(time.thread_time() - began)
        assert 1000 * count == len(told.texts())
    assert spent[2] < 10 * spent[1] + 0.2  # caches and the collector of garbage make it more than four


LONG = 1024 * 1024
HTTP = b"HTTP/1.1 %b X\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n"
PACKED = SSE.replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n")
ENDLESS = {
    "line": (SSE + b"data: " + b"x" * LONG, "a line of it"),
    "comments": (SSE + b": still here\n\n" * (LONG // 14), "it has more"),
    "event": (SSE + b"data: x\n" * (LONG // 8), "it has more"),
    "error": (HTTP % b"400" + b"x" * LONG, "a line of it"),
    "packed": (PACKED + gzip.compress(b"x" * LONG), "a line of it"),
}


@pytest.mark.parametrize("one", PLAIN_CHAT)
@pytest.mark.parametrize("what", ENDLESS)
async def test_an_endless_answer_costs_no_more_than_its_bound(
    server: ModelServer, monkeypatch: pytest.MonkeyPatch, one: str, what: str
) -> None:
    """Whatever it is that has no end, in every dialect: the turn ends with a word on it, and the next prompt works."""
    monkeypatch.setattr(answers, "LINE", LONG // 4)
    monkeypatch.setattr(answers, "WHOLE", LONG // 2)
    raw, words = ENDLESS[what]
    server.canned, history, model = [raw], History(), await loaded(one, server.url)
    ended = await talk(Told("first"), model, history)
    assert (None, -32603) == (ended.stop, ended.code)
    assert words in ended.text or (one, what) == ("gemini", "comments")  # which its library takes for no answer
    assert "end_turn" == (await talk(Told("[[say on]]"), model, history, rules=Rules(messages=0, tokens=0))).stop
    assert "first" in json.dumps(server.bodies[-1])


async def test_a_text_without_end_is_stopped(server: ModelServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is shown as it comes; the model remembers the end of it."""
    monkeypatch.setattr(answers, "WHOLE", 4 * LONG)
    server.canned, history = [_in_pieces("chat", 4000, 2000)], History()
    model, told = await loaded("chat", server.url), Told("x")
    ended = await talk(told, model, history)
    assert "was stopped: it has more than 4 MiB" in ended.text
    assert 3 * LONG < len(told.texts()) < 4 * LONG
    assert "end_turn" == (await talk(Told("[[say on]]"), model, history, rules=Rules(messages=0, tokens=0))).stop
    assert LONG < len(json.dumps(server.bodies[-1])) < LONG + 10_000


@pytest.mark.parametrize("one", PLAIN_CHAT)
async def test_more_calls_than_any_honest_answer_has(server: ModelServer, one: str) -> None:
    """None of them runs, none is remembered, what was said is; the turn says why."""
    calls = [(f"c{number}", "read", {"path": "/x"}) for number in range(CALLS + 1)]
    server.canned = [answer(one, "I look", calls)]
    history, model, box = History(), await loaded(one, server.url), Box()
    ended = await talk(Told("x"), model, history, box)
    assert None is ended.stop
    assert f"{CALLS + 1} tool calls" in ended.text
    assert 0 == box.tools["read"].most
    assert "end_turn" == (await talk(Told("[[say on]]"), model, history, box)).stop
    assert ("I look", False) == ("I look" * ("I look" in (sent := json.dumps(server.bodies[-1]))), "c255" in sent)
    server.canned = [answer(one, "", calls[1:]), answer(one, "done")]
    assert "end_turn" == (await talk(Told("x"), model, history, box)).stop


@pytest.mark.parametrize("one", PLAIN_CHAT)
@pytest.mark.parametrize("levels", [DEPTH, 150, 400, 900])
async def test_arguments_that_are_nested_deep(server: ModelServer, one: str, levels: int) -> None:
    """No library breaks of them, of this provider or of the one that the session goes on with."""
    arguments = functools.reduce(lambda inner, _: {"path": inner}, range(levels), Json(path=1))
    server.canned = [answer(one, "", [("c", "read", arguments)]), answer(one, "seen")]
    history, model = History(), await loaded(one, server.url)
    ended = await talk(Told("x"), model, history)
    assert None is ended.stop
    assert not server.bodies[1:]
    assert "end_turn" == (await talk(Told("[[say on]]"), model, History.restored(history.dump()))).stop


@pytest.mark.parametrize("one", PLAIN_CHAT)
async def test_arguments_as_deep_as_they_may_be(server: ModelServer, one: str) -> None:
    """They are taken, kept, and given back to any provider."""
    arguments = functools.reduce(lambda inner, _: {"path": inner}, range(DEPTH - 2), Json(path=1))
    server.canned = [answer(one, "", [("c", "read", arguments)]), answer(one, "seen")]
    history = History()
    assert "end_turn" == (await talk(Told("x"), await loaded(one, server.url), history)).stop
    other = await loaded("gemini" if one == "anthropic" else "anthropic", server.url) if one != "chat" else None
    kept = History.restored(history.dump())
    assert "end_turn" == (await talk(Told("[[say on]]"), other or await loaded(one, server.url), kept)).stop


@pytest.mark.parametrize("provider", ["openai", "openai-chat", "ollama", "openrouter", "deepseek", "dashscope"])
def test_every_model_of_chat_completions_is_lean(provider: str) -> None:
    """Whatever the provider: what its streams put together is what costs."""
    url = "http://127.0.0.1:9/v1" if provider != "openrouter" else ""
    model = load(Chosen(provider, "a/m", url), {"OPENROUTER_API_KEY": "no-key-at-all"}).model
    stream = model._streamed_response_cls  # type: ignore[attr-defined]
    assert "lean" in stream._map_text_delta.__qualname__


def _in_pieces(dialect: str, count: int, size: int) -> bytes:
    """A stream in which the piece of a text comes so often, with so many letters."""
    whole = answer(dialect, "@@@").removeprefix(SSE).split(b"\n\n")
    is_piece = {"responses": b"output_text.delta", "gemini": b"@@@", "chat": b"@@@", "anthropic": b"text_delta"}[dialect]
    events = [event.replace(b"@@@", b"y" * size) for event in whole for _ in range(count if is_piece in event else 1)]
    return SSE + b"\n\n".join(events)


PLAIN = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nConnection: close\r\n\r\n"
MOVED = b"HTTP/1.1 302 Found\r\n%bContent-Length: 0\r\nConnection: close\r\n\r\n"
NO_ANSWERS = {
    "list": SSE + b"data: []\n\n",
    "null": SSE + b"data: null\n\n",
    "number": SSE + b"data: 5\n\n",
    "text": SSE + b'data: "x"\n\n',
    "half": SSE + b'data: {"id"\n\n',
    "bytes": SSE + b"data: \xff\xfe\n\n",
    "html": PLAIN + b"<html>Log in</html>",
    "nothing": PLAIN,
    "json": HTTP % b"200" + b"[]",
    "status": HTTP % b"200" + b'{"ok":true}',
    "moved": MOVED % b"Location: /login\r\n",
    "nowhere": MOVED % b"",
    "astray": MOVED % b"Location: ht!tp://[\r\n",
    "unpackable": PACKED + b"no gzip",
    "garbage": b"SSH-2.0-OpenSSH\r\n",
}


@pytest.mark.parametrize("one", PLAIN_CHAT)
@pytest.mark.parametrize("what", NO_ANSWERS)
async def test_what_is_no_answer_is_told_as_the_providers(server: ModelServer, one: str, what: str) -> None:
    """Never as a failure of ours; the prompt is kept, and nothing else."""
    server.canned = [NO_ANSWERS[what]] * QUICK.attempts
    history, model, told = History(), await loaded(one, server.url), Told("first")
    ended = await talk(told, model, history)
    assert (None, -32603, False) == (ended.stop, ended.code, ended.forget)
    assert "acpd-agent" not in ended.text
    assert "Your prompt is kept" in ended.text
    assert 1 == len(history.messages)
    server.canned.clear()
    assert "end_turn" == (await talk(Told("[[say on]]"), model, history, rules=Rules(messages=0, tokens=0))).stop
    assert "first" in json.dumps(server.bodies[-1])


@pytest.mark.parametrize("one", PLAIN_CHAT)
async def test_what_follows_a_text_may_be_no_answer(server: ModelServer, one: str) -> None:
    """What was said stays, the half call behind it does not."""
    whole = answer(one, "so far", [("c", "read", {"path": "/x"})])
    for line in (b"data: 5\n\n", b"data: {\n\n", b"data: \xff\n\n"):
        server.canned = [whole[: whole.index(b"so far") + whole[whole.index(b"so far") :].index(b"\n\n") + 2] + line]
        history, model = History(), await loaded(one, server.url)
        ended = await talk(Told("x"), model, history)
        assert "broke off" in ended.text
        await talk(Told("[[say on]]"), model, history)
        assert "so far" in json.dumps(server.bodies[-1])


@pytest.mark.parametrize("one", PLAIN_CHAT)
@pytest.mark.parametrize("arguments", [b"", b"x", b"5", b"[1]", b'{\\"path\\":'])
async def test_arguments_that_are_no_object(server: ModelServer, one: str, arguments: bytes) -> None:
    """The call is told so, and no provider that reads the arguments of earlier calls refuses what comes after it."""
    if one == "gemini":
        return  # its arguments are never a text
    whole = answer(one, "", [("c", "read", {"path": "@@@"})])
    spelled = b'"{\\"path\\": \\"@@@\\"}"'
    assert spelled in whole
    server.canned = [whole.replace(spelled, b'"%b"' % arguments), answer(one, "seen")]
    history, model = History(), await loaded(one, server.url)
    assert "end_turn" == (await talk(Told("x"), model, history)).stop
    assert "end_turn" == (await talk(Told("[[say on]]"), model, History.restored(history.dump()))).stop


@pytest.mark.e2e
@pytest.mark.parametrize("one", DIALECTS)
async def test_whatever_stands_in_the_place_of_a_value(server: ModelServer, one: str) -> None:
    """Each value of an answer becomes another in turn: the turn ends or goes on, and what is kept can be asked on with."""
    model = await loaded(one, server.url)
    events = answer(one, "said", [("c", "read", {"path": "/x"})]).removeprefix(SSE).split(b"\n\n")
    for number, event in enumerate(events):
        for odd in _odd(event, number):
            server.canned = [SSE + b"\n\n".join([*events[:number], odd, *events[number + 1 :]]), *[answer(one, "seen")] * 4]
            history = History()
            ended = await talk(Told("first"), model, history)
            assert "acpd-agent" not in ended.text, odd
            server.canned.clear()
            kept = History.restored(history.dump())
            assert "end_turn" == (await talk(Told("[[say on]]"), model, kept)).stop, odd


def _odd(event: bytes, number: int) -> Iterator[bytes]:
    """With each value in turn replaced by two of four that do not belong there."""
    head, _, text = event.partition(b"data: ")
    if not text.startswith(b"{"):
        return
    odd: list[Any] = [None, 5, "x", [{}]]
    for place, path in enumerate(_paths(json.loads(text)), number):
        for value in odd[place % 2 :: 2]:
            whole = json.loads(text)
            functools.reduce(lambda inner, step: inner[step], path[:-1], whole)[path[-1]] = value
            yield head + b"data: " + json.dumps(whole).encode()


def _paths(value: object, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    steps = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, inner in steps:
        yield from _paths(inner, (*path, step))
