"""What the model knows after a branch and a fork of acpd: the conversation up to there, and nothing of the other one."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.native.turns import CHOSEN, KEY
from tests.support.client import Client, allow
from tests.support.commands import acpd
from tests.support.models import ModelServer, model_server

pytestmark = pytest.mark.e2e
AGENT = str(Path(sys.executable).with_name("acpd-agent"))


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelServer]:
    with model_server() as server:
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        monkeypatch.setenv("OPENAI_BASE_URL", server.url + CHOSEN["chat"][2])
        yield server
        assert [] == server.wrong


def started(tmp_path: Path) -> Client:
    line = acpd("run", "--standalone", "--", AGENT, "--model", "openai:m")
    client = Client(line, tmp_path / "home", policy=allow)
    client.initialize()
    return client


def known(client: Client, session: str, model: ModelServer, words: list[str], word: str) -> list[str]:
    """Which of the words the model is told of with a prompt that says `word`."""
    assert "end_turn" == client.prompt(session, f"[[say {word}]]")
    sent = json.dumps(model.bodies[-1])
    return [each for each in words if each in sent]


@pytest.mark.parametrize("killed", [False, True])
def test_a_branch_is_what_the_model_remembers(model: ModelServer, tmp_path: Path, *, killed: bool) -> None:
    """Behind the branch, after a restart, and after the way back, whatever the memory has that was kept last."""
    words, ends = ["alpha", "beta", "gamma", "delta", "epsilon"], []
    with started(tmp_path) as client:
        session = client.new(tmp_path)
        for word in words[:3]:
            assert "end_turn" == client.prompt(session, f"[[say {word}]]")
            ends.append(client.call("_acpd/tree", {"sessionId": session})["leaf"])
        client.call("_acpd/branch", {"sessionId": session, "entry": ends[0]})
        if killed:
            client.kill()
    with started(tmp_path) as client:
        client.load(session, tmp_path)
        assert ["alpha", "delta"] == known(client, session, model, words, "delta")
        assert ["alpha", "delta", "epsilon"] == known(client, session, model, words, "epsilon")
        client.kill()
    with started(tmp_path) as client:
        client.load(session, tmp_path)
        assert ["alpha", "delta", "epsilon"] == known(client, session, model, words, "zeta")
        client.call("_acpd/branch", {"sessionId": session, "entry": ends[2]})
        assert ["alpha", "beta", "gamma"] == known(client, session, model, words, "eta")


def test_a_branch_there_and_back_changes_nothing(model: ModelServer, tmp_path: Path) -> None:
    """Without a prompt between, the model has all of its own memory or is told all of it."""
    words, ends = ["alpha", "beta"], []
    with started(tmp_path) as client:
        session = client.new(tmp_path)
        for word in words:
            client.prompt(session, f"[[say {word}]]")
            ends.append(client.call("_acpd/tree", {"sessionId": session})["leaf"])
        for end in ends:
            client.call("_acpd/branch", {"sessionId": session, "entry": end})
        assert words == known(client, session, model, words, "gamma")


def test_a_fork_at_an_entry_is_what_the_model_remembers(model: ModelServer, tmp_path: Path) -> None:
    """In the fork what was before the entry; in the first session all of it still."""
    words, ends = ["alpha", "beta", "gamma"], []
    with started(tmp_path) as client:
        session = client.new(tmp_path)
        for word in words[:2]:
            client.prompt(session, f"[[say {word}]]")
            ends.append(client.call("_acpd/tree", {"sessionId": session})["leaf"])
        params = {"sessionId": session, "cwd": str(tmp_path), "mcpServers": [], "_meta": {"acpd.dev/entry": ends[0]}}
        fork = client.call("session/fork", params)["sessionId"]
        assert ["alpha", "gamma"] == known(client, fork, model, words, "gamma")
        assert ["alpha", "beta"] == known(client, session, model, words, "other")
