"""Clients on one session: each line once, in order, whatever they do."""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from acpd import audience
from acpd.errors import StoreError
from acpd.scribe import RETRY_EVERY
from acpd.session import LiveSession
from tests.core.pipes import start
from tests.core.world import ClockLoop, Editor, Voice, World, attach, chunk, load, prompt, put_forward, until
from tests.support import store as logs


async def settle(world: World, session: LiveSession) -> None:
    """Until nothing is under way: every catch-up that can go on has ended."""
    await session.scribe.settled()
    while session.audience._catching and not all(each.client.paused for each in session.audience.attachments if not each.live):
        await asyncio.sleep(0)


async def test_a_client_that_reads_along_gets_each_update_once(world: World) -> None:
    """What the agent says in one read comes to every client, in order, with its seq."""
    session, voice = await world.with_agent()
    one, two = Editor(), Editor()
    attach(session, one)
    attach(session, two)
    voice.say("a", "b")
    voice.say("c")
    assert ["a", "b", "c"] == one.texts == two.texts
    assert one.seqs == [entry["seq"] for entry in world.log(session).of("update")]


async def test_a_client_that_does_not_read_gets_everything_later(world: World) -> None:
    """Paused, it is sent nothing; when it reads again it gets the log from its cursor, each line once, and then reads along."""
    session, voice = await world.with_agent()
    slow, quick = Editor(), Editor()
    attachment = attach(session, slow)
    attach(session, quick)
    voice.say("a")
    slow.pause()
    for text in "bcd":
        voice.say(text)
    assert (["a"], ["a", "b", "c", "d"]) == (slow.texts, quick.texts)
    slow.resume()
    await slow.until(lambda: attachment.live)
    voice.say("e")
    assert quick.texts == slow.texts
    assert quick.seqs == slow.seqs


class Brimful(Editor):
    """An editor that is full with each send."""

    def send(self, data: bytes, /) -> None:
        super().send(data)
        self.pause()


async def test_an_agent_waits_a_moment_for_a_client_that_is_full(world: World) -> None:
    """Who reads again soon goes on reading along: nothing is read from the log for it."""
    session, voice = await world.with_agent()
    attachment = attach(session, brimful := Brimful())
    for text in "abc":
        voice.say(text)
        assert {"clients"} == voice.held
        brimful.resume()
        await until(lambda: not voice.held)
    assert ["a", "b", "c"] == brimful.texts
    assert (True, []) == (attachment.live, session.audience._catching)


async def test_an_agent_does_not_wait_long_nor_for_who_reads_the_log(world: World) -> None:
    """After PATIENCE seconds it goes on; the client gets the rest from the log, and nobody waits for it meanwhile."""
    session, voice = await world.with_agent()
    attachment = attach(session, brimful := Brimful())
    voice.say("a")
    await asyncio.sleep(0)
    put_forward(audience.PATIENCE)
    await until(lambda: not voice.held)
    for text in "bcd":
        voice.say(text)
        assert (set(), False) == (voice.held, attachment.live)
    assert ["a"] == brimful.texts
    brimful.resume()
    await until(lambda: ["a", "b", "c", "d"] == brimful.texts)


async def test_who_leaves_while_an_agent_waits_for_it_holds_nothing(world: World) -> None:
    """The end of a connection is no less than its reading on."""
    session, voice = await world.with_agent()
    attach(session, brimful := Brimful())
    voice.say("a")
    session.detach(brimful)
    brimful.close()
    await until(lambda: not voice.held)


async def test_a_client_that_never_reads_costs_no_memory(world: World) -> None:
    """However much is said, nothing is kept for it but its cursor."""
    session, voice = await world.with_agent()
    slow = Editor()
    attachment = attach(session, slow)
    slow.pause()
    for number in range(500):
        voice.say(f"{number} " + "x" * 1000)
    assert (0, 0, []) == (len(session.audience._staged), len(attachment._after), slow.raw)
    assert 1 == len(session.audience._catching)


async def test_reading_the_log_again_waits_for_the_client_between_windows(world: World) -> None:
    """Who comes back after much was said is sent about a mebibyte at a time."""
    session, voice = await world.with_agent()
    slow = Editor()
    attachment = attach(session, slow)
    slow.pause()
    for number in range(100):
        voice.say(f"{number} " + "x" * 60_000)
    slow.resume()
    await slow.until(lambda: attachment.live)
    assert 100 == len(slow.texts)
    assert slow.most_in_flight < 2_500_000


