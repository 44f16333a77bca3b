"""What two clients on one session were told, held against what they did and against the log.

A model of what may be, not of what must come next: clients act at the same time, so who was first stands in the log alone. What
was done in an earlier epoch (acpd was quiet in between) came first in any case. An oracle: nothing of acpd's is imported.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.support import fold
from tests.support.seats import Json, Seat
from tests.support.store import Log, stored_update

SCRIPTS: dict[str, Callable[[int], str]] = {
    "plain": lambda n: f"say P{n}\nchunks 3",
    "slow": lambda n: f"say P{n}\nslow 4 3",
    "late": lambda n: f"say P{n}\nlate 3 late-P{n}",
    "ask": lambda n: f"say P{n}\nask four",
    "twice": lambda n: f"say P{n}\nask four\nask four",
    "hang": lambda n: f"say P{n}\nhang",
    "big": lambda n: f"say P{n}\nbig 60000\nbig 60000",
}
"""What a prompt makes the scriptable agent do. The first line names the prompt, and is what the agent says first."""
OPTIONS = {"A": ("yes", "no"), "B": ("always", "never")}
"""What each client answers, so that the log says whose answer counted."""


@dataclass(eq=False)
class Sitting:
    """One client's time on the session. `whole`: it saw everything from the first line on."""

    seat: Seat
    whole: bool
    low: int
    """The last seq before it asked to attach; `high`: and when that was answered."""
    high: int = 0
    here: bool = True
    told: list[Json] = field(default_factory=list)
    """What it had been told when that was looked at last."""

    def look(self) -> None:
        if self.here:
            with self.seat.changes.condition:
                self.told = list(self.seat.told)

    def events(self, kind: str) -> list[Json]:
        return [each for each in self.told if each["event"] == kind]

    @property
    def entered(self) -> int:
        """Where in what it was told its attaching was answered."""
        return next(at for at, each in enumerate(self.told) if each["event"] == "answered")

    @property
    def live(self) -> list[tuple[int, Json, int]]:
        """(seq, update, place in what it was told) of all that came behind the answer."""
        return [
            (event["params"]["_meta"]["acpd.dev/seq"], event["params"]["update"], at)
            for at, event in enumerate(self.told)
            if at > self.entered and event["event"] == "update" and is_said(event["params"])
        ]


@dataclass(eq=False)
class Sent:
    """One prompt. `certain`: acpd is known to have it."""

    number: int
    script: str
    sitting: Sitting
    epoch: int
    key: Any = None
    certain: bool = False


@dataclass(eq=False)
class Chosen:
    """One answer to one ask."""

    ask: str
    option: str
    sitting: Sitting
    epoch: int
    certain: bool = False


@dataclass
class Deeds:
    """All that the clients did."""

    sittings: list[Sitting] = field(default_factory=list)
    sent: list[Sent] = field(default_factory=list)
    chosen: list[Chosen] = field(default_factory=list)
    cancels: list[int] = field(default_factory=list)
    """Epochs."""

    def certain(self, sitting: Sitting) -> None:
        """What it sent has been looked at."""
        for sent in self.sent:
            sent.certain |= sent.sitting is sitting
        for chosen in self.chosen:
            chosen.certain |= chosen.sitting is sitting


def is_said(params: Json) -> bool:
    """Whether this is a part of the conversation: no notice, no title."""
    notice = (params.get("_meta") or {}).get("acpd.dev/notice")
    return not notice and params["update"]["sessionUpdate"] in {*fold.CHUNKS, "tool_call", "tool_call_update"}


