"""What the bench leans on measures what it says; the figures themselves are `make bench`'s."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import jsonschema
import pytest

from tests.bench import stall
from tests.bench.kit import Bench, RowFailed, find
from tests.bench.mixed_agent import updates
from tests.bench.rows import ROWS, Result, table
from tests.support.paths import ROOT, SHARED
from tests.support.plain_editor import PlainEditor, editors

HERE = ROOT / "tests/bench"
OFFLINE = [sys.executable, "-m", "acpd.native.entry", "--offline"]
HOARDER = """
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if message["method"] == "session/prompt":
        hoard = b"y" * (40 << 20)
        for _ in range(int(message["params"]["prompt"][0]["text"].split()[1])):
            print("x" * 1000)
    print(json.dumps({"id": message["id"], "result": {"sessionId": "s", "stopReason": "end_turn"}}), flush=True)
"""


def test_mixed_updates_do_not_fold() -> None:
    """Every update is a message or a tool call of its own, so that a folded replay has as many; and all are valid."""
    found = [json.loads(text) for text in updates(2000, 120)]
    assert 2000 == len({update.get("messageId") or update["toolCallId"] for update in found})
    schema = json.loads((SHARED / "acp-schema/schema.unstable.json").read_text())
    validator = jsonschema.Draft202012Validator({"$ref": "#/$defs/SessionUpdate", "$defs": schema["$defs"]})
    assert [] == [update for update in found[:40] if not validator.is_valid(update)]
    mean = sum(len(update["content"]["text"]) for update in found if "content" in update) / 1600
    assert 100 < mean < 140


@pytest.mark.parametrize("command", [["sh", str(HERE / "instant_agent.sh")], [sys.executable, str(HERE / "mixed_agent.py")]])
def test_the_bench_agents_speak_acp(command: list[str]) -> None:
    """Both answer what a start asks; the mixed one sends as many updates as it was told."""
    with editors() as start:
        editor: PlainEditor = start(command)
        assert 1 == editor.initialize()["protocolVersion"]
        session = editor.new()
        editor.prompt(session, "/mixed 500 20")
        assert (500 if "mixed_agent" in command[-1] else 0) == len(editor.updates)


def test_a_stalled_client_loses_nothing() -> None:
    """Row 12 on an agent that waits for its reader: little growth, every update when it reads again."""
    found = stall.measure(OFFLINE, {}, 5)
    assert 5_000_000 // 1200 == found.updates
    assert found.grown_mib < 8


@pytest.mark.e2e
def test_an_editor_that_stalls_behind_a_shim_loses_nothing(tmp_path: Path) -> None:
    """The same by shim and daemon, whose memory is counted together; and the CPU of both is measured."""
    bench = Bench(folder=tmp_path)
    with bench.daemon("stall", "process") as pid:
        command, env = bench.wrap(OFFLINE), bench.env("stall", "process", alone=False)
        used = stall.used(command, env, 2000, pid)
        found = stall.measure(command, env, 5, pid)
    assert 5_000_000 // 1200 == found.updates
    assert found.grown_mib < 16
    assert 0 < used.shim < used.daemon


def test_a_hoarder_is_seen() -> None:
    """Row 12 on an agent that hoards 40 MiB shows that growth."""
    assert 38 < stall.measure([sys.executable, "-c", HOARDER], {}, 1).grown_mib < 60


def test_every_row_of_the_first_slice_is_there() -> None:
    """Rows 1 to 13 are measured."""
    assert {str(number) for number in range(1, 14)} <= set(ROWS)


@pytest.mark.e2e
def test_the_own_rows_measure(tmp_path: Path) -> None:
    """Rows 7 and 10 run on small sizes: the log has what was asked for, and its tree is found with and without an index."""
    bench = Bench(folder=tmp_path)
    written = bench.own("write_log", str(tmp_path), 2000)
    assert 2000 == written["entries"]
    opened = bench.own("open_log", str(tmp_path))
    assert {"all", "last", "indexed"} == set(opened)
    assert 1000 < bench.own("json_log", str(tmp_path))["length"] < 2000
    assert 100 < bench.own("idle_sessions", str(tmp_path), 100)["bytes"] < 1 << 20
    filled = bench.own("fill_words", str(tmp_path / "words"), 1)
    assert 1_000_000 < filled["text"] < 1_300_000
    assert bench.own("turn_words", str(tmp_path / "words"))["index_us"] > 0
    with pytest.raises(RowFailed):
        bench.own("no_such_function")


def test_the_table_says_what_was_missed() -> None:
    """One line a result; a target that was not reached says NO, a figure without a target nothing."""
    lines = table([Result("1", "a", "<= 2", "3", ok=False), Result("x", "b", "", "4", ok=None)]).splitlines()
    assert ["1", "a", "<= 2", "3", "NO"] == [cell.strip() for cell in lines[2].strip("|").split("|")]
    assert ["x", "b", "", "4", ""] == [cell.strip() for cell in lines[3].strip("|").split("|")]


def test_a_row_that_the_kit_dropped_is_a_failure() -> None:
    """The kit leaves out what failed in a round; that is no figure."""
    assert {"design": "a", "n": 1} == find([{"design": "a", "n": 1}], "design", "a", n=1)
    with pytest.raises(RowFailed):
        find([{"design": "a", "n": 1}], "design", "a", n=2)
