"""Terminals that acpd has itself: output, ends, limits, and that nothing of them stays."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acpd.agents.terminals import OUTPUT_LIMIT, TERMINALS, Output, Terminals
from acpd.errors import INTERNAL_ERROR, INVALID_PARAMS, REQUEST_CANCELLED, RESOURCE_NOT_FOUND, RequestError
from tests.core.world import dumps, until
from tests.support import proc
from tests.support.store import Json

# -- output


def newest(text: str, limit: int) -> str:
    """The longest end of this text that fits, character by character."""
    kept = ""
    for character in reversed(text):
        if len((character + kept).encode()) > limit:
            break
        kept = character + kept
    return kept


@settings(max_examples=60)
@given(
    data=st.one_of(st.binary(max_size=60), st.text(max_size=30).map(str.encode)),
    cuts=st.lists(st.integers(0, 60), max_size=5),
    limit=st.integers(0, 40),
)
def test_output_is_the_newest_whole_characters(data: bytes, cuts: list[int], limit: int) -> None:
    """However output arrives, what is kept is the longest end of its text that fits, and `truncated` says whether it is all."""
    output = Output(limit)
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    for start, end in itertools.pairwise(edges):
        output.feed(data[start:end])
        assert len(output.text.encode()) <= limit
    output.feed(b"", end=True)
    text = data.decode(errors="replace")
    assert (newest(text, limit), len(text.encode()) > limit) == (output.text, output.truncated)


def test_every_cut_through_characters_of_every_size() -> None:
    """At each limit the cut is before a character of one, two, three or four bytes, never within."""
    text = "aé€😀" * 2
    for limit in range(len(text.encode()) + 1):
        output = Output(limit)
        for byte in text.encode():
            output.feed(bytes([byte]))
        assert newest(text, limit) == output.text


# -- commands


class Desk:
    """The terminals of a link, with a root, as the agent asks for them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.mark = proc.new_mark()
        self.env = {**os.environ, proc.MARK: self.mark}
        self.terminals = Terminals(proc.new_mark(), 0.2)

    async def create(self, command: str, *args: str, **more: Any) -> str:
        params = dumps({"command": command, "args": args, **more})
        return str(json.loads(await self.terminals.create(params, (str(self.root),), self.env))["terminalId"])

    async def run(self, script: str, **more: Any) -> str:
        return await self.create("/bin/sh", "-c", script, **more)

    def output(self, name: str) -> Json:
        found: Json = json.loads(self.terminals.output(name))
        return found

    async def ended(self, name: str, request: bytes = b"1") -> Json:
        waiting: asyncio.Future[Json] = asyncio.get_running_loop().create_future()

        def then(result: bytes | None, error: RequestError | None) -> None:
            if error is not None:
                waiting.set_exception(error)
            else:
                waiting.set_result(json.loads(result or b""))

        self.terminals.wait(name, request, then)
        async with asyncio.timeout(10):
            return await waiting

    async def printed(self, name: str, text: str) -> None:
        await until(lambda: text in self.output(name)["output"])


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    """At the end no descriptor is open that was not before, and no process is left."""
    made = Desk(tmp_path)
    await made.create("true")  # what the loop opens with the first child stays
    await made.terminals.close()
    made.terminals = Terminals(proc.new_mark(), 0.2)
    before = proc.fds(os.getpid())
    try:
        yield made
    finally:
        async with asyncio.timeout(10):
            await made.terminals.close()
        left = await asyncio.to_thread(proc.wait_none_left, made.mark, within=2)
        proc.kill_marked(made.mark)
    assert ([], before) == (left, proc.fds(os.getpid()))


async def refused(work: Any) -> tuple[int, str]:
    with pytest.raises(RequestError) as caught:
        await work
    return caught.value.code, str(caught.value)


async def test_a_command_runs(desk: Desk) -> None:
    """Both streams are one, in order; the end has its code; both can be asked for as often as one likes."""
    name = await desk.run("echo out; echo err >&2; echo out again; exit 7")
    for request in (b"1", b"2"):
        assert {"exitCode": 7, "signal": None} == await desk.ended(name, request)
    whole = {"output": "out\nerr\nout again\n", "truncated": False, "exitStatus": {"exitCode": 7, "signal": None}}
    assert whole == desk.output(name) == desk.output(name)


