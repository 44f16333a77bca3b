"""`python -m acpd`, for people who know where they are. Everything that is written down uses the script `acpd`.

With -m the current folder is the first place where modules are looked for, so a project's own `msgspec.py` would run
with the rights of its editor. That is refused; -P (or PYTHONSAFEPATH=1) leaves the folder out.
"""

import os
import sys


def main() -> int:
    if not sys.flags.safe_path and os.path.abspath(sys.path[0]) == os.getcwd():
        sys.stderr.write(
            "acpd: python -m acpd would load modules from this folder (use the command acpd, or python -P -m acpd)\n"
        )
        return 2
    from acpd.cli.entry import main as entry

    return entry()


if __name__ == "__main__":
    sys.exit(main())
