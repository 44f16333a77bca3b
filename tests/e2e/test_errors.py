"""What goes wrong around acpd: each error names its object and the next step, and nothing is lost."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import commands, proc, store
from tests.support.client import Client, RpcError
from tests.support.faults import bound_by_rights, not_executable, small_disk
from tests.support.walk import contents

pytestmark = pytest.mark.e2e


@pytest.fixture
def mark() -> Iterator[str]:
    made = proc.new_mark()
    yield made
    left = proc.wait_none_left(made)
    proc.kill_marked(made)
    assert [] == left


def start(tmp: Path, mark: str, command: list[str] | None = None, **env: str) -> Client:
    """An initialized client of acpd around the good agent, store below tmp/home."""
    client = Client(command or commands.wrapping("good_agent"), tmp / "home", mark=mark, env=env)
    client.initialize(session={"notices": {}})
    return client


def complaint(tmp: Path, arguments: list[str], **env: str) -> str:
    """What acpd says when it is started so by an editor: stderr, and the error answers to initialize and session/new."""
    with Client(commands.acpd(*arguments), tmp / "stderr", env={"ACPD_HOME": str(tmp / "home"), **env}) as client:
        asked = [
            client.request("initialize", {"protocolVersion": 1, "clientCapabilities": {}}),
            client.request("session/new", {"cwd": str(tmp), "mcpServers": []}),
        ]
        client.wait_settled(asked)
        client.close_stdin()
        code = client.wait_exit()
    errors = [line.message["error"]["message"] for line in client.lines if "error" in line.message]
    assert code != 0 or errors, f"no error at all: {client.story()}"
    return "\n".join([client.stderr(), *errors])


def failing(client: Client, method: str, params: dict[str, Any]) -> RpcError:
    with pytest.raises(RpcError) as caught:
        client.call(method, params)
    return caught.value


def write_config(tmp: Path, text: str) -> Path:
    path = tmp / "home" / "config" / "acpd.toml"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return path


# Configuration


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("[storage\n", ["line 1"], id="no-toml"),
        pytest.param('[storage]\nbakend = "json"\n', ["bakend", "backend"], id="unknown-key"),
        pytest.param('[storage]\nsync = "sometimes"\n', ["storage.sync", "power", "process"], id="wrong-value"),
        pytest.param("[agents]\nstart_timeout = -1\n", ["agents.start_timeout", "seconds"], id="wrong-number"),
        pytest.param('[storrage]\npath = "/x"\n', ["storrage", "storage"], id="unknown-section"),
        pytest.param('[storage]\nbackend = "postgres"\n', ["postgres", "workspace"], id="unknown-backend"),
        pytest.param("[agents.x]\n", ["agents.x", "command"], id="agent-without-command"),
    ],
)
def test_a_bad_config_file_is_named_with_its_key(text: str, words: list[str], tmp_path: Path) -> None:
    """A config file that is wrong: the message names the file, the key and what is allowed."""
    path = write_config(tmp_path, text)
    said = complaint(tmp_path, [])
    for word in (str(path), *words):
        assert word in said
    assert text == path.read_text()


def test_a_bad_variable_is_named(tmp_path: Path) -> None:
    """A wrong ACPD_* variable is named with what it may be."""
    said = complaint(tmp_path, [], ACPD_STORAGE_SYNC="sometimes")
    assert "ACPD_STORAGE_SYNC" in said
    assert "power" in said


def test_a_config_file_that_was_asked_for_and_is_not_there_is_named(tmp_path: Path) -> None:
    """`--config FILE` without the file: the message names it."""
    missing = str(tmp_path / "nowhere.toml")
    assert missing in complaint(tmp_path, ["--config", missing])


# Agents


def test_an_unknown_agent_is_named_with_those_that_there_are(tmp_path: Path) -> None:
    """`--agent NAME` without such an agent: the message names it and the configured ones."""
    write_config(tmp_path, '[agents.mine]\ncommand = ["true"]\n')
    said = complaint(tmp_path, ["--agent", "yours"])
    assert "yours" in said
    assert "mine" in said


def test_a_command_that_is_not_found_says_which_path_was_searched(tmp_path: Path, mark: str) -> None:
    """The answer to session/new names the command and the PATH that was searched."""
    with start(tmp_path, mark, commands.acpd("run", "--", "no-such-agent-4711"), PATH="/usr/bin:/nowhere-4711") as client:
        error = failing(client, "session/new", {"cwd": str(tmp_path), "mcpServers": []})
        assert "no-such-agent-4711" in error.message
        assert "/nowhere-4711" in error.message
        assert [] == client.call("session/list", {})["sessions"]
    assert {} == store.logs(tmp_path)


def test_a_command_that_may_not_be_run_is_named(tmp_path: Path, mark: str) -> None:
    """A file without the right to be executed: the message names it and says so."""
    path = not_executable(tmp_path / "agent.sh")
    with start(tmp_path, mark, commands.acpd("run", "--", str(path))) as client:
        error = failing(client, "session/new", {"cwd": str(tmp_path), "mcpServers": []})
        assert str(path) in error.message
        assert "execut" in error.message.lower() or "permission" in error.message.lower()


def test_an_agent_that_is_gone_does_not_keep_a_session_from_being_loaded(tmp_path: Path, mark: str) -> None:
    """Load replays all; the user is told; a prompt names the missing program; when it is back, the session goes on."""
    agent = tmp_path / "agent.py"
    shutil.copyfile(commands.AGENTS / "good_agent.py", agent)
    agent.chmod(0o755)
    command = commands.acpd("run", "--name", "mine", "--", str(agent))
    with start(tmp_path, mark, command) as client:
        session = client.new(tmp_path)
        assert "end_turn" == client.prompt(session, "say kept")
    hidden = agent.rename(tmp_path / "elsewhere.py")
    with start(tmp_path, mark, command) as client:
        client.load(session, tmp_path)
        assert "say kept" == client.text(session, "user_message_chunk")
        assert "kept" in client.text(session)
        client.wait("word of the missing agent", lambda: str(agent) in client.told(session))
        error = failing(client, "session/prompt", {"sessionId": session, "prompt": [{"type": "text", "text": "say more"}]})
        assert str(agent) in error.message
        hidden.rename(agent)
        assert "end_turn" == client.prompt(session, "say back")
        assert client.text(session).endswith("back")
    assert ["say kept", "say more", "say back"] == prompts_of(store.check_store(tmp_path / "home")[session])


def prompts_of(log: store.Log) -> list[str]:
    return [entry["prompt"][0]["text"] for entry in log.of("prompt")]


# Folders


def test_a_relative_cwd_is_refused(tmp_path: Path, mark: str) -> None:
    """session/new with a relative cwd: -32602 that names it, and nothing is stored."""
    with start(tmp_path, mark) as client:
        error = failing(client, "session/new", {"cwd": "some/where", "mcpServers": []})
        assert -32602 == error.code
        assert "cwd" in error.message
        assert "absolute" in error.message
    assert {} == store.logs(tmp_path)


def test_a_session_whose_cwd_is_gone_is_replayed(tmp_path: Path, mark: str) -> None:
    """Load replays all and says which folder is missing; the prompt's answer says it too; made anew, the session goes on."""
    cwd = tmp_path / "project"
    cwd.mkdir()
    with start(tmp_path, mark) as client:
        session = client.new(cwd)
        assert "end_turn" == client.prompt(session, "say kept")
    cwd.rmdir()
    with start(tmp_path, mark) as client:
        client.load(session, cwd)
        assert "kept" in client.text(session)
        client.wait("word of the missing folder", lambda: str(cwd) in client.told(session))
        ident = client.start_prompt(session, "say more")
        assert str(cwd) in client.answer(ident).message["error"]["message"]
        cwd.mkdir()
        assert "end_turn" == client.prompt(session, "say back")
    assert {session} == set(store.check_store(tmp_path / "home"))


