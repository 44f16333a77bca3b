"""The link to one agent: what it says to whom, and what is translated on the way."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

from acpd.agents.link import EARLY_LINES, LAST_WORDS, AgentLink, Mode
from acpd.errors import StoreError
from acpd.session import LiveSession
from acpd.turn import Prompt
from acpd_backends.links import LinkFolder
from tests.agents.house import House, shown, turn
from tests.core.world import Editor, World, attach, dumps, until


def linked(world: World, session: LiveSession, mode: Mode = Mode.LIVE) -> AgentLink:
    """A link without a process, bound to the session; its input is given to its peer."""
    link = AgentLink("link-1", "agent", ("agent",), LinkFolder(world.root / "links"), world.tasks, 0.1)
    if mode is not Mode.EARLY:
        link.bind(session, b'"inner-1"', mode)
        session.link = link
    return link


def line(method: str, params: object, identifier: object = None) -> bytes:
    request = {} if identifier is None else {"id": identifier}
    return dumps({"jsonrpc": "2.0", **request, "method": method, "params": params}) + b"\n"


def update(text: str, inner: str = "inner-1") -> bytes:
    chunk = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}
    return line("session/update", {"sessionId": inner, "update": chunk})


async def test_what_comes_before_the_session_is_kept_and_bounded(tmp_path: Path) -> None:
    """Updates before the session is known come with the binding, those of other sessions are noise, and they are few."""
    async with World(tmp_path) as world:
        session = await world.new()
        attach(session, editor := Editor())
        link = linked(world, session, Mode.EARLY)
        noise: list[str] = []
        link.on_noise = noise.append
        link.peer.data_received(b"".join(update(f"u{number}") for number in range(EARLY_LINES + 10)) + update("x", "other"))
        assert EARLY_LINES == len(link._early)
        link.bind(session, b'"inner-1"')
        session.on_batch_end()
        assert [f"u{number}" for number in range(EARLY_LINES)] == editor.texts
        link.peer.data_received(update("mine") + update("x", "other") + line("session/update", {"sessionId": "inner-1"}))
        assert ("mine", 2) == (editor.texts[-1], len(noise))
        assert not any("sessionUpdate" in line for line in noise)  # the log has nothing of what is said


async def test_a_replay_is_dropped(tmp_path: Path) -> None:
    """While an agent loads its own session nothing that it says is stored or shown."""
    async with World(tmp_path) as world:
        session = await world.new()
        attach(session, editor := Editor())
        link = linked(world, session, Mode.DROP)
        link.peer.data_received(update("old"))
        link.mode = Mode.LIVE
        link.peer.data_received(update("new"))
        assert ["new"] == editor.texts
        assert ["new"] == [entry["params"]["update"]["content"]["text"] for entry in world.log(session).of("update")]


async def test_positions_are_where_the_frames_end(tmp_path: Path) -> None:
    """`src` is the link and the byte behind the frame in the agent's output, noise and long runs of chunks included."""
    async with World(tmp_path) as world:
        session = await world.new()
        link = linked(world, session)
        parts = [update("a"), b"noise\n" + update("b"), *(update(text) for text in "cdef")]
        link.peer.data_received(b"".join(parts))
        ends = [sum(map(len, parts[: count + 1])) for count in range(len(parts))]
        assert [["link-1", end] for end in ends] == [entry["src"] for entry in world.log(session).of("update")]


async def test_session_ids_are_translated_at_the_top_only(tmp_path: Path) -> None:
    """Outwards ours, inwards the agent's; an id that stands deeper, and every other byte, is left alone."""
    async with World(tmp_path) as world:
        session = await world.new()
        link = linked(world, session)
        first = b'{"sessionId":%b,"x":{"sessionId":%b},"n":1.50}' % (session.id_json, session.id_json)
        last = b'{"n":1.50, "sessionId" : %b}' % session.id_json
        assert b'{"sessionId":"inner-1","x":{"sessionId":%b},"n":1.50}' % session.id_json == link.translated(first)
        assert b'{"n":1.50, "sessionId" : "inner-1"}' == link.translated(last)
        attach(session, editor := Editor())
        link.peer.data_received(line("_vendor/note", {"sessionId": "inner-1", "deep": {"sessionId": "inner-1"}}))
        assert {"sessionId": session.id, "deep": {"sessionId": "inner-1"}} == editor.got[0]["params"]


async def test_extensions_pass_and_acpds_own_do_not(tmp_path: Path) -> None:
    """`_acpd/` never reaches a client; other notifications behind the updates before them, to who reads along."""
    async with World(tmp_path) as world:
        session = await world.new()
        attach(session, editor := Editor())
        attach(session, slow := Editor())
        slow.pause()
        link = linked(world, session)
        notes = [line(method, {}) for method in ("_acpd/secret", "_vendor/note", "unknown")]
        link.peer.data_received(b"".join([update("a"), *notes, update("b")]))
        assert ["a", "?_vendor/note", "b"] == editor.texts
        assert [] == slow.got


async def test_an_extensions_method_cannot_forge_a_line(tmp_path: Path) -> None:
    """Whatever stands in a method's name, it is one name in one line."""
    async with World(tmp_path) as world:
        session = await world.new()
        attach(session, editor := Editor())
        link = linked(world, session)
        name = '_x","params":{}}\n{"jsonrpc":"2.0","id":1,"result":{'
        link.peer.data_received(line(name, {}))
        assert [name] == [message["method"] for message in editor.got]


