"""Where a daemon listens: what the shim and `acpd serve` must agree on. Imports nothing that an interpreter has not got.

The usual cases are decided here; others ask `acpd.config`, which is right in all of them and costs 10 to 30 ms. A test
holds that both say the same.
"""

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

SOCKET = "acpd.sock"
LONGEST = 103
"""Bytes of a path that every system takes in an address (Linux 107, macOS 103)."""
STORE_WORDS = {"config": "ACPD_CONFIG", "storage": "ACPD_STORAGE_PATH", "backend": "ACPD_STORAGE_BACKEND"}
"""Flags that choose a store, and the variable that each wins over."""


def runtime(env: "Mapping[str, str]") -> str:
    """`Paths.find(env).runtime`. Raises ConfigError as that does."""
    home = env.get("ACPD_HOME")
    if home and home.startswith("/"):
        return os.path.join(home, "run")
    if not home and env.get("SYSTEMD_EXEC_PID") != str(os.getpid()):
        given = env.get("XDG_RUNTIME_DIR", "")
        try:
            if given.startswith("/") and os.stat(given).st_uid == os.getuid():
                return os.path.join(given, "acpd")
        except (OSError, ValueError):
            pass  # not there: the slow way knows what then
    from acpd.config import Paths

    return Paths.find(env).runtime


def store_words(flags: "Mapping[str, str | None]", env: "Mapping[str, str]") -> dict[str, str]:
    """What is said about which store it is, by flags (`config`, `storage`, `backend`) and variables; paths absolute.

    Raises FileNotFoundError if a path is relative and the current folder is gone.
    """
    said = {name: flags.get(name) or env.get(variable, "") for name, variable in STORE_WORDS.items()}
    return {
        name: value if name == "backend" else os.path.abspath(os.path.expanduser(value))
        for name, value in said.items()
        if value
    }


def socket_name(words: dict[str, str]) -> str:
    """The socket of a store: `acpd.sock`; for one that these words choose a name that only they have.

    FNV-1a with 64 bits: it needs no import, and a daemon looks at the words themselves before it serves.
    """
    if not words:
        return SOCKET
    value = 0xCBF29CE484222325
    for byte in os.fsencode("\0".join(f"{name}={words[name]}" for name in sorted(words))):
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return f"acpd-{value:016x}.sock"


def socket_path(runtime_folder: str, flags: "Mapping[str, str | None]", env: "Mapping[str, str]") -> str:
    """Where the daemon of the store that flags and variables choose listens. Raises as `store_words`."""
    return os.path.join(runtime_folder, socket_name(store_words(flags, env)))


def address(path: str) -> tuple[str, int]:
    """What to bind or connect to for a socket of this path, and a descriptor to close afterwards (-1: there is none).

    A path that is too long for an address is reached by way of a descriptor of its folder, on Linux. Raises OSError if the
    folder cannot be opened.
    """
    folder, name = os.path.split(path)
    if len(os.fsencode(path)) <= LONGEST or not hasattr(os, "O_PATH"):
        return path, -1
    opened = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    return f"/proc/self/fd/{opened}/{name}", opened
