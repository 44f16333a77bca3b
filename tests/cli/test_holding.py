"""Commands on a session that the daemon has open, and `acpd stop`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.cli import acpd
from tests.support.client import Client
from tests.support.served import Served


def live(served: Served) -> dict[str, dict[str, Any]]:
    """What the daemon has open, by id."""
    return {each["session"]: each for each in json.loads(served.run("status", "--json")[1])["sessions"]}


def ends(served: Served, session: str) -> list[str]:
    """The last entries of its turns."""
    entries = [json.loads(line) for line in served.run("show", session, "--json")[1].splitlines()]
    return [entry["id"] for entry in entries if entry["type"] == "turn" and entry["state"] == "ended"]


def left(served: Served, *prompts: str) -> str:
    """A session of an editor that has gone; the daemon keeps it open for a while."""
    with served.editor() as editor:
        session = editor.new(served.work)
        for prompt in prompts:
            assert "end_turn" == editor.prompt(session, prompt)
    return session


def test_what_the_daemon_keeps_open(tmp_path: Path) -> None:
    """Once all editors have gone, label and branch say and do what they always do, the daemon keeps it open; rm removes it."""
    with Served(tmp_path / "home") as served:
        served.serve()
        session = left(served, "say one.", "say two.")
        first, _ = ends(served, session)
        before = live(served)[session]["link"]
        assert (0, f"entry {first} of session {session} is labelled L\n", "") == served.run("label", f"{session}@{first}", "L")
        assert before == live(served)[session]["link"] is not None
        assert (0, f"session {session} goes on at {first}\n", "") == served.run("branch", f"{session[:13]}@L")
        assert session in live(served)
        assert "two." not in served.run("show", session)[1]
        assert (0, f"removed {session}\n", "") == served.run("rm", session)
        assert {} == live(served)
        assert 1 == served.run("show", session)[0]


@pytest.mark.e2e
def test_what_the_daemon_refuses(tmp_path: Path) -> None:
    """The errors are those of a session that nobody has open."""
    with Served(tmp_path / "home") as served:
        session = left(served, "say one.")
        served.run("stop")
        place = f"{session}@nowhere"
        commands = [
            ("branch", place),
            ("label", place, "x"),
            ("label", f"{session}@{session[:8]}", "a\nb"),
            ("branch", session),
        ]
        expected = [served.run(*words) for words in commands]
        served.serve()
        with served.editor() as editor:
            editor.load(session, served.work)
            assert expected == [served.run(*words) for words in commands]
    assert [1, 1, 1, 2] == [code for code, _, _ in expected]


@pytest.mark.e2e
def test_beside_an_editor(tmp_path: Path) -> None:
    """An editor that has it open is told of the branch; while a turn runs label works and branch says what to do."""
    with Served(tmp_path / "home") as served:
        served.serve()
        with served.editor(policy=None) as editor:
            session = editor.new(served.work)
            assert "end_turn" == editor.prompt(session, "say one.")
            (first,) = ends(served, session)
            prompt = editor.start_prompt(session, "ask")
            asked = editor.wait_request("session/request_permission")
            assert 0 == served.run("label", f"{session}@{first}", "L")[0]
            code, out, err = served.run("branch", f"{session}@L")
            assert (1, "") == (code, out)
            assert "is running: cancel it or wait for its end, then branch" in err
            editor.reply(asked, {"outcome": {"outcome": "cancelled"}})
            editor.result(prompt)
            assert (0, f"session {session} goes on at {first}\n", "") == served.run("branch", f"{session}@L")
            assert "end_turn" == editor.prompt(session, "say three.")
            told = [each.params["_meta"] for each in editor.updates() if "acpd.dev/leaf" in each.params.get("_meta", {})]
            assert [first] == [meta["acpd.dev/leaf"] for meta in told]


@pytest.mark.e2e
def test_rm_of_what_is_in_use(tmp_path: Path) -> None:
    """Without a terminal it needs --yes and says what goes on; on one the question says that."""
    with Served(tmp_path / "home") as served:
        pid = served.serve()
        with served.editor(policy=None) as editor:
            session = editor.new(served.work)
            editor.start_prompt(session, "ask")
            editor.wait_request("session/request_permission")
            code, out, err = served.run("rm", session)
            assert (1, "") == (code, out)
            assert (
                f"open in pid {pid}, the daemon of this store: a turn runs, 1 attached (--yes removes it all the same)" in err
            )
            asked = acpd.on_terminal(served.home, "rm", session, say="n\n")
            assert f"remove {session} (ask) [a turn runs, 1 attached] for good? [y/N]" in asked.out
            assert [session] == list(live(served))
            assert (0, f"removed {session}\n", "") == served.run("rm", "--yes", session)
            assert {} == live(served)


@pytest.mark.e2e
def test_what_the_daemon_lets_go(tmp_path: Path) -> None:
    """cwd and fsck --repair have the daemon close what it only keeps open; what is in use they leave, and say why."""
    with Served(tmp_path / "home") as served:
        pid = served.serve()
        new = served.home / "new"
        new.mkdir()
        idle = left(served, "say one.")
        with served.editor() as editor:
            used = editor.new(served.work)
            editor.prompt(used, "say two.")
            code, out, err = served.run("fsck", "--repair")
            assert (1, f"open in pid {pid}, the daemon of this store: 1 attached (close it in the editors") == (
                code, err.partition("open session ")[2].partition(": ")[2].partition(", then")[0])  # fmt: skip
            assert [used] == list(live(served))
            left(served, "say three.")
            code, out, err = served.run("cwd", str(served.work), str(new))
            assert (1, 1) == (code, err.count("1 attached"))
            assert (True, False, 2) == (f"{idle}: {served.work} -> {new}" in out, used in out, out.count("\n"))
            assert "end_turn" == editor.prompt(used, "say four.")
        assert 0 == served.run("cwd", str(served.work), str(new))[0]


@pytest.mark.e2e
def test_migrate_wants_no_daemon(tmp_path: Path) -> None:
    """It would go on with the old backend: the error names it and what ends it; behind `acpd stop` it works."""
    with Served(tmp_path / "home") as served:
        pid = served.serve()
        left(served, "say one.")
        for more in ([], ["--dry-run"]):
            code, out, err = served.run("migrate", "--to", "json", *more)
            assert (1, "") == (code, out)
            assert f"its daemon runs, pid {pid} (close the editors that use it, then 'acpd stop')" in err
        assert 0 == served.run("stop")[0]
        assert 0 == served.run("migrate", "--to", "json")[0]


@pytest.mark.e2e
def test_a_daemon_that_listens_elsewhere(tmp_path: Path) -> None:
    """One started with other words for the same store is named, with what to do; `acpd stop` ends it from here."""
    with Served(tmp_path / "home") as served:
        pid = served.serve()
        session = left(served, "say one.")
        (place,) = ends(served, session)
        words = ("--storage", str(served.home / "data"))
        code, out, err = served.run(*words, "status")
        assert (1, "", 1) == (code, out, err.count("\n"))
        assert f"pid {pid}, cannot be reached: nobody listens at {served.home}/run/acpd-" in err
        assert "(it was started with other flags or variables for its store: use those, or end it with 'acpd stop')" in err
        code, out, err = served.run(*words, "label", f"{session}@{place}", "L")
        assert (1, "") == (code, out)
        assert f"open in pid {pid}, the daemon of this store (close the editors that use it, then 'acpd stop')" in err
        assert f"pid {pid}\nit has ended" in served.run(*words, "stop")[1]
        assert 0 == served.run(*words, "label", f"{session}@{place}", "L")[0]


@pytest.mark.e2e
def test_stop(tmp_path: Path) -> None:
    """The daemon that an editor has started ends when its turns have; what it had open is saved. Without one that is said."""
    with Served(tmp_path / "home") as served:
        none = (0, f"no daemon runs for the store {served.home}/data\n", "")
        assert none == served.run("stop")
        session = left(served, "say one.")
        pid = json.loads(served.run("status", "--json")[1])["pid"]
        said = (
            f"stopping the daemon of the store {served.home}/data: pid {pid}, running turns 0, connections 0\n"
            "it has ended; the next editor starts another one\n"
        )
        assert (0, said, "") == served.run("stop")
        assert none == served.run("stop")
        assert (1, "") == served.run("status")[:2]
        assert "one." in served.run("show", session)[1]


@pytest.mark.e2e
def test_stop_of_a_service(tmp_path: Path) -> None:
    """Of a daemon that systemd has started it says what would start the next one."""
    with Served(tmp_path / "home") as served:
        pid = served.serve("sh", "-c", 'SYSTEMD_EXEC_PID=$$ exec "$@"', "sh")
        code, out, err = served.run("stop")
        assert (0, "") == (code, err)
        assert f"pid {pid}, running turns 0, connections 0\nit has ended; systemd starts the next one" in out


@pytest.mark.e2e
def test_stop_while_an_editor_is_open(tmp_path: Path) -> None:
    """Its turn has time to end, with --now none; its next daemon is another process, and the session goes on."""
    with Served(tmp_path / "home") as served:
        with served.editor(policy=None) as editor:
            stopped_twice(served, editor)
        served.run("stop")


def stopped_twice(served: Served, editor: Client) -> None:
    session = editor.new(served.work)
    first = json.loads(served.run("status", "--json")[1])["pid"]
    slow = editor.start_prompt(session, "sleep 1500\nsay done.")
    editor.wait("the turn runs", lambda: live(served)[session]["turn"] == "running")
    code, out, _ = served.run("stop")
    assert (0, True) == (code, f"pid {first}, running turns 1, connections 1\nit has ended; the editors that" in out)
    assert "end_turn" == editor.result(slow)["stopReason"]
    assert "end_turn" == editor.prompt(session, "say on.")
    second = json.loads(served.run("status", "--json")[1])["pid"]
    editor.start_prompt(session, "hang")
    editor.wait("the turn runs", lambda: live(served)[session]["turn"] == "running")
    began = os.times().elapsed
    code, out, _ = served.run("stop", "--now")
    assert (0, True) == (code, f"pid {second}, running turns 1" in out)
    assert os.times().elapsed - began < 4.5, "the time that turns have was waited for"
    third = json.loads(served.run("status", "--json")[1])["pid"]
    assert 3 == len({first, second, third})
