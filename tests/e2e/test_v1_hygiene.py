"""stdout carries protocol only, secrets stand nowhere, no process is left behind."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.support import commands, proc
from tests.support.client import Json
from tests.support.scripted import AGENT, EVERYTHING, Stage, failing, prompt_params, until
from tests.support.walk import below, contents

pytestmark = pytest.mark.e2e

NOISY = '''
import os, subprocess, sys, warnings


class Noise:
    """Prints whenever one of acpd's libraries is imported, in every way that there is."""

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("uvloop", "structlog", "acpd_backends", "sqlite3"):
            print("NOISE by print", name)
            sys.stdout.write("NOISE by stdout\\n")
            sys.__stdout__.flush()
            os.write(1, b"NOISE by fd 1\\n")
            subprocess.run(["echo", "NOISE by a child"])
            warnings.warn("NOISE by a warning")
        return None


sys.meta_path.insert(0, Noise())
'''


def test_what_a_library_prints_goes_to_stderr(play: Stage) -> None:
    """print, sys.stdout, file descriptor 1, a child process: none of it reaches the client."""
    site = play.tmp / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(NOISY)
    client = play.start("--noise", env={"PYTHONPATH": str(site), "PYTHONWARNINGS": "always"}, flags=("--log-level", "debug"))
    session = client.new(play.cwd)
    assert "end_turn" == client.prompt(session, "noise banner\nstderr words\nsay x")
    client.load(session, play.cwd)
    assert "NOISE by print uvloop" in client.stderr()
    assert "NOISE by fd 1" in client.stderr()
    assert "NOISE by a child" in client.stderr()
    assert b"NOISE" not in b"".join(line.raw for line in client.lines)
    play.finish(client)


CANARIES = {
    "flag": ["--api-key", "canary-flag"],
    "joined": ["--auth-token=canary-joined"],
    "variable": ["API_KEY=canary-variable"],
    "header": ["Authorization: Bearer canary-header"],
}


@pytest.mark.parametrize("level", ["info", "debug"])
def test_no_secret_stands_in_a_file_or_on_stderr(level: str, play: Stage) -> None:
    """Arguments, variables, headers and server environments: not in ACPD_HOME, not in the log, not in an error, also not
    when the agent fails to start or dies.
    """
    home = play.home / "config"
    home.mkdir(parents=True)
    show = "import runpy, sys; sys.argv[:] = [sys.argv[1], *sys.argv[7:]]; runpy.run_path(sys.argv[0], run_name='__main__')"
    words = [word for part in CANARIES.values() for word in part]
    agent = [sys.executable, "-c", show, str(AGENT), *words, "--wire", str(play.tmp / "w")]
    (home / "acpd.toml").write_text(f"[agents.mine]\ncommand = {json.dumps(agent)}\nenv = {{ TOKEN = 'canary-config' }}\n")
    env = {"OPENAI_API_KEY": "canary-environment", "PYTHONPATH": str(AGENT.parents[2])}
    servers: list[Json] = [
        {"name": "s", "command": "/bin/x", "args": [], "env": [{"name": "K", "value": "canary-server"}]},
        {"type": "http", "name": "h", "url": "https://x.example/", "headers": [{"name": "A", "value": "canary-remote"}]},
    ]
    bad: Json = {"name": "s", "command": "/bin/x", "args": [], "env": [{"name": "K", "value": {"v": "canary-bad"}}]}
    client = play.start(command=commands.acpd("--agent", "mine", "--log-level", level), env=env)
    session = client.call("session/new", {"cwd": str(play.cwd), "mcpServers": servers})["sessionId"]
    client.prompt(session, "say x")
    errors = [failing(client, "session/new", {"cwd": str(play.cwd), "mcpServers": [bad]})]
    errors.append(failing(client, "session/prompt", prompt_params(session, "die 3")))
    client.prompt(session, "say y")
    play.finish(client)
    (home / "acpd.toml").write_text(f"[agents.mine]\ncommand = {json.dumps(['/nowhere/agent', *words])}\n")
    again = play.start(command=commands.acpd("--agent", "mine", "--log-level", level), env=env)
    errors.append(failing(again, "session/new", {"cwd": str(play.cwd), "mcpServers": servers}))
    again.load(session, play.cwd)
    errors.append(failing(again, "session/prompt", prompt_params(session, "say z")))
    play.finish(again)
    (home / "acpd.toml").unlink()
    said = "".join(error.message + json.dumps(error.data) for error in errors)
    said += client.stderr() + again.stderr() + b"".join(line.raw for line in (*client.lines, *again.lines)).decode()
    assert "canary" not in said
    assert [] == [str(path) for path, held in contents(play.home).items() if b"canary" in held]


def test_files_are_the_users_alone(play: Stage) -> None:
    """Folders 0700, files 0600, whatever the umask."""
    before = os.umask(0)
    try:
        client = play.start()
    finally:
        os.umask(before)
    session = client.new(play.cwd)
    client.prompt(session, f'say x\nimage {100_000}\nstate n {{"a":1}}')
    play.finish(client)
    data = [play.home / "data", *below(play.home / "data"), *below(play.home / "run")]
    open_ones = {str(path): oct(path.stat().st_mode) for path in data if path.stat().st_mode & 0o077}
    assert {} == open_ones


def wrapped(play: Stage) -> list[str]:
    """The scriptable agent behind a shell that has a child of its own, as npx and uvx are."""
    script = 'sleep 1000 & "$0" "$@"; exit $?'
    agent = [sys.executable, str(AGENT), "--wire", str(play.wire), "--state", str(play.state)]
    return commands.acpd("run", "--name", "wrapped", "--", "/bin/sh", "-c", script, *agent)


@pytest.mark.parametrize("end", ["eof", "SIGTERM", "SIGINT", "close", "delete"])
@pytest.mark.parametrize("turn", ["idle", "hang", "deaf\nhang"], ids=["idle", "turn", "deaf"])
def test_no_process_of_an_agent_is_left(end: str, turn: str, play: Stage) -> None:
    """Wrapper, agent, grandchild and what a tool left in the group: all end with acpd, or with their session."""
    client = play.start(command=wrapped(play), env={"ACPD_AGENTS_STOP_GRACE": "0.3", "ACPD_AGENTS_CANCEL_TIMEOUT": "0.3"})
    session = client.new(play.cwd)
    client.prompt(session, "child 1000")
    if turn != "idle":
        client.start_prompt(session, f"say in\n{turn}")
        client.wait("in", lambda: client.text(session).endswith("in"))
    theirs = {process.pid for process in proc.marked(play.mark)} - {client.pid}
    assert 4 <= len(theirs), "sh, sleep, agent, child"
    if end in ("close", "delete"):  # what asks a new agent to delete its own session may leave that one waiting for work
        client.call(f"session/{end}", {"sessionId": session})
        until("their end", lambda: not theirs & {process.pid for process in proc.marked(play.mark)}, within=5)
    if end.startswith("SIG"):
        client.process.send_signal(getattr(signal, end))
        assert 0 == client.wait_exit()
    else:
        client.close_stdin()
        assert 0 == client.wait_exit()
    proc.assert_none_left(play.mark, within=5)


def test_what_a_killed_acpd_left_is_ended_by_the_next(play: Stage) -> None:
    """kill -9: the next start ends wrapper, agent and grandchild, also for another folder and another agent."""
    client = play.start(command=wrapped(play))
    session = client.new(play.cwd)
    client.prompt(session, "deaf\nchild 1000")
    client.start_prompt(session, "deaf\nhang")
    left = {process.pid for process in proc.marked(play.mark)} - {client.pid}
    os.kill(next(pid for pid in left if "agent.py" in Path(f"/proc/{pid}/cmdline").read_text()), signal.SIGSTOP)
    client.kill()
    other = play.tmp / "other"
    other.mkdir()
    client = play.start(command=commands.acpd("run", "--", sys.executable, str(AGENT)), capabilities=EVERYTHING)
    client.new(other)
    for pid in left:
        proc.assert_gone(pid, within=5)
    play.finish(client)


def test_twenty_loads_make_one_agent(play: Stage) -> None:
    """Repeated and simultaneous loads of one session: one process, and descriptors do not pile up."""
    client = play.start()
    session = client.new(play.cwd)
    client.prompt(session, "say x")
    play.finish(client)
    client = play.start()
    params = {"sessionId": session, "cwd": str(play.cwd), "mcpServers": []}
    idents = [client.request("session/load", params) for _ in range(20)]
    client.wait_settled(idents)
    assert all("result" in client.answer(ident).message for ident in idents)
    client.prompt(session, "say y")
    assert 2 == len(proc.marked(play.mark))
    before = proc.fds(client.pid)
    for _ in range(10):
        client.load(session, play.cwd)
    assert proc.fds(client.pid) <= before + 2
    play.finish(client)


def test_opening_and_closing_often_leaks_nothing(play: Stage) -> None:
    """Descriptors and processes after thirty sessions made, prompted and closed are those after three."""
    client = play.start("--no-list")
    counts = []
    for number in range(30):
        session = client.new(play.cwd)
        client.prompt(session, "say x")
        client.call("session/close", {"sessionId": session})
        if number in (2, 29):
            client.call("session/list", {})
            until("the agents' end", lambda: len(proc.marked(play.mark)) <= 2)
            counts.append(proc.fds(client.pid))
    assert counts[1] <= counts[0] + 2, counts
    assert 30 == len(client.call("session/list", {})["sessions"])
    play.finish(client)
