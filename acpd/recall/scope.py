"""Who looks back, and at what: every request sees the sessions of one user alone."""

from __future__ import annotations

from typing import NamedTuple

from acpd.needs import Others, Store
from acpd.storage.contract import Key


class Scope(NamedTuple):
    """`key`: the session that asks; its agent is the one that is meant where none is named."""

    store: Store
    others: Others
    key: Key
