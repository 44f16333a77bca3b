"""Which store and which key a call uses."""

from __future__ import annotations

import pytest

from acpd.storage.binding import Binding, bind
from acpd.storage.contract import Key, Session
from acpd_backends.states import JsonSession, WorkspaceSession
from tests.support.paths import ROOT

DEFAULT: Session = WorkspaceSession(ROOT)
CONFIGURED: Session = JsonSession(ROOT)
GIVEN: Session = JsonSession(ROOT)


@pytest.mark.parametrize(
    ("given", "configured", "expected"),
    [(GIVEN, CONFIGURED, GIVEN), (GIVEN, None, GIVEN), (None, CONFIGURED, CONFIGURED), (None, None, DEFAULT)],
)
def test_the_call_decides_then_the_configuration_then_the_default(
    given: Session | None, configured: Session | None, expected: Session
) -> None:
    """A call's own store beats the agent's configured one, which beats the default."""
    assert bind("coder", default=DEFAULT, configured=configured, session=given).session is expected


@pytest.mark.parametrize(
    ("session_key", "session_id", "key", "tree"),
    [
        ("k", "s", "k", "s"),
        (None, "s", "s", "s"),
        ("", "s", "s", "s"),
        ("k", None, "k", "coder"),
        (None, None, "coder", "coder"),
        ("", "", "coder", "coder"),
    ],
)
def test_the_key_falls_back_and_the_tree_never_uses_it(
    session_key: str | None, session_id: str | None, key: str, tree: str
) -> None:
    """The key is sessionKey, else sessionId, else the agent's name; log and catalog use the sessionId whatever the key is."""
    bound = bind("coder", default=DEFAULT, session_key=session_key, session_id=session_id, user="alice")
    assert Binding(DEFAULT, Key("coder", key, "alice"), Key("coder", tree, "alice")) == bound