class Narrow(Editor):
    """It takes one send at a time: whoever sends to it while it is full has not waited."""

    def send(self, data: bytes, /) -> None:
        assert not self.paused
        super().send(data)
        self.pause()


async def test_a_client_that_is_behind_in_many_sessions_has_one_window_in_memory(world: World) -> None:
    """Its sessions' logs are read one window after the other, each when it has taken the one before."""
    narrow = Narrow()
    narrow.pause()
    behind = []
    for _ in range(5):
        session, voice = await world.with_agent()
        behind.append((attach(session, narrow), voice))
        voice.say(*(f"{number} " + "x" * 60_000 for number in range(30)))

    def all_live() -> bool:
        narrow.resume()
        return all(attachment.live for attachment, _ in behind)

    await until(all_live)
    assert 150 == len(narrow.texts)


async def test_an_answer_waits_for_everything_before_it(world: World) -> None:
    """A prompt's answer never overtakes an update of its turn: a client that is behind gets it behind the turn's last line."""
    session, voice = await world.with_agent()
    slow = Editor()
    attachment = attach(session, slow)
    prompt(session, slow, "p1")
    await voice.prompted()
    slow.pause()
    voice.say("a", "b")
    voice.end()
    await session.idle()
    assert [] == slow.texts
    slow.resume()
    await slow.answered("p1")
    assert ["a", "b", "=end_turn"] == slow.texts
    assert attachment.cursor >= slow.seqs[-1]


async def test_a_prompt_is_shown_to_the_others_and_not_to_who_sent_it(world: World) -> None:
    """Others get it as user_message_chunk, one a block, with the prompt entry's id; the prompter never does."""
    session, voice = await world.with_agent()
    mine, yours = Editor(), Editor()
    attachment = attach(session, mine)
    attach(session, yours)
    prompt(session, mine, "p1")
    mine.pause()
    prompt(session, mine, "p2")  # queued
    for number in (1, 2):
        await voice.prompted(number)
        voice.end()
        await session.scribe.settled()
    mine.resume()
    await mine.until(lambda: attachment.live and mine.answer_to("p2"))
    assert ["p1", "p2"] == yours.texts
    assert ["=end_turn", "=end_turn"] == mine.texts
    assert [entry["id"] for entry in world.log(session).of("prompt")] == [update["messageId"] for update in yours.updates]
    assert set() == attachment.own


async def test_falling_behind_with_ones_own_prompt_does_not_echo_it(world: World) -> None:
    """A prompter whose pipe fills up with that very prompt's line reads the log later, without its own prompt."""
    session, voice = await world.with_agent()
    mine = Editor()
    attachment = attach(session, mine)
    mine.pause()
    prompt(session, mine, "p1")
    await voice.prompted()
    voice.say("a")
    mine.resume()
    await mine.until(lambda: attachment.live)
    assert ["a"] == mine.texts
    voice.end()
    await session.idle()


async def test_replay_then_live(world: World) -> None:
    """Loading sends the folded conversation; what is said meanwhile comes behind it, once."""
    session, voice = await world.with_agent()
    first = Editor()
    attach(session, first)
    prompt(session, first, "p1")
    await voice.prompted()
    voice.say("a", "b")
    late = Editor()
    loading = start(load(session, late))
    await asyncio.sleep(0)
    voice.say("c")
    await loading
    await settle(world, session)
    voice.say("d")
    assert ["p1", "ab", "c", "d"] == late.texts


async def test_facts_of_a_replay_come_once(world: World) -> None:
    """A fact that comes while the replay is read belongs behind it, not into it as well."""
    session, voice = await world.with_agent()
    usage: dict[str, Any] = {"sessionUpdate": "usage_update", "used": 1, "size": 10}
    voice.say("a", usage)
    late = Editor()
    loading = start(load(session, late))
    await asyncio.sleep(0)
    voice.say(usage | {"used": 2})
    attachment = await loading
    await late.until(lambda: attachment.live)
    voice.say("z")
    assert ["a", 1, 2, "z"] == [update.get("used", update.get("content", {}).get("text")) for update in late.updates]


