"""A13 and S16 at large: two users, two agents, ten sessions of each at once, woven together in one store."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec import Raw

from acpd.errors import SessionNotFound
from acpd.searching import search
from acpd.session import LiveSession
from tests.core.test_branching import replayed
from tests.core.world import Voice, World, prompt
from tests.support.commands import backends
from tests.support.store import Json
from tests.support.walk import contents

USERS, AGENTS, SESSIONS = ("alice", "bob"), ("coder", "writer"), 10


async def found(world: World, text: str, **more: object) -> list[Json]:
    """The answer to `_acpd/search` of this user's client."""
    connection = cast("Any", SimpleNamespace(registry=world.registry))
    answer: Json = json.loads(await search(connection, b"1", Raw(json.dumps({"query": text, "limit": 100, **more}).encode())))
    hits: list[Json] = answer["hits"]
    return hits


async def talk(session: LiveSession, voice: Voice, word: str) -> None:
    """Three turns in each of which all others get their turn in between."""
    for turn in range(1, 4):
        prompt(session, None, f"p{turn}", f"common question {word}")
        await voice.prompted(turn)
        for _ in range(3):
            voice.say(f"common answer {word} ")
            await asyncio.sleep(0)
        voice.keep("memory", [word] * turn)
        voice.end()
        await session.idle()


@pytest.mark.parametrize("name", backends())
async def test_a13_no_path_message_memory_or_hit_of_another(tmp_path: Path, name: str) -> None:
    """A13: each session has its own words and memory; a user's files and hits are that user's, an agent's hits that agent's."""
    async with World(tmp_path, backend=name, user="alice") as alice, World(tmp_path, backend=name, user="bob") as bob:
        made: dict[str, tuple[World, LiveSession, Voice]] = {}
        for who, world in zip(USERS, (alice, bob), strict=True):
            for agent in AGENTS:
                for number in range(SESSIONS):
                    session = await world.new(agent=agent)
                    await session.ensure_agent()
                    made[f"{who}x{agent}x{number}"] = world, session, world.agents.made[-1]
        await asyncio.gather(*(talk(session, voice, word) for word, (_, session, voice) in made.items()))
        for word, (world, session, _) in made.items():
            assert await replayed(session) == [f"common question {word}", f"common answer {word} " * 3] * 3
            assert await session.kept.all() == {"memory": json.dumps([word] * 3, separators=(",", ":")).encode()}
            assert {hit["sessionId"] for hit in await found(world, word)} == {session.id}
        for who, world in zip(USERS, (alice, bob), strict=True):
            ids = {agent: {made[f"{who}x{agent}x{n}"][1].id for n in range(SESSIONS)} for agent in AGENTS}
            for agent in AGENTS:
                hits = await found(world, "common", agent=agent, perSession=1)
                assert {hit["sessionId"] for hit in hits} == ids[agent]
            rows, _ = await world.registry.page(limit=1000)
            assert {row.id for row in rows} == ids["coder"] | ids["writer"]
    for who, other in (USERS, USERS[::-1]):
        mine = contents(tmp_path / f"u-{who}")
        assert any(f"{who}x".encode() in data for data in mine.values())
        assert [path for path, data in mine.items() if f"{other}x".encode() in data] == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["u-alice", "u-bob"]


async def test_a13_a_state_of_another_user_is_not_found(tmp_path: Path) -> None:
    """A13: a session of alice's cannot be opened, listed or searched by bob, in the same folder, by its id either."""
    async with World(tmp_path, user="alice") as alice, World(tmp_path, user="bob") as bob:
        session, voice = await alice.with_agent()
        await talk(session, voice, "hers")
        with pytest.raises(SessionNotFound):
            await bob.registry.open(session.id)
        assert (await found(bob, "hers"), await bob.registry.page()) == ([], ([], None))
        assert await bob.store.session.names(bob.registry.key(session.id, "agent")) == []
