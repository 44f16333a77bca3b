"""Files and commands: by the client where it can, else here, and never outside the session's folders."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from acpd.api.shapes import Exit
from acpd.api.turn import Turn
from acpd.errors import FileFailed, TerminalFailed
from tests.api.desk import ABLE, PATIENCE, Json, Scripted, joined


async def test_the_client_reads_and_writes(tmp_path: Path) -> None:
    """A client that can is asked, with an absolute path and the lines that are wanted; nothing is touched here."""
    heard: list[str] = []

    async def work(turn: Turn) -> None:
        heard.append(await turn.read_text(Path("f.txt"), line=2, limit=3))
        await turn.write_text(Path("g.txt"), "new")

    async with joined(Scripted(work), ABLE) as (editor, _):
        editor.answers["fs/read_text_file"] = lambda _: {"content": "unsaved"}
        editor.answers["fs/write_text_file"] = lambda _: {}
        name = await editor.new(tmp_path)
        assert "end_turn" == await editor.prompt(name)
        assert ["unsaved"] == heard
        assert [{"sessionId": name, "path": f"{tmp_path}/f.txt", "line": 2, "limit": 3}] == editor.said("fs/read_text_file")
        assert [{"sessionId": name, "path": f"{tmp_path}/g.txt", "content": "new"}] == editor.said("fs/write_text_file")
        assert [] == os.listdir(tmp_path)


async def test_here_where_the_client_cannot(tmp_path: Path) -> None:
    """Without a client's help files are read and written here, in the cwd and in the folders that were added."""
    (tmp_path / "more").mkdir()
    (tmp_path / "cwd").mkdir()

    async def work(turn: Turn) -> None:
        await turn.write_text(Path("deep/f.txt"), "one\ntwo\nthree\n")
        await turn.write_text(tmp_path / "more/g.txt", await turn.read_text(Path("deep/f.txt"), line=2, limit=1))

    async with joined(Scripted(work)) as (editor, _):
        name = await editor.new(tmp_path / "cwd", additionalDirectories=[str(tmp_path / "more")])
        assert "end_turn" == await editor.prompt(name)
        assert "two\n" == (tmp_path / "more/g.txt").read_text()
        assert [] == editor.said("fs/read_text_file")


@pytest.mark.parametrize("able", [True, False])
async def test_never_outside(tmp_path: Path, *, able: bool) -> None:
    """A path that leads out of the session's folders, by .. or by a link, is refused; the client is not even asked."""
    (tmp_path / "cwd").mkdir()
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "cwd/link").symlink_to(tmp_path)
    refused: list[str] = []

    async def work(turn: Turn) -> None:
        for path in ("../secret", "link/secret", f"{tmp_path}/secret"):
            with pytest.raises(FileFailed, match="outside"):
                await turn.read_text(Path(path))
            with pytest.raises(FileFailed, match="outside"):
                await turn.write_text(Path(path), "")
            refused.append(path)
        with pytest.raises(TerminalFailed, match="outside" if not able else "unknown method"):
            async with turn.terminal("ls", cwd=tmp_path):
                pass

    async with joined(Scripted(work), ABLE if able else None) as (editor, _):
        assert "end_turn" == await editor.prompt(await editor.new(tmp_path / "cwd"))
        assert 3 == len(refused)
        assert [] == editor.said("fs/read_text_file") + editor.said("fs/write_text_file")
        assert "secret" == (tmp_path / "secret").read_text()


async def test_why_a_file_fails(tmp_path: Path) -> None:
    """The error names the file and the cause, in words for a model."""
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")

    async def work(turn: Turn) -> None:
        for path, why in (("none", "no such file"), ("bytes", "is not text"), (".", "is a folder")):
            with pytest.raises(FileFailed, match=why):
                await turn.read_text(Path(path))

    async with joined(Scripted(work)) as (editor, _):
        assert "end_turn" == await editor.prompt(await editor.new(tmp_path))


async def test_a_command_here(tmp_path: Path) -> None:
    """Without a client's terminals a command runs here, in the cwd, with its variables; its output and end are told."""
    heard: list[object] = []

    async def work(turn: Turn) -> None:
        async with turn.terminal("sh", ["-c", 'pwd; echo "$WORD"; exit 3'], env={"WORD": "hi"}) as terminal:
            heard.extend([await terminal.wait(), await terminal.output()])
        async with turn.terminal("sh", ["-c", "kill -9 $$"]) as terminal:
            heard.append(await terminal.wait())
        async with turn.terminal("sh", ["-c", "yes | head -c 5000"], limit=100) as terminal:
            await terminal.wait()
            text, cut = await terminal.output()
            heard.extend([len(text), cut])
        with pytest.raises(TerminalFailed, match="no/such/program"):
            async with turn.terminal("no/such/program", ["x"]):
                pass

    async with joined(Scripted(work)) as (editor, _):
        assert "end_turn" == await editor.prompt(await editor.new(tmp_path))
        assert [Exit(3, None), (f"{tmp_path}\nhi\n", False), Exit(None, "SIGKILL"), 100, True] == heard


