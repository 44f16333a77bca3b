"""What an agent keeps in acpd (`_acpd/state`): saved beside the log, and told to the agent that is started for it again."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from acpd import errors
from acpd.asks import Reply
from acpd.errors import AcpdError, RequestError, StateUnreadable
from acpd.storage.contract import SPARED, Key, Session
from acpd.tasks import Tasks
from acpd.wire.envelope import in_line


class Kept:
    """The values of one session by name, as JSON text. The store has each as it was written, by whomever."""

    __slots__ = ("_key", "_modules", "_tasks", "saving", "unreadable")

    def __init__(self, key: Key, modules: Session, tasks: Tasks) -> None:
        self.saving: list[asyncio.Task[None]] = []
        """Values on their way into the store; a turn's answer waits for them."""
        self.unreadable: dict[str, StateUnreadable] = {}
        """What was SPARED. As long as it is there, it is not replaced."""
        self._key = key
        self._modules = modules
        self._tasks = tasks

    def keep(self, name: str, value: bytes, reply: Reply) -> None:
        """Save a value; answered when it is durable, and before the turn is."""
        task = self._tasks.spawn(self._save(name, value, reply), name=f"state:{self._key.session}")
        self.saving.append(task)
        task.add_done_callback(self.saving.remove)

    async def _save(self, name: str, value: bytes, reply: Reply) -> None:
        try:
            if name in self.unreadable:
                if await self._modules.load(self._key, name) is not None:  # somebody has repaired it: it is not the agent's
                    raise self.unreadable[name]
                del self.unreadable[name]
            await self._modules.save(self._key, name, value)
        except AcpdError as error:
            reply(None, RequestError(errors.INTERNAL_ERROR, str(error)))
        else:
            reply(b"{}", None)

    async def forget(self, but: Collection[str]) -> None:
        """All that the agent keeps, but for these names: it was of a conversation that goes on elsewhere. Raises StoreError."""
        for name in await self._modules.names(self._key):
            if not name.startswith("acpd.") and name not in but:
                await self._modules.delete(self._key, name)

    async def all(self, only: Collection[str] | None = None) -> dict[str, bytes]:
        """What the agent keeps, or of it what has these names; nothing of acpd's own.

        Raises StateUnreadable, but for what is SPARED: that is left out, and is in `unreadable`.
        """
        self.unreadable.clear()
        kept = {}
        for name in await self._modules.names(self._key):
            wanted = not name.startswith("acpd.") if only is None else name in only
            try:
                value = await self._modules.load(self._key, name) if wanted else None
            except StateUnreadable as error:
                if name not in SPARED:
                    raise
                self.unreadable[name] = error
                continue
            if value is not None:
                kept[name] = in_line(value)
        return kept
