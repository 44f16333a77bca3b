"""Whether a command line is one for the shim. It knows what is common; whatever else it meets is left to argparse."""

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_ANYWHERE = ("--config", "--user", "--backend", "--storage", "--sync", "--log-level")


def for_shim(arguments: "Sequence[str]", env: "Mapping[str, str]") -> dict[str, str] | None:
    """The flags and their values, without the dashes, if this serves an editor by a daemon; else None."""
    said = env.get("ACPD_STANDALONE", ""), env.get("ACPD_LOGIN", ""), env.get("ACPD_HOME", "")[:1]
    if said[0] not in {"", "0"} or said[1] not in {"", "0"} or said[2] not in {"", "/"} or os.isatty(0):
        return None
    at = arguments.index("--") if "--" in arguments else len(arguments)
    flags = _flags(arguments[:at])
    if flags is None:
        return None
    command = [*flags.pop("command", "").split("\0"), *arguments[at + 1 :]]
    if flags.pop("run", ""):
        return flags if any(command) else None
    return None if at < len(arguments) else flags


def _flags(words: "Sequence[str]") -> dict[str, str] | None:
    """Also `run`, if that is the command, and its words so far, `command`, between NULs. None: not one of ours."""
    flags: dict[str, str] = {}
    command: list[str] = []
    together = False
    left = iter(words)
    for word in left:
        if not word.startswith("-"):
            if word != "run" if not command else not together:
                return None  # of words in two places argparse thinks differently from version to version
            command.append(word)
            flags["run"] = "yes"
            together = True
            continue
        together = False
        name, equals, value = word.partition("=")
        if name not in _ANYWHERE and name != ("--name" if "run" in flags else "--agent"):
            return None
        value = value if equals else next(left, "")
        if not value or (value.startswith("-") and not equals):
            return None
        flags[name[2:]] = value
    flags["command"] = "\0".join(command[1:])
    return flags
