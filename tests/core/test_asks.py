"""What an agent asks of a person: who is asked, who may answer, and that nothing is granted by accident."""

from __future__ import annotations

from typing import Any

import pytest

from acpd.asks import ELICITATION, PERMISSION
from acpd.errors import RequestError
from acpd.session import LiveSession
from tests.core.world import Editor, Voice, World, attach, dumps, load, prompt, until
from tests.support.store import Json

OPTIONS = [
    {"optionId": "no-for-ever", "name": "Never", "kind": "reject_always"},
    {"optionId": "yes", "name": "Yes", "kind": "allow_once"},
    {"optionId": "no", "name": "No", "kind": "reject_once"},
]
PARAMS: Json = {"toolCall": {"toolCallId": "t", "rawInput": {"n": 1}}, "options": OPTIONS}
FORM: Json = {"mode": "form", "message": "Who?", "requestedSchema": {"type": "object", "properties": {}}}
CANCELLED = {"outcome": {"outcome": "cancelled"}}


def selected(option: str) -> Json:
    return {"outcome": {"outcome": "selected", "optionId": option}}


async def asked(
    world: World, *editors: Editor, method: str = PERMISSION, params: Json = PARAMS
) -> tuple[LiveSession, Voice, str]:
    """A session whose agent asks; the ask's id."""
    session, voice = await world.with_agent()
    for editor in editors:
        attach(session, editor)
    voice.ask_user("q", method, params)
    return session, voice, next(iter(session.fold.asks))


async def replied(voice: Voice, name: str = "q") -> object:
    await until(lambda: any(replied == name for replied, _ in voice.replies))
    assert 1 == [replied for replied, _ in voice.replies].count(name)
    return dict(voice.replies)[name]


async def test_an_ask_is_an_entry_before_it_is_asked_and_its_answer_one_before_it_is_told(world: World) -> None:
    """The request carries the entry's id and our session id, all else as the agent wrote it; the answer names the ask."""
    session, voice, ask = await asked(world, editor := Editor())
    method, params, _ = editor.asked[ask]
    assert (PERMISSION, {"sessionId": session.id, **PARAMS}) == (method, params)
    editor.choose(ask, "yes")
    assert [] == voice.replies
    assert selected("yes") == await replied(voice)
    log = world.log(session)
    assert [(ask, "client", selected("yes"))] == [(entry["ask"], entry["by"], entry["result"]) for entry in log.of("answer")]
    assert {"sessionId": "inner-1", **PARAMS} == log.of("ask")[0]["params"]
    assert {} == session.fold.asks


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (selected("yes"), selected("yes")),
        (selected("no-for-ever"), selected("no-for-ever")),
        (selected("of another dialog"), selected("no")),
        ({"outcome": {"outcome": "selected"}}, selected("no")),
        ({"outcome": {"outcome": "granted", "optionId": "yes"}}, selected("no")),
        (CANCELLED, CANCELLED),
        ({"outcome": "yes"}, CANCELLED),
        ({}, CANCELLED),
        (None, CANCELLED),
        ("yes", CANCELLED),
    ],
)
async def test_only_an_offered_option_counts(world: World, answer: Any, told: Json) -> None:
    """An option that was not offered is a refusal, by the reject_once that was; what is no answer is a cancel."""
    _, voice, ask = await asked(world, editor := Editor())
    editor.answer(ask, answer)
    assert told == await replied(voice)


async def test_an_unknown_option_without_a_reject_once_is_a_cancel(world: World) -> None:
    """acpd does not choose "never again" for a person."""
    _, voice, ask = await asked(world, editor := Editor(), params=PARAMS | {"options": OPTIONS[:2]})
    editor.choose(ask, "what")
    assert CANCELLED == await replied(voice)


async def test_a_client_that_answers_with_an_error_cancels(world: World) -> None:
    """Nobody else was asked, so an error is a cancel and never a yes."""
    _, voice, ask = await asked(world, editor := Editor())
    editor.answer(ask, error=RequestError(-32601, "I do not do that"))
    assert CANCELLED == await replied(voice)


