"""session/list: ours by pages, the agent's own behind them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from acpd import listing
from acpd.errors import RequestError
from acpd.storage.contract import Row
from acpd.wire.lines import Header
from tests.agents.house import House
from tests.core.desk import desk, listed
from tests.core.world import dumps

LOOPS = ("uvloop",)


def row(number: int, cwd: str, agent: str = "scripted", **more: object) -> Row:
    at = f"2026-01-01T00:{number // 60:02d}:{number % 60:02d}.000Z"
    return Row(id=f"id-{number:04d}", agent=agent, cwd=cwd, updatedAt=at, createdAt=at, prompted=True, **more)  # type: ignore[arg-type]


async def test_pages_are_stable(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Newest first, each once, over pages; a session that becomes newer between two pages shifts none of the others."""
    monkeypatch.setattr(listing, "PAGE", 10)
    for number in range(25):
        await house.store.catalog.put(row(number, "/w"))
    async with desk(house, house.host("--no-list")) as one:
        first = await one.ask("session/list")
        await house.store.catalog.put(row(999, "/w"))
        rest = await listed(one, cursor=first["nextCursor"])
        expected = [f"id-{number:04d}" for number in reversed(range(25))]
        assert expected == [each["sessionId"] for each in [*first["sessions"], *rest]]
        assert "id-0999" == (await listed(one))[0]["sessionId"]


