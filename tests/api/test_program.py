"""Agents as programs: those of docs/agents-in-python.md, and how a program begins and ends."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import proc
from tests.support.paths import ROOT
from tests.support.plain_editor import PATIENCE, Json, PlainEditor, editors

EXAMPLES = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "agents-in-python.md").read_text(), re.DOTALL)
COUNTER, FINDER, WRITER, LINES, RUNNER, GREETER, CALLER = EXAMPLES
Launch = Callable[[str], PlainEditor]


@pytest.fixture
def launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Launch]:
    """Start this program, with stderr in the file `stderr`."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    with editors() as start:

        def begin(source: str) -> PlainEditor:
            (tmp_path / "agent.py").write_text(source)
            return start(
                ["sh", "-c", 'exec "$0" -P "$1" 2> "$2"', sys.executable, str(tmp_path / "agent.py"), str(tmp_path / "stderr")]
            )

        yield begin


def session(editor: PlainEditor, cwd: Path, capabilities: Json | None = None) -> str:
    editor.initialize(capabilities or {})
    editor.answers["_acpd/state"] = lambda _: {"result": {}}
    editor.answers["session/request_permission"] = lambda _: {"result": {"outcome": {"outcome": "selected", "optionId": "yes"}}}
    name: str = editor.call("session/new", {"cwd": str(cwd), "mcpServers": []})["result"]["sessionId"]
    return name


def said(editor: PlainEditor, name: str, text: str) -> str:
    return "".join(editor.says(name, text))


def test_a_call_without_an_editor(tmp_path: Path) -> None:
    """The last example calls an agent for two users, in the store of acpd's configuration."""
    (tmp_path / "agent.py").write_text(CALLER)
    env = {**os.environ, "PYTHONPATH": str(ROOT), "ACPD_HOME": str(tmp_path / "home")}
    for counts in ((1, 1, 2), (3, 2, 4)):
        ran = subprocess.run([sys.executable, "-P", str(tmp_path / "agent.py")], env=env, capture_output=True, text=True)
        assert ("", [f"alice: {counts[0]}", f"bob: {counts[1]}", f"alice: {counts[2]}"]) == (
            ran.stderr,
            ran.stdout.splitlines(),
        )


def test_the_twenty_lines(launch: Launch, tmp_path: Path) -> None:
    """The first example is a whole agent of twenty lines: a thought, a tool call, words, state over a restart."""
    assert 20 >= len([line for line in COUNTER.splitlines() if line.strip()])
    kept: Json = {}

    def keep(params: Json) -> Json:
        kept[params["name"]] = params["value"]
        return {"result": {}}

    editor = launch(COUNTER)
    assert {"name": "counter", "version": "1"} == editor.initialize({})["agentInfo"]
    name = session(editor, tmp_path)
    editor.answers["_acpd/state"] = keep
    assert "That were 3 words, in turn 1. " == said(editor, name, "one two three")
    assert "This is turn 1." == editor.kinds("agent_thought_chunk")[0]["content"]["text"]
    (done,) = editor.kinds("tool_call_update")
    assert ("completed", {"words": 3}) == (done["status"], done["rawOutput"])
    assert 0 == editor.close()
    again = launch(COUNTER)
    again.initialize({})
    again.answers["_acpd/state"] = keep
    again.call("session/load", {"sessionId": name, "cwd": "/tmp", "mcpServers": [], "_meta": {"acpd.dev/state": kept}})
    assert "That were 1 words, in turn 2. " == said(again, name, "one")


def test_the_finding_example(launch: Launch, tmp_path: Path) -> None:
    """It asks a client that has earlier sessions, and says nothing to another."""
    editor = launch(FINDER)
    name = session(editor, tmp_path)
    assert not said(editor, name, "port")
    editor.initialize({"_meta": {"acpd.dev/tools": ["search"]}})
    editor.answers["_acpd/search"] = lambda params: {"result": {"text": f"found {params['arguments']['query']}"}}
    name = editor.new()
    assert "found port" == said(editor, name, "port")


