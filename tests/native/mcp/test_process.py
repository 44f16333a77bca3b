"""Servers of a running agent: its answers do not wait for them, no value is shown anywhere, nothing is left of them."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.native.mcp.seat import CORPUS, OWN
from tests.support import proc
from tests.support.client import Client
from tests.support.commands import wrapping
from tests.support.walk import below

SECRET = "canary-4711"
pytestmark = pytest.mark.e2e


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    """A client of the agent, at the handshake's end."""
    with Client([sys.executable, "-u", str(OWN / "agent.py")], tmp_path / "home") as running:
        running.initialize(session={"notices": {}})
        yield running
    proc.assert_none_left(running.mark, within=3)


def stdio(client: Client, script: Path, **env: str) -> dict[str, Any]:
    pairs = [{"name": name, "value": value} for name, value in {**env, proc.MARK: client.mark}.items()]
    return {"name": script.stem, "command": sys.executable, "args": [str(script)], "env": pairs}


def written(record: Path, word: str) -> None:
    """Wait until a server has written it down."""
    end = time.monotonic() + 10
    while not record.exists() or word not in record.read_text():
        assert time.monotonic() < end, f"never {word}"
        time.sleep(0.02)


def new(client: Client, cwd: Path, *servers: dict[str, Any]) -> str:
    return str(client.call("session/new", {"cwd": str(cwd), "mcpServers": list(servers)})["sessionId"])


def test_session_new_answers_at_once(client: Client, tmp_path: Path) -> None:
    """session/new does not wait for servers, nor for the import of what connects them; the first prompt does."""
    began = time.monotonic()
    session = new(client, tmp_path, stdio(client, CORPUS / "never_answers.py"), stdio(client, OWN / "rich.py"))
    assert time.monotonic() - began < 0.2
    assert "end_turn" == client.prompt(session, "rich_echo {}")
    assert 2.5 < time.monotonic() - began < 8
    assert "echo" in client.text(session)


def test_close_ends_the_servers(client: Client, tmp_path: Path) -> None:
    """session/close is answered when the session's servers are gone, and another session's servers stay."""
    first = new(client, tmp_path, stdio(client, CORPUS / "ignores_eof.py"))
    second = new(client, tmp_path, stdio(client, OWN / "rich.py"))
    assert "end_turn" == client.prompt(first, 'ignores_eof_echo {"text": "x"}')
    assert "end_turn" == client.prompt(second, "rich_echo {}")
    client.call("session/close", {"sessionId": first})
    scripts = " ".join(process.command for process in proc.marked(client.mark))
    assert "ignores_eof" not in scripts
    assert "rich" in scripts


def test_the_end_of_the_client_ends_the_servers(client: Client, tmp_path: Path) -> None:
    """At EOF the agent ends its servers, those too that ignore EOF and SIGTERM, and itself, in less than three seconds."""
    session = new(client, tmp_path, stdio(client, CORPUS / "ignores_eof.py"), stdio(client, OWN / "rich.py"))
    assert "end_turn" == client.prompt(session, "rich_child {}")
    client.close_stdin()
    assert 0 == client.wait_exit(3)
    proc.assert_none_left(client.mark, within=0.1)


def test_the_servers_of_a_killed_agent(client: Client, tmp_path: Path) -> None:
    """After kill -9 of the agent its servers are gone, those too that ignore EOF and SIGTERM."""
    session = new(client, tmp_path, stdio(client, CORPUS / "ignores_eof.py"), stdio(client, CORPUS / "never_answers.py"))
    assert "end_turn" == client.prompt(session, 'ignores_eof_echo {"text": "x"}')
    while len(proc.marked(client.mark)) < 3:  # never_answers is started beside it, and may come later
        time.sleep(0.02)
    client.kill()
    proc.assert_none_left(client.mark, within=20)


def test_a_cancelled_turn(client: Client, tmp_path: Path) -> None:
    """session/cancel reaches the server, the turn ends at once, and the next turn works."""
    record = tmp_path / "record"
    session = new(client, tmp_path, stdio(client, OWN / "rich.py", RECORD=str(record)))
    turn = client.start_prompt(session, "rich_slow {}")
    written(record, "slow")
    began = time.monotonic()
    client.notify("session/cancel", {"sessionId": session})
    assert "cancelled" == client.result(turn)["stopReason"]
    assert time.monotonic() - began < 1
    written(record, "stopped")
    assert "end_turn" == client.prompt(session, "rich_echo {}")


