"""The hook through which a client has every line of a connection validated against the schema of ACP."""

from __future__ import annotations


class Checks:
    """Checks nothing. `to_client` and `to_agent` give what is wrong with a line, or None."""

    def to_client(self, line: bytes) -> str | None:
        return None

    def to_agent(self, line: bytes) -> str | None:
        return None


def checks() -> Checks:
    """The checks of one connection."""
    return Checks()
