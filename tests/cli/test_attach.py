"""`acpd attach`: a session in a terminal, a pipe or a file, by way of a real daemon."""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import subprocess
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from tests.support.client import Client
from tests.support.served import ACPD, Served

WAIT = 30.0


class Terminal:
    """`acpd WORDS` with a terminal of its own. `seen` is what it has written."""

    def __init__(self, served: Served, *words: str) -> None:
        self._ours, theirs = os.openpty()
        self.seen = ""

        def own() -> None:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        self.process = subprocess.Popen(
            [*ACPD, *words], env=served.env, stdin=theirs, stdout=theirs, stderr=theirs, cwd=served.work,
            start_new_session=True, preexec_fn=own,  # noqa: PLW1509  one call of the kernel
        )  # fmt: skip
        os.close(theirs)

    def enter(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def until(self, text: str, count: int = 1) -> None:
        """Until it has written this so often."""
        end = time.monotonic() + WAIT
        while self.seen.count(text) < count:
            ready, _, _ = select.select([self._ours], [], [], max(0.0, end - time.monotonic()))
            assert ready, f"no {text!r} in {self.seen!r}"
            assert self._read(), f"ended without {text!r}: {self.seen!r}"

    def _read(self) -> bool:
        try:
            data = os.read(self._ours, 65536)
        except OSError:  # Linux: the other end is closed
            return False
        self.seen += data.decode().replace("\r\n", "\n")
        return bool(data)

    def end(self) -> int:
        """Its exit code, once it has ended."""
        while self._read():
            pass
        return self.process.wait(WAIT)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)


def stop_started(served: Served) -> None:
    """The daemon that a client has started."""
    os.kill(json.loads(served.run("status", "--json")[1])["pid"], signal.SIGTERM)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path / "home") as made:
        made.serve()
        yield made


def agents(served: Served) -> list[object]:
    found: list[object] = json.loads(served.run("status", "--json")[1])["agents"]
    return found


def test_prompts_from_a_pipe(served: Served) -> None:
    """The conversation, then a turn for each line, one after the other; a line answers where a question is open.

    The agent that this starts has the environment of who attached.
    """
    with served.editor() as editor:
        session = editor.new(served.work)
        editor.prompt(session, "say hello\ntool X")
        editor.call("session/close", {"sessionId": session})
    code, out, err = served.run("attach", session[:-4], stdin="say one\\\nsay two\nask\n2\nfail 7 no\n", FROM="attach")
    assert (1, "") == (code, err)
    head, _, rest = out.partition("\n\n")
    assert [f"session {session}", "title   say hello", f"folder  {served.work}", "agent   scripted"] == head.split("\n")[:4]
    before, _, behind = rest.partition("acpd:\n  [acpd] scripted could not restore its own memory")
    assert (before + behind.partition("\n")[2]).split("\n") == [
        "you:", "  say hello", "  tool X", "agent:", "  hello", "tool: Read X (read): completed", "  out of X",
        "you:", "  say one", "  say two", "agent:", "  onetwo", "turn ended: end_turn", "",
        "you:", "  ask", "tool: Write a.txt (edit): pending",
        "ask: Write a.txt", "  1) Yes (allow_once)", "  2) No (reject_once)", "ask: answered with No (reject_once)",
        "tool: Write a.txt (edit): failed", "agent:", "  chose no", "turn ended: end_turn", "",
        "you:", "  fail 7 no", "turn ended: no", "", "",
    ]  # fmt: skip
    assert (0, f"{head}\n\nyou:\n  env FROM\nagent:\n  FROM=attach\nturn ended: end_turn\n\n", "") == served.run(
        "attach", session, "--no-replay", stdin="env FROM"
    )


def test_a_person_at_a_terminal(served: Served) -> None:
    """Others' turns appear as they go on, what is typed is a prompt or an answer, Ctrl-C cancels, Ctrl-D leaves it going on."""
    with served.editor(policy=None) as editor:
        session = editor.new(served.work)
        with Terminal(served, "attach", session) as terminal:
            terminal.until("Ctrl-D leaves")
            begun = editor.start_prompt(session, "say \x1b[31mred\nask")
            terminal.until("you:\n  say \\x1b[31mred\n  ask\nagent:\n  \\x1b[31mred\n")
            terminal.until("  2) No (reject_once)\n")
            terminal.enter("maybe\n")
            terminal.until("ask: a number from 1 to 2 answers")
            terminal.enter("1\n")
            assert "end_turn" == editor.result(begun)["stopReason"]
            terminal.until("agent:\n  chose yes")
            begun = editor.start_prompt(session, "ask")
            terminal.until("  2) No (reject_once)\n", 2)
            editor.reply(editor.wait_request("session/request_permission", 2), {"outcome": {"outcome": "cancelled"}})
            terminal.until("ask: no answer is needed any more")
            terminal.enter("1\n")
            terminal.until("ask: that question was over")
            assert "end_turn" == editor.result(begun)["stopReason"]
            terminal.enter("say mine\nhang\n")
            terminal.until("agent:\n  mine\nturn ended: end_turn\n")
            terminal.enter("\x03")
            terminal.until("turn ended: cancelled\n")
            terminal.enter("slow 30 100\n")
            editor.wait("the prompt", lambda: "slow 30" in editor.text(session, "user_message_chunk"))
            terminal.enter("\x04")
            assert 0 == terminal.end()
        editor.wait("the end of the turn", lambda: "c29" in editor.text(session))
        assert "1" not in editor.text(session, "user_message_chunk").replace("slow 30 100", "").replace("[31m", "")


