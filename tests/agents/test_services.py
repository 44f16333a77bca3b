"""Who serves an agent's files and terminals: the client that prompted, another one that can, acpd itself."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from acpd.agents import files
from acpd.agents import local as module
from acpd.agents.link import AgentLink
from acpd.agents.pool import Host
from acpd.attachment import ClientCapabilities
from acpd.errors import INTERNAL_ERROR, INVALID_PARAMS, METHOD_NOT_FOUND, REQUEST_CANCELLED, RESOURCE_NOT_FOUND, RequestError
from acpd.session import LiveSession
from acpd_backends.links import LinkFolder
from tests.agents.house import House, turn
from tests.core.world import Editor, World, attach, dumps, prompt, until
from tests.support import proc
from tests.support.store import Json

ALL = ClientCapabilities(read_text_file=True, write_text_file=True, terminal=True)


def able(session: LiveSession, capabilities: ClientCapabilities = ALL) -> Editor:
    attach(session, editor := Editor())
    editor.capabilities = capabilities
    return editor


def leave(session: LiveSession, editor: Editor) -> None:
    """As a connection ends: its calls are broken first, then it is detached."""
    editor.close()
    session.detach(editor)


def asked(editor: Editor) -> tuple[str, str, Json]:
    """The one open call of this client: its id, method and params."""
    ((name, (method, params, _)),) = editor.asked.items()
    return name, method, params


# -- an agent for which the test speaks


class Spoken:
    """A link without a process: what the agent asks, and what it is answered."""

    def __init__(self, session: LiveSession, link: AgentLink) -> None:
        self.session = session
        self.link = link
        self.answers: dict[int, Json] = {}
        self._asked = 0
        link.peer.send = self._answered  # type: ignore[method-assign]

    def _answered(self, data: bytes) -> None:
        for line in data.splitlines():
            message = json.loads(line)
            if "method" in message:
                continue
            assert message["id"] not in self.answers, "answered twice"
            self.answers[message["id"]] = message

    def ask(self, method: str, **params: Any) -> int:
        self._asked += 1
        message = {"jsonrpc": "2.0", "id": self._asked, "method": method, "params": {"sessionId": "inner-1", **params}}
        self.link.peer.data_received(dumps(message) + b"\n")
        return self._asked

    async def answer(self, request: int) -> Any:
        """The result, or the code and message of the error."""
        await until(lambda: request in self.answers)
        message = self.answers[request]
        return message["result"] if "result" in message else (message["error"]["code"], message["error"]["message"])

    async def result(self, method: str, **params: Any) -> Any:
        return await self.answer(self.ask(method, **params))


@pytest.fixture
async def spoken(tmp_path: Path) -> AsyncIterator[Spoken]:
    """At the end every request was answered, once."""
    (tmp_path / "work").mkdir()
    async with World(tmp_path / "store") as world:
        session = await world.new(str(tmp_path / "work"))
        link = AgentLink(f"link-{proc.new_mark()}", "agent", ("agent",), LinkFolder(tmp_path / "links"), world.tasks, 0.2)
        link.told = ALL
        link.bind(session, b'"inner-1"')
        session.link = link
        made = Spoken(session, link)
        yield made
        await link.stop()
        session.link = None
        assert (set(range(1, made._asked + 1)), {}) == (set(made.answers), link.forwarded)


async def test_who_is_asked(spoken: Spoken) -> None:
    """Who prompted if it can, else the longest attached that can; with our id of the session, null as the schema wants it."""
    session = spoken.session
    first, plain, last = able(session), able(session, ClientCapabilities()), able(session)
    for prompter, expected in ((plain, first), (last, last)):
        prompt(session, prompter, f"p-{id(prompter)}")
        assert session.current is not None
        session.current.client = prompter
        request = spoken.ask("fs/write_text_file", path="/a", content="x")
        name, method, params = asked(expected)
        assert ("fs/write_text_file", {"sessionId": session.id, "path": "/a", "content": "x"}) == (method, params)
        expected.answer(name, None)
        assert {} == await spoken.answer(request)


async def test_what_no_client_can_is_done_here(spoken: Spoken) -> None:
    """Each capability counts by itself; nobody attached is nobody that can; a malformed request is nobody's."""
    path = f"{spoken.session.header.cwd}/f"
    able(spoken.session, ClientCapabilities(read_text_file=True))
    assert {} == await spoken.result("fs/write_text_file", path=path, content="one\ntwo\n")
    spoken.session.audience.attachments.clear()
    assert {"content": "two\n"} == await spoken.result("fs/read_text_file", path=path, line=2, limit=1)
    assert INVALID_PARAMS == (await spoken.result("fs/read_text_file", path=path, line="2"))[0]
    assert (INVALID_PARAMS, "/etc/passwd is outside the folders of the session: " + spoken.session.header.cwd) == (
        await spoken.result("fs/read_text_file", path="/etc/passwd")
    )
    assert METHOD_NOT_FOUND == (await spoken.result("_vendor/ask"))[0]
    assert METHOD_NOT_FOUND == (await spoken.result("fs/other"))[0]


