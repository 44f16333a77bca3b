"""Two plain clients on one session of a daemon in this process: the state machine, and bugs planted to prove it."""

from __future__ import annotations

import asyncio
import re
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from acpd.asks import Ask, Asks
from acpd.attachment import Attachment, Client, Staged
from acpd.audience import Audience
from acpd.config import Agent, Agents, Config, Paths, Storage
from acpd.config import Daemon as DaemonConfig
from acpd.config import Log as LogConfig
from acpd.daemon import Daemon
from acpd.errors import RequestError
from acpd.server import Server, Terms
from acpd.session import LiveSession
from acpd.transports import unix
from acpd.turn import Prompt
from tests.support import proc
from tests.support.seats import WAIT, Changes, Seat, SocketSeat
from tests.support.two_clients import first_failure, is_seeded, play

AGENT = Path(__file__).resolve().parents[1] / "support" / "agent.py"


class QuietServer(Server):
    """On a thread there are no signals."""

    def _listen_to_signals(self) -> None: ...


class ThreadHouse:
    """A daemon on a thread of this process, and plain clients on its socket."""

    can_stall = True

    def __init__(self, root: Path) -> None:
        self.home = root / "store"
        self.work = root / "work"
        self.work.mkdir()
        self.changes = Changes()
        self.mark = proc.new_mark()
        self._path = root / "run" / "acpd.sock"
        self._listening = unix.bind(str(self._path))
        self._root = root
        self._seats: dict[str, Seat] = {}
        self._loop = asyncio.new_event_loop()
        self._server: QuietServer | None = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="daemon")
        self._thread.start()
        assert self._ready.wait(WAIT)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        agent = Agent(command=(sys.executable, "-E", "-S", str(AGENT)), env={proc.MARK: self.mark})
        config = Config(
            storage=Storage(path=str(self.home), sync="process"),
            agents=Agents(default="agent", programs={"agent": agent}),
            daemon=DaemonConfig(drain=0.0),
            log=LogConfig(level="error"),
        )
        paths = Paths(config=str(self._root), data=str(self._root), runtime=str(self._root / "run"))
        daemon = Daemon(config, paths)
        daemon.settle_down = lambda: None  # type: ignore[method-assign]  # what suits a process of its own
        terms = Terms(
            "", understand=lambda hello: pytest.fail(str(hello)), inherited=[self._listening.detach()], ready=self._ready.set
        )
        self._server = QuietServer(daemon, terms)
        try:
            await self._server.run()
        finally:
            self._ready.set()

    def seat(self, who: str) -> Seat:
        if who not in self._seats or self._seats[who].left:
            self._seats[who] = SocketSeat(who, self.changes, self._path)
        return self._seats[who]

    def clear(self) -> None:
        for seat in self._seats.values():
            if not seat.left:
                seat.kill()

    def end(self) -> None:
        self.clear()
        assert self._server is not None
        self._loop.call_soon_threadsafe(self._server._stop)
        self._thread.join(WAIT)
        assert not self._thread.is_alive()
        left = proc.wait_none_left(self.mark)
        proc.kill_marked(self.mark)
        assert [] == left


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadHouse]:
    """Little fits into a socket of it, so that a client that does not read is behind soon."""
    monkeypatch.setattr(unix, "_BUFFER", 4096)
    monkeypatch.setattr("acpd.peer.HIGH_WATER", 4096)
    made = ThreadHouse(tmp_path)
    yield made
    made.end()


def test_two_clients(house: ThreadHouse, pytestconfig: pytest.Config) -> None:
    """Whatever two clients do at the same time, in whatever order: each is told what the log has, each answer counts once."""
    play(house, 8, 20, seeded=is_seeded(pytestconfig))


@pytest.mark.slow
def test_two_clients_for_long(house: ThreadHouse, pytestconfig: pytest.Config) -> None:
    """The same, many times."""
    play(house, 25, 30, seeded=is_seeded(pytestconfig))


# Planted bugs: each must be found


def _second_answer_counts(patch: pytest.MonkeyPatch) -> None:
    """Both answers to an ask are recorded."""
    answered = Asks._answered

    def wrong(self: Asks, ask: Ask, client: Client, result: bytes | None, error: RequestError | None) -> None:
        is_open = ask.id in self._open
        answered(self, ask, client, result, error)
        if not is_open and result is not None and "outcome" in result.decode():
            self._open[ask.id] = ask
            self._close(ask, result, "client", but=client)

    patch.setattr(Asks, "_answered", wrong)
    patch.setattr("acpd.asks._forget", lambda ask, client: client.notify("$/cancel_request", b'{"requestId":%b}' % ask.call))