def test_a_new_session_in_a_folder_that_is_not_there_is_refused(tmp_path: Path, mark: str) -> None:
    """session/new in a missing folder names the folder; acpd goes on."""
    with start(tmp_path, mark) as client:
        error = failing(client, "session/new", {"cwd": str(tmp_path / "nowhere"), "mcpServers": []})
        assert str(tmp_path / "nowhere") in error.message
        assert "end_turn" == client.prompt(client.new(tmp_path), "say fine")


def test_an_acpd_whose_own_folder_was_removed_works(tmp_path: Path, mark: str) -> None:
    """The folder that an editor started acpd in is gone: a session in another folder works."""
    gone = tmp_path / "gone"
    gone.mkdir()
    command = ["sh", "-c", 'rmdir "$PWD" && exec "$@"', "sh", *commands.wrapping("good_agent")]
    with Client(command, tmp_path / "home", mark=mark, cwd=gone) as client:
        client.initialize()
        assert not gone.exists()
        assert "end_turn" == client.prompt(client.new(tmp_path), "say fine")


# The store


def test_a_store_that_may_not_be_written_is_named_with_the_next_step(tmp_path: Path, mark: str) -> None:
    """Without the right to write: session/new names the folder and what to check; with it, the same acpd works."""
    data = tmp_path / "mine"
    data.mkdir(mode=0o500)
    command = bound_by_rights(commands.wrapping("good_agent"))
    with start(tmp_path, mark, command, ACPD_STORAGE_PATH=str(data / "store")) as client:
        error = failing(client, "session/new", {"cwd": str(tmp_path), "mcpServers": []})
        assert str(data) in error.message
        assert "Permission denied" in error.message
        assert "rights" in error.message
        data.chmod(0o700)
        assert "end_turn" == client.prompt(client.new(tmp_path), "say fine")


