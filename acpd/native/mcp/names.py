"""Names of tools as models take them: `[a-zA-Z_][a-zA-Z0-9_-]{0,63}`, unique in the session, the same as long as it lasts.
And names of servers as people read them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

LONGEST = 64
_ILLEGAL = re.compile(r"[^a-zA-Z0-9_-]+")


class Names:
    """Gives out names. What was given out once is never another tool's: a model may call by an earlier list."""

    def __init__(self, reserved: tuple[str, ...] = ()) -> None:
        self._names: dict[tuple[str, str], str] = {}
        self._taken = set(reserved)

    def of(self, server: str, tool: str) -> str:
        """The name of this server's tool."""
        if (known := self._names.get((server, tool))) is not None:
            return known
        plain = f"{_ILLEGAL.sub('_', server).strip('_') or 'mcp'}_{_ILLEGAL.sub('_', tool)}"
        if not (plain[0].isalpha() or plain[0] == "_"):  # one provider refuses others, and with them the whole request
            plain = f"mcp_{plain}"
        name = plain
        count = 0
        while len(name) > LONGEST or name in self._taken:
            digest = hashlib.sha256(f"{server}\0{tool}\0{count}".encode("utf-8", "surrogatepass")).hexdigest()[:6]
            name = f"{plain[: LONGEST - 7]}_{digest}"
            count += 1
        self._names[server, tool] = name
        self._taken.add(name)
        return name


def labels(names: Sequence[str]) -> list[str]:
    """Names of servers for people and for permissions, unique: the first of its name has it, others have a number behind it."""
    taken = set(names)
    found: list[str] = []
    for name in names:
        label, count = name, 1
        while label in (taken if count > 1 else found):
            count += 1
            label = f"{name} ({count})"
        taken.add(label)
        found.append(label)
    return found
