"""Several acpd processes, full disks, wild agents and clients: nothing that was shown is lost, everything is answered."""

from __future__ import annotations

import json
import random
import signal
import threading

import pytest

from tests.support import commands, proc, store
from tests.support.client import WAIT, Json
from tests.support.faults import small_disk
from tests.support.scripted import EVERYTHING, Stage, failing, prompt_params, until
from tests.support.walk import below

pytestmark = pytest.mark.e2e


def test_two_acpds_on_one_store_keep_apart_what_is_theirs(play: Stage) -> None:
    """Each works on its own sessions; one that the other holds is an error with its pid; once it is closed, it goes on."""
    one, two = play.start("--no-list"), play.start("--no-list")
    mine, yours = one.new(play.cwd), two.new(play.cwd)
    one.prompt(mine, "say mine")
    two.prompt(yours, "say yours")
    for method in ("session/load", "session/resume", "session/prompt", "session/delete", "_acpd/branch"):
        params = {**prompt_params(mine, "say stolen"), "cwd": str(play.cwd), "mcpServers": [], "entry": "x"}
        error = failing(two, method, params)
        assert f"pid {one.pid}" in error.message, method
    until("both in the list", lambda: {mine, yours} == {row["sessionId"] for row in two.call("session/list", {})["sessions"]})
    fork = two.call("session/fork", {"sessionId": mine, "cwd": str(play.cwd), "mcpServers": []})["sessionId"]
    two.load(fork, play.cwd)
    assert "mine" == two.text(fork), "which only reads"
    assert "end_turn" == one.prompt(mine, "say on")
    one.call("session/close", {"sessionId": mine})
    two.load(mine, play.cwd)
    assert "mineon" == two.text(mine)
    assert "end_turn" == two.prompt(mine, "say taken\nhistory")
    assert "history 6" in two.text(mine), "with the agent's memory"
    assert f"pid {two.pid}" in failing(one, "session/prompt", prompt_params(mine, "say x")).message
    one.close_stdin()
    assert 0 == one.wait_exit()
    one.assert_clean()
    play.finish(two)


def test_a_killed_holder_frees_its_sessions_at_once(play: Stage) -> None:
    """kill -9 of one acpd: another one that runs already takes the session over, ends the old agent, and goes on."""
    one, two = play.start("--no-list"), play.start("--no-list")
    session = one.new(play.cwd)
    one.prompt(session, "pid")
    pid = int(one.text(session).split()[1])
    one.start_prompt(session, "deaf\nsay half\nhang")
    one.wait("half", lambda: one.text(session).endswith("half"))
    one.kill()
    two.load(session, play.cwd)
    assert "half" in two.text(session)
    assert "interrupted" in two.told(session)
    assert "end_turn" == two.prompt(session, "say on")
    proc.assert_gone(pid, within=10)
    play.finish(two)