async def test_a_full_last_page_has_one_empty_page_behind_it_at_most(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exactly a page of sessions ends as well as any other number."""
    monkeypatch.setattr(listing, "PAGE", 5)
    for number in range(10):
        await house.store.catalog.put(row(number, "/w"))
    async with desk(house, house.host("--no-list")) as one:
        assert 10 == len(await listed(one))


@pytest.mark.parametrize("cursor", ["nonsense", "", "W10=", "WyJhIl0=", "\u00e4", "eyJ9", "MTIz", "WzEsMiwzXQ=="])
async def test_a_cursor_that_is_none_is_refused(house: House, cursor: str) -> None:
    """-32602, whatever it is made of."""
    async with desk(house, house.host()) as one:
        with pytest.raises(RequestError) as raised:
            await one.ask("session/list", cursor=cursor)
        assert -32602 == raised.value.code


async def test_titles_are_one_line_wherever_they_are_from(house: House) -> None:
    """An agent's title, of its session or in its list, and that of a prompt: without tags, controls and what is over 80
    characters. A command is a title only as long as nothing else was prompted.
    """
    odd = "<context>x</context>\x1b[31mred\x07 \u202ealert" + " y" * 100
    plain = ("red alert" + " y" * 100)[:80].rstrip()
    async with desk(house, house.host()) as one:
        session = await one.new()

        async def title() -> object:
            (row,) = [each for each in await listed(one) if each["sessionId"] == session]
            hits = (await one.ask("_acpd/search", query="say"))["hits"]
            assert {row["title"]} >= {hit["title"] for hit in hits}
            assert row["title"] == house.registry.live[session].fold.title
            return row["title"]

        for prompted, wanted in (
            ("/compact now", "/compact now"),
            ("/clear", "/compact now"),
            (f"say {odd}", f"say {plain}"[:80].rstrip()),
            ("say more", f"say {plain}"[:80].rstrip()),
            (f"title {odd}", plain),
            ("/compact", plain),
        ):
            await one.prompt(session, prompted)
            assert wanted == await title()
        assert plain == json.loads(listing._marked(dumps({"sessionId": "x", "cwd": "/", "title": odd})))["title"]


async def test_a_row_says_what_a_client_may_know(house: House) -> None:
    """Title and directories where there are some; the agent's name and the number of messages in `_meta`."""
    await house.store.catalog.put(row(1, "/w", title="A title", dirs=("/more",), messages=7))
    await house.store.catalog.put(row(2, "/w"))
    async with desk(house, house.host("--no-list")) as one:
        plain, full = await listed(one)
        meta = {"acpd.dev/agent": "scripted", "acpd.dev/messages": 7}
        assert {"sessionId": "id-0001", "cwd": "/w", "title": "A title", "additionalDirectories": ["/more"]} == {
            key: full[key] for key in full.keys() - {"updatedAt", "_meta"}
        }
        assert (meta, {"sessionId", "cwd", "updatedAt", "_meta"}) == (full["_meta"], set(plain))


async def test_only_this_agents_sessions_are_listed(house: House) -> None:
    """A connection that names an agent shows that agent's."""
    await house.store.catalog.put(row(1, "/w"))
    await house.store.catalog.put(row(2, "/w", "another"))
    async with desk(house, house.host("--no-list")) as one:
        assert ["id-0001"] == [each["sessionId"] for each in await listed(one)]


async def test_folders_are_compared_as_what_they_are(house: House) -> None:
    """A trailing slash, a dot, a link: the same folder; the client's own spelling comes back."""
    real, link = house.root / "real", house.root / "link"
    real.mkdir()
    link.symlink_to(real)
    async with desk(house, house.host("--no-list")) as one:
        session = await one.new(str(link))
        await one.prompt(session, "say hi")
        for spelling in (str(real), f"{real}/", f"{link}/.", str(link)):
            assert [(session, spelling)] == [(each["sessionId"], each["cwd"]) for each in await listed(one, cwd=spelling)]
        assert [] == await listed(one, cwd=str(house.root))
        assert [session] == [each["sessionId"] for each in await listed(one)]


async def test_same_folder(tmp_path: Path) -> None:
    """Whether it exists or not."""
    header = Header(version=1, id="s", cwd=f"{tmp_path}/gone/", agent="a", folder=f"{tmp_path}/gone")
    assert [True, True, True, False] == [
        await listing.same_folder(f"{tmp_path}/{name}", header) for name in ("gone", "gone/", "./gone/.", "other")
    ]


async def test_a_session_that_nobody_prompted_is_listed_to_who_holds_it(house: House) -> None:
    """Only to that client, and only on the first page."""
    async with desk(house, house.host("--no-list")) as one, desk(house, house.host("--no-list")) as two:
        session = await one.new()
        assert ([session], []) == ([each["sessionId"] for each in await listed(one)], await listed(two))
        assert [session] == [each["sessionId"] for each in await listed(one, cwd=str(house.root))]
        assert [] == await listed(one, cwd="/elsewhere")


async def test_the_agents_own_sessions_come_behind_ours_and_are_marked(house: House) -> None:
    """What acpd knows already is not listed twice; the rest has our mark beside the agent's own `_meta`."""
    state = ("--state", str(house.root / "agent"), "--page", "2")
    link = await house.start(house.host(*state))
    theirs = [
        json.loads(await link.ask("session/new", json.dumps({"cwd": str(house.root), "mcpServers": []}).encode()))["sessionId"]
        for _ in range(5)
    ]
    await link.stop()
    async with desk(house, house.host(*state)) as one:
        session = await one.new()
        await one.prompt(session, "say hi")
        found = await listed(one)
        assert [session, *theirs] == [each["sessionId"] for each in found]
        assert [None, *[True] * 5] == [each["_meta"].get("acpd.dev/adopt") for each in found]
        assert [session] == [
            each["sessionId"] for each in await listed(one, cwd=str(house.root)) if each["sessionId"] == session
        ]
        assert [] == await listed(one, cwd="/elsewhere")


@pytest.mark.parametrize(
    "answer",
    [
        '"result":null',
        '"result":{}',
        '"result":{"sessions":null}',
        '"result":{"sessions":"none"}',
        '"result":{"sessions":[7,{},{"sessionId":1,"cwd":"/"}]}',
        '"error":{"code":-32603,"message":"no"}',
    ],
)
async def test_an_agent_that_lists_nothing_sensible_lists_nothing(house: House, answer: str) -> None:
    """Whatever the agent answers, ours are listed."""
    await house.store.catalog.put(row(1, "/w"))
    able = '{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":1,"agentCapabilities":{"sessionCapabilities":{"list":{}}}}}'
    script = f"""read x; echo '{able}'; read x; echo '{{"jsonrpc":"2.0","id":1,{answer}}}'; cat >/dev/null"""
    async with desk(house, house.shell(script)) as one:
        assert ["id-0001"] == [each["sessionId"] for each in await listed(one)]


async def test_an_agent_that_hangs_lists_nothing(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is waited for so long and no longer."""
    monkeypatch.setattr(listing, "AGENT_TIMEOUT", 0.05)
    await house.store.catalog.put(row(1, "/w"))
    able = '{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":1,"agentCapabilities":{"sessionCapabilities":{"list":{}}}}}'
    async with desk(house, house.shell(f"read x; echo '{able}'; cat >/dev/null")) as one:
        assert ["id-0001"] == [each["sessionId"] for each in await listed(one)]
