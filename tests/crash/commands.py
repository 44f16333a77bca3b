"""Short histories of commands that change a store: a project that moved, repairs, removals, another backend.

Each is a process of its own; here it uses the store of an acpd that has no session open.
"""

from __future__ import annotations

import random
from pathlib import Path

from acpd.care import garbage, mend, older_than, remove_garbage, remove_old, take_and_remove
from acpd.moving import Move, move_session, moving
from acpd.storage.contract import Key
from acpd_backends.files import FILES, Files
from acpd_backends.migration import Migration
from tests.crash.disk import Mark
from tests.crash.examine import Examination
from tests.crash.histories import History, has_hole, left_open
from tests.crash.promises import Check, Session, expected, written
from tests.crash.scene import BIG, Deleting, Repairing, Scene
from tests.crash.states import Crash, Powers, points
from tests.support.walk import contents

MIGRATING, MIGRATED = "acpd migrate is asked for", "acpd migrate is done"
TARGETS = {"workspace": "sqlite", "json": "workspace", "sqlite": "json"}
"""Where `migrating` goes, from each backend."""


async def moved(scene: Scene) -> None:
    """Two sessions of a project that moves; one of them goes on there."""
    session, other = await scene.new(), await scene.new()
    await scene.turn(session, "p1", "one")
    await scene.turn(other, "p2", "two")
    await scene.close(session)
    await scene.close(other)
    move = Move(("/tmp",), "/moved")
    store = scene.world.store
    for key, _, now in [each async for each in moving(store, move)]:
        await move_session(store, key, move, now)
        scene.witness.answered("the answer to acpd cwd", key.session, len(scene.witness.log(key.session)))
    session = await scene.load(session.id)
    await scene.turn(session, "p3", "three")


async def repaired(scene: Scene) -> None:
    """A loss of power leaves zeros in a log; `acpd fsck --repair` writes a copy, and the session goes on."""
    session = await left_open(scene)
    rng = random.Random(0)
    log = f"{scene.witness.folder}/{session.id}.log.jsonl"
    found = (crash.state for crash in Powers(scene.disk, len(scene.disk.steps)).each(5000, rng))
    await scene.lost_power(next(state for state in found if has_hole(state.get(log) or b"")))
    before = scene.witness.log(session.id)
    scene.disk.mark(Repairing(session.id, before, None))
    report = await mend(scene.world.store, Key("agent", session.id))
    assert report.kept
    scene.disk.mark(Repairing(session.id, before, scene.witness.log(session.id)))
    session = await scene.load(session.id)
    await scene.turn(session, "p4", "four")


async def removed(scene: Scene) -> None:
    """`acpd rm` of one session with everything that one has, `acpd gc --older-than` of another; a third one stays."""
    one, old, stays = await scene.new(), await scene.new(), await scene.new()
    for session, name in ((one, "p1"), (old, "p2"), (stays, "p3")):
        ear = await scene.prompted(session, name)
        if ear is not None:
            ear.keep("memory", name)
            ear.say(BIG)
            await scene.ended(ear, name)
        await scene.saved(session)
        await scene.close(session)
    store = scene.world.store
    scene.disk.mark(Deleting(one.id, done=False))
    await take_and_remove(store, Key("agent", one.id), await store.catalog.get(one.id))
    scene.disk.mark(Deleting(one.id, done=True))
    for each in [each async for each in older_than(store, "9999")]:
        if each.key.session == old.id:
            scene.disk.mark(Deleting(old.id, done=False))
            assert await remove_old(store, each, "9999")
            scene.disk.mark(Deleting(old.id, done=True))


async def collected(scene: Scene) -> None:
    """`acpd gc` takes the blob that no line names, and only that."""
    session = await scene.new()
    await scene.turn(session, "p1", BIG)
    await session.scribe.journal.put_blobs([("0" * 64, b"stray")])
    await scene.close(session)
    key = Key("agent", session.id)
    assert await garbage(scene.world.store, key)
    assert 1 == len(await remove_garbage(scene.world.store, key))
    session = await scene.load(session.id)
    await scene.turn(session, "p2", "two")


COMMANDS: dict[str, History] = {each.__name__: each for each in (moved, repaired, removed, collected)}


async def migrating(scene: Scene) -> None:
    """`acpd migrate` of a session with a blob and a kept value, and of a second one."""
    session, other = await scene.new(), await scene.new()
    ear = await scene.prompted(session, "p1")
    if ear is not None:
        ear.keep("memory", {"n": 1})
        ear.say(BIG)
        await scene.ended(ear, "p1")
    await scene.turn(other, "p2", "two")
    await scene.close(session)
    await scene.close(other)
    scene.disk.mark(MIGRATING)
    await migrate(scene.world.root, scene.backend, scene.files)
    scene.disk.mark(MIGRATED)


async def migrate(root: Path, backend: str, files: Files = FILES) -> None:
    await Migration(root, backend, TARGETS[backend], files=files).run()


class Migrated(Check):
    """The store in the backend that it went to. `done`: the command had said so; else it is given again."""

    def __init__(
        self, crash: Crash, promised: dict[str, Session], lines: set[bytes], base: Path, source: str, *, done: bool
    ) -> None:
        super().__init__(crash, promised, lines, base, TARGETS[source])
        self.source = source
        self.done = done

    async def run(self) -> None:
        if not self.done:
            await migrate(self.base / "store", self.source)
        folder = "sessions" if TARGETS[self.source] == "json" else "agents"
        logs = contents(self.base / "store" / folder, "*.log.jsonl")
        self.before = {path.name.removesuffix(".log.jsonl"): data for path, data in logs.items()}
        await super().run()


class OfTarget(Examination):
    """A history that ends with a migration, looked at in the backend that it went to."""

    def check(self, crash: Crash, folder: Path) -> Check:
        disk = self.scene.disk
        done = Mark(MIGRATED) in disk.steps[: crash.number]
        promised = expected(disk, crash.number, power=crash.power)
        return Migrated(crash, promised, written(disk, crash.number), folder, self.scene.backend, done=done)


def since_migrating(scene: Scene) -> list[int]:
    """The points from its beginning on."""
    began = scene.disk.steps.index(Mark(MIGRATING)) + 1
    return [number for number in points(scene.disk) if number >= began]
