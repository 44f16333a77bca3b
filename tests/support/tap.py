"""A program that stands between two peers and writes down what passes: `tap.py LOG COMMAND ARG...`.

It runs the command and copies stdin and stdout unchanged; `LOG.in` gets what went to the command, `LOG.out` what came
from it, each chunk before it is passed on, so a log never has less than the far side. `LOG.pid` holds the command's
process id. `%p` in LOG is the tap's own process id. Ends with the command, with its exit code.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading

CHUNK = 1 << 16


def copy(source: int, target: int, log_path: str) -> None:
    """Pass everything from one descriptor to the other, then close the target; stop when the target's reader is gone."""
    log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with contextlib.suppress(BrokenPipeError):
        while chunk := os.read(source, CHUNK):
            for end in (log, target):
                rest = memoryview(chunk)
                while rest:
                    rest = rest[os.write(end, rest) :]
    os.close(log)
    os.close(target)


def main() -> int:
    """Run the command between the two copies."""
    log, *command = sys.argv[1:]
    log = log.replace("%p", str(os.getpid()))
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        with open(log + ".pid", "w") as pid:
            pid.write(str(child.pid))
        threading.Thread(target=copy, args=(0, os.dup(child.stdin.fileno()), log + ".in"), daemon=True).start()
        child.stdin.close()
        copy(child.stdout.fileno(), os.dup(1), log + ".out")
        os.close(1)
        return child.wait()


if __name__ == "__main__":
    os._exit(main() & 0xFF)  # the thread that waits for stdin must not hold the exit up