async def test_a_command_of_the_clients(tmp_path: Path) -> None:
    """A client's terminal is made, shown by its id, waited for, killed and released by requests to it."""
    heard: list[object] = []

    async def work(turn: Turn) -> None:
        async with (
            turn.tool("Run", kind="execute") as call,
            turn.terminal("make", ["all"], cwd=Path("sub"), env={"A": "b"}, limit=10) as terminal,
        ):
            await call.embed(terminal)
            heard.extend([await terminal.output(), await terminal.wait()])
            await terminal.kill()

    async with joined(Scripted(work), ABLE) as (editor, _):
        editor.answers |= {
            "terminal/create": lambda _: {"terminalId": "t"},
            "terminal/output": lambda _: {"output": "o", "truncated": True, "exitStatus": None},
            "terminal/wait_for_exit": lambda _: {"exitCode": 1},
            "terminal/kill": lambda _: {},
            "terminal/release": lambda _: {},
        }
        name = await editor.new(tmp_path)
        assert "end_turn" == await editor.prompt(name)
        assert [("o", True), Exit(1, None)] == heard
        assert {
            "sessionId": name,
            "command": "make",
            "args": ["all"],
            "cwd": f"{tmp_path}/sub",
            "env": [{"name": "A", "value": "b"}],
            "outputByteLimit": 10,
        } == editor.said("terminal/create")[0]
        assert [{"type": "terminal", "terminalId": "t"}] == editor.updates("tool_call_update")[0]["content"]
        order = [what for what, _ in editor.story if what.startswith("terminal/")]
        assert ["terminal/create", "terminal/output", "terminal/wait_for_exit", "terminal/kill", "terminal/release"] == order


async def test_a_command_of_ours_is_shown_when_it_ends(tmp_path: Path) -> None:
    """A terminal that the client does not know is never named to it: its output becomes text in the call."""

    async def work(turn: Turn) -> None:
        async with turn.tool("Run") as call, turn.terminal("echo", ["hi"]) as terminal:
            await call.embed(terminal)
            await terminal.wait()

    async with joined(Scripted(work)) as (editor, _):
        await editor.prompt(await editor.new(tmp_path))
        shown, ended = editor.updates("tool_call_update")
        assert [{"type": "content", "content": {"type": "text", "text": "hi\n"}}] == shown["content"]
        assert "completed" == ended["status"]


def alive(pid: int) -> bool:
    try:
        return b") Z " not in Path(f"/proc/{pid}/stat").read_bytes()
    except FileNotFoundError:
        return False


async def gone(pid: int) -> None:
    """What was killed is gone when the kernel has come to it."""
    async with asyncio.timeout(PATIENCE):
        while alive(pid):
            await asyncio.sleep(0.01)


async def test_nothing_is_left_running(tmp_path: Path) -> None:
    """However a terminal of ours is left, what it started is gone: by its end, by a cancel, by the end of the connection."""
    tree = 'sleep 1000 & echo $! > "$1"; trap "" TERM; echo up; while :; do sleep 0.1; done'

    async def work(turn: Turn) -> None:
        async with turn.terminal("sh", ["-c", tree, "sh", turn.text]) as terminal:
            while "up" not in (await terminal.output())[0]:
                await asyncio.sleep(0.01)
            await turn.say("up")
            for _ in range({"leave": 0, "deaf": 2}.get(turn.text, 1)):
                with contextlib.suppress(*[asyncio.CancelledError] if turn.text == "deaf" else []):
                    await asyncio.sleep(1000)

    def child(turn: str) -> int:
        return int((tmp_path / turn).read_text())

    async with joined(Scripted(work)) as (editor, _):
        name = await editor.new(tmp_path)
        assert "end_turn" == await editor.prompt(name, "leave")
        await gone(child("leave"))
        answer = editor.begin(name, "cancel")
        await editor.until(said(editor.text, "upup"))
        assert alive(child("cancel"))
        editor.cancel(name)
        assert {"stopReason": "cancelled"} == await answer
        await gone(child("cancel"))
        editor.begin(name, "stay")
        await editor.until(said(editor.text, "upupup"))
        assert alive(child("stay"))
        editor.begin(await editor.new(tmp_path), "deaf")
        await editor.until(said(editor.text, "upupupup"))
    await gone(child("stay"))
    await gone(child("deaf"))


async def test_a_release_that_is_begun_comes_to_its_end(tmp_path: Path) -> None:
    """Where the connection ends while a command that ignores SIGTERM is being released, it is gone all the same."""
    command = 'trap "" TERM; echo $$; while :; do sleep 0.1; done'

    async def work(turn: Turn) -> None:
        async with turn.terminal("sh", ["-c", command]) as terminal:
            while not (output := (await terminal.output())[0]):
                await asyncio.sleep(0.01)
            await turn.say(output)

    async with joined(Scripted(work)) as (editor, _):
        name = await editor.new(tmp_path)
        answer = editor.begin(name)
        await editor.until(editor.text)
        editor.cancel(name)
        editor.cancel(name)
        assert {"stopReason": "cancelled"} == await answer
        assert alive(int(editor.text()))
    await gone(int(editor.text()))


def said(text: Callable[[], str], wanted: str) -> Callable[[], bool]:
    return lambda: text() == wanted


async def test_a_client_that_never_releases_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaving a terminal waits for the client a while and no longer."""
    monkeypatch.setattr("acpd.api.hands.RELEASE_TIMEOUT", 0.05)

    async def work(turn: Turn) -> None:
        async with turn.terminal("ls"):
            pass

    async with joined(Scripted(work), ABLE) as (editor, _):
        never: Callable[[Json], None] = lambda _: None  # noqa: E731
        editor.answers |= {"terminal/create": lambda _: {"terminalId": "t"}, "terminal/release": never}
        assert "end_turn" == await editor.prompt(await editor.new(tmp_path))
