"""The console script `acpd`. Tiny: whoever runs it as a main script compiles it at every start."""

import os
import sys


def main() -> int:
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:  # closed: the next file that is opened would get its number, and what is meant for it
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    if sys.stderr is None:
        sys.stderr = open(2, "w")  # noqa: SIM115  open until the process ends
    if sys.stdout is not None:
        from acpd.shim.serving import serve

        code = serve(sys.argv[1:], os.environ)
        if code is not None:
            return code
    from acpd.cli.program import program

    return program(sys.argv[1:], os.environ)


if __name__ == "__main__":
    sys.exit(main())
