"""Search as the core brings it about: after a turn, after a crash, and for who asks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from acpd import indexing, saving
from acpd.errors import RequestError, StoreError
from acpd.indexing import catch_up, catch_up_all
from acpd.needs import Store
from acpd.storage.contract import Catalog, Journals, Key, Row, SearchCatalog
from acpd.storage.hits import Batch, Find, Hit
from acpd.storage.queries import parse
from acpd.turn import Turn
from acpd.wire.lines import Header, Stored
from acpd_backends.catalog import SqliteCatalog
from acpd_backends.sqlite import RULES, execute
from tests.agents.house import House
from tests.core.desk import Desk, desk
from tests.core.world import Editor, World, attach, dumps, prompt, until

LOOPS = ("uvloop",)


async def hits(catalog: Catalog, text: str) -> list[Hit]:
    assert isinstance(catalog, SearchCatalog)
    return list((await catalog.search(Find(query=parse(text)))).hits)


async def found(one: Desk, text: str, **params: Any) -> list[str]:
    """Scope and text of each hit."""
    answer = await one.ask("_acpd/search", query=text, **params)
    return [f"{hit['scope']}: {''.join(hit['snippet'])}" for hit in answer["hits"]]


# -- the request


async def test_what_was_just_said_is_found(house: House) -> None:
    """The prompt and the answer of a turn, as soon as it is over; with the session, the entry and the words around."""
    await house.store.catalog.recover(house.store.journals)  # as every start does
    async with desk(house, house.host()) as one:
        session = await one.new()
        await one.prompt(session, "say the resolveTerminalPath is wrong")
        answer = await one.ask("_acpd/search", query="terminal path")
        assert (False, True) == (answer["more"], answer["complete"])
        message, asked = answer["hits"]
        assert ("answer", ["the resolve", "Terminal", "", "Path", " is wrong"]) == (message["scope"], message["snippet"])
        assert ("prompt", session, str(house.root), "scripted") == tuple(
            asked[name] for name in ("scope", "sessionId", "cwd", "agent")
        )
        log = {line["id"]: line for line in house.log(house.registry.live[session]).entries}
        assert ("prompt", asked["seq"], asked["at"]) == tuple(log[asked["entry"]][name] for name in ("type", "seq", "at"))
        await one.prompt(session, "say another thing")
        assert ["answer: another thing"] == await found(one, "answer:another")
        await one.ask("session/delete", sessionId=session)
        assert [] == await found(one, "thing")


async def test_filters_of_the_request(house: House) -> None:
    """By agent, folder in any spelling, time, number; the best first where that is asked for."""
    async with desk(house, house.host()) as one:
        first = await one.new()
        for text in ("say needle", "say needle needle needle", "say hay"):
            await one.prompt(first, text)
        assert 4 == len(await found(one, "needle", perSession=0))
        assert 3 == len(await found(one, "needle"))
        assert ["answer: needle needle needle"] == await found(one, "answer:needle", limit=1)
        assert "needle needle needle" in (await found(one, "needle", best=True, limit=1))[0]
        assert [] == await found(one, "needle", agent="other")
        assert [] == await found(one, "needle", cwd="/")
        assert 3 == len(await found(one, "needle", cwd=f"{house.root}/.", agent="scripted"))
        assert [] == await found(one, "needle", until="2026-01-01T00:00:00Z")
        assert [] == await found(one, "needle", since="2100-01-01T00:00:00+01:00")
        assert 3 == len(await found(one, "needle", since="2026-01-01T00:00:00Z", until="2100-01-01T00:00:00Z"))


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({}, "query"),
        ({"query": 7}, "query"),
        ({"query": "..."}, "params.query: cannot search for this: it has no word to look for"),
        ({"query": "x" * 100_000}, "params.query"),
        ({"query": "a", "limit": 0}, "params.limit"),
        ({"query": "a", "limit": 101}, "params.limit"),
        ({"query": "a", "perSession": -1}, "params.perSession"),
        ({"query": "a", "best": "yes"}, "params.best"),
        ({"query": "a", "since": "yesterday"}, "params.since"),
        ({"query": "a", "until": "2026-01-01T00:00:00"}, "params.until"),
        ({"query": "a", "cwd": "relative"}, "params.cwd"),
        ({"query": "a", "agents": "x"}, "agents"),
    ],
)
async def test_what_is_malformed_is_named(house: House, params: dict[str, object], says: str) -> None:
    """-32602 with the member's name, for what is missing, wrong or not known."""
    async with desk(house, house.host()) as one:
        with pytest.raises(RequestError) as raised:
            await one.ask("_acpd/search", **params)
        assert -32602 == raised.value.code
        assert says in str(raised.value)


