"""`make run`: what acpd is for, in half a minute.

An editor's side of two processes of acpd, written out: a conversation with the built-in offline agent, kill -9 in the
middle of its second turn, a new start, and everything loaded back. Needs nothing but the standard library.
Exit code 1 if anything is not as promised.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

ACPD = str(Path(sys.executable).with_name("acpd"))
LIMIT = 30.0
"""Seconds that one acpd may take for its part."""
SEEN_BEFORE_KILL = 4
"""Updates of the second turn that the editor has seen when acpd is killed."""

Json = dict[str, Any]
_COLOUR = {"title": "1", "editor": "36", "acpd": "32", "good": "1;32", "bad": "1;31", "quiet": "2"}


def say(style: str, text: str) -> None:
    print(f"\x1b[{_COLOUR[style]}m{text}\x1b[0m" if sys.stdout.isatty() else text, flush=True)


def fail(why: str) -> NoReturn:
    say("bad", f"NOT AS PROMISED: {why}")
    raise SystemExit(1)


def promise(kept: object, text: str) -> None:
    if not kept:
        fail(text)
    say("good", f"   ok: {text}")


class Editor:
    """The client's side of one acpd. `updates` are those of the prompt or load that runs."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self._last = 0

    def request(self, method: str, params: Json) -> Iterator[Json]:
        """Ask, and give each update before the answer; the last value is the answer's result. Permissions are granted."""
        self._last += 1
        self._send({"id": self._last, "method": method, "params": params})
        assert self.process.stdout is not None
        for line in self.process.stdout:
            message: Json = json.loads(line)
            if message.get("method") == "session/update":
                yield message["params"]["update"]
            elif "method" in message:
                self._grant(message)
            elif message["id"] == self._last:
                if "error" in message:
                    fail(f"{method} was answered {message['error']}")
                yield message["result"]
                return
        fail(f"acpd ended, or said nothing for {LIMIT:g} s, before {method} was answered")

    def ask(self, method: str, params: Json) -> Json:
        """The result of a request; what comes before it is passed over."""
        *_, result = self.request(method, params)
        return result

    def _grant(self, message: Json) -> None:
        option = message["params"]["options"][0]
        say("editor", f"   editor: permission {message['params']['toolCall'].get('title', '')!r}: {option['name']}")
        self._send({"id": message["id"], "result": {"outcome": {"outcome": "selected", "optionId": option["optionId"]}}})

    def _send(self, message: Json) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        self.process.stdin.flush()


