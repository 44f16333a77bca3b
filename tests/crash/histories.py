"""Short histories of sessions: each does what acpd does in a few steps, and nothing else."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

from acpd.asks import PERMISSION
from acpd.branching import branch, label
from acpd.session import LiveSession
from tests.core.test_asks import PARAMS
from tests.core.world import prompt, until
from tests.crash.disk import Write
from tests.crash.scene import BIG, Scene
from tests.crash.states import Powers

OPTIONS = [{"id": "m", "name": "M", "type": "select", "currentValue": "x", "options": [{"value": "x", "name": "X"}]}]

History = Callable[[Scene], Awaitable[None]]


async def one_turn(scene: Scene) -> None:
    """A new session and a turn; what follows it is saved."""
    session = await scene.new()
    await scene.turn(session, "p1", "one", "two")
    await scene.saved(session)


async def blob(scene: Scene) -> None:
    """A string that does not stand in the log, and the same once more."""
    session = await scene.new()
    await scene.turn(session, "p1", BIG, "after it")
    await scene.turn(session, "p2", BIG)


async def asking(scene: Scene) -> None:
    """A question that is answered, and one that is open when the turn ends."""
    session = await scene.new()
    ear = await scene.prompted(session, "p1")
    if ear is None:
        return
    for name in ("q1", "q2"):
        ear.ask_user(name, PERMISSION, PARAMS)
        await until(lambda: scene.editor.asked or scene.editor.answer_to("p1"))
        for identifier in list(scene.editor.asked) if name == "q1" else []:
            scene.editor.choose(identifier, "yes")
            await until(lambda: ear.replies or scene.editor.answer_to("p1"))
    await scene.ended(ear, "p1")


async def settings(scene: Scene) -> None:
    """Modes that are answered before and after the states were saved."""
    session = await scene.new()
    await scene.set_mode(session, "b")
    await scene.turn(session, "p1", "one")
    await scene.saved(session)
    await scene.set_mode(session, "a")
    await scene.set_mode(session, "b")


async def keeping(scene: Scene) -> None:
    """Values that the agent keeps, the second in the place of the first."""
    session = await scene.new()
    for turn, value in enumerate(({"n": 1}, {"n": 2})):
        ear = await scene.prompted(session, f"p{turn}")
        if ear is not None:
            ear.keep("memory", value)
            await scene.ended(ear, f"p{turn}")


async def reopening(scene: Scene) -> None:
    """Closed, with index and context, and opened again for another turn."""
    session = await scene.new()
    await scene.turn(session, "p1", "one")
    await scene.close(session)
    session = await scene.load(session.id)
    await scene.turn(session, "p2", "two")
    await scene.saved(session)
    await scene.close(session)
    await scene.listed()


async def forking(scene: Scene) -> None:
    """A fork with a blob, and a turn of the fork."""
    session = await scene.new()
    await scene.turn(session, "p1", BIG)
    fork = await scene.fork(session)
    await scene.turn(fork, "p2", "two")


async def deleting(scene: Scene) -> None:
    """A session with everything that one has is deleted, another one stays."""
    session, other = await scene.new(), await scene.new()
    ear = await scene.prompted(session, "p1")
    if ear is not None:
        ear.keep("memory", 1)
        ear.say(BIG)
        await scene.ended(ear, "p1")
    await scene.turn(other, "p2", "two")
    await scene.close(session)
    await scene.delete(session.id)


async def unprompted(scene: Scene) -> None:
    """A session that nobody prompted is closed, and prompted when it is opened again."""
    session = await scene.new()
    await scene.close(session)
    session = await scene.load(session.id)
    await scene.turn(session, "p1", "one")


async def branching(scene: Scene) -> None:
    """An entry is named, the leaf is set back to it, and the conversation goes on from there."""
    session = await scene.new()
    await scene.turn(session, "p1", "one")
    leaf = session.fold.leaf or ""
    await scene.turn(session, "p2", "two")
    await label(session, leaf, "here")
    scene.promised("_acpd/label", session)
    await branch(session, "here")
    scene.promised("_acpd/branch", session)
    await scene.turn(session, "p3", "three")
    await scene.saved(session)


async def left_open(scene: Scene) -> LiveSession:
    """A turn that runs, with updates, a question and prompts that wait."""
    session = await scene.new()
    await scene.turn(session, "p1", "one")
    ear = await scene.prompted(session, "p2")
    prompt(session, scene.editor, "p3")
    if ear is not None:
        ear.ask_user("q1", PERMISSION, PARAMS)
        ear.say("two", "three")
    return session


async def killed(scene: Scene) -> None:
    """kill -9 in a turn; the next acpd closes what was left open, and goes on."""
    session = await left_open(scene)
    await scene.killed()
    session = await scene.load(session.id)
    await scene.turn(session, "p4", "four")


async def torn(scene: Scene) -> None:
    """kill -9 in the middle of a write: the next acpd cuts the torn line off, and goes on."""
    session = await left_open(scene)
    last = next(step for step in reversed(scene.disk.steps) if isinstance(step, Write))
    await scene.killed(cut=len(last.data) // 2)
    session = await scene.load(session.id)
    await scene.turn(session, "p4", "four")


async def unended(scene: Scene) -> None:
    """As `torn`, but only the newline is missing."""
    session = await left_open(scene)
    last = next(step for step in reversed(scene.disk.steps) if isinstance(step, Write))
    await scene.killed(cut=len(last.data) - 1)
    session = await scene.load(session.id)
    await scene.turn(session, "p4", "four")


async def deleted_again(scene: Scene) -> None:
    """A deletion that was cut off by a kill behind the log, and is asked for again."""
    session = await scene.new()
    ear = await scene.prompted(session, "p1")
    if ear is not None:
        ear.keep("memory", 1)
        await scene.ended(ear, "p1")
    await scene.close(session)
    before = len(scene.disk.steps)
    await scene.delete(session.id)
    await scene.killed_at(_first_without_log(scene, session.id, before))
    await scene.delete(session.id)


async def ahead(scene: Scene) -> None:
    """A mode that an agent names in a turn is saved as a state before the turn's end makes it durable in the log."""
    session = await scene.new(settings={})
    ear = await scene.prompted(session, "p1")
    if ear is not None:
        ear.say({"sessionUpdate": "config_option_update", "configOptions": OPTIONS})
        await scene.saved(session)
        await scene.ended(ear, "p1")


