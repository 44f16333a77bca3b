"""python -m tests.bench [--quick] [--keep] [ROW ...]

Measures acpd against the targets of its first slice, each beside its anchors in the same run, and prints one table on
stdout; progress and the kit's own tables go to stderr. ROW is a number of the table, or `append`; without one, all.
Exit code 0, whatever was reached; 1 if a row could not be measured.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys

from tests.bench.kit import KIT, Bench, RowFailed, bench_python, say, ts_sdk
from tests.bench.rows import ROWS, Result, table


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", usage=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds and smaller sizes: for a look, not for a claim")
    parser.add_argument("--keep", action="store_true", help="leave the data and the kit's results where they are")
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"of {', '.join(ROWS)}")
    given = parser.parse_args()
    if unknown := [row for row in given.rows if row not in ROWS]:
        parser.error(f"no row {unknown[0]}; there are {', '.join(ROWS)}")
    if not KIT.is_dir():
        parser.error(f"the measuring kit is not at {KIT} (ACPD_SHARED names the folder that has it)")
    bench = Bench(quick=given.quick)
    say(f"data in {bench.folder}; anchors on {bench_python()}, TypeScript SDK {ts_sdk() or 'not there'}")
    results: list[Result] = []
    failed = False
    for name in given.rows or ROWS:
        try:
            results += ROWS[name](bench)
        except (RowFailed, OSError) as error:
            failed = True
            results.append(Result(name, ROWS[name].__name__, "", f"not measured: {error}", None))
    print(table(results))
    print(f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}; rows 1, 2, 4-6, 9, 12, 16: sync=process; 3, 13: sync=power")
    if not given.keep:
        shutil.rmtree(bench.folder)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
