"""The console script `acpd-agent`. Tiny: whoever runs it as a main script compiles it at every start."""

import os
import sys


def main() -> int:
    """0 when the client has ended, 2 for a wrong command line."""
    words = set(sys.argv[1:])
    if wrong := words - {"--offline", "--version", "--help", "-h"}:
        sys.stderr.write(f"acpd-agent: unknown argument {min(wrong)} (acpd-agent --help shows what there is)\n")
        return 2
    if words & {"--help", "-h"}:
        from acpd.native.words import HELP

        sys.stdout.write(HELP)
        return 0
    if "--version" in words:
        from acpd.native.words import VERSION

        sys.stdout.write(f"acpd-agent {VERSION}\n")
        return 0
    if "--offline" not in words:
        sys.stderr.write("acpd-agent: there is no model to talk to yet; this is the offline agent, as with --offline\n")
    from acpd.native.offline import serve

    code = serve()
    sys.stderr.flush()
    os._exit(code)  # a thread that still imports something, or waits for somebody, does not keep an agent alive


if __name__ == "__main__":
    sys.exit(main())
