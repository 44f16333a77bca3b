"""`python -m tests.fuzz [--seconds 60] [--seed N] [--only PART]`: says what it did; an input that fails is kept in .fuzz/."""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from tests.fuzz import lines, pure, wire

KEPT = Path(".fuzz")


def run_pure(name: str, seed: int, seconds: float) -> int:
    """One property until time is up; gives the number of cases. Each case has a seed of its own, so that it can be repeated."""
    end = time.monotonic() + seconds
    cases = 0
    while time.monotonic() < end:
        case = seed + cases
        try:
            pure.PROPERTIES[name](random.Random(case))
        except BaseException:
            print(f"fuzz {name}: case {case} fails; repeat it with --only {name} --seed {case}", file=sys.stderr)
            raise
        cases += 1
    return cases


def run_processes(part: Callable[[random.Random, Path, float], int], seed: int, seconds: float) -> int:
    """Real processes on a fresh store, which stays in place if it fails."""
    home = Path(tempfile.mkdtemp(prefix="acpd-fuzz-"))
    try:
        done = part(random.Random(seed), home, seconds)
    except BaseException:
        print(f"fuzz: the store is in {home}, what was sent last in {KEPT}", file=sys.stderr)
        raise
    shutil.rmtree(home)
    return done


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--only", choices=[*pure.PROPERTIES, "stdin", "agent"])
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else time.time_ns() % 10**9
    processes: dict[str, Callable[[random.Random, Path, float], int]] = {"stdin": wire.into_acpd, "agent": wire.from_agent}
    parts = [options.only] if options.only else [*pure.PROPERTIES, *processes]
    share = options.seconds / sum(3 if part in processes else 1 for part in parts)
    failed = 0
    for part in parts:
        try:
            run = processes.get(part)
            done = run_processes(run, seed, share * 3) if run else run_pure(part, seed, share)
        except (AssertionError, Exception):  # noqa: BLE001 - whatever it is, it is the finding
            failed += 1
            path = lines.save(KEPT, f"{part}-{seed}.txt", traceback.format_exc().encode())
            print(f"fuzz {part:9} seed {seed}: FAILED, see {path}", flush=True)
            traceback.print_exc(limit=-4)
        else:
            print(f"fuzz {part:9} seed {seed}: {done} cases", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