async def test_the_first_answer_wins(world: World) -> None:
    """Both clients are asked; when one has answered the other gets $/cancel_request, and its late answer is dropped."""
    session, voice, ask = await asked(world, one := Editor(), two := Editor())
    late = two.asked[ask][2]
    one.choose(ask, "no")
    assert ([ask], {"requestId": ask}) == (two.forgotten, two.got[-1]["params"])
    assert "$/cancel_request" not in [message.get("method") for message in one.got]
    late(b'{"outcome":{"outcome":"selected","optionId":"yes"}}', None)
    assert selected("no") == await replied(voice)
    assert 1 == len(world.log(session).of("answer"))


async def test_an_error_of_one_client_leaves_the_other_to_answer(world: World) -> None:
    """As long as somebody may still answer, an error is nothing."""
    _, voice, ask = await asked(world, one := Editor(), two := Editor())
    one.answer(ask, error=RequestError(-32601, "no"))
    assert [] == voice.replies
    two.choose(ask, "yes")
    assert selected("yes") == await replied(voice)


@pytest.mark.parametrize("result", [{}, None, "x", {"outcome": {}}, {"outcome": 3}])
async def test_what_is_no_answer_leaves_the_other_to_answer(world: World, result: object) -> None:
    """An answer that cannot be read is as an error; if nobody else is there it is a refusal, never a yes."""
    _, voice, ask = await asked(world, one := Editor(), two := Editor())
    one.answer(ask, result)
    assert [] == voice.replies
    two.choose(ask, "yes")
    assert selected("yes") == await replied(voice)


async def test_an_ask_outlives_its_client(world: World) -> None:
    """The only client goes away: the ask stays open, is durable, and whoever attaches next is asked under the same id."""
    session, voice, ask = await asked(world, first := Editor())
    first.close()
    session.detach(first)
    assert ([], [ask]) == (voice.replies, list(session.fold.asks))
    await load(session, second := Editor())
    assert [ask] == list(second.asked)
    second.choose(ask, "yes")
    assert selected("yes") == await replied(voice)


async def test_nobody_there_means_waiting(world: World) -> None:
    """An ask without any client waits; it is never granted and never refused."""
    session, voice, ask = await asked(world)
    assert [] == voice.replies
    attach(session, editor := Editor())
    assert [ask] == list(editor.asked)


async def test_attaching_again_asks_once(world: World) -> None:
    """A client that loads the session again still has the question and is not asked twice."""
    session, _, ask = await asked(world, editor := Editor())
    await load(session, editor)
    attach(session, editor)
    assert 1 == [message.get("id") for message in editor.got].count(ask)


async def test_a_client_that_is_behind_is_asked_when_it_has_read_on(world: World) -> None:
    """An ask keeps its place: behind every update before it, also for who reads the log later."""
    session, voice = await world.with_agent()
    attachment = attach(session, slow := Editor())
    slow.pause()
    voice.say("a")
    voice.ask_user("q", PERMISSION, PARAMS)
    voice.say("b")
    assert [] == slow.got
    slow.resume()
    await until(lambda: attachment.live)
    assert ["a", "b", "?session/request_permission"] == slow.texts


async def test_an_ask_stands_between_the_updates_around_it(world: World) -> None:
    """For who reads along an ask leaves in the order in which the agent said it."""
    session, voice = await world.with_agent()
    attach(session, editor := Editor())
    voice.say("a", end=False)
    voice.ask_user("q", PERMISSION, PARAMS)
    voice.say("b")
    assert ["a", "?session/request_permission", "b"] == editor.texts


