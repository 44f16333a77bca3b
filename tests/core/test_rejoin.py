"""A client that comes back: at every line at which its connection can be lost, it gets each line once and each answer."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from acpd import cursors, rejoin
from acpd.agents.pool import Host
from acpd.cursors import Cursor
from acpd.rejoin import Earlier
from acpd.router import Connection
from acpd.transports.shimlink import ShimPeer
from tests.agents.house import INITIALIZE, House
from tests.core.world import Changes, dumps
from tests.support.store import Json

TOKEN = "ab" * 16


class Editor(Changes):
    """An editor and its shim in one, as docs/protocol.md has them. `got` is what the editor saw, over all connections."""

    def __init__(self) -> None:
        self.got: list[Json] = []
        self.kept: dict[int, bytes] = {}
        self.settled: set[int] = set()
        self.set_up: dict[str, int] = {}
        self.places: dict[str, str] = {}
        self.count = 0
        self.lines = 0
        """Lines that came down."""
        self.lose_at = -1
        self.lost = asyncio.Event()
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._server: Connection | None = None

    async def connect(self, house: House, host: Host) -> Connection:
        sessions = {
            cursors.session_of(name): (found, self.set_up.get(name))
            for name, place in self.places.items()
            if (found := cursors.parsed(place)) is not None
        }
        earlier = Earlier(TOKEN, self.count + 1, sessions)
        server = Connection(house.registry, house.pool, host, house.tasks, lambda: None, peer=ShimPeer, earlier=earlier)
        ours, theirs = socket.socketpair()
        loop = asyncio.get_running_loop()
        for each in (ours, theirs):
            each.setblocking(False)
        transport, _ = await loop.create_connection(lambda: server.peer, sock=theirs)
        server.peer.use_writer(transport)
        server.peer.use_reader(transport)
        reader, self._writer = await asyncio.open_connection(sock=ours, limit=1 << 26)
        self._server = server
        self.lost.clear()
        for number in sorted(self.kept):
            self._writer.write(b"%d %b\n" % (number, self.kept[number]))
        self._reading = loop.create_task(self._read(reader))
        return server

    async def _read(self, reader: asyncio.StreamReader) -> None:
        while line := await reader.readline():
            if self.lines == self.lose_at:  # this line is lost, and all behind it
                self.lose_at = -1
                break
            self.lines += 1
            place, settles, text = line.split(b" ", 2)
            number = int(settles.rstrip(b"+*")) if settles != b"-" else 0
            if text.strip() and number not in self.settled:
                self.got.append(json.loads(text))
            self._take(place.decode(), settles.decode(), number)
        assert self._writer is not None
        self._writer.close()
        await self._writer.wait_closed()
        self.lost.set()

    def _take(self, place: str, settles: str, number: int) -> None:
        session, _, cursor = place.partition(":")
        if cursor == "x":
            self.places.pop(session, None)
            self.kept.pop(self.set_up.pop(session, 0), None)
        elif cursor:
            self.places[session] = cursor
        if not number:
            return
        self.settled.add(number)
        if settles.endswith("+"):
            if (old := self.set_up.get(session)) not in (None, number):
                self.kept.pop(old or 0, None)
            self.set_up[session] = number
        elif not settles.endswith("*"):
            self.kept.pop(number, None)

    def write(self, **message: Any) -> int:
        self.count += 1
        self.kept[self.count] = dumps({"jsonrpc": "2.0", **message})
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(b"%d %b\n" % (self.count, self.kept[self.count]))
        return self.count

    def ask(self, method: str, /, **params: Any) -> str:
        name = f"q{self.count + 1}"
        self.write(id=name, method=method, params=params)
        return name

    def answers(self, name: str) -> list[Json]:
        return [each for each in self.got if each.get("id") == name and "method" not in each]

    async def answered(self, name: str) -> Json:
        await self.until(lambda: self.answers(name))
        (answer,) = self.answers(name)
        return answer

    async def leave(self) -> None:
        assert self._writer is not None
        assert self._reading is not None
        self._writer.close()
        await self._reading
        server = self._server
        assert server is not None
        await self.until(lambda: server.peer.closed and not server._running)

    @property
    def seqs(self) -> list[int]:
        metas = [each["params"].get("_meta", {}) for each in self.got if each.get("method") == "session/update"]
        return [meta["acpd.dev/seq"] for meta in metas if "acpd.dev/seq" in meta]

    @property
    def texts(self) -> list[str]:
        updates = [each["params"]["update"] for each in self.got if each.get("method") == "session/update"]
        return [each["content"]["text"] for each in updates if each["sessionUpdate"] == "agent_message_chunk"]


Reconnect = Callable[[], Any]


async def conversation(editor: Editor, house: House, lose: Callable[[], Any]) -> None:
    """Two turns, the second with two blocks. `lose` is called when the connection is gone, and brings a new one."""

    async def answered(name: str) -> Json:
        while not editor.answers(name):
            if editor.lost.is_set():
                await lose()
            await asyncio.sleep(0)
        (answer,) = editor.answers(name)
        return answer

    await answered(editor.ask("initialize", **INITIALIZE))
    new = await answered(editor.ask("session/new", cwd=str(house.root), mcpServers=[]))
    session = new["result"]["sessionId"]
    for blocks in (["chunks 3 with-id"], ["first", "chunks 4"]):
        prompt = [{"type": "text", "text": text} for text in blocks]
        answer = await answered(editor.ask("session/prompt", sessionId=session, prompt=prompt))
        assert {"stopReason": "end_turn"} == answer["result"]


async def test_a_connection_that_is_lost_at_any_line(house: House) -> None:
    """The daemon lives: at whatever line the connection is lost, each line comes once, in order, and each answer."""
    whole = Editor()
    await whole.connect(house, host := house.host())
    await conversation(whole, house, lambda: None)
    expected, total = whole.texts, whole.lines
    assert 7 <= len(expected)
    await whole.leave()
    for cut in range(total):
        editor = Editor()
        editor.lose_at = cut
        server = await editor.connect(house, host)

        async def again(editor: Editor = editor) -> None:
            await editor.connect(house, host)

        await conversation(editor, house, again)
        assert expected == editor.texts, cut
        assert sorted(set(editor.seqs)) == editor.seqs, cut
        assert server.peer.closed
        await editor.leave()


async def test_a_load_goes_on_where_it_was_lost(house: House) -> None:
    """What of a replay has been shown is not shown again, wherever it was cut; a new load begins anew."""
    first = Editor()
    await first.connect(house, host := house.host())
    await conversation(first, house, lambda: None)
    (session,) = house.registry.live
    params = {"sessionId": session, "cwd": str(house.root), "mcpServers": []}
    whole = Editor()
    await whole.connect(house, host)
    for _ in range(2):
        await whole.answered(whole.ask("initialize", **INITIALIZE) if not whole.count else whole.ask("session/load", **params))
    expected = whole.got[1:-1]
    assert 4 <= len(expected)
    for cut in range(1, len(expected) + 2):
        editor = Editor()
        editor.lose_at = cut
        await editor.connect(house, host)
        await editor.answered(editor.ask("initialize", **INITIALIZE))
        name = editor.ask("session/load", **params)
        await editor.lost.wait()
        await editor.connect(house, host)
        await editor.answered(name)
        assert expected == editor.got[1:-1], cut
        await editor.leave()
    await whole.leave()
    await first.leave()


async def test_a_daemon_that_died_in_a_turn(tmp_path: Path) -> None:
    """The prompt ends with an error, its own text is not echoed, and what was said before is not said again."""
    editor = Editor()
    async with House(tmp_path) as house:
        await editor.connect(house, house.host())
        await editor.answered(editor.ask("initialize", **INITIALIZE))
        new = await editor.answered(editor.ask("session/new", cwd=str(tmp_path), mcpServers=[]))
        session = new["result"]["sessionId"]
        prompt = editor.ask("session/prompt", sessionId=session, prompt=[{"type": "text", "text": "say one\nhang"}])
        await editor.until(lambda: editor.texts)
        house.registry.live[session].interrupt()
        await editor.leave()
    async with House(tmp_path) as house:
        await editor.connect(house, house.host())
        answer = await editor.answered(prompt)
        assert -32603 == answer["error"]["code"]
        assert "daemon ended" in answer["error"]["message"]
        assert "one" == editor.texts[0]
        assert 1 == editor.texts.count("one")
        kinds = [each["params"]["update"]["sessionUpdate"] for each in editor.got if each.get("method") == "session/update"]
        assert "user_message_chunk" not in kinds
        again = editor.ask("session/prompt", sessionId=session, prompt=[{"type": "text", "text": "say two"}])
        assert {"stopReason": "end_turn"} == (await editor.answered(again))["result"]
        assert sorted(set(editor.seqs)) == editor.seqs
        await editor.leave()


async def test_an_ask_is_not_asked_twice_over_a_lost_connection(house: House) -> None:
    """The daemon lives and the ask is open: the answer to the one request is taken. One that is over is withdrawn."""
    editor = Editor()
    await editor.connect(house, host := house.host())
    await editor.answered(editor.ask("initialize", **INITIALIZE))
    new = await editor.answered(editor.ask("session/new", cwd=str(house.root), mcpServers=[]))
    session = new["result"]["sessionId"]

    def asks() -> list[Json]:
        return [each for each in editor.got if each.get("method") == "session/request_permission"]

    for number in (1, 2):
        prompt = editor.ask("session/prompt", sessionId=session, prompt=[{"type": "text", "text": "ask"}])
        await editor.until(lambda number=number: len(asks()) == number)  # type: ignore[misc]
        await editor.leave()
        if number == 2:
            house.registry.live[session].cancel()
            await house.registry.live[session].idle()
        await editor.connect(house, host)
        ask = asks()[-1]
        option = ask["params"]["options"][0]["optionId"]
        if number == 1:
            await editor.until(lambda: [each for each in house.registry.live[session].audience.attachments if each.live])
            editor.write(id=ask["id"], result={"outcome": {"outcome": "selected", "optionId": option}})
            assert {"stopReason": "end_turn"} == (await editor.answered(prompt))["result"]
        else:
            assert {"stopReason": "cancelled"} == (await editor.answered(prompt))["result"]
            withdrawn = [each["params"]["requestId"] for each in editor.got if each.get("method") == "$/cancel_request"]
            assert [ask["id"]] == withdrawn
        assert number == len(asks())
    await editor.leave()


@pytest.mark.parametrize("place", ["", "99", "0.5", "r3.1"])
async def test_a_cursor_that_does_not_fit_loses_nobody(house: House, place: str) -> None:
    """Whatever a shim brings back, the session is there afterwards, and the next prompt is answered."""
    editor = Editor()
    await editor.connect(house, host := house.host())
    await editor.answered(editor.ask("initialize", **INITIALIZE))
    new = await editor.answered(editor.ask("session/new", cwd=str(house.root), mcpServers=[]))
    session = new["result"]["sessionId"]
    await editor.leave()
    editor.places = {session: place, "gone": "4"} if place else {}
    assert cursors.parsed(place) in (None, Cursor(99), Cursor(0, 5), Cursor(3, 1, replay=True))
    await editor.connect(house, host)
    answer = await editor.answered(
        editor.ask("session/prompt", sessionId=session, prompt=[{"type": "text", "text": "say here"}])
    )
    assert {"stopReason": "end_turn"} == answer["result"]
    assert "here" == editor.texts[-1]
    await editor.leave()


async def test_a_session_is_not_made_again_by_a_load_that_was_lost(house: House) -> None:
    """A client that loads what it has made itself, and is lost in the replay: that goes on, and no other session is made."""
    editor = Editor()
    await editor.connect(house, host := house.host())
    await conversation(editor, house, lambda: None)
    (session,) = house.registry.live
    params = {"sessionId": session, "cwd": str(house.root), "mcpServers": []}
    assert {session: 2} == editor.set_up
    editor.lose_at = editor.lines + 2
    before = len(editor.got)
    name = editor.ask("session/load", **params)
    await editor.lost.wait()
    assert editor.places[session].startswith("r")
    server = await editor.connect(house, host)
    await editor.answered(name)
    await editor.until(lambda: not server._running)
    told = editor.got[before:]
    before = len(editor.got)
    await editor.answered(editor.ask("session/load", **params))
    assert editor.got[before:-1] == told[:-1]
    assert [session] == list(house.registry.live)
    await editor.leave()


@pytest.mark.parametrize("is_over", [True, False])
async def test_a_session_that_is_closed_while_a_prompt_is_looked_for(
    house: House, monkeypatch: pytest.MonkeyPatch, *, is_over: bool
) -> None:
    """Another client closes it in that moment: the prompt is answered all the same, or begun in the session opened anew."""
    editor = Editor()
    await editor.connect(house, host := house.host())
    await editor.answered(editor.ask("initialize", **INITIALIZE))
    new = await editor.answered(editor.ask("session/new", cwd=str(house.root), mcpServers=[]))
    session = new["result"]["sessionId"]
    if not is_over:
        await editor.leave()
    prompt = editor.ask("session/prompt", sessionId=session, prompt=[{"type": "text", "text": "say here"}])
    if is_over:
        await editor.until(lambda: "here" in editor.texts)
        await editor.leave()
        await house.registry.live[session].idle()
        editor.got = [each for each in editor.got if each.get("id") != prompt]
        editor.settled.discard(editor.count)
        editor.kept[editor.count] = dumps(
            {
                "jsonrpc": "2.0",
                "id": prompt,
                "method": "session/prompt",
                "params": {"sessionId": session, "prompt": [{"type": "text", "text": "say here"}]},
            }
        )
    look = rejoin._end_of

    async def closed(*where: Any) -> Any:
        found = await look(*where)
        await house.registry.close(session)
        return found

    monkeypatch.setattr(rejoin, "_end_of", closed)
    await editor.connect(house, host)
    assert {"stopReason": "end_turn"} == (await editor.answered(prompt))["result"]
    assert 1 == editor.texts.count("here")
    await editor.leave()
