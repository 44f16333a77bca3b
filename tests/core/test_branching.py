"""Branches and labels of a live session: where it goes on, what everybody sees of that, and what can never be resumed."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acpd.branching import branch, label
from acpd.errors import INVALID_PARAMS, INVALID_REQUEST, EntryNotFound, RequestError, StoreError
from acpd.needs import Link
from acpd.registry import Registry
from acpd.session import LiveSession
from acpd.storage.context import decode_line
from acpd.turn import Turn
from tests.core.world import Editor, Voice, Voices, World, attach, chunk, dumps, load, prompt, until
from tests.support.walk import below

MOVED = "goes on at another point"


async def talked(world: World, editor: Editor, *words: str) -> tuple[LiveSession, Voice, list[str]]:
    """A session with a turn for each word; and the last entry of each turn."""
    session, voice = await world.with_agent()
    attach(session, editor)
    ends: list[str] = []
    for number, word in enumerate(words, 1):
        await asked(session, voice, editor, word, number)
        ends.append(session.fold.leaf or "")
    return session, voice, ends


async def asked(session: LiveSession, voice: Voice, editor: Editor, word: str, number: int = 1) -> None:
    prompt(session, editor, word)
    await voice.prompted(number)
    voice.say(f"<{word}>")
    voice.end()
    await editor.answered(word)


async def replayed(session: LiveSession) -> list[str]:
    await load(session, editor := Editor())
    return editor.texts


async def test_the_conversation_goes_on_behind_the_entry(world: World) -> None:
    """The next prompt hangs on the entry, a load shows the new path alone, and every line that there was is still there."""
    session, old, ends = await talked(world, editor := Editor(), "one", "two", "three")
    before = world.log(session).lines
    assert ends[0] == await branch(session, ends[0])
    assert (ends[0], True, None) == (session.fold.leaf, old.stopped, session.link)
    assert ["one", "<one>"] == await replayed(session)
    prompt(session, editor, "four")
    await until(lambda: len(world.agents.made) == 2)
    await (new := world.agents.made[1]).prompted()
    new.say("<four>")
    new.end()
    await editor.answered("four")
    assert ["one", "<one>", "four", "<four>"] == await replayed(session)
    log = world.log(session)
    assert before == log.lines[: len(before)]
    assert ends[0] == log.of("prompt")[-1]["parentId"]


async def test_what_is_answered_outlives_a_kill(world: World, tmp_path: Path) -> None:
    """When the branch is answered it is on disk, and so is a label; the agent's own session is never fitting again."""
    session, _, ends = await talked(world, Editor(), "one", "two")
    synced: list[object] = []
    world.files.on_sync = synced.append
    assert "inner-1" == session.fold.inner
    await branch(session, ends[0])
    await label(session, ends[1], "two")
    assert 2 == len(synced)
    async with world.crashed(tmp_path / "other") as other:
        again = await other.registry.open(session.id)
        assert (ends[0], "", "inner-1", {ends[1]: "two"}) == (
            again.fold.leaf,
            again.fold.inner,
            again.fold.last_inner,
            again.fold.labels,
        )
        assert again.recorder.tip == ends[0]
        assert ["one", "<one>"] == await replayed(again)
        await branch(again, "two")
        assert "" == again.fold.inner, "not even for its own leaf: others have been there"
        assert ["one", "<one>", "two", "<two>"] == await replayed(again)


async def test_the_leaf_itself_changes_nothing(world: World) -> None:
    """No line, no word to anybody, and the agent goes on."""
    session, voice, ends = await talked(world, editor := Editor(), "one")
    before, told = world.log(session).lines, len(editor.got)
    assert ends[0] == await branch(session, ends[0])
    assert (before, told, voice) == (world.log(session).lines, len(editor.got), session.link)


async def test_not_while_a_turn_runs_or_waits(world: World) -> None:
    """Refused, with nothing changed; afterwards it works."""
    session, voice, ends = await talked(world, editor := Editor(), "one", "two")
    prompt(session, editor, "three")
    prompt(session, editor, "four")
    for count in (3, 4):
        await voice.prompted(count)
        with pytest.raises(RequestError, match=f"a turn of session {session.id} is running") as refused:
            await branch(session, ends[0])
        assert INVALID_REQUEST == refused.value.code
        voice.end()
    await editor.answered("four")
    assert not world.log(session).of("leaf")
    assert ends[0] == await branch(session, ends[0])


async def test_a_prompt_that_comes_meanwhile_wins(world: World) -> None:
    """A prompt that is accepted while the agent is being ended runs where it was accepted, and the branch is refused."""
    session, voice, ends = await talked(world, editor := Editor(), "one", "two")
    stop, gate = voice.stop, asyncio.Event()

    async def slowly() -> None:
        await gate.wait()
        await stop()

    voice.stop = slowly  # type: ignore[method-assign]
    moving = world.tasks.spawn(branch(session, ends[0]), name="branch", watched=True)
    await until(lambda: session.link is None)
    prompt(session, editor, "three")
    gate.set()
    with pytest.raises(RequestError, match="is running"):
        await moving
    await until(lambda: len(world.agents.made) == 2)
    await world.agents.made[1].prompted()
    world.agents.made[1].end()
    await editor.answered("three")
    assert ends[1] == world.log(session).of("prompt")[-1]["parentId"]


