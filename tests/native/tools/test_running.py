"""run, and which answer "always" is about which command."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest

from acpd.native.tools.shellwords import only_program, scope
from tests.native.tools.bench import Bench, Json, bench


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def gone(pid: int) -> bool:
    """Whether it ends within some seconds."""
    for _ in range(100):
        if not alive(pid):
            return True
        await asyncio.sleep(0.05)  # a process that is not our child has no other event
    return False


async def test_output_and_exit_status(work: Bench) -> None:
    """The model gets output and exit status; the user sees the command, its output and how it ended."""
    output = await work.call("run", command="echo out; echo err >&2; pwd; exit 3")
    assert output.text == f"out\nerr\n{work.root}\n[exit status 3]"
    assert output.failed
    shown = work.shown()
    assert (shown["kind"], shown["status"], shown["rawOutput"]) == ("execute", "failed", {"exitCode": 3, "signal": None})
    assert f"out\nerr\n{work.root}\n" in [content["content"]["text"] for content in shown["content"]]
    assert (await work.call("run", command="true")).text == "[no output; exit status 0]"
    assert work.shown()["status"] == "completed"


async def test_a_command_is_asked_for_in_the_mode_code(work: Bench) -> None:
    """Commands are asked for in the mode `code` too; a refused one does not run; "always" is about its program."""
    work.mode("code")
    work.client.decide = lambda _: "no"
    assert (await work.call("run", command="touch a")).failed
    assert not (work.root / "a").exists()
    work.client.decide = lambda _: "always"
    for name in "bc":
        assert not (await work.call("run", command=f"touch {name}")).failed
    assert len(work.client.asked) == 2
    work.client.decide = lambda _: "no"
    assert (await work.call("run", command="touch d; touch e")).failed
    assert (await work.call("run", command="ls")).failed
    assert len(work.client.asked) == 4


async def test_a_refusal_is_remembered_too(work: Bench) -> None:
    """The answer "never" is about the same scope, and nobody is asked again."""
    work.client.decide = lambda _: "never"
    for _ in range(2):
        assert (await work.call("run", command="touch a")).failed
    assert len(work.client.asked) == 1


async def test_a_command_has_a_time(work: Bench) -> None:
    """One that takes longer than its time is ended with all that it started, and the model is told so."""
    output = await work.call("run", command="sleep 100 & echo $!; wait", timeout=1)
    assert "longer than 1 s" in output.text
    assert await gone(int(output.text.split()[0]))
    assert work.shown()["rawOutput"] == {"timedOut": True}


async def test_a_cancelled_command_leaves_no_process(work: Bench) -> None:
    """After a cancel no process is left of what the command started, in whatever group or session."""
    command = (
        "sleep 100 & echo $! >> pids; setsid sleep 100 & echo $! >> pids; env -i setsid sleep 100 & echo $! >> pids;"
        " (trap '' TERM; echo $BASHPID >> pids; sleep 100)"
    )
    turn = work.begin([["run", {"command": command}]])
    pids: list[int] = []
    deadline = time.monotonic() + 10
    while len(pids) < 4 and time.monotonic() < deadline:
        await asyncio.sleep(0.02)
        pids = [int(line) for line in (work.root / "pids").read_text().split()] if (work.root / "pids").exists() else []
    assert len(pids) == 4
    work.cancel()
    assert await turn == "cancelled"
    assert "It was cancelled." == work.shown()["content"][-1]["content"]["text"]
    assert [True] * 4 == [await gone(pid) for pid in pids]
    assert work.shown()["status"] == "failed"


async def test_a_cancel_at_any_step_leaves_no_process(work: Bench) -> None:
    """Wherever the cancel meets a run, it is over and nothing runs on."""
    for steps in range(12):
        marker = f"{steps}.{os.getpid()}.73"
        turn = work.begin([["run", {"command": f"exec sleep {marker}"}]])
        for _ in range(steps * 3):
            await asyncio.sleep(0)
        work.cancel()
        assert await turn in {"cancelled", "end_turn"}
        left: list[str] = []
        for _ in range(100):
            left = [pid for pid in os.listdir("/proc") if pid.isdigit() and marker in _command(pid)]
            if not left:
                break
            await asyncio.sleep(0.05)
        assert left == []


def _command(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


async def test_much_output_is_cut(work: Bench) -> None:
    """Of much output the model is told beginning and end, within its limit."""
    output = await work.call("run", command="seq 1 100000")
    assert len(output.text.encode()) < 64 * 1024
    assert "were cut here" in output.text
    assert output.text.endswith("99999\n100000\n[exit status 0]")


async def test_output_that_is_no_text(work: Bench) -> None:
    """Bytes that are no UTF-8 harm neither the model nor the wire."""
    output = await work.call("run", command="printf '\\377\\0a'")
    assert "a\n[exit status 0]" in output.text


async def test_nobody_can_type_into_it(work: Bench) -> None:
    """A program that reads its input finds its end."""
    assert (await work.call("run", command="cat", timeout=10)).text == "[no output; exit status 0]"


async def test_nothing_waits_for_keys(work: Bench) -> None:
    """What would page or ask is told in its environment that nobody is there."""
    output = await work.call("run", command='echo "$PAGER $GIT_PAGER $GIT_EDITOR $GIT_TERMINAL_PROMPT"')
    assert output.text.startswith("cat cat true 0\n")


async def test_folders_of_a_command(work: Bench, tmp_path: Path) -> None:
    """It runs where it is told inside the session's folders, links resolved, and nowhere else."""
    (work.root / "sub").mkdir()
    (work.root / "out").symlink_to(tmp_path)
    assert (await work.call("run", command="pwd -P", cwd="sub")).text.startswith(f"{work.root}/sub\n")
    for cwd in ("..", "out", "none", "/"):
        assert (await work.call("run", command="pwd", cwd=cwd)).failed
    assert len(work.client.asked) == 1