class Record:
    """One state of the log."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.seq = len(log.entries)
        self.prompts: dict[int, Json] = {}
        """By number, in order."""
        self.ends: dict[int, Json] = {}
        self.asks: dict[str, int] = {}
        """From an ask to the number of its prompt."""
        self.asked_at: dict[str, int] = {}
        self.answers: dict[str, list[Json]] = {}
        self.visible: dict[int, Json] = {}
        """From seq to the update that a client must get for it."""
        self.own: dict[int, int] = {}
        """From the seq of a prompt to its number."""
        self.words: dict[int, list[str]] = {}
        """What the agent said of its asks, by the number of the prompt."""
        for entry, line in zip(log.entries, log.lines, strict=True):
            self._add(entry, line)

    def _add(self, entry: Json, line: bytes) -> None:
        last = next(reversed(self.prompts), 0)
        match entry["type"]:
            case "prompt":
                (block,) = entry["prompt"]
                number = int(block["text"].split()[1].removeprefix("P"))
                assert number not in self.prompts, f"the prompt {number} is in the log twice"
                self.prompts[number] = entry
                self.own[entry["seq"]] = number
                chunk = {"sessionUpdate": "user_message_chunk", "content": block, "messageId": entry["id"]}
                self.visible[entry["seq"]] = chunk
            case "turn" if entry["state"] != "running":
                assert last not in self.ends, f"the turn of the prompt {last} ended twice"
                self.ends[last] = entry
            case "ask":
                self.asks[entry["id"]] = last
                self.asked_at[entry["id"]] = entry["seq"]
            case "answer":
                self.answers.setdefault(entry["ask"], []).append(entry)
            case "update":
                update = json.loads(stored_update(line) or b"{}")
                if is_said({"update": update}):
                    self.visible[entry["seq"]] = update
                text = str((update.get("content") or {}).get("text", "")) if "messageId" in update else ""
                if text.startswith("chose "):
                    self.words.setdefault(last, []).append(text)
            case _:
                pass

    @property
    def running(self) -> int | None:
        last = next(reversed(self.prompts), None)
        return None if last is None or last in self.ends else last

    @property
    def open_ask(self) -> str | None:
        return next((ask for ask in self.asks if ask not in self.answers), None)

    def said(self, text: str) -> bool:
        return any((update.get("content") or {}) == {"type": "text", "text": text} for update in self.visible.values())

    def is_blocked(self, script: str) -> bool:
        """Whether the running turn goes on only when a client does something."""
        return self.open_ask is not None or (script == "hang" and self.said(f"P{self.running}"))

    def of(self, sitting: Sitting, deeds: Deeds) -> dict[int, Json]:
        """What this client can be told: all but its own prompts, which it knows."""
        own = {each.number for each in deeds.sent if each.sitting is sitting}
        return {seq: update for seq, update in self.visible.items() if self.own.get(seq) not in own}


def is_told(sitting: Sitting, record: Record, deeds: Deeds) -> bool:
    """Whether all has reached this client that has to."""
    sitting.look()
    seen = {seq for seq, _, _ in sitting.live}
    prompts = [each for each in deeds.sent if each.sitting is sitting and each.number in record.ends]
    asked = {event["id"] for event in sitting.events("asked")}
    return (
        all(seq in seen for seq in record.of(sitting, deeds) if seq > sitting.high)
        and all(_answers(each) for each in prompts)
        and record.open_ask in {None, *asked}
        and all(_withdrawals(sitting, ask) for ask in asked if _must_be_withdrawn(sitting, ask, record, deeds))
    )


def check(record: Record, deeds: Deeds, *, strict: bool) -> None:
    """Raises AssertionError. `strict`: nobody can be behind, so whoever was there was asked."""
    _check_order(record, deeds)
    for ask in record.asks:
        _check_ask(ask, record, deeds)
    for sent in deeds.sent:
        _check_end(sent, record, deeds)
    for sitting in deeds.sittings:
        _check_asked(sitting, record, deeds, strict=strict)
        _check_stream(sitting, record, deeds)


def _check_order(record: Record, deeds: Deeds) -> None:
    """Prompts run in the order in which acpd got them."""
    by_number = {each.number: each for each in deeds.sent}
    order = [by_number[number] for number in record.prompts]
    for place, later in enumerate(order):
        for earlier in order[:place]:
            same = earlier.sitting is later.sitting
            assert not (same and earlier.number > later.number), f"P{later.number} was sent before P{earlier.number}"
            overtaken = later.certain and later.epoch < earlier.epoch
            assert not overtaken, f"P{later.number} was there before P{earlier.number} was sent"
    if record.running is None:
        lost = [each.number for each in deeds.sent if each.certain and each.number not in record.prompts]
        assert [] == lost, f"nothing runs, and these prompts were lost: {lost}"


def _answers(sent: Sent) -> list[Json]:
    return [each for each in sent.sitting.events("answered") if each["key"] == sent.key]


def _check_end(sent: Sent, record: Record, deeds: Deeds) -> None:
    """A turn ends as its script does, or as a cancel makes it; its client is told that once, behind all of it."""
    end = record.ends.get(sent.number)
    answers = _answers(sent)
    if end is None:
        assert [] == answers, f"P{sent.number} has not ended and was answered"
        return
    reason = end.get("stopReason")
    may_be_cancelled = any(epoch >= sent.epoch for epoch in deeds.cancels)
    allowed = {"cancelled"} if may_be_cancelled else set()
    if sent.script != "hang":
        allowed.add("end_turn")
    assert reason in allowed, f"P{sent.number} ({sent.script}) ended {end}"
    assert len(answers) <= 1, f"P{sent.number} was answered {len(answers)} times"
    assert len(answers) == 1 or not sent.sitting.here, f"P{sent.number} was not answered"
    for answer in answers:
        assert {"stopReason": reason} == answer.get("result"), f"P{sent.number}: {answer}, and in the log {end}"
        place = sent.sitting.told.index(answer)
        behind = [seq for seq, _, at in sent.sitting.live if seq < end["seq"] and at > place]
        assert [] == behind, f"P{sent.number} was answered before {behind}"
    if reason == "end_turn":
        outcomes = [_option(a) for ask, number in record.asks.items() if number == sent.number for a in record.answers[ask]]
        words = [f"chose {option}" for option in outcomes]
        assert words == record.words.get(sent.number, []), f"P{sent.number}: the agent was told something else"


def _option(answer: Json) -> str | None:
    outcome: dict[str, str] = answer["result"]["outcome"]
    return outcome.get("optionId")


def _winners(ask: str, record: Record, deeds: Deeds) -> list[Chosen]:
    """Whose answer it may be that the log has."""
    answers = record.answers[ask]
    assert len(answers) == 1, f"{ask} has {len(answers)} answers"
    (answer,) = answers
    if answer["by"] != "client":
        return []
    return [each for each in deeds.chosen if each.ask == ask and each.option == _option(answer)]


def _check_ask(ask: str, record: Record, deeds: Deeds) -> None:
    """One answer counts, and it is the first one."""
    chosen = [each for each in deeds.chosen if each.ask == ask]
    certain = [each.epoch for each in chosen if each.certain]
    answers = record.answers.get(ask, [])
    if not answers:
        assert [] == certain, f"{ask} was answered and is still open"
        return
    if answers[0]["by"] != "client":
        sent = next(each for each in deeds.sent if each.number == record.asks[ask])
        assert answers[0]["by"] == "cancel", f"{ask} was closed by {answers[0]['by']}"
        assert any(epoch >= sent.epoch for epoch in deeds.cancels), f"{ask} was cancelled by nobody"
        return
    winners = _winners(ask, record, deeds)
    assert winners, f"nobody gave this answer: {answers[0]}"
    if certain:
        assert min(each.epoch for each in winners) <= min(certain), f"{ask}: a later answer counted: {answers[0]}"


def _must_be_withdrawn(sitting: Sitting, ask: str, record: Record, deeds: Deeds) -> bool:
    """It was asked, and it is not its answer that counted."""
    return ask in record.answers and all(each.sitting is not sitting for each in _winners(ask, record, deeds))


def _withdrawals(sitting: Sitting, ask: str) -> int:
    return sum(event["id"] == ask for event in sitting.events("withdrawn"))


def _check_asked(sitting: Sitting, record: Record, deeds: Deeds, *, strict: bool) -> None:
    """Whoever is there is asked once, and told once if somebody else's answer counted."""
    asked = [event["id"] for event in sitting.events("asked")]
    assert len(set(asked)) == len(asked), f"{sitting.seat.who} was asked twice: {asked}"
    assert set(asked) <= record.asks.keys(), f"{sitting.seat.who} was asked what is not in the log"
    withdrawn = [event["id"] for event in sitting.events("withdrawn")]
    assert set(withdrawn) <= set(asked), f"{sitting.seat.who} was never asked {set(withdrawn) - set(asked)}"
    assert len(set(withdrawn)) == len(withdrawn), f"{sitting.seat.who} was told twice: {withdrawn}"
    if not sitting.here:
        return
    for ask in asked:
        if ask not in record.answers:
            assert ask not in withdrawn, f"{ask} is open and was withdrawn from {sitting.seat.who}"
        elif _must_be_withdrawn(sitting, ask, record, deeds):
            assert ask in withdrawn, f"{ask} was not withdrawn from {sitting.seat.who}"
        elif len(_winners(ask, record, deeds)) == 1:
            assert ask not in withdrawn, f"{sitting.seat.who} answered {ask}, which was withdrawn from it"
    if strict:
        missing = [ask for ask, seq in record.asked_at.items() if seq > sitting.high and ask not in asked]
        assert [] == missing, f"{sitting.seat.who} was there and was not asked {missing}"


