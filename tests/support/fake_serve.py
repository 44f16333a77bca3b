"""`acpd serve` as a shim sees it: python -m tests.support.fake_serve SOCKET FOLDER HOW.

Writes FOLDER/PID with its environment, then does what HOW says: `ready` (answers every line with itself until SIGTERM),
`error` (says why it cannot serve), `die` (says nothing), `silent` (never is ready).
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from tests.support.shim_daemon import ShimDaemon, echo


def main(path: str, folder: str, how: str) -> None:
    seen = {
        "env": dict(os.environ),
        "cwd": os.getcwd(),
        "session": os.getsid(0) == os.getpid(),
        "fds": sorted(int(name) for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}")),
    }
    Path(folder, str(os.getpid())).write_text(json.dumps(seen))
    ready = int(os.environ["ACPD_READY_FD"])
    if how == "die":
        sys.exit("a reason for the log")
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    if how == "error":
        os.write(ready, b"error - the store is somebody else's\n")
    elif how == "silent":
        signal.sigwait([signal.SIGTERM])
    else:
        Path(path).unlink(missing_ok=True)
        with ShimDaemon(Path(path), echo, many=True):
            os.write(ready, b"ready\n")
            os.close(ready)
            signal.sigwait([signal.SIGTERM])


if __name__ == "__main__":
    main(*sys.argv[1:])