def test_the_permission_example(launch: Launch, tmp_path: Path) -> None:
    """It writes what it was allowed to, and nothing else."""
    editor = launch(WRITER)
    name = session(editor, tmp_path)
    assert "Written." == said(editor, name, "a note")
    assert "a note" == (tmp_path / "notes.txt").read_text()
    assert [True] == ["content" in update for update in editor.kinds("tool_call_update") if update.get("content")]
    editor.answers["session/request_permission"] = lambda _: {"result": {"outcome": {"outcome": "selected", "optionId": "no"}}}
    assert "I wrote nothing." == said(editor, name, "another")
    assert "failed" == editor.kinds("tool_call_update")[-1]["status"]
    assert "a note" == (tmp_path / "notes.txt").read_text()


def test_the_file_example(launch: Launch, tmp_path: Path) -> None:
    """It reads what is there, and says why it cannot read the rest."""
    (tmp_path / "a").write_text("1\n2\n")
    editor = launch(LINES)
    text = said(editor, session(editor, tmp_path), "a ../b c")
    assert text.startswith("a has 2 lines.\n")
    assert "outside the folders of the session" in text
    assert "no such file" in text


def test_the_command_example(launch: Launch, tmp_path: Path) -> None:
    """It runs a line of shell in the session's folder and shows what it said."""
    editor = launch(RUNNER)
    assert f"{len(str(tmp_path)) + 1} characters, exit code 3" == said(editor, session(editor, tmp_path), "pwd; exit 3")
    shown = [update["content"][0]["content"]["text"] for update in editor.kinds("tool_call_update") if "content" in update]
    assert [f"{tmp_path}\n"] == shown


def test_a_permission_of_the_command_example_is_for_one_line(launch: Launch, tmp_path: Path) -> None:
    """One line is always allowed then, and none that only begins like it; without a line nothing is asked."""
    editor = launch(RUNNER)
    name = session(editor, tmp_path)
    asked: list[Json] = []

    def always(params: Json) -> Json:
        asked.append(params)
        return {"result": {"outcome": {"outcome": "selected", "optionId": "always"}}}

    editor.answers["session/request_permission"] = always
    for line, count in (("true", 1), ("true", 1), ("true; echo x > made", 2), (" \n", 2)):
        said(editor, name, line)
        assert (line, count) == (line, len(asked))
    assert "Which command?" == said(editor, name, "")


def test_the_commands_of_a_killed_agent(launch: Launch, tmp_path: Path) -> None:
    """Without acpd too nothing is left of them after kill -9, what ignores SIGTERM included."""
    editor = launch(RUNNER)
    name = session(editor, tmp_path)
    always = {"outcome": {"outcome": "selected", "optionId": "always"}}
    editor.answers["session/request_permission"] = lambda _: {"result": always}
    (tmp_path / "script").write_text("trap '' TERM")
    for _ in range(3):
        said(editor, name, ". ./script")
    (tmp_path / "script").write_text("trap '' TERM; echo $$ > pid.new; (trap '' TERM; sleep 100) & mv pid.new pid; sleep 100")
    editor.begin(name, ". ./script")
    deadline = time.monotonic() + PATIENCE
    while not (tmp_path / "pid").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    pid = int((tmp_path / "pid").read_text())
    editor.process.kill()
    proc.assert_gone(pid, within=PATIENCE)


def test_the_class_example(launch: Launch, tmp_path: Path) -> None:
    """It has an option that decides what it says, and tells that it is ready."""
    editor = launch(GREETER)
    name = session(editor, tmp_path, {"session": {"notices": {}}})
    assert "Hi!" == said(editor, name, "hello")
    editor.call("session/set_config_option", {"sessionId": name, "configId": "length", "value": "long"})
    assert "Good morning, and welcome!" == said(editor, name, "hello")


def test_stdout_belongs_to_the_protocol(launch: Launch, tmp_path: Path) -> None:
    """What an agent or a program of its prints goes to stderr, and what it reads from stdin is empty."""
    editor = launch("""
import os, subprocess, sys
from acpd import serve
async def prompt(turn):
    print("printed", flush=True)
    subprocess.run(["echo", "echoed"])
    os.write(1, b"written\\n")
    await turn.say(repr(sys.stdin.read()))
raise SystemExit(serve(prompt))
""")
    assert "''" == said(editor, session(editor, tmp_path), "a")
    assert 0 == editor.close()
    assert "printed\nechoed\nwritten\n" == (tmp_path / "stderr").read_text()


