"""The editor's pipes: what the protocol runs on, pipes, sockets and files alike."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

from acpd.peer import Peer
from acpd.transports import stdio
from tests.core.pipes import Recorded

NOTE = b'{"jsonrpc":"2.0","method":"a"}\n'


async def joined(stdin: int, stdout: int) -> tuple[Recorded, Peer]:
    owner = Recorded()
    peer = Peer(owner, strict=True)
    await stdio.connect(peer, stdin, stdout)
    return owner, peer


async def test_pipes() -> None:
    """Lines in, lines out, and the end of the one is the end."""
    theirs_out, stdout = os.pipe()
    stdin, theirs_in = os.pipe()
    owner, peer = await joined(stdin, stdout)
    os.write(theirs_in, NOTE + b"nonsense\n")
    await owner.until(lambda: len(owner.events) == 2)
    assert -32700 == json.loads(await asyncio.to_thread(os.read, theirs_out, 1000))["error"]["code"]
    os.close(theirs_in)
    await owner.closed.wait()
    peer.close()
    assert b"" == await asyncio.to_thread(os.read, theirs_out, 1)
    os.close(theirs_out)


async def test_a_pipe_out_is_widened() -> None:
    """The kernel's buffer is made larger where the system gives one; what is no pipe is left alone."""
    import fcntl

    theirs, ours = os.pipe()
    stdio.widen(ours)
    assert fcntl.fcntl(ours, fcntl.F_GETPIPE_SZ) >= 64 * 1024
    with Path("/dev/null").open("wb") as null:
        stdio.widen(null.fileno())
    os.close(theirs)
    os.close(ours)


async def test_one_socket_for_both() -> None:
    """An editor may give a socket pair instead of two pipes."""
    here, there = socket.socketpair()
    owner, peer = await joined(os.dup(here.fileno()), here.detach())
    there.send(NOTE)
    await owner.until(lambda: owner.methods == ["a"])
    peer.notify("b", b"{}")
    assert b'"method":"b"' in await asyncio.to_thread(there.recv, 1000)
    there.close()
    await owner.closed.wait()
    peer.close()


async def test_files(tmp_path: Path) -> None:
    """A script as stdin and a file as stdout: event loops poll neither, so a thread reads and writes go out at once."""
    script, result = tmp_path / "in", tmp_path / "out"
    script.write_bytes(NOTE * 10_000 + b"nonsense\n" + NOTE.rstrip(b"\n"))
    stdin, stdout = os.open(script, os.O_RDONLY), os.open(result, os.O_WRONLY | os.O_CREAT)
    owner, peer = await joined(stdin, stdout)
    await owner.closed.wait()
    assert (10_001, 1) == (len(owner.methods), sum(kind == "bad" for kind, _ in owner.events))
    peer.close()
    peer.send(b"too late\n")
    await asyncio.sleep(0)
    assert [-32700] == [json.loads(line)["error"]["code"] for line in result.read_bytes().splitlines()]
    os.close(stdout)
    os.close(stdin)


async def test_a_file_is_read_no_faster_than_it_is_handled(tmp_path: Path) -> None:
    """While the peer holds, the rest of a script stays on the disk; then all of it comes, and its end behind it."""
    script = tmp_path / "in"
    script.write_bytes(NOTE * 200_000)
    stdin, stdout = os.open(script, os.O_RDONLY), os.open("/dev/null", os.O_WRONLY)
    owner = Recorded()
    peer = Peer(owner, strict=True)
    held = asyncio.Event()

    def hold(_: bytes) -> None:
        del owner.at["a"]
        peer.hold()
        held.set()

    owner.at["a"] = hold
    await stdio.connect(peer, stdin, stdout)
    await held.wait()
    for _ in range(500):  # a reader that does not wait would be at the end by now
        await asyncio.to_thread(os.fstat, stdin)
    assert os.lseek(stdin, 0, os.SEEK_CUR) <= 2 * stdio.READ
    assert not owner.closed.is_set()
    peer.release()
    async with asyncio.timeout(10):
        await owner.closed.wait()
    assert 200_000 == len(owner.methods)
    peer.close()
    os.close(stdout)
    os.close(stdin)


async def test_a_file_that_cannot_be_read_has_ended(tmp_path: Path) -> None:
    """A device that fails is a client that is gone, not one that says nothing for ever."""
    stdin, stdout = os.open(tmp_path / "in", os.O_WRONLY | os.O_CREAT), os.open("/dev/null", os.O_WRONLY)
    owner, peer = await joined(stdin, stdout)
    async with asyncio.timeout(10):
        await owner.closed.wait()
    peer.close()
    os.close(stdout)
    os.close(stdin)


async def test_nothing_as_input() -> None:
    """/dev/null is a client that has gone already."""
    stdin = os.open("/dev/null", os.O_RDONLY)
    stdout = os.open("/dev/null", os.O_WRONLY)
    owner, peer = await joined(stdin, stdout)
    peer.notify("b", b"{}")
    await owner.closed.wait()
    peer.close()
    os.close(stdin)
    os.close(stdout)


async def test_a_file_that_cannot_be_written_ends_the_connection(tmp_path: Path) -> None:
    """A full disk behind stdout is a client that is gone, and no crash."""
    owner = Recorded()
    peer = Peer(owner, strict=True)
    full = os.open("/dev/full", os.O_WRONLY)
    peer.use_writer(stdio._FileWriter(full, peer))
    peer.notify("b", b"{}")
    async with asyncio.timeout(5):
        await owner.closed.wait()
    peer.notify("b", b"{}")
    os.close(full)


def test_claiming_keeps_stdout_for_the_protocol() -> None:
    """Whatever a library prints or reads, fd 1 is stderr and fd 0 is empty from then on."""
    script = """
import os, sys
from acpd.transports import stdio
stdin, stdout = stdio.claim()
print("a library prints", flush=True)
os.system("echo a child prints")
assert "" == sys.stdin.read()
os.write(stdout, os.read(stdin, 100))
"""
    root = Path(__file__).resolve().parents[2]
    env = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run([sys.executable, "-c", script], input=b"protocol", capture_output=True, cwd=root, env=env)
    assert (0, b"protocol", b"a library prints\na child prints\n") == (done.returncode, done.stdout, done.stderr)


def test_claiming_what_is_closed() -> None:
    """A number that a closed descriptor left free is given to none of the others."""
    code = """import os
from acpd.transports import stdio
os.close(2)
stdin, stdout = stdio.claim()
os.write(stdout, os.read(stdin, 9))
os.write(1, b"lost")
os.close(1)
try:
    stdio.claim()
except OSError as error:
    os.write(stdout, error.strerror.encode())
"""
    root = Path(__file__).resolve().parents[2]
    env = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run([sys.executable, "-c", code], input=b"claimed, ", capture_output=True, cwd=root, env=env)
    assert (0, b"claimed, Bad file descriptor", b"") == (done.returncode, done.stdout, done.stderr)
