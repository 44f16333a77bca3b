"""Which process is meant by a pid and a start time."""

from __future__ import annotations

import os
import subprocess
import sys

from acpd.agents import process


def test_a_living_process_has_a_start_time() -> None:
    """The start time of a living process is the same each time it is asked."""
    assert process.start_time(os.getpid()) == process.start_time(os.getpid()) > 0


def test_an_ended_process_has_none() -> None:
    """A process that ended has no start time, whether its parent has fetched it or not."""
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", ""]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # ended, and still there as a zombie
        assert process.start_time(child.pid) == 0
    assert process.start_time(child.pid) == 0