# -- with a real agent


async def test_an_agent_that_withdraws_a_forwarded_request(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """$/cancel_request reaches the client under the id that acpd gave it; its answer goes back once."""
    session = await house.new(house.host())
    attach(session, editor := Editor())
    link = await session.ensure_agent()
    assert isinstance(link, AgentLink)
    sent: list[bytes] = []
    monkeypatch.setattr(link.peer, "send", sent.append)
    link.peer.data_received(line("_vendor/ask", {"sessionId": "x"}, 77))
    call = next(iter(editor.asked))
    link.peer.data_received(line("$/cancel_request", {"requestId": 77}))
    assert ("$/cancel_request", {"requestId": call}) == (editor.got[-1]["method"], editor.got[-1]["params"])
    editor.answer(call, {"late": True})
    assert ([77], {}) == ([json.loads(data)["id"] for data in sent], link.forwarded)
    monkeypatch.undo()


async def test_an_agent_that_dies_in_a_turn_says_why(house: House) -> None:
    """What it had written before is there, then the error with its last words, within a second."""
    session = await house.new(house.host())
    texts, answer = await asyncio.wait_for(turn(session, "stderr so long\nsay a\nsay b\ndie 7"), LAST_WORDS + 5)
    assert ["a", "b"] == texts
    assert "exit code 7: so long" in answer["error"]["message"]
    assert ["c"] == (await turn(session, "say c"))[0][-1:]


async def test_last_words_that_wait_for_the_disk_are_not_lost(house: House) -> None:
    """An agent that ends while it is held is lost only when what it had said before is handled."""
    session = await house.new(house.host())
    link = await session.ensure_agent()
    assert isinstance(link, AgentLink)
    link.hold("disk")
    attach(session, editor := Editor())
    loop = asyncio.get_running_loop()
    asking = loop.create_task(turn(session, "say a\nsay b\ndie 7", editor))
    process = link._process
    assert process is not None
    assert await process.exited(10)
    loop.call_later(LAST_WORDS * 1.5, link.release, "disk")
    texts, answer = await asking
    assert (["a", "b"], True) == (texts, "exit code 7" in answer["error"]["message"])


async def test_a_prompt_to_an_agent_that_has_ended_is_answered(house: House) -> None:
    """Nobody waits for an agent that will never answer."""
    link = await house.start(house.host())
    session = await house.new(house.host())
    link.bind(session, b'"x"')
    await link.stop()
    answers: list[object] = []
    link.prompt(Prompt(b"{}", b"[]", None, None, None), lambda result, error: answers.append((result, error)))
    await until(lambda: answers)
    assert "agent scripted" in str(answers[0])


async def test_a_big_image_among_early_updates_keeps_its_place(house: House) -> None:
    """Blobs are stored in threads; what stands behind them waits, also where several lines came at once."""
    session = await house.new(house.host())
    texts, _ = await turn(session, "say a\nbig 100000\nsay b\nbig 200000\nsay c")
    assert ["a", "b" * 100_000, "b", "b" * 200_000, "c"] == texts
    assert "".join(["say a\nbig 100000\nsay b\nbig 200000\nsay c", *texts]) == "".join(await shown(session))


async def test_an_agent_whose_files_fail_is_stopped_all_the_same(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its stderr that cannot be shortened and its file that stays are reported; its session is closed and given up."""
    session = await house.new(house.host())
    link = await session.ensure_agent()
    assert isinstance(link, AgentLink)

    def full(name: str) -> None:
        raise StoreError("write", name, cause="no space")

    monkeypatch.setattr(house.runtime, "trim_stderr", full)
    monkeypatch.setattr(house.runtime, "forget", full)
    await house.registry.close(session.id)
    assert ({}, {}) == (house.registry.live, house.pool.links)
    assert 2 == sum("no space" in line for line in house.noise.lines)


async def test_notifications_for_an_agent_that_does_not_read_are_dropped(house: House) -> None:
    """They cost no memory and one line of the log; those that come when it reads again reach it."""
    go, got = house.root / "go", house.root / "got"
    os.mkfifo(go)
    session = await house.new(house.host())
    link = await house.start(house.shell(f'read x; echo "$INIT"; read y <{go}; cat >{got}'))
    link.bind(session, b'"inner-1"')
    note = b'{"sessionId":%b,"x":"%b"}' % (session.id_json, b"x" * 100_000)
    for number in range(100):
        link.pass_on(f"_vendor/{number}", note)
        await asyncio.sleep(0)
    assert link.peer.paused
    assert 1 == len(house.noise.lines)
    await asyncio.to_thread(go.write_text, "go\n")
    await until(lambda: not link.peer.paused)
    link.pass_on("_vendor/last", b'{"sessionId":%b}' % session.id_json)
    await link.stop()
    notes = [json.loads(each) for each in (await asyncio.to_thread(got.read_bytes)).splitlines()]
    assert ("_vendor/last", {"sessionId": "inner-1"}) == (notes[-1]["method"], notes[-1]["params"])
    assert [f"_vendor/{number}" for number in range(len(notes) - 1)] == [each["method"] for each in notes[:-1]]
    assert len(notes) < 20
