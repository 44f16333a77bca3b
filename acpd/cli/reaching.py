"""The command line's way to the daemon of its store: it says hello as a shim does, with its own words, folder, environment.

`ask` and `request` are one request, `Through` a whole client: a shim in a thread of this process, which starts a daemon
where none runs and finds the next one when that is lost, so that nothing is told twice and nothing is lost.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from typing import TYPE_CHECKING

import msgspec

import acpd
from acpd.cli.arguments import flags_of
from acpd.cli.call import Call
from acpd.errors import AcpdError
from acpd.shim.ledger import Ledger
from acpd.shim.link import Link, NoDaemon, Refused
from acpd.shim.pump import Broken, Pump
from acpd.shim.serving import Shim
from acpd.where import socket_path

if TYPE_CHECKING:
    from collections.abc import Sequence

    from acpd.config import Flags

SECONDS = 30.0
"""For an answer of the daemon."""
_RECEIVE = 256 * 1024


class NotRunning(AcpdError):
    """No daemon answers for this store."""


class _Error(msgspec.Struct):
    message: str = ""


class _Answer(msgspec.Struct):
    id: object = None
    result: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    error: _Error | None = None


def flags(call: Call) -> Flags:
    """What stands on the command line for every command."""
    return flags_of(call.values)


def choice(call: Call) -> dict[str, str]:
    """What of it chooses the store, and so the daemon."""
    said = flags(call)
    return {name: value for name in ("config", "storage", "backend") if (value := getattr(said, name))}


def link(call: Call, *command: str) -> Link:
    """Where the daemon is, and what is said to it: this command. Not connected yet. Raises OSError without a folder."""
    said = flags(call)
    names = ("config", "user", "backend", "storage", "sync", "log_level")
    words = [f"--{name.replace('_', '-')}={value}" for name in names if (value := getattr(said, name))]
    return Link(socket_path(call.paths.runtime, choice(call), call.env), [*words, *command])


def ask(call: Call, command: str, method: str, seconds: float = SECONDS) -> bytes:
    """The result of one request that takes no params. Blocks, for `seconds` without a word at most.

    Raises NotRunning, and AcpdError for what the daemon says.
    """
    reached = link(call, command)
    answer = _exchange(reached, [(method, {})], seconds)
    if answer.error is not None or answer.result is msgspec.UNSET:
        raise AcpdError(f"the daemon at {reached.path} refused: {answer.error.message if answer.error else 'no result'}")
    return bytes(answer.result)


def request(call: Call, method: str, params: dict[str, object]) -> bytes:
    """The result of one request that a client makes; no agent is started for it. Blocks.

    Raises NotRunning, and AcpdError with the daemon's own words.
    """
    hello = {
        "protocolVersion": 1,
        "clientInfo": {"name": f"acpd {call.values.command}", "version": acpd.__version__},
        "_meta": {"acpd.dev/start": False},
    }
    answer = _exchange(link(call, "status"), [("initialize", hello), (method, params)])  # `status` brings no agent
    if answer.error is not None or answer.result is msgspec.UNSET:
        raise AcpdError(answer.error.message if answer.error else f"the daemon answered {method} without a result")
    return bytes(answer.result)


def _exchange(reached: Link, requests: Sequence[tuple[str, object]], seconds: float = SECONDS) -> _Answer:
    """The answer to the last of these. Raises NotRunning, AcpdError."""
    lines = [
        b'%d {"jsonrpc":"2.0","id":%d,"method":"%b","params":%b}\n' % (at, at, method.encode(), msgspec.json.encode(params))
        for at, (method, params) in enumerate(requests, 1)
    ]
    try:
        with contextlib.closing(reached.open(())) as made:
            made.settimeout(seconds)
            made.sendall(b"".join(lines))
            return _answer(made, reached.rest, len(lines))
    except NoDaemon as error:
        raise NotRunning(str(error)) from None
    except Refused as error:
        raise AcpdError(str(error)) from None
    except TimeoutError:
        raise AcpdError(
            f"the daemon at {reached.path} did not answer within {seconds:.0f} s", hint="its log says what it does"
        ) from None
    except OSError as error:
        raise NotRunning(f"{reached.path}: {error.strerror or error}") from None


def _answer(made: socket.SocketType, received: bytes, number: int) -> _Answer:
    """The one with this number as its id. Raises NotRunning, OSError."""
    parts = [received]
    while True:
        if b"\n" in parts[-1]:
            *lines, left = b"".join(parts).split(b"\n")
            parts = [left]
            for line in filter(None, (line.split(b" ", 2)[2] for line in lines)):
                answer = msgspec.json.decode(line, type=_Answer)
                if answer.id == number:
                    return answer
        data = made.recv(_RECEIVE)
        if not data:
            raise NotRunning("the daemon ended before it answered")
        parts.append(data)


class Through:
    """A shim whose editor is this process: what is written to `stdin` goes to the daemon, `stdout` has what comes.

    Both are the caller's to close.
    """

    def __init__(self, call: Call, *command: str) -> None:
        """Raises OSError if the current folder is gone."""
        reached = link(call, *command)
        theirs_in, self.stdin = os.pipe()
        self.stdout, theirs_out = os.pipe()
        self.lost = ""
        """Why the daemon was given up, once `stdout` has ended."""
        self._ends = (theirs_in, theirs_out)
        self._shim = Shim(reached, Pump(Ledger(), theirs_in, theirs_out), choice(call), call.env)

    def connect(self) -> None:
        """Blocks for as long as a daemon takes to start. Raises AcpdError."""
        try:
            why = self._shim.first()
        except Refused as error:
            raise AcpdError(str(error)) from None
        if why is not None:
            raise AcpdError(f"there is no daemon: {why or '[daemon] autostart is false'}", hint="acpd serve starts one")
        threading.Thread(target=self._run, name="shim", daemon=True).start()

    def _run(self) -> None:
        try:
            self._shim.run()
        except (NoDaemon, Refused, Broken) as error:
            self.lost = str(error)
        finally:
            for end in self._ends:
                os.close(end)