def test_a_log_without_the_right_to_read_it_harms_only_its_session(tmp_path: Path, mark: str) -> None:
    """Loading it is an error that names it and what to check; others work; with the right back nothing is lost."""
    command = bound_by_rights(commands.wrapping("good_agent"))
    with start(tmp_path, mark, command) as client:
        one, two = client.new(tmp_path), client.new(tmp_path)
        for session in (one, two):
            assert "end_turn" == client.prompt(session, "say kept")
    path = store.log(tmp_path / "home", one).path
    path.chmod(0)
    with start(tmp_path, mark, command) as client:
        error = failing(client, "session/load", {"sessionId": one, "cwd": str(tmp_path), "mcpServers": []})
        for word in (one, "Permission denied", "rights"):
            assert word in error.message
        client.load(two, tmp_path)
        assert "end_turn" == client.prompt(two, "say more")
        path.chmod(0o600)
        client.load(one, tmp_path)
        assert "kept" in client.text(one)


def test_a_config_file_without_the_right_to_read_it_is_named(tmp_path: Path) -> None:
    """The message names the file and the cause."""
    path = write_config(tmp_path, "")
    path.chmod(0)
    command = bound_by_rights(commands.acpd())
    with Client(command, tmp_path / "stderr", env={"ACPD_HOME": str(tmp_path / "home")}) as client:
        client.close_stdin()
        assert 0 != client.wait_exit()
    assert str(path) in client.stderr()
    assert "Permission denied" in client.stderr()


def test_a_store_that_is_no_folder_is_named(tmp_path: Path) -> None:
    """A file stands where the store should be: the message names it, and the file is untouched."""
    data = tmp_path / "home" / "data"
    data.parent.mkdir()
    data.write_text("mine")
    said = complaint(tmp_path, ["run", "--", sys.executable, str(commands.AGENTS / "good_agent.py")])
    assert str(data) in said
    assert "mine" == data.read_text()


