"""`acpd-agent` with a model: what it can be set to, and what its turns are made of. Written on acpd.api like any other.

Nothing heavy is imported before session/new was answered: the model's SDK and the MCP servers come in `opened`, in threads,
and the first prompt waits for them.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from acpd.api.agent import Agent
from acpd.api.options import refusal
from acpd.api.session import Session
from acpd.api.shapes import Choice, Command, Option, Stop
from acpd.errors import AcpdError, ConfigError, Refused, StateTooBig, StateUnreadable
from acpd.native.cutting import Rules
from acpd.native.history import SAYING, STATE, USAGE, History, Memory, Saying, Usage
from acpd.native.models import Chosen, ModelUnusable, keys_in
from acpd.native.offers import NO_MODEL, Offers
from acpd.native.outcomes import LIMITS, Limits, Outcome
from acpd.native.settings import stamp
from acpd.native.words import OFFLINE, SETUP_METHOD
from acpd.tasks import Tasks
from acpd.version import __version__

if TYPE_CHECKING:
    from acpd.api.turn import Turn
    from acpd.native.mcp.servers import Servers
    from acpd.native.models import Loaded
    from acpd.native.remembering import Remembering
    from acpd.native.settings import Settings
    from acpd.native.toolbox import Toolbox

MODES = (
    Choice("ask", "Ask", "Each change and each command is asked for"),
    Choice("code", "Code", "Files of the session are changed without asking; commands are asked for"),
    Choice("plan", "Plan", "Nothing is changed"),
)
THINKING = (
    Choice("default", "Default", "As the model does it by itself"),
    Choice("off", "Off", "As little as the model allows"),
    Choice("minimal", "Minimal"),
    Choice("low", "Low"),
    Choice("medium", "Medium"),
    Choice("high", "High"),
    Choice("xhigh", "Very high"),
    Choice("max", "Maximal"),
)

TOO_BIG = (
    "It goes on as it is, but after a restart the model will remember only what it had until now. "
    "Begin a new session before that matters."
)
COMPACT = Command("compact", "Summarise the conversation so far, to make room", hint="what matters in it")

WARM_AFTER = 0.3
"""Seconds between the answer of initialize and imports: a client that is quick has its session by then."""


class _Work:
    """What belongs to one open session."""

    def __init__(self, session: Session, servers: Servers, equip: Callable[[bool], Toolbox]) -> None:
        """`equip` makes the toolbox, with or without the tools of memory."""
        self.session = session
        self.servers = servers
        self.toolbox = equip(False)
        self._equip = equip
        self.remembering: Remembering | None = None
        """None: it is switched off, or there is nobody who would keep it."""
        self.history: History | None = None
        self.kept: Memory | None = None
        """As `history` was kept last: if the session has another one, it was rewound or loaded anew."""
        self.too_big = False
        """What was kept last is not all: the client has been told so."""

    def remember(self, remembering: Remembering | None) -> None:
        """From the next turn on. None: what is under way ends at once."""
        if self.remembering is not None:
            self.remembering.stop()
        self.remembering = remembering
        self.toolbox = self._equip(remembering is not None)


class NativeAgent(Agent):
    """`environ`: with the keys of the providers, as far as they are not in the file of keys. `again` reads the settings anew,
    for a setup that mends what a prompt has failed for while the agent runs.
    """

    name = "acpd-agent"
    title = "acpd-agent"
    version = __version__
    mcp = True
    commands = (COMPACT,)
    auth_methods = (SETUP_METHOD,)

    def __init__(self, settings: Settings, environ: Mapping[str, str], again: Callable[[], Settings] | None = None) -> None:
        self._settings = settings
        self._environ = environ
        self._again = again
        self._stamp = stamp(settings, environ)
        self._memory, self._memory_stamp = settings.memory, self._stamp
        self._to_mend = False
        """A prompt has found no model, or a wrong key or name, since the settings were read."""
        self._tasks = Tasks(_report)
        self._offers = Offers(settings, environ, self._tasks)
        self._secrets = keys_in(self._offers.env)
        self._work: dict[str, _Work] = {}
        self._replaced: list[Offers] = []
        """Of settings before these, as long as somebody uses their connections."""

    def connected(self) -> None:
        self._tasks.spawn(self._warm(), name="warm")

    async def disconnected(self) -> None:
        await self._tasks.cancel()
        for offers in (self._offers, *self._replaced):
            await offers.close()

    def _sweep(self) -> None:
        """Connections to models that no session has any more are closed."""
        self._tasks.spawn(self._close_unused(), name="close")

    async def _close_unused(self) -> None:
        chosen = [self._offers.usual, *(self._chosen(work.session) for work in self._work.values())]
        await self._offers.close([each for each in chosen if each is not None])
        self._replaced = [offers for offers in self._replaced if not await offers.close()]

    async def _warm(self) -> None:
        """The usual model, for agents that are started before there is a session. Not at once: session/new comes first."""
        await asyncio.sleep(WARM_AFTER)
        await self._offers.found()
        if self._offers.usual is not None:
            with contextlib.suppress(AcpdError):  # the first prompt says it
                await self._offers.loaded(self._offers.usual)

    def _read_again(self) -> None:
        """Settings and keys, if a prompt has failed for them and their files have changed since. Raises ConfigError."""
        if not self._to_mend or self._again is None:
            return
        now = stamp(self._settings, self._environ)
        if now == self._stamp:
            return
        self._settings = self._again()
        self._stamp, self._to_mend = now, False
        self._replaced.append(self._offers)
        self._offers = Offers(self._settings, self._environ, self._tasks)
        self._secrets = tuple({*self._secrets, *keys_in(self._offers.env)})
        for work in self._work.values():
            work.session.changed()

    # -- options

    def options(self, session: Session, /) -> Sequence[Option]:
        mode = session.choices.get("mode", self._settings.mode)
        thinking = session.choices.get("thought_level", self._settings.thinking)
        return (
            Option("mode", "Mode", mode, MODES, category="mode"),
            self._model_option(session),
            Option("thought_level", "Thinking", thinking, THINKING, "thought_level", "Models that cannot think ignore it"),
        )

    def _model_option(self, session: Session) -> Option:
        chosen = self._chosen(session)
        choices = [Choice(each.id, each.id) for each in self._offers.offered()]
        if chosen is None:
            choices.append(Choice(NO_MODEL, "None", "No model is configured: acpd-agent --setup"))
        elif all(each.value != chosen.id for each in choices):
            choices.append(Choice(chosen.id, chosen.id))
        return Option("model", "Model", NO_MODEL if chosen is None else chosen.id, tuple(choices), category="model")

    def choose(self, session: Session, option: str, value: str, /) -> None:
        if option != "model":
            super().choose(session, option, value)
            return
        if value == self._model_option(session).value:
            return
        if not self._offers.has(value):
            raise refusal(self.options(session), option, value)
        session.choices["model"] = value
        self._sweep()
        session.spawn(self._load(session), name="load")

    def _chosen(self, session: Session) -> Chosen | None:
        """The session's model. One that was chosen and cannot be used any more is an error, not silently another."""
        value = session.choices.get("model")
        if value is None:
            return self._offers.usual
        try:
            return self._offers.named(value)
        except ModelUnusable:
            return Chosen(value, "")

    # -- a session's life

    def remembers(self, session: Session, /) -> bool:
        """Without the model's memory it would go on as if nothing had been said. An empty one is none; of one that is
        unreadable the prompt says so.
        """
        if STATE not in session.state:
            return OFFLINE in session.state
        try:
            memory = session.state.get(STATE, Memory)
            return memory is not None and (bool(memory.summary) or msgspec.json.decode(memory.messages) != [])
        except (StateUnreadable, msgspec.DecodeError, RecursionError):
            return True

    async def opened(self, session: Session, /) -> None:
        servers, equip = await asyncio.to_thread(_equipment, session, self._settings)
        self._work[session.id] = _Work(session, servers, equip)
        await self._heed_memory()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._load(session), name=f"load:{session.id}")
            tasks.create_task(servers.open(), name=f"servers:{session.id}")

    async def closed(self, session: Session, /) -> None:
        work = self._work.pop(session.id, None)
        if work is not None:
            if work.remembering is not None:
                await work.remembering.close()
            await work.servers.close()
            self._sweep()

    def answered(self, session: Session, /) -> None:
        work = self._work.get(session.id)
        if work is not None and work.remembering is not None and work.history is not None:
            work.remembering.soon()

    async def _heed_memory(self) -> None:
        """Switched off in acpd.toml it is off at once: who does not want it cannot be asked to find and end this process."""
        if self._again is not None:
            await asyncio.to_thread(self._look_for_memory, self._again)
        for work in self._work.values():
            wanted = self._memory and "memory" in work.session.client.tools  # else there is nobody who would keep it
            if wanted != (work.remembering is not None):
                work.remember(self._remembering(work) if wanted else None)

    def _look_for_memory(self, again: Callable[[], Settings]) -> None:
        """In a thread: two calls of stat, and what has changed is read."""
        now = stamp(self._settings, self._environ)
        if now != self._memory_stamp:
            self._memory_stamp = now
            with contextlib.suppress(ConfigError):  # it stays as it was until the file can be read
                self._memory = again().memory

    def _remembering(self, work: _Work) -> Remembering:
        from acpd.native.remembering import Remembering, Source

        @contextlib.asynccontextmanager
        async def model() -> AsyncGenerator[Loaded | None]:
            await self._heed_memory()
            if work.remembering is None:
                yield None
                return
            chosen = self._chosen(work.session)
            if chosen is None:
                yield None
                return
            try:
                async with self._offers.using(chosen) as loaded:
                    yield loaded
            finally:
                self._sweep()

        return Remembering(work.session, Source(lambda: work.history, model, lambda: self._secrets))

    async def _load(self, session: Session) -> None:
        """The session's model, ahead of its first prompt, which says what went wrong."""
        with contextlib.suppress(AcpdError):
            self._read_again()
        await self._offers.found()
        session.changed()
        chosen = self._chosen(session)
        if chosen is not None:
            try:
                await self._offers.loaded(chosen)
            except AcpdError:
                return
            session.spawn(self._list(chosen), name="list")

    async def _list(self, chosen: Chosen) -> None:
        """What else the provider has, for the option `model` of every session."""
        if await self._offers.look(chosen):
            for work in self._work.values():
                work.session.changed()

    # -- turns

    async def prompt(self, turn: Turn, /) -> Stop | None:
        try:
            async with contextlib.AsyncExitStack() as stack:
                return await self._prompt(turn, stack)
        finally:
            self._sweep()

    async def _prompt(self, turn: Turn, stack: contextlib.AsyncExitStack) -> Stop | None:
        """`stack`: the model is in use until the end of it."""
        session = turn.session
        work = self._work.get(session.id)
        if work is not None and work.remembering is not None:
            work.remembering.postpone()
        await self._heed_memory()
        try:
            self._read_again()
            await self._offers.found()
            usual = self._settings.model
            if self._offers.trouble is not None and session.choices.get("model", usual) == usual:
                raise self._offers.trouble
            chosen = self._chosen(session)
            if chosen is None:
                self._to_mend = True
                return await self._offline(turn)
            if work is None:
                raise ModelUnusable("this session could not be prepared", hint="load it again, or begin a new one")
            loaded = await stack.enter_async_context(self._offers.using(chosen))
            history = await self._history(session, work)
        except AcpdError as error:
            if isinstance(error, Refused):
                raise
            self._to_mend = True
            return await _end(turn, Outcome(str(error), code=getattr(error, "code", -32603)), said=False)
        words = _compaction(turn)
        if words is not None:
            return await self._compact(turn, work, loaded, history, words)
        return await self._talk(turn, work, loaded, history)

    async def _talk(self, turn: Turn, work: _Work, loaded: Loaded, history: History) -> Stop | None:
        from acpd.native.loop import Loop

        remembered: str | None = None

        async def instructions() -> str:
            from acpd.native.instructions import instructions

            nonlocal remembered
            if remembered is None:  # the same for the whole turn: what changes is not in the provider's cache
                remembered = await work.remembering.told() if work.remembering is not None else ""
            ours = await instructions(turn.session, work.toolbox.mode_of(turn.session))
            return "\n\n".join(part for part in (ours, work.servers.instructions(), remembered) if part)

        async def saving() -> None:
            _save(turn.session, work, history)
            await turn.session.channel.room()

        loop = Loop(
            turn,
            loaded,
            history,
            work.toolbox,
            instructions=instructions,
            thought=turn.session.choices.get("thought_level", self._settings.thinking),
            secrets=self._secrets,
            limits=Limits(requests=self._settings.max_requests),
            rules=self._rules,
            saving=saving,
            saying=lambda text: _put_saying(turn.session, Saying(after=len(history.messages), text=text)),
        )
        try:
            ended = await loop.run()
        finally:
            _save(turn.session, work, history)
            _put_saying(turn.session, None)
        self._to_mend = self._to_mend or ended.mend
        return await _end(turn, ended, said=loop.said)

    @property
    def _rules(self) -> Rules:
        settings = self._settings
        return Rules(settings.compact_messages, settings.compact_tokens, settings.compact_keep)

    async def _compact(self, turn: Turn, work: _Work, loaded: Loaded, history: History, words: str) -> Stop:
        """`/compact`, which the model is not told. What acpd may have put before it is."""
        from acpd.native.compacting import Compacting
        from acpd.native.loop import content_of

        if turn.blocks[:-1]:
            history.begin(content_of(turn.blocks[:-1]))
        compacting = Compacting(turn, loaded, history, self._rules, secrets=self._secrets, limits=LIMITS)
        try:
            await turn.say(await compacting.by_hand(words))
        finally:
            _save(turn.session, work, history)
        return "end_turn"

    async def _history(self, session: Session, work: _Work) -> History:
        """Raises MemoryUnreadable, StateUnreadable: a memory that cannot be read is not written over."""
        memory = session.state.get(STATE, Memory)
        if work.history is None or _remembered(memory) != _remembered(work.kept):
            work.history = await asyncio.to_thread(History.restored, memory, session.spared(USAGE, Usage))
            said = _saying(session)
            if said is not None and said.after == len(work.history.messages):  # its process was killed
                work.history.partial(said.text)
        return work.history

    async def _offline(self, turn: Turn) -> Stop | None:
        """No model: the offline agent, but for a session that a model remembers; that memory is not the script's to replace."""
        try:
            memory = turn.session.state.get(STATE, Memory)
        except StateUnreadable:
            memory = None
        if memory is not None and len(bytes(memory.messages)) > len(b"[]"):
            raise ModelUnusable("there is no model any more that could go on with this session", hint="acpd-agent --setup")
        from acpd.native import script

        await script.follow(turn, self._settings.mode)
        return None