async def test_an_agent_that_only_starts_is_not_used(world: World) -> None:
    """It would have come up with the other branch."""
    session, _, ends = await talked(world, editor := Editor(), "one", "two")
    await session.end_agent()
    world.agents.gate.clear()
    starting = world.tasks.spawn(session.ensure_agent(), name="start", watched=True)
    await until(lambda: world.agents.starts == 2)
    await branch(session, ends[0])
    assert starting.cancelled() or starting.done()
    world.agents.gate.set()
    assert session.link is None
    prompt(session, editor, "three")
    await until(lambda: len(world.agents.made) == 2)
    await world.agents.made[1].prompted()
    assert 3 == world.agents.starts


async def test_who_reads_along_is_told_once(world: World) -> None:
    """Every client, in its place in the stream, whether it reads along or is behind; who loads sees the new path alone."""
    session, _, ends = await talked(world, first := Editor(), "one", "two")
    attach(session, slow := Editor())
    slow.pause()
    attach(session, second := Editor())
    await branch(session, ends[0])
    assert MOVED in first.texts[-1]
    assert first.updates[-1] == second.updates[-1]
    meta = second.got[-1]["params"]["_meta"]
    assert (True, ends[0], session.fold.seq) == (meta["acpd.dev/notice"], meta["acpd.dev/leaf"], meta["acpd.dev/seq"])
    prompt(session, first, "three")
    slow.resume()
    await until(lambda: "three" in slow.texts)
    assert [True, False] == [MOVED in text for text in slow.texts]
    assert slow.updates[0] == second.updates[0]
    assert not [text for text in await replayed(session) if MOVED in text]


async def test_the_context_follows(world: World) -> None:
    """What a model would be given is of the new path, once the session was saved."""
    session, _, ends = await talked(world, Editor(), "one", "two")
    await branch(session, ends[0])
    await world.registry.close(session.id)
    (path,) = below(world.root, f"{session.id}.jsonl")
    lines = [decode_line(line) for line in path.read_bytes().splitlines()[1:]]
    assert 2 == len(lines)
    row = await world.store.catalog.get(session.id)
    assert row is not None
    assert (ends[0], "inner-1") == (row.leaf, row.inner)


async def test_an_open_question_is_closed_on_its_own_branch(world: World) -> None:
    """What an agent asked outside of a turn is answered as cancelled, where it was asked."""
    session, voice, ends = await talked(world, Editor(), "one", "two")
    options = [{"optionId": "y", "name": "Yes", "kind": "allow_once"}]
    call = {"toolCallId": "t", "title": "T"}
    voice.ask_user("r", "session/request_permission", {"options": options, "toolCall": call})
    await branch(session, ends[0])
    assert [("r", {"outcome": {"outcome": "cancelled"}})] == voice.replies
    assert not session.fold.asks
    log = world.log(session)
    assert log.of("answer")[0]["parentId"] == log.of("ask")[0]["id"]
    assert ends[0] == session.fold.leaf


async def test_in_the_middle_of_a_turn(world: World) -> None:
    """A call that the branch does not see the end of is shown as failed, not as running for ever."""
    session, voice = await world.with_agent()
    attach(session, editor := Editor())
    prompt(session, editor, "one")
    await voice.prompted()
    voice.say("a", {"sessionUpdate": "tool_call", "toolCallId": "t", "title": "T", "status": "in_progress"})
    middle = session.fold.leaf or ""
    voice.say({"sessionUpdate": "tool_call_update", "toolCallId": "t", "status": "completed"}, "b")
    await load(session, running := Editor())
    assert "completed" == running.updates[2]["status"]
    voice.end()
    await editor.answered("one")
    await branch(session, middle)
    await load(session, late := Editor())
    assert [None, None, "in_progress", "failed"] == [update.get("status") for update in late.updates]


async def test_labels(world: World) -> None:
    """A label is given, replaced, taken away; what changes nothing writes nothing. It may be given while a turn runs."""
    session, voice, ends = await talked(world, editor := Editor(), "one")
    prompt(session, editor, "two")
    await voice.prompted(2)
    assert ends[0] == await label(session, ends[0], " good ")
    assert ends[0] == await label(session, "good", "good")
    assert {ends[0]: "good"} == session.fold.labels
    await label(session, "good", "better")
    with pytest.raises(EntryNotFound, match=f"cannot find entry good of session {session.id}"):
        await label(session, "good", None)
    await label(session, "better", None)
    await label(session, ends[0], None)
    assert ({}, 3) == (session.fold.labels, len(world.log(session).of("label")))


async def test_a_label_names_one_entry(world: World) -> None:
    """That of another entry is refused, naming that one; taken away there it may be given."""
    session, _, ends = await talked(world, Editor(), "one", "two")
    await label(session, ends[0], "good")
    with pytest.raises(RequestError, match=f"label 'good' is that of entry {ends[0]}"):
        await label(session, ends[1], "good")
    await label(session, ends[0], None)
    assert ends[1] == await label(session, ends[1], "good")


