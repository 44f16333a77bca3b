"""What an agent is told of a conversation that it has no memory of: the turns before the running one, as text."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from acpd.storage.context import Context, is_notice, lines_of
from acpd.storage.cuts import Cuts
from acpd.storage.primer import Primed, Primer

if TYPE_CHECKING:
    from acpd.session import LiveSession
    from acpd.wire.lines import Stored


async def primed(session: LiveSession) -> Primed:
    """The newest part of the conversation within `agents.primer_tokens`. Raises StoreError."""
    cuts, primer = Cuts(), Primer(session.settings.primer_tokens)
    async for past in _past(session):
        cuts.feed(past)
    cuts.finish()
    context = Context(cut=cuts.newest)
    async for past in _past(session):
        for told in lines_of(context.feed(past)):
            primer.add(told)
    for told in lines_of(context.finish()):
        primer.add(told)
    return primer.told()


async def _past(session: LiveSession) -> AsyncIterator[list[Stored]]:
    """The path without acpd's own notices, up to the prompt that runs, which comes as itself."""
    running = session.current.entry if session.current is not None else ""
    async for window in session.store.journals.path(session.key, straight=session.fold.straight):
        yield [line for line in itertools.takewhile(lambda line: line.id != running, window) if not is_notice(line)]
        if running and any(line.id == running for line in window):
            return
