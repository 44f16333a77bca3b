"""A real pool of real agents on a real store."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Self

from acpd.agents.link import AgentLink
from acpd.agents.pool import AgentPool, Host, Log
from acpd.agents.restore import Restorer
from acpd.config import AgentChoice
from acpd.needs import Settings, Store
from acpd.registry import Registry
from acpd.session import LiveSession
from acpd.tasks import Tasks
from acpd_backends.links import LinkFolder
from acpd_backends.stores import open_store
from tests.core.world import Editor, dumps, load, prompt
from tests.support import proc
from tests.support import store as logs
from tests.support.store import Json

AGENT = str(Path(__file__).resolve().parents[1] / "support" / "agent.py")
SETTINGS = Settings(cancel_timeout=5.0, stop_grace=0.2, start_timeout=5.0)
INITIALIZE = {
    "protocolVersion": 1,
    "clientCapabilities": {"session": {"configOptions": {"boolean": {}}}, "fs": {"readTextFile": True}},
}


class Noise(Log):
    """What a pool reports."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def noise(self, agent: str, why: str) -> None:
        self.lines.append(why)


class House:
    """Everything but clients' connections. `env` carries a mark by which every process of the test is found."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.mark = proc.new_mark()
        self.env = {**os.environ, proc.MARK: self.mark}
        self.failed: list[tuple[str, BaseException]] = []
        self.tasks = Tasks(lambda name, error: self.failed.append((name, error)))
        self.runtime = LinkFolder(root / "links")
        self.noise = Noise()
        self.pool = AgentPool(self.runtime, SETTINGS, self.tasks, self.noise)
        backend = open_store("workspace", root / "store")
        assert backend.journals is not None
        assert backend.catalog is not None
        assert backend.lease is not None
        self.store = Store(backend.session, backend.journals, backend.catalog, backend.lease)
        self.registry = Registry(self.store, Restorer(self.pool), SETTINGS, self.tasks, None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        async with asyncio.timeout(20):
            await self.registry.stop(interrupt=True)
            await self.pool.stop()
            await self.tasks.drain()
            await self.store.journals.close()
            await self.store.catalog.close()
            await self.store.session.close()
        try:
            if error[0] is None:
                assert [] == self.failed
                await asyncio.to_thread(proc.assert_none_left, self.mark)  # what ends an agent may still wait for the loop
        finally:
            proc.kill_marked(self.mark)

    # agents

    def host(self, *options: str, name: str = "scripted", command: tuple[str, ...] | None = None) -> Host:
        """A client's host for the scriptable agent with these options, or for any command."""
        host = Host(AgentChoice(name, command or (sys.executable, AGENT, *options)), self.env)
        host.initialize = dumps(INITIALIZE)
        return host

    def shell(self, script: str) -> Host:
        """A host for an agent that is a shell script. `$INIT` is a line that answers initialize."""
        answer = '{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":1}}'
        return self.host(command=("/bin/sh", "-c", f"INIT='{answer}'\n{script}"))

    async def start(self, host: Host) -> AgentLink:
        return await self.pool.start(host, host.choice)

    async def recorded(self) -> list[tuple[str, Json]]:
        return await asyncio.to_thread(self.runtime.recorded)

    async def stderr(self, link: AgentLink) -> bytes:
        return await asyncio.to_thread(self.runtime.tail, link.id, 100)

    # sessions

    async def new(self, host: Host, setup: Json | None = None) -> LiveSession:
        """A session whose agent comes up as if it had been loaded and never had one."""
        cwd = str(self.root)
        header = await self.registry.header(self.registry.new_id(), host.agent_name, cwd, host.choice.command)
        session = await self.registry.create(header)
        session.host = host
        session.setup = dumps(setup or {"cwd": cwd, "mcpServers": []})
        session.scribe.commit()
        await session.scribe.settled()
        return session

    async def reopened(self, session: LiveSession, host: Host) -> LiveSession:
        """Closed, and opened for another client."""
        await self.registry.close(session.id)
        again = await self.registry.open(session.id)
        again.host = host
        again.setup = dumps({"cwd": str(self.root), "mcpServers": []})
        return again

    def log(self, session: LiveSession) -> logs.Log:
        found = logs.log(self.root, session.id)
        logs.check(found)
        return found


_count = iter(range(1_000_000))


async def turn(session: LiveSession, script: str, editor: Editor | None = None) -> tuple[list[str], Json]:
    """Prompt this; what the client was shown for it, and the answer."""
    if editor is None:
        editor = Editor()
        attachment = session.attach(editor)
        session.audience.start(attachment)
        await editor.until(lambda: attachment.live)
    before = len(editor.texts)
    name = f"p{next(_count)}"
    prompt(session, editor, name, script)
    answer = await editor.answered(name)
    return editor.texts[before:-1], answer


async def shown(session: LiveSession) -> list[str]:
    """What a client that loads the session is shown."""
    await load(session, editor := Editor())
    return editor.texts


def wire(path: Path) -> list[Json]:
    """The lines that an agent with --wire got."""
    return [json.loads(line[2:]) for line in path.read_bytes().split(b"\n") if line.startswith(b"< ")]