def test_two_acpds_writing_at_once_lose_nothing(play: Stage) -> None:
    """Two processes with sessions of their own write, list and close side by side; every log and the list are whole."""
    clients = [play.start("--no-list"), play.start("--no-list")]
    made: list[list[str]] = [[], []]

    def work(number: int) -> None:
        client = clients[number]
        for turn in range(12):
            session = client.new(play.cwd)
            made[number].append(session)
            client.prompt(session, f"say {turn}\ntool x\ntitle T{turn}")
            client.call("session/list", {})
            if turn % 3 == 0:
                client.call("session/close", {"sessionId": session})

    threads = [threading.Thread(target=work, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    everything = {session for sessions in made for session in sessions}
    assert 24 == len(everything)
    clients[0].close_stdin()
    clients[0].wait_exit()
    clients[0].assert_clean()
    assert everything == {row["sessionId"] for row in clients[1].call("session/list", {})["sessions"]}
    assert everything == set(play.finish(clients[1]))


def test_no_space_in_any_step_is_an_error_and_then_it_works(play: Stage) -> None:
    """new, prompt, set_mode, state, close, delete and list on a full disk: an answer each; with space again, all is well."""
    with small_disk(play.tmp / "disk") as disk:
        play.home = disk.path / "home"
        client = play.start()
        session, other = client.new(play.cwd), client.new(play.cwd)
        client.prompt(session, "say before")
        client.prompt(other, "say other")
        disk.fill(client.pid)
        asked = [
            client.request("session/set_mode", {"sessionId": session, "modeId": "code"}),
            client.request("session/new", {"cwd": str(play.cwd), "mcpServers": []}),
            client.request("session/list", {}),
            client.start_prompt(session, f'say during\nstate note {{"a":1}}\nimage {100_000}\nsay last'),
        ]
        client.wait_settled(asked[1:3])
        disk.free(client.pid)
        client.wait_settled(asked)
        client.wait("the turn", lambda: "last" in client.text(session))
        assert "end_turn" == client.prompt(session, "say after")
        assert "end_turn" == client.prompt(other, "say after")
        play.finish(client)
        client = play.start()
        client.load(session, play.cwd)
        assert "beforeduring" in client.text(session).replace("note kept", "")
        play.finish(client)


@pytest.mark.parametrize("method", ["initialize", "session/new", "session/prompt", "session/resume", "session/set_mode"])
def test_an_agent_that_dies_at_any_method_is_an_error_with_its_exit_code(method: str, play: Stage) -> None:
    """Its exit code is in the answer, in time; another try with an agent that is well works, in the same acpd or the next."""
    client = play.start()
    session = client.new(play.cwd)
    client.prompt(session, "say x")
    play.finish(client)
    client = play.launch("--die-at", method)
    client.initialize(**EVERYTHING)
    params = {**prompt_params(session, "say y"), "cwd": str(play.cwd), "mcpServers": [], "modeId": "code"}
    asked = "session/new" if method == "initialize" else "session/prompt" if method == "session/resume" else method
    assert "exit code 9" in failing(client, asked, params).message
    play.finish(client)
    client = play.start()
    assert "end_turn" == client.prompt(session, "say y")
    play.finish(client)


def test_the_agent_program_is_replaced_while_acpd_runs(play: Stage) -> None:
    """It is gone for a turn, then there again: an error in between that names it, and the memory afterwards."""
    agent = play.tmp / "agent"
    line = " ".join(play.command()[3:])
    agent.write_text(f'#!/bin/sh\nexec {line} "$@"\n')
    agent.chmod(0o755)
    client = play.start(command=commands.acpd("run", "--", str(agent)))
    session = client.new(play.cwd)
    client.prompt(session, "say x")
    away = agent.rename(play.tmp / "away")
    failing(client, "session/prompt", prompt_params(session, "die 4"))
    assert str(agent) in failing(client, "session/prompt", prompt_params(session, "say y")).message
    away.rename(agent)
    assert "end_turn" == client.prompt(session, "history")
    assert "history 4" in client.text(session)
    play.finish(client)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP", "SIGPIPE", "SIGUSR1", "SIGWINCH"])
def test_signals_end_it_well_or_do_nothing(name: str, play: Stage) -> None:
    """What ends acpd ends it with the turn recorded and no process left."""
    client = play.start()
    session = client.new(play.cwd)
    client.start_prompt(session, "say half\nhang")
    client.wait("half", lambda: client.text(session) == "half")
    client.process.send_signal(getattr(signal, name))
    if name in ("SIGTERM", "SIGINT", "SIGHUP"):
        code = client.wait_exit()
        assert code in (0, -signal.SIGHUP)
    else:
        client.close_stdin()
        client.wait_exit()
    client.stop()
    client = play.start()
    client.load(session, play.cwd)
    assert "half" == client.text(session)
    assert "interrupted" in client.told(session)
    play.finish(client)


def test_a_client_that_goes_away_without_a_word_ends_acpd(play: Stage) -> None:
    """stdout is closed while the agent streams, then stdin: no hang, no traceback, the turn recorded."""
    client = play.start()
    session = client.new(play.cwd)
    client.start_prompt(session, "slow 1000 1")
    client.wait_update("agent_message_chunk", 5)
    client.pause_reading()
    client.close_stdin()
    assert 0 == client.process.wait(WAIT)
    client.resume_reading()
    client.stop()
    assert "Traceback" not in client.stderr()
    turn = store.turns(store.log(play.home, session))[0]
    assert turn.end is not None
    assert "interrupted" == turn.end["state"]


def wild_lines(rng: random.Random, session: str, count: int) -> list[bytes]:
    """Requests, notifications, answers and noise of a client that lost its mind."""
    methods = ["prompt", "cancel", "load", "resume", "close", "list", "set_mode", "set_config_option", "fork", "new", "nope"]
    values: list[object] = [session, "other", 7, None, "", [], {}, "code", [{"type": "text", "text": "say w"}], "model", True]
    lines: list[bytes] = []
    for number in range(count):
        keys = ["sessionId", "prompt", "modeId", "cwd", "mcpServers", "configId", "value", "cursor", "_meta", "requestId"]
        params: Json = {key: rng.choice(values) for key in rng.sample(keys, rng.randrange(6))}
        if rng.random() < 0.6:
            params |= {"sessionId": session}
        message: Json = {"jsonrpc": "2.0", "method": f"session/{rng.choice(methods)}", "params": params}
        if rng.random() < 0.8:
            message["id"] = rng.choice([f"w{number}", number + 10_000])
        line = json.dumps(message).encode()
        lines.append(line[: rng.randrange(len(line))] if rng.random() < 0.05 else line)
    return lines


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_a_wild_client_gets_an_answer_for_each_request(seed: int, play: Stage) -> None:
    """300 lines of right and wrong requests without waiting: one answer an id, acpd lives, the store is whole."""
    rng = random.Random(seed)
    client = play.start(env={"ACPD_AGENTS_CANCEL_TIMEOUT": "1"})
    session = client.new(play.cwd)
    client.prompt(session, "say x")
    lines = wild_lines(rng, session, 300)
    idents = [json.loads(line)["id"] for line in lines if line.endswith(b"}") and line.count(b"{") and b'"id"' in line]
    client.send_bytes(b"\n".join(lines) + b"\n")
    client.wait_settled(idents, within=60)
    assert "end_turn" == client.prompt(session, "say still here")
    client.close_stdin()
    assert 0 == client.wait_exit()
    client.stop()
    assert [] == client.violations
    assert "Traceback" not in client.stderr()
    proc.assert_none_left(play.mark)
    store.check_store(play.home)


@pytest.mark.parametrize("seed", range(6))
def test_random_kills_with_everything_open_lose_nothing_that_was_shown(seed: int, play: Stage) -> None:
    """Turns, asks, states, blobs and loads under kill -9, time after time: each update that was shown is in the log."""
    rng = random.Random(seed)
    session = ""
    shown: dict[int, bytes] = {}
    for _ in range(5):
        client = play.start("--commands", policy=None)
        if session:
            client.load(session, play.cwd)
            again = {line.seq: line for line in client.updates(session=session) if line.seq}
            assert max(again, default=0) or not shown
        else:
            session = client.new(play.cwd)
        end = rng.choice(["ask", "slow 50 2", "elicit", "say z"])
        script = f'say a\nimage 70000\nstate s {{"n":1}}\nchunks 200\nparallel 3\n{end}'
        client.start_prompt(session, script)
        client.start_prompt(session, "say queued")
        client.wait_update(count=min(len(client.updates()) + rng.randrange(1, 200), 200))
        client.kill()
        shown |= {line.seq: line.raw for line in client.updates(session=session) if line.seq and "chunk" not in line.kind}
        proc.kill_marked(play.mark)
    log = store.log(play.home, session, torn=True)
    lines = {entry["seq"] for entry in log.entries}
    assert set(shown) <= lines
    client = play.start()
    client.load(session, play.cwd)
    assert "end_turn" == client.prompt(session, "say alive")
    play.finish(client)


def test_odd_paths_and_names_are_only_names(play: Stage) -> None:
    """A cwd with spaces, quotes, newlines and non-UTF-8-looking bytes, an agent with an odd name: all of it works twice."""
    odd = play.tmp / "a b'c\"d\\e\nf ü ☃ %2e $(x) ; -rf"
    odd.mkdir()
    client = play.start("--name", "../../Ägent /\\ %00 .")
    session = client.new(odd)
    assert "end_turn" == client.prompt(session, "where")
    assert odd.name in client.text(session)
    play.finish(client)
    client = play.start("--name", "../../Ägent /\\ %00 .")
    assert [session] == [row["sessionId"] for row in client.call("session/list", {"cwd": str(odd)})["sessions"]]
    client.load(session, odd)
    assert "end_turn" == client.prompt(session, "history")
    play.finish(client)
    assert [] == [path for path in below(play.tmp, "*gent*") if play.home not in path.parents and "agent." not in path.name]


def test_the_offline_agent_stands_where_no_agent_is_configured(play: Stage) -> None:
    """`acpd` alone: its first words say that no model is configured; kill -9 and load work with it as with any other."""
    client = play.start(command=commands.acpd())
    session = client.new(play.cwd)
    assert "end_turn" == client.prompt(session, "hello")
    said = client.text(session)
    assert "no model" in said.lower()
    client.kill()
    client = play.start(command=commands.acpd())
    client.load(session, play.cwd)
    assert said == client.text(session)
    assert "end_turn" == client.prompt(session, "hello")
    play.finish(client)
