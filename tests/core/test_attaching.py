"""How clients attach to one session: roles, and how much of it they are shown."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import Raw

from acpd import attaching
from acpd.errors import RequestError
from acpd.wire import messages
from tests.agents.house import INITIALIZE, House, wire
from tests.core.desk import Desk, desk
from tests.core.pipes import start
from tests.core.test_router import ADOPTED, Gate, code
from tests.core.world import dumps, until
from tests.support.store import Json

LOOPS = ("uvloop",)
YES = dumps({"outcome": {"outcome": "selected", "optionId": "allow"}})


def how(**options: Any) -> Json:
    return {"_meta": {"acpd.dev/attach": options}}


async def resume(one: Desk, session: str, **more: Any) -> Json:
    return await one.ask("session/resume", sessionId=session, cwd=str(one.house.root), **more)


def methods(one: Desk, name: str) -> int:
    return [method for method, _ in one.got].count(name)


async def test_the_options_are_announced(house: House) -> None:
    """The answer to initialize says which members there are, and what each may be."""
    async with desk(house, house.host(), initialized=False) as one:
        said = (await one.initialize())["agentCapabilities"]["_meta"]
        assert {"acpd.dev/attach": {"role": ["controller", "observer"], "replay": ["full", "none"]}} == said


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"role": "owner"}, '_meta["acpd.dev/attach"].role must be "controller" or "observer"'),
        ({"role": None}, '_meta["acpd.dev/attach"].role'),
        ({"replay": "some"}, '_meta["acpd.dev/attach"].replay must be "full" or "none"'),
        ({"role": "observer", "replay": True}, '_meta["acpd.dev/attach"].replay'),
        ({"rôle": "observer"}, "there is no rôle, only role and replay"),
        (None, '_meta["acpd.dev/attach"] must be an object'),
        ("observer", '_meta["acpd.dev/attach"] must be an object'),
        (["role"], '_meta["acpd.dev/attach"] must be an object'),
    ],
)
def test_what_is_no_option_is_refused(options: object, named: str) -> None:
    """-32602 that names the member."""
    params = Raw(dumps({"sessionId": "s", "cwd": "/", "mcpServers": [], "_meta": {"acpd.dev/attach": options}}))
    with pytest.raises(RequestError) as raised:
        attaching.wanted(messages.parse_load(params), params, replay=True)
    assert (-32602, True) == (raised.value.code, named in str(raised.value))


@pytest.mark.parametrize("key", [b"acpd.dev/attach", b"acpd.dev\\/attach", b"\\u0061cpd.dev/attach"])
def test_the_options_are_acpds_alone(key: bytes) -> None:
    """They are taken out of the params, however the key is spelt; every other byte stays."""
    text = b'{"sessionId":"s", "cwd":"/","_meta":{"mine" :1,"%b":{"role":"observer"},"x":2}}'
    params = Raw(text % key)
    found = attaching.wanted(messages.parse_resume(params), params, replay=False)
    assert attaching.Wanted(observer=True, replay=False, params=text.replace(b'"%b":{"role":"observer"},', b"")) == found


@pytest.mark.parametrize("meta", [b"", b',"_meta":{}', b',"_meta":null', b',"_meta":{"acpd.dev/attach":{}}'])
def test_without_options_it_is_as_ever(meta: bytes) -> None:
    """A controller; a load replays, a resume does not."""
    params = Raw(b'{"sessionId":"s","cwd":"/","mcpServers":[]%b}' % meta)
    for replay in (True, False):
        found = attaching.wanted(messages.parse_load(params), params, replay=replay)
        assert (False, replay, False) == (found.observer, found.replay, b"attach" in found.params)


async def test_a_refused_load_opens_nothing(house: House) -> None:
    """-32602, for load and resume; the session is not opened."""
    async with desk(house, house.host()) as one:
        session = await one.new()
        await one.ask("session/close", sessionId=session)
        assert -32602 == await code(one.load(session, **how(role="owner")))
        assert -32602 == await code(resume(one, session, **how(replay=1)))
        assert {} == house.registry.live


async def test_the_options_reach_no_agent(house: House) -> None:
    """What else stands in `_meta` does, for a session that only the agent knows."""
    first, _, loaded, _ = ADOPTED
    script = f"read x; echo '{first}'; read -r x; echo \"$x\" >{house.root}/got; echo '{loaded}'; cat >/dev/null"
    async with desk(house, house.shell(script)) as one:
        await one.load("old", _meta={"mine": 1, **how(role="controller")["_meta"], "x": 2})
        assert {"mine": 1, "x": 2} == json.loads((house.root / "got").read_bytes())["params"]["_meta"]


async def test_an_observer_sees_and_does_not_steer(house: House) -> None:
    """Every request that would change the session is -32600 and says what to do; its cancel is ignored, which is logged."""
    async with desk(house, house.host()) as one, desk(house, house.host()) as two:
        session = await one.new()
        await two.load(session, **how(role="observer"))
        prompting = start(one.prompt(session, "say a\nsleep 100\nsay b"))
        await until(lambda: "a" in two.texts)
        two.peer.notify("session/cancel", dumps({"sessionId": session}))
        two.peer.notify("_test/note", dumps({"sessionId": session}))
        entry = house.registry.live[session].fold.leaf
        for method, params in (
            ("session/prompt", {"prompt": [{"type": "text", "text": "say no"}]}),
            ("session/set_mode", {"modeId": "code"}),
            ("session/set_config_option", {"configId": "model", "value": "large"}),
            ("session/close", {}),
            ("session/delete", {}),
            ("_acpd/branch", {"entry": entry}),
            ("_acpd/label", {"entry": entry, "label": "x"}),
            ("_test/echo", {}),
        ):
            with pytest.raises(RequestError) as raised:
                await two.ask(method, sessionId=session, **params)
            assert (-32600, True) == (raised.value.code, '{"role": "controller"}' in str(raised.value)), method
        assert {"stopReason": "end_turn"} == await prompting
        assert ["say a\nsleep 100\nsay b", "a", "b"] == two.texts
        assert ("cancel of an observer ignored", session) in two.logged
        assert "bad notification" in [event for event, _ in two.logged]
        assert session in house.registry.live
        assert await two.ask("_acpd/tree", sessionId=session)


async def test_an_observer_may_fork(house: House) -> None:
    """The fork is a session of its own, which it controls."""
    async with desk(house, house.host()) as one, desk(house, house.host()) as two:
        session = await one.new()
        await one.prompt(session, "say a")
        await two.load(session, **how(role="observer"))
        fork = (await two.ask("session/fork", sessionId=session, cwd=str(house.root)))["sessionId"]
        assert {"stopReason": "end_turn"} == await two.prompt(fork, "say mine")
        assert "mine" not in one.texts


async def test_a_role_changes_by_attaching_again(house: House) -> None:
    """To controller with any load or resume that does not say otherwise, and back."""
    async with desk(house, house.host()) as one, desk(house, house.host()) as two:
        session = await one.new()
        await one.prompt(session, "say a")
        await two.load(session, **how(role="observer"))
        assert -32600 == await code(two.prompt(session, "say b"))
        await resume(two, session)
        await two.prompt(session, "say c")
        await resume(two, session, **how(role="observer", replay="none"))
        assert -32600 == await code(two.prompt(session, "say d"))
        await two.load(session, **how(role="controller", replay="none"))
        await two.prompt(session, "say e")
        assert ["say a", "a", "c", "e"] == two.texts
        await until(lambda: len(one.texts) == 5)
        assert ["a", "say c", "c", "say e", "e"] == one.texts


async def test_how_much_is_replayed(house: House) -> None:
    """A load replays unless it says `none`, a resume only if it says `full`: before the answer, and each entry once."""
    async with desk(house, house.host()) as one, desk(house, house.host()) as two:
        session = await one.new()
        await one.prompt(session, "say a")
        conversation = ["say a", "a"]
        for asking, options, is_replayed in (
            ("session/resume", {}, False),
            ("session/load", how(replay="none"), False),
            ("session/load", {}, True),
            ("session/load", how(replay="full"), True),
            ("session/resume", how(replay="none", role="controller"), False),
            ("session/resume", how(replay="full"), True),
        ):
            two.got.clear()
            answer = await two.ask(asking, sessionId=session, cwd=str(house.root), mcpServers=[], **options)
            shown = [*conversation] if is_replayed else []
            assert (shown, "ask") == (two.texts, answer["modes"]["currentModeId"]), (asking, options)
            await one.prompt(session, "say b")
            await until(lambda: two.texts[-1:] == ["b"])
            assert [*shown, "say b", "b"] == two.texts
            conversation += ["say b", "b"]


async def test_an_observer_starts_no_agent(house: House) -> None:
    """A session that nobody drives is shown by its log; the first controller brings the agent."""
    log = house.root / "wire"
    async with desk(house, house.host()) as one:
        session = await one.new()
        await one.prompt(session, "say a")
        await one.ask("session/close", sessionId=session)
    async with desk(house, house.host("--wire", str(log))) as two:
        await two.load(session, **how(role="observer"))
        await resume(two, session, **how(role="observer"))
        assert (None, None) == (house.registry.live[session].link, house.registry.live[session].host)
        assert ["initialize"] == [line["method"] for line in wire(log)]
        await resume(two, session)
        assert ["initialize"] != [line["method"] for line in wire(log)]
        assert {"stopReason": "end_turn"} == await two.prompt(session, "say b")


async def test_a_permission_goes_to_controllers_and_the_late_answer_is_logged(house: House) -> None:
    """Two controllers are asked and an observer is not; the second answer is dropped, and acpd's log says so."""
    async with desk(house, house.host()) as one, desk(house, house.host()) as two, desk(house, house.host()) as three:
        session = await one.new()
        await two.load(session)
        await three.load(session, **how(role="observer"))
        prompting = start(one.prompt(session, "ask"))
        await until(lambda: one.asked and two.asked)
        two.peer.answer(two.asked[0], YES)
        await until(lambda: methods(one, "$/cancel_request"))
        one.peer.answer(one.asked[0], YES)
        assert {"stopReason": "end_turn"} == await prompting
        await until(lambda: one.logged)
        assert [("dropped a line of the client", True)] == [(event, "which is not open" in text) for event, text in one.logged]
        assert ([], 0, 0) == (three.asked, methods(three, "$/cancel_request"), methods(two, "$/cancel_request"))
        assert 1 == len(house.log(house.registry.live[session]).of("answer"))