class Plain(Catalog):
    """All of a catalog but search."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    async def put(self, row: Row, /) -> None:
        await self._catalog.put(row)

    async def get(self, session_id: str, /) -> Row | None:
        return await self._catalog.get(session_id)

    async def find(self, prefix: str, /, limit: int = 2) -> list[Row]:
        return await self._catalog.find(prefix, limit)

    async def page(self, /, **filters: Any) -> list[Row]:
        return await self._catalog.page(**filters)

    async def delete(self, session_id: str, /) -> None:
        await self._catalog.delete(session_id)

    async def known_inner(self, agent: str, ids: Sequence[str], /) -> set[str]:
        return await self._catalog.known_inner(agent, ids)

    async def unprompted(self, before: str, /) -> list[Row]:
        return await self._catalog.unprompted(before)

    async def recover(self, journals: Journals, progress: Callable[[int, int], None] | None = None, /) -> int:
        return await self._catalog.recover(journals, progress)

    async def close(self) -> None:
        await self._catalog.close()


async def test_a_turn_that_is_over_is_found_while_the_next_one_runs(world: World) -> None:
    """The save that follows a turn is not waited for, whatever the session does meanwhile."""
    session, voice = await world.with_agent()
    prompt(session, None, "p0", "the needle of before")
    await voice.prompted()
    voice.end()
    await session.idle()
    prompt(session, None, "p1", "the next")
    await voice.prompted(2)
    await world.registry.searchable()
    assert ["the needle of before"] == ["".join(hit.snippet) for hit in await hits(world.store.catalog, "needle")]


async def test_what_is_not_complete_says_so(house: House) -> None:
    """While the catalog is made anew or compared with the logs, while one is not read, could not be put, or a turn runs."""
    async with desk(house, house.host()) as one:
        registry, catalog = house.registry, house.store.catalog
        session = await one.new()
        await one.prompt(session, "say needle")
        await catalog.recover(house.store.journals)

        async def complete() -> bool:
            answer = await one.ask("_acpd/search", query="needle")
            assert answer["hits"]
            return bool(answer["complete"])

        assert await complete()
        registry.compared = False
        assert not await complete()
        registry.compared = True
        assert isinstance(catalog, SqliteCatalog)
        database = catalog._database
        await database.write(lambda db: execute(db, "DELETE FROM meta WHERE name = 'complete'"))
        assert not await complete()
        await catalog.recover(house.store.journals)
        await database.write(lambda db: execute(db, "INSERT OR REPLACE INTO meta VALUES ('rules', '0')"))
        assert not await complete()
        await database.write(lambda db: execute(db, f"UPDATE meta SET value = '{RULES}' WHERE name = 'rules'"))
        assert await complete()
        running = asyncio.ensure_future(one.prompt(session, "hang"))  # noqa: TID251
        await until(lambda: registry.live[session].state is Turn.RUNNING)
        assert not await complete()
        one.peer.notify("session/cancel", dumps({"sessionId": session}))
        await running
        assert await complete()


async def test_a_store_without_search_says_so(house: House) -> None:
    """A catalog that is only a catalog serves everything else."""
    house.registry.store = house.store._replace(catalog=Plain(house.store.catalog))
    async with desk(house, house.host()) as one:
        session = await one.new()
        assert "end_turn" == (await one.prompt(session, "say hi"))["stopReason"]
        with pytest.raises(RequestError, match="has no search") as raised:
            await one.ask("_acpd/search", query="hi")
        assert -32603 == raised.value.code
        await one.ask("session/close", sessionId=session)


# -- after a turn


async def test_a_save_makes_the_turn_searchable(world: World) -> None:
    """Without anybody's asking, with the row; what an agent says behind its turn comes with the next one."""
    session, voice = await world.with_agent()
    attach(session, editor := Editor())
    prompt(session, editor, "p1", "look for needles")
    await voice.prompted()
    voice.say("a needle ", "in hay")
    voice.end()
    await editor.answered("p1")
    assert [] == await hits(world.store.catalog, "hay")
    await world.registry._savers[session.id].save()
    assert ["a needle in hay"] == ["".join(hit.snippet) for hit in await hits(world.store.catalog, "hay")]
    row = await world.store.catalog.get(session.id)
    assert row is not None
    assert (session.fold.seq, session.fold.seq) == (row.seq, row.searched)
    voice.say("a straw")
    await world.registry.close(session.id)
    assert 1 == len(await hits(world.store.catalog, "straw"))


