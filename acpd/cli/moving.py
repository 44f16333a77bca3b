"""`acpd cwd OLD NEW`: a project moved."""

from __future__ import annotations

from acpd.cli import output
from acpd.cli.call import Call
from acpd.cli.store import exists, opened
from acpd.errors import StoreError
from acpd.moving import move_between, move_session, moving

FAILED = 1


async def cwd(call: Call) -> int:
    """Exit code 1: some could not be told; done again, it goes on with those."""
    move = move_between(call.values.old, call.values.new)
    failed = count = 0
    if exists(call.config):
        async with opened(call.config) as store:
            async for key, folders, now in moving(store, move):
                try:
                    if not call.values.dry_run:
                        await move_session(store, key, move, now)
                except StoreError as error:
                    output.complain(error)
                    failed = FAILED
                    continue
                count += 1
                for was, there in folders.items():
                    call.out.say(f"{key.session}: {was} -> {there}")
    if not count and not failed:
        output.note(f"no session of {call.values.old}")
    return failed