async def test_files_are_never_asked_of_an_observer(house: House) -> None:
    """Not even of the only client that could."""
    async with desk(house, house.host()) as one, desk(house, house.host()) as two:
        session = await one.new()
        await one.prompt(session, "say a")
        await two.load(session, **how(role="observer"))
        one.server.capabilities = one.server.capabilities._replace(read_text_file=False)
        with pytest.raises(RequestError):
            await one.prompt(session, "read /etc/hostname")
        assert [] == two.asked


async def test_who_becomes_an_observer_is_asked_no_more(house: House) -> None:
    """Its open question is taken back; it waits for a controller, and is asked behind the answer to that one's load."""
    async with desk(house, house.host()) as one, desk(house, house.host()) as two:
        session = await one.new()
        prompting = start(one.prompt(session, "ask"))
        await until(lambda: one.asked)
        await resume(one, session, **how(role="observer"))
        assert 1 == methods(one, "$/cancel_request")
        one.peer.answer(one.asked[0], YES)
        params = dumps({"sessionId": session, "cwd": str(house.root), "mcpServers": []})
        two.peer.call("session/load", params, lambda *_: two.got.append(("answered", {})))
        await until(lambda: two.asked)
        assert ["answered", "session/request_permission"] == [method for method, _ in two.got[-2:]]
        two.peer.answer(two.asked[0], YES)
        assert {"stopReason": "end_turn"} == await prompting
        assert (1, 1) == (len(one.asked), len(two.asked))


