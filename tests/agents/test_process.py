"""Agent processes: how they start, how they end, and that everything they started ends with them."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from acpd.agents import process
from acpd.agents.link import AgentLink
from acpd.agents.pool import end_leftovers
from acpd.config import AgentChoice
from acpd.errors import AgentError, AgentExited, AgentNotFound, AgentTimeout, RequestError, StoreError
from acpd_backends.links import LinkFolder
from tests.agents.house import AGENT, SETTINGS, House
from tests.core.pipes import start
from tests.core.world import until
from tests.support import proc


async def test_a_started_agent(house: House) -> None:
    """It has answered initialize, runs in a group of its own, is recorded, and knows its link."""
    link = await house.start(house.host())
    assert ("script-agent", True) == (link.said.agentInfo.name, link.said.agentCapabilities.loadSession)
    assert link.pid == os.getpgid(link.pid)
    assert [link.pid] == await asyncio.to_thread(process.with_variable, link.id)
    assert [(link.id, link.pid, os.getpid())] == [(name, data["pid"], data["owner"]) for name, data in await house.recorded()]
    await link.stop()
    await link.stop()
    assert ([], {}) == (await house.recorded(), house.pool.links)


async def test_stopping_waits_for_the_files_of_an_agent_that_is_being_stopped(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent that somebody has just stopped leaves no record, though all tasks are cancelled behind the pool's stop."""
    link = await house.start(house.host())
    reached, go = threading.Event(), threading.Event()
    trim = house.runtime.trim_stderr

    def slow(link_id: str) -> None:
        reached.set()
        assert go.wait(10)
        trim(link_id)

    monkeypatch.setattr(house.runtime, "trim_stderr", slow)
    stopping = house.tasks.spawn(link.stop(), name="stop")
    await until(reached.is_set)
    asyncio.get_running_loop().call_later(0.05, go.set)
    await house.pool.stop()
    await house.tasks.cancel()
    assert ([], {}) == (await house.recorded(), house.pool.links)
    assert stopping.done()


async def test_an_agent_inherits_three_descriptors(house: House) -> None:
    """An inherited far end would let an agent's tools forge answers."""
    with (house.root / "open").open("wb") as other:
        os.set_inheritable(other.fileno(), True)
        link = await house.start(house.shell('read x; echo "$INIT"; ls /proc/self/fd >&2; cat >/dev/null'))
        while (said := await house.stderr(link)).count(b"\n") < 4:
            await asyncio.sleep(0)
        assert b"0\n1\n2\n3\n" == said  # 3 is of ls itself
        await link.stop()


async def test_a_name_that_no_configuration_gives_is_the_agents_own(house: House) -> None:
    """Without a configured name the agent is called as it says, or by its program."""
    assert "script-agent" == (await house.start(house.host(name=""))).name
    assert "scripted" == (await house.start(house.host())).name
    silent = house.shell('read x; echo "$INIT"; cat >/dev/null')
    silent.choice = AgentChoice("", silent.choice.command)
    assert "sh" == (await house.start(silent)).name


async def test_a_program_that_is_not_there(house: House) -> None:
    """The error says where was searched; one that may not be executed says so."""
    with pytest.raises(AgentNotFound, match=r"no-such-agent.*PATH searched: .*bin"):
        await house.start(house.host(command=("no-such-agent",)))
    with pytest.raises(AgentNotFound, match="/no/such/agent"):
        await house.start(house.host(command=("/no/such/agent",)))
    plain = house.root / "plain"
    plain.write_text("x")
    with pytest.raises(AgentNotFound, match=r"may not be executed.*chmod"):
        await house.start(house.host(command=(str(plain),)))
    broken = house.root / "broken"
    broken.write_text("no program")
    broken.chmod(0o755)
    with pytest.raises(AgentError, match="cannot start agent"):
        await house.start(house.host(command=(str(broken),)))
    with pytest.raises(AgentError, match=r"cannot start agent.*null byte"):
        await house.start(house.host(command=("sh", "-c", "a\0b")))
    assert ({}, []) == (house.pool.links, await house.recorded())


