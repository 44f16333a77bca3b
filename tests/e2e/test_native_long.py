"""A long session of acpd's own agent: it is compacted again and again, nothing of it is lost, and nothing grows with it."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.peers.checks import assert_same
from tests.support import proc
from tests.support.commands import acpd
from tests.support.models import Json, ModelServer, answer, model_server
from tests.support.plain_editor import CAPABILITIES, PlainEditor, editors

MIB = 1024 * 1024
GROWTH = 20 * MIB
KNOWING: Json = {**CAPABILITIES, "session": {"compaction": {}, "notices": {}}}


class Model:
    """It reads two files in each turn, side by side, and then says which turn that was."""

    def __init__(self) -> None:
        self.summaries: list[str] = []

    def __call__(self, body: Json) -> bytes:
        messages = body["messages"]
        if "tools" not in body:
            self.summaries.append(json.dumps(messages[-1]))
            return answer("chat", f"SUMMARY {len(self.summaries)}: the user wants it blue")
        if messages[-1]["role"] == "tool":
            return answer("chat", "done. " * 20)
        number = sum(message["role"] == "assistant" for message in messages)
        return answer("chat", "I look.", [(f"{side}{number}", "read", {"path": f"{side}.txt"}) for side in "ab"])


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with model_server() as made:
        yield made
        assert [] == made.wrong


class Stage:
    """acpd around its own agent, by itself, with the store that syncs as it may."""

    def __init__(self, tmp: Path, server: ModelServer) -> None:
        self.home, self.cwd = tmp / "home", tmp / "work"
        self.cwd.mkdir()
        for side in "ab":
            (self.cwd / f"{side}.txt").write_text(f"line of {side}\n" * 50)
        (self.home / "config").mkdir(parents=True)
        table = f'model = "openai:m"\nbase_url = "{server.url}/v1"\napi_key_env = "MODEL_KEY"\n'
        (self.home / "config" / "acpd.toml").write_text(f'[storage]\nsync = "process"\n[agents.native]\n{table}')

    def agent(self, editor: PlainEditor) -> int:
        """The pid of the agent."""
        return next(pid for pid in children(editor.process.pid) if "acpd-agent" in command(pid) or "native" in command(pid))

    def context(self, session: str) -> list[Json]:
        (path,) = self.home.glob(f"**/sessions/{session}.jsonl")
        return [json.loads(line) for line in path.read_text().splitlines()[1:]]

    def log(self, session: str) -> list[Json]:
        (path,) = self.home.glob(f"**/sessions/{session}.log.jsonl")
        return [json.loads(line) for line in path.read_text().splitlines()]


def children(pid: int) -> list[int]:
    found = [int(name) for name in os.listdir("/proc") if name.isdigit() and proc.parent(int(name)) == pid]
    return [*found, *(deeper for each in found for deeper in children(each))]


def command(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()


@pytest.mark.parametrize("turns", [pytest.param(40, marks=pytest.mark.e2e), pytest.param(1000, marks=pytest.mark.slow)])
def test_a_long_session(tmp_path: Path, server: ModelServer, monkeypatch: pytest.MonkeyPatch, turns: int) -> None:
    """Turn after turn with calls: memory of acpd and agent stays, the context has its size, the log has all, a load shows
    what was shown, also to a client that knows no compactions, and another process goes on with the summary.
    """
    stage = Stage(tmp_path, server)
    monkeypatch.setenv("ACPD_HOME", str(stage.home))
    monkeypatch.setenv("MODEL_KEY", "x")
    server.answering = model = Model()
    with editors() as start:
        editor = start(acpd("--standalone", "--agent", "native"))
        editor.initialize(KNOWING)
        session = editor.call("session/new", {"cwd": str(stage.cwd), "mcpServers": []})["result"]["sessionId"]
        editor.answers["fs/read_text_file"] = lambda params: {"result": {"content": Path(params["path"]).read_text()}}
        shown: list[Json] = []
        early, late = talk(stage, server, editor, session, turns, shown)
        assert len(model.summaries) >= turns // 12
        assert all(f"SUMMARY {number}" in asked for number, asked in enumerate(model.summaries[1:], 1))
        assert all(new - old <= GROWTH for old, new in zip(early, late, strict=True)), (early, late)
        assert 0 == editor.close()
        check_store(stage, session, turns)
        plain = start(acpd("--standalone", "--agent", "native"))
        plain.initialize(CAPABILITIES)
        load(plain, stage, session)
        assert_same([each for each in shown if each["update"]["sessionUpdate"] != "compaction_update"], plain.updates)
        assert 0 == plain.close()
        again = start(acpd("--standalone", "--agent", "native"))
        again.answers.update(editor.answers)
        again.initialize(KNOWING)
        load(again, stage, session)
        assert_same(shown, again.updates)
        assert {"stopReason": "end_turn"} == again.prompt(session, "on")["result"]
        assert f"SUMMARY {len(model.summaries)}" in json.dumps(server.bodies[-1])
        assert 0 == again.close()


def load(editor: PlainEditor, stage: Stage, session: str) -> None:
    editor.updates.clear()
    assert "result" in editor.call("session/load", {"sessionId": session, "cwd": str(stage.cwd), "mcpServers": []})


def talk(
    stage: Stage, server: ModelServer, editor: PlainEditor, session: str, turns: int, shown: list[Json]
) -> tuple[list[int], list[int]]:
    """Memory of acpd and of the agent after a tenth of the turns and after all of them. `shown` gets what the client saw."""
    early: list[int] = []
    late: list[int] = []
    begun = time.monotonic()
    for turn in range(1, turns + 1):
        text = f"turn {turn}: " + "make it blue " * 5
        editor.updates.clear()
        assert {"stopReason": "end_turn"} == editor.prompt(session, text)["result"]
        shown.append({"update": {"sessionUpdate": "user_message_chunk", "content": {"type": "text", "text": text}}})
        shown += editor.updates
        server.bodies[:-1] = []
        if turn in {turns // 10, turns}:
            late = [proc.rss(pid) for pid in (editor.process.pid, stage.agent(editor))]
            early = early or late
            print(
                f"turn {turn}: {[each // MIB for each in late]} MiB, {(time.monotonic() - begun) / turn * 1000:.0f} ms a turn"
            )
    return early, late


def check_store(stage: Stage, session: str, turns: int) -> None:
    """The context begins with the newest summary and is short, with every call's result; the log has all, and fsck agrees."""
    lines = stage.context(session)
    assert "summary" == lines[0]["type"]
    assert all(line["type"] == "message" for line in lines[1:])
    prompts = [line["content"][0]["text"].partition(":")[0] for line in lines if line.get("role") == "user"]
    assert [f"turn {number}" for number in range(turns + 1 - len(prompts), turns + 1)] == prompts
    assert 5 <= len(prompts) <= 13
    made = [call["toolCallId"] for line in lines for call in line.get("toolCalls", [])]
    assert made == [line["toolCallId"] for line in lines if line.get("role") == "tool"]
    log = stage.log(session)
    assert turns == sum(line["type"] == "prompt" for line in log)
    assert lines[0]["upTo"] in {line["id"] for line in log}
    checked = subprocess.run(acpd("fsck", session), capture_output=True, text=True, check=False)
    assert 0 == checked.returncode, checked.stdout + checked.stderr
