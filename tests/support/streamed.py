"""What tests/support/streamer.py says that it did, against a log: nothing but what was said is stored, nothing was run twice.

An oracle: it imports nothing of the product.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.support import store
from tests.support.fold import View, fold, prompt

Json = dict[str, Any]


def check_said(log: store.Log, trace: Path) -> None:
    """The agent got no prompt that is not in the log, none twice; what is stored is the beginning of what it said."""
    check_all_said([log], [trace])


def check_all_said(logs: Iterable[store.Log], traces: Iterable[Path]) -> None:
    """The same of many sessions and their agents, where no two prompts are the same."""
    said: dict[str, list[Json]] = {}
    for trace in traces:
        found = said_by_prompt(trace)
        assert not said.keys() & found.keys(), f"agents were given {said.keys() & found.keys()} twice"
        said |= found
    stored = {text: updates for log in logs for text, updates in stored_by_prompt(log).items()}
    assert set(said) <= set(stored), "the agent got a prompt that is not in the log"
    for text, updates in stored.items():
        check_prefix(updates, said.get(text, []))


def said_by_prompt(trace: Path) -> dict[str, list[Json]]:
    """What the agent says it was asked, and what it answered to each. Fails if it was asked the same twice."""
    said: dict[str, list[Json]] = {}
    current: list[Json] = []
    for line in trace.read_text(encoding="utf-8").split("\n") if trace.exists() else []:
        kind, _, text = line.partition(" ")
        if kind == "prompt":
            assert json.loads(text) not in said, f"the agent was given {text} twice"
            current = said.setdefault(json.loads(text), [])
        elif kind == "update" and _whole(text):
            current.append(json.loads(text))
    return said


def _whole(text: str) -> bool:
    """The agent may have been killed in the middle of a line of its trace."""
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def stored_by_prompt(log: store.Log) -> dict[str, list[Json]]:
    found: dict[str, list[Json]] = {}
    current: list[Json] = []
    for entry in log.entries:
        if entry["type"] == "prompt":
            current = found.setdefault(entry["prompt"][0]["text"], [])
        elif entry["type"] == "update" and not is_notice(entry):
            current.append(entry["params"]["update"])
    return found


def is_notice(entry: Json) -> bool:
    """What acpd said itself: kept for replays, no part of what the agent said."""
    return bool((entry["params"].get("_meta") or {}).get("acpd.dev/notice"))


def check_prefix(stored: list[Json], said: list[Json]) -> None:
    """What is stored is what was said, from the beginning, in order; only adjacent plain chunks may be joined."""
    rest = iter(said)
    for update in stored:
        got = next(rest, None)
        assert got is not None, f"stored and never said: {update}"
        while got != update and _joins(got, update):
            more = next(rest, None)
            assert more is not None, f"stored and never said: {update}"
            got = {**got, "content": {"type": "text", "text": got["content"]["text"] + more["content"]["text"]}}
        assert update == got


def _joins(got: Json, update: Json) -> bool:
    same = got["sessionUpdate"] == update["sessionUpdate"] and got.get("messageId") == update.get("messageId")
    return same and "content" in got and len(got["content"].get("text", "")) < len(update["content"].get("text", ""))


def view_of_log(log: store.Log) -> View:
    """What the whole log looks like to a client."""
    params: list[Json] = []
    for entry, line in zip(log.entries, log.lines, strict=True):
        if entry["type"] == "prompt":
            params += prompt(log.id, entry["prompt"], entry["id"])
        elif entry["type"] == "update" and not is_notice(entry):
            text = store.stored_update(line)
            assert text is not None
            params.append({"sessionId": log.id, "update": json.loads(text)})
    return fold(params)


def assert_same_view(stored: View, loaded: View) -> None:
    """The same messages, calls and plan; a call that was left open may have been closed."""
    assert stored.timeline == loaded.timeline, f"the log says {stored.texts}, and a client shows {loaded.texts}"
    assert stored.closed().tools == loaded.closed().tools, f"the log has {stored.tools}, and a client shows {loaded.tools}"
    assert stored.plan == loaded.plan, f"the log has {stored.plan}, and a client shows {loaded.plan}"