@contextmanager
def editor(env: dict[str, str], cwd: Path) -> Generator[Editor, None, None]:
    """A running acpd on pipes, initialized. It is ended with its input, and killed if that takes longer than LIMIT."""
    process = subprocess.Popen([ACPD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, cwd=cwd)
    watch = threading.Timer(LIMIT, process.kill)
    watch.start()
    try:
        side = Editor(process)
        result = side.ask("initialize", {"protocolVersion": 1, "clientCapabilities": {}})
        say("acpd", f"   acpd: {result.get('agentInfo', {}).get('name', '?')}, protocol version {result['protocolVersion']}")
        yield side
        if process.stdin is not None and not process.stdin.closed:
            process.stdin.close()
        code = process.wait()
        if code not in {0, -signal.SIGKILL} or (code and watch.finished.is_set()):
            fail(f"acpd ended with {code} when its input ended")
    finally:
        watch.cancel()
        process.kill()
        process.wait()


def show(update: Json) -> None:
    """One update as a person would see it."""
    kind = update["sessionUpdate"]
    if kind.endswith("_chunk"):
        text = str(update["content"].get("text", ""))
        say("acpd", f"   {kind.removesuffix('_chunk').replace('_', ' ')}: {' '.join(text.split())[:110]}")
    elif kind in {"tool_call", "tool_call_update"}:
        say("acpd", f"   {kind.replace('_', ' ')}: {update.get('title') or update['toolCallId']} {update.get('status') or ''}")
    elif kind == "plan":
        say("acpd", "   plan: " + ", ".join(f"{entry['content']} ({entry['status']})" for entry in update["entries"]))


def said(updates: Sequence[Json]) -> str:
    """What the agent said, in one text: a replay may join chunks."""
    return "".join(one["content"].get("text", "") for one in updates if one["sessionUpdate"] == "agent_message_chunk")


def prompt(side: Editor, session: str, text: str) -> Iterator[Json]:
    say("editor", f"   editor: {' / '.join(text.splitlines())}")
    return side.request("session/prompt", {"sessionId": session, "prompt": [{"type": "text", "text": text}]})


def first_life(env: dict[str, str], cwd: Path) -> tuple[str, str]:
    """The session's id, and all that its agent had said when acpd was killed."""
    with editor(env, cwd) as side:
        session = str(side.ask("session/new", {"cwd": str(cwd), "mcpServers": []})["sessionId"])
        say("title", f"\n2. The first turn, in session {session}")
        *updates, result = [*prompt(side, session, "plan look|change|test\ntool read demo.py\nsay The file is fine.")]
        for update in updates:
            show(update)
        promise(result["stopReason"] == "end_turn", "the first turn ended: end_turn")
        say("title", "\n3. The second turn, and kill -9 in its middle")
        seen: list[Json] = []
        for update in prompt(side, session, "slow 200 50"):
            show(update)
            seen.append(update)
            if len(seen) == SEEN_BEFORE_KILL:
                break
        os.kill(side.process.pid, signal.SIGKILL)
        side.process.wait()
        promise(len(seen) == SEEN_BEFORE_KILL, f"acpd (pid {side.process.pid}) is gone, in the middle of a turn")
        return session, said(updates) + said(seen)


def second_life(env: dict[str, str], cwd: Path, session: str, before: str) -> None:
    with editor(env, cwd) as side:
        listed = side.ask("session/list", {"cwd": str(cwd)})["sessions"]
        promise(session in [one["sessionId"] for one in listed], "the session is listed")
        *updates, _ = [*side.request("session/load", {"sessionId": session, "cwd": str(cwd), "mcpServers": []})]
        for update in updates:
            show(update)
        prompts = [one["content"]["text"] for one in updates if one["sessionUpdate"] == "user_message_chunk"]
        promise(len(prompts) == 2 and prompts[1] == "slow 200 50", "both prompts are there")
        promise(said(updates).startswith(before), f"all {len(before)} characters that the editor had seen are there, in order")
        promise(len(said(updates)) > len(before), "and the editor is told that the turn was cut off")
        say("title", "\n5. The conversation goes on")
        *updates, result = [*prompt(side, session, "say Still here.")]
        promise("Still here." in said(updates) and result["stopReason"] == "end_turn", "the next prompt is answered")


def command(env: dict[str, str], cwd: Path, *words: str) -> str:
    say("title", f"\n$ acpd {' '.join(words)}")
    ran = subprocess.run([ACPD, *words], env=env, cwd=cwd, capture_output=True, text=True, timeout=LIMIT)
    say("acpd", ran.stdout.rstrip())
    if ran.returncode or ran.stderr:
        fail(f"acpd {words[0]} ended with {ran.returncode}: {ran.stderr}")
    return ran.stdout


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="acpd-demo-") as name:
        home, cwd = Path(name, "home"), Path(name, "project")
        cwd.mkdir()
        (cwd / "demo.py").write_text("print('hello')\n")
        ours = {key: value for key, value in os.environ.items() if not key.startswith("ACPD_")}
        env = {**ours, "ACPD_HOME": str(home), "ACPD_STANDALONE": "1", "PWD": str(cwd)}
        say("title", "1. An editor starts acpd, acpd starts the agent")
        session, before = first_life(env, cwd)
        say("title", "\n4. A new acpd: session/load")
        second_life(env, cwd, session, before)
        promise(session in command(env, cwd, "ls"), "acpd ls lists it")
        promise("slow 200 50" in command(env, cwd, "tree", session[:13]), "acpd tree shows both turns")
        logs = [name for _, _, files in os.walk(home) for name in files if name.endswith(".log.jsonl")]
        promise(len(logs) == 1, f"all of it is one file of JSON lines ({len(logs)} log)")
    say("good", "\nNothing was lost.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
