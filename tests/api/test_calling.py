"""A turn without an editor: whose it is, where its state is kept, and that nothing of another one comes into it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from acpd import Agent, Refused, RuntimeContext, StateUnreadable, Turn, call
from acpd.errors import RequestError
from acpd.storage.contract import Key, Session
from acpd.tasks import Tasks
from acpd_backends.states import JsonSession, SqliteSession, WorkspaceSession


class Notes(Agent):
    """Repeats what it was told before, and keeps it."""

    name = "notes"

    def __init__(self, during: Callable[[Turn], Awaitable[None]] | None = None) -> None:
        self._during = during

    async def prompt(self, turn: Turn, /) -> None:
        before = turn.session.state.get("memory", list[str]) or []
        turn.session.state.put("memory", [*before, turn.text])
        if self._during is not None:
            await self._during(turn)
        await turn.say(",".join(before))


@pytest.fixture(params=[WorkspaceSession, JsonSession, SqliteSession])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Session:
    made: Session = request.param(tmp_path / "store", sync=False)
    return made


async def said(store: Session | None, text: str, **context: str | Session | None) -> str:
    return (await call(Notes(), text, RuntimeContext(**context), configured=store)).text  # type: ignore[arg-type]


async def test_a_call_goes_on_with_its_own_state(store: Session) -> None:
    """The next call of the session has its memory; another session, another user and another key have none of it."""
    assert "" == await said(store, "one", session_id="s")
    assert "one" == await said(store, "two", session_id="s")
    assert "" == await said(store, "x", session_id="other")
    assert "" == await said(store, "x", session_id="s", user_id="alice")
    assert "" == await said(store, "x", session_id="s", session_key="k")
    assert "one,two" == await said(store, "three", session_id="s")
    assert b'["x"]' == await store.load(Key("notes", "k"), "memory")


async def test_a_state_however_it_is_laid_out(store: Session) -> None:
    """Lines of a person's are no lines of the connection; what looks like an end of one within a text stays, and is kept."""
    odd = "\u2028\u2029\x85\x0b\r\n"
    await store.save(Key("notes", "s"), "memory", b'[\r\n  "one\\ud800",\r"two"\n]\n')
    async with asyncio.timeout(5):  # of half a line nobody hears again
        assert "one\ufffd,two" == await said(store, odd, session_id="s")
    assert f"one\ufffd,two,{odd}" == await said(store, "x", session_id="s")


async def test_a_call_may_bring_its_own_session(store: Session, tmp_path: Path) -> None:
    """The state of that call is there alone; the next call without it is where it was."""
    own = JsonSession(tmp_path / "custom", sync=False)
    await said(store, "one", session_id="s")
    assert "" == await said(store, "two", session_id="s", session=own)
    assert "two" == await said(None, "three", session_id="s", session=own)
    assert "one" == await said(store, "four", session_id="s")
    assert b'["two","three"]' == await own.load(Key("notes", "s"), "memory")


async def test_without_any_it_is_the_store_of_the_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As acpd itself would keep it, and by the agent's name where there is no session id."""
    monkeypatch.setenv("ACPD_HOME", str(tmp_path))
    await said(None, "one")
    assert "one" == await said(None, "two")
    assert b'["one","two"]' == (tmp_path / "data/agents/notes/context/notes/memory.json").read_bytes()


async def test_calls_on_one_state_wait_for_each_other(store: Session) -> None:
    """Many at once lose nothing; those of other users run meanwhile."""
    running: list[str | None] = []
    pair = asyncio.Barrier(2)

    async def during(turn: Turn) -> None:
        running.append(turn.text[0])
        await pair.wait()
        assert ["a", "b"] == sorted(map(str, running))
        await pair.wait()
        running.clear()

    contexts = [RuntimeContext(session_id="s", user_id=user) for user in ("alice", "bob") for _ in range(5)]
    calls = (call(Notes(during), f"{each.user_id}{n}", each, configured=store) for n, each in enumerate(contexts))
    await asyncio.wait_for(asyncio.gather(*calls), 10)
    alice = (await said(store, "x", session_id="s", user_id="alice")).split(",")
    bob = (await said(store, "x", session_id="s", user_id="bob")).split(",")
    assert ({f"alice{n}" for n in range(5)}, 5) == (set(alice), len(alice))
    assert ({f"bob{n}" for n in range(5, 10)}, 5) == (set(bob), len(bob))


