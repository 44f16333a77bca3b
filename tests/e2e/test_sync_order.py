"""Before an answer leaves, what it promises is on disk; before an update leaves, its line is written.

acpd runs with its file seam and its streams recorded (tests/support/recording.py); the record is judged here.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import commands, proc, store
from tests.support.client import Client
from tests.support.paths import ROOT

Json = dict[str, Any]


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
        self.answers = 0
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
            elif "method" not in message and "result" in message and message["id"] in self._sent:
                self._answer(*self._sent[message["id"]], message["result"])

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

    def _answer(self, method: str, params: Json, result: Json) -> None:
        session = str(result.get("sessionId") or params.get("sessionId") or "")
        if not session:
            return
        self.answers += 1
        path, log = self._log(session)
        if method == "session/prompt":
            prompt = log.end_of(json.dumps(params["prompt"][0]["text"]).encode())
            at = log.text.find(b'"state":"ended"', prompt) if prompt > 0 else -1
            end = log.text.find(b"\n", at) + 1 if at >= 0 else -1
        elif method in {"session/new", "session/fork"}:
            end = log.end_of(b'"type":"session"')
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


def record(tmp: Path, mark: str, *, bug: str = "", **env: str) -> tuple[Path, dict[Any, tuple[str, Json]]]:
    """A conversation with every kind of answer; gives the record and the requests by id."""
    order = tmp / "order"
    plant = ["--plant", bug] if bug else []
    agent = [sys.executable, str(commands.AGENTS / "good_agent.py")]
    command = [sys.executable, "-m", "tests.support.recording", str(order), *plant, "--", "run", "--", *agent]
    client = Client(command, tmp / "home", mark=mark, cwd=ROOT, env=env, check=False)
    client.initialize()
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
    if not bug:  # what reads a log again finds nothing where writes come late
        fork = client.call("session/fork", {"sessionId": one, "cwd": str(tmp), "mcpServers": []})["sessionId"]
        client.prompt(fork, "say forked")
        client.call("session/close", {"sessionId": two})
        client.load(two, tmp)
        client.prompt(two, "say loaded")
    client.close_stdin()
    client.wait_exit()
    client.stop()
    return order, {sent.id: (sent.method, sent.params) for sent in client.sent}


@pytest.fixture
def mark() -> Iterator[str]:
    made = proc.new_mark()
    yield made
    proc.kill_marked(made)


def judged(tmp: Path, mark: str, *, power: bool, bug: str = "", **env: str) -> Judge:
    order, sent = record(tmp, mark, bug=bug, **env)
    judge = Judge(sent, power=power)
    judge.run(order)
    assert judge.answers >= (9 if bug else 14)
    assert judge.updates >= 50
    assert judge.prompts >= (8 if bug else 10)
    return judge


@pytest.mark.parametrize("backend", commands.backends())
def test_what_is_answered_is_on_disk_and_what_is_shown_is_written(backend: str, tmp_path: Path, mark: str) -> None:
    """An fdatasync that covers its lines returned before each answer was written; each update's line was written before it."""
    judge = judged(tmp_path, mark, power=True, ACPD_STORAGE_BACKEND=backend)
    assert [] == judge.broken
    store.check_store(tmp_path / "home")


def test_without_syncs_what_is_shown_and_answered_is_written(tmp_path: Path, mark: str) -> None:
    """With `sync = "process"` everything is in the kernel before it is said."""
    assert [] == judged(tmp_path, mark, power=False, ACPD_STORAGE_SYNC="process").broken


@pytest.mark.parametrize(("bug", "words"), [("unsynced", "synced bytes"), ("unwritten", "written")])
def test_the_judge_sees_a_planted_bug(bug: str, words: str, tmp_path: Path, mark: str) -> None:
    """A journal that claims to have synced, or that writes late, is found out."""
    broken = judged(tmp_path, mark, power=True, bug=bug).broken
    assert any(words in problem for problem in broken), broken[:5]
