"""Starting agents: a process, its link, its initialize answer."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ParamSpec, TypeVar

from acpd.agents import capabilities, process
from acpd.agents.link import AgentLink, Runtime
from acpd.agents.process import LINK_VARIABLE, Watched
from acpd.config import AgentChoice
from acpd.errors import AgentError, RequestError, StoreError
from acpd.needs import Settings
from acpd.peer import pipe_end
from acpd.tasks import Tasks
from acpd.wire.ids import Ids

P = ParamSpec("P")
T = TypeVar("T")
TRIM_EVERY = 2.0


class Host:
    """For whom agents are started: a client's agent, environment and initialize params. Memory only."""

    def __init__(self, choice: AgentChoice, env: Mapping[str, str], cwd: str | None = None) -> None:
        self.choice = choice
        self.env = env
        self.cwd = cwd
        """The client's current folder, where that is not ours."""
        self.initialize = (
            b'{"protocolVersion":1,"clientCapabilities":{"session":{"compaction":{}},"_meta":{"acpd.dev/state":{}}}}'
        )
        self.agent_name = choice.name
        """The agentId of what this client makes; "" until its agent has said it."""
        self.warm: AgentLink | None = None
        """A started agent that no session has yet."""

    def take_warm(self) -> AgentLink | None:
        """The warm agent, which is the caller's from now on."""
        link, self.warm = self.warm, None
        return link if link is not None and not link.ended else None