async def test_what_the_agent_was_not_told(spoken: Spoken) -> None:
    """What the client that started the agent could not do is not served here, only by a client that can."""
    spoken.link.told = ClientCapabilities(read_text_file=True)
    path = f"{spoken.session.header.cwd}/f"
    said = (METHOD_NOT_FOUND, "fs/write_text_file: no client can do that")
    assert said == await spoken.result("fs/write_text_file", path=path, content="x")
    assert RESOURCE_NOT_FOUND == (await spoken.result("fs/read_text_file", path=path))[0]
    for method, params in (("create", {"command": "true"}), ("output", {"terminalId": "t"})):
        assert METHOD_NOT_FOUND == (await spoken.result(f"terminal/{method}", **params))[0]
    editor = able(spoken.session)
    request = spoken.ask("fs/write_text_file", path=path, content="x")
    editor.answer(asked(editor)[0], {})
    assert {} == await spoken.answer(request)


async def test_the_folders_of_a_session(spoken: Spoken, tmp_path: Path) -> None:
    """Those that the newest client added count, else those with which the session was made."""
    (tmp_path / "more").mkdir()
    path = str(tmp_path / "more" / "f")
    assert INVALID_PARAMS == (await spoken.result("fs/write_text_file", path=path, content="x"))[0]
    spoken.session.setup = dumps({"cwd": "/", "additionalDirectories": [str(tmp_path / "more")]})
    assert {} == await spoken.result("fs/write_text_file", path=path, content="x")
    spoken.session.setup = dumps({"cwd": "/", "additionalDirectories": None})
    assert INVALID_PARAMS == (await spoken.result("fs/read_text_file", path=path))[0]


async def test_a_client_that_leaves_with_a_file_open(spoken: Spoken) -> None:
    """Its request for a file is made again to the next that can, then served here; one that answers an error has answered."""
    session = spoken.session
    Path(session.header.cwd, "f").write_text("here")
    first, second = able(session), able(session)
    request = spoken.ask("fs/read_text_file", path=f"{session.header.cwd}/f")
    leave(session, first)
    assert "fs/read_text_file" == asked(second)[1]
    leave(session, second)
    assert {"content": "here"} == await spoken.answer(request)
    third = able(session)
    request = spoken.ask("fs/read_text_file", path=f"{session.header.cwd}/f")
    third.answer(asked(third)[0], error=RequestError(-32000, "not open"))
    assert (-32000, "not open") == await spoken.answer(request)


async def test_a_file_that_is_not_here_after_a_client_left(spoken: Spoken) -> None:
    """What acpd refuses then is the agent's answer."""
    editor = able(spoken.session)
    request = spoken.ask("fs/read_text_file", path=f"{spoken.session.header.cwd}/nothing")
    leave(spoken.session, editor)
    assert RESOURCE_NOT_FOUND == (await spoken.answer(request))[0]


async def test_a_command_is_not_run_twice(spoken: Spoken) -> None:
    """A client that leaves before it has answered terminal/create: an error, though others can."""
    first, second = able(spoken.session), able(spoken.session)
    request = spoken.ask("terminal/create", command="true")
    leave(spoken.session, first)
    assert (INTERNAL_ERROR, "terminal/create: the client left before it answered") == await spoken.answer(request)
    assert {} == second.asked


async def test_a_terminal_stays_where_it_was_made(spoken: Spoken) -> None:
    """Whoever prompts later: its requests go to the client that has it, or to acpd."""
    session = spoken.session
    mine = (await spoken.result("terminal/create", command="echo hello"))["terminalId"]
    owner = able(session)
    request = spoken.ask("terminal/create", command="true")
    owner.answer(asked(owner)[0], {"terminalId": "t-1"})
    assert {"terminalId": "t-1"} == await spoken.answer(request)
    other = able(session)
    prompt(session, other, "p")
    for method in ("output", "wait_for_exit", "kill", "release"):
        request = spoken.ask(f"terminal/{method}", terminalId="t-1")
        name, said, params = asked(owner)
        assert (f"terminal/{method}", {"sessionId": session.id, "terminalId": "t-1"}) == (said, params)
        expected = {} if method in ("kill", "release") else {"any": method}
        owner.answer(name, expected or None)
        assert expected == await spoken.answer(request)
    assert (RESOURCE_NOT_FOUND, "there is no terminal t-1; it was released, or never made") == (
        await spoken.result("terminal/output", terminalId="t-1")
    )
    assert {"exitCode": 0, "signal": None} == await spoken.result("terminal/wait_for_exit", terminalId=mine)
    assert "hello\n" == (await spoken.result("terminal/output", terminalId=mine))["output"]
    for _ in range(2):
        assert {} == await spoken.result("terminal/kill", terminalId=mine)
    assert {} == await spoken.result("terminal/release", terminalId=mine)
    assert ({}, {}) == (other.asked, owner.asked)