@pytest.mark.e2e
def test_a_question_that_was_open_before(served: Served) -> None:
    """Without a replay it names what it is about all the same; how it was answered is told.

    Words that answer forms are no prompts where no form is. Ctrl-C says whose turn it cancels; once more, it leaves, also
    when the turn has ended meanwhile.
    """
    with served.editor(policy=None) as editor:
        session = editor.new(served.work)
        begun = editor.start_prompt(session, "ask")
        editor.wait_request("session/request_permission")
        with Terminal(served, "attach", session, "--no-replay") as terminal:
            terminal.until("ask: Write a.txt\n  1) Yes (allow_once)\n  2) No (reject_once)\n")
            terminal.enter("1\n")
            terminal.until("ask: answered with Yes (allow_once)\n")
            assert "end_turn" == editor.result(begun)["stopReason"]
            terminal.until("tool: Write a.txt (edit): completed\n")
            terminal.enter("/decline\n")
            terminal.until("ask: nothing is asked\n")
            terminal.enter("/help\n")
            terminal.until("A line is a prompt", 2)
            terminal.enter("\x03")
            terminal.until("no turn of yours runs")
            terminal.enter("hang\n")
            editor.wait("the prompt", lambda: "hang" in editor.text(session, "user_message_chunk"))
            terminal.enter("\x03")
            terminal.until("the turn is cancelled; Ctrl-C again leaves")
            terminal.until("turn ended: cancelled\n")
            terminal.enter("\x03")
            assert 0 == terminal.end()
        assert not {"/decline", "/help"} & set(editor.text(session, "user_message_chunk").split())


@pytest.mark.e2e
def test_who_is_refused_is_told_nothing_else(served: Served) -> None:
    """A session that another process has open: the error, and no heading before it."""
    with Client([*ACPD, "--standalone"], served.home, env=served.env, mark=served.mark, check=False) as alone:
        alone.initialize()
        session = alone.new(served.work)
        alone.prompt(session, "say mine")
        code, out, err = served.run("attach", session)
    assert (1, "", True) == (code, out, f"open in pid {alone.pid}" in err)


@pytest.mark.e2e
def test_observing(served: Served) -> None:
    """It sees all that happens, also in a pipe, is asked nothing, starts no agent, and leaves by an interrupt."""
    with served.editor() as editor:
        session = editor.new(served.work)
        editor.prompt(session, "say before")
        editor.call("session/close", {"sessionId": session})
        with subprocess.Popen(
            [*ACPD, "attach", session, "--observe"], env=served.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/"
        ) as watching:
            assert watching.stdout is not None
            assert watching.stdin is not None
            watching.stdin.write(b"say nothing\n")
            watching.stdin.close()
            seen = b""
            while b"before" not in seen.partition(b"agent:")[2]:
                seen += os.read(watching.stdout.fileno(), 65536)
            assert [] == agents(served)
            editor.load(session, served.work)
            editor.prompt(session, "say after\nask")
            while b"chose yes" not in seen:
                seen += os.read(watching.stdout.fileno(), 65536)
            watching.send_signal(signal.SIGINT)
            seen += watching.stdout.read()
            assert 0 == watching.wait(WAIT)
    assert b"\nyou:\n  say after\n  ask\n" in seen
    assert b"agent:\n  after\n" in seen
    assert b"[acpd] A question is open: tool call " in seen
    assert b"[acpd] The question is over: tool call " in seen
    assert b"ask: " not in seen
    assert b"nothing" not in seen


@pytest.mark.e2e
def test_a_daemon_that_is_killed(served: Served) -> None:
    """Nobody at the terminal need notice, but for the turn that ran: each line is there once, and what is typed then works."""
    with served.editor() as editor:
        session = editor.new(served.work)
        editor.prompt(session, "say first")
    with Terminal(served, "attach", session) as terminal:
        terminal.until("  first")
        terminal.enter("say second\nhang\n")
        terminal.until("turn ended: end_turn\n")
        terminal.until("hang\n")
        served.kill()  # who misses it starts another
        terminal.until("turn ended: acpd's daemon ended while this turn ran")
        terminal.enter("say third\n")
        terminal.until("  third\nturn ended: end_turn\n")
        terminal.enter("/quit\n")
        assert 0 == terminal.end()
    stop_started(served)
    for text in ("agent:\n  first", "agent:\n  second", "agent:\n  third"):
        assert 1 == terminal.seen.count(text), terminal.seen


@pytest.mark.e2e
def test_a_daemon_is_started(tmp_path: Path) -> None:
    """Where none runs; not where that is not wanted."""
    with Served(tmp_path / "home") as served:
        served.serve()
        with served.editor() as editor:
            session = editor.new(served.work)
            editor.prompt(session, "say first")
        assert 0 == served.stop()
        refused = served.run("attach", session, ACPD_DAEMON_AUTOSTART="false")
        assert (1, "", "acpd: there is no daemon: [daemon] autostart is false (acpd serve starts one)\n") == refused
        code, out, err = served.run("attach", session, stdin="elicit\nBob\nwhere")
        assert (0, "") == (code, err)
        assert 'ask: Who are you?\n  name (string):\nask: answered with accept\nagent:\n  accept {"name": "Bob"}\n' in out
        stop_started(served)


def test_what_cannot_be_attached_to(tmp_path: Path) -> None:
    """One line that says why, and nothing is started."""
    with Served(tmp_path / "home") as served:
        code, _, err = served.run("attach", "x", "--standalone")
        assert (2, True) == (code, "cannot be standalone" in err)
        assert (1, "", "acpd: cannot find session x ('acpd ls --all' lists what there is)\n") == served.run("attach", "x")