async def test_nothing_unwritten_is_sent(world: World) -> None:
    """While the disk says no nobody gets what is not written, a load included; then each gets it once."""
    session, voice = await world.with_agent()
    live = Editor()
    attach(session, live)
    voice.say("a")
    world.break_disk()
    voice.say("b", {"sessionUpdate": "usage_update", "used": 2, "size": 10})
    assert {"disk"} == voice.held
    late = Editor()
    attachment = await load(session, late)
    assert ["a"] == live.texts == late.texts
    world.mend_disk()
    put_forward(RETRY_EVERY)
    await live.until(lambda: len(live.texts) == 3)
    await late.until(lambda: attachment.live and len(late.texts) == 3)
    assert ["a", "b", "usage_update"] == live.texts == late.texts
    assert set() == voice.held


async def test_attaching_again_goes_on_at_the_cursor(world: World) -> None:
    """A client that resumes once more while it is behind misses nothing and gets nothing twice; its answers come along."""
    session, voice = await world.with_agent()
    mine = Editor()
    attach(session, mine)
    prompt(session, mine, "p1")
    await voice.prompted()
    voice.say("a")
    mine.pause()
    voice.say("b")
    voice.end()
    await session.idle()
    again = attach(session, mine)
    mine.resume()
    await mine.until(lambda: again.live)
    voice.say("c")
    assert ["a", "b", "=end_turn", "c"] == mine.texts
    assert 1 == len(session.audience.attachments)


async def test_loading_again_repeats_everything_once(world: World) -> None:
    """A second session/load is a whole replay, and then live: no line comes twice behind it."""
    session, voice = await world.with_agent()
    mine = Editor()
    attach(session, mine)
    voice.say("a", "b")
    await load(session, mine)
    voice.say("c")
    assert ["a", "b", "ab", "c"] == mine.texts


async def test_who_has_left_gets_nothing_more(world: World) -> None:
    """After `detach` not one line comes, also not of a catch-up that is under way."""
    session, voice = await world.with_agent()
    live, slow = Editor(), Editor()
    attach(session, live)
    attach(session, slow)
    slow.pause()
    voice.say("a")
    session.detach(live)
    session.detach(slow)
    slow.resume()
    await settle(world, session)
    voice.say("b")
    assert (["a"], []) == (live.texts, slow.texts)


async def test_a_client_that_goes_away_in_a_replay_ends_it(world: World) -> None:
    """A closed connection is no error of the session."""
    session, voice = await world.with_agent()
    voice.say("a")
    slow = Editor()
    attachment = attach(session, slow)
    slow.pause()
    voice.say("b")
    slow.close()
    session.detach(slow)
    await settle(world, session)
    assert not attachment.live


async def test_a_log_that_cannot_be_read_is_tried_again(world: World) -> None:
    """A failing read of the log costs a client a second, not the rest of the session."""
    session, voice = await world.with_agent()
    slow = Editor()
    attachment = attach(session, slow)
    slow.pause()
    voice.say("a")
    journals = world.store.journals
    read, failures = journals.read, [1, 2]

    def failing(*args: Any, **named: Any) -> Any:
        if failures:
            failures.pop()
            raise StoreError("read", "the log", retryable=True)
        return read(*args, **named)

    journals.read = failing  # type: ignore[method-assign]
    slow.resume()
    for _ in range(100):
        put_forward(RETRY_EVERY)
        await asyncio.sleep(0.001)
        if attachment.live:
            break
    assert (["a"], []) == (slow.texts, failures)


async def test_closing_a_session_lets_slow_clients_read_on(world: World) -> None:
    """Who is behind when the session is closed gets the rest and its answer, in order."""
    session, voice = await world.with_agent()
    slow = Editor()
    attach(session, slow)
    prompt(session, slow, "p1")
    await voice.prompted()
    slow.pause()
    voice.say("a")
    closing = start(world.registry.close(session.id))
    await voice.until(lambda: voice.cancels)
    voice.end("cancelled")
    slow.resume()
    await closing
    assert ["a", "=cancelled"] == slow.texts


async def test_closing_a_session_answers_who_never_reads(world: World) -> None:
    """A client that takes nothing for the time of grace gets no more of the session, but its one answer."""
    session, voice = await world.with_agent()
    slow = Editor()
    attach(session, slow)
    prompt(session, slow, "p1")
    await voice.prompted()
    slow.pause()
    voice.say("a")
    voice.end()
    await session.idle()
    closing = start(world.registry.close(session.id))
    while not closing.done():
        put_forward(world.settings.stop_grace)
        await asyncio.sleep(0.001)
    assert ["=end_turn"] == slow.texts


