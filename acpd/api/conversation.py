"""A session's life and its turns, in the order of the client's requests.

The agent's methods are called so: `opened` and `closed` in turns, never twice without the other between; `prompt` when
`opened` has ended, one at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any

from acpd.api.agent import CLOSE_TIMEOUT, Agent
from acpd.api.channel import encode
from acpd.api.session import Session
from acpd.api.turn import Turn
from acpd.errors import AcpdError, ConnectionBroken
from acpd.tasks import Tasks, within

STOPS = frozenset({"end_turn", "max_tokens", "max_turn_requests", "refusal"})
CANCELLED = b'{"stopReason":"cancelled"}'
LEAVE = 0.5
"""Seconds for what was cancelled to end; longer is not waited for."""
SAVE_CANCELLED = 1.0
"""Seconds that a turn which was cancelled waits for its state. acpd waits for it in any case before it passes the answer on."""


class Steps:
    """Work of which each piece waits for the one before."""

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        self._last: asyncio.Task[None] | None = None

    def add(self, work: Coroutine[Any, Any, None], *, name: str) -> asyncio.Task[None]:
        before = self._last

        async def step() -> None:
            if before is not None:
                await asyncio.wait([before])
            await work

        self._last = self._tasks.spawn(step(), name=name)
        self._last.add_done_callback(lambda _: work.close())  # one that was cancelled before it began
        return self._last

    async def done(self) -> None:
        """Until nothing is left, also of what is added meanwhile. Cancelling this cancels none of it."""
        while self._last is not None and not self._last.done():
            await asyncio.wait([self._last])


class Conversation:
    """A session and what runs for it. `asleep`: it was closed, and can be loaded again."""

    def __init__(self, session: Session, agent: Agent, tasks: Tasks) -> None:
        """`tasks`: the connection's, where failures are told."""
        self.session = session
        self.prompt: Prompt | None = None
        self.asleep = False
        self._agent = agent
        self._tasks = tasks
        self._opened = False
        self._opening: asyncio.Task[None] | None = None
        self.life = Steps(tasks)
        """It is opened and closed."""
        self.replays = Steps(tasks)
        """It is shown; that need not wait for an agent that is still preparing itself."""

    def begin(self, blocks: list[Mapping[str, Any]]) -> Prompt:
        """A turn with this prompt; the one before has ended."""
        self.session.channel.next_message()
        turn = self.session.turn = Turn(self.session, blocks)
        self.session.tell()
        self.prompt = Prompt(self, turn)
        return self.prompt

    def end(self) -> None:
        """The turn has ended."""
        self.prompt = self.session.turn = None

    async def ready(self) -> None:
        """Until it is shown and open. Cancelling this leaves both alone."""
        await self.replays.done()
        await self.life.done()

    async def open(self) -> None:
        """A step: the agent prepares the session, anew if it had done so. Its failure is told, and the session goes on."""
        if self.asleep:
            return  # closed meanwhile
        await self._close()
        self._opened = True
        self._opening = self._tasks.spawn(self._agent.opened(self.session), name=f"opened:{self.session.id}")
        await asyncio.wait([self._opening])
        opening, self._opening = self._opening, None
        error = None if opening.cancelled() else opening.exception()
        if error is not None and not isinstance(error, ConnectionBroken):
            why = str(error) if isinstance(error, AcpdError) else "see the agent's stderr"
            self.session.notice("error", "This session could not be prepared", why)

    def stop(self) -> None:
        """What runs for it is cancelled, as by session/cancel."""
        if self.prompt is not None:
            self.prompt.cancel()
        if self._opening is not None:
            self._opening.cancel()

    async def close(self, prompt: Prompt | None, patience: float = CLOSE_TIMEOUT) -> None:
        """A step, behind `stop`: this prompt has its answer, or has not in `patience` seconds, and the agent has let go.

        A prompt behind a load that came meanwhile waits for this, and not this for it.
        """
        if prompt is not None:
            await within(patience, prompt.answered.wait())
        await self._close()
        await within(LEAVE, self.session.tasks.cancel())

    async def _close(self) -> None:
        if self._opened:
            self._opened = False
            closing = self._tasks.spawn(self._agent.closed(self.session), name=f"closed:{self.session.id}")
            if not (await asyncio.wait([closing], timeout=CLOSE_TIMEOUT))[0]:
                closing.cancel()


class Prompt:
    """A prompt that is not answered."""

    def __init__(self, conversation: Conversation, turn: Turn) -> None:
        self.conversation = conversation
        self.turn = turn
        self.answered = asyncio.Event()
        self._work: asyncio.Task[object] | None = None
        self._saving: asyncio.Task[None] | None = None

    def cancel(self) -> None:
        """From now on the answer is "cancelled". What runs is cancelled where it waits, and again if it had gone on."""
        self.turn.cancelled = True
        if self._work is not None:
            self._work.cancel()
        if self._saving is not None:
            asyncio.get_running_loop().call_later(SAVE_CANCELLED, self._saving.cancel)

    async def run(self, agent: Agent, tasks: Tasks) -> bytes:
        """The result, when all updates are sent and the state is kept. Raises what the agent raises."""
        if not self.turn.cancelled:
            self._work = tasks.spawn(self._by(agent), name=f"turn:{self.turn.session.id}", watched=True)
            await asyncio.wait([self._work])
        for call in list(self.turn.open):
            call.close()
        await self._saved(tasks)
        await self.turn.session.channel.shown()
        if self.turn.cancelled or self._work is None or self._work.cancelled():
            return CANCELLED
        stop = self._work.result() or "end_turn"
        if stop not in STOPS:
            raise ValueError(f"prompt() returned {stop!r}, which is no stop reason")
        return encode({"stopReason": stop})

    async def _saved(self, tasks: Tasks) -> None:
        """Until the state is kept; a cancel ends it after SAVE_CANCELLED seconds, whether it came before or comes now."""
        self._saving = tasks.spawn(self.turn.session.state.saved(), name=f"saved:{self.turn.session.id}")
        if self.turn.cancelled:
            self.cancel()
        await asyncio.wait([self._saving])

    async def _by(self, agent: Agent) -> object:
        await self.conversation.ready()
        return await agent.prompt(self.turn)
