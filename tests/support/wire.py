"""The hook through which a client has every line of a connection validated against the schema of ACP."""

from __future__ import annotations

from collections.abc import Iterable

from tests.support.schema import WireCheck


class Checks:
    """Checks nothing. `to_client` gives what is wrong with a line that acpd sent, or None."""

    def to_client(self, line: bytes) -> str | None:
        return None

    def from_client(self, line: bytes) -> None:
        """Take note of what the client asks and answers; it may be as wrong as it likes."""


class SchemaChecks(Checks):
    """One client connection against the definition of each message's method."""

    def __init__(self) -> None:
        self._wire = WireCheck()

    def to_client(self, line: bytes) -> str | None:
        try:
            self._wire.sent_by_acpd_to_client(line)
        except AssertionError as error:
            return str(error)
        return None

    def from_client(self, line: bytes) -> None:
        self._wire.seen_from_client(line)


def checks() -> Checks:
    """The checks of one connection."""
    return SchemaChecks()


def wrong_to_agent(passed: Iterable[bytes]) -> list[str]:
    """What is wrong with the lines that acpd sent to one agent process, from the record of a tap (tests/support/tap.py)."""
    wire = WireCheck()
    found = []
    for line in passed:
        if line.startswith(b"<"):
            wire.seen_from_agent(line[1:])
            continue
        try:
            wire.sent_by_acpd_to_agent(line[1:])
        except AssertionError as error:
            found.append(str(error))
    return found
