"""`acpd status`: what the daemon says of itself, and how it is shown."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from acpd.cli import status
from acpd.status import MINUTE, Lag
from tests.cli import acpd
from tests.support.client import Client
from tests.support.served import ACPD, Served


def told(served: Served) -> dict[str, Any]:
    code, out, err = served.run("status", "--json")
    assert (0, "") == (code, err)
    value: dict[str, Any] = json.loads(out)
    return value


def test_what_a_daemon_does(tmp_path: Path) -> None:
    """Who is connected from where to which session, in which state each is, and which agent it has."""
    with Served(tmp_path / "home") as served:
        pid = served.serve()
        empty = told(served)
        assert (True, pid, [], [], []) == (empty["running"], *(empty[n] for n in ("pid", "connections", "sessions", "agents")))
        with served.editor(policy=None) as editor:
            session = editor.new(served.work)
            prompt = editor.start_prompt(session, "say héllo\nask")
            asked = editor.wait_request("session/request_permission")
            waiting = editor.start_prompt(session, "say more")
            value = told(served)
            _, shown, _ = served.run("status")
            editor.reply(asked, {"outcome": {"outcome": "cancelled"}})
            assert ["end_turn", "end_turn"] == [editor.result(each)["stopReason"] for each in (prompt, waiting)]
        (connection,), (live,), (agent,) = value["connections"], value["sessions"], value["agents"]
        assert ("shim", editor.pid, os.getuid(), 8) == (
            *(connection[n] for n in ("kind", "pid", "uid")),
            len(connection["token"]),
        )
        assert [{"session": session, "role": "controller", "behind": 0}] == connection["sessions"]
        assert (session, "running", 1, 1, 1) == tuple(live[n] for n in ("session", "turn", "queued", "asks", "clients"))
        assert ("say héllo", str(served.work), "scripted") == tuple(live[n] for n in ("title", "cwd", "agent"))
        assert live["seconds"] >= 0
        assert live["failing"] is None
        assert (live["link"], session, "scripted") == (agent["link"], agent["session"], agent["name"])
        assert 0 < agent["rss"] < 1 << 30
        assert {"connections": 1, "sessions": 1, "turns": 1, "queued": 1, "asks": 1, "agents": 1} == value["counts"]
        assert str(served.socket) == value["socket"]
        assert {"path": str(served.home / "data"), "backend": "workspace", "sync": "power"} == value["store"]
        assert 0 <= value["lag"]["last"] <= value["lag"]["worst"]
        assert f"daemon  pid {pid}, acpd" in shown
        assert f"{session}  running" in shown
        assert 0 == served.stop()
        assert 1 == served.run("status")[0]


def test_status_starts_no_agent(tmp_path: Path) -> None:
    """It is answered on a connection that has not said initialize; other requests are not."""
    with Served(tmp_path / "home") as served:
        served.serve()
        with Client(ACPD, served.home, env={**served.env, "ACPD_STANDALONE": ""}, check=False) as client:
            assert [] == client.call("_acpd/status", {})["agents"]
            refused = client.answer(client.request("_acpd/tree", {"sessionId": "x"}))
            assert -32600 == refused.message["error"]["code"]


def test_when_little_else_works(tmp_path: Path) -> None:
    """With as many clients as there may be, and with a configuration that is broken by now: what is wrong is told beside it.

    Others are refused as ever. Where no daemon runs, what is wrong is all there is to say.
    """
    with Served(tmp_path / "home") as served:
        file = served.home / "config" / "acpd.toml"
        file.write_text(file.read_text() + "[daemon]\nconnections = 1\n")
        served.serve()
        with served.editor() as editor:
            session = editor.new(served.work)
            editor.prompt(session, "say hello")
            assert [1, session] == [len(told(served)["connections"]), told(served)["sessions"][0]["session"]]
            assert "raise [daemon] connections" in served.run("attach", session)[2]
            file.write_text("[daemon\n")
            code, out, err = served.run("status", "--json")
            assert (0, True, True) == (code, json.loads(out)["running"], err.startswith(f"acpd: {file} is not TOML"))
        assert 0 == served.stop()
        code, out, err = served.run("status", "--json")
        assert (2, "", True) == (code, out, err.startswith(f"acpd: {file} is not TOML"))


def test_what_the_daemon_has_not_read(tmp_path: Path) -> None:
    """A change of the file is named by `acpd status` and `acpd config` as long as the daemon goes by what was there before."""
    with Served(tmp_path / "home") as served:
        file = served.home / "config" / "acpd.toml"
        pid = served.serve()
        before = served.run("config", "--json")
        assert ([], "") == (told(served)["unread"], before[2])
        file.write_text(file.read_text() + "[sessions]\ntools = true\n")
        assert ["sessions.tools"] == told(served)["unread"]
        line = "changed since the daemon has read its configuration, and not in force: sessions.tools"
        code, out, err = served.run("config", "--json")
        assert (0, True) == (code, json.loads(out)["sessions.tools"]["value"])
        assert f"acpd: {line} (acpd stop, or kill -HUP {pid})\n" == err
        file.write_text(file.read_text() + "[log]\nsize = 3\n")
        assert f"{line}, log.size (acpd stop)" in served.run("status")[1].splitlines()


def test_no_daemon(tmp_path: Path) -> None:
    """It says so, and what starts one; the exit code is 1."""
    ran = acpd.run(tmp_path, "status")
    assert (1, "") == ran[:2]
    assert f"acpd: no daemon runs for the store {tmp_path}/data (acpd serve" in ran.err
    value = {"running": False, "store": {"path": f"{tmp_path}/data"}, "pid": None, "standalone": []}
    assert value == json.loads(acpd.run(tmp_path, "status", "--json").out)


@pytest.mark.e2e
def test_sessions_without_a_daemon(tmp_path: Path) -> None:
    """Which processes have sessions open by themselves is said."""
    (tmp_path / "work").mkdir()
    with Client([*ACPD, "--standalone", "--agent", "offline"], tmp_path, check=False) as client:
        client.initialize()
        client.prompt(client.new(tmp_path / "work"), "hello")
        ran = acpd.run(tmp_path, "status")
    assert (1, f"pid {client.pid} has 1 session open, without a daemon\n") == ran[:2]


def test_lag_is_the_last_and_the_worst_of_a_minute() -> None:
    """What is older than a minute does not count; waking early is no lag."""
    lag = Lag()
    assert (0.0, 0.0) == (lag.last, lag.worst(0.0))
    for now, late in ((1.0, 0.5), (2.0, 0.1), (3.0, 0.3), (4.0, -0.2)):
        lag.add(now, late)
    assert (0.0, 0.5) == (lag.last, lag.worst(5.0))
    assert 0.3 == lag.worst(1.5 + MINUTE)
    assert 0.0 == lag.worst(5.0 + MINUTE)


VALUE: dict[str, Any] = {
    "pid": 7, "version": "1.2", "uptime": 3725.0, "socket": "/r/acpd.sock", "config": None, "rss": 40 << 20,
    "store": {"path": "/s", "backend": "json", "sync": "power"}, "lag": {"last": 0.0012, "worst": 0.25},
    "counts": {"connections": 60, "sessions": 2, "turns": 1, "queued": 2, "asks": 1, "agents": 2},
    "sessions": [
        {"session": "s-1", "title": "Fix\nit", "cwd": "/p", "agent": "a", "user": None, "turn": "running", "seconds": 65.0,
         "queued": 2, "asks": 1, "clients": 2, "failing": "cannot write: disk full", "link": "l-1"},
        {"session": "s-22", "title": None, "cwd": "/q", "agent": "b", "user": None, "turn": "idle", "seconds": None,
         "queued": 0, "asks": 0, "clients": 0, "failing": None, "link": None},
    ],
    "connections": [
        {"number": n, "kind": "shim", "token": "0123abcd", "pid": 9, "uid": 1, "seconds": 90061.0,
         "sessions": [{"session": "s-1", "role": "observer", "behind": 12}] if n == 1 else []} for n in range(1, 61)
    ],
    "agents": [
        {"link": "l-1", "name": "a", "pid": 11, "session": "s-1", "rss": 5 << 20},
        {"link": "l-2", "name": "b", "pid": 12, "session": None, "rss": None},
    ],
}  # fmt: skip


def test_how_it_is_shown() -> None:
    """Aligned, one line for each thing, trouble in capitals, and of very many connections the first ones."""
    lines = status.lines(VALUE)
    assert [
        "daemon  pid 7, acpd 1.2, up 1h 2m",
        "socket  /r/acpd.sock",
        "store   /s (json, sync power)",
        "config  none",
        "memory  40 MiB",
        "lag     1.2 ms, at worst 250.0 ms in the last minute",
        "counts  connections 60, sessions 2, running turns 1, waiting prompts 2, open questions 1, agents 2",
        "",
        "sessions:",
        "  s-1   running 1m 5s, 2 waiting, 1 asked  2 attached  a (pid 11, 5 MiB)  Fix it  /p",
        "  s-22  idle                               0 attached  b                          /q",
        "",
        "connections:",
        "  #1   shim 0123abcd  pid 9  1d 1h  s-1 observer 12 behind",
        "  #2   shim 0123abcd  pid 9  1d 1h  no session",
    ] == lines[:15]
    end = ["agents without a session:", "  b  pid 12  -  l-2", "CANNOT WRITE s-1: cannot write: disk full"]
    assert [*end, "10 more connections: --json"] == lines[-4:]


@pytest.mark.parametrize(("seconds", "text"), [(None, "-"), (0.4, "0s"), (200, "3m 20s"), (90_000, "1d 1h")])
def test_spans(seconds: float | None, text: str) -> None:
    """Two units at most."""
    assert text == status.span(seconds)