BUSY = """
import asyncio
from acpd import Agent
class Busy(Agent):
    async def prompt(self, turn):
        async with turn.terminal("sh", ["-c", "sleep 1000 & echo $!; trap '' TERM; while :; do sleep 0.1; done"]) as terminal:
            while not (output := (await terminal.output())[0]):
                await asyncio.sleep(0.01)
            await turn.say(output)
            while True:
                try:
                    await asyncio.sleep(1000)
                except asyncio.CancelledError:
                    pass
raise SystemExit(Busy().run())
"""


@pytest.mark.parametrize(("end", "code"), [("EOF", 0), (signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_it_ends_within_a_second(launch: Launch, tmp_path: Path, end: str | signal.Signals, code: int) -> None:
    """EOF or a signal in a turn that is deaf to its cancellation: all is gone within seconds, and nothing is left running."""
    editor = launch(BUSY)
    name = session(editor, tmp_path)
    editor.begin(name, "a")
    said = editor.until(lambda message: message.get("method") == "session/update")
    child = int(said["params"]["update"]["content"]["text"])
    began = time.monotonic()
    if isinstance(end, signal.Signals):
        os.kill(editor.process.pid, end)
        assert code == editor.process.wait(PATIENCE)
    else:
        assert code == editor.close()
    assert time.monotonic() - began < 5  # a second, and what two busy cores make of it
    while Path(f"/proc/{child}").exists():
        assert time.monotonic() - began < 5  # what was killed is gone when the kernel has come to it


def test_a_thread_keeps_no_agent_alive(launch: Launch, tmp_path: Path) -> None:
    """EOF while code of the agent's runs in a thread, which nothing can cancel: the program ends all the same."""
    editor = launch("""
import asyncio, time
from acpd import serve
async def prompt(turn):
    await turn.say("on")
    await asyncio.to_thread(time.sleep, 1000)
raise SystemExit(serve(prompt))
""")
    editor.begin(session(editor, tmp_path), "a")
    editor.until(lambda message: message.get("method") == "session/update")
    began = time.monotonic()
    assert 0 == editor.close()
    assert time.monotonic() - began < 5


def test_a_program_goes_on_behind_its_agent(launch: Launch, tmp_path: Path) -> None:
    """Threads that are idle end nothing: `serve` gives its exit code, and what stands behind it runs."""
    editor = launch("""
import asyncio, sys
from acpd import serve
async def prompt(turn):
    await turn.say(await asyncio.to_thread(str, 7))
code = serve(prompt)
sys.stderr.write("behind")
raise SystemExit(code + 3)
""")
    assert "7" == said(editor, session(editor, tmp_path), "a")
    assert 3 == editor.close()
    assert "behind" == (tmp_path / "stderr").read_text()


def test_files_serve_as_well_as_pipes(tmp_path: Path) -> None:
    """Input and output may be files: what was asked is answered, then it ends."""
    lines = [{"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": 1}}]
    (tmp_path / "in").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "agent.py").write_text(COUNTER)
    with (tmp_path / "in").open("rb") as stdin, (tmp_path / "out").open("wb") as stdout:
        command = [sys.executable, "-P", str(tmp_path / "agent.py")]
        done = subprocess.run(
            command, stdin=stdin, stdout=stdout, env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=PATIENCE
        )
    assert 0 == done.returncode
    assert "counter" == json.loads((tmp_path / "out").read_text())["result"]["agentInfo"]["name"]


def test_public_names_are_found() -> None:
    """Every name of acpd.__all__ is there, and no other is."""
    import acpd

    for name in acpd.__all__:
        assert getattr(acpd, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        acpd.nothing  # type: ignore[attr-defined]  # noqa: B018


def test_the_examples_are_typed(tmp_path: Path) -> None:
    """A type checker is content with every example of the document, in its strictest mode."""
    for number, source in enumerate(EXAMPLES):
        (tmp_path / f"example{number}.py").write_text(source)
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--no-incremental",
        "--follow-imports=silent",
        *map(str, sorted(tmp_path.glob("example*.py"))),
    ]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, "MYPYPATH": str(ROOT)}, capture_output=True, text=True)
    assert (0, "") == (done.returncode, done.stderr), done.stdout