async def test_cancel_answers_every_ask_at_once(world: World) -> None:
    """session/cancel: the agent's open asks are `cancelled`, and the clients are told that they need not answer."""
    session, voice = await world.with_agent()
    attach(session, editor := Editor())
    prompt(session, editor, "p1")
    await voice.until(lambda: voice.prompts)
    voice.ask_user("q1", PERMISSION, PARAMS)
    voice.ask_user("q2", PERMISSION, PARAMS)
    session.cancel()
    assert (CANCELLED, CANCELLED) == (await replied(voice, "q1"), await replied(voice, "q2"))
    assert (1, ["cancel", "cancel"]) == (voice.cancels, [entry["by"] for entry in world.log(session).of("answer")])
    assert 2 == [message.get("method") for message in editor.got].count("$/cancel_request")
    voice.end("cancelled")
    await editor.answered("p1")


async def test_an_ask_of_a_turn_that_ends_is_closed_with_it(world: World) -> None:
    """An agent that ends its turn without waiting, or dies, leaves no question open."""
    session, voice = await world.with_agent()
    attach(session, editor := Editor())
    prompt(session, editor, "p1")
    await voice.until(lambda: voice.prompts)
    voice.ask_user("q", PERMISSION, PARAMS)
    voice.end()
    await editor.answered("p1")
    assert CANCELLED == await replied(voice)
    assert ({}, "acpd") == (session.fold.asks, world.log(session).of("answer")[0]["by"])


async def test_the_agent_may_withdraw_its_request(world: World) -> None:
    """$/cancel_request of the agent: exactly one answer, -32800; clients are told; other requests stay."""
    session, voice, ask = await asked(world, editor := Editor())
    voice.ask_user("r", PERMISSION, PARAMS)
    session.asks.withdraw(b"unknown")
    session.asks.withdraw(b"q")
    assert -32800 == await replied(voice)
    assert [ask] == editor.forgotten
    assert 1 == len(session.fold.asks)
    assert -32800 == world.log(session).of("answer")[0]["error"]["code"]


async def test_an_answer_is_told_when_it_is_durable(world: World) -> None:
    """The agent acts on a yes only when a crash cannot take it back."""
    _, voice, ask = await asked(world, editor := Editor())
    seen: list[int] = []
    world.files.on_sync = lambda _: seen.append(len(voice.replies))
    editor.choose(ask, "yes")
    await replied(voice)
    assert 0 == seen[0]


@pytest.mark.parametrize("params", [{}, {"toolCall": {"toolCallId": "t"}}, {"toolCall": {}, "options": []}, {"options": "all"}])
async def test_params_that_no_client_could_read_are_refused(world: World, params: Json) -> None:
    """The agent gets -32602, nothing is stored and nobody is asked."""
    session, voice = await world.with_agent()
    attach(session, editor := Editor())
    with pytest.raises(RequestError) as raised:
        voice.ask_user("q", PERMISSION, params)
    assert (-32602, {}, []) == (raised.value.code, session.fold.asks, editor.got)


async def test_an_elicitation_goes_to_who_prompted(world: World) -> None:
    """Of two that could answer the prompter is asked, though the other was attached before it."""
    session, voice = await world.with_agent()
    attach(session, first := Editor(elicits=["form"]))
    attach(session, mine := Editor(elicits=["form", "url"]))
    prompt(session, mine, "p1")
    await voice.until(lambda: voice.prompts)
    voice.ask_user("q", ELICITATION, FORM)
    assert ({}, 1) == (first.asked, len(mine.asked))
    mine.answer(next(iter(mine.asked)), {"action": "accept", "content": {"name": "n"}})
    assert {"action": "accept", "content": {"name": "n"}} == await replied(voice)
    voice.end()
    await mine.answered("p1")


async def test_an_elicitation_goes_to_the_longest_attached_that_can(world: World) -> None:
    """Without a prompter that declared the mode: who is attached longest and did. Nobody: it waits for one who can."""
    _, _, ask = await asked(
        world, Editor(), one := Editor(elicits=["form"]), two := Editor(elicits=["form"]), method=ELICITATION, params=FORM
    )
    assert ([ask], []) == (list(one.asked), list(two.asked))
    session, _, ask = await asked(world, Editor(elicits=["url"]), method=ELICITATION, params=FORM)
    attach(session, able := Editor(elicits=["form"]))
    assert [ask] == list(able.asked)


