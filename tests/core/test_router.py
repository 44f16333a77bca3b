"""One client's connection: order, one answer a request, and that nothing is left half done."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from acpd import adoption
from acpd.audience import Audience
from acpd.errors import RequestError, StoreError
from acpd.router import REQUESTS
from acpd.storage.contract import Key, Row
from tests.agents.house import House
from tests.core.desk import desk
from tests.core.pipes import start
from tests.core.world import dumps, until
from tests.support.walk import below

LOOPS = ("uvloop",)


async def code(work: object) -> int:
    with pytest.raises(RequestError) as raised:
        await work  # type: ignore[misc]
    return raised.value.code


async def test_nothing_works_before_initialize(house: House) -> None:
    """-32600; and what stands behind `initialize` in the stream waits for its answer."""
    async with desk(house, house.host(), initialized=False) as one:
        assert -32600 == await code(one.new())
        assert -32600 == await code(one.prompt("x", "say hi"))
        first = start(one.initialize())
        second = start(one.new())
        assert 1 == (await first)["protocolVersion"]
        assert await second


async def test_unknown_methods(house: House) -> None:
    """-32601, `_acpd/` too; an extension goes to an agent that announces some."""
    async with desk(house, house.host()) as one:
        for method in ("session/unknown", "_acpd/anything", "fs/read_text_file", ""):
            assert -32601 == await code(one.ask(method))
        assert {"echo": {"a": 1}} == await one.ask("_test/echo", a=1)
        session = await one.new()
        answer = await one.ask("_test/echo", sessionId=session, deep={"sessionId": session})
        assert (True, session) == (answer["echo"]["sessionId"] != session, answer["echo"]["deep"]["sessionId"])


async def test_too_many_requests_at_once(house: House) -> None:
    """What comes behind the 256th that is under way is refused, and says what to do; prompts of open sessions do not count."""
    async with desk(house, house.host()) as one:
        session = await one.new()
        asked = [start(one.ask("_test/echo", number=number)) for number in range(REQUESTS + 10)]
        prompted = start(one.prompt(session, "say hello"))
        answers = await asyncio.gather(*asked, return_exceptions=True)
        assert 10 == len([each for each in answers if isinstance(each, RequestError) and "wait for one" in str(each)])
        assert REQUESTS == len([each for each in answers if isinstance(each, dict)])
        assert {"stopReason": "end_turn"} == await prompted


async def test_a_whole_conversation(house: House) -> None:
    """new, prompt, load in another connection, list, close, delete."""
    async with desk(house, house.host()) as one:
        session = await one.new()
        assert {"stopReason": "end_turn"} == await one.prompt(session, "say hello")
        async with desk(house, house.host()) as two:
            answer = await two.load(session)
            assert (["say hello", "hello"], "ask") == (two.texts, answer["modes"]["currentModeId"])
            await one.prompt(session, "say again")
            await until(lambda: len(two.texts) == 4)
            assert ["say hello", "hello", "say again", "again"] == two.texts
        assert ["hello", "again"] == one.texts
        assert {} == await one.ask("session/close", sessionId=session)
        assert {} == house.registry.live
        await one.prompt(session, "say back")  # resumed by itself
        assert "back" == one.texts[-1]
        for _ in range(2):
            assert {} == await one.ask("session/delete", sessionId=session)
        assert -32002 == await code(one.load(session))
        house.failed.clear()


async def test_a_load_with_another_folder_is_refused(house: House) -> None:
    """-32602 that names the right one."""
    async with desk(house, house.host()) as one:
        session = await one.new()
        assert -32602 == await code(one.load(session, "/elsewhere"))


async def test_a_new_session_that_is_cancelled_leaves_nothing(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cancelled while it is made durable: -32800, no session, no agent of it, no log."""
    async with desk(house, house.host("--no-list")) as one:
        gate = asyncio.Event()
        settled = house.store.journals.create

        async def slow(key: Key, header: object) -> object:
            journal = await settled(key, header)  # type: ignore[arg-type]
            sync = journal.sync

            def waiting() -> object:
                done = asyncio.get_running_loop().create_future()
                gate.set()
                return done

            monkeypatch.setattr(journal, "sync", waiting)
            monkeypatch.setattr(journal, "real_sync", sync, raising=False)
            return journal

        monkeypatch.setattr(house.store.journals, "create", slow)
        asking = start(one.new())
        await gate.wait()
        for session in house.registry.live.values():
            monkeypatch.setattr(session.scribe.journal, "sync", session.scribe.journal.real_sync)  # type: ignore[attr-defined]
        one.cancel_request(1)
        assert -32800 == await code(asking)
        await until(lambda: not house.registry.live and not house.pool.links)
        await until(lambda: not below(house.root / "store", "*.log.jsonl"))
        monkeypatch.undo()
        assert await one.new()


