"""Names of tools as models take them: `[a-zA-Z0-9_-]{1,64}`, unique in the session, and the same as long as it lasts."""

from __future__ import annotations

import hashlib
import re

LONGEST = 64
_ILLEGAL = re.compile(r"[^a-zA-Z0-9_-]+")


class Names:
    """Gives out names. What was given out once is never another tool's: a model may call by an earlier list."""

    def __init__(self, reserved: tuple[str, ...] = ()) -> None:
        self._names: dict[tuple[str, str], str] = {}
        self._taken = set(reserved)

    def of(self, server: str, tool: str) -> str:
        """The name of this server's tool. `server` tells servers of one name apart by what stands after a NUL."""
        if (known := self._names.get((server, tool))) is not None:
            return known
        plain = _ILLEGAL.sub("_", f"{server.split(chr(0), maxsplit=1)[0]}_{tool}").strip("_") or "mcp"
        name = plain
        count = 0
        while len(name) > LONGEST or name in self._taken:
            digest = hashlib.sha256(f"{server}\0{tool}\0{count}".encode("utf-8", "surrogatepass")).hexdigest()[:6]
            name = f"{plain[: LONGEST - 7]}_{digest}"
            count += 1
        self._names[server, tool] = name
        self._taken.add(name)
        return name