async def test_the_terminal_of_a_client_that_left(spoken: Spoken) -> None:
    """What waits there is answered with an error, what comes later says why; letting it go is no error."""
    session = spoken.session
    owner, _ = able(session), able(session)
    request = spoken.ask("terminal/create", command="true")
    owner.answer(asked(owner)[0], {"terminalId": "t-1"})
    await spoken.answer(request)
    request = spoken.ask("terminal/wait_for_exit", terminalId="t-1")
    leave(session, owner)
    assert (INTERNAL_ERROR, "terminal/wait_for_exit: the client left before it answered") == await spoken.answer(request)
    gone = (RESOURCE_NOT_FOUND, "terminal/output: the client that had terminal t-1 has left")
    assert gone == await spoken.result("terminal/output", terminalId="t-1")
    assert {} == await spoken.result("terminal/release", terminalId="t-1")
    assert RESOURCE_NOT_FOUND == (await spoken.result("terminal/release", terminalId="t-1"))[0]


async def test_two_clients_give_one_name(spoken: Spoken) -> None:
    """The second terminal is let go and the agent told so; where the first client has left, the name is the second's."""
    session = spoken.session
    first, second = able(session), able(session)
    request = spoken.ask("terminal/create", command="a")
    first.answer(asked(first)[0], {"terminalId": "t-1"})
    await spoken.answer(request)
    prompt(session, second, "p")
    request = spoken.ask("terminal/create", command="b")
    second.answer(asked(second)[0], {"terminalId": "t-1"})
    assert (INTERNAL_ERROR, "terminal/create: two clients call their terminals t-1; try again") == await spoken.answer(request)
    name, method, params = asked(second)
    assert ("terminal/release", {"sessionId": session.id, "terminalId": "t-1"}) == (method, params)
    second.answer(name, {})
    leave(session, first)
    request = spoken.ask("terminal/create", command="b")
    second.answer(asked(second)[0], {"terminalId": "t-1"})
    assert {"terminalId": "t-1"} == await spoken.answer(request)
    request = spoken.ask("terminal/output", terminalId="t-1")
    second.answer(asked(second)[0], {"output": "b", "truncated": False})
    assert "b" == (await spoken.answer(request))["output"]


async def test_an_answer_without_a_terminal(spoken: Spoken) -> None:
    """What a client answers is the agent's to judge."""
    editor = able(spoken.session)
    request = spoken.ask("terminal/create", command="a")
    editor.answer(asked(editor)[0], {"no": "id"})
    assert {"no": "id"} == await spoken.answer(request)


async def test_an_agent_that_withdraws_a_wait(spoken: Spoken) -> None:
    """$/cancel_request ends the waiting for a terminal of acpd's."""
    name = (await spoken.result("terminal/create", command="sleep 60"))["terminalId"]
    request = spoken.ask("terminal/wait_for_exit", terminalId=name)
    cancel = {"jsonrpc": "2.0", "method": "$/cancel_request", "params": {"requestId": request}}
    spoken.link.peer.data_received(dumps(cancel) + b"\n")
    assert REQUEST_CANCELLED == (await spoken.answer(request))[0]


async def test_files_keep_the_agents_order(spoken: Spoken) -> None:
    """Reads and writes that are on their way at once are done one after another, as they were asked for."""
    path = f"{spoken.session.header.cwd}/f"
    requests = []
    for count in range(20):
        spoken.ask("fs/write_text_file", path=path, content=str(count))
        requests.append(spoken.ask("fs/read_text_file", path=path))
    assert [{"content": str(count)} for count in range(20)] == [await spoken.answer(request) for request in requests]