async def test_an_elicitation_passes_on_when_its_client_leaves(world: World) -> None:
    """It goes to one at a time: when that one is gone, the next that can is asked without having to attach again."""
    session, voice, ask = await asked(
        world, one := Editor(elicits=["form"]), two := Editor(elicits=["form"]), method=ELICITATION, params=FORM
    )
    one.close()
    session.detach(one)
    assert [ask] == list(two.asked)
    two.answer(ask, {"action": "decline"})
    assert {"action": "decline"} == await replied(voice)


@pytest.mark.parametrize("answer", [{"action": "agree"}, {}, None, {"action": 7}])
async def test_what_is_no_answer_to_an_elicitation_is_a_cancel(world: World, answer: Any) -> None:
    """Only accept, decline and cancel are answers."""
    _, voice, ask = await asked(world, editor := Editor(elicits=["form"]), method=ELICITATION, params=FORM)
    editor.answer(ask, answer)
    assert {"action": "cancel"} == await replied(voice)


async def test_a_dead_agents_asks_are_closed(world: World) -> None:
    """Between turns too: who is gone needs no answer, and clients are told."""
    session, voice, ask = await asked(world, editor := Editor())
    voice.die()
    assert ({}, [ask]) == (session.fold.asks, editor.forgotten)


def errors_of(entries: list[Json]) -> list[tuple[str, bool]]:
    return [(entry["by"], "error" in entry) for entry in entries]


def leave(session: LiveSession, editor: Editor) -> None:
    """As a connection ends."""
    editor.close()
    session.detach(editor)


async def in_a_turn(world: World, *editors: Editor, method: str = PERMISSION, params: Json = PARAMS) -> tuple[Voice, str]:
    """The first of these clients prompts, and the agent asks; the ask's id."""
    session, voice = await world.with_agent()
    for editor in editors:
        attach(session, editor)
    prompt(session, editors[0], "p1")
    await voice.prompted()
    voice.ask_user("q", method, params)
    return voice, next(iter(session.fold.asks))


@pytest.mark.parametrize("first", [0, 1, 2])
async def test_of_three_answers_in_one_tick_the_first_counts(world: World, first: int) -> None:
    """Whoever it is of; one answer is stored and told, and only those who had not answered are told to stop."""
    editors = [Editor(), Editor(), Editor()]
    session, voice, ask = await asked(world, *editors)
    answers = [(editor, editor.asked[ask][2]) for editor in editors]
    ordered = answers[first:] + answers[:first]
    options = ("yes", "no", "no-for-ever")
    for (_, then), option in zip(ordered, options, strict=True):
        then(b'{"outcome":{"outcome":"selected","optionId":"%b"}}' % option.encode(), None)
    assert selected("yes") == await replied(voice)
    assert 1 == len(world.log(session).of("answer"))
    told = [[message.get("method") for message in editor.got].count("$/cancel_request") for editor, _ in ordered]
    assert [0, 1, 1] == told


@pytest.mark.parametrize("result", [selected("yes"), selected("no"), CANCELLED])
async def test_what_comes_first_of_answer_and_cancel_counts(world: World, result: Json) -> None:
    """In one tick too: an answer before a cancel is the answer, one behind it is dropped; a refusal is no cancel."""
    voice, ask = await in_a_turn(world, one := Editor(), two := Editor())
    late = two.asked[ask][2]
    one.answer(ask, result)
    voice.session.cancel()
    late(dumps(selected("no-for-ever")), None)
    assert result == await replied(voice)
    voice.ask_user("r", PERMISSION, PARAMS)
    (again,) = voice.session.fold.asks
    late = one.asked[again][2]
    voice.session.cancel()
    late(dumps(result), None)
    assert CANCELLED == await replied(voice, "r")
    assert ["client", "cancel"] == [entry["by"] for entry in world.log(voice.session).of("answer")]
    voice.end("cancelled")
    await one.answered("p1")


