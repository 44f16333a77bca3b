"""Before an answer leaves, what it promises is on disk; before an update leaves, its line is written.

acpd runs with its file seam and its streams recorded (tests/support/recording.py); the record is judged here.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import commands, proc, store
from tests.support.client import Client
from tests.support.paths import ROOT

Json = dict[str, Any]
Requests = dict[Any, tuple[str, Json]]
Talk = Callable[[Client, Path], object]
GOOD = [sys.executable, str(commands.AGENTS / "good_agent.py")]
SCRIPTED = [sys.executable, str(ROOT / "tests" / "support" / "agent.py")]


class File:
    """One file as the record tells it: what was written, and how much of it is on disk."""

    def __init__(self) -> None:
        self.text = b""
        self.began = 0
        self.synced = 0

    def end_of(self, part: bytes, start: int = 0) -> int:
        """Where the line with this part ends; -1: it is not written."""
        at = self.text.find(part, start)
        return self.text.find(b"\n", at) + 1 if at >= 0 else -1


class Judge:
    """Follows a record and notes every broken promise. `power`: syncs are promised."""

    def __init__(self, sent: dict[Any, tuple[str, Json]], *, power: bool) -> None:
        self._sent = sent
        self._power = power
        self.files: dict[str, File] = {}
        self.named: set[str] = set()
        """Files whose folder was synced after they were made or renamed."""
        self.broken: list[str] = []
        self.methods: Counter[str] = Counter()
        """How often each was answered; with `!`: by an error."""
        self.updates = 0
        self.prompts = 0

    def run(self, order: Path) -> None:
        for line in order.read_text(encoding="utf-8").splitlines():
            event = json.loads(line)
            getattr(self, "_" + event["do"])(event)

    def _write(self, event: Json) -> None:
        if event["path"] not in self.files:
            self.files[event["path"]] = File()
        self.files[event["path"]].text += event["text"].encode("latin-1")

    def _sync(self, event: Json) -> None:
        if event["path"] in self.files:
            self.files[event["path"]].began = len(self.files[event["path"]].text)

    def _synced(self, event: Json) -> None:
        if event["path"] in self.files:
            self.files[event["path"]].synced = self.files[event["path"]].began
        self.named |= {path for path in self.files if str(Path(path).parent) == event["path"]}

    def _replace(self, event: Json) -> None:
        self.files[event["to"]] = self.files.pop(event["path"])
        self.named.discard(event["to"])

    def _send(self, event: Json) -> None:
        for line in event["text"].encode("latin-1").splitlines():
            message = json.loads(line)
            if message.get("method") == "session/update" and "acpd.dev/seq" in (message["params"].get("_meta") or {}):
                self._update(message["params"])
            elif message.get("method") == "session/prompt":
                self._prompt(message["params"])
            elif "method" not in message and message.get("id") in self._sent:
                self._answer(*self._sent[message["id"]], message)

    def _update(self, params: Json) -> None:
        """An update names a line that is written."""
        self.updates += 1
        seq = params["_meta"]["acpd.dev/seq"]
        _, log = self._log(params["sessionId"])
        if log.end_of(b'"seq":%d,' % seq) < 0:
            self.broken.append(f"seq {seq} was sent and not written")

    def _prompt(self, params: Json) -> None:
        """An agent gets a prompt that is on disk. Prompts of the test are unique, so the text names it.

        The last block is the user's; before it may stand what a new agent is told of the conversation.
        """
        self.prompts += 1
        text = json.dumps(params["prompt"][-1]["text"]).encode()
        for path, log in self.files.items():
            if path.endswith(".log.jsonl") and (end := log.end_of(text)) > 0:
                self._require(path, end, f"prompt {text!r} to the agent")
                return
        self.broken.append(f"the agent got {text!r}, which is not written")

    def _answer(self, method: str, params: Json, message: Json) -> None:
        """A result; of a prompt an error as well, for then too the turn has an end."""
        session = str(message.get("result", {}).get("sessionId") or params.get("sessionId") or "")
        if not session or ("error" in message and method != "session/prompt"):
            return
        self.methods[method + "!" * ("error" in message)] += 1
        path, log = self._log(session)
        if method == "session/prompt":
            prompt = log.end_of(json.dumps(params["prompt"][0]["text"]).encode())
            at = log.text.find(b'"state":"ended"', prompt) if prompt > 0 else -1
            end = log.text.find(b"\n", at) + 1 if at >= 0 else -1
        elif method in {"session/new", "session/fork"}:
            end = log.end_of(b'"type":"session"')
        elif method in {"session/set_mode", "session/set_config_option"}:
            value = b":" + json.dumps(params.get("modeId") or params["value"]).encode()
            end = len(log.text) if value in log.text[max(0, log.text.rfind(b'"type":"config"')) :] else -1
        else:
            end = len(log.text)
        self._require(path, end, f"the answer to {method}")
        if self._power and path not in self.named:
            self.broken.append(f"{method} was answered and the name of {path} is not on disk")

    def _require(self, path: str, end: int, what: str) -> None:
        if end <= 0:
            self.broken.append(f"{what} left before its lines were written")
        elif self._power and self.files[path].synced < end:
            self.broken.append(f"{what} left at {self.files[path].synced} synced bytes of {end}")

    def _log(self, session: str) -> tuple[str, File]:
        for path, file in self.files.items():
            if path.endswith(".log.jsonl") and b'"id":"%b"' % session.encode() in file.text.split(b"\n", 1)[0]:
                return path, file
        return "", File()


def record(tmp: Path, mark: str, agent: list[str], talk: Talk, *, bug: str = "", **env: str) -> tuple[Path, Requests]:
    """What happens while acpd has this conversation: the record, and the requests by id."""
    order = tmp / "order"
    plant = ["--plant", bug] if bug else []
    command = [sys.executable, "-m", "tests.support.recording", str(order), *plant, "--", "run", "--", *agent]
    client = Client(command, tmp / "home", mark=mark, cwd=ROOT, env=env, check=False)
    client.initialize()
    talk(client, tmp)
    client.close_stdin()
    client.wait_exit()
    client.stop()
    return order, {sent.id: (sent.method, sent.params) for sent in client.sent}


def turns(client: Client, tmp: Path) -> tuple[str, str]:
    """Two sessions at once: chunks, tool calls, a permission, a cancelled turn."""
    one, two = client.new(tmp), client.new(tmp)
    for turn in range(3):
        ident = client.start_prompt(one, f"chunks {20 + turn}")
        client.prompt(two, f"tool file-{turn}")
        client.result(ident)
    client.prompt(two, "ask")
    ident = client.start_prompt(one, "slow 500 5")
    client.wait_update("agent_message_chunk", len(client.updates("agent_message_chunk")) + 3)
    client.notify("session/cancel", {"sessionId": one})
    client.result(ident)
    return one, two


def lives(client: Client, tmp: Path) -> None:
    """The same, then a fork, and a session that is closed and loaded."""
    one, two = turns(client, tmp)
    fork = client.call("session/fork", {"sessionId": one, "cwd": str(tmp), "mcpServers": []})["sessionId"]
    client.prompt(fork, "say forked")
    client.call("session/close", {"sessionId": two})
    client.load(two, tmp)
    client.prompt(two, "say loaded")


def settings_and_failures(client: Client, tmp: Path) -> None:
    """What is set between turns; turns that end with an error; a session that is resumed, by an agent that must be started."""
    session = client.new(tmp)
    for mode, model in (("code", "large"), ("ask", "small")):
        client.call("session/set_mode", {"sessionId": session, "modeId": mode})
        client.call("session/set_config_option", {"sessionId": session, "configId": "model", "value": model})
        for number, verb in enumerate(("fail -32000 no", "die 7", "say fine")):
            client.answer(client.start_prompt(session, f"{verb}\nnote {mode} {number}"))
        client.call("session/close", {"sessionId": session})
        client.call("session/resume", {"sessionId": session, "cwd": str(tmp), "mcpServers": []})


@pytest.fixture
def mark() -> Iterator[str]:
    made = proc.new_mark()
    yield made
    proc.kill_marked(made)


@pytest.mark.parametrize("backend", commands.backends())
def test_what_is_answered_is_on_disk_and_what_is_shown_is_written(backend: str, tmp_path: Path, mark: str) -> None:
    """An fdatasync that covers its lines returned before each answer was written; each update's line was written before it."""
    order, sent = record(tmp_path, mark, GOOD, lives, ACPD_STORAGE_BACKEND=backend)
    judge = Judge(sent, power=True)
    judge.run(order)
    assert [] == judge.broken
    assert (14, 10) <= (judge.methods.total(), judge.prompts)
    assert judge.updates >= 50
    store.check_store(tmp_path / "home")