def test_no_value_is_shown(tmp_path: Path) -> None:
    """Values of env and headers are in no file of acpd's, no command line, no log, and not in what the client is sent."""
    home = tmp_path / "home"
    command = wrapping(OWN / "agent.py", "--standalone")
    with Client(command, home, env={"ACPD_LOG": "debug"}) as client:
        client.initialize(session={"notices": {}})
        env = {"API_KEY": SECRET, "OTHER": f"{SECRET}-other"}
        web = {"type": "http", "name": "web", "url": f"http://127.0.0.1:9/mcp?key={SECRET}"}
        header = {"headers": [{"name": "Authorization", "value": f"Bearer {SECRET}"}]}
        servers = [stdio(client, script, **env) for script in (CORPUS / "exits_at_once.py", OWN / "rich.py")]
        session = new(client, tmp_path, *servers, {**web, **header})
        for call in ("tools", "rich_echo {}", "rich_die {}", "rich_fail {}"):
            assert "end_turn" == client.prompt(session, call)
        assert "exits_at_once" in client.told(session)
        assert "web" in client.told(session)
        lines = b"".join(Path(f"/proc/{process.pid}/cmdline").read_bytes() for process in proc.marked(client.mark))
        assert b"rich" in lines
        assert SECRET.encode() not in lines
    assert not [line for line in client.lines if SECRET.encode() in line.raw]
    files = [path for path in below(home, "*") if path.is_file()]
    assert any("log.jsonl" in path.name for path in files)
    assert [] == [path for path in files if SECRET.encode() in path.read_bytes()]
    proc.assert_none_left(client.mark, within=3)


def test_acpd_ends_the_servers_of_a_killed_agent(tmp_path: Path) -> None:
    """Behind acpd the servers of an agent that was killed are gone too, and the session goes on with new ones."""
    command = wrapping(OWN / "agent.py", "--standalone")
    with Client(command, tmp_path / "home") as client:
        client.initialize(session={"notices": {}})
        session = new(client, tmp_path, stdio(client, CORPUS / "ignores_eof.py"))
        assert "end_turn" == client.prompt(session, 'ignores_eof_echo {"text": "x"}')
        (agent,) = [
            process for process in proc.marked(client.mark) if "agent.py" in process.command and "run" not in process.command
        ]
        (server,) = [process for process in proc.marked(client.mark) if "ignores_eof" in process.command]
        os.kill(agent.pid, 9)
        proc.assert_gone(server.pid, within=3)
        assert "end_turn" == client.prompt(session, 'ignores_eof_echo {"text": "y"}')
    proc.assert_none_left(client.mark, within=3)


def test_sessions_do_not_share_servers(client: Client, tmp_path: Path) -> None:
    """A session has the tools of its own servers and of no other's."""
    first = new(client, tmp_path, stdio(client, OWN / "rich.py"))
    second = new(client, tmp_path, stdio(client, CORPUS / "garbage_stdout.py"))
    for session in (first, second):
        assert "end_turn" == client.prompt(session, "tools")
    assert "rich_echo" in client.text(first)
    assert "garbage_stdout" not in client.text(first)
    assert "garbage_stdout_echo" == client.text(second)


def test_a_load_with_a_dead_server(client: Client, tmp_path: Path) -> None:
    """session/load with servers that are dead or silent answers at once, the servers of before end, and the turn works."""
    session = new(client, tmp_path, stdio(client, OWN / "rich.py"))
    assert "end_turn" == client.prompt(session, "rich_echo {}")
    dead = {"type": "http", "name": "dead", "url": "http://127.0.0.1:9/mcp", "headers": []}
    servers = [dead, stdio(client, CORPUS / "never_answers.py"), stdio(client, CORPUS / "garbage_stdout.py")]
    began = time.monotonic()
    client.call("session/load", {"sessionId": session, "cwd": str(tmp_path), "mcpServers": servers})
    assert time.monotonic() - began < 2
    assert "end_turn" == client.prompt(session, "tools")
    assert client.text(session).endswith("garbage_stdout_echo")
    assert "MCP server dead is not available" in client.told(session)
    assert "rich" not in " ".join(process.command for process in proc.marked(client.mark))
