"""What an editor was shown by a shim, judged against the log: each entry once, in order, none left out, before its answer.

Nothing here knows when who was killed: the rules are the same for a stream that nobody disturbed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from tests.support import store, streamed
from tests.support.client import Client, Line, Sent
from tests.support.fold import fold, prompt

Json = dict[str, Any]
LOST = "daemon ended while this turn ran"
"""Stands in the answer to a prompt whose turn ended with the daemon."""


class Seat(NamedTuple):
    """A client in a session: since which of its lines, and the line of the load's answer; None: it made the session."""

    client: Client
    session: str
    since: int = 0
    loaded: Line | None = None

    @property
    def frames(self) -> list[Line]:
        """What it was shown of the conversation."""
        with self.client._seen:
            lines = self.client.lines[self.since :]
        return [line for line in lines if line.kind and line.session == self.session and not line.is_notice]

    @property
    def live(self) -> list[Line]:
        return [line for line in self.frames if self.loaded is None or line.number > self.loaded.number]


def sit(client: Client, session: str, cwd: object) -> Seat:
    """Load the session."""
    since = len(client.lines)
    ident = client.request("session/load", {"sessionId": session, "cwd": str(cwd), "mcpServers": []})
    client.result(ident)
    return Seat(client, session, since, client.answer(ident))


def check_seat(seat: Seat, log: store.Log, sent: Sequence[Sent], *, until: int | None = None) -> None:
    """`log`: as it is; `sent`: this client's prompts, whose text it shows by itself. `until`: it may not have more than this.

    Raises AssertionError.
    """
    end = len(log.entries) if until is None else until
    since = 0.0 if seat.loaded is None else seat.loaded.at
    own = {_text(each.params) for each in sent if each.method == "session/prompt" and each.at > since}
    live = [(line.seq or 0, line.raw) for line in seat.live]
    store.check_received(log, live)
    seqs = [seq for seq, _ in live]
    assert sorted(set(seqs)) == seqs, f"an entry twice, or out of order: {_disorder(seqs)}\n{seat.client.story()}"
    shown = set(seqs)
    first = min(seqs, default=end + 1) if seat.loaded else 0
    missed = [entry["seq"] for entry in log.entries if is_shown(entry, own) and first <= entry["seq"] <= end]
    missed = [seq for seq in missed if seq not in shown]
    assert [] == missed, f"never shown: {missed}\n{seat.client.story()}"
    streamed.assert_same_view(streamed.view_of_log(log), fold(_screen(seat, log, own)))


def _screen(seat: Seat, log: store.Log, own: set[str]) -> list[Json]:
    """The frames in the order in which they came, and the client's own prompts, which nobody shows it, where they began."""
    typed = [entry for entry in log.of("prompt") if entry["prompt"][0]["text"] in own]
    before = 0 if seat.loaded is None else seat.loaded.number
    found: list[Json] = []
    for line in seat.frames:
        while typed and line.number > before and typed[0]["seq"] < (line.seq or 0):
            entry = typed.pop(0)
            found += prompt(log.id, entry["prompt"], entry["id"])
        found.append(line.params)
    return found + [params for entry in typed for params in prompt(log.id, entry["prompt"], entry["id"])]


def catch_up(seat: Seat, log: store.Log) -> None:
    """Who only looks on is told of no end: wait for the newest entry that it must see."""
    last = max((entry["seq"] for entry in log.entries if is_shown(entry, set())), default=0)
    seat.client.wait(f"seq {last}", lambda: not last or any((line.seq or 0) >= last for line in seat.frames), within=40)


def check_answers(client: Client, sent: Sequence[Sent], log: store.Log) -> None:
    """Each prompt is answered once, as its turn ended in the log, and behind all that was said in it."""
    ends = {turn.prompt["prompt"][0]["text"]: turn.end for turn in store.turns(log)}
    for each in sent:
        answers = client.answers(each.id)
        assert 1 == len(answers), f"{each} was answered {len(answers)} times\n{client.story()}"
        if each.method != "session/prompt":
            assert "result" in answers[0].message, f"{each}: {answers[0].message}"
            continue
        if each.params["sessionId"] != log.id:
            continue
        end = ends.get(_text(each.params))
        assert end is not None, f"the turn of {each} is open in the log"
        error = answers[0].message.get("error")
        if error is None:
            assert answers[0].message["result"]["stopReason"] == end.get("stopReason")
        else:
            assert end["state"] == "interrupted", f"{error} and {end}"
            assert LOST in error["message"], error
        late = [
            line.raw
            for line in client.lines[answers[0].number :]
            if line.session == log.id and 0 < (line.seq or 0) < end["seq"]
        ]
        assert [] == late, f"{each} was answered before all was shown"


def assert_in_order(log: store.Log, sent: Sequence[Sent]) -> None:
    """The prompts of one client began in the order in which it sent them."""
    texts = [_text(each.params) for each in sent if each.method == "session/prompt" and each.params["sessionId"] == log.id]
    begun = [text for entry in log.of("prompt") if (text := entry["prompt"][0]["text"]) in texts]
    assert texts == begun, f"sent {texts}, begun {begun}"


def _text(params: Json) -> str:
    return str(params["prompt"][0]["text"])


def is_shown(entry: Json, own: set[str]) -> bool:
    """Whether a client gets a frame for this entry; `own`: the texts of the prompts that it sent itself."""
    if entry["type"] == "prompt":
        return entry["prompt"][0]["text"] not in own
    return entry["type"] == "update" and not streamed.is_notice(entry)


def _disorder(seqs: Sequence[int]) -> str:
    at = next(i for i in range(1, len(seqs)) if seqs[i] <= seqs[i - 1])
    return json.dumps(list(seqs[max(0, at - 5) : at + 5]))
