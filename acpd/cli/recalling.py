"""`acpd mcp`: what there was in earlier sessions, for the model of any agent that has MCP servers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack

from acpd.cli.call import Call
from acpd.cli.store import exists, opened, resolve
from acpd.errors import SessionNotFound
from acpd.needs import Store
from acpd.recall.asker import Asker
from acpd.recall.tools import MEMORY, TOOLS, Described

MAKING = 600
"""Seconds for which a session that is being made may not be in the store: its agent starts its MCP servers first."""


async def mcp(call: Call) -> None:
    """Serve until stdin ends. Raises SessionNotFound for a session that there is not, and will not be in a moment."""
    async with AsyncExitStack() as stack:
        scope = _Scope(call, stack)
        try:
            await scope.asker()
        except SessionNotFound:
            if not scope.young:
                raise
        from acpd.recall import onmcp  # the better part of a second

        await onmcp.serve(scope.asker, scope.tools)


class _Scope:
    """For whom the tools are: the user and the agent of one session."""

    def __init__(self, call: Call, stack: AsyncExitStack) -> None:
        self._call = call
        self._stack = stack
        self._session: str = call.values.session
        self._store: Store | None = None
        self._asker: Asker | None = None
        self._lock = asyncio.Lock()

    @property
    def young(self) -> bool:
        """Whether acpd has made this id, a UUIDv7, only now."""
        try:
            made = int(self._session[:8] + self._session[9:13], 16) / 1000
        except ValueError:
            return False
        return self._session[14:15] == "7" and abs(time.time() - made) < MAKING

    def tools(self) -> Sequence[Described]:
        """Those of memory only where there is one: it is wanted, and the store, if it is there yet, keeps it."""
        native = self._call.config.agents.native
        wanted = native is None or native.memory
        kept = self._store is None or self._store.memory is not None
        return TOOLS if wanted and kept else [tool for tool in TOOLS if tool.offered != MEMORY]

    async def asker(self) -> Asker:
        """Raises SessionNotFound, StoreError."""
        async with self._lock:
            if self._asker is None:
                self._asker = await self._found()
            return self._asker

    async def _found(self) -> Asker:
        config = self._call.config
        if self._store is None:
            if not exists(config):
                raise SessionNotFound(self._session)
            self._store = await self._stack.enter_async_context(opened(config, recover=False))
        store = self._store
        if not self.young and await store.catalog.get(self._session) is None:
            await store.catalog.recover(store.journals)  # as every command does that lists; it takes its time
        key = await resolve(store, self._session, config.user)
        return Asker(store, config.user, key.agent, key.session)
