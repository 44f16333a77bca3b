"""From what a log says to the row that the catalog keeps of it. Pure."""

from __future__ import annotations

from acpd.storage.contract import Key, Row
from acpd.storage.fold import Fold
from acpd.wire.lines import Header


def row_of(key: Key, header: Header, fold: Fold, size: int, state: str = "clean") -> Row:
    """The row of this session. `size`: bytes of its log; `state`: "open" while its lease is held, else "clean".

    Titles are the fold's: the agent's `session_info_update`, else the `info` fact that acpd wrote of the first prompt.
    A log whose only line is its header was last changed when it was made.
    """
    return Row(
        id=key.session,
        agent=key.agent,
        user=key.user,
        cwd=header.folder or header.cwd,
        title=fold.title,
        createdAt=header.createdAt,
        updatedAt=max(fold.updated_at, header.createdAt),  # a fork begins with older lines
        messages=fold.messages,
        prompted=fold.prompted and not fold.adopting,
        seq=fold.seq,
        size=size,
        leaf=fold.leaf,
        inner=fold.last_inner,
        parent=header.parent.sessionId if header.parent else None,
        dirs=header.additionalDirectories,
        state=state,
    )
