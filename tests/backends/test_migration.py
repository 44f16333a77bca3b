"""From one backend to another: the same ids and bytes, whenever it was killed, and the source as it was."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest

from acpd.errors import SessionBusy, StateUnreadable, StoreError
from acpd.storage.contract import Key, Row
from acpd.wire.blobs import extract
from acpd.wire.lines import Header
from acpd_backends.jsonl import JsonlJournals
from acpd_backends.leases import FlockLease
from acpd_backends.migration import Migration
from acpd_backends.names import Layout
from acpd_backends.stores import NAMES, open_store
from tests.backends.journal_logs import AT, Dying, Killed, chain, update
from tests.support.walk import below, contents

BIG = b'{"sessionId":"s","update":{"text":"%b"}}' % (b"x" * 70_000)
PAIRS = [(source, target) for source in NAMES for target in NAMES if source != target]
KEYS = [Key("coder", "one"), Key("Other.agent", "n" * 300), Key("coder", "mine", "alice")]
Content = dict[str, Any]


async def fill(root: Path, backend: str) -> None:
    """Three sessions of two agents and two users: blobs, states, a torn line that was put aside, a damaged log."""
    for user in (None, "alice"):
        store = open_store(backend, root, user=user)
        assert store.journals is not None
        for key in (key for key in KEYS if key.user == user):
            header = Header(version=1, id=key.session, cwd="/w", agent=key.agent, user=user, createdAt=AT)
            journal = await store.journals.create(key, header)
            text, offsets, blobs = extract(BIG)
            await journal.put_blobs(blobs)
            journal.append(update(1, None, b',"params":%b,"blobs":[%d]' % (text, offsets[0])))
            for line in chain(2, start=2):
                journal.append(line)
            journal.flush()
            await journal.close()
            await store.session.save(key, "memory", b'{"of": "%b"}' % key.session[:9].encode())
            await store.session.save(key, "acpd.plan", b'{"seq":1,"value":{}}')
            path = Path(store.journals.log_path(key))
            await asyncio.to_thread(path.with_name(f"{path.name}.torn-1").write_bytes, b'{"type":')
        await close(store)
    damaged = Path(JsonlJournals(Layout(root, per_agent=backend != "json")).log_path(KEYS[0]))
    damaged.write_bytes(damaged.read_bytes() + b"no json\n" + update(5, 4))


async def leave(root: Path, backend: str, *, logs: bool) -> None:
    """What an earlier use of this backend left."""
    if logs:
        await fill(root, backend)
    store = open_store(backend, root)
    await store.session.save(KEYS[0], "memory", b'"older"')
    await store.session.save(Key("coder", "older"), "memory", b'"older"')
    await close(store)


async def close(store: Any) -> None:
    await store.journals.close()
    await store.catalog.close()
    await store.session.close()


async def content(root: Path, backend: str) -> Content:
    """Everything that counts, as a reader of this backend finds it."""
    found: Content = {}
    for user in (None, "alice"):
        store = open_store(backend, root, user=user)
        assert store.journals is not None
        assert store.catalog is not None
        await store.catalog.recover(store.journals)
        async for key in store.journals.scan(user):
            log = Path(store.journals.log_path(key))
            near = {path.name: path.read_bytes() for path in log.parent.glob(f"{log.name}.torn-?")}
            folder = log.with_name(log.name.removesuffix(".log.jsonl") + ".blobs")
            states = {name: await store.session.load(key, name) for name in await store.session.names(key)}
            row: Row | None = await store.catalog.get(key.session)
            blobs = {path.name: path.read_bytes() for path in folder.iterdir()}
            found[f"{user} {key.agent} {key.session}"] = (log.read_bytes(), near, blobs, states, row)
        await close(store)
    return found


def truth(root: Path, backend: str) -> dict[str, bytes]:
    """The files of the source that nothing can make anew."""
    names = {
        str(path.relative_to(root)): data
        for path, data in contents(root).items()
        if not path.name.endswith((".lock", "-shm", "-wal", ".db")) and "locks" not in path.parts
        and path.name not in {"sessions.json", "migration"} and not path.name.endswith(".idx")
    }  # fmt: skip
    per_agent = "agents/" if backend != "json" else ""
    return {name: data for name, data in names.items() if per_agent in name}


@pytest.mark.parametrize(("source", "target"), PAIRS)
async def test_every_backend_to_every_other_and_back(source: str, target: str, tmp_path: Path) -> None:
    """Same ids, same bytes of logs, blobs and states; the source is as it was; and all of it again on the way back."""
    await fill(tmp_path, source)
    before, files = await content(tmp_path, source), truth(tmp_path, source)
    moved = await Migration(tmp_path, source, target).run()
    assert (3, 6) == (moved.logs, moved.states)
    assert (3 if "json" in {source, target} else 0) == moved.blobs
    assert before == await content(tmp_path, target)
    assert files.items() <= truth(tmp_path, source).items()
    store = open_store(target, tmp_path)
    await store.session.save(KEYS[0], "memory", b'"newer"')
    await store.session.delete(KEYS[1], "memory")
    await close(store)
    later = await content(tmp_path, target)
    assert later != before
    await Migration(tmp_path, target, source).run()
    assert later == await content(tmp_path, source)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("workspace", "json"),
        pytest.param("sqlite", "workspace", marks=pytest.mark.e2e),
        pytest.param("json", "workspace", marks=pytest.mark.e2e),
    ],
)
async def test_killed_at_any_step_it_goes_on(source: str, target: str, tmp_path: Path) -> None:
    """Killed before any step and started again, the result is the same, and the source always whole."""
    await fill(tmp_path / "made", source)
    before, files = await content(tmp_path / "made", source), truth(tmp_path / "made", source)
    await leave(tmp_path / "made", target, logs="json" in {source, target})
    at, step = 1, 1
    while True:
        root = tmp_path / "run"
        await asyncio.to_thread(shutil.copytree, tmp_path / "made", root, symlinks=True)
        dying = Dying(at)
        try:
            await Migration(root, source, target, files=dying).run()
        except Killed:
            assert before == await content(root, source)
        if dying.steps < at:
            break
        await Migration(root, source, target).run()
        assert before == await content(root, target), f"killed before step {at}"
        assert files.items() <= truth(root, source).items()
        await asyncio.to_thread(shutil.rmtree, root)
        at, step = at + step, step + 1
    assert at > 10


@pytest.mark.parametrize(("source", "target"), [("workspace", "sqlite"), pytest.param("json", "sqlite", marks=pytest.mark.e2e)])
async def test_killed_between_states_it_goes_on(source: str, target: str, tmp_path: Path) -> None:
    """A database is written a value at a time; killed before any of them and started again, the result is the same."""
    await fill(tmp_path / "made", source)
    before = await content(tmp_path / "made", source)
    saves = 0
    for at in range(1, 8):
        root = tmp_path / str(at)
        await asyncio.to_thread(shutil.copytree, tmp_path / "made", root)
        migration = Migration(root, source, target)
        saves = 0

        def session(name: str, made: Any = migration._session, at: int = at) -> Any:
            opened = made(name)
            save = opened.save

            async def counted(*given: Any) -> None:
                nonlocal saves
                saves += 1
                if saves == at:
                    raise Killed
                await save(*given)

            opened.save = counted
            return opened

        migration._session = session  # type: ignore[method-assign]
        try:
            await migration.run()
        except Killed:
            assert before == await content(root, source)
            await Migration(root, source, target).run()
        assert before == await content(root, target)
    assert 6 == saves


async def test_what_is_in_the_way_is_said_before_anything_is_done(tmp_path: Path) -> None:
    """An open session, two agents with one session, a state that is no JSON: each is told, and done away with it goes on."""
    await fill(tmp_path, "workspace")
    lease = FlockLease(Layout(tmp_path))
    await lease.take(KEYS[2])
    with pytest.raises(SessionBusy, match="open in pid"):
        await Migration(tmp_path, "workspace", "json").run()
    await lease.give_up(KEYS[2])
    again = Path(JsonlJournals(Layout(tmp_path)).log_path(Key("second", "one")))
    again.parent.mkdir(parents=True)
    shutil.copy(JsonlJournals(Layout(tmp_path)).log_path(KEYS[0]), again)
    with pytest.raises(StoreError, match=r"agents .* both have it"):
        await Migration(tmp_path, "workspace", "json").run()
    again.unlink()
    assert not (tmp_path / "sessions").exists()
    memory = below(tmp_path, "memory.json")[0]
    memory.write_bytes(b"{")
    with pytest.raises(StateUnreadable):
        await Migration(tmp_path, "workspace", "sqlite").run()
    memory.write_bytes(b"{}")
    await Migration(tmp_path, "workspace", "sqlite").run()


async def test_a_session_that_is_open_in_the_target_is_refused(tmp_path: Path) -> None:
    """Its log would be put aside under who writes it. So would one that only the target has."""
    await fill(tmp_path, "workspace")
    await Migration(tmp_path, "workspace", "json").run()
    before = await content(tmp_path, "workspace")
    lease = FlockLease(Layout(tmp_path))
    await lease.take(KEYS[2])
    with pytest.raises(SessionBusy, match="open in pid"):
        await Migration(tmp_path, "json", "workspace").run()
    await lease.give_up(KEYS[2])
    assert before == await content(tmp_path, "workspace")
    migration = Migration(tmp_path, "json", "workspace")
    await migration.run()
    assert {"sessions", "context"} == {Path(path).name for path in migration.aside}


async def test_two_layouts_in_one_folder_have_catalogs_of_their_own(tmp_path: Path) -> None:
    """After a migration each backend lists what its own logs say, whatever the other one goes on with."""
    await fill(tmp_path, "workspace")
    await Migration(tmp_path, "workspace", "json").run()
    listed: dict[str, set[str]] = {}
    for name in ("json", "workspace"):
        store = open_store(name, tmp_path)
        assert store.catalog is not None
        assert store.journals is not None
        await store.catalog.recover(store.journals)
        if name == "json":
            await store.catalog.put(Row(id="only-json", agent="a", cwd="/w", prompted=True, updatedAt="2027"))
        listed[name] = {row.id for row in await store.catalog.find("", limit=100)}
        await store.catalog.close()
        await store.session.close()
    assert {"only-json"} == listed["json"] - listed["workspace"]


async def test_what_was_removed_between_two_runs_is_not_brought_back(tmp_path: Path) -> None:
    """A session that is deleted after a run was cut off is not in the target when the next one is done."""
    await fill(tmp_path, "workspace")

    def stop(done: int, count: int) -> None:
        if done == count:
            raise Killed

    with pytest.raises(Killed):
        await Migration(tmp_path, "workspace", "json", progress=stop).run()
    store = open_store("workspace", tmp_path)
    assert store.journals is not None
    await store.journals.delete(KEYS[0])
    await store.session.delete(KEYS[0])
    await close(store)
    await Migration(tmp_path, "workspace", "json").run()
    assert await content(tmp_path, "workspace") == await content(tmp_path, "json")
    assert 2 == len(await content(tmp_path, "json"))
