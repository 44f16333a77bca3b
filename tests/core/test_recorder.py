"""What goes into a log, and as what."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from acpd.errors import StoreError
from acpd.scribe import RETRY_EVERY
from acpd.session import LiveSession
from acpd.wire import frames
from tests.core.world import Editor, World, attach, chunk, load, prompt, put_forward, until
from tests.support.store import Json


def message_ids(updates: list[Json]) -> list[str | None]:
    return [update.get("messageId") for update in updates]


def runs(values: list[Any]) -> list[int]:
    """The same values as numbers in the order of their first appearance."""
    return [list(dict.fromkeys(values)).index(value) for value in values]


async def spoken(world: World, *said: Json | str) -> tuple[LiveSession, Editor]:
    session, voice = await world.with_agent()
    attach(session, editor := Editor({"session": {"notices": {}}}))
    voice.say(*said)
    return session, editor


async def test_adjacent_chunks_of_a_kind_are_one_message(world: World) -> None:
    """acpd gives a chunk without a messageId the id of the first one of its run, in the log and to the client."""
    session, editor = await spoken(world, "a", "b", chunk("t", "agent_thought_chunk"), chunk("u", "agent_thought_chunk"), "c")
    given = message_ids(editor.updates)
    assert [0, 0, 1, 1, 2] == runs(given)
    entries = world.log(session).of("update")
    assert given == [entry["messageId"] for entry in entries]
    assert [entries[0]["id"], entries[2]["id"], entries[4]["id"]] == [given[0], given[2], given[4]]
    assert all("messageId" not in entry["params"]["update"] for entry in entries)


async def test_any_other_entry_ends_a_message(world: World) -> None:
    """A tool call, an unknown kind, an ask, acpd's own words, a turn: the next chunk begins a message. A fact does not."""
    session, voice = await world.with_agent()
    attach(session, editor := Editor())
    call = {"sessionUpdate": "tool_call", "toolCallId": "1", "title": "t"}
    voice.say(
        "a", call, "b", {"sessionUpdate": "of_the_future"}, "c", {"sessionUpdate": "usage_update", "used": 1, "size": 2}, "c"
    )
    session.recorder.tell("a word")
    session.on_batch_end()
    voice.say("d")
    prompt(session, editor, "p1")
    await voice.prompted()
    voice.say("e")
    voice.end()
    voice.say("f")
    await session.idle()
    chunks = [update for update in editor.updates if update["sessionUpdate"] == "agent_message_chunk"]
    assert ["a", "b", "c", "c", "[acpd] a word\n\n", "d", "e", "f"] == [update["content"]["text"] for update in chunks]
    assert [0, 1, 2, 2, 3, 4, 5, 6] == runs(message_ids(chunks))


async def test_an_agents_own_message_ids_are_untouched(world: World) -> None:
    """What the agent numbers itself stays as it is, and ends a run of what acpd numbers; a null counts as none."""
    session, editor = await spoken(
        world, "a", chunk("b", messageId="m"), "c", chunk("d", messageId="m"), chunk("e", messageId=None), "f"
    )
    ids = message_ids(editor.updates)
    assert ["m", "m"] == [ids[1], ids[3]]
    assert [0, 1, 2, 1, 3, 3] == runs(ids)
    assert [False, False] == ["messageId" in world.log(session).of("update")[number] for number in (1, 3)]


async def test_facts_are_lines_outside_the_tree(world: World) -> None:
    """Commands, title, usage, mode and options are facts with the agent's own params, and frames like any other."""
    said: list[Json] = [
        {"sessionUpdate": "available_commands_update", "availableCommands": []},
        {"sessionUpdate": "session_info_update", "title": "A title"},
        {"sessionUpdate": "usage_update", "used": 1, "size": 2},
        {"sessionUpdate": "current_mode_update", "currentModeId": "code"},
    ]
    session, editor = await spoken(world, *said)
    facts = world.log(session).entries[-4:]
    assert ["commands", "info", "usage", "config"] == [fact["type"] for fact in facts]
    assert said == [fact["params"]["update"] for fact in facts] == editor.updates
    assert not any("parentId" in fact for fact in facts)
    assert ("A title", "A title") == (facts[1]["title"], session.fold.title)


