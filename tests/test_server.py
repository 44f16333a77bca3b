"""A daemon with clients: what a new configuration changes under them, whom it refuses, what it says of itself."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.support.scripted import until
from tests.support.served import Served


def logged(served: Served) -> list[dict[str, Any]]:
    path = served.home / "data" / "logs" / "acpd.log"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def events(served: Served) -> list[str]:
    return [str(line["event"]) for line in logged(served)]


@pytest.mark.e2e
def test_a_new_configuration_is_in_force_for_who_is_connected(tmp_path: Path) -> None:
    """After SIGHUP the next agent of an editor that was there before has its new environment."""
    with Served(tmp_path) as served:
        pid = served.serve()
        file = tmp_path / "config" / "acpd.toml"
        was = file.read_text()
        file.write_text(was + '[agents.scripted.env]\nWHICH = "one"\n')
        os.kill(pid, signal.SIGHUP)
        until("the first reload", lambda: 1 == events(served).count("configuration read again"))
        client = served.editor()
        session = client.new(served.work)
        client.prompt(session, "env WHICH")
        assert client.text(session).endswith("one")
        file.write_text(was + '[agents.scripted.env]\nWHICH = "two"\n[sessions]\nkeep_idle = 10\n')
        os.kill(pid, signal.SIGHUP)
        until("the second reload", lambda: 2 == events(served).count("configuration read again"))
        client.call("session/close", {"sessionId": session})
        client.prompt(session, "env WHICH")
        assert client.text(session).endswith("two")
        client.close_stdin()
        client.stop()


@pytest.mark.e2e
def test_a_client_that_wants_more_durability_is_not_served(tmp_path: Path) -> None:
    """A daemon with sync = "process" refuses who wants "power": that acpd serves alone, and says why."""
    with Served(tmp_path) as served:
        file = tmp_path / "config" / "acpd.toml"
        file.write_text(file.read_text() + '[storage]\nsync = "process"\n')
        served.serve()
        refused = served.editor(env={"ACPD_STORAGE_SYNC": "power"})
        assert 'cannot serve a client that wants storage.sync = "power"' in refused.stderr()
        refused.close_stdin()
        refused.stop()
        client = served.editor()
        assert "serves alone" not in client.stderr()
        client.close_stdin()
        client.stop()


@pytest.mark.e2e
def test_what_a_daemon_says_of_itself(tmp_path: Path) -> None:
    """Its log tells who came and left, and that it was told to stop: a stop and a kill do not look the same."""
    with Served(tmp_path) as served:
        served.serve()
        client = served.editor()
        client.close_stdin()
        client.stop()
        until("the client's leaving", lambda: "client left" in events(served))
        assert 0 == served.stop()
        found = events(served)
        assert ["listening", "client came", "client left", "told to stop", "stopped"] == found
        (came,) = [line for line in logged(served) if line["event"] == "client came"]
        assert ("shim", os.geteuid(), client.pid) == (came["kind"], came["uid"], came["pid"])