def test_a_store_below_a_file_is_named(tmp_path: Path) -> None:
    """The configured path leads through a file: the message names the path."""
    (tmp_path / "file").write_text("mine")
    path = tmp_path / "file" / "store"
    said = complaint(
        tmp_path, ["run", "--", sys.executable, str(commands.AGENTS / "good_agent.py")], ACPD_STORAGE_PATH=str(path)
    )
    assert str(path) in said or str(path.parent) in said
    assert "[storage] path" in said
    assert "mine" == (tmp_path / "file").read_text()


def test_a_log_that_cannot_be_read_harms_only_its_session(tmp_path: Path, mark: str) -> None:
    """A folder in the place of a log: loading that session is an error that names it, the other one works."""
    with start(tmp_path, mark) as client:
        one, two = client.new(tmp_path), client.new(tmp_path)
        for session in (one, two):
            assert "end_turn" == client.prompt(session, "say kept")
    path = store.log(tmp_path / "home", one).path
    path.rename(path.with_suffix(".aside"))
    path.mkdir()
    with start(tmp_path, mark) as client:
        error = failing(client, "session/load", {"sessionId": one, "cwd": str(tmp_path), "mcpServers": []})
        assert one in error.message
        client.load(two, tmp_path)
        assert "end_turn" == client.prompt(two, "say more")
    path.rmdir()
    path.with_suffix(".aside").rename(path)
    with start(tmp_path, mark) as client:
        client.load(one, tmp_path)
        assert "kept" in client.text(one)


def test_a_pipe_in_the_place_of_a_log_is_not_waited_for(tmp_path: Path, mark: str) -> None:
    """A load of it, and `acpd show`, are told that it is no file."""
    with start(tmp_path, mark) as client:
        session = client.new(tmp_path)
        assert "end_turn" == client.prompt(session, "say kept")
    path = store.log(tmp_path / "home", session).path
    path.unlink()
    os.mkfifo(path)
    with start(tmp_path, mark) as client:
        error = failing(client, "session/load", {"sessionId": session, "cwd": str(tmp_path), "mcpServers": []})
        assert session in error.message
        assert "no file" in error.message
    shown = subprocess.run(
        commands.acpd("show", session), env={**os.environ, "ACPD_HOME": str(tmp_path / "home")}, capture_output=True, timeout=30
    )
    assert 1 == shown.returncode
    assert b"no file" in shown.stderr


def test_a_session_that_is_open_elsewhere_says_where(tmp_path: Path, mark: str) -> None:
    """A second acpd is told the pid that has the session open; the first is undisturbed; afterwards it can be had."""
    with start(tmp_path, mark) as first:
        session = first.new(tmp_path)
        assert "end_turn" == first.prompt(session, "say one")
        with start(tmp_path, mark) as second:
            for method in ("session/load", "session/resume"):
                error = failing(second, method, {"sessionId": session, "cwd": str(tmp_path), "mcpServers": []})
                assert str(first.pid) in error.message
                assert session in error.message
            assert "end_turn" == first.prompt(session, "say two")
            first.call("session/close", {"sessionId": session})
            second.load(session, tmp_path)
            assert "onetwo" == second.text(session)
            assert "end_turn" == second.prompt(session, "say three")
    assert ["say one", "say two", "say three"] == prompts_of(store.check_store(tmp_path / "home")[session])


def test_a_full_disk_stops_a_turn_until_there_is_space(tmp_path: Path, mark: str) -> None:
    """No space in mid-turn: nothing unwritten is sent; with space again the turn goes on, nothing lost, nothing doubled."""
    with small_disk(tmp_path / "disk") as disk:
        data = str(disk.path / "data")
        with start(tmp_path, mark, ACPD_STORAGE_PATH=data) as client:
            session = client.new(tmp_path)
            ident = client.start_prompt(session, "slow 120 10")
            client.wait_update("agent_message_chunk", 10)
            disk.fill(client.pid)
            assert not client.wait_end(within=2.5)  # longer than the turn would last, and than one retry
            assert [] == client.answers(ident)
            seen = max(line.seq or 0 for line in client.updates(session=session))
            assert seen <= len(store.log(disk.path, session, torn=True).entries), "a client saw what is not stored"
            disk.free(client.pid)
            assert {"stopReason": "end_turn"} == client.result(ident)
            assert "".join(f"c{n} " for n in range(120)) == client.text(session)
            assert "end_turn" == client.prompt(session, "say after")
        store.check_store(disk.path)
        with start(tmp_path, mark, ACPD_STORAGE_PATH=data) as client:
            client.load(session, tmp_path)
            assert "".join(f"c{n} " for n in range(120)) + "after" == client.text(session)


