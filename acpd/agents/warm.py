"""One client's agent that no session has yet: started once, however many ask, and handed to the first session."""

from __future__ import annotations

import asyncio

from acpd.agents.link import AgentLink
from acpd.agents.pool import AgentPool, Host
from acpd.tasks import Tasks


class WarmAgent:
    """See the module. The agent itself is in `host.warm`."""

    def __init__(self, pool: AgentPool, host: Host, tasks: Tasks) -> None:
        self._pool = pool
        self._host = host
        self._tasks = tasks
        self._starting: asyncio.Task[AgentLink] | None = None
        self._unwanted = False
        self._cooling: asyncio.TimerHandle | None = None

    async def get(self) -> AgentLink:
        """It stays here. Raises what AgentPool.start raises."""
        if self._host.warm is not None and not self._host.warm.ended:
            return self._host.warm
        if self._starting is None:
            self._starting = self._tasks.spawn(self._pool.start(self._host, self._host.choice), name="agent:warm", watched=True)
            self._starting.add_done_callback(self._started)
        return await asyncio.shield(self._starting)

    def _started(self, task: asyncio.Task[AgentLink]) -> None:
        self._starting = None
        if not task.cancelled() and task.exception() is None:
            self._host.agent_name = task.result().name
            self.give_back(task.result())

    async def take(self) -> AgentLink:
        """It is the caller's from now on."""
        await self.get()
        link = self._host.take_warm()
        return link if link is not None else await self._pool.start(self._host, self._host.choice)

    def give_back(self, link: AgentLink) -> None:
        """An agent that has no session. One is enough, and none if its client has left."""
        if not self._unwanted and (self._host.warm is None or self._host.warm.ended):
            self._host.warm = link
            self._cool_later()
        else:
            self._tasks.spawn(link.stop(), name="stop:unused")

    def _cool_later(self) -> None:
        """One that no session takes in `keep_idle` seconds is ended; whoever needs one then has it started."""
        if self._cooling is not None:
            self._cooling.cancel()
        self._cooling = asyncio.get_running_loop().call_later(self._pool.settings.keep_idle, self._end)

    def leave(self) -> None:
        """Its client is gone."""
        self._unwanted = True
        if self._cooling is not None:
            self._cooling.cancel()
        self._end()

    def _end(self) -> None:
        if (link := self._host.take_warm()) is not None:
            self._tasks.spawn(link.stop(), name="stop:unused")