async def holes(scene: Scene) -> None:
    """A loss of power leaves zeros in the middle of a log; the next acpd goes on with what can be read, and is killed."""
    session = await left_open(scene)
    rng = random.Random(0)
    log = f"{scene.witness.folder}/{session.id}.log.jsonl"
    found = (crash.state for crash in Powers(scene.disk, len(scene.disk.steps)).each(5000, rng))
    await scene.lost_power(next(state for state in found if has_hole(state.get(log) or b"")))
    session = await scene.load(session.id)
    await scene.turn(session, "p4", "four")
    await scene.close(session)


def has_hole(log: bytes) -> bool:
    """Whether a readable line stands behind zeros."""
    before, zeros, behind = log.rpartition(b"\0")
    return bool(before and zeros and behind.endswith(b"\n"))


def _first_without_log(scene: Scene, session: str, since: int) -> int:
    path = f"{scene.witness.folder}/{session}.log.jsonl"
    return next(n for n in range(since, len(scene.disk.steps)) if scene.disk.until(n).inode(path) is None)


SHORT: dict[str, History] = {
    each.__name__: each
    for each in (
        one_turn, blob, asking, settings, keeping, reopening, forking, deleting, unprompted, branching, killed, torn, unended,
        deleted_again, ahead, holes,
    )
}  # fmt: skip