async def test_an_answer_behind_the_agents_withdrawal_is_dropped(world: World) -> None:
    """The request has its -32800 already; and a withdrawal behind an answer is nothing."""
    session, voice, ask = await asked(world, one := Editor(), two := Editor())
    late = [editor.asked[ask][2] for editor in (one, two)]
    session.asks.withdraw(b"q")
    for then in late:
        then(dumps(selected("yes")), None)
    assert -32800 == await replied(voice)
    voice.ask_user("r", PERMISSION, PARAMS)
    two.choose(next(iter(session.fold.asks)), "no")
    session.asks.withdraw(b"r")
    assert selected("no") == await replied(voice, "r")
    assert [("agent", True), ("client", False)] == errors_of(world.log(session).of("answer"))


async def test_an_answer_of_a_client_that_left_is_dropped(world: World) -> None:
    """What was on its way when the connection was found dead is nobody's answer; the others still have the question."""
    session, voice, ask = await asked(world, one := Editor(), two := Editor())
    late = one.asked[ask][2]
    leave(session, one)
    late(dumps(selected("yes")), None)
    assert ([], [ask]) == (voice.replies, list(two.asked))
    two.choose(ask, "no")
    assert selected("no") == await replied(voice)


async def test_all_clients_leave_and_another_comes(world: World) -> None:
    """The ask waits through the empty time and is asked of the next, once, under its id."""
    session, voice, ask = await asked(world, one := Editor(), two := Editor())
    leave(session, one)
    leave(session, two)
    assert [] == voice.replies
    attach(session, three := Editor())
    await load(session, four := Editor())
    assert ([ask], [ask]) == (list(three.asked), list(four.asked))
    four.choose(ask, "yes")
    assert selected("yes") == await replied(voice)
    assert [ask] == three.forgotten


@pytest.mark.parametrize("error", [-32800, -32601, -32603])
async def test_errors_of_all_clients_are_a_cancel(world: World, error: int) -> None:
    """Also -32800, which gives up the question and answers nothing: only when nobody is left who may answer it counts."""
    _, voice, ask = await asked(world, one := Editor(), two := Editor())
    one.answer(ask, error=RequestError(error, "no"))
    assert [] == voice.replies
    two.answer(ask, error=RequestError(error, "no"))
    assert CANCELLED == await replied(voice)


async def test_an_error_does_not_answer_for_a_client_that_is_behind(world: World) -> None:
    """It has not come to the question yet; it is asked when it has read on, and its answer counts."""
    session, voice = await world.with_agent()
    attach(session, quick := Editor())
    attach(session, slow := Editor())
    slow.pause()
    voice.say("a")
    voice.ask_user("q", PERMISSION, PARAMS)
    (ask,) = session.fold.asks
    quick.answer(ask, error=RequestError(-32601, "no"))
    assert [] == voice.replies
    slow.resume()
    await slow.until(lambda: slow.asked)
    slow.choose(ask, "yes")
    assert selected("yes") == await replied(voice)


async def test_who_answered_with_an_error_is_asked_again_only_for_want_of_others(world: World) -> None:
    """Not because somebody else left, but when the last one did that was still asked."""
    session, voice, ask = await asked(world, one := Editor(), two := Editor(), three := Editor())
    one.answer(ask, error=RequestError(-32601, "no"))
    leave(session, three)
    assert [] == list(one.asked)
    leave(session, two)
    assert [ask] == list(one.asked)
    one.choose(ask, "yes")
    assert selected("yes") == await replied(voice)


async def test_an_observer_is_never_asked(world: World) -> None:
    """Neither when it attaches, nor when the agent asks, nor when the last controller leaves."""
    session, voice = await world.with_agent()
    session.audience.start(session.attach(observer := Editor(elicits=["form"]), observer=True))
    attach(session, editor := Editor(elicits=["form"]))
    voice.ask_user("q", PERMISSION, PARAMS)
    voice.ask_user("r", ELICITATION, FORM)
    permission, elicitation = session.fold.asks
    assert ([permission, elicitation], []) == (list(editor.asked), list(observer.asked))
    leave(session, editor)
    session.audience.start(session.attach(observer, observer=True))
    assert ([], {}) == (voice.replies, observer.asked)
    attach(session, observer)
    assert [permission, elicitation] == list(observer.asked)
    observer.choose(permission, "yes")
    observer.answer(elicitation, {"action": "decline"})
    assert (selected("yes"), {"action": "decline"}) == (await replied(voice), await replied(voice, "r"))