@pytest.mark.parametrize("wrapped", [False, True])
async def test_the_cause_has_the_exit_code_and_the_last_words(house: House, wrapped: bool) -> None:
    """An agent that ends says how, behind `sh -c` too, with the end of its stderr and where the rest is."""
    script = 'read x; echo "first" >&2; echo "out of luck" >&2; exit 3'
    host = house.host(command=("/bin/sh", "-c", f"sh -c '{script}'; exit $?")) if wrapped else house.shell(script)
    with pytest.raises(AgentExited, match="exit code 3: first\nout of luck") as raised:
        await house.start(host)
    assert ".stderr" in raised.value.hint
    assert {} == house.pool.links


async def test_an_agent_that_is_killed_says_so(house: House) -> None:
    """A signal is named."""
    with pytest.raises(AgentExited, match="killed by signal 9"):
        await house.start(house.shell("read x; kill -9 $$"))


async def test_an_agent_that_closes_its_output_and_lives(house: House) -> None:
    """It cannot answer any more, so it is ended; the cause says what it did."""
    with pytest.raises(AgentExited, match="closed its output"):
        await house.start(house.shell("read x; exec >&-; sleep 60"))
    assert {} == house.pool.links


async def test_an_agent_that_ends_with_half_a_line(house: House) -> None:
    """Half a line is noise, and the end is told all the same."""
    with pytest.raises(AgentExited, match="exit code 0"):
        await house.start(house.shell("""read x; printf '{"jsonrpc":"2.0","id":0,"resu'"""))
    assert 1 == len(house.noise.lines)


async def test_an_agents_error_is_its_own_though_it_ends_with_it(house: House) -> None:
    """What an agent answered before it ended is the answer; that it ended is not."""
    answer = '{"jsonrpc":"2.0","id":0,"error":{"code":-32000,"message":"log in"}}'
    with pytest.raises(RequestError, match="log in") as raised:
        await house.start(house.shell(f"read x; echo '{answer}'"))
    assert -32000 == raised.value.code


async def test_an_agent_that_does_not_answer(house: House) -> None:
    """AgentTimeout after start_timeout; no process is left."""
    house.pool.settings = SETTINGS._replace(start_timeout=0.1)
    with pytest.raises(AgentTimeout, match=r"initialize within 0\.1 s"):
        await house.start(house.shell("sleep 60"))
    proc.assert_none_left(house.mark)


async def test_an_agent_of_another_version(house: House) -> None:
    """acpd speaks version 1 and says what the agent speaks."""
    with pytest.raises(AgentError, match="version 2"):
        await house.start(house.host("--protocol", "2"))


async def test_everything_an_agent_started_ends_with_it(house: House) -> None:
    """Children, those in sessions of their own, and those that ignore SIGTERM."""
    script = """
    sleep 1000 &
    setsid sleep 1001 &
    setsid sh -c 'trap "" TERM HUP; while :; do sleep 1002; done' &
    read x; echo "$INIT"; cat >/dev/null
    """
    link = await house.start(house.shell(script))
    await until(lambda: len(proc.marked(house.mark)) >= 6)
    await link.stop()
    proc.assert_none_left(house.mark)


async def test_an_agent_that_ignores_sigterm_is_killed(house: House) -> None:
    """EOF, SIGTERM, SIGKILL: each after its grace."""
    script = """trap 'echo term >&2' TERM; read x; echo "$INIT"; while :; do sleep 0.05; done"""
    link = await house.start(house.shell(script))
    await link.stop()
    assert b"term" in await house.stderr(link)
    proc.assert_none_left(house.mark)


async def test_an_agent_that_ends_at_eof_gets_no_signal(house: House) -> None:
    """As ACP has it: closing its input is enough."""
    link = await house.start(house.shell("""trap 'echo term >&2' TERM; read x; echo "$INIT"; read y; echo eof >&2"""))
    await link.stop()
    assert b"eof\n" == await house.stderr(link)