async def test_notices_go_to_those_who_know_them(world: World) -> None:
    """A passing notice is a notice where the client declared them and a marked message elsewhere; it is not stored."""
    session, _ = await world.with_agent()
    old, new = Editor(), Editor({"session": {"notices": {}}})
    attach(session, old)
    attach(session, new)
    before = world.log(session).entries
    session.audience.notice("error", "The agent did not start", "no such program")
    assert {
        "sessionUpdate": "notice",
        "severity": "error",
        "title": "The agent did not start",
        "description": "no such program",
    } == (new.updates[0])
    assert "agent_message_chunk" == old.updates[0]["sessionUpdate"]
    assert all(editor.got[0]["params"]["_meta"] == {"acpd.dev/notice": True} for editor in (old, new))
    assert before == world.log(session).entries


async def test_a_failed_compaction_is_told_to_everybody(world: World) -> None:
    """To clients that know compactions as that, to the others once as a notice, and only if it failed."""
    session, voice = await world.with_agent()
    able, old = Editor({"session": {"compaction": {}}}), Editor()
    attach(session, able)
    attach(session, old)
    for status in ("in_progress", "cancelled", "failed"):
        voice.say({"sessionUpdate": "compaction_update", "compactionId": "k", "status": status, "error": "it broke"})
    assert ["in_progress", "cancelled", "failed"] == [update["status"] for update in able.updates]
    assert ["[acpd] The conversation could not be summarised: it broke\n\n"] == [
        update["content"]["text"] for update in old.updates
    ]


async def test_what_is_not_stored_reaches_a_shim_with_a_prefix(world: World) -> None:
    """A frame without a place in the log has the prefix that every line to a shim has: without one the shim ends."""

    class Shim(Editor):
        def send(self, data: bytes, /) -> None:
            self.raw.append(data)

    session, _ = await world.with_agent()
    shim = Shim({"session": {"notices": {}}})
    shim.token = "t"
    attach(session, shim)
    session.audience.notify(b'{"a":1}\n', "notice")
    assert b'- - {"a":1}\n' == shim.raw[-1]


# -- everything at once, against a model: the log

VERBS = [
    "say",
    "say",
    "pause",
    "pause",
    "resume",
    "resume",
    "attach",
    "prompt",
    "end",
    "tick",
    "tick",
    "load",
    "detach",
    "disk",
]
STEPS = st.tuples(st.sampled_from(VERBS), st.integers(0, 2))