def _prompt_comes_back(patch: pytest.MonkeyPatch) -> None:
    """A prompt is shown to its sender too."""
    stage = Audience.stage

    def wrong(self: Audience, item: Staged) -> None:
        item.origin = None
        stage(self, item)

    patch.setattr(Audience, "stage", wrong)


def _last_in_first_out(patch: pytest.MonkeyPatch) -> None:
    """The newest prompt of the queue is the next."""
    advance = LiveSession._advance

    def wrong(self: LiveSession) -> None:
        self.queue.reverse()
        advance(self)
        self.queue.reverse()

    patch.setattr(LiveSession, "_advance", wrong)


def _line_twice(patch: pytest.MonkeyPatch) -> None:
    """Who falls behind reads from one line too early."""
    fall_behind = Attachment.fall_behind

    def wrong(self: Attachment) -> None:
        self.cursor = max(0, self.cursor - 1)
        fall_behind(self)

    patch.setattr(Attachment, "fall_behind", wrong)


def _line_lost(patch: pytest.MonkeyPatch) -> None:
    """Who falls behind reads from one line too late."""
    fall_behind = Attachment.fall_behind

    def wrong(self: Attachment) -> None:
        self.cursor += 1
        fall_behind(self)

    patch.setattr(Attachment, "fall_behind", wrong)


def _not_withdrawn(patch: pytest.MonkeyPatch) -> None:
    """Nobody is told that somebody else's answer counted."""
    patch.setattr("acpd.asks._forget", lambda ask, client: client.forget(ask.call))


def _newcomer_not_asked(patch: pytest.MonkeyPatch) -> None:
    """What is open is not asked of who comes later."""
    patch.setattr(LiveSession, "_ask_again", lambda self, attachment: None)


def _late_cancel(patch: pytest.MonkeyPatch) -> None:
    """A cancel hits the next prompt too."""
    cancel = LiveSession.cancel
    prompt = LiveSession.prompt
    late: set[str] = set()

    def wrong(self: LiveSession) -> None:
        late.add(self.id)
        cancel(self)

    def wrong_too(self: LiveSession, one: Prompt) -> None:
        one.cancelled = self.id in late
        late.discard(self.id)
        prompt(self, one)

    patch.setattr(LiveSession, "cancel", wrong)
    patch.setattr(LiveSession, "prompt", wrong_too)


def _leaving_cancels(patch: pytest.MonkeyPatch) -> None:
    """Who leaves takes an open ask along."""
    patch.setattr(Asks, "left", lambda self, client: self.close_all("acpd"))


def _replay_again(patch: pytest.MonkeyPatch) -> None:
    """What a replay has told comes again behind it."""
    reached = Attachment.reached

    def wrong(self: Attachment, seq: int) -> None:
        reached(self, seq if self.live or self.cursor else max(0, seq - 3))

    patch.setattr(Attachment, "reached", wrong)


PLANTED = {
    _second_answer_counts: "has 2 answers",
    _prompt_comes_back: "in the log None",
    _last_in_first_out: "was sent before|was there before",
    _line_twice: "not in order, or twice",
    _line_lost: "must be told|is missing|sees",
    _not_withdrawn: "must be told",
    _newcomer_not_asked: "must be told|for an ask",
    _late_cancel: "ended .*cancelled",
    _leaving_cancels: "was closed by acpd",
    _replay_again: "not in order, or twice|what had been before",
}
"""Each with what the machine says of it."""


@pytest.mark.slow
@pytest.mark.parametrize(("plant", "found"), PLANTED.items(), ids=[plant.__name__.strip("_") for plant in PLANTED])
def test_planted_bugs(
    house: ThreadHouse, monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None], found: str
) -> None:
    """The machine finds what it is there to find."""
    plant(monkeypatch)
    monkeypatch.setattr("tests.support.seats.WAIT", 3.0)
    failure = first_failure(house, 200, 25)
    assert failure is not None
    assert re.search(found, "".join(traceback.format_exception(failure))), failure
