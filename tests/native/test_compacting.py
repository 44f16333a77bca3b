"""Compaction in turns against a model server: what is asked, shown and kept, and what a failure changes (nothing)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any, cast

import msgspec
import pytest

from acpd.api.channel import encode_exactly
from acpd.api.shapes import Client
from acpd.native.compacting import NEXT, NOTHING, Compacting
from acpd.native.cutting import Rules
from acpd.native.history import History, Memory, paired
from acpd.native.models import Loaded
from acpd.native.outcomes import Outcome
from acpd.tasks import Tasks
from tests.native.turns import KEY, QUICK, Told, loaded, talk
from tests.support.models import STALL, Json, ModelServer, answer, http, model_server

RULES = Rules(messages=8, tokens=0, keep=4)
TOO_LONG: Json = {"error": {"message": "too long", "type": "invalid_request_error", "code": "context_length_exceeded"}}


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with model_server() as made:
        yield made
        assert [] == made.wrong


class Chat:
    """A session with a model: prompts in a row."""

    def __init__(self, server: ModelServer, model: Loaded, rules: Rules = RULES) -> None:
        self.server, self.model, self.rules = server, model, rules
        self.history = History()
        self.told: list[Told] = []

    async def says(self, text: str, *canned: bytes, client: Client | None = None) -> Outcome:
        """One turn; `canned`: the answers of the model, else it says "ok" once."""
        self.server.canned = list(canned) or [answer("chat", "ok")]
        told = Told(text)
        told.client = client or told.client
        self.told.append(told)
        ended = await talk(told, self.model, self.history, rules=self.rules)
        assert [] == self.server.canned
        assert self.history.messages == paired(self.history.messages)
        return ended

    async def filled(self, turns: int = 4) -> None:
        """Four turns are eight messages: the next prompt is due."""
        for number in range(turns):
            await self.says(f"prompt {number} {'q' * 100}")

    def shown(self) -> list[str]:
        """The states of compactions that the client of the newest turn was told."""
        return [str(value["status"]) for kind, value in self.told[-1].heard if kind == "update"]

    def notices(self) -> list[str]:
        return [value for kind, value in self.told[-1].heard if kind == "notice"]

    async def by_hand(self, words: str = "", *canned: bytes) -> str:
        self.server.canned = list(canned)
        self.told.append(told := Told())
        compacting = Compacting(cast("Any", told), self.model, self.history, self.rules, secrets=[KEY], limits=QUICK)
        return await compacting.by_hand(words)


@pytest.fixture
async def chat(server: ModelServer) -> Chat:
    return Chat(server, await loaded("chat", server.url))


def asked(body: Json) -> str:
    """What the model was given last by the user."""
    content = body["messages"][-1]["content"]
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


async def test_a_long_conversation_is_summarised_before_the_next_request(chat: Chat) -> None:
    """By messages: the session's model makes a summary without tools, the request has it and the newest messages, and the user
    sees it happen.
    """
    await chat.filled()
    assert 8 == len(chat.history.messages)
    await chat.says("prompt 4", answer("chat", "SUMMARY"), answer("chat", "ok"))
    summarised, request = chat.server.bodies[-2:]
    assert "tools" not in summarised
    assert "prompt 2" in asked(summarised)
    assert "prompt 3" not in asked(summarised)
    texts = json.dumps(request["messages"])
    assert [True, False, True, True] == [text in texts for text in ("SUMMARY", "prompt 2", "prompt 3", "prompt 4")]
    assert ["in_progress", "completed"] == chat.shown()
    done = chat.told[-1].heard[1][1]
    assert [{"type": "text", "text": "SUMMARY"}] == done["summary"]
    assert {"acpd.dev/upTo": chat.told[2].newest} == done["_meta"]
    assert "SUMMARY" == History.restored(chat.history.dump()).summary


async def test_within_a_turn_too(chat: Chat) -> None:
    """A turn of many rounds is compacted between its requests; no call is without its result, and it goes on."""
    rounds = [
        answer("chat", "", [(f"a{number}", "read", {"path": "1"}), (f"b{number}", "read", {"path": "2"})])
        for number in range(4)
    ]
    ended = await chat.says("work " + "q" * 200, *rounds, answer("chat", "SUMMARY"), answer("chat", "done"))
    assert "end_turn" == ended.stop
    assert "work qqq" in asked(chat.server.bodies[-2])
    sent = chat.server.bodies[-1]["messages"]
    assert ["assistant", "tool", "tool"] * 2 == [message["role"] for message in sent[2:]]
    assert [True, True] == [text in json.dumps(sent[1]) for text in ("SUMMARY", "work qqq")]


def counted(body: bytes, tokens: int) -> bytes:
    return body.replace(b'"prompt_tokens": 11', b'"prompt_tokens": %d' % tokens)


async def test_by_tokens(chat: Chat) -> None:
    """What the provider has counted is what counts; after a compaction its old counts do not start another."""
    chat.rules = Rules(messages=0, tokens=50_000)
    await chat.filled(2)
    await chat.says("x", counted(answer("chat", "ok"), 49_000))
    await chat.says("y", counted(answer("chat", "ok"), 60_000))
    await chat.says("z", answer("chat", "SUMMARY"), answer("chat", "ok"))
    assert ["in_progress", "completed"] == chat.shown()
    await chat.says("more")
    assert [] == chat.shown()


async def test_against_the_window_of_the_model(chat: Chat) -> None:
    """A model with a small window is given less than is configured, and the use of the window is told after it."""
    chat.rules = Rules(messages=0)
    chat.model = chat.model._replace(window=4_000)
    await chat.says("a" * 4_000)
    await chat.says("b" * 2_000, counted(answer("chat", "ok"), 3_000))
    await chat.says("c", answer("chat", "SUMMARY"), answer("chat", "ok"))
    used = [value for kind, value in chat.told[-1].heard if kind == "used"]
    assert 4_000 == used[0][1]
    assert 0 < used[0][0] < 100


async def test_a_huge_message_does_not_overflow_the_summary(chat: Chat) -> None:
    """What is summarised is given in parts that fit, each with the summary so far; one message too."""
    chat.rules = Rules(0, 0)
    for number in range(8):
        await chat.says(f"prompt {number} " + "q" * 12_000)
    chat.model = chat.model._replace(window=4_000)
    chat.server.bodies.clear()
    told = await chat.by_hand("", *[answer("chat", f"SUM{number}") for number in range(8)])
    assert told.startswith("What came before")
    bodies = chat.server.bodies
    assert all(len(json.dumps(body)) < 4_000 * 4 for body in bodies)
    assert "SUM0" in asked(bodies[1])
    assert f"SUM{len(bodies) - 1}" == chat.history.summary


async def test_a10_two_compactions(chat: Chat) -> None:
    """The earlier summary is in what the next one is made of, so that what the user wants survives."""
    await chat.says("INTENT: make it blue " + "q" * 100)
    await chat.filled(3)
    await chat.says("go on", answer("chat", "Intent: make it blue"), answer("chat", "ok"))
    assert "INTENT: make it blue" in asked(chat.server.bodies[-2])
    await chat.filled(2)
    await chat.says("go on", answer("chat", "again: make it blue"), answer("chat", "ok"))
    assert "<earlier-summary>\nIntent: make it blue\n" in asked(chat.server.bodies[-2])
    assert "again: make it blue" in json.dumps(chat.server.bodies[-1])
    assert "Intent: make it blue" not in json.dumps(chat.server.bodies[-1])


@pytest.mark.parametrize(
    ("canned", "why"),
    [
        (http(500, {"error": {"message": f"no {KEY}"}}), "failed (HTTP 500). It said: no ***"),
        (http(401, {"error": {"message": KEY}}), "did not accept the key (HTTP 401)"),
        (answer("chat", " "), "The summary is empty"),
        (answer("chat", "long " * 1_000), "not shorter"),
        (answer("chat", "half", finish="length"), "not finished"),
        (answer("chat", "", [("a", "read", {})]), "not finished"),
        (b"\n\n".join(answer("chat", "half").split(b"\n\n")[:2]) + b"\n\n", "v1 failed. The"),
    ],
)
async def test_a09_a_failed_summary_changes_nothing(chat: Chat, canned: bytes, why: str) -> None:
    """An error, a blank, a longer or an unfinished summary: the old context is sent, the client is told once why, and it is not
    tried again before there are some more messages; nothing is told of another failure for the same reason.
    """
    await chat.filled()
    before = list(chat.history.messages)
    ended = await chat.says("prompt 4", canned, answer("chat", "ok"))
    assert "end_turn" == ended.stop
    assert before == chat.history.messages[:8]
    assert "" == chat.history.summary
    assert 1 + 9 == len(chat.server.bodies[-1]["messages"])
    assert ["in_progress", "failed"] == chat.shown()
    said = chat.told[-1].heard[1][1]["error"]
    assert why in said
    assert KEY not in said
    assert said.endswith(f". {NEXT}")
    for again in (canned, None):
        rest = chat.history.rest
        while len(chat.history.messages) + 1 < rest:
            await chat.says("more")
            assert [] == chat.shown()
        if again is not None:
            await chat.says("more", again, answer("chat", "ok"))
            assert [] == chat.shown()
    await chat.says("more", answer("chat", "SUMMARY"), answer("chat", "ok"))
    assert ["completed"] == chat.shown()
    assert "" == chat.history.unsummarised


async def test_a_summary_may_not_fill_the_window(chat: Chat) -> None:
    """One that is shorter than what it replaces, and yet so long that the next could not be made from it, changes nothing."""
    chat.rules = Rules(0, 0)
    for _ in range(4):
        await chat.says("q" * 40_000)
    assert "Nothing was changed" in await chat.by_hand("", *[answer("chat", "s" * 33_000)] * 2)
    assert "" == chat.history.summary


@pytest.mark.e2e
@pytest.mark.parametrize("dialect", ["responses", "anthropic", "gemini"])
async def test_every_dialect(server: ModelServer, dialect: str) -> None:
    """A summary is taken from every provider, and what is given then is taken by every provider, mid-turn too."""
    chat = Chat(server, await loaded(dialect, server.url))
    rounds = [answer(dialect, "", [(f"{name}{number}", "read", {"path": name}) for name in "ab"]) for number in range(4)]
    await chat.says("work " + "q" * 200, *rounds, answer(dialect, "SUMMARY"), answer(dialect, "done"))
    assert ["in_progress", "completed"] == chat.shown()
    await chat.says("q" * 100, answer(dialect, "ok"))
    await chat.says("on", answer(dialect, "SECOND"), answer(dialect, "done"))
    assert "SUMMARY" in json.dumps(server.bodies[-2])
    assert "SECOND" in json.dumps(server.bodies[-1])


async def test_a_client_without_compaction_gets_a_notice(chat: Chat) -> None:
    """No update that it does not know; a failure is a notice, once, and success is silent."""
    plain = Client()
    await chat.filled()
    await chat.says("prompt 4", http(500, {}), answer("chat", "ok"), client=plain)
    assert [] == chat.shown()
    assert 1 == len(chat.notices())
    chat.history.rest = 0
    await chat.says("prompt 5", answer("chat", "SUMMARY"), answer("chat", "ok"), client=plain)
    assert ([], []) == (chat.shown(), chat.notices())
    assert "SUMMARY" == chat.history.summary


async def test_a08_a_cancel_leaves_everything_as_it_was(chat: Chat) -> None:
    """Cancelled while the summary is made: the old context with the prompt, no summary, no other request to the model."""
    await chat.filled()
    before = list(chat.history.messages)
    whole = answer("chat", "half of it")
    at = whole.index(b"half of it") + 40
    turn = Tasks(lambda *_: None).spawn(chat.says("prompt 4", whole[:at] + STALL + whole[at:]), name="turn")
    await asyncio.to_thread(chat.server.stalled.wait, 20)
    count = len(chat.server.bodies)
    turn.cancel()
    with pytest.raises(asyncio.CancelledError):
        await turn
    assert await asyncio.to_thread(chat.server.left.wait, 20)
    assert (before, "") == (chat.history.messages[:8], chat.history.summary)
    assert ["in_progress", "cancelled"] == chat.shown()
    assert count == len(chat.server.bodies)


async def test_an_overflow_is_compacted_and_tried_again(chat: Chat) -> None:
    """The provider says that it is too long: compacted once with the user's settings, the request is tried again and has the
    prompt once.
    """
    chat.rules = Rules(messages=100, keep=2)
    await chat.filled(3)
    ended = await chat.says("PROMPT", http(400, TOO_LONG), answer("chat", "SUMMARY"), answer("chat", "ok"))
    assert "end_turn" == ended.stop
    sent = json.dumps(chat.server.bodies[-1]["messages"])
    assert (1, 1, 0) == (sent.count("PROMPT"), sent.count("SUMMARY"), sent.count("prompt 1"))
    assert ["in_progress", "completed"] == chat.shown()


async def test_an_overflow_that_stays_ends_the_turn(chat: Chat) -> None:
    """One compaction for a request, not more; what still does not fit ends with `max_tokens`, and the prompt is forgotten."""
    chat.rules = Rules(messages=100, keep=2)
    await chat.filled(3)
    ended = await chat.says("PROMPT", http(400, TOO_LONG), answer("chat", "SUMMARY"), http(400, TOO_LONG))
    assert "max_tokens" == ended.stop
    assert "PROMPT" not in str(chat.history.messages)


async def test_what_tools_said_is_the_last_resort(chat: Chat) -> None:
    """Where no summary could be made older results are left out, as before."""
    chat.rules = Rules(messages=100, keep=2)
    for path in ("a" * 2000, "b" * 2000):
        await chat.says("x", answer("chat", "", [("call", "read", {"path": path})]), answer("chat", "seen"))
    ended = await chat.says("PROMPT", http(400, TOO_LONG), http(500, {}), answer("chat", "ok"))
    assert "end_turn" == ended.stop
    assert ["in_progress", "failed"] == chat.shown()
    assert 1 == len(chat.notices())
    assert "text of aaa" not in json.dumps(chat.server.bodies[-1])


async def test_a_window_that_nobody_knows(chat: Chat) -> None:
    """Where what is summarised is itself too long for the model it is given in smaller parts."""
    chat.rules = Rules(0, 0, 4)
    for _ in range(6):
        await chat.says("q" * 12_000)
    before = len(chat.server.bodies)
    parts = [answer("chat", "SUM")] * 2
    assert (await chat.by_hand("", http(400, TOO_LONG), *parts)).startswith("What came before")
    assert 2 <= len(chat.server.bodies) - before - 1
    assert len(asked(chat.server.bodies[-1])) < 4 * 4_200


async def test_by_hand(chat: Chat) -> None:
    """/compact makes a summary before it is due, with the words of the user; if there is too little it says so."""
    chat.rules = Rules(0, 0)
    assert NOTHING == await chat.by_hand()
    await chat.filled(1)
    assert NOTHING == await chat.by_hand()
    await chat.filled(2)
    assert "What came before" in await chat.by_hand("the colours", answer("chat", "SUMMARY"))
    assert "pays attention to this: the colours" in asked(chat.server.bodies[-1])
    assert "SUMMARY" == chat.history.summary
    before = list(chat.history.messages)
    await chat.filled(2)
    for _ in range(2):
        assert "Nothing was changed. http" in (said := await chat.by_hand("", http(500, {})))
        assert "/v1 failed (HTTP 500)." in said
        assert NEXT not in said
        assert ["in_progress", "failed"] == chat.shown()
    assert before == chat.history.messages[: len(before)]


async def test_it_is_paid_for(server: ModelServer) -> None:
    """What the summary costs is a part of what the session costs."""
    chat = Chat(server, (await loaded("chat", server.url)))
    await chat.filled()
    before = chat.history.usage
    await chat.says("prompt 4", answer("chat", "SUMMARY"), answer("chat", "ok"))
    paid = chat.history.usage
    assert (2, 22, 14) == (paid.requests - before.requests, paid.input - before.input, paid.output - before.output)


@pytest.mark.parametrize("said", ["short \ud800 sum", "\u200b", "- "])
async def test_odd_summaries(chat: Chat, said: str) -> None:
    """Half a character is mended as in an answer, and what says nothing is no summary: the memory can be kept and read."""
    await chat.filled(3)
    before = list(chat.history.messages)
    await chat.by_hand("", answer("chat", said))
    if "short" in said:
        assert "short \ufffd sum" == chat.history.summary
    else:
        assert before == chat.history.messages[: len(before)]
    again = History.restored(msgspec.json.decode(encode_exactly(chat.history.dump(), "memory"), type=Memory))
    assert again.summary == chat.history.summary
    assert len(again.messages) == len(chat.history.messages)