async def test_terminals_are_the_clients_where_it_has_them(tmp_path: Path) -> None:
    """A client that has terminals runs the command, shows it in the call, and has it released in the end."""
    async with bench(tmp_path / "p", {"terminal": True}) as work:
        released: list[str] = []

        def release(said: Json) -> Json:
            released.append(said["terminalId"])
            return {}

        work.client.handlers |= {
            "terminal/create": lambda _: {"terminalId": "t1"},
            "terminal/wait_for_exit": lambda _: {"exitCode": 0},
            "terminal/output": lambda _: {"output": "hello\n", "truncated": False},
            "terminal/release": release,
        }
        assert (await work.call("run", command="ls")).text == "hello\n[exit status 0]"
        assert work.shown()["content"] == [{"type": "terminal", "terminalId": "t1"}]
        assert released == ["t1"]


@pytest.mark.parametrize(
    ("command", "program"),
    [
        ("git status", "git"),
        ("git log -- '*.py' \"a b\"", "git"),
        ("./build.sh -v", "./build.sh"),
        ("  npm test", "npm"),
        ("git log 'a;b' \"c|d\" e\\;f", "git"),
        ("git status; rm -rf ~", ""),
        ("git status && rm a", ""),
        ("git status|sh", ""),
        ("git status&", ""),
        ("git log > ~/.bashrc", ""),
        ("git log $(rm a)", ""),
        ("git log `rm a`", ""),
        ('git log "$(rm a)"', ""),
        ("git log <(rm a)", ""),
        ("git log\nrm a", ""),
        ("git log\rrm a", ""),
        ("git $'\\'' ; rm a '", ""),
        ("git log ${x:=1}", ""),
        ("PAGER=rm git log", ""),
        ("env git", ""),
        ("sudo git", ""),
        ("bash -c 'rm a'", ""),
        ("/bin/sh -c x", ""),
        ("$EDITOR a", ""),
        ("g?t status", ""),
        ("if true; then rm a; fi", ""),
        ("'git' status", ""),
        ("git 'unclosed", ""),
        ("", ""),
        ("# git", ""),
        ("git status # ; rm", ""),
        ("g\\it status", ""),
        ("{ git; }", ""),
        ("!git", ""),
    ],
)
def test_what_always_is_about(command: str, program: str) -> None:
    """Only a plain command is known by its program; any other is known by the whole line."""
    assert only_program(command) == program
    assert scope(command) == (f"run {program}" if program else f"run: {command}")


def test_long_lines_are_told_apart() -> None:
    """Two long lines that begin alike are two scopes."""
    assert scope("a;" * 1000 + "b") != scope("a;" * 1000 + "c")
    assert len(scope("a;" * 100_000)) < 1000