def test_a_disk_that_stays_full_ends_the_turn_with_the_cause(tmp_path: Path, mark: str) -> None:
    """After 30 s without space the prompt is answered -32603 with the cause; with space again the session works."""
    with small_disk(tmp_path / "disk") as disk:
        with start(tmp_path, mark, ACPD_STORAGE_PATH=str(disk.path / "data")) as client:
            session = client.new(tmp_path)
            ident = client.start_prompt(session, "slow 500 10")
            client.wait_update("agent_message_chunk", 10)
            disk.fill(client.pid)
            error = client.answer(ident, within=45).message["error"]
            assert -32603 == error["code"]
            assert "space" in error["message"] or "large" in error["message"]
            disk.free(client.pid)
            assert "end_turn" == client.prompt(session, "say after")
        log = store.check_store(disk.path)[session]
        assert 2 == len(log.of("prompt"))


def test_a_new_session_on_a_full_disk_is_an_error(tmp_path: Path, mark: str) -> None:
    """session/new without space: an error that names the cause; with space again it works; no half session is listed."""
    with small_disk(tmp_path / "disk") as disk:
        with start(tmp_path, mark, ACPD_STORAGE_PATH=str(disk.path / "data")) as client:
            first = client.new(tmp_path)
            assert "end_turn" == client.prompt(first, "say one")
            disk.fill(client.pid)
            answer = client.answer(client.request("session/new", {"cwd": str(tmp_path), "mcpServers": []}), within=60).message
            assert "space" in answer["error"]["message"] or "large" in answer["error"]["message"]
            disk.free(client.pid)
            assert "end_turn" == client.prompt(client.new(tmp_path), "say two")
            assert 2 == len(client.call("session/list", {})["sessions"])
        store.check_store(disk.path)


# Secrets


def test_secrets_of_servers_and_environment_are_stored_nowhere(tmp_path: Path, mark: str) -> None:
    """Values of MCP `env` and headers, and of the environment, stand in no file of acpd's and in no answer."""
    servers = [
        {"name": "one", "command": "/bin/true", "args": [], "env": [{"name": "TOKEN", "value": "canary-env-1"}]},
        {"type": "http", "name": "two", "url": "http://127.0.0.1:9/", "headers": [{"name": "A", "value": "canary-head-2"}]},
    ]
    with start(
        tmp_path,
        mark,
        commands.acpd("run", "--", sys.executable, str(commands.AGENTS / "good_agent.py"), "--api-key", "canary-arg-3"),
        MY_TOKEN="canary-our-4",
    ) as client:
        made = client.answer(client.request("session/new", {"cwd": str(tmp_path), "mcpServers": servers[:1]})).message
        client.answer(client.request("session/new", {"cwd": str(tmp_path), "mcpServers": servers}))
        client.prompt(made["result"]["sessionId"], "say hello")
        session = made["result"]["sessionId"]
        client.call("session/close", {"sessionId": session})
        client.call("session/load", {"sessionId": session, "cwd": str(tmp_path), "mcpServers": servers[:1]})
    said = b"".join(line.raw for line in client.lines)
    files = contents(tmp_path / "home")
    for canary in (b"canary-env-1", b"canary-head-2", b"canary-arg-3", b"canary-our-4"):
        assert canary not in said
        assert [] == [str(path) for path, text in files.items() if canary in text]
