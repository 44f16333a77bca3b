"""The console script `acpd-agent`. Tiny: whoever runs it as a main script compiles it at every start."""

import os
import sys


def main() -> int:
    """0 when the client has ended, 2 for a wrong command line or configuration; of --setup: 1 if nothing was written."""
    words = sys.argv[1:]
    if "--help" in words or "-h" in words:
        from acpd.native.words import HELP

        sys.stdout.write(HELP)
        return 0
    if "--version" in words:
        from acpd.version import __version__

        sys.stdout.write(f"acpd-agent {__version__}\n")
        return 0
    if words == ["--offline"]:
        from acpd.native.offline import serve

        return serve()
    if "--until-setup" in words and "--setup" not in words:
        from acpd.native.handover import serve as serve_until

        return serve_until(words, os.environ)
    from acpd.errors import ConfigError

    try:
        return _configured(words)
    except ConfigError as error:
        sys.stderr.write(f"acpd-agent: {error}\n")
        return 2


def _configured(words: list[str]) -> int:
    if "--setup" in words:
        from acpd.native import setup

        return setup.main(words, os.environ)
    from acpd.native.settings import load

    settings = load(words, os.environ)
    if settings.offline:
        from acpd.native.offline import serve as serve_offline

        return serve_offline()
    from acpd.native.agent import serve

    return serve(settings, os.environ, lambda: load(words, os.environ))


if __name__ == "__main__":
    sys.exit(main())