async def test_a_cancelled_start_leaves_no_process(house: House) -> None:
    """At whatever step: before the process, while it starts, while it is asked."""
    for steps in range(0, 12, 2):
        starting = start(house.start(house.shell("sleep 60")))
        for _ in range(steps):
            await asyncio.sleep(0)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
    while await house.recorded():
        await asyncio.sleep(0)
    await asyncio.to_thread(proc.assert_none_left, house.mark)
    assert {} == house.pool.links


async def test_too_many_agents(house: House) -> None:
    """The next is refused, those count too that are being started; one that has ended makes room."""
    house.pool.settings = SETTINGS._replace(agents=3)
    host = house.host()
    found = await asyncio.gather(*(house.pool.start(host, host.choice) for _ in range(5)), return_exceptions=True)
    links = [each for each in found if isinstance(each, AgentLink)]
    assert (3, 2) == (len(links), len([each for each in found if "raise [daemon] agents" in str(each)]))
    await links[0].stop()
    await house.pool.start(host, host.choice)


async def test_stopping_ends_what_is_being_started(house: House) -> None:
    """A start that was cancelled, or that nobody has yet, is waited for and ended; none begins any more."""
    cancelled, wanted = start(house.start(house.shell("sleep 60"))), start(house.start(house.shell("sleep 60")))
    for _ in range(3):
        await asyncio.sleep(0)
    cancelled.cancel()
    await house.pool.stop()
    await asyncio.to_thread(proc.assert_none_left, house.mark)
    assert {} == house.pool.links
    for each in (cancelled, wanted):
        with pytest.raises((asyncio.CancelledError, AgentError)):
            await each
    with pytest.raises(AgentError, match="stopping"):
        await house.start(house.shell("sleep 60"))