def test_settings_and_errors_are_on_disk_before_they_are_answered(tmp_path: Path, mark: str) -> None:
    """A mode, an option, a resume and a turn that failed are promised by their answers like any other."""
    order, sent = record(tmp_path, mark, SCRIPTED, settings_and_failures)
    judge = Judge(sent, power=True)
    judge.run(order)
    assert [] == judge.broken
    twice = ("session/set_mode", "session/set_config_option", "session/resume", "session/close", "session/prompt")
    assert {"session/new": 1, **dict.fromkeys(twice, 2), "session/prompt!": 4} == dict(judge.methods)


def test_without_syncs_what_is_shown_and_answered_is_written(tmp_path: Path, mark: str) -> None:
    """With `sync = "process"` everything is in the kernel before it is said."""
    order, sent = record(tmp_path, mark, GOOD, lives, ACPD_STORAGE_SYNC="process")
    judge = Judge(sent, power=False)
    judge.run(order)
    assert [] == judge.broken


@pytest.mark.parametrize(
    ("bug", "words"), [("unsynced", "synced bytes"), ("unwritten", "written"), ("unsettled", "session/set_mode left")]
)
def test_the_judge_sees_a_planted_bug(bug: str, words: str, tmp_path: Path, mark: str) -> None:
    """A journal that claims to have synced, one that writes late, a setting that is answered at once: each is found out."""
    agent, talk = (SCRIPTED, settings_and_failures) if bug == "unsettled" else (GOOD, turns)
    order, sent = record(tmp_path, mark, agent, talk, bug=bug)
    judge = Judge(sent, power=True)
    judge.run(order)
    assert any(words in problem for problem in judge.broken), judge.broken[:5]