async def test_an_agent_that_writes_faster_than_the_disk(spoken: Spoken, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where too much waits, what comes is refused until less does; one big file alone is not too much."""
    monkeypatch.setattr(module, "WAITING", 1000)
    path = f"{spoken.session.header.cwd}/f"
    first, second = (spoken.ask("fs/write_text_file", path=path, content="x" * 2000) for _ in range(2))
    assert {} == await spoken.answer(first)
    code, words = await spoken.answer(second)
    assert (INTERNAL_ERROR, True) == (code, words.endswith("bytes of files wait already; try again"))
    assert {"content": "x" * 2000} == await spoken.result("fs/read_text_file", path=path)


async def test_an_agent_that_does_not_read(spoken: Spoken) -> None:
    """No file is read for it until it has read what it got; when it has ended, nothing waits for it any more."""
    path = Path(spoken.session.header.cwd, "f")
    path.write_text("before")
    spoken.link.peer.pause_writing()
    request = spoken.ask("fs/read_text_file", path=str(path))
    for _ in range(10):
        await asyncio.sleep(0)
    path.write_text("after")
    spoken.link.peer.resume_writing()
    assert {"content": "after"} == await spoken.answer(request)
    spoken.link.peer.pause_writing()
    spoken.ask("fs/read_text_file", path=str(path))
    await asyncio.sleep(0)
    spoken.link.peer.connection_lost(None)
    await until(lambda: not spoken.link.local._waiting)
    spoken.answers[2] = {}


async def test_a_bug_is_an_answer(spoken: Spoken, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent waits for nothing that will never come."""

    def broken(_params: bytes, _roots: object) -> bytes:
        raise ZeroDivisionError

    monkeypatch.setitem(module._FILES, "fs/read_text_file", broken)
    failed: list[str] = []
    monkeypatch.setattr(spoken.link.tasks, "_on_error", lambda name, _: failed.append(name))
    assert INTERNAL_ERROR == (await spoken.result("fs/read_text_file", path="/a"))[0]
    await until(lambda: failed)
    assert files.read is not broken


# -- a real agent


@pytest.fixture
def host(house: House) -> Host:
    """Of a client that can everything."""
    made = house.host()
    able = {"fs": {"readTextFile": True, "writeTextFile": True}, "terminal": True}
    made.initialize = dumps({"protocolVersion": 1, "clientCapabilities": able})
    return made


async def test_the_next_client_serves_nothing(house: House, host: Host) -> None:
    """What the agent was told of the client that started it stays true when that one has left and another prompts."""
    session = await house.new(host)
    plain = able(session, ClientCapabilities())
    path = house.root / "note"
    script = f"write {path} hello\nread {path}\nrun echo $ACPD_TEST_MARK; exit 3\nrun pwd"
    texts, answer = await turn(session, script, plain)
    expected = [f"wrote {path}", "hello", f"exit 3: {house.mark}", f"exit 0: {house.root}"]
    assert expected == [text for text in texts if not text.startswith("tool_call")]
    shown = [item for each in plain.updates if each["sessionUpdate"] == "tool_call" for item in each["content"]]
    assert ["[terminal output is not kept]"] * 2 == [item["content"]["text"] for item in shown]
    assert "end_turn" == answer["result"]["stopReason"]
    assert {} == plain.asked


async def test_a_turn_whose_client_leaves(house: House, host: Host) -> None:
    """In the middle of a turn the files go on here, and so do commands that are begun later."""
    session = await house.new(host)
    editor, watcher = able(session), able(session, ClientCapabilities())
    prompt(session, editor, "p", f"write {house.root}/note hello\nread {house.root}/note\nrun echo on")
    await until(lambda: editor.asked)
    leave(session, editor)
    await until(lambda: "exit 0: on" in watcher.texts)
    assert [f"wrote {house.root}/note", "hello"] == [text for text in watcher.texts if text.startswith(("wrote", "hello"))]


async def test_a_cancel_ends_the_command(house: House, host: Host) -> None:
    """The agent kills its terminal when its turn is cancelled, and the command is gone."""
    session = await house.new(host)
    editor = able(session, ClientCapabilities())
    prompt(session, editor, "p", "run sleep 60")
    await until(lambda: "tool_call" in editor.texts)
    assert any("sleep 60" in each.command for each in proc.marked(house.mark))
    session.cancel()
    assert "cancelled" == (await editor.answered("p"))["result"]["stopReason"]
    await until(lambda: not any("sleep" in each.command for each in proc.marked(house.mark)))


@pytest.mark.parametrize("how", ["dies", "closed"])
async def test_the_agents_end_is_its_terminals_end(house: House, host: Host, how: str) -> None:
    """Whether the agent dies or its session is closed: its commands end, and no descriptor stays."""
    session = await house.new(host)
    await session.ensure_agent()
    editor = able(session, ClientCapabilities())
    before = proc.fds(os.getpid())
    prompt(session, editor, "p", "run setsid sleep 60 & exec sleep 60")
    await until(lambda: 2 == sum("sleep 60" == each.command for each in proc.marked(house.mark)))
    link = session.link
    assert isinstance(link, AgentLink)
    if how == "dies":
        os.kill(link.pid, 9)
        assert "error" in await editor.answered("p")
    else:
        await asyncio.wait_for(house.registry.close(session.id), 10)
    await until(lambda: link.id not in house.pool.links)
    await asyncio.to_thread(proc.assert_none_left, house.mark)
    assert proc.fds(os.getpid()) <= before
