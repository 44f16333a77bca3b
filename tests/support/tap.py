"""A program that stands between two peers and writes down what passes: `tap.py LOG COMMAND ARG...`.

It runs the command and copies stdin and stdout unchanged. `LOG.wire` gets each whole line, `>` before what goes to the
command, `<` before what comes from it; a line stands there before its last byte is passed on, so that an answer stands
after its request and no peer has more than the log. `LOG.pid` holds the command's process id; `%p` in LOG is the tap's
own. Ends with the command, with its exit code.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading

CHUNK = 1 << 16


def write_all(target: int, data: bytes) -> None:
    """Blocks until all of it is written."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(target, rest) :]


def copy(source: int, target: int, log: int, mark: bytes) -> None:
    """Pass everything from one descriptor to the other, then close the target; stop when the target's reader is gone."""
    begun = b""
    with contextlib.suppress(BrokenPipeError):
        while chunk := os.read(source, CHUNK):
            *whole, begun = (begun + chunk).split(b"\n")
            write_all(log, b"".join(mark + line + b"\n" for line in whole))
            write_all(target, chunk)
    os.close(target)


def main() -> int:
    """Run the command between the two copies."""
    path, *command = sys.argv[1:]
    path = path.replace("%p", str(os.getpid()))
    log = os.open(path + ".wire", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        with open(path + ".pid", "w") as pid:
            pid.write(str(child.pid))
        threading.Thread(target=copy, args=(0, os.dup(child.stdin.fileno()), log, b">"), daemon=True).start()
        child.stdin.close()
        copy(child.stdout.fileno(), os.dup(1), log, b"<")
        os.close(1)
        return child.wait()


if __name__ == "__main__":
    os._exit(main() & 0xFF)  # the thread that waits for stdin must not hold the exit up
