"""Which store and which key a call uses: decided here and nowhere else. Pure.

One function for state, tree and catalog alike, so that a session's parts never land under different names.
"""

from __future__ import annotations

from typing import NamedTuple

from acpd.storage.contract import Key, Session


class Binding(NamedTuple):
    """What one call works on: `key` names its state in `session`, `tree_key` its log and its row in the catalog."""

    session: Session
    key: Key
    tree_key: Key


def bind(
    agent: str,
    *,
    default: Session,
    configured: Session | None = None,
    session: Session | None = None,
    session_key: str | None = None,
    session_id: str | None = None,
    user: str | None = None,
) -> Binding:
    """The binding of one call.

    The store: the one given for the call (`session`), else the agent's `configured` one, else the `default`.
    The key of the state: `session_key`, else `session_id`, else the agent's name. Log and catalog always use the
    `session_id`; without one, the agent's name as well. Empty text counts as not given.
    """
    tree = session_id or agent
    store = session if session is not None else configured if configured is not None else default
    return Binding(store, Key(agent, session_key or tree, user), Key(agent, tree, user))