async def test_a_prompt_that_opens_the_session_for_who_comes_to_observe(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """The role counts when the session is there: the prompt is -32600 and the agent never hears of it."""
    async with desk(house, house.host()) as one:
        session = await one.new()
        await one.prompt(session, "say a")
        await one.ask("session/close", sessionId=session)
        gate = Gate(house.registry, "_open", monkeypatch)
        loading = start(one.load(session, **how(role="observer")))
        prompting = start(one.prompt(session, "say b"))
        await gate.met.wait()
        gate.open.set()
        await loading
        assert -32600 == await code(prompting)
        assert ["a", "say a", "a"] == one.texts


async def test_prompts_of_a_connection_that_ends_run_on(house: House) -> None:
    """The running one and the one that waits, before the prompt of another client; its late answers go nowhere."""
    async with desk(house, house.host()) as two:
        async with desk(house, house.host()) as one:
            session = await one.new()
            for text in ("say a\nsleep 50\nsay b", "say c"):
                params = dumps({"sessionId": session, "prompt": [{"type": "text", "text": text}]})
                one.peer.call("session/prompt", params, lambda *_: None)
            await until(lambda: "a" in one.texts)
            await two.load(session)
        assert {"stopReason": "end_turn"} == await two.prompt(session, "say d")
        assert ["say a\nsleep 50\nsay b", "a", "b", "say c", "c", "d"] == two.texts


async def test_an_agent_that_nobody_needs_yet(house: House) -> None:
    """With `_meta["acpd.dev/start"]` false none is started by initialize, load and resume; by a prompt it is, and by new."""
    async with desk(house, house.host()) as one:
        session = await one.new()
        await one.prompt(session, "say a")
        await one.ask("session/close", sessionId=session)
    await until(lambda: not house.pool.links)
    async with desk(house, house.host(), initialized=False) as two:
        lazy = {**INITIALIZE, "_meta": {"acpd.dev/start": False}}
        assert [] == (await two.ask("initialize", **lazy))["authMethods"]
        await two.load(session)
        await resume(two, session)
        assert (["say a", "a"], {}) == (two.texts, house.pool.links)
        assert {"stopReason": "end_turn"} == await two.prompt(session, "say b")
        assert [session] == [link.session.id for link in house.pool.links.values() if link.session]
        assert session != await two.new()
        assert 2 == len(house.pool.links)


async def test_who_needs_no_agent_takes_nothing_over(house: House) -> None:
    """Agents of the session go on getting what its other client brought: its environment, its MCP servers."""
    lazy = {**INITIALIZE, "_meta": {"acpd.dev/start": False}}
    servers = [{"name": "s", "command": "/bin/true", "args": [], "env": []}]
    async with desk(house, house.host()) as one, desk(house, house.host(), initialized=False) as two:
        session = str((await one.ask("session/new", cwd=str(house.root), mcpServers=servers))["sessionId"])
        live = house.registry.live[session]
        await two.ask("initialize", **lazy)
        await two.load(session)
        assert live.host is one.server.host
        assert live.setup is not None
        assert servers == json.loads(live.setup)["mcpServers"]
        await two.ask("session/close", sessionId=session)
        await two.load(session)
        assert house.registry.live[session].host is two.server.host