async def test_a_new_session_that_cannot_be_stored(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """-32603 with the cause; the agent is not left behind, and the next one works."""

    async def full(*_: object) -> None:
        raise StoreError("create", "the log", cause="no space")

    async with desk(house, house.host()) as one:
        monkeypatch.setattr(house.store.journals, "create", full)
        assert -32603 == await code(one.new())
        monkeypatch.undo()
        assert await one.new()


async def test_a_login_first(house: House) -> None:
    """-32000 of the agent, its process is kept and used after the login; two at once leave no second one behind."""
    async with desk(house, house.host("--auth")) as one:
        first, second = start(one.new()), start(one.new())
        assert (-32000, -32000) == (await code(first), await code(second))
        await until(lambda: len(house.pool.links) == 1)
        await one.ask("authenticate", methodId="login")
        assert await one.new()


async def test_an_agent_that_answers_nonsense_is_not_kept(house: House) -> None:
    """An answer to session/new that is none is an error, and its process ends."""
    lines = ['{"id":0,"result":{"protocolVersion":1}}', '{"id":1,"result":7}']
    script = "\n".join(f"read x; echo '{line}'" for line in lines) + "\ncat >/dev/null"
    async with desk(house, house.shell(script)) as one:
        assert -32603 == await code(one.new())
        await until(lambda: not house.pool.links)


async def test_a_resume_that_is_cancelled_reads_along(house: House) -> None:
    """-32800; the client is attached all the same, and its prompts are answered."""
    async with desk(house, house.host()) as one:
        session = await one.new()
        await one.prompt(session, "say a")
        await one.ask("session/close", sessionId=session)
        slow = house.host("--start-delay", "300", "--no-list")
        async with desk(house, house.host("--no-list")) as two:
            two.server.host.choice = slow.choice
            two.server.host.take_warm()
            resuming = start(two.ask("session/resume", sessionId=session, cwd=str(house.root)))
            await until(lambda: session in house.registry.live and house.registry.live[session].audience.attachments)
            two.cancel_request(1)
            assert -32800 == await code(resuming)
            assert {"stopReason": "end_turn"} == await two.prompt(session, "say b")
            assert "b" == two.texts[-1]


async def test_a_load_whose_log_cannot_be_read_is_an_error_and_no_dead_end(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """-32603; prompts in that session are answered all the same."""
    async with desk(house, house.host()) as one:
        session = await one.new()
        await one.prompt(session, "say a")

        def failing(*_: object, **__: object) -> object:
            raise StoreError("read", "the log", cause="no descriptor is free")

        async with desk(house, house.host()) as two:
            monkeypatch.setattr(house.store.journals, "path", failing)
            assert -32603 == await code(two.load(session))
            monkeypatch.undo()
            assert {"stopReason": "end_turn"} == await two.prompt(session, "say b")
            assert "b" == two.texts[-1]


async def test_a_client_that_goes_away(house: House) -> None:
    """Its requests end, it is detached everywhere, and other clients go on."""
    async with desk(house, house.host()) as one:
        session = await one.new()
        async with desk(house, house.host()) as two:
            await two.load(session)
            running = start(one.prompt(session, "say a\nsleep 300\nsay b"))
            await until(lambda: "a" in two.texts)
        assert {"stopReason": "end_turn"} == await running
        assert [one.server] == [each.client for each in house.registry.live[session].audience.attachments]


async def test_bad_notifications_are_logged_and_never_answered(house: House) -> None:
    """A malformed cancel is nothing to the client."""
    async with desk(house, house.host()) as one:
        one.peer.notify("session/cancel", b"{}")
        one.peer.notify("$/cancel_request", b'{"requestId":{}}')
        one.peer.notify("$/cancel_request", b'{"requestId":999}')
        one.peer.notify("unknown", b"{}")
        await one.new()
        assert ["bad notification", "bad notification"] == [event for event, _ in one.logged]
        assert [] == one.bad


async def test_modes_and_options_are_stored_before_they_are_answered(house: House) -> None:
    """What set_mode and set_config_option changed is in the answer of the next load."""
    async with desk(house, house.host()) as one:
        session = await one.new()
        assert {} == await one.ask("session/set_mode", sessionId=session, modeId="code")
        answer = await one.ask("session/set_config_option", sessionId=session, configId="model", value="large")
        assert "large" == answer["configOptions"][0]["currentValue"]
        assert -32602 == await code(one.ask("session/set_mode", sessionId=session, modeId="unknown"))
        loaded = await one.load(session)
        assert ("code", "large") == (loaded["modes"]["currentModeId"], loaded["configOptions"][0]["currentValue"])
        log = house.log(house.registry.live[session])
        assert "code" == log.of("config")[-1]["modes"]["currentModeId"]


async def test_deleting_asks_the_right_agent(house: House) -> None:
    """An agent is told to delete its own sessions only, never one of another agent's by the same id."""
    wire = house.root / "wire"
    await house.store.catalog.put(Row(id="foreign", agent="another", inner="s1", prompted=True))
    async with desk(house, house.host("--wire", str(wire))) as one:
        await one.ask("session/delete", sessionId="foreign")
        assert None is await house.store.catalog.get("foreign")
        asked = [json.loads(line[2:]) for line in wire.read_bytes().split(b"\n") if line.startswith(b"< ")]
        assert "session/delete" not in [line["method"] for line in asked]


async def test_null_arrays_reach_no_agent(house: House, tmp_path: Path) -> None:
    """`mcpServers: null` is an empty list to acpd, so it is one to the agent."""
    wire = house.root / "wire"
    async with desk(house, house.host("--wire", str(wire))) as one:
        await one.peer.ask("session/new", dumps({"cwd": str(house.root), "mcpServers": None}))
        asked = [json.loads(line[2:]) for line in wire.read_bytes().split(b"\n") if line.startswith(b"< ")]
        assert [] == next(line["params"]["mcpServers"] for line in asked if line["method"] == "session/new")


class Gate:
    """Stands before a method: `met` when somebody is there, who goes on when it is `open`."""

    def __init__(self, owner: object, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.met = asyncio.Event()
        self.open = asyncio.Event()
        method = getattr(owner, name)

        async def call(*args: Any, **more: Any) -> Any:
            self.met.set()
            await self.open.wait()
            return await method(*args, **more)

        monkeypatch.setattr(owner, name, call)


async def test_a_session_that_is_closed_while_it_is_loaded(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """No agent is started for what is closed; both are answered; the next prompt opens it again."""
    async with desk(house, house.host()) as one:
        session = await one.new()
        await one.prompt(session, "say one")
        await one.ask("session/close", sessionId=session)
        gate = Gate(one.server.peer, "drained", monkeypatch)
        loading = start(one.load(session))
        await gate.met.wait()
        await one.ask("session/close", sessionId=session)
        before = set(house.pool.links)
        gate.open.set()
        await loading
        await one.ask("session/list")
        assert ({}, before) == (house.registry.live, set(house.pool.links))
        monkeypatch.undo()
        assert {"stopReason": "end_turn"} == await one.prompt(session, "say two")


async def test_a_prompt_while_the_session_is_closed(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for the close, opens the session again and is answered."""
    async with desk(house, house.host()) as one:
        session = await one.new()
        await one.prompt(session, "say one")
        gate = Gate(Audience, "dismiss", monkeypatch)
        closing = start(one.ask("session/close", sessionId=session))
        await gate.met.wait()
        prompting = start(one.prompt(session, "say two"))
        await one.ask("session/list")  # handled behind the prompt
        gate.open.set()
        assert ({}, {"stopReason": "end_turn"}) == (await closing, await prompting)


async def test_a_prompt_right_behind_a_close(house: House) -> None:
    """In the same read as well it is not hit by the close's cancel: it opens the session again."""
    async with desk(house, house.host()) as one:
        session = await one.new()
        await one.prompt(session, "say one")
        closing, prompting = start(one.ask("session/close", sessionId=session)), start(one.prompt(session, "say two"))
        assert ({}, {"stopReason": "end_turn"}) == (await closing, await prompting)
        assert ["one", "two"] == [text for text in one.texts if text in ("one", "two")]


async def test_a_cancel_behind_a_prompt_that_opens_the_session(house: House) -> None:
    """It finds it, in the same read too: the agent never hears of it."""
    async with desk(house, house.host()) as one:
        session = await one.new()
        await one.ask("session/close", sessionId=session)
        prompting = start(one.prompt(session, "say never"))
        await asyncio.sleep(0)
        one.peer.notify("session/cancel", dumps({"sessionId": session}))
        assert {"stopReason": "cancelled"} == await prompting
        assert [] == one.texts


async def test_a_fork_that_is_cancelled_is_not_made(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """-32800; what was half made is removed, and the source, opened for it, closed again."""
    async with desk(house, house.host()) as one:
        session = await one.new()
        await one.prompt(session, "say one")
        await one.ask("session/close", sessionId=session)
        gate = Gate(house.store.journals, "peek", monkeypatch)
        forking = start(one.ask("session/fork", sessionId=session, cwd=str(house.root), mcpServers=[]))
        await gate.met.wait()
        one.cancel_request(4)
        assert -32800 == await code(forking)
        gate.open.set()
        only = [f"{session}.log.jsonl"]
        store = house.root / "store"
        await until(lambda: only == [path.name for path in below(store, "*.log.jsonl")] and not house.registry.live)
        async with asyncio.timeout(10):
            while [session] != [row["sessionId"] for row in (await one.ask("session/list"))["sessions"]]:
                pass


ADOPTED = (
    '{"id":0,"result":{"protocolVersion":1,"agentCapabilities":{"loadSession":true}}}',
    '{"method":"session/update","params":{"sessionId":"old","update":{"sessionUpdate":"user_message_chunk"}}}',
    '{"id":1,"result":{}}',
    '{"id":2,"result":{"stopReason":"end_turn"}}',
)


async def test_an_adopted_session_with_an_update_that_is_none(house: House) -> None:
    """It names no title and is in nobody's way."""
    first, update, loaded, ended = ADOPTED
    script = f"read x; echo '{first}'; read x; echo '{update}'; echo '{loaded}'; read x; echo '{ended}'; cat >/dev/null"
    async with desk(house, house.shell(script)) as one:
        assert {} == await one.load("old")
        assert {"stopReason": "end_turn"} == await one.prompt("old", "x")
        house.failed.clear()


async def test_what_an_adopted_session_holds_is_no_background_work(house: House) -> None:
    """It was said in turns that acpd has not seen; what the agent says when the session is taken over is."""
    first, _, loaded, _ = ADOPTED
    update = '{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"%s"}}'
    said = '{"method":"session/update","params":{"sessionId":"old","update":%s}}'
    then, now = (said % (update % text) for text in ("then", "now"))
    script = f"read x; echo '{first}'; read x; echo '{then}'; echo '{loaded}'; echo '{now}'; cat >/dev/null"
    async with desk(house, house.shell(script)) as one:
        await one.load("old")
        await until(lambda: one.texts == ["then", "now"])
        metas = [params["_meta"] for _, params in one.got]
        assert [False, True] == ["acpd.dev/background" in meta for meta in metas]


@pytest.mark.parametrize("error", [None, StoreError("read", "the log", cause="no such thing")])
async def test_a_close_while_a_session_is_taken_over(
    house: House, error: StoreError | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for the whole of it, whether that works or not."""
    first, _, loaded, _ = ADOPTED
    script = f"read x; echo '{first}'; read x; echo '{loaded}'; cat >/dev/null"

    async def name(_session: object) -> None:
        if error is not None:
            raise error

    monkeypatch.setattr(adoption, "_name", name)
    async with desk(house, house.shell(script)) as one:
        gate = Gate(adoption, "_name", monkeypatch)
        loading = start(one.load("old"))
        await gate.met.wait()
        closing = start(one.ask("session/close", sessionId="old"))
        await one.ask("session/list")
        gate.open.set()
        if error is None:
            assert {} == await loading
        else:
            assert -32603 == await code(loading)
        assert {} == await closing
        assert {} == house.registry.live


async def test_an_adoption_that_cannot_be_stored(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """-32603 with the cause; its agent is ended, and the next try works."""

    async def full(*_: object) -> None:
        raise StoreError("create", "the log", cause="no space")

    first, _, loaded, _ = ADOPTED
    script = f"read x; echo '{first}'; read x; echo '{loaded}'; cat >/dev/null"
    async with desk(house, house.shell(script)) as one:
        monkeypatch.setattr(house.store.journals, "create", full)
        for _ in range(3):
            assert -32603 == await code(one.load("old"))
        await until(lambda: not house.pool.links)
        monkeypatch.undo()
        assert {} == await one.load("old")
        house.failed.clear()
