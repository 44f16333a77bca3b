"""`acpd-agent` itself with MCP servers: a model calls their tools, and the corpus' cases hold."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.native.mcp.seat import OWN
from tests.native.mcp.test_process import new, stdio
from tests.native.turns import CHOSEN
from tests.support import proc
from tests.support.client import Client, allow
from tests.support.commands import acpd
from tests.support.models import ModelServer, model_server
from tests.support.paths import SHARED
from tests.support.walk import below

pytestmark = pytest.mark.e2e
CASES = sorted(path for number in (42, 43, 44, 45) for path in (SHARED / "corpus" / "rpc").glob(f"{number}_*.ndjson"))
AGENT = str(Path(sys.executable).with_name("acpd-agent"))


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ModelServer]:
    """A model that does what the prompt says, and is found by the usual variables."""
    with model_server() as server:
        monkeypatch.setenv("OPENAI_API_KEY", "canary-4711-model")
        monkeypatch.setenv("OPENAI_BASE_URL", server.url + CHOSEN["chat"][2])
        monkeypatch.setenv("ACPD_HOME", str(tmp_path / "home"))
        yield server


def command() -> list[str]:
    provider, name, _ = CHOSEN["chat"]
    return [AGENT, "--model", f"{provider}:{name}"]


def answered(request: dict[str, Any]) -> dict[str, Any] | None:
    """Yes to everything, as a client that keeps the agent's state."""
    return {} if request["method"] == "_acpd/state" else allow(request)


@pytest.mark.parametrize("behind", [False, True], ids=["alone", "behind acpd"])
def test_a_model_calls_a_tool_of_a_server(model: ModelServer, tmp_path: Path, *, behind: bool) -> None:
    """Its name is offered to the model, the user is asked, the result comes back; nothing secret is stored or sent."""
    line = acpd("run", "--standalone", "--", *command()) if behind else command()
    with Client(line, tmp_path / "home", policy=answered) as client:
        client.initialize(session={"notices": {}})
        session = new(client, tmp_path, stdio(client, OWN / "rich.py", API_KEY="canary-4711-env"))
        assert "end_turn" == client.prompt(session, '[[tool rich_echo {"text": "from the model"}]]')
        assert "from the model" in client.text(session)
        (asked,) = [line for line in client.lines if line.method == "session/request_permission"]
        assert "rich: echo" == asked.params["toolCall"]["title"]
        assert "end_turn" == client.prompt(session, "[[tool rich_env {}]]")
        assert "canary-4711" not in client.text(session)
    proc.assert_none_left(client.mark, within=1)
    found = [path for path in below(tmp_path / "home", "*") if path.is_file() and b"canary-4711" in path.read_bytes()]
    assert [] == found


@pytest.mark.parametrize("case", CASES, ids=lambda path: path.stem)
def test_the_cases_of_the_corpus(model: ModelServer, case: Path) -> None:
    """A silent server, one that exits, malformed entries and a secret header are what their expectations say."""
    play = [sys.executable, str(SHARED / "corpus" / "play.py"), str(case), "--", *command()]
    done = subprocess.run(play, env={**os.environ, "PLAY_WAIT": "60"}, capture_output=True, text=True, timeout=120)
    assert 0 == done.returncode, done.stdout + done.stderr
    assert "canary" not in done.stderr