async def test_a_title_of_null_clears_it(world: World) -> None:
    """A session_info_update that says null takes the title away; one that says nothing of it leaves it."""
    session, _ = await spoken(
        world, {"sessionUpdate": "session_info_update", "title": "A"}, {"sessionUpdate": "session_info_update"}
    )
    assert "A" == session.fold.title
    world.agents.made[-1].say({"sessionUpdate": "session_info_update", "title": None})
    assert "" == session.fold.title


async def test_mode_and_options_are_merged(world: World) -> None:
    """Each config fact has everything: what an answer named, changed by what updates and later answers say."""
    session, voice = await world.with_agent()
    modes = {"currentModeId": "ask", "availableModes": [{"id": "ask", "name": "Ask"}, {"id": "code", "name": "Code"}]}
    option: Json = {"id": "m", "name": "M", "type": "select", "currentValue": "s", "options": [{"value": "s", "name": "S"}]}
    session.recorder.config(json.dumps({"sessionId": "x", "modes": modes, "configOptions": [option]}).encode())
    voice.say({"sessionUpdate": "current_mode_update", "currentModeId": "code"})
    session.recorder.config(b'{"configOptions":[]}')
    session.recorder.config(b'{"other":1}')
    session.recorder.config(b"null")
    session.on_batch_end()
    facts = world.log(session).of("config")
    assert [("ask", [option]), ("code", [option]), ("code", [])] == [
        (fact["modes"]["currentModeId"], fact["configOptions"]) for fact in facts
    ]
    assert modes["availableModes"] == facts[2]["modes"]["availableModes"]
    assert {"modes", "configOptions"} == json.loads(session.setup_answer()).keys()


async def test_a_mode_update_brings_no_malformed_options(world: World) -> None:
    """Members that are not its own are looked at too before they become an answer of load."""
    session, voice = await world.with_agent()
    voice.say({"sessionUpdate": "current_mode_update", "currentModeId": "code", "configOptions": "x", "modes": [5]})
    session.on_batch_end()
    assert b"{}" == session.setup_answer()


NO_BLOCKS: list[Json] = [{"text": "x"}, {"type": "texts", "text": "x"}, {"type": None, "text": "x"}, {"type": "text"}]


@pytest.mark.parametrize("content", NO_BLOCKS)
async def test_a_block_that_is_none_is_in_no_replay(world: World, content: Json) -> None:
    """Alone and behind a sound chunk of the same message, where chunks are joined."""
    updates = [chunk("a", messageId="m") | more for more in ({"content": content}, {})]
    session, voice = await world.with_agent()
    for each in (*updates, *updates):
        voice.say(each)
    session.on_batch_end()
    await load(session, late := Editor())
    assert "aa" == "".join(late.texts)


async def test_what_cannot_be_sent_is_kept_and_counted(world: World) -> None:
    """An update of an unknown kind, or one that no client could read, is stored raw, not sent, and counted; notices too."""
    bad = {"sessionUpdate": "tool_call", "title": 7}
    session, editor = await spoken(world, {"sessionUpdate": "of_the_future", "x": 1}, bad, {"sessionUpdate": "notice"}, "a")
    assert (["a"], 3) == (editor.texts, session.recorder.warnings)
    assert ["of_the_future", "tool_call", "agent_message_chunk"] == [entry["kind"] for entry in world.log(session).of("update")]


