"""What our agent remembers beyond a session: when its model is asked, what is kept, and that no turn ever waits for it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest

from acpd.errors import INVALID_PARAMS, RequestError, StoreError
from acpd.native import remembering
from acpd.native.agent import NativeAgent
from acpd.native.history import History
from acpd.native.remembering import SECTION, SECTIONS, Remembering, digest, facts_in, hidden, news, sections_of
from acpd.native.settings import Settings, load
from acpd.storage.contract import Key, Memories
from acpd.tasks import Tasks
from acpd_backends import ledgers
from acpd_backends.ledgers import FileMemory
from acpd_backends.names import Layout
from tests.api.desk import Editor, joined, keeps
from tests.native.turns import KEY
from tests.support.models import STALL, Json, ModelServer, answer, http, model_server
from tests.support.walk import contents

T = TypeVar("T")
OURS: Json = {"_meta": {"acpd.dev/state": {}, "acpd.dev/tools": ["search", "memory"]}}
WHOSE = Key("native", "s1")


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with model_server() as made:
        yield made
        assert [] == made.wrong


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The user pauses at once."""
    monkeypatch.setattr(remembering, "QUIET", 0.0)


def _report(name: str, error: BaseException) -> None:
    sys.stderr.write(f"{name}: {error!r}\n")


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Set when the agent has said on stderr that nothing was remembered."""
    said, tell = asyncio.Event(), Remembering._tell

    def noted(self: Remembering, why: str, what: str = "nothing") -> None:
        tell(self, why, what)
        said.set()

    monkeypatch.setattr(Remembering, "_tell", noted)
    return said


class Acpd:
    """What acpd does for the agent: it keeps its state and its memory. `whose`: the user and agent of the session."""

    def __init__(self, root: Path, whose: Key = WHOSE) -> None:
        self.memory = FileMemory(Layout(root))
        self.whose = whose
        self.state: Json = {}
        self.tasks = Tasks(_report)

    def serve(self, editor: Editor) -> None:
        """Answer what the agent asks for, in threads, as acpd does."""

        def consolidate(params: Json) -> Json:
            self.memory._consolidate(self.whose, params["seen"], params["text"].encode() + b"\n")
            return {}

        def read(_: Json) -> Json:
            found = self.memory._read(self.whose)
            return {name: getattr(found, name) for name in found.__struct_fields__}

        works: dict[str, Callable[[Json], Json]] = {
            "append": lambda params: {"added": self.memory._append(self.whose, params["text"])},
            "consolidate": consolidate,
            "read": read,
        }
        editor.answers["_acpd/state"] = keeps(self.state)
        for name, work in works.items():
            editor.answers[f"_acpd/memory/{name}"] = partial(self._begin, editor, f"_acpd/memory/{name}", work)

    def _begin(self, editor: Editor, method: str, work: Callable[[Json], Json], params: Json) -> None:
        self.tasks.spawn(self._answer(editor, method, work, params), name=method)

    async def _answer(self, editor: Editor, method: str, work: Callable[[Json], Json], params: Json) -> None:
        try:
            editor.settle(method, await asyncio.to_thread(work, params))
        except StoreError as error:
            editor.refuse(method, RequestError(INVALID_PARAMS, str(error)))

    def read(self) -> Memories:
        return off(lambda: self.memory._read(self.whose))

    def facts(self) -> list[str]:
        found = off(lambda: self.memory._texts(self.memory._layout.memory(self.whose), None))
        return [line for _, text in found for line in text.splitlines() if line.startswith("- ")]


def off(work: Callable[[], T]) -> T:
    """In a thread, as files are written; the loop waits."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(work).result()