class AgentPool:
    """Starts links and knows all that live."""

    def __init__(
        self, runtime: Runtime, settings: Settings, tasks: Tasks, log: Log, known: Mapping[str, AgentChoice] | None = None
    ) -> None:
        self.links: dict[str, AgentLink] = {}
        self.known = known or {}
        """The configured agents by name: who drives sessions of theirs that another agent's client opens."""
        self.settings = settings
        self._runtime = runtime
        self._tasks = tasks
        self._log = log
        self._ids = Ids()
        self._under_way: set[asyncio.Future[Any]] = set()
        """Agents that are being started and connected, or ended because nobody wants them any more."""
        self._starting = 0
        """Processes that have no link yet."""
        self._stopped = False

    async def start(self, host: Host, choice: AgentChoice, cwd: str | None = None) -> AgentLink:
        """A running agent that has answered initialize within start_timeout.

        Raises AgentNotFound, AgentTimeout, AgentExited, AgentError, RequestError (the agent's own); no process is left then.
        """
        link = await self._spawn(host, choice, choice.cwd or cwd or host.cwd)
        link.told = capabilities.told(host.initialize)
        try:
            answer = await link.ask("initialize", host.initialize, timeout=self.settings.start_timeout)
            link.said = capabilities.parse(answer)
            if link.said.protocolVersion != 1:
                raise AgentError(f"agent {link.name} speaks ACP version {link.said.protocolVersion}, acpd speaks 1")
        except RequestError as error:
            await link.stop()
            raise RequestError(error.code, f"agent {link.name} refused to start: {error}", error.data) from None
        except BaseException:
            await link.stop()
            raise
        if not choice.name and link.said.agentInfo.name:
            link.name = link.said.agentInfo.name
        return link

    async def _spawn(self, host: Host, choice: AgentChoice, cwd: str | None) -> AgentLink:
        if self._stopped:
            raise AgentError("acpd is stopping")
        if len(self.links) + self._starting >= self.settings.agents:
            raise AgentError(f"{self.settings.agents} agents run: close a session, or raise [daemon] agents")
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._under_way.add(done)
        try:
            return await self._connected(host, choice, cwd)
        finally:
            self._under_way.discard(done)
            done.set_result(None)

    async def _connected(self, host: Host, choice: AgentChoice, cwd: str | None) -> AgentLink:
        identifier = self._ids.new()
        name = choice.name or os.path.basename(choice.command[0])
        env = {**host.env, **choice.env, LINK_VARIABLE: identifier}
        starting = self._in_thread(self._start, identifier, name, choice.command, env, cwd)
        self._starting += 1
        try:
            pipes, path = await asyncio.shield(starting)
        except asyncio.CancelledError:
            starting.add_done_callback(partial(self._unwanted, identifier))
            raise
        finally:
            self._starting -= 1
        link = AgentLink(identifier, name, choice.command, self._runtime, self._tasks, self.settings.stop_grace)
        link.stderr_path = path
        link.on_noise = partial(self._log.noise, name)
        link.on_gone = self._gone
        self.links[identifier] = link
        link.started(Watched(pipes.process, link.on_exit))
        self._log.changed("agent started", name, identifier, link.pid)
        try:
            await _connect(link, pipes)
        except BaseException:
            await link.stop()
            raise
        return link

    def _in_thread(self, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
        running = asyncio.get_running_loop().run_in_executor(None, partial(work, *args, **kwargs))
        self._under_way.add(running)
        running.add_done_callback(self._under_way.discard)
        return running

    def _start(
        self, link: str, name: str, command: Sequence[str], env: Mapping[str, str], cwd: str | None
    ) -> tuple[process.Pipes, str]:
        """The process, and where its stderr is. It is recorded before anybody can forget it. Blocks."""
        stderr, path = self._runtime.open_stderr(link)
        try:
            pipes = process.start(command, env, cwd, stderr)
        finally:
            os.close(stderr)
        try:
            self._record(link, name, pipes.process.pid)
        except BaseException:
            self._end(link, pipes)
            raise
        return pipes, path

    def _record(self, link: str, name: str, pid: int) -> None:
        own = os.getpid()
        self._runtime.record(
            link,
            {
                "pid": pid,
                "started": process.start_time(pid),
                "boot": process.boot_id(),
                "owner": own,
                "ownerStarted": process.start_time(own),
                "agent": name,
            },
        )

    def _end(self, link: str, pipes: process.Pipes) -> None:
        """End a process that nobody has taken. Blocks."""
        os.close(pipes.stdin)
        os.close(pipes.stdout)
        process.kill_rest(pipes.process.pid, link)
        pipes.process.wait()
        self._runtime.forget(link)

    def _unwanted(self, link: str, starting: asyncio.Future[tuple[process.Pipes, str]]) -> None:
        """Whoever wanted this agent was cancelled before it was there."""
        if not starting.cancelled() and starting.exception() is None:
            pipes = starting.result()[0]
            try:
                self._in_thread(self._end, link, pipes)
            except RuntimeError:  # the loop is ending and takes no more work; the process waits for a thread of its own
                threading.Thread(target=self._end, args=(link, pipes), name=f"end:{link}").start()

    def _gone(self, link: AgentLink) -> None:
        self.links.pop(link.id, None)
        self._log.changed("agent ended", link.name, link.id, link.pid)

    async def trim(self) -> None:
        """Keep the agents' stderr files short, for as long as this runs."""
        while True:
            await asyncio.sleep(TRIM_EVERY)
            for link in list(self.links):
                with contextlib.suppress(StoreError):  # tried again in a moment
                    await asyncio.to_thread(self._runtime.trim_stderr, link)

    async def end_leftovers(self) -> int:
        """End the agents of an acpd that died: those whose link file names an owner that is gone. Returns how many."""
        return await asyncio.to_thread(end_leftovers, self._runtime)

    async def stop(self) -> None:
        """Stop every agent, those too that are being started; none is started any more.

        Cancelling it leaves the stopping under way. The caller has the deadline: a disk may hang.
        """
        self._stopped = True
        while self._under_way:
            await asyncio.wait(self._under_way)
            await asyncio.sleep(0)  # who waited for it takes it, or has it ended
        await asyncio.gather(*(link.stop() for link in list(self.links.values())))

    async def kill(self) -> None:
        """SIGKILL to every agent that is left, at once, then to all that they started; nobody waits for their end."""
        left = [(link.pid, link.id) for link in self.links.values() if link.pid]
        for group, _ in left:
            process.signal_group(group, signal.SIGKILL)
        for group, link in left:
            await asyncio.to_thread(process.kill_rest, group, link)


class Log:
    """Where a pool reports; the daemon brings one that logs."""

    def noise(self, agent: str, why: str) -> None: ...

    def changed(self, event: str, agent: str, link: str, pid: int) -> None: ...


async def _connect(link: AgentLink, pipes: process.Pipes) -> None:
    loop = asyncio.get_running_loop()
    writer, _ = await loop.connect_write_pipe(lambda: link.peer, pipe_end(pipes.stdin, "wb"))
    link.peer.use_writer(writer)
    reader, _ = await loop.connect_read_pipe(lambda: link.peer, pipe_end(pipes.stdout, "rb"))
    link.peer.use_reader(reader)


def end_leftovers(runtime: Runtime) -> int:
    """See AgentPool.end_leftovers. Blocks. Without /proc nothing can be told; agents end there by EOF."""
    ended = 0
    if not process.start_time(os.getpid()):
        return ended
    for identifier, data in runtime.recorded():
        same_boot = data.get("boot") == process.boot_id()
        if same_boot and _lives(data.get("owner"), data.get("ownerStarted")):
            continue
        pid = data.get("pid")
        if same_boot and isinstance(pid, int) and _lives(pid, data.get("started")):
            process.signal_group(pid, signal.SIGKILL)
            ended += 1
        if same_boot:
            for other in process.with_variable(identifier):
                process.signal_process(other, signal.SIGKILL)
        runtime.forget(identifier)
    return ended


def _lives(pid: object, started: object) -> bool:
    return isinstance(pid, int) and process.start_time(pid) == started != 0
