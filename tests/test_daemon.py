"""The composition root: names to classes, and stopping."""

from __future__ import annotations

import asyncio
import importlib.metadata
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, ClassVar

import pytest

from acpd import daemon, stores
from acpd.config import Config, Paths, Storage
from acpd.errors import ConfigError, StoreError
from acpd.indexing import REST
from acpd.registry import Registry
from acpd.storage.contract import Backend, Journals
from acpd_backends.stores import open_store as open_built_in
from tests.agents.house import SETTINGS, House
from tests.core.world import until
from tests.support import proc


def config(root: Path, backend: str = "workspace") -> Config:
    return Config(storage=Storage(backend=backend, path=str(root)), sources={"storage.backend": "--backend"})


@pytest.mark.parametrize("name", stores.BACKENDS)
def test_built_in_stores_have_four_parts(tmp_path: Path, name: str) -> None:
    """Each of the built-in names is a whole store, and opening it makes nothing on disk yet."""
    store = stores.open_store(config(tmp_path / "s", name))
    assert None not in store
    assert not (tmp_path / "s").exists()


def plug_in(monkeypatch: pytest.MonkeyPatch, **made: Any) -> list[dict[str, Any]]:
    """Third parties' backends by name: what each brings. The calls that reach them are returned."""
    calls: list[dict[str, Any]] = []

    def opener(parts: dict[str, Any]) -> Any:
        def opened(root: Path, *, user: str | None, sync: str) -> Backend:
            calls.append({"root": root, "user": user, "sync": sync})
            return Backend(**parts)

        return opened

    class Found:
        def __init__(self, name: str) -> None:
            self.name = name
            self.value = "theirs:open_store"

        def load(self) -> Any:
            return opener(made[self.name])

    class Points(list[Any]):
        names: ClassVar[set[str]] = set(made)

    def entry_points(*, group: str, name: str | None = None) -> Any:
        assert stores.GROUP == group
        return Points(Found(each) for each in made if name in (None, each))

    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)
    return calls


def test_a_third_partys_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is found by its entry point, told root, user and sync, and what it does not bring is the built-in's."""
    states = open_built_in("json", tmp_path / "theirs").session
    calls = plug_in(monkeypatch, theirs={"session": states})
    store = stores.open_store(config(tmp_path / "s", "theirs"))
    assert [{"root": tmp_path / "s", "user": None, "sync": "power"}] == calls
    assert states is store.session
    built_in = open_built_in("workspace", tmp_path / "s")
    assert [type(part) for part in built_in[1:]] == [type(part) for part in store[1:]]


def test_a_third_partys_whole_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that it brings is used."""
    whole = open_built_in("json", tmp_path / "theirs")
    plug_in(monkeypatch, theirs=whole._asdict())
    assert whole == Backend(*stores.open_store(config(tmp_path / "s", "theirs")))


@pytest.mark.parametrize("made", [ImportError("no module named theirs"), ZeroDivisionError(), {}, None])
def test_a_third_partys_store_that_cannot_be_used(made: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line that names the backend, the cause and the next step; no traceback."""

    class Entry:
        name, value = "theirs", "theirs:open_store"

        def load(self) -> Any:
            if isinstance(made, ImportError):
                raise made
            return self.open

        def open(self, *_: object, **__: object) -> object:
            if isinstance(made, Exception):
                raise made
            return made

    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: [Entry()])
    with pytest.raises(ConfigError, match=r"storage backend 'theirs' .*theirs:open_store comes with the package"):
        stores.open_store(config(tmp_path, "theirs"))


def test_an_unknown_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says where the name was said, and which names there are, third parties' too."""
    plug_in(monkeypatch, theirs={})
    with pytest.raises(ConfigError, match=r"--backend: unknown storage backend 'nothing' .*workspace, json, sqlite, theirs"):
        stores.open_store(config(tmp_path, "nothing"))


def test_a_store_that_lacks_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store is whole or none."""
    with pytest.raises(StoreError, match="brings no"):
        stores._whole(Backend(None))  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def imported_before() -> None:
    """The first line that is logged imports structlog, which looks at folders: not on a loop that is watched."""
    __import__("structlog")


class Part:
    """A part of the daemon that can be closed or stopped; which fails; one that `hangs` has no end."""

    def __init__(self, name: str, done: list[str], *, hangs: bool = False) -> None:
        self.name = name
        self.done = done
        self.hangs = hangs

    async def close(self) -> None:
        self.done.append(self.name)
        if self.hangs:
            await asyncio.Event().wait()
        raise StoreError("close", self.name, cause="no space")

    async def stop(self, *, interrupt: bool = False) -> None:
        await self.close()

    async def kill(self) -> None:
        self.done.append(f"kill {self.name}")


class Closing:
    def __init__(self, done: list[str]) -> None:
        self.done = done
        self.peer = self

    def hold(self, _why: str) -> None:
        self.done.append("hold")

    def close(self) -> None:
        self.done.append("connection")


def made(root: Path) -> daemon.Daemon:
    return daemon.Daemon(config(root / "s"), Paths.find({"ACPD_HOME": str(root)}))


async def stopped(one: daemon.Daemon, *hanging: str) -> list[str]:
    """The parts in the order in which they were stopped; these of them have no end."""
    done: list[str] = []
    parts = {name: Part(name, done, hangs=name in hanging) for name in ("registry", "pool", "journals", "catalog", "session")}
    registry: Any = parts.pop("registry")
    pool: Any = parts.pop("pool")
    store: Any = type("Store", (), dict(parts))
    connection: Any = Closing(done)
    one.pool = pool
    one.connections = {connection}
    one._tenants = {None: daemon.Tenant(store, registry)}
    async with asyncio.timeout(5):
        await one.stop()
        await asyncio.to_thread(one.log.close)
    return done


async def test_stopping_goes_on_behind_a_step_that_fails(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A session that cannot be closed keeps neither the agents nor the store from being closed."""
    one = made(tmp_path)
    assert ["hold", "registry", "pool", "connection", "journals", "catalog", "session"] == await stopped(one)
    assert not one.stuck
    assert 5 == capfd.readouterr().err.count("no space")