def agent(server: ModelServer, **settings: Any) -> NativeAgent:
    environ = {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": f"{server.url}/v1", "OLLAMA_HOST": "127.0.0.1:9"}
    return NativeAgent(Settings(model="openai:m", **settings), environ)


@contextlib.asynccontextmanager
async def at(server: ModelServer, acpd: Acpd, capabilities: Json = OURS, **settings: Any) -> AsyncGenerator[Editor]:
    made = off(lambda: agent(server, **settings))  # as the program makes it: before its loop runs
    async with joined(made, capabilities) as (editor, _):
        acpd.serve(editor)
        yield editor


def says(*texts: str) -> list[bytes]:
    return [answer("chat", text) for text in texts]


def asked(body: Json) -> str:
    return json.dumps(body["messages"], ensure_ascii=False)


def marked(editor: Editor) -> Callable[[], bool]:
    return lambda: any(each["name"] == remembering.STATE for each in editor.said("_acpd/state"))


async def ended(editor: Editor, server: ModelServer, requests: int) -> None:
    """The agent has had time for everything that it does at once: a request of ours is answered behind it."""
    for _ in range(3):
        await editor.refusal("session/load", {"sessionId": "none", "cwd": "/", "mcpServers": []})
    assert requests == len(server.bodies)


@pytest.mark.usefixtures("quick")
async def test_what_is_worth_it_is_kept_after_the_answer(server: ModelServer, tmp_path: Path) -> None:
    """Facts go to acpd when the answer was sent and the state kept; nothing is looked at twice; keys are masked."""
    acpd = Acpd(tmp_path)
    server.canned = says(
        "Noted.", f"Here:\n- likes tea\n- has the key {KEY}\n- uses ghp_{'x' * 36}\nno fact", "Fine.", "NO_REPLY"
    )
    async with at(server, acpd) as editor:
        name = await editor.new(tmp_path)
        await editor.prompt(name, f"I like tea. My key is {KEY}")
        await editor.until(marked(editor))
        order = [what for what, _ in editor.story if what == "answer" or "memory/append" in what][-2:]
        assert ["answer", "_acpd/memory/append"] == order
        kept = [said["name"] for what, said in editor.story if what == "_acpd/state"]
        assert ("memory" in kept[:-1], "remembered") == (True, kept[-1])
        assert ["- likes tea", "- has the key ***", "- uses ***"] == acpd.facts()
        assert "I like tea" in asked(server.bodies[1])
        assert KEY not in asked(server.bodies[1])
        assert "tools" not in server.bodies[1]
        mark = acpd.state["remembered"]
        await editor.prompt(name, "And coffee?")
        await editor.until(lambda: acpd.state["remembered"] != mark)
    second = asked(server.bodies[3])
    assert "And coffee?" in second
    assert "I like tea" not in second
    assert "likes tea" in second, "what is remembered already is told, so that it is not said twice"
    assert (4, 3) == (len(server.bodies), len(acpd.facts()))
    assert not [update for update in editor.updates() if "likes tea" in json.dumps(update)]


@pytest.mark.usefixtures("quick")
async def test_no_secret_is_sent_for_it_or_kept(server: ModelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither one of the conversation, nor one that a person has written to the files, nor one that the model names."""
    monkeypatch.setattr(remembering, "GROWN", 10)
    acpd = Acpd(tmp_path)
    off(lambda: acpd.memory._append(WHOSE, "- the password of the router is oldsecret1"))
    server.canned = says("Fine.", "- password: hunter2", "# All\n- token hunter2tok\n- likes tea and a long enough text of it")
    said = f"Use ghp_{'x' * 36}\nThe password is hunter2, please. " + "y" * 2013 + f" ghp_{'z' * 36} " + "y" * 4000
    async with at(server, acpd) as editor:
        await editor.prompt(await editor.new(tmp_path), said)
        await editor.asked("_acpd/memory/consolidate")
        await acpd.tasks.drain()
    asks = [asked(body) for body in server.bodies[1:]]
    assert (2, True) == (len(asks), all("password" in each for each in asks))
    for secret in ("oldsecret1", "hunter2", "ghp_"):
        assert not [each for each in asks if secret in each], secret
    assert ["- password: ***"] == acpd.facts()[-1:]
    assert "# All\n- token ***\n- likes tea and a long enough text of it\n" == acpd.read().text


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("- password: hunter2", "hunter2"),
        ("- token hunter2tok", "hunter2tok"),
        ("- AWS_SECRET_ACCESS_KEY is wJalrXUtnFEMI/K7", "wJalrXUtnFEMI/K7"),
        ("- pass: qwerty1", "qwerty1"),
        ("- API_KEY: x", "x"),
        ("- STRIPE_KEY: live", "live"),
        ("- **Password**: `open sesame`", "`open sesame`"),
        ("- the password for the staging server is hunter", "hunter"),
        ("- DB_PASSWORD (staging): hunter", "hunter"),
        ("- Das Passwort lautet geheim", "geheim"),
        ("- dbPassword = hunter", "hunter"),
        ("- the password is: hunter2", "hunter2"),
        ("- the password was changed to hunter2", "hunter2"),
        ("- PASSWORD => hunter2", "hunter2"),
        ("| password | hunter2 |", "hunter2"),
        ("- password: in", "in"),
        ("- the API key is set to abc", "abc"),
        ("- -----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----", "MIIE"),
        ("x" * 9000 + " password: hunter2", "hunter2"),
    ],
)
def test_what_prose_calls_a_secret_is_hidden(line: str, value: str) -> None:
    """By the word before it, whatever stands between them; the rest of a text of any length stays."""
    found = hidden(f"- tea\n{line}\n- coffee")
    assert "***" in found
    assert value not in found.replace("x" * 9000, "").split()
    assert len(value) < 3 or value not in found
    assert found.startswith("- tea\n")
    assert found.endswith("\n- coffee")


@pytest.mark.parametrize(
    "line",
    [
        "- the primary key is id",
        "- the API key is stored in the keychain",
        "- the token is in .env",
        "- the auth token is required.",
        "- all tests pass on Linux",
        "- the secretary: Bob",
        "- compass: north",
        "- tokens: 5",
        "- the token budget is small",
        "y" * 9000,
    ],
)
def test_what_is_said_about_secrets_stays(line: str) -> None:
    """Where one is, and what only looks like the word of one."""
    assert line == hidden(line)


def test_hiding_takes_time_with_the_length_only() -> None:
    """A text of 50,000 characters takes no minutes, whatever it is."""
    for piece in ("password ", "password for a ", "token_", '"', "pass (", "key key ", "-----BEGIN PRIVATE KEY-----"):
        begun = time.process_time()
        hidden(piece * (50_000 // len(piece)))
        assert time.process_time() - begun < 2, piece


def jobs() -> int:
    """Of all sessions, begun or waiting."""
    return sum(task.get_name().startswith("remember:") for task in asyncio.all_tasks())


async def test_a_pause_is_waited_for(server: ModelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several prompts in a row cost one request more; closed before the pause, it is done when the session is next used."""
    monkeypatch.setattr(remembering, "QUIET", 1000.0)
    acpd = Acpd(tmp_path)
    second = answer("chat", "two")
    server.canned = [*says("one"), second[:200] + STALL + second[200:]]
    async with at(server, acpd) as editor:
        name = await editor.new(tmp_path)
        await editor.prompt(name, "first")
        assert 1 == jobs(), "it waits"
        prompt = editor.begin(name, "second")
        assert await asyncio.to_thread(server.stalled.wait, 10)
        assert 0 == jobs(), "a prompt postpones it"
        server.go_on.set()
        await prompt
        assert 1 == jobs()
        await editor.call("session/close", {"sessionId": name})
        assert 0 == jobs()
    assert 2 == len(server.bodies)
    assert "remembered" not in acpd.state
    monkeypatch.setattr(remembering, "QUIET", 0.0)
    server.canned = says("three", "- all of it")
    async with at(server, acpd) as editor:
        await editor.load(name, tmp_path, acpd.state)
        await editor.prompt(name, "third")
        await editor.until(marked(editor))
    assert all(word in asked(server.bodies[3]) for word in ("first", "second", "third"))
    assert (["- all of it"], 4) == (acpd.facts(), len(server.bodies))


@pytest.mark.usefixtures("quick")
async def test_a22_an_extraction_that_hangs_disturbs_nothing(
    server: ModelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: asyncio.Event, capfd: pytest.CaptureFixture[str]
) -> None:
    """The prompt was answered and its state kept before; another is answered meanwhile; the job ends at its bound."""
    monkeypatch.setattr(remembering, "DRAIN", 0.1)
    acpd = Acpd(tmp_path)
    whole = answer("chat", "- never")
    server.canned = [*says("one"), whole[:200] + STALL + whole[200:], *says("two")]
    async with at(server, acpd) as editor:
        name = await editor.new(tmp_path)
        assert "end_turn" == await editor.prompt(name, "first")
        assert "first" in json.dumps(acpd.state["memory"])
        assert await asyncio.to_thread(server.stalled.wait, 10)
        monkeypatch.setattr(remembering, "QUIET", 1000.0)
        assert "end_turn" == await editor.prompt(name, "second")
        assert "two" in json.dumps(acpd.state["memory"])
        assert not server.left.is_set()
        await editor.call("session/close", {"sessionId": name})
        assert await asyncio.to_thread(server.left.wait, 10), "closed, the job is given DRAIN seconds and is cancelled"
    assert ([], 3) == (acpd.facts(), len(server.bodies))
    server.left.clear()
    server.stalled.clear()
    monkeypatch.setattr(remembering, "QUIET", 0.0)
    monkeypatch.setattr(remembering, "BOUND", 0.2)
    told.clear()
    server.canned = [*says("three"), whole[:200] + STALL + whole[200:]]
    async with at(server, acpd) as editor:
        await editor.load(name, tmp_path, acpd.state)
        assert "end_turn" == await editor.prompt(name, "third")
        await asyncio.wait_for(told.wait(), 10)
        assert await asyncio.to_thread(server.left.wait, 10)
    assert 5 == len(server.bodies)
    assert "remembered" not in acpd.state
    said = capfd.readouterr().err
    assert f"nothing was remembered of a session in {tmp_path}: it took longer than 0.2 s" in said


@pytest.mark.usefixtures("quick")
async def test_an_extraction_that_fails_is_told_on_stderr(
    server: ModelServer, tmp_path: Path, told: asyncio.Event, capfd: pytest.CaptureFixture[str]
) -> None:
    """Without the key and in one line; the user hears nothing of it, and it is done again after the next prompt."""
    acpd = Acpd(tmp_path)
    broken = [http(500, {"error": {"message": f"no {KEY}\nat all"}}), http(200, {}), *says("")]
    async with at(server, acpd) as editor:
        name = await editor.new(tmp_path)
        for number, bad in enumerate(broken):
            server.canned = [*says(f"answer {number}"), bad]
            told.clear()
            await editor.prompt(name, f"prompt {number}")
            await asyncio.wait_for(told.wait(), 10)
            heard = capfd.readouterr().err
            assert heard.startswith(f"acpd-agent: nothing was remembered of a session in {tmp_path}: ")
            assert (1, False) == (heard.count("\n"), KEY in heard)
        assert "answer 0answer 1answer 2" == editor.text()
        server.canned = says("last", "- at last")
        await editor.prompt(name, "again")
        await editor.until(marked(editor))
    assert "prompt 0" in asked(server.bodies[-1])
    assert ["- at last"] == acpd.facts()


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("why", ["off", "other client"])
async def test_off_is_off(why: str, server: ModelServer, tmp_path: Path) -> None:
    """Switched off, or at a client that is not acpd: no request more, no question about memory, no file."""
    acpd = Acpd(tmp_path / "store")
    server.canned = says("one", "two")
    more: Json = {"memory": False} if why == "off" else {"capabilities": {}}
    async with at(server, acpd, **more) as editor:
        name = await editor.new(tmp_path)
        for text in ("first", "second"):
            await editor.prompt(name, text)
        await editor.call("session/close", {"sessionId": name})
        await ended(editor, server, 2)
        assert not [what for what, _ in editor.story if "memory/" in what]
    assert "memory_" not in json.dumps(server.bodies[0]["tools"])
    assert {} == contents(tmp_path / "store")
    assert "remembered" not in acpd.state


async def test_what_is_remembered_is_in_the_instructions(server: ModelServer, tmp_path: Path) -> None:
    """Of this user and agent alone, without secrets, the newest too; where nobody tells it in time, turns go on without."""
    acpd, other = Acpd(tmp_path), Acpd(tmp_path, Key("native", "s1", "bob"))
    off(lambda: acpd.memory._append(WHOSE, "- old"))
    seen = acpd.read().seen
    off(lambda: acpd.memory._consolidate(WHOSE, seen, b"# Drinks tea\nThe password is hunter22, the key " + KEY.encode()))
    off(lambda: acpd.memory._append(WHOSE, "- and coffee, token=abcdef123456"))
    for mine, found in ((acpd, True), (other, False)):
        server.canned = says("one")
        async with at(server, mine) as editor:
            await editor.prompt(await editor.new(tmp_path), "first")
        first = json.dumps(server.bodies.pop())
        assert [found] * 3 == [word in first for word in ("# Drinks tea", "- and coffee", "notes, not instructions")]
        assert [] == [secret for secret in ("abcdef123456", "hunter22", KEY) if secret in first]


async def test_a_turn_does_not_wait_for_what_is_remembered(
    server: ModelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Nobody answers, or with an error: the turn goes on without it."""
    monkeypatch.setattr(remembering, "READ", 0.05)
    acpd = Acpd(tmp_path)
    server.canned = says("one", "two")
    async with at(server, acpd) as editor:
        editor.answers["_acpd/memory/read"] = lambda _: None
        name = await editor.new(tmp_path)
        assert "end_turn" == await editor.prompt(name, "first")
        del editor.answers["_acpd/memory/read"]
        assert "end_turn" == await editor.prompt(name, "second")
    assert 2 == capfd.readouterr().err.count("nothing was remembered of a session in")


@pytest.mark.usefixtures("quick")
async def test_it_is_switched_off_and_on_while_it_runs(server: ModelServer, tmp_path: Path) -> None:
    """What acpd.toml says of memory holds at once, for what is under way too; a file that cannot be read changes nothing."""
    (tmp_path / "config").mkdir()
    file = tmp_path / "config" / "acpd.toml"

    def put(text: str) -> None:
        file.write_text(f'[agents.native]\nmodel = "openai:m"\nmemory = {text}\n')

    def write(text: str) -> None:
        off(lambda: put(text))

    def switched_off(params: Json) -> Json:
        put("false # before the answer")
        return keep(params) or {}

    environ = {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": f"{server.url}/v1", "ACPD_HOME": str(tmp_path)}
    write("true")
    made = off(lambda: NativeAgent(load((), environ), environ, lambda: load((), environ)))
    acpd = Acpd(tmp_path / "store")
    server.canned = says("one", "two", "three", "four", "- likes tea")
    async with joined(made, OURS) as (editor, _):
        acpd.serve(editor)
        keep = editor.answers["_acpd/state"]
        editor.answers["_acpd/state"] = partial(acpd._begin, editor, "_acpd/state", switched_off)
        name = await editor.new(tmp_path)
        await editor.prompt(name, "first")
        editor.answers["_acpd/state"] = keep
        await ended(editor, server, 1)
        read = len(editor.said("_acpd/memory/read"))
        await editor.prompt(name, "second")
        await ended(editor, server, 2)
        write("[")
        await editor.prompt(name, "third")
        await ended(editor, server, 3)
        assert (1, read) == (read, len(editor.said("_acpd/memory/read")))
        write("true # again")
        await editor.prompt(name, "fourth")
        await editor.until(marked(editor))
    assert [True, False, False, True] == ["memory_search" in json.dumps(body["tools"]) for body in server.bodies[:4]]
    assert ["- likes tea"] == acpd.facts()
    assert "first" in asked(server.bodies[4]), "what was not looked at is looked at when it is wanted again"


async def test_s20_its_model_can_look_for_it(server: ModelServer, tmp_path: Path) -> None:
    """memory_search and memory_get, in each mode, without a question; what acpd says is wrong is the tool's output."""
    acpd = Acpd(tmp_path)
    calls: list[tuple[str, str, Json]] = [
        ("c1", "memory_search", {"query": "tea"}),
        ("c2", "memory_get", {"path": "x", "startLine": 1, "endLine": 2}),
    ]
    server.canned = [answer("chat", calls=calls), *says("done")]
    async with at(server, acpd, mode="plan") as editor:
        editor.answers["_acpd/memory/search"] = lambda params: {"text": f"Found {params['arguments']['query']}"}
        editor.answers["_acpd/memory/get"] = lambda _: None
        name = await editor.new(tmp_path)
        prompt = editor.begin(name, "What do I drink?")
        assert {"path": "x", "startLine": 1, "endLine": 2} == (await editor.asked("_acpd/memory/get"))["arguments"]
        editor.refuse("_acpd/memory/get", RequestError(INVALID_PARAMS, "there is no 'x' in the memory"))
        assert "end_turn" == (await prompt)["stopReason"]
        assert [] == editor.said("session/request_permission")
    tools = [message["content"] for message in server.bodies[1]["messages"] if message["role"] == "tool"]
    assert "Found tea" == tools[0]
    assert "there is no 'x' in the memory" in tools[1]


@pytest.mark.usefixtures("quick")
async def test_ledgers_that_have_grown_are_consolidated(
    server: ModelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the whole of MEMORY.md and what is not in it; not again within EVERY seconds."""
    monkeypatch.setattr(remembering, "GROWN", 10)
    acpd = Acpd(tmp_path)
    server.canned = says("one", "- likes tea", "```markdown\n# Drinks\n- tea\n```", "two", "- likes coffee")
    async with at(server, acpd) as editor:
        name = await editor.new(tmp_path)
        await editor.prompt(name, "I like tea")
        await editor.asked("_acpd/memory/consolidate")
        await acpd.tasks.drain()
        assert "# Drinks\n- tea\n" == acpd.read().text
        assert "likes tea" in asked(server.bodies[2])
        mark = acpd.state["remembered"]
        await editor.prompt(name, "I like coffee")
        await editor.until(lambda: acpd.state["remembered"] != mark)
        await ended(editor, server, 5)
    assert 1 == len(editor.said("_acpd/memory/consolidate"))
    assert "likes coffee" in acpd.read().recent


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("text", ["NO_REPLY", "I cannot do that.", "by hand"])
async def test_a_memory_is_not_thrown_away(
    text: str, server: ModelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither by a model that has nothing to say, or refuses, nor where somebody else has changed it meanwhile."""
    monkeypatch.setattr(remembering, "GROWN", 10)
    acpd = Acpd(tmp_path)
    folder = tmp_path / "agents/native/memory"
    off(lambda: acpd.memory._append(WHOSE, "- old"))
    (folder / "MEMORY.md").write_text("all that is known\n" * 20)
    server.canned = says("one", "- new", text if text != "by hand" else "x" * 300)
    async with at(server, acpd) as editor:
        if text == "by hand":
            consolidate = acpd.memory._consolidate

            def late(*given: Any) -> None:
                (folder / "MEMORY.md").write_text("all that is known\n" * 21)
                consolidate(*given)

            monkeypatch.setattr(acpd.memory, "_consolidate", late)
        name = await editor.new(tmp_path)
        await editor.prompt(name, "go")
        await editor.until(marked(editor))
        await editor.call("session/close", {"sessionId": name})  # a job that has begun may come to its end
    assert 3 == len(server.bodies)
    assert (folder / "MEMORY.md").read_text().startswith("all that is known\n" * 20)


@pytest.mark.usefixtures("quick")
async def test_killed_between_the_ledger_and_the_mark(server: ModelServer, tmp_path: Path) -> None:
    """What was written is not written again, although the agent does not know any more that it was."""
    acpd = Acpd(tmp_path)
    server.canned = says("one", "- likes tea")
    async with at(server, acpd) as editor:
        name = await editor.new(tmp_path)
        await editor.prompt(name, "I like tea")
        await editor.until(marked(editor))
    del acpd.state["remembered"]
    server.canned = says("two", "- Likes tea\n- likes coffee")
    async with at(server, acpd) as editor:
        await editor.load(name, tmp_path, acpd.state)
        await editor.prompt(name, "And coffee")
        await editor.until(marked(editor))
    assert "I like tea" in asked(server.bodies[-1])
    assert ["- likes tea", "- likes coffee"] == acpd.facts()


def test_what_is_new_is_found_behind_the_mark() -> None:
    """Also in a history that was kept and read again, shortened before the mark, or rewound behind it."""
    from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart

    history = History()
    for number in range(4):  # each turn ends in a call, so that the next prompt becomes one message with its result
        history.begin([f"prompt {number}"])
        history.answered(ModelResponse(parts=[TextPart(f"answer {number}"), ToolCallPart("read", {}, f"c{number}")]))
        history.close()
    mark = digest(history.messages[3])
    text, last = news(history.messages, mark)
    assert "[user]: prompt 2\n\n[agent]: answer 2\n\n[tool call]: read\n\n[user]: prompt 3" in text
    assert "prompt 1" not in text
    again = History.restored(history.dump())
    assert (text, last) == news(again.messages, mark)
    assert (text, last) == news(history.messages[3:], mark)
    assert "prompt 0" in news(history.messages[:3], mark)[0], "rewound: everything is looked at, acpd leaves out what it has"
    assert ("", last) == news(history.messages, last)
    assert ("", "") == news([], mark)


def compacted(said: bool) -> tuple[str, str, str]:
    """Of a conversation whose first half is compacted: what is new since its first or its third answer, and both digests."""
    from pydantic_ai.messages import ModelResponse, TextPart
    from pydantic_ai.usage import RequestUsage

    history = History()
    for number in range(4):
        history.begin([f"prompt {number}"])
        history.answered(
            ModelResponse(parts=[TextPart(f"answer {number}")], usage=RequestUsage(input_tokens=9, output_tokens=9))
        )
    mark = digest(history.messages[5 if said else 1])
    last = digest(history.messages[-1])
    history.compact(4, f"They spoke of prompt 1, with the password: hunter2. {'x' * 20_000} The end")
    history.mark("named")
    text, newest = news(history.messages, mark, history.summary)
    return text, newest, last


def test_what_was_compacted_before_it_was_looked_at_is_in_the_summary() -> None:
    """The summary is given with everything that is left, within its bound and without secrets."""
    text, newest, last = compacted(said=False)
    assert text.startswith("[summary of what came before]: They spoke of prompt 1, with the password: ***")
    assert "The end\n\n[user]: prompt 2\n\n[agent]: answer 2\n\n[user]: prompt 3" in text
    assert len(text) < remembering.SUMMARY + 200
    assert newest == last
    assert "prompt 1" in news([], "", "They spoke of prompt 1")[0], "nothing else is left"
    assert ("", "") == news([], "", " ")


def test_what_was_looked_at_is_not_new_after_a_compaction() -> None:
    """It takes the usage from the answers that stay, and a turn names its newest message: they are the same answers."""
    text, newest, last = compacted(said=True)
    assert "[user]: prompt 3\n\n[agent]: answer 3" == text
    assert newest == last


@pytest.mark.usefixtures("quick")
async def test_the_job_is_given_what_was_compacted(server: ModelServer, tmp_path: Path) -> None:
    """A session that was compacted before anything was looked at: its summary is in the request."""
    acpd = Acpd(tmp_path)
    server.canned = says("one", "NO_REPLY", "two", "- likes tea")
    async with at(server, acpd) as editor:
        name = await editor.new(tmp_path)
        await editor.prompt(name, "I like tea")
        await editor.until(marked(editor))
    acpd.state["memory"] = {**acpd.state["memory"], "summary": "The user likes tea."}
    del acpd.state["remembered"]
    async with at(server, acpd) as editor:
        await editor.load(name, tmp_path, acpd.state)
        await editor.prompt(name, "And?")
        await editor.until(marked(editor))
    assert "[summary of what came before]: The user likes tea." in asked(server.bodies[-1])


def test_facts_are_lines_of_a_list() -> None:
    """Nothing else of an answer is kept."""
    assert "- one\n* two" == facts_in("Sure!\n\n- one\n  * two\n\nNO_REPLY\n- NO_REPLY")
    assert "" == facts_in("NO_REPLY")


def test_facts_are_kept_in_sections() -> None:
    """None has more bytes than acpd takes; what one has no room for goes to the next, and what none has room for is counted."""
    assert ([], 0) == sections_of([])
    facts = [f"- {number:03} {'é' * 500}" for number in range(40)]
    sections, left = sections_of([f"- {'x' * SECTION}", *facts])
    assert (SECTIONS, 1 + len(facts) - 32) == (len(sections), left)
    assert facts[:32] == "\n".join(sections).splitlines()
    assert all(len(section.encode()) <= ledgers.SECTION == SECTION for section in sections)
    assert (["- " + "x" * (SECTION - 3)], 0) == sections_of(["- " + "x" * (SECTION - 3)])


@pytest.mark.usefixtures("quick")
async def test_an_answer_with_more_facts_than_fit_in_a_section(
    server: ModelServer, tmp_path: Path, told: asyncio.Event, capfd: pytest.CaptureFixture[str]
) -> None:
    """All of them are kept, up to SECTIONS; that there were more is told on stderr, and nothing is asked again."""
    acpd = Acpd(tmp_path)
    facts = [f"- {number:03} {'x' * 994}" for number in range(40)]
    server.canned = says("one", "\n".join(facts))
    async with at(server, acpd) as editor:
        await editor.prompt(await editor.new(tmp_path), "go")
        await editor.until(marked(editor))
    assert facts[:32] == acpd.facts()
    assert told.is_set()
    assert "not all was remembered of a session in" in (said := capfd.readouterr().err)
    assert "8 facts of one answer" in said
