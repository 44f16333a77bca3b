"""What is in a store while something works in it: what vanishes meanwhile is left out.

`Path.rglob` and `Path.glob` raise FileNotFoundError for a folder that goes while they walk (Python 3.11), and so does
`stat` or `read_bytes` for a file that has gone since it was found; acpd removes folders, temporary files and logs at any time.
"""

from __future__ import annotations

import os
from pathlib import Path


def below(base: Path, pattern: str = "*") -> list[Path]:
    """Files and folders below `base`, sorted, whose last parts match `pattern` as in `Path.rglob`."""
    found = (Path(folder, name) for folder, folders, files in os.walk(base) for name in [*folders, *files])
    return sorted(path for path in found if path.match(pattern))


def sizes(base: Path, pattern: str = "*") -> dict[Path, int]:
    """Bytes of each file below `base`."""
    found: dict[Path, int] = {}
    for path in below(base, pattern):
        try:
            if path.is_file():
                found[path] = path.stat().st_size
        except FileNotFoundError:
            continue
    return found


def contents(base: Path, pattern: str = "*") -> dict[Path, bytes]:
    """What each file below `base` holds."""
    found: dict[Path, bytes] = {}
    for path in below(base, pattern):
        try:
            if path.is_file():
                found[path] = path.read_bytes()
        except FileNotFoundError:
            continue
    return found
