"""`acpd cwd OLD NEW`: a project moved."""

from __future__ import annotations

from acpd.cli import holding, output
from acpd.cli.call import Call
from acpd.cli.store import exists, opened
from acpd.errors import AcpdError, SessionBusy
from acpd.moving import Move, Moving, move_between, move_session, moving
from acpd.needs import Store

FAILED = 1


async def cwd(call: Call) -> int:
    """Exit code 1: some could not be told; done again, it goes on with those."""
    move = move_between(call.values.old, call.values.new)
    failed = count = 0
    if exists(call.config):
        async with opened(call.config) as store:
            async for one in moving(store, move):
                try:
                    if not call.values.dry_run:
                        await _move(call, store, one, move)
                except AcpdError as error:
                    output.complain(error)
                    failed = FAILED
                    continue
                count += 1
                for was, there in one.folders.items():
                    call.out.say(f"{one.key.session}: {was} -> {there}")
    if not count and not failed:
        output.note(f"no session of {call.values.old}")
    return failed


async def _move(call: Call, store: Store, one: Moving, move: Move) -> None:
    """Raises AcpdError."""
    try:
        await move_session(store, one.key, move, one.now)
    except SessionBusy as error:
        await holding.let_go(call, store, error)
        await move_session(store, one.key, move, one.now)