async def test_an_agent_that_cannot_be_recorded_is_ended(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody could find it after a crash, so it does not run."""

    def full(*_: object) -> None:
        raise StoreError("record", "link", cause="no space")

    monkeypatch.setattr(house.runtime, "record", full)
    with pytest.raises(StoreError, match="no space"):
        await house.start(house.shell("sleep 60"))
    await asyncio.to_thread(proc.assert_none_left, house.mark)


def _another(runtime: LinkFolder, owner: str) -> subprocess.Popen[bytes]:
    """An agent as another acpd left it: the file of its link names `owner` ("me", "gone")."""
    env = {**os.environ, process.LINK_VARIABLE: f"other-{owner}"}
    child = subprocess.Popen(["sleep", "1000"], env=env, start_new_session=True)
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", ""]) as gone:
        pass
    pid, started = (os.getpid(), process.start_time(os.getpid())) if owner == "me" else (gone.pid, 77)
    record = {"pid": child.pid, "started": process.start_time(child.pid), "boot": process.boot_id()}
    runtime.record(f"other-{owner}", {**record, "owner": pid, "ownerStarted": started, "agent": "a"})
    return child


def test_leftovers_of_a_dead_owner_are_ended(tmp_path: Path) -> None:
    """Agents whose acpd is gone are killed, with what they started; those of a living one are not touched; files go too."""
    runtime = LinkFolder(tmp_path / "links")
    dead, living = _another(runtime, "gone"), _another(runtime, "me")
    try:
        assert 1 == end_leftovers(runtime)
        assert -9 == dead.wait(5)
        assert None is living.poll()
        assert ["other-me"] == [name for name, _ in runtime.recorded()]
        assert 0 == end_leftovers(runtime)
    finally:
        for child in (dead, living):
            child.kill()
            child.wait()


def test_a_pid_that_was_given_again_is_not_killed(tmp_path: Path) -> None:
    """A process of the recorded pid with another start time, or of another boot, is somebody else's."""
    runtime = LinkFolder(tmp_path / "links")
    child = subprocess.Popen(["sleep", "1000"])
    try:
        record: dict[str, object] = {
            "pid": child.pid,
            "started": process.start_time(child.pid),
            "boot": process.boot_id(),
            "owner": 0,
            "ownerStarted": 0,
        }
        runtime.record("again", record | {"started": 77})
        runtime.record("boot", record | {"boot": "another"})
        assert (0, None, []) == (end_leftovers(runtime), child.poll(), runtime.recorded())
    finally:
        child.kill()
        child.wait()


async def test_stopping_the_pool_ends_every_agent(house: House) -> None:
    """Also those that nobody holds any more."""
    for _ in range(3):
        await house.start(house.host())
    await house.pool.stop()
    assert {} == house.pool.links
    await asyncio.to_thread(proc.assert_none_left, house.mark)


async def test_noise_is_reported_and_ignored(house: House) -> None:
    """Banners on stdout are no protocol; the agent works all the same."""
    link = await house.start(house.host("--noise"))
    assert 2 == len(house.noise.lines)
    assert json.loads(await link.ask("_test/echo", b'{"a":1}')) == {"echo": {"a": 1}}


async def test_stderr_is_kept_short(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as the pool runs, also when one shortening fails."""
    monkeypatch.setattr("acpd.agents.pool.TRIM_EVERY", 0.0)
    link = await house.start(house.host())
    seen: list[str] = []

    def trim(name: str) -> None:
        seen.append(name)
        raise StoreError("shorten", name, cause="no space")

    monkeypatch.setattr(house.runtime, "trim_stderr", trim)
    trimming = start(house.pool.trim())
    await until(lambda: len(seen) > 2)
    trimming.cancel()
    assert {link.id} == set(seen)
    monkeypatch.undo()


def test_an_agent_that_nobody_wants_at_the_end_is_ended(tmp_path: Path) -> None:
    """A start that was cancelled while acpd ends leaves no process, although the loop takes no more work."""

    async def end(house: House) -> None:
        loop = asyncio.get_running_loop()
        command = (sys.executable, AGENT)
        starting = loop.run_in_executor(None, house.pool._start, "link-x", "agent", command, house.env, None)
        await starting
        await loop.shutdown_default_executor()
        house.pool._unwanted("link-x", starting)

    house = House(tmp_path)
    try:
        asyncio.run(end(house))
        for thread in threading.enumerate():
            if thread.name == "end:link-x":
                thread.join()
        proc.assert_none_left(house.mark)
    finally:
        proc.kill_marked(house.mark)


async def test_a_number_that_is_somebody_elses_is_left_alone() -> None:
    """What has ended leaves its number free: a process that has it by now is not killed, and neither is its group."""
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as other:
        try:
            await asyncio.to_thread(process.kill_rest, other.pid, "no such link", ended=True)
            assert None is other.poll()
            await asyncio.to_thread(process.kill_rest, other.pid, "no such link")
            assert -9 == await asyncio.to_thread(other.wait)
        finally:
            other.kill()


def test_what_is_started_keeps_the_limit_of_descriptors() -> None:
    """acpd raises its own limit; a program that closes all descriptors that it may have would take seconds with that one."""
    script = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (200, 4000))
from acpd.agents import process
process.allow_many_descriptors()
made = process.start(["/bin/sh", "-c", "read wait; ulimit -n >&2"], dict(os.environ), None, 2)
os.write(made.stdin, b"x\\n")
made.process.wait()
print(resource.getrlimit(resource.RLIMIT_NOFILE))
"""
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=root, env={**os.environ, "PYTHONPATH": str(root)}
    )
    assert ("(4000, 4000)\n", "200\n") == (done.stdout, done.stderr)


def test_a_start_without_descriptors_keeps_none() -> None:
    """What fails for want of descriptors does not take more of them: they are there again when others are closed."""
    script = """
import os, resource
from acpd.agents import process
stderr = os.dup(2)
before = set(os.listdir("/proc/self/fd"))
resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, before)) + 3, 4096))
try:
    process.start(["/bin/true"], {}, "/", stderr)
except OSError as error:
    print(error.strerror, before == set(os.listdir("/proc/self/fd")))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "Too many open files True\n" == done.stdout