def _equipment(session: Session, settings: Settings) -> tuple[Servers, Callable[[bool], Toolbox]]:
    """MCP servers and tools of a session (see _Work); imports them. Blocks."""
    from acpd.native.mcp.servers import Servers
    from acpd.native.toolbox import Toolbox
    from acpd.native.tools.kit import kit
    from acpd.native.tools.recalling import recalling

    servers = Servers(session, timeout=settings.mcp_timeout)
    tools = kit()  # once: they know what the model has read

    def equip(remembers: bool) -> Toolbox:  # noqa: FBT001  a parameter of a Callable has no name
        return Toolbox((*tools, *recalling(session, remembers=remembers)), servers.tools, settings.mode)

    return servers, equip


def _remembered(memory: Memory | None) -> tuple[bytes, str]:
    """To be compared: whether a model remembers the same."""
    return (b"", "") if memory is None else (bytes(memory.messages), memory.summary)


def _compaction(turn: Turn) -> str | None:
    """What stands behind `/compact`, if that is the prompt; else None."""
    said = turn.blocks[-1] if turn.blocks else {}
    command, _, words = str(said.get("text", "")).strip().partition(" ")
    return words.strip() if said.get("type") == "text" and command == f"/{COMPACT.name}" else None


def _save(session: Session, work: _Work, history: History) -> None:
    """The history is kept whole each time; one of a megabyte takes some milliseconds. One that is too big is told once."""
    memory = history.dump()
    try:
        session.state.put(STATE, memory)
        session.state.put(USAGE, history.usage)
    except StateTooBig:
        if not work.too_big:
            session.notice("error", "This conversation is too large to be kept", TOO_BIG)
        work.too_big = True
    else:
        work.kept, work.too_big = memory, False


def _saying(session: Session) -> Saying | None:
    """What cannot be read is nothing: the memory is what counts."""
    try:
        return session.state.get(SAYING, Saying | None)  # type: ignore[arg-type]
    except StateUnreadable:
        return None


def _put_saying(session: Session, saying: Saying | None) -> None:
    if saying is not None or _saying(session) is not None:
        with contextlib.suppress(StateTooBig):  # the memory says so
            session.state.put(SAYING, saying)


async def _end(turn: Turn, ended: Outcome, *, said: bool) -> Stop:
    """The last words, and the stop reason. Raises Refused for what ends with an error."""
    if ended.text:
        await turn.say(f"\n\n{ended.text}\n" if said else f"{ended.text}\n")
    if ended.stop is None:
        raise Refused(ended.code, ended.text)
    return ended.stop


def _report(name: str, error: BaseException) -> None:
    sys.stderr.write(f"acpd-agent: {name} has failed: {type(error).__name__}\n")


def serve(settings: Settings, environ: Mapping[str, str], again: Callable[[], Settings]) -> int:
    """Serve ACP on stdin and stdout until stdin ends: the exit code. `again` as of NativeAgent."""
    return NativeAgent(settings, environ, again).run()
