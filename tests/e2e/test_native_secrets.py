"""Keys of models, values of MCP servers' environment and headers: used, and found nowhere."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from tests.support import daemons, proc
from tests.support.client import Client, Json, RpcError
from tests.support.commands import acpd
from tests.support.daemons import BY_DAEMON
from tests.support.models import ModelServer, http, model_server
from tests.support.walk import contents

pytestmark = pytest.mark.e2e

KEY = "canary-key-of-the-model"
TOKEN = "canary-token-of-a-server"
HEADER = "canary-header-of-a-server"
OTHER = "canary-of-somebody-else"
CANARIES = (KEY, TOKEN, HEADER, OTHER)
TALKER = Path(__file__).parents[1] / "support" / "mcp_talker.py"


class _Echo(BaseHTTPRequestHandler):
    """An MCP server behind a wrong login that repeats in its answer what it was sent."""

    seen: ClassVar[list[str]] = []

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  as it is called there
        return

    def _refuse(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.seen.append(str(self.headers))
        body = f"no entry with {self.headers}".encode()
        self.send_response(401, f"no entry with {self.headers.get('X-Login', '')}")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = do_DELETE = _refuse


@pytest.fixture
def refusing() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Echo)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    _Echo.seen.clear()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def model() -> Iterator[ModelServer]:
    with model_server() as made:
        yield made


class Stage:
    """A store, its daemon, and clients that prompt acpd's own agent."""

    def __init__(self, tmp: Path, model: ModelServer, refusing: str, *, stored: bool) -> None:
        """`stored`: the key is in the file of keys, not in a variable."""
        self.home, self.cwd, self.mark = tmp / "home", tmp / "work", proc.new_mark()
        self.cwd.mkdir()
        config = self.home / "config"
        config.mkdir(parents=True)
        table = f'model = "openai:fake-model"\nbase_url = "{model.url}/v1"\napi_key_env = "MODEL_KEY"\n'
        (config / "acpd.toml").write_text(f'[log]\nlevel = "debug"\n[agents.native]\n{table}')
        self.env = {**BY_DAEMON, "OTHER_SECRET": OTHER}
        if stored:
            keys = config / "keys.toml"
            keys.write_text(f'MODEL_KEY = "{KEY}"\n')
            keys.chmod(0o600)
        else:
            self.env["MODEL_KEY"] = KEY
        header = [{"name": "X-Login", "value": HEADER}]
        self.servers: list[Json] = [
            {
                "name": "talker",
                "command": sys.executable,
                "args": [str(TALKER)],
                "env": [{"name": "MCP_TOKEN", "value": TOKEN}],
            },
            {"type": "http", "name": "web", "url": f"{refusing}/mcp", "headers": header},
            {"type": "sse", "name": "old", "url": f"{refusing}/sse", "headers": header},
        ]
        self.said: list[str] = []

    def client(self) -> Client:
        client = Client(
            acpd("--agent", "native"),
            self.home.parent / "client",
            mark=self.mark,
            env={**self.env, "ACPD_HOME": str(self.home)},
        )
        client.initialize(auth={"terminal": True})
        return client

    def finish(self, client: Client) -> None:
        with client:
            pass
        self.said.append(client.stderr() + b"".join(line.raw for line in client.lines).decode())

    def read(self, *words: str) -> None:
        """What a command of acpd shows."""
        env = {**self.env, "ACPD_HOME": str(self.home), proc.MARK: self.mark, "PATH": "/usr/bin:/bin"}
        ran = subprocess.run(acpd(*words), env=env, cwd=self.cwd, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        assert 0 == ran.returncode, ran.stderr
        self.said.append(ran.stdout + ran.stderr)


def encoded() -> list[bytes]:
    """Every canary, as it is and in base64 at each of its offsets."""
    found = [canary.encode() for canary in CANARIES]
    for canary in CANARIES:
        found += [base64.b64encode(canary.encode()[skip:])[:-4] for skip in range(3)]
    return found


def command_lines() -> bytes:
    """Of every process there is, whoever started it."""
    return b"\n".join(path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists())


@pytest.mark.parametrize("stored", [False, True], ids=["variable", "file"])
def test_secrets_are_used_and_found_nowhere(tmp_path: Path, model: ModelServer, refusing: str, stored: bool) -> None:
    """A whole session by way of the daemon, with failures that repeat what they were sent, a kill and a load.

    Neither the store, the logs, what clients and commands were shown nor any process's command line has a key or a value.
    """
    stage = Stage(tmp_path, model, refusing, stored=stored)
    try:
        session, lines = _converse(stage, model)
        lines += _go_on(stage, session)
        for words in (("show", session), ("show", "--json", session), ("config",), ("status",), ("logs",), ("ls", "--all")):
            stage.read(*words)
        daemons.stop(stage.mark, stage.home, killed=True)
    finally:
        proc.kill_marked(stage.mark)
    assert f"Bearer {KEY}" == model.headers[0]["authorization"], "the key was not used"
    assert any(HEADER in seen for seen in _Echo.seen), "the header was not used"
    assert f"a token of {len(TOKEN)} characters" in json.dumps(model.bodies), "the environment was not used"
    kept = {path: data for path, data in contents(stage.home).items() if path.name != "keys.toml"}
    assert len(kept) > 5
    for canary in encoded():
        assert [] == [str(path) for path, data in kept.items() if canary in data], canary
        assert canary not in lines
        assert canary.decode() not in "".join(stage.said)


def _converse(stage: Stage, model: ModelServer) -> tuple[str, bytes]:
    """Tools, permissions, an error of the provider that repeats the key; then the daemon is killed in a turn."""
    client = stage.client()
    session = str(client.call("session/new", {"cwd": str(stage.cwd), "mcpServers": stage.servers})["sessionId"])
    calls = '[[tool talker_length {}]][[tool talker_fail {}]][[tool write {"path": "made.txt", "content": "x"}]]'
    assert "end_turn" == client.prompt(session, f'{calls}[[tool run {{"command": "echo made"}}]]', within=60)
    assert (stage.cwd / "made.txt").exists()
    for status in (401, 400, 404):
        model.canned = [http(status, {"error": {"message": f"the key {KEY} is bad", "type": "x"}})]
        with pytest.raises(RpcError):
            client.prompt(session, "hello")
    assert "talker" in json.dumps([line.message for line in client.lines])
    before = len(client.updates("agent_message_chunk"))
    client.start_prompt(session, "[[slow 200 50]]")
    client.wait_update("agent_message_chunk", before + 2)
    lines = command_lines()
    assert b"mcp_talker" in lines
    daemons.kill(stage.mark)
    stage.finish(client)
    return session, lines


def _go_on(stage: Stage, session: str) -> bytes:
    client = stage.client()
    client.call("session/load", {"sessionId": session, "cwd": str(stage.cwd), "mcpServers": stage.servers})
    assert "end_turn" == client.prompt(session, "[[tool talker_length {}]]", within=60)
    lines = command_lines()
    stage.finish(client)
    return lines