class Play:
    """Random steps on one session with three clients, and what must be true at the end."""

    def __init__(self, world: World, session: LiveSession, voice: Voice) -> None:
        self.world = world
        self.session = session
        self.voice = voice
        self.editors = [Editor() for _ in range(3)]
        for editor in self.editors:
            attach(session, editor)
        self.since = {number: [(0, session.scribe.flushed)] for number in range(3)}
        """For each client: (how many frames it had, the seq at which it was when it attached anew)."""
        self.spoken = 0
        self.left = [0, 0, 0]
        """How often each client has left: who comes back is shown what it had prompted before."""
        self.requests: list[tuple[int, str, int]] = []
        """Whose prompt, its name, and how often that client had left before it."""

    async def step(self, verb: str, number: Any) -> None:
        editor = self.editors[number] if verb in ("pause", "resume", "attach", "load", "detach", "prompt") else self.editors[0]
        attached = self.session.audience.attachment(editor)
        match verb:
            case "say" if not self.voice.held:
                for _ in range(number + 1):
                    self.spoken += 1
                    self.voice.say(f"w{self.spoken}", end=False)
                self.session.on_batch_end()
            case "pause":
                editor.pause()
            case "resume":
                editor.resume()
            case "attach":
                if attached is None:
                    self.since[number].append((len(editor.seqs), self.session.scribe.flushed))
                attach(self.session, editor)
            case "load" if not editor.paused:
                await self._load(number, editor)
            case "detach" if (
                not any(each.client is editor for each in self.session.queue) and self.session.scribe.error is None
            ):
                self.session.detach(editor)
                self.left[number] += attached is not None
            case "prompt" if attached is not None and len(self.session.queue) < 20:
                name = f"p{len(self.requests)}"
                prompt(self.session, editor, name)
                self.requests.append((number, name, self.left[number]))
            case "end" if self.voice.prompts and self.session.state.name == "RUNNING" and not self.voice.held:
                self.voice.end()
            case "disk":
                self.world.break_disk() if number == 2 else self.world.mend_disk()
            case "tick":
                for _ in range(number + 1):
                    await asyncio.sleep(0)
            case _:
                pass

    async def _load(self, number: int, editor: Editor) -> None:
        """A replay is another projection: what counts is that behind it everything newer comes once."""
        attachment = self.session.attach(editor)
        attachment.cursor = 0
        await self.session.audience.replay(attachment)
        self.since[number].append((len(editor.seqs), attachment.cursor))
        self.session.audience.start(attachment)

    async def finish(self) -> None:
        """Let everybody read, end every turn."""
        self.world.mend_disk()
        self.session.scribe.commit()
        for editor in self.editors:
            editor.resume()
        async with asyncio.timeout(10):
            while self.session.current is not None:
                if self.session.state.name == "RUNNING":
                    self.voice.end()
                await asyncio.sleep(0)
            await self.session.scribe.settled()
            while any(not each.live for each in self.session.audience.attachments):
                await asyncio.sleep(0)

    def check(self) -> None:
        log = self.world.log(self.session)
        for number, editor in enumerate(self.editors):
            times = self.left[number] - (self.session.audience.attachment(editor) is None)
            sent = {name for who, name, left in self.requests if (who, left) == (number, times)}
            mine = {entry["seq"] for entry in log.of("prompt") if entry["prompt"][0]["text"] in sent}
            frames = [
                entry["seq"] for entry in log.entries if entry["type"] in ("update", "prompt") and entry["seq"] not in mine
            ]
            start_at, seq = self.since[number][-1]
            got = editor.seqs[start_at:]
            if self.session.audience.attachment(editor) is not None:
                assert [each for each in frames if each > seq] == got
            else:
                assert [each for each in frames if each > seq][: len(got)] == got
        self._check_answers(log)

    def _check_answers(self, log: logs.Log) -> None:
        ends = {entry["entry"]: entry["seq"] for entry in log.of("turn") if entry["state"] == "ended"}
        seqs = {entry["prompt"][0]["text"]: ends[entry["id"]] for entry in log.of("prompt")}
        for number, name, _ in self.requests:
            editor = self.editors[number]
            at = [index for index, message in enumerate(editor.got) if message.get("id") == name]
            assert 1 == len(at), (name, at)
            after = [m["params"]["_meta"]["acpd.dev/seq"] for m in editor.got[at[0] :] if m.get("method") == "session/update"]
            if len(self.since[number]) == 1 and self.session.audience.attachment(editor) is not None:
                assert all(seq > seqs[name] for seq in after), (name, seqs[name], after)


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(STEPS, min_size=20, max_size=60))
def test_each_line_once_for_each_client_whatever_happens(steps: list[tuple[str, Any]]) -> None:
    """Random publishing, pausing, attaching, loading again, leaving, prompting and a failing disk, against the log."""

    async def play() -> None:
        with tempfile.TemporaryDirectory() as folder:
            async with World(Path(folder) / "store", sync=False) as world:
                session, voice = await world.with_agent()
                game = Play(world, session, voice)
                for step in steps:
                    await game.step(*step)
                await game.finish()
                game.check()

    with asyncio.Runner(loop_factory=ClockLoop) as runner:
        runner.run(play())


@pytest.mark.parametrize("kind", ["user_message_chunk", "agent_thought_chunk"])
async def test_only_declared_kinds_are_sent(world: World, kind: str) -> None:
    """A kind that the client did not declare passes it by, live and later, and its cursor moves on."""
    session, voice = await world.with_agent()
    plain, able = Editor(), Editor({"plan": {}})
    attachment = attach(session, plain)
    attach(session, able)
    plan = {"sessionUpdate": "plan_update", "plan": {"type": "markdown", "planId": "p", "content": "x"}}
    voice.say(plan, chunk("a", kind), {"sessionUpdate": "of_the_future"})
    assert (["a"], ["plan_update", "a"]) == (plain.texts, able.texts)
    assert session.fold.seq == attachment.cursor
    assert 1 == session.recorder.warnings
    assert json.loads(able.raw[0])["params"]["update"] == plan
