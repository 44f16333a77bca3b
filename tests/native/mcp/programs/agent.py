"""An agent with a session's MCP servers: a prompt "NAME {json}" calls that tool, any other lists the tools."""

from __future__ import annotations

import sys

from acpd.api.agent import Agent
from acpd.api.session import Session
from acpd.api.shapes import Stop
from acpd.api.turn import Turn
from acpd.native.mcp.servers import Servers
from acpd.native.toolbox import Toolbox


class WithServers(Agent):
    name = "with-servers"
    mcp = True

    def __init__(self) -> None:
        self.servers: dict[str, Servers] = {}

    async def opened(self, session: Session, /) -> None:
        self.servers[session.id] = Servers(session, timeout=3)
        await self.servers[session.id].open()

    async def closed(self, session: Session, /) -> None:
        await self.servers.pop(session.id).close()

    async def prompt(self, turn: Turn, /) -> Stop | None:
        servers = self.servers[turn.session.id]
        name, _, arguments = turn.text.partition(" ")
        if name == "tools":
            await turn.say(" ".join(tool.name for tool in servers.tools()))
        else:
            output = await Toolbox((), servers.tools).call(turn, name, arguments)
            await turn.say(output.text)
        return None


sys.exit(WithServers().run())
