"""Two clients on one session, in all orders: a state machine acts for both, and holds what they are told against the log.

A deed does not wait, unless it is `calm`: then acpd comes to rest and everything is checked. So what happens between two
rests, happens at the same time. Deeds depend on nothing but the deeds before them: who wins a race changes no later choice.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.errors import Flaky
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from tests.support import store
from tests.support.seats import Changes, Seat
from tests.support.told import OPTIONS, SCRIPTS, Chosen, Deeds, Record, Sent, Sitting, check, is_told

T = TypeVar("T")

QUEUE = 30
"""Prompts that may wait; acpd refuses the 34th (`[sessions] queue`)."""
DEEDS = ("ask", "both") * 7 + ("choose", "twice") * 3 + ("load", "cancel", "lag") * 2 + ("close", "kill", "resume")
WHAT = st.sampled_from((*DEEDS, *SCRIPTS))
"""A script is a prompt with it."""


class House(Protocol):
    """A daemon, and how clients come to it."""

    home: Path
    work: Path
    changes: Changes
    can_stall: bool

    def seat(self, who: str) -> Seat:
        """The connection of "A" or "B": the one it has, else a new one."""
        ...

    def clear(self) -> None:
        """After a failure: the next example has connections of its own."""
        ...


class First(BaseException):
    """There was a failure. No Exception: Hypothesis ends with it, and does not look whether it comes again."""


class TwoClients(RuleBasedStateMachine):
    """See the module. `failures`: where one is put before all ends with `First`; without it is raised."""

    def __init__(self, house: House, failures: list[Exception] | None = None) -> None:
        super().__init__()
        self.house = house
        self.failures = failures
        self.deeds = Deeds()
        self.here: dict[str, Sitting] = {}
        self.epoch = 0
        self.session = ""
        self.unfinished: set[int] = set()
        """Prompts that had not ended when acpd was at rest last."""
        self.open_ask: str | None = None
        """What was open then."""
        self.sound = True

    @contextlib.contextmanager
    def deed(self, *, calm: bool = False) -> Generator[None]:
        """One rule's work; acpd comes to rest behind it if it is to."""
        self.sound = False
        with self._at_once():
            yield
            if calm and self.here:
                self.rest()
        self.sound = True

    @contextlib.contextmanager
    def _at_once(self) -> Generator[None]:
        try:
            yield
        except Exception as error:
            if self.failures is None:
                raise
            self.failures.append(error)
            raise First from error

    def read(self) -> Record:
        return Record(store.log(self.house.home, self.session, torn=True))

    def one_of(self, number: int) -> Sitting:
        return self.here[sorted(self.here)[number % len(self.here)]]

    # What clients do

    @initialize(second=st.sampled_from(("load", "resume", None)))
    def begin(self, second: str | None) -> None:
        with self.deed():
            seat = self.house.seat("A")
            self.session = seat.enter("new", "", self.house.work)
            self._sits(Sitting(seat, whole=True, low=0))
        if second is not None:
            self.join(second, calm=False)

    @rule(what=WHAT, who=st.integers(0, 1), option=st.integers(0, 1), calm=st.booleans())
    def act(self, what: str, who: int, option: int, calm: bool) -> None:
        """One deed of one client. One rule, so that no example is without prompts."""
        if what in {"load", "resume"}:
            if len(self.here) < len(OPTIONS):
                self.join(what, calm=calm)
        elif self.here:
            with self.deed(calm=calm):
                sitting = self.one_of(who)
                match what:
                    case "choose":
                        self._choose(sitting, option)
                    case "both":
                        self.rest()  # so that what is open now is asked of both
                        for each in (sitting, self.one_of(who + 1)):
                            self._choose(each, option)
                    case "cancel":
                        self._cancel(sitting)
                    case "close" | "kill":
                        self._leave(sitting, politely=what == "close")
                    case "lag":
                        self._lag(sitting, self.one_of(who + 1))
                    case script:
                        self._prompt(sitting, script)

    def _prompt(self, sitting: Sitting, script: str) -> None:
        waiting = len(self.unfinished) + sum(each.epoch == self.epoch for each in self.deeds.sent)
        if waiting >= QUEUE:
            return
        sent = Sent(len(self.deeds.sent) + 1, script, sitting, self.epoch)
        self.deeds.sent.append(sent)
        sent.key = sitting.seat.prompt(self.session, SCRIPTS[script](sent.number))

    def _choose(self, sitting: Sitting, option: int) -> None:
        """Answer what was open at the last rest, if nobody has been faster."""
        ask = self.open_ask
        if ask is None or any(each.ask == ask and each.sitting is sitting for each in self.deeds.chosen):
            return
        sitting.seat.read_on()
        asked = self.wait("an ask", lambda: self._asked(sitting, ask))
        if "id" in asked:
            answer = OPTIONS[sitting.seat.who][option]
            self.deeds.chosen.append(Chosen(ask, answer, sitting, self.epoch))
            sitting.seat.choose(asked, answer)

    def _asked(self, sitting: Sitting, ask: str) -> store.Json | None:
        """The event; one without an id: the question was closed before it came here."""
        found = next((each for each in sitting.seat.of("asked") if each["id"] == ask), None)
        return found or ({"closed": True} if ask in self.read().answers else None)

    def _cancel(self, sitting: Sitting) -> None:
        """acpd has looked at it when this returns: no later prompt can be meant."""
        sitting.seat.read_on()
        self.deeds.cancels.append(self.epoch)
        sitting.seat.cancel(self.session)
        sitting.seat.barrier()
        self.deeds.certain(sitting)

    def _leave(self, sitting: Sitting, *, politely: bool) -> None:
        sitting.seat.read_on()
        if politely:
            sitting.seat.barrier()
            self.deeds.certain(sitting)
            sitting.seat.close()
        else:
            sitting.seat.kill()
        sitting.look()
        sitting.here = False
        del self.here[sitting.seat.who]

    def _lag(self, sitting: Sitting, other: Sitting) -> None:
        """It reads nothing for a while, and there is much to read."""
        if self.house.can_stall:
            sitting.seat.stall()
        self._prompt(other, "big")

    def join(self, how: str, *, calm: bool) -> None:
        with self.deed(calm=calm):
            who = next(each for each in OPTIONS if each not in self.here)
            seat = self.house.seat(who)
            sitting = Sitting(seat, whole=how == "load", low=self.read().seq)
            seat.enter(how, self.session, self.house.work)
            self._sits(sitting)

    def _sits(self, sitting: Sitting) -> None:
        sitting.high = self.read().seq
        self.deeds.sittings.append(sitting)
        self.here[sitting.seat.who] = sitting

    # Rest

    def wait(self, what: str, found: Callable[[], T | None]) -> T:
        return self.house.changes.until(what, found, self.story)

    def story(self) -> str:
        record = self.read()
        deeds = [f"P{s.number} {s.script} of {s.sitting.seat.who} in {s.epoch} certain={s.certain}" for s in self.deeds.sent]
        lines = b"\n".join(line[:200] for line in record.log.lines[-30:]).decode(errors="replace")
        told = "\n".join(each.seat.story() for each in self.here.values())
        return f"epoch {self.epoch}, cancels {self.deeds.cancels}\n{deeds}\n{lines}\n{told}"

    def rest(self) -> None:
        """Until nothing happens by itself any more; then everything is checked."""
        for sitting in self.here.values():
            sitting.seat.read_on()
            sitting.seat.barrier()
            self.deeds.certain(sitting)
        self._come_to_rest()
        record = self.read()
        for sitting in self.here.values():
            self.wait(f"what {sitting.seat.who} must be told", partial(is_told, sitting, record, self.deeds))
        for sitting in self.here.values():
            sitting.look()
        record = self.read()
        store.check(record.log)
        check(record, self.deeds, strict=not self.house.can_stall)
        self._check_cancelled(record)
        self.unfinished = {each.number for each in self.deeds.sent if each.number not in record.ends}
        self.open_ask = record.open_ask
        self.epoch += 1

    def _come_to_rest(self) -> None:
        """After a cancel all must end; prompts that raced with it may have come behind it and are cancelled again."""
        raced = any(each.epoch == self.epoch or not each.certain for each in self.deeds.sent)
        while self.wait("rest", self._state) == "blocked" and self.epoch in self.deeds.cancels:
            if not raced:
                self.wait("the end of what was cancelled", lambda: self._state() == "quiet")
                return
            self._cancel(next(iter(self.here.values())))

    def _state(self) -> str:
        """quiet: nothing runs; blocked: what runs waits for a client; or nothing: it goes on by itself."""
        record = self.read()
        scripts = {each.number: each.script for each in self.deeds.sent}
        if record.running is not None:
            return "blocked" if record.is_blocked(scripts[record.running]) else ""
        for each in self.deeds.sent:
            end = record.ends.get(each.number)
            if end is None and each.certain:
                return ""
            is_late = each.script == "late" and end is not None and end.get("stopReason") == "end_turn"
            if is_late and not record.said(f"late-P{each.number}"):
                return ""
        return "quiet"

    def _check_cancelled(self, record: Record) -> None:
        """What had been waiting when a cancel came, and nobody answered, is cancelled."""
        answered = any(each.epoch == self.epoch or not each.certain for each in self.deeds.chosen)
        if self.epoch in self.deeds.cancels and not answered:
            reasons = {number: record.ends[number].get("stopReason") for number in self.unfinished if number in record.ends}
            assert set(reasons.values()) <= {"cancelled"}, f"these had been cancelled: {reasons}"

    def teardown(self) -> None:
        """All ends; whoever loads the session then sees all of it."""
        if not self.sound or not self.session:
            self.house.clear()
            return
        try:
            with self._at_once():
                self._finish()
        except BaseException:
            self.house.clear()
            raise

    def _finish(self) -> None:
        for _ in range(len(self.here), len(OPTIONS)):
            self.join("load", calm=False)
        self.rest()
        self._cancel(self.one_of(0))
        self.rest()
        assert self.read().running is None
        self._leave(self.one_of(0), politely=True)
        self.join("load", calm=True)
        self.one_of(0).seat.close_session(self.session)


def is_seeded(config: pytest.Config) -> bool:
    """Whether somebody wants other deeds than usual."""
    return config.getoption("--hypothesis-seed") is not None


def first_failure(house: House, examples: int, steps: int) -> Exception | None:
    """What the first bad example of `play` raises. It need not come again, for it may depend on who is faster.

    (The same deeds, which ended well before, are inconsistent to Hypothesis then.)
    """
    failures: list[Exception] = []
    with contextlib.suppress(First, Flaky):
        play(house, examples, steps, failures=failures)
    return failures[0] if failures else None


def play(house: House, examples: int, steps: int, *, seeded: bool = False, failures: list[Exception] | None = None) -> None:
    """The same deeds each time, but where --hypothesis-seed is given (`seeded`). Raises what the first bad example raises;
    `failures` as of TwoClients.

    No shrinking: what depends on who is faster does not shrink.
    """

    class Here(TwoClients):
        def __init__(self) -> None:
            super().__init__(house, failures)

    run_state_machine_as_test(
        Here,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            derandomize=not seeded,
            database=None,
            phases=[Phase.generate],
            report_multiple_bugs=False,
        ),
    )
