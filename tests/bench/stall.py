"""Row 12: a client stops reading while its agent streams; how far acpd's memory grows, and that nothing is lost."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from tests.bench.kit import RowFailed
from tests.support.paths import ROOT
from tests.support.proc import rss

SIZE = 1000
"""Characters of one update."""
QUIET = 1.0
"""Seconds without any CPU of acpd's: it waits for the client."""
PATIENCE = 120.0


class Stalled(NamedTuple):
    """Growth of acpd's resident memory over the whole, and how many updates came when the client read again."""

    grown_mib: float
    updates: int


class Client:
    """Blocking; reads only when it is told to."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str]) -> None:
        environment = {**os.environ, **env}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, bufsize=0, env=environment)
        self._rest = b""

    def send(self, identifier: int, method: str, params: Mapping[str, Any]) -> None:
        assert self.process.stdin is not None
        frame = {"jsonrpc": "2.0", "id": identifier, "method": method, "params": params}
        self.process.stdin.write(json.dumps(frame).encode() + b"\n")

    def read(self) -> bytes:
        assert self.process.stdout is not None
        data = os.read(self.process.stdout.fileno(), 1 << 16)
        if not data:
            raise RowFailed("acpd ended")
        return data

    def answer(self, identifier: int) -> Any:
        """The result of a request that is answered with no more than a few frames before it."""
        while True:
            *lines, self._rest = (self._rest + self.read()).split(b"\n")
            for line in lines:
                message = json.loads(line)
                if message.get("id") == identifier and "method" not in message:
                    if "error" in message:
                        raise RowFailed(str(message["error"])[:200])
                    return message["result"]

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()


def cpu(pid: int) -> int:
    """Clock ticks that the process has used."""
    with open(f"/proc/{pid}/stat", "rb") as stat:
        fields = stat.read().rpartition(b")")[2].split()
    return int(fields[11]) + int(fields[12])


def nanoseconds(pid: int) -> int:
    """CPU that the process's living threads have used."""
    found = 0
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/schedstat", "rb") as file:
            found += int(file.read().split()[0])
    return found


def _until_quiet(pids: Sequence[int]) -> int:
    """The largest resident size until the processes rest."""
    peak, used, since, end = 0, -1, time.monotonic(), time.monotonic() + PATIENCE
    while time.monotonic() < end:
        peak = max(peak, sum(map(rss, pids)))
        now = sum(map(cpu, pids))
        if now != used:
            used, since = now, time.monotonic()
        elif time.monotonic() - since > QUIET:
            return peak
        time.sleep(0.02)
    raise RowFailed(f"acpd did not come to rest in {PATIENCE:.0f} s")


def _drain(client: Client, updates: int, pids: Sequence[int]) -> tuple[int, int]:
    """Read until the prompt's answer: characters of text that came, and the largest resident size meanwhile."""
    letters, peak, rest, end = 0, 0, b"", time.monotonic() + PATIENCE
    while time.monotonic() < end:
        lines, newline, rest = (rest + client.read()).rpartition(b"\n")
        letters += lines.count(b"x") - lines.count(b"text")
        if newline and b'"stopReason"' in lines:
            return letters, peak
        peak = max(peak, sum(map(rss, pids)))
    raise RowFailed(f"{letters} characters of {updates * SIZE} and no answer in {PATIENCE:.0f} s")


def _streaming(client: Client, updates: int, size: int) -> Callable[[], None]:
    """A session; calling the result prompts it to stream."""
    client.send(1, "initialize", {"protocolVersion": 1, "clientCapabilities": {}})
    client.answer(1)
    client.send(2, "session/new", {"cwd": str(ROOT), "mcpServers": []})
    prompt = [{"type": "text", "text": f"/stream {updates} {size}"}]
    params = {"sessionId": client.answer(2)["sessionId"], "prompt": prompt}
    return lambda: client.send(3, "session/prompt", params)


def measure(command: Sequence[str], env: Mapping[str, str], megabytes: int, daemon: int | None = None) -> Stalled:
    """Let the agent behind `command` stream so much at a client that does not read. Raises RowFailed.

    `daemon`: the process behind `command`, whose memory counts too.
    """
    updates = megabytes * 1_000_000 // (SIZE + 200)
    client = Client(command, env)
    pids = [client.process.pid, *([daemon] if daemon else ())]
    try:
        stream = _streaming(client, updates, SIZE)
        before = sum(map(rss, pids))
        stream()
        peak = _until_quiet(pids)
        letters, later = _drain(client, updates, pids)
        if letters < updates * SIZE:
            raise RowFailed(f"{letters} characters of {updates * SIZE} came")
    finally:
        client.close()
    return Stalled((max(peak, later) - before) / (1 << 20), letters // SIZE)


class Used(NamedTuple):
    """Microseconds of CPU for one update, and updates in a second."""

    shim: float
    daemon: float
    rate: float


def used(command: Sequence[str], env: Mapping[str, str], updates: int, daemon: int) -> Used:
    """What a shim and its daemon need for a stream of updates of 20 characters, their agent not counted. Raises RowFailed."""
    client = Client(command, env)
    pids = (client.process.pid, daemon)
    try:
        stream = _streaming(client, updates, 20)
        before, started = [nanoseconds(pid) for pid in pids], time.monotonic()
        stream()
        rest = b""
        while b'"stopReason"' not in rest:
            rest = rest[-20:] + client.read()
        seconds = time.monotonic() - started
        taken = [(nanoseconds(pid) - earlier) / updates / 1e3 for pid, earlier in zip(pids, before, strict=True)]
    finally:
        client.close()
    return Used(taken[0], taken[1], updates / seconds)
