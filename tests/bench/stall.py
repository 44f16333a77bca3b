"""Row 12: a client stops reading while its agent streams; how far acpd's memory grows, and that nothing is lost."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
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


def _until_quiet(pid: int) -> int:
    """The largest resident size until the process rests."""
    peak, used, since, end = 0, -1, time.monotonic(), time.monotonic() + PATIENCE
    while time.monotonic() < end:
        peak = max(peak, rss(pid))
        now = cpu(pid)
        if now != used:
            used, since = now, time.monotonic()
        elif time.monotonic() - since > QUIET:
            return peak
        time.sleep(0.02)
    raise RowFailed(f"acpd did not come to rest in {PATIENCE:.0f} s")


def _drain(client: Client, updates: int) -> tuple[int, int]:
    """Read until the prompt's answer: characters of text that came, and the largest resident size meanwhile."""
    letters, peak, rest, end = 0, 0, b"", time.monotonic() + PATIENCE
    while time.monotonic() < end:
        lines, newline, rest = (rest + client.read()).rpartition(b"\n")
        letters += lines.count(b"x") - lines.count(b"text")
        if newline and b'"stopReason"' in lines:
            return letters, peak
        peak = max(peak, rss(client.process.pid))
    raise RowFailed(f"{letters} characters of {updates * SIZE} and no answer in {PATIENCE:.0f} s")


def measure(command: Sequence[str], env: Mapping[str, str], megabytes: int) -> Stalled:
    """Let the agent behind `command` stream so much at a client that does not read. Raises RowFailed."""
    updates = megabytes * 1_000_000 // (SIZE + 200)
    client = Client(command, env)
    try:
        client.send(1, "initialize", {"protocolVersion": 1, "clientCapabilities": {}})
        client.answer(1)
        client.send(2, "session/new", {"cwd": str(ROOT), "mcpServers": []})
        session = client.answer(2)["sessionId"]
        before = rss(client.process.pid)
        client.send(
            3, "session/prompt", {"sessionId": session, "prompt": [{"type": "text", "text": f"/stream {updates} {SIZE}"}]}
        )
        peak = _until_quiet(client.process.pid)
        letters, later = _drain(client, updates)
        if letters < updates * SIZE:
            raise RowFailed(f"{letters} characters of {updates * SIZE} came")
    finally:
        client.close()
    return Stalled((max(peak, later) - before) / (1 << 20), letters // SIZE)
