"""The console script `acpd`. Tiny: whoever runs it as a main script compiles it at every start."""

import sys


def main() -> int:
    import os

    from acpd.cli.program import program

    return program(sys.argv[1:], os.environ)


if __name__ == "__main__":
    sys.exit(main())
