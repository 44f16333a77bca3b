"""`acpd cwd`: a project that moved."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Literal

import pytest

from acpd.storage.contract import Key
from acpd.wire.lines import Header
from acpd_backends.jsonl import JsonlJournals
from acpd_backends.names import Layout
from tests.cli import acpd
from tests.cli.test_removing import while_open
from tests.cli.test_stored import Shelf, conversation
from tests.support.walk import contents

Backend = Literal["workspace", "json", "sqlite"]


def folders(shelf: Shelf) -> dict[str, str]:
    """Where each session is listed."""
    (ran,) = acpd.run_many(shelf.home, ["ls", "--all", "--json"], env=shelf.env)
    return {row["id"]: row["cwd"] for row in json.loads(ran.out)}


def logs(home: Path) -> dict[str, bytes]:
    return {path.name.split(".")[0]: raw for path, raw in contents(home, "*.log.jsonl").items()}


@pytest.mark.parametrize("backend", ["workspace", "json", "sqlite"])
def test_a_project_that_moved(backend: Backend, tmp_path: Path) -> None:
    """Sessions of the old folder and below it are listed under the new one, in the same order; no line of a log changes."""
    new = tmp_path / "new"
    new.mkdir()
    shelf = Shelf(tmp_path, backend)
    shelf.add("one", conversation(), cwd="/gone/project", day=1)
    shelf.add("below", conversation(), cwd="/gone/project/lib/x", day=2)
    shelf.add("beside", conversation(), cwd="/gone/project-2", day=3)
    shelf.add("above", conversation(), cwd="/gone", day=4)
    before = logs(tmp_path)
    where = {"one": "/gone/project", "below": "/gone/project/lib/x", "beside": "/gone/project-2", "above": "/gone"}
    dry, moved, again, listed, shown, checked = acpd.run_many(
        tmp_path,
        ["cwd", "--dry-run", "/gone/project/", str(new)],
        ["cwd", "/gone/./project", str(new)],
        ["cwd", "/gone/project", str(new)],
        ["ls", "--all", "--json"],
        ["show", "one"],
        ["fsck"],
        env=shelf.env,
    )
    assert (0, 2, "") == (dry.code, len(dry.out.splitlines()), dry.err)
    assert (0, dry.out) == (moved.code, moved.out)
    assert f"one: /gone/project -> {new}\n" in moved.out
    assert (0, "") == (again.code, again.out)
    assert {**where, "one": str(new), "below": f"{new}/lib/x"} == folders(shelf)
    assert ["above", "beside", "below", "one"] == [row["id"] for row in json.loads(listed.out)]
    assert f"folder  {new}\n" in shown.out
    assert 0 == checked.code, checked.out
    after = logs(tmp_path)
    assert all(after[name].startswith(before[name]) for name in before)
    assert {"one", "below"} == {name for name in before if after[name] != before[name]}
    for catalog in (tmp_path / "data" / ".acpd").glob("*.db*"):
        catalog.unlink()
    assert {**where, "one": str(new), "below": f"{new}/lib/x"} == folders(shelf), "the log knows it"


def directories(shelf: Shelf, session: str) -> tuple[str, tuple[str, ...]]:
    """The folders that an agent is given, by the log."""

    async def peek() -> Header:
        return (await JsonlJournals(Layout(shelf.home / "data")).peek(Key("agent", session)))[0]

    header = asyncio.run(peek())
    return header.cwd, header.additionalDirectories


def test_additional_directories_move_too(tmp_path: Path) -> None:
    """Those below the old folder are then below the new one, also of a session elsewhere; the others stay; again all follow."""
    new, newer = tmp_path / "new", tmp_path / "newer"
    new.mkdir()
    newer.mkdir()
    shelf = Shelf(tmp_path)
    shelf.add("in", conversation(), cwd="/gone/p", directories=("/gone/p/lib", "/other", "/gone/p-2"))
    shelf.add("out", conversation(), cwd="/other", directories=("/other/x", "/gone/p"))
    shelf.add("not", conversation(), cwd="/other", directories=("/gone",))
    before = logs(tmp_path)
    said = {f"in: /gone/p -> {new}", f"in: /gone/p/lib -> {new}/lib", f"out: /gone/p -> {new}"}
    assert said == set(shelf.run("cwd", "--dry-run", "/gone/p", str(new)).out.splitlines())
    assert said == set(shelf.run("cwd", "/gone/p", str(new)).out.splitlines())
    assert (str(new), (f"{new}/lib", "/other", "/gone/p-2")) == directories(shelf, "in")
    assert ("/other", ("/other/x", str(new))) == directories(shelf, "out")
    assert before["not"] == logs(tmp_path)["not"]
    assert (0, "") == (shelf.run("fsck").code, shelf.run("cwd", "/gone/p", str(new)).out)
    assert 0 == shelf.run("cwd", str(new), str(newer)).code
    assert 0 == shelf.run("cwd", "/gone", str(tmp_path)).code
    assert (str(newer), (f"{newer}/lib", "/other", f"{tmp_path}/p-2")) == directories(shelf, "in")
    assert ("/other", ("/other/x", str(newer))) == directories(shelf, "out")
    assert 0 == shelf.run("fsck").code


def test_both_names_of_a_folder(tmp_path: Path) -> None:
    """A link to the old folder, or to one above it, names it as well, also where a link to the new one took its place."""
    real, new, link = tmp_path / "disk" / "p", tmp_path / "disk" / "q", tmp_path / "link"
    real.mkdir(parents=True)
    link.symlink_to(tmp_path / "disk")
    shelf = Shelf(tmp_path)
    shelf.add("one", conversation(), cwd=str(real))
    shelf.add("two", conversation(), cwd=str(real / "sub"))
    real.rename(new)
    assert 0 == shelf.run("cwd", str(link / "p"), str(link / "q")).code
    assert {"one": str(new), "two": str(new / "sub")} == folders(shelf), "listings have real paths"
    new.rename(real)
    new.symlink_to(real)
    assert 0 == shelf.run("cwd", str(new), str(real)).code
    assert {"one": str(real), "two": str(real / "sub")} == folders(shelf)


async def test_what_cannot_be_moved_is_told(tmp_path: Path) -> None:
    """A new folder that is not there is an error before anything is done; an open session is named, the others are moved."""
    shelf = Shelf(tmp_path)
    for name in ("one", "two"):
        await shelf._add(name, conversation(), "/gone", "agent", "2026-11-01T10:00:00.000Z")
    ran = shelf.run("cwd", "/gone", str(tmp_path / "nowhere"))
    assert (1, "") == (ran.code, ran.out)
    assert "there is no such folder (move the project first)" in ran.err
    ran = await while_open(tmp_path, "one", "cwd", "/gone", str(tmp_path))
    assert (1, f"two: /gone -> {tmp_path}\n") == (ran.code, ran.out)
    assert f"open in pid {os.getpid()}" in ran.err
    assert {"one": "/gone", "two": str(tmp_path)} == folders(shelf)