async def test_a_notice_is_sent_and_not_stored(world: World) -> None:
    """An agent's notice goes to who declared notices and is in no log."""
    notice = {"sessionUpdate": "notice", "severity": "info", "title": "Hi"}
    session, editor = await spoken(world, notice)
    attach(session, plain := Editor())
    world.agents.made[-1].say(notice)
    assert ([notice, notice], []) == (editor.updates, plain.updates)
    assert ["link"] == [entry["type"] for entry in world.log(session).entries]


BIG = "x" * 70_000


async def test_an_update_behind_a_big_one_is_stored_behind_it(world: World) -> None:
    """The agent is held while a big string is stored; what it had said already in the same read keeps its place."""
    session, voice = await world.with_agent()
    attach(session, editor := Editor())
    voice.say("a", BIG, "b", BIG, {"sessionUpdate": "usage_update", "used": 1, "size": 2}, "c")
    assert {"blobs"} == voice.held
    await until(lambda: not voice.held and len(editor.texts) == 6)
    assert ["a", BIG, "b", BIG, "usage_update", "c"] == editor.texts
    log = world.log(session)
    assert [1, 2, 3, 4, 5, 6, 7] == [entry["seq"] for entry in log.entries]
    assert 1 == len(list(log.path.parent.glob("*.blobs/*")))
    assert all(len(line) < 70_000 for line in log.lines)
    await load(session, late := Editor())
    assert "".join(editor.texts).replace("usage_update", "") == "".join(late.texts).replace("usage_update", "")


async def test_a_big_update_waits_for_the_disk_and_the_user_is_told(world: World) -> None:
    """A blob that cannot be stored is tried each second; after 30 seconds the prompt is answered; it is never lost."""
    session, voice = await world.with_agent()
    attach(session, editor := Editor())
    prompt(session, editor, "p1")
    await voice.prompted()
    journal = session.scribe.journal
    put_blobs, full = journal.put_blobs, [True]

    async def failing(found: Any) -> None:
        if full:
            raise StoreError("store a blob of", "the session", cause="no space", retryable=True)
        await put_blobs(found)

    journal.put_blobs = failing  # type: ignore[method-assign]
    voice.say(BIG)
    await until(lambda: voice.held)
    while editor.answer_to("p1") is None:
        put_forward(RETRY_EVERY)
        await asyncio.sleep(0.0005)
    answer = await editor.answered("p1")
    assert (-32603, True, 1) == (answer["error"]["code"], "no space" in answer["error"]["message"], voice.cancels)
    full.clear()
    put_forward(RETRY_EVERY)
    await until(lambda: not voice.held)
    voice.end("cancelled")
    await session.idle()
    assert [BIG] == [text for text in editor.texts if len(text) > 100]


async def test_updates_hang_on_the_newest_entry_of_the_turn(world: World) -> None:
    """A log that never branches is one chain, whatever comes between and after turns."""
    session, voice = await world.with_agent()
    attach(session, editor := Editor())
    voice.say("early")
    for name in ("p1", "p2"):
        prompt(session, editor, name)
        await voice.prompted(int(name[1]))
        voice.say("a", "b")
        voice.end()
        await session.idle()
        voice.say("late")
    entries = [entry for entry in world.log(session).entries if "parentId" in entry]
    assert [None, *(entry["id"] for entry in entries[:-1])] == [entry["parentId"] for entry in entries]
    assert not session.fold.branched


async def test_a_stored_payload_is_the_agents_own_text(world: World) -> None:
    """Key order, number spelling and unknown members stay, in the log and in the frame."""
    session, _ = await world.with_agent()
    attach(session, editor := Editor())
    raw = b'{"content":{"text":"a","type":"text","x":1.50},"sessionUpdate":"agent_message_chunk","y":[1e3]}'
    params = b'{"sessionId":"inner-1","update":%b}' % raw
    session.on_update(params, frames.decode_params(params), ("link-1", 77))
    session.on_batch_end()
    log = world.log(session)
    assert params in log.lines[-1]
    assert ["link-1", 77] == log.entries[-1]["src"]
    assert raw[:-1] in editor.raw[0]