async def test_an_observer_is_told_that_a_question_is_open(world: World) -> None:
    """Also one that comes later; once, whether or not it falls behind; what it is about, and when it is over.

    Who may answer is told nothing.
    """
    session, voice = await world.with_agent()
    session.audience.start(session.attach(observer := Editor(), observer=True))
    attach(session, editor := Editor(elicits=["form"]))
    voice.ask_user("q", PERMISSION, PARAMS)
    voice.ask_user("r", ELICITATION, FORM)
    session.audience.start(session.attach(later := Editor(), observer=True))
    behind = session.audience.attachment(observer)
    assert behind is not None
    behind.fall_behind()
    await until(lambda: behind.live)
    permission, elicitation = session.fold.asks
    editor.choose(permission, "yes")
    editor.answer(elicitation, {"action": "decline"})
    told = [
        f"[acpd] {what}\n\n"
        for what in (
            "A question is open: tool call t",
            "A question is open: Who?",
            "The question is over: tool call t",
            "The question is over: Who?",
        )
    ]
    assert (told, told) == (notices(observer), notices(later))
    assert [] == notices(editor)


def notices(editor: Editor) -> list[str]:
    return [each["content"]["text"] for each in editor.updates if "[acpd]" in str(each)]


async def test_a_title_is_what_an_observer_is_told(world: World) -> None:
    """Where the permission has one, and no more of it than a line takes."""
    session, voice = await world.with_agent()
    session.audience.start(session.attach(observer := Editor(), observer=True))
    voice.ask_user("q", PERMISSION, {**PARAMS, "toolCall": {"toolCallId": "t", "title": "Write " + "a" * 500}})
    assert ["[acpd] A question is open: Write " + "a" * 194 + "\n\n"] == notices(observer)


async def test_an_elicitation_moves_from_client_to_client(world: World) -> None:
    """The prompter, then the longest attached that can, then the next; a late answer of one that left is dropped."""
    editors = [Editor(elicits=["form"]), Editor(), Editor(elicits=["form"]), Editor(elicits=["form"])]
    voice, ask = await in_a_turn(world, *editors, method=ELICITATION, params=FORM)
    one, unable, two, three = editors
    assert [[ask], [], [], []] == [list(editor.asked) for editor in editors]
    late = one.asked[ask][2]
    leave(voice.session, one)
    late(b'{"action":"accept"}', None)
    assert [[], [ask], []] == [list(editor.asked) for editor in (unable, two, three)]
    voice.session.audience.start(voice.session.attach(two, observer=True))
    assert ([], [ask], [ask]) == (list(two.asked), two.forgotten, list(three.asked))
    leave(voice.session, three)
    assert [] == voice.replies
    attach(voice.session, four := Editor(elicits=["form"]))
    four.answer(ask, {"action": "accept"})
    assert {"action": "accept"} == await replied(voice)
    voice.end()
    await voice.session.idle()
    assert {} == unable.asked


async def test_an_elicitation_comes_back_to_who_prompted_only_if_it_is_free(world: World) -> None:
    """Somebody who is asked already is not interrupted by the prompter's coming back."""
    voice, ask = await in_a_turn(
        world, one := Editor(elicits=["form"]), two := Editor(elicits=["form"]), method=ELICITATION, params=FORM
    )
    leave(voice.session, one)
    attach(voice.session, back := Editor(elicits=["form"]))
    assert ([ask], []) == (list(two.asked), list(back.asked))
    two.answer(ask, {"action": "cancel"})
    assert {"action": "cancel"} == await replied(voice)
    voice.end()
    await voice.session.idle()