@pytest.mark.parametrize("how", ["cancelled", "refused", "failed"])
async def test_however_it_ends_the_state_is_saved(store: Session, how: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A cancel, an error that the agent gives, and a bug of the agent's."""
    begun = asyncio.Event()

    async def during(turn: Turn) -> None:
        begun.set()
        if how == "cancelled":
            await asyncio.Event().wait()
        raise Refused(-32602, "no") if how == "refused" else ZeroDivisionError

    context = RuntimeContext(session_id="s")
    work = Tasks(lambda *_: None).spawn(call(Notes(during), "one", context, configured=store), name="call", watched=True)
    await begun.wait()
    if how == "cancelled":
        work.cancel()
    with pytest.raises(asyncio.CancelledError if how == "cancelled" else RequestError):
        await asyncio.wait_for(work, 10)
    capsys.readouterr()
    assert "one" == await said(store, "two", session_id="s")


async def test_a_state_that_cannot_be_read_is_left_alone(tmp_path: Path) -> None:
    """The call fails before the agent hears of it."""
    store = WorkspaceSession(tmp_path, sync=False)
    await said(store, "one", session_id="s")
    file = tmp_path / "agents/notes/context/s/memory.json"
    file.write_bytes(b'["one')
    with pytest.raises(StateUnreadable):
        await said(store, "two", session_id="s")
    assert b'["one' == file.read_bytes()


async def test_permissions_that_cannot_be_read_cost_themselves(tmp_path: Path) -> None:
    """What is asked is asked again; nothing takes the place of what cannot be read."""
    store, asked = WorkspaceSession(tmp_path, sync=False), list[object]()

    async def during(turn: Turn) -> None:
        async with turn.tool("Look", name="look") as tool:
            assert await turn.allowed(tool, "look")
            await tool.finish()

    key = Key("notes", "notes")
    await store.save(key, "tool_context", b"1")
    file = store._path(key, "tool_context")
    file.write_bytes(b"{")

    def allowed(params: object) -> bool:
        asked.append(params)
        return True

    for _ in range(2):
        await call(Notes(during), "a", configured=store, allowed=allowed)
    assert (b"{", 2) == (file.read_bytes(), len(asked))


async def test_an_agent_that_exits_ends_no_caller(store: Session, capsys: pytest.CaptureFixture[str]) -> None:
    """Nor does a task that it has started, and left behind; the next call works, and other tasks of the caller are its own."""

    async def leaving() -> None:
        sys.exit(3)

    async def during(_: Turn) -> None:
        asyncio.create_task(leaving())  # noqa: TID251, RUF006
        await asyncio.sleep(0)
        sys.exit(4)

    with pytest.raises(RequestError):
        await call(Notes(during), "one", configured=store)
    assert "SystemExit(4)" in capsys.readouterr().err
    assert "one" == await said(store, "two")


async def test_permissions_and_updates(tmp_path: Path) -> None:
    """Nothing is allowed unless the caller says so; every update is shown."""

    async def during(turn: Turn) -> None:
        async with turn.tool("Look", name="look") as tool:
            await turn.say("yes " if await turn.allowed(tool, "look") else "no ")
            await tool.finish()

    store, kinds = JsonSession(tmp_path, sync=False), list[str]()
    assert "no " == (await call(Notes(during), "a", configured=store)).text
    shown = lambda update: kinds.append(update["sessionUpdate"])  # noqa: E731
    assert ("yes a", "end_turn") == await call(Notes(during), "b", configured=store, allowed=lambda _: True, shown=shown)
    assert {"tool_call", "agent_message_chunk"} <= set(kinds)


async def test_calls_wait_for_each_other_whatever_objects_they_bring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Session made anew for each call, and the store of the configuration, are one store all the same."""
    monkeypatch.setenv("ACPD_HOME", str(tmp_path / "home"))

    async def during(turn: Turn) -> None:
        for _ in range(20):
            await asyncio.sleep(0)

    for make in (lambda: None, lambda: JsonSession(tmp_path / "own", sync=False)):
        context = RuntimeContext(session_id="s", user_id="alice")
        await asyncio.gather(*(call(Late(during), str(n), context, configured=make()) for n in range(6)))
        assert 6 == len((await call(Notes(), "x", context, configured=make())).text.split(","))


async def test_half_a_character_in_a_prompt(tmp_path: Path) -> None:
    """It is mended, as everywhere."""
    store = JsonSession(tmp_path, sync=False)
    await call(Notes(), "a\ud800", configured=store)
    assert "a\ufffd" == (await call(Notes(), "b", configured=store)).text


class Late(Notes):
    """Looks, waits, and writes then."""

    async def prompt(self, turn: Turn, /) -> None:
        before = turn.session.state.get("memory", list[str]) or []
        if self._during is not None:
            await self._during(turn)
        turn.session.state.put("memory", [*before, turn.text])
