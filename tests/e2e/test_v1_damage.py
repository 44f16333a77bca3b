"""Files of the store are changed between two runs: nothing readable is lost, nothing is overwritten, everything is told."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import store
from tests.support.client import Client
from tests.support.scripted import Stage
from tests.support.walk import below

pytestmark = pytest.mark.e2e

SCRIPT = "say one\ntool x\nthink two\nsay three"


def made(play: Stage) -> tuple[str, Path]:
    """A session of two turns with a state, and its log."""
    client = play.start()
    session = client.new(play.cwd)
    client.prompt(session, SCRIPT)
    client.prompt(session, 'state memory {"a":1}\ncounter\nsay four\nplan p\nusage 3')
    client.call("session/set_mode", {"sessionId": session, "modeId": "code"})
    play.finish(client)
    return session, store.log(play.home, session).path


@pytest.mark.parametrize("cut", [1, 2, 17, 80, 200])
def test_a_torn_tail_is_cut_off_and_kept_aside(cut: int, play: Stage) -> None:
    """The last bytes are missing: what is whole is shown, the next turn is appended in step, nothing else is lost."""
    session, path = made(play)
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    for turn in range(2):
        client = play.start()
        client.load(session, play.cwd)
        assert "one" in client.text(session)
        assert "end_turn" == client.prompt(session, f"say more {turn}")
        end(client)
    log = store.log(play.home, session)
    assert path.read_bytes().startswith(whole[: whole.rfind(b"\n", 0, len(whole) - cut) + 1])
    assert ["say more 0", "say more 1"] == [entry["prompt"][0]["text"] for entry in log.of("prompt")[-2:]]


def nuls(raw: bytes) -> bytes:
    at = raw.index(b'"one"')
    return raw[:at] + b"\0" * 4096 + raw[at:]


def bad_line(raw: bytes) -> bytes:
    lines = raw.split(b"\n")
    at = next(i for i, line in enumerate(lines) if b'"text":"one"' in line)
    return b"\n".join([*lines[:at], b"{this is no line", *lines[at + 1 :]])


def half_line(raw: bytes) -> bytes:
    """Two records in one line, the first cut: a torn write and then an append."""
    lines = raw.split(b"\n")
    at = next(i for i, line in enumerate(lines) if b'"text":"one"' in line)
    return b"\n".join([*lines[:at], lines[at][:40] + lines[at + 1], *lines[at + 2 :]])


def wild_type(raw: bytes) -> bytes:
    return raw.replace(b'{"type":"update"', b'{"type":"from-the-future"', 1)


def bad_utf8(raw: bytes) -> bytes:
    return raw.replace(b'"text":"one"', b'"text":"\xff\xfe"', 1)


def twice(raw: bytes) -> bytes:
    lines = raw.split(b"\n")
    at = next(i for i, line in enumerate(lines) if b'"text":"one"' in line)
    return b"\n".join([*lines[: at + 1], lines[at], *lines[at + 1 :]])


@pytest.mark.parametrize("count", [1, 2, 4, 0])
def test_lines_that_stand_twice_cost_nothing(count: int, play: Stage) -> None:
    """The last lines, or (0) all of them, were doubled: what is said next is shown after a restart, and in a fork."""
    session, path = made(play)
    lines = path.read_bytes().splitlines(keepends=True)
    with path.open("ab") as file:
        file.write(b"".join(lines[-count:]))
    client = play.start()
    client.load(session, play.cwd)
    before = client.text(session)
    assert 1 == before.count("three")
    assert "end_turn" == client.prompt(session, "say after")
    end(client)
    client = play.start()
    client.load(session, play.cwd)
    assert before + "after" == client.text(session)
    fork = client.call("session/fork", {"sessionId": session, "cwd": str(play.cwd), "mcpServers": []})["sessionId"]
    client.load(fork, play.cwd)
    assert before + "after" == client.text(fork)
    end(client)


def end(client: Client) -> None:
    """Of a client whose store is not whole."""
    client.close_stdin()
    assert 0 == client.wait_exit()
    client.stop()
    client.assert_clean()


@pytest.mark.parametrize("damage", [nuls, bad_line, half_line, wild_type, bad_utf8, twice], ids=lambda f: f.__name__)
def test_damage_in_the_middle_costs_only_what_it_hit(damage: Callable[[bytes], bytes], play: Stage) -> None:
    """What is before and behind it is shown, the file is not rewritten, the session goes on."""
    session, path = made(play)
    broken = damage(path.read_bytes())
    path.write_bytes(broken)
    client = play.start()
    client.load(session, play.cwd)
    assert "three" in client.text(session)
    assert "four" in client.text(session)
    assert "end_turn" == client.prompt(session, "say more")
    end(client)
    assert path.read_bytes().startswith(broken)
    assert b'"text":"more"' in path.read_bytes()


@pytest.mark.parametrize("how", ["gone", "empty", "torn", "noise", "foreign", "folder"])
@pytest.mark.parametrize("what", ["idx", "context", "sessions.json", "catalog.db", "catalog.db-wal"])
def test_what_is_only_a_copy_is_made_anew(what: str, how: str, play: Stage) -> None:
    """Index, context, catalog and sessions.json are derived: whatever stands there, list, load and prompt work."""
    session, path = made(play)
    index = path.with_name(f"{session}.idx")
    files = {"idx": index, "context": path.with_name(f"{session}.jsonl"), "sessions.json": path.with_name("sessions.json")}
    found = files.get(what) or below(play.home, "catalog.db")[0].with_name(what)
    if how == "folder" and what.startswith("catalog"):
        how = "gone"  # a folder in the place of a database is an error that names it
    _spoil(found, how)
    client = play.start("--no-list")
    assert [session] == [row["sessionId"] for row in client.call("session/list", {})["sessions"]]
    client.load(session, play.cwd)
    assert "onethree" in client.text(session)
    assert "end_turn" == client.prompt(session, "say more")
    play.finish(client)
    client = play.start("--no-list")
    client.load(session, play.cwd)
    assert client.text(session).endswith("more")
    play.finish(client)


def _spoil(path: Path, how: str) -> None:
    before = path.read_bytes() if path.is_file() else b""
    if path.exists():
        path.unlink()
    if how == "folder":
        path.mkdir()
        (path / "x").write_text("x")
    elif how != "gone":
        noise = {"empty": b"", "torn": before[: len(before) // 2], "noise": os.urandom(5000), "foreign": b'{"version":99}\n'}
        path.write_bytes(noise[how])


@pytest.mark.parametrize("text", ["", "{", "null", "\0" * 100, '{"name":"memory"}', "[" * 100_000])
def test_a_state_that_cannot_be_read_is_told_and_kept(text: str, play: Stage) -> None:
    """Never an overwrite, never a crash: load shows everything; the prompt works or is an error that names the file."""
    session, _ = made(play)
    (path,) = below(play.home, "memory.json")
    path.write_text(text)
    client = play.start()
    client.load(session, play.cwd)
    assert "four" in client.text(session)
    answer = client.answer(client.start_prompt(session, "say more")).message
    assert "result" in answer or "memory" in answer["error"]["message"]
    play.finish(client)
    assert any(text in other.read_text() for other in path.parent.iterdir())


@pytest.mark.parametrize("header", [b"", b"{}", b"null", b'{"type":"session","version":99,"id":"x"}', b"\xff\xff"])
def test_a_log_without_a_usable_header_harms_only_itself(header: bytes, play: Stage) -> None:
    """It is an error that names it, or read-only; the file is not touched; other sessions are listed and work."""
    session, path = made(play)
    client = play.start()
    other = client.new(play.cwd)
    client.prompt(other, "say fine")
    play.finish(client)
    rest = path.read_bytes().split(b"\n", 1)[1]
    path.write_bytes(header + b"\n" + rest)
    broken = path.read_bytes()
    client = play.start("--no-list")
    answer = client.answer(
        client.request("session/load", {"sessionId": session, "cwd": str(play.cwd), "mcpServers": []})
    ).message
    assert "result" in answer or session in answer["error"]["message"]
    client.load(other, play.cwd)
    assert "end_turn" == client.prompt(other, "say on")
    assert other in [row["sessionId"] for row in client.call("session/list", {})["sessions"]]
    client.close_stdin()
    assert 0 == client.wait_exit()
    client.stop()
    client.assert_clean()
    assert broken == path.read_bytes()


def test_a_blob_that_is_gone_costs_that_payload(play: Stage) -> None:
    """The rest of the conversation is shown, and the session goes on."""
    client = play.start()
    session = client.new(play.cwd)
    client.prompt(session, "say before\nimage 100000\nsay behind")
    play.finish(client)
    for blob in below(play.home, "*.blobs/*"):
        blob.unlink()
    client = play.start()
    client.load(session, play.cwd)
    assert "before" in client.text(session)
    assert "behind" in client.text(session)
    (image,) = [line.update["content"] for line in client.updates() if line.update["content"]["type"] == "image"]
    assert "[acpd has lost these 100000 bytes" in image["data"]
    assert "end_turn" == client.prompt(session, "say more")
    play.finish(client)


def test_the_whole_catalog_folder_gone_costs_nothing(play: Stage) -> None:
    """Sessions are found again by their logs."""
    session, _ = made(play)
    for folder in below(play.home, "*.acpd") + below(play.home, ".acpd"):
        shutil.rmtree(folder, ignore_errors=True)
    client = play.start("--no-list")
    assert [session] == [row["sessionId"] for row in client.call("session/list", {})["sessions"]]
    client.load(session, play.cwd)
    play.finish(client)


def test_a_log_copied_into_another_store_is_there(play: Stage) -> None:
    """Only the logs are copied to a new home: listed, loaded, prompted, with the agent's own memory."""
    session, path = made(play)
    target = play.tmp / "new-home" / path.relative_to(play.home).parent
    target.mkdir(parents=True)
    shutil.copy(path, target)
    play.home = play.tmp / "new-home"
    client = play.start("--no-list")
    assert [session] == [row["sessionId"] for row in client.call("session/list", {})["sessions"]]
    client.load(session, play.cwd)
    assert "end_turn" == client.prompt(session, "history")
    assert "history 1" in client.text(session)
    play.finish(client)


def test_a_leftover_of_another_boot_or_of_nobody_is_no_trouble(play: Stage) -> None:
    """Link files that are noise, or of processes that are long gone, are cleared; no stranger's process is ended."""
    session, _ = made(play)
    links = play.home / "run" / "links"
    links.mkdir(parents=True, exist_ok=True)
    (links / "a.json").write_text("{")
    (links / "b.json").write_text(json.dumps({"pid": os.getpid(), "started": 1, "boot": "x", "owner": 1, "ownerStarted": 1}))
    (links / "c.json").write_text(json.dumps({"pid": os.getpid(), "started": 1, "owner": 999999, "ownerStarted": 5}))
    (links / "d.json").mkdir()
    client = play.start()
    client.load(session, play.cwd)
    assert "end_turn" == client.prompt(session, "say x")
    play.finish(client)