@pytest.mark.parametrize("text", ["", "  ", "a\nb", "a\x1b[2J", "\u202e", "x" * 201, "\ud800"])
async def test_what_is_no_label(world: World, text: str) -> None:
    """One line of printable text of at most 200 characters, or it is refused and nothing is written."""
    session, _, ends = await talked(world, Editor(), "one")
    with pytest.raises(RequestError, match="label must be one line") as refused:
        await label(session, ends[0], text)
    assert INVALID_PARAMS == refused.value.code
    assert not world.log(session).of("label")


async def test_an_unknown_entry(world: World) -> None:
    """It is named, with the session, and nothing is changed: the agent too stays as it is."""
    session, voice, _ = await talked(world, Editor(), "one")
    with pytest.raises(EntryNotFound, match=f"cannot find entry nowhere of session {session.id}"):
        await branch(session, "nowhere")
    assert voice is session.link


async def test_a_full_disk(world: World) -> None:
    """Until the leaf is written nobody is told of it; when the disk has room again all is as it should be."""
    session, _, ends = await talked(world, editor := Editor(), "one", "two")
    told = len(editor.got)
    world.break_disk()
    moving = world.tasks.spawn(branch(session, ends[0]), name="branch", watched=True)
    await until(lambda: session.scribe.error is not None)
    assert (told, False) == (len(editor.got), moving.done())
    world.mend_disk()
    session.scribe.commit()
    assert ends[0] == await moving
    await until(lambda: MOVED in editor.texts[-1])
    assert ["one", "<one>"] == await replayed(session)


async def test_a_session_that_is_being_closed(world: World) -> None:
    """It is not moved any more."""
    session, _, ends = await talked(world, Editor(), "one", "two")
    await world.registry.close(session.id)
    with pytest.raises((RequestError, StoreError)):
        await branch(session, ends[0])


async def test_updates_without_a_turn_hang_on_the_new_leaf(world: World) -> None:
    """What an agent says on its own after a branch belongs to that branch."""
    session, _, ends = await talked(world, Editor(), "one", "two")
    await branch(session, ends[0])
    await session.ensure_agent()
    world.agents.made[1].say(chunk("by itself"))
    assert ends[0] == world.log(session).of("update")[-1]["parentId"]
    assert ["one", "<one>", "by itself"] == await replayed(session)


class Memory(Voices):
    """Agents that resume the inner session of the log, and begin a new one, told the path, where it names none."""

    def __init__(self) -> None:
        super().__init__()
        self.known: dict[str, list[str]] = {}
        """The prompts that each inner session knows."""
        self.path: list[str] = []
        """What a new one would be told."""

    async def bring_up(self, session: LiveSession, /) -> Link:
        voice = Voice(session, f"link-{len(self.made) + 1}")
        name = session.fold.inner or f"inner-{len(self.known)}"
        self.known.setdefault(name, [*self.path])
        voice.inner = dumps(name)
        self.made.append(voice)
        session.remember_link(voice)
        return voice


steps = st.lists(st.one_of(st.just("say"), st.just("reopen"), st.integers(0, 9)), max_size=12)


@settings(max_examples=25, deadline=None)
@given(steps)
def test_an_agent_never_knows_another_branch(steps: list[str | int]) -> None:
    """Whatever is prompted, branched to and reopened: a load shows the way to the leaf, and so does what the agent knows."""
    with tempfile.TemporaryDirectory() as folder, asyncio.Runner() as runner:
        runner.run(_walk(Path(folder), steps))


async def _walk(root: Path, steps: list[str | int]) -> None:
    memory = Memory()
    paths: dict[str, list[str]] = {}
    world = World(root, sync=False)
    world.registry = Registry(world.store, memory, world.settings, world.tasks, None)
    async with world:
        session = await world.new()
        for number, step in enumerate([*steps, "reopen", "say"]):
            path = paths.get(session.fold.leaf or "", [])
            if step == "say":
                memory.path = path
                await _say(session, memory, f"p{number}")
                paths[session.fold.leaf or ""] = [*path, f"p{number}"]
                assert [*path, f"p{number}"] == memory.known[session.fold.inner]
            elif step == "reopen":
                await world.registry.close(session.id)
                session = await world.registry.open(session.id)
            elif paths:
                await branch(session, list(paths)[int(step) % len(paths)])
            told = [text for text in await replayed(session) if text.startswith("p")]
            assert paths.get(session.fold.leaf or "", []) == told


async def _say(session: LiveSession, memory: Memory, word: str) -> None:
    if session.audience.attachments == []:
        attach(session, Editor())
    prompt(session, editor := Editor(), word)
    await until(lambda: memory.made and memory.made[-1].session is session and memory.made[-1].prompts)
    await until(lambda: session.state is Turn.RUNNING)
    memory.known[session.fold.inner].append(word)
    voice = memory.made[-1]
    voice.end()
    await editor.answered(word)
