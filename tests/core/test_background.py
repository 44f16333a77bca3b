"""What an agent says while no turn runs: stored and shown like everything else, and marked, the same wherever it is read."""

from __future__ import annotations

from pathlib import Path

from tests.core.world import Editor, Voice, World, attach, chunk, load, prompt
from tests.support.store import Json

MARK = "acpd.dev/background"
CALL: Json = {"sessionUpdate": "tool_call", "toolCallId": "t", "title": "T", "status": "completed"}
ODD: Json = {"content": {"text": "odd order", "type": "text"}, "sessionUpdate": "agent_thought_chunk", "_meta": {"a": 1}}


def marked(editor: Editor) -> list[bool]:
    """Of each update, in order. The mark is `true` or not there."""
    metas = [message["params"]["_meta"] for message in editor.got if message.get("method") == "session/update"]
    assert {True} >= {meta[MARK] for meta in metas if MARK in meta}
    return [MARK in meta for meta in metas]


async def turn(editor: Editor, voice: Voice, name: str, *said: Json | str) -> None:
    """A whole turn in which the agent says this."""
    prompt(voice.session, editor, name)
    await voice.until(lambda: any(params["prompt"][0]["text"] == name for params, _ in voice.prompts))
    voice.say(*said)
    voice.end()
    await editor.answered(name)


async def test_what_is_said_between_turns_is_marked(world: World) -> None:
    """The mark stands in the frame's `_meta` from the end of one turn to the beginning of the next; nothing else has it."""
    session, voice = await world.with_agent()
    attach(session, editor := Editor())
    voice.say("early")
    await turn(editor, voice, "p1", "a", "b", "c")
    voice.say("x", "y", "z", chunk("thought", "agent_thought_chunk"), CALL, ODD)
    await turn(editor, voice, "p2", "d", CALL)
    assert [True, *[False] * 3, *[True] * 6, *[False] * 2] == marked(editor)


async def test_the_mark_is_the_same_live_behind_and_replayed(world: World, tmp_path: Path) -> None:
    """Whoever reads along, catches up, loads, or opens the log later gets the same frames for the same lines."""
    session, voice = await world.with_agent()
    attach(session, live := Editor())
    late = attach(session, slow := Editor())
    slow.pause()
    await turn(live, voice, "p1", "a", CALL)
    voice.say("x", CALL | {"toolCallId": "u"}, ODD, {"sessionUpdate": "plan", "entries": []})
    slow.resume()
    await slow.until(lambda: late.live)
    shown = [line for line in live.raw if b"session/update" in line]
    assert shown == [line for line in slow.raw if b"user_message_chunk" not in line]
    await load(session, replayed := Editor())
    assert slow.raw == replayed.raw
    assert [False, False, False, True, True, True, True] == marked(replayed)
    again = world.crashed(tmp_path / "copy")
    async with again:
        reopened = await again.registry.open(session.id)
        await load(reopened, afterwards := Editor())
    assert replayed.raw == afterwards.raw


async def test_a_long_background_stream_folds_to_one_marked_message(world: World) -> None:
    """Chunks that are known by their text alone carry the mark too, and no message is folded over the end of a turn."""
    session, voice = await world.with_agent()
    attach(session, editor := Editor())
    await turn(editor, voice, "p1", "a", "b", "c")
    voice.say("d", "e", "f", "g")
    await load(session, replayed := Editor())
    assert ["p1", "abc", "defg"] == replayed.texts
    assert [False, False, True] == marked(replayed)


async def test_acpds_own_words_and_facts_are_not_marked(world: World) -> None:
    """A notice between turns is not the agent's work, nor are commands, usage and titles."""
    session, voice = await world.with_agent()
    attach(session, editor := Editor())
    session.recorder.tell("Something was restored.")
    session.on_batch_end()
    voice.say({"sessionUpdate": "available_commands_update", "availableCommands": []})
    assert [False, False] == marked(editor)


async def test_an_old_log_without_marks_is_shown_without(world: World) -> None:
    """The mark is what the line says, so a log of an older acpd is replayed as it was shown."""
    session, voice = await world.with_agent()
    attach(session, editor := Editor())
    await turn(editor, voice, "p1", "a")
    voice.say("x", CALL)
    name = session.id
    await world.registry.close(name)
    path = world.log(name).path
    marked_log = path.read_bytes()
    path.write_bytes(marked_log.replace(b',"background":true', b""))
    assert 2 == marked_log.count(b',"background":true')
    await load(await world.registry.open(name), replayed := Editor())
    assert (["p1", "a", "x", "tool_call"], [False] * 4) == (replayed.texts, marked(replayed))


async def test_a_prompt_while_the_agent_works_unasked_is_sent_on(world: World) -> None:
    """It does not wait for the end of what nobody can tell the end of; what follows it is of its turn."""
    session, voice = await world.with_agent()
    attach(session, editor := Editor())
    voice.say("x")
    prompt(session, editor, "p1")
    await voice.prompted()
    voice.say("y")
    voice.end()
    await editor.answered("p1")
    assert (["x", "y", "=end_turn"], [True, False]) == (editor.texts, marked(editor))


async def test_a_fork_keeps_the_mark(world: World) -> None:
    """The lines of a fork are those of its source."""
    session, voice = await world.with_agent()
    attach(session, editor := Editor())
    await turn(editor, voice, "p1", "a")
    voice.say("x")
    forked = await world.registry.fork(session.id, "/tmp", ())
    await load(forked, replayed := Editor())
    assert [False, False, True] == marked(replayed)