def _check_stream(sitting: Sitting, record: Record, deeds: Deeds) -> None:
    """Each line of the log once, in order, as the log has it, no prompt of its own; behind the answer nothing old."""
    who = sitting.seat.who
    due = record.of(sitting, deeds)
    live = sitting.live
    seqs = [seq for seq, _, _ in live]
    assert sorted(set(seqs)) == seqs, f"{who}: not in order, or twice: {seqs}"
    assert not seqs or seqs[0] > sitting.low, f"{who} was told what had been before it came: {seqs[0]}"
    for seq, update, _ in live:
        assert due.get(seq) == update, f"{who}: seq {seq} is {update}, in the log {due.get(seq)}"
    if not sitting.here:
        return
    start = min([*seqs[:1], sitting.high + 1])
    assert [seq for seq in due if seq >= start] == seqs, f"{who}: something is missing"
    if sitting.whole:
        shown = [event["params"] for event in sitting.events("update") if is_said(event["params"])]
        check_view(who, shown, due)


def check_view(who: str, shown: list[Json], due: dict[int, Json]) -> None:
    """The folded view of what was shown is that of what was due."""
    wanted = [{"update": update} for update in due.values()]
    seen, should = fold.fold(shown).closed(), fold.fold(wanted).closed()
    assert should.timeline == seen.timeline, f"{who} sees {seen.timeline}, the log has {should.timeline}"
    assert should.tools == seen.tools, f"{who} sees {seen.tools}, the log has {should.tools}"
    assert fold.message_ids(wanted) == fold.message_ids(shown), who