async def test_a_crash_leaves_a_session_behind(world: World, tmp_path: Path) -> None:
    """What was not searched when acpd was killed is, once the next one has started; and no more than what the log has."""
    session, voice = await world.with_agent()
    attach(session, editor := Editor())
    prompt(session, editor, "p1", "look for needles")
    await voice.prompted()
    voice.say("a needle")
    async with world.crashed(tmp_path / "crashed") as after:
        await after.store.catalog.recover(after.store.journals)
        assert [] == await hits(after.store.catalog, "needle")
        await catch_up_all(after.store, None, gently=True)
        assert ["answer"] == [hit.scope for hit in await hits(after.store.catalog, "needle")]
        assert isinstance(after.store.catalog, SearchCatalog)
        assert [] == await after.store.catalog.behind()
        opened = await after.registry.open(session.id)
        await after.registry.close(opened.id)
        assert ["answer"] == [hit.scope for hit in await hits(after.store.catalog, "needle")]


async def test_a_save_that_fails_is_made_good_by_the_next(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A catalog that cannot be written costs a warning; the row and the words come with the next save."""
    session, voice = await world.with_agent()
    attach(session, editor := Editor())
    prompt(session, editor, "p1", "needle")
    await voice.prompted()
    voice.end()
    await editor.answered("p1")
    saver = world.registry._savers[session.id]

    async def full(*_: object, **__: object) -> bool:
        raise StoreError("write", "x", cause="disk full")

    with monkeypatch.context() as broken:
        broken.setattr(type(world.store.catalog), "index", full)
        await saver.save()
    assert 1 == session.recorder.warnings
    assert [] == await hits(world.store.catalog, "needle")
    await saver.save()
    assert 1 == len(await hits(world.store.catalog, "needle"))


# -- catching up


async def write(journals: Journals, key: Key, turns: int, said: str = "needle") -> None:
    """A log of so many turns, each a prompt, a message and its end."""
    journal = await journals.create(
        key, Header(version=1, id=key.session, cwd="/w", agent=key.agent, createdAt="2026-01-01T00:00:00.000Z")
    )
    seq = 0
    for number in range(turns):
        update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": f"{said} {number}"}}
        for line in (
            {"type": "prompt", "prompt": [{"type": "text", "text": f"ask {number}"}]},
            {"type": "update", "kind": "agent_message_chunk", "params": {"sessionId": "i", "update": update}},
            {"type": "turn", "state": "ended", "stopReason": "end_turn"},
        ):
            seq += 1
            parent = f"{key.session}-{seq - 1}" if seq > 1 else None
            head = {
                "id": f"{key.session}-{seq}",
                "parentId": parent,
                "seq": seq,
                "at": f"2026-01-01T00:{seq % 3600 // 60:02}:{seq % 60:02}.000Z",
            }
            journal.append(json.dumps({**line, **head}).encode() + b"\n")
    journal.flush()
    await journal.close()


async def test_logs_that_nobody_searched(world: World) -> None:
    """A new catalog is filled from the logs, in batches; a log that cannot be read is left, and keeps nobody waiting."""
    for name, turns in (("one", 1), ("many", 200), ("bad", 1)):
        await write(world.store.journals, Key("a", name), turns)
    await world.store.catalog.recover(world.store.journals)
    Path(world.store.journals.log_path(Key("a", "bad"))).write_bytes(b"no header\n")
    told: list[int] = []
    await catch_up_all(world.store, None, told.append, gently=False)
    assert [1, 2, 3] == told
    catalog = world.store.catalog
    assert isinstance(catalog, SearchCatalog)
    assert ["bad"] == [row.id for row in await catalog.behind()]
    everything = await catalog.search(Find(query=parse("needle"), limit=1000, each=0))
    assert 201 == len(everything.hits)


async def test_a_catalog_that_cannot_be_written_is_tried_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """No log is read for nothing after it, and who asked is told."""
    for name in ("one", "two"):
        await write(world.store.journals, Key("a", name), 1)
    await world.store.catalog.recover(world.store.journals)
    tried: list[str] = []

    async def full(session: str, *_: object) -> bool:
        tried.append(session)
        raise StoreError("write", "catalog.db", cause="disk full")

    monkeypatch.setattr(world.store.catalog, "index", full)
    with pytest.raises(StoreError, match="disk full"):
        await catch_up_all(world.store, None, gently=False)
    assert 1 == len(tried)


async def test_who_is_overtaken_stops(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two that catch up the same session leave one set of documents."""
    key = Key("a", "s")
    await write(world.store.journals, key, 200)
    await world.store.catalog.recover(world.store.journals)
    real = world.store.journals.read

    async def overtaken(*args: Any, **more: Any) -> AsyncIterator[list[Stored]]:
        async for window in real(*args, **more):
            monkeypatch.undo()
            await catch_up(world.store, key)
            yield window

    monkeypatch.setattr(world.store.journals, "read", overtaken)
    assert not await catch_up(world.store, key)
    catalog = world.store.catalog
    assert isinstance(catalog, SearchCatalog)
    assert 200 == len((await catalog.search(Find(query=parse("needle"), limit=1000, each=0))).hits)


async def test_batches_are_small(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others never wait for more than some documents; the last one brings the row."""
    key = Key("a", "s")
    await write(world.store.journals, key, 200)
    await world.store.catalog.recover(world.store.journals)
    batches: list[tuple[Batch, object]] = []
    catalog = world.store.catalog
    assert isinstance(catalog, SearchCatalog)
    real = catalog.index

    async def index(session: str, batch: Batch, /, row: Any = None) -> bool:
        batches.append((batch, row))
        return await real(session, batch, row)

    monkeypatch.setattr(catalog, "index", index)
    row = await catalog.get("s")
    assert row is not None
    assert await catch_up(world.store, key, replace(row, title="with"))
    assert max(len(batch.documents) for batch, _ in batches) <= indexing.DOCUMENTS + 1
    assert [None] * (len(batches) - 1) == [row for _, row in batches[:-1]]
    assert 400 == sum(len(batch.documents) for batch, _ in batches)
    row = await catalog.get("s")
    assert row is not None
    assert ("with", 600) == (row.title, row.searched)


async def test_a_long_session_is_caught_up_bit_by_bit(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A save reads so many windows and no more; what is left is behind, and comes later."""
    key = Key("a", "s")
    await write(world.store.journals, key, 3000)
    await world.store.catalog.recover(world.store.journals)
    catalog = world.store.catalog
    assert isinstance(catalog, SearchCatalog)
    seen: list[int] = []
    while await catalog.behind():
        await catch_up(world.store, key, windows=2)
        row = await catalog.get("s")
        assert row is not None
        seen.append(row.searched)
    assert sorted({*seen, 9000}) == seen
    assert len(seen) > 2
    assert saving.WINDOWS >= 2


def test_a_store_names_what_it_cannot() -> None:
    """The error names the next step."""
    with pytest.raises(StoreError, match=r"no search.*backend"):
        indexing.searchable(Store(None, None, None, None))  # type: ignore[arg-type]