async def test_what_a_command_finds(desk: Desk) -> None:
    """The session's folder or the one that was named, the client's environment and what was added to it, no input."""
    (desk.root / "sub").mkdir()
    script = 'pwd; echo "$GIVEN $HOME"; cat; echo "group $$"; ps -o pgid= -p $$'
    env = [{"name": "GIVEN", "value": "a b"}]
    for more, folder in (({}, desk.root), ({"cwd": str(desk.root / "sub")}, desk.root / "sub")):
        name = await desk.run(script, env=env, **more)
        await desk.ended(name)
        lines = desk.output(name)["output"].splitlines()
        assert [str(folder), f"a b {os.environ.get('HOME', '')}", f"group {lines[-1].strip()}"] == lines[:3]


async def test_output_while_it_runs(desk: Desk) -> None:
    """What was written is there before the command has ended; there is no exit status then."""
    name = await desk.run("echo first; exec sleep 60")
    await desk.printed(name, "first\n")
    assert {"output": "first\n", "truncated": False} == desk.output(name)


async def test_a_line_for_the_shell(desk: Desk) -> None:
    """A command without arguments that is no program's name is what a shell makes of it; with arguments it is an error."""
    name = await desk.create("echo a b | tr a-z A-Z; exit 3")
    assert (3, "A B\n") == ((await desk.ended(name))["exitCode"], desk.output(name)["output"])
    name = await desk.create("no-such-program-here")
    assert 127 == (await desk.ended(name))["exitCode"]
    code, words = await refused(desk.create("no-such-program-here", "x"))
    assert (INVALID_PARAMS, True) == (
        code,
        words.startswith("terminal/create: cannot run no-such-program-here: PATH searched:"),
    )


async def test_what_cannot_be_started(desk: Desk) -> None:
    """Each says what is wrong, and counts as no terminal."""
    (desk.root / "plain").write_text("x")
    for work, words in (
        (desk.create("./plain", "x"), "chmod +x"),
        (desk.create("true", cwd="/"), "outside the folders of the session"),
        (desk.create("true", cwd=str(desk.root / "gone")), "the working directory does not exist"),
        (desk.create("true", "a\0b"), "null byte"),
        (desk.create("a\0b"), "cannot run a\0b"),
        (desk.create("true", env=[{"name": "A=B", "value": "secret"}]), "illegal environment variable name"),
    ):
        code, said = await refused(work)
        assert (INVALID_PARAMS, True, False) == (code, words in said, "secret" in said), said
    assert not desk.terminals._open


async def test_truncated_output(desk: Desk) -> None:
    """The beginning goes, at the agent's limit or at acpd's own, whichever is less."""
    script = "i=0; while [ $i -lt 300 ]; do echo é$i; i=$((i+1)); done"
    name = await desk.run(script, outputByteLimit=11)
    await desk.ended(name)
    assert ("298\né299\n", True) == (desk.output(name)["output"], desk.output(name)["truncated"])
    name = await desk.run("head -c 3000000 /dev/zero | tr '\\0' x; echo end", outputByteLimit=2**63)
    await desk.ended(name)
    assert "x" * (OUTPUT_LIMIT - 4) + "end\n" == desk.output(name)["output"]


async def test_a_flood_is_bounded(desk: Desk) -> None:
    """A command that never stops writing costs no more memory than the limit, and the loop is free meanwhile."""
    name = await desk.run("exec yes", outputByteLimit=1000)
    await until(lambda: desk.output(name)["truncated"])
    loop = asyncio.get_running_loop()
    began, passes = loop.time(), 0
    while loop.time() < began + 0.2:
        await asyncio.sleep(0)
        passes += 1
        assert len(desk.terminals._open[name].output._kept) <= 1000
    assert passes > 100
    await desk.terminals.kill(name)
    assert "SIGTERM" == desk.output(name)["exitStatus"]["signal"]


async def test_a_killed_terminal_stays_readable(desk: Desk) -> None:
    """Who waits is told; output and end can be read until it is released, a second kill is none; then the name is unknown."""
    name = await desk.run("echo hello; exec sleep 60")
    await desk.printed(name, "hello")
    waiting = asyncio.get_running_loop().create_task(desk.ended(name))
    await asyncio.sleep(0)
    for _ in range(2):
        assert b"{}" == await desk.terminals.kill(name)
    assert {"exitCode": None, "signal": "SIGTERM"} == await waiting == desk.output(name)["exitStatus"]
    assert "hello\n" == desk.output(name)["output"]
    assert b"{}" == await desk.terminals.release(name)
    for work in (desk.terminals.kill(name), desk.terminals.release(name), desk.ended(name)):
        assert (RESOURCE_NOT_FOUND, f"there is no terminal {name}; it was released, or never made") == await refused(work)