async def test_stopping_goes_on_behind_a_step_that_has_no_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has its time: what is left of the agents is killed, and every part of the store is asked to close."""
    monkeypatch.setattr(daemon, "STOP_SECONDS", 0.02)
    monkeypatch.setattr(daemon, "CLOSE_SECONDS", 0.02)
    one = made(tmp_path)
    done = await stopped(one, "registry", "journals")
    assert ["hold", "registry", "kill pool", "registry", "connection", "journals", "catalog", "session"] == done
    assert one.stuck


async def test_agents_that_outlive_the_time_for_stopping_are_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long their grace is, no agent lives on behind acpd; then the rest is stopped as usual."""
    monkeypatch.setattr(daemon, "STOP_SECONDS", 0.05)
    async with House(tmp_path) as house:
        house.pool.settings = SETTINGS._replace(stop_grace=60.0)
        await house.start(house.shell("""trap '' TERM; read x; echo "$INIT"; while :; do sleep 0.05; done"""))
        one = made(tmp_path)
        one.pool = house.pool
        one._tenants = {None: daemon.Tenant(house.store, house.registry)}
        await one.stop()
        await asyncio.to_thread(one.log.close)
        assert (False, {}) == (one.stuck, house.pool.links)
        proc.assert_none_left(house.mark)


def test_a_thread_that_has_no_end_does_not_keep_acpd() -> None:
    """What is stuck on a disk is left behind, with the exit code that there is."""
    script = """
import asyncio, threading
from acpd import daemon
class Stuck(daemon.Daemon):
    def __init__(self, *_):
        self.stuck = True
        self.log = daemon.Logger("info")
    async def serve_stdio(self, *_):
        asyncio.get_running_loop().run_in_executor(None, threading.Event().wait)
        return 3
daemon.Daemon = Stuck
daemon.serve_stdio(None, None, None)
"""
    root = Path(__file__).resolve().parents[1]
    env = {**os.environ, "PYTHONPATH": str(root)}
    assert 3 == subprocess.run([sys.executable, "-c", script], check=False, timeout=20, cwd=root, env=env).returncode


class Client:
    """One that is connected."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry


async def test_a_store_that_nobody_uses_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of a user without clients and open sessions, at the second look; it is opened again for who comes. Ours stays."""
    monkeypatch.setattr(daemon, "DELAY", 0)
    one = made(tmp_path)
    one.begin()
    names = [None, *(f"u{number}" for number in range(8))]
    for name in names:
        await one.tenant(name)
    used, busy = await one.tenant("u1"), await one.tenant("u2")
    connection: Any = Client(used.registry)
    one.connections.add(connection)
    live: dict[str, Any] = busy.registry.live
    live["s"] = None
    await until(lambda: not one._recovering)
    before = threading.active_count()
    await one.close_unused()
    assert len(names) == len(one.tenants)
    await one.tenant("u3")
    await one.close_unused()
    assert {None, "u1", "u2", "u3"} == one._tenants.keys()
    assert before > threading.active_count()
    live.clear()
    one.connections.discard(connection)
    for _ in range(2):
        await one.close_unused()
    assert {None} == one._tenants.keys()
    assert not one._unused
    again = await one.tenant("u1")
    assert [] == await again.store.catalog.page()
    await one.stop()


async def test_a_start_looks_for_logs_when_listings_are_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the store is ours: first what listings wait for, and after some seconds, gently, the names of all logs."""
    told: list[object] = []
    async with House(tmp_path) as house:
        registry = house.registry
        real = house.store.catalog.compare

        async def compare(journals: Journals, /, *, rest: float = 0) -> int:
            told.append((rest, registry.complete.is_set(), registry.compared))
            return await real(journals)

        monkeypatch.setattr(house.store.catalog, "compare", compare)
        monkeypatch.setattr(daemon, "DELAY", 0)
        registry.compared = False
        registry.complete.clear()
        one = made(tmp_path)
        recovering = asyncio.get_running_loop().create_task(one._recover(registry))
        await asyncio.wait([recovering], timeout=0.1)
        assert not registry.complete.is_set()  # another daemon may be stopping, and its rows say nothing yet
        one.begin()
        await recovering
        await one.tasks.cancel()
        assert [(REST, True, False)] == told
        assert registry.compared
