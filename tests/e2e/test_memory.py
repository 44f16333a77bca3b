"""What our agent remembers, by way of a whole acpd: kept after a kill, told in the next session, apart for users and agents."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import proc
from tests.support.client import Client
from tests.support.commands import acpd, backends
from tests.support.models import STALL, ModelServer, answer, model_server
from tests.support.walk import contents

pytestmark = pytest.mark.e2e

AGENT = "from acpd.native import entry, remembering; remembering.QUIET = 0.05; raise SystemExit(entry.main())"
"""Our agent, whose user pauses soon."""
TEA = "- The user likes tea"


@pytest.fixture
def model() -> Iterator[ModelServer]:
    with model_server() as made:
        yield made
        assert [] == made.wrong


class Stage:
    """One store, and clients of its users."""

    def __init__(self, tmp: Path, model: ModelServer, backend: str) -> None:
        self.home, self.cwd, self.mark = tmp / "home", tmp / "work", proc.new_mark()
        self.cwd.mkdir()
        self.env = {
            "ACPD_STORAGE_BACKEND": backend,
            "ACPD_AGENTS_NATIVE_MODEL": "openai:m",
            "OPENAI_BASE_URL": f"{model.url}/v1",
            "OPENAI_API_KEY": "canary",
            "OLLAMA_HOST": "127.0.0.1:9",
        }

    def client(self, *, agent: str = "coder", **env: str) -> Client:
        command = acpd("run", "--name", agent, "--", sys.executable, "-P", "-c", AGENT)
        client = Client(command, self.home, mark=self.mark, env={**self.env, **env})
        client.initialize()
        return client

    def ledgers(self) -> str:
        return "".join(data.decode() for _, data in sorted(contents(self.home / "data", "20??-??-??.md").items()))


def until(found: Callable[[], object]) -> None:
    """Files and requests of other processes: nobody says when they are there."""
    end = time.monotonic() + 20
    while not found():
        assert time.monotonic() < end
        time.sleep(0.005)


@pytest.mark.parametrize("backend", backends())
def test_it_outlives_sessions_and_kills(backend: str, tmp_path: Path, model: ModelServer) -> None:
    """A fact of one session is told in another one of the same user and agent, and in no other; killed while it is asked for,
    it is asked for again when the session is next used, and the prompt's answer was there all the time.
    """
    stage = Stage(tmp_path, model, backend)
    try:
        with stage.client() as client:
            session = client.new(stage.cwd)
            model.canned = [answer("chat", "Noted."), answer("chat", TEA)]
            assert "end_turn" == client.prompt(session, "I like tea")
            until(lambda: TEA in stage.ledgers())
            whole = answer("chat", "- The user likes coffee")
            model.canned = [answer("chat", "Noted too."), whole[:200] + STALL + whole[200:]]
            assert "end_turn" == client.prompt(session, "And coffee")
            assert model.stalled.wait(20)
            client.kill()
        until(lambda: not proc.marked(stage.mark))
        assert TEA in json.dumps(model.bodies[2]), "in the instructions of the second turn"
        assert "coffee" not in stage.ledgers()
        with stage.client() as client:
            client.load(session, stage.cwd)
            assert "Noted too." in client.text(session)
            model.canned = [answer("chat", "Yes."), answer("chat", f"{TEA}\n- The user likes coffee")]
            assert "end_turn" == client.prompt(session, "Both")
            until(lambda: "coffee" in stage.ledgers())
        assert "And coffee" in json.dumps(model.bodies[-1]["messages"])
        assert 1 == stage.ledgers().count(TEA)
        before = stage.ledgers()
        for more, knows in (({}, True), ({"ACPD_USER": "bob"}, False), ({"agent": "other"}, False)):
            with stage.client(**more) as client:
                model.canned = [answer("chat", calls=[("c1", "memory_search", {"query": "LIKES"})]), answer("chat", "That.")]
                model.canned += [answer("chat", "NO_REPLY")]
                count = len(model.bodies)
                assert "end_turn" == client.prompt(client.new(stage.cwd), "What do I drink?")
                until(lambda count=count: len(model.bodies) == count + 3)  # type: ignore[misc]
            first, second = (json.dumps(body) for body in model.bodies[count : count + 2])
            assert knows == (TEA in first)
            assert ("Found 2 matches" if knows else "No matches found") in second
        assert before == stage.ledgers()
    finally:
        proc.kill_marked(stage.mark)


def test_off_leaves_no_trace(tmp_path: Path, model: ModelServer) -> None:
    """`[agents.native] memory = false`: one request a prompt, and nothing of memory in it or in the store."""
    stage = Stage(tmp_path, model, "workspace")
    with stage.client(ACPD_AGENTS_NATIVE_MEMORY="false") as client:
        model.canned = [answer("chat", "Noted."), answer("chat", "Noted too.")]
        session = client.new(stage.cwd)
        for text in ("I like tea", "And coffee"):
            assert "end_turn" == client.prompt(session, text)
    assert 2 == len(model.bodies)
    assert "memory_" not in json.dumps(model.bodies)
    assert {} == {path: data for path, data in contents(stage.home).items() if "memory" in path.parts}