async def test_a_command_that_is_deaf(desk: Desk) -> None:
    """Whoever ignores SIGTERM gets SIGKILL, and so does what it started."""
    name = await desk.run("trap '' TERM; sleep 60 & echo deaf; while :; do sleep 60; done")
    await desk.printed(name, "deaf")
    await desk.terminals.kill(name)
    assert "SIGKILL" == desk.output(name)["exitStatus"]["signal"]
    assert [] == await asyncio.to_thread(proc.wait_none_left, desk.mark, within=5)


@pytest.mark.parametrize("background", ["sleep 60 &", "setsid sleep 60 &", "(trap '' TERM HUP; sleep 60; sleep 60) &"])
async def test_what_a_command_leaves_behind(desk: Desk, background: str) -> None:
    """Its end does not wait for children that hold its output; a release ends them, in whatever group they are."""
    name = await desk.run(f"{background} echo done")
    assert 0 == (await desk.ended(name))["exitCode"]
    assert "done\n" == desk.output(name)["output"]
    await until(lambda: proc.marked(desk.mark))
    await desk.terminals.release(name)
    assert [] == await asyncio.to_thread(proc.wait_none_left, desk.mark, within=5)


async def test_only_its_own_processes_end(desk: Desk) -> None:
    """A release leaves the other terminals of the link alone."""
    names = [await desk.run(f"echo {word}; exec sleep 60") for word in ("one", "two")]
    await desk.printed(names[1], "two")
    await desk.terminals.release(names[0])
    assert "exitStatus" not in desk.output(names[1])


async def test_a_number_that_is_somebody_elses(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long after its end a command's number may be another process's: that one and its group are left alone."""
    name = await desk.create("true")
    await desk.ended(name)
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as other:
        monkeypatch.setattr(desk.terminals._open[name]._process, "pid", other.pid)
        await desk.terminals.release(name)
        assert None is other.poll()
        other.kill()


async def test_release_while_somebody_waits(desk: Desk) -> None:
    """Who waits for the end is told how the release ended it."""
    name = await desk.run("exec sleep 60")
    waiting = asyncio.get_running_loop().create_task(desk.ended(name))
    await asyncio.sleep(0)
    await desk.terminals.release(name)
    assert {"exitCode": None, "signal": "SIGTERM"} == await waiting


async def test_who_does_not_wait_any_more(desk: Desk) -> None:
    """A withdrawn wait is answered as cancelled; the command goes on."""
    name = await desk.run("exec sleep 60")
    waiting = asyncio.get_running_loop().create_task(desk.ended(name, b"77"))
    await asyncio.sleep(0)
    desk.terminals.withdraw(b"78")
    desk.terminals.withdraw(b"77")
    assert REQUEST_CANCELLED == (await refused(waiting))[0]
    assert "exitStatus" not in desk.output(name)


async def test_so_many_and_no_more(desk: Desk) -> None:
    """The next terminal is an error, also while the others are being started; a released one makes room."""
    starting = [desk.run("exec sleep 60") for _ in range(TERMINALS)]
    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(each) for each in starting]
    await asyncio.sleep(0)
    full = (INTERNAL_ERROR, f"terminal/create: {TERMINALS} terminals are open; release one first")
    assert full == await refused(desk.run("true"))
    names = [await task for task in tasks]
    assert full == await refused(desk.run("true"))
    await desk.terminals.release(names[0])
    assert await desk.run("true")
    assert len(names) == len(set(names))


async def test_the_end_of_the_link(desk: Desk) -> None:
    """Everything ends with it, also what is just being started and nobody waits for; nothing is started any more."""
    await desk.run("exec sleep 60")
    loop = asyncio.get_running_loop()
    starting = loop.create_task(desk.run("exec sleep 60"))
    await asyncio.sleep(0)
    starting.cancel()
    await desk.terminals.close()
    assert [] == await asyncio.to_thread(proc.wait_none_left, desk.mark, within=5)
    assert (INTERNAL_ERROR, "terminal/create: the agent is being stopped") == await refused(desk.run("true"))


async def test_a_release_at_the_end_of_the_link(desk: Desk) -> None:
    """Everything ends, also where the agent releases a terminal of its own in that moment."""
    name = await desk.run("exec sleep 60")
    loop = asyncio.get_running_loop()
    closing, releasing = loop.create_task(desk.terminals.close()), loop.create_task(desk.terminals.release(name))
    assert RESOURCE_NOT_FOUND == (await refused(releasing))[0]
    await closing
