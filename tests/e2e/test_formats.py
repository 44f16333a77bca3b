"""Stores that earlier versions wrote: opened, listed, checked, loaded, gone on with."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from acpd.wire.lines import VERSION
from tests.cli import acpd
from tests.support import commands, store
from tests.support.client import Client
from tests.support.walk import contents

STORES = Path(__file__).parents[1] / "stores"
FORMATS = sorted(path.name for path in STORES.glob("format-*"))
BACKENDS = ("workspace", "json", "sqlite")


def test_every_format_has_its_store() -> None:
    """The present version has one as well, made by `python -m tests.stores.make`."""
    assert [f"format-{number}" for number in range(1, VERSION + 1)] == FORMATS
    assert all({*BACKENDS} == {path.name for path in (STORES / name).iterdir()} for name in FORMATS)


@pytest.mark.parametrize("backend", commands.backends())
@pytest.mark.parametrize("written", FORMATS)
def test_a_store_that_an_earlier_version_wrote(written: str, backend: str, tmp_path: Path) -> None:
    """Its sessions are listed and whole; each is loaded, with its blobs and mode, and gone on with; no old line changes."""
    home = tmp_path / "home"
    shutil.copytree(STORES / written / backend, home / "data")
    before = {path: raw for path, raw in contents(home, "*.log.jsonl").items() if "u-alice" not in path.parts}
    env = {"ACPD_STORAGE_BACKEND": backend, "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))}
    checked, listed, alices = acpd.run_many(
        home, ["fsck"], ["ls", "--all", "--json"], ["--user", "alice", "ls", "--all", "--json"], env=env
    )
    assert (0, "3 sessions: 0 findings, 0 notes\n") == (checked.code, checked.out)
    assert (3 if backend == "workspace" else 0) == len(json.loads(alices.out))
    assert {"say hello", "say it", "say something else"} == {row["title"] for row in json.loads(listed.out)}
    with Client(commands.acpd(), home, env=env, cwd=Path("/")) as client:
        client.initialize()
        for row in json.loads(listed.out):
            setup = client.load(row["id"], "/")
            assert "ask" == setup["modes"]["currentModeId"]
            assert "end_turn" == client.prompt(row["id"], "say more")
            turn = 6 if row["title"] == "say hello" else 2
            assert f"(turn {turn}) more" in client.text(row["id"]), "the agent has what it kept"
        images = [line.update for line in client.updates("user_message_chunk") if line.update["content"]["type"] == "image"]
        assert [70_011] == [len(image["content"]["data"]) for image in images]
    for path, data in before.items():
        assert path.read_bytes().startswith(data)
        store.check(store.read(path), forked=b'"parent":{' in data)
    assert 0 == acpd.run(home, "fsck", env=env).code
