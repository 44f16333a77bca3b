"""What the state stores do beyond the contract's suite: order, durability, what is put aside."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from acpd.errors import ConfigError, StateUnreadable, StoreError
from acpd.storage.contract import Key
from acpd_backends.files import Files
from acpd_backends.states import JsonSession, SqliteSession, WorkspaceSession, json_fault
from acpd_backends.stores import open_store
from tests.support.walk import below

KEY = Key("coder", "s")


@pytest.mark.parametrize(
    "value",
    [
        b"{}",
        b" null\r\n",
        b'"\\ud800"',
        b'["\\ud800", 1e400, -0.0]',
        b"9" * 5000,
        '"\u2028"'.encode(),
        b'"\\u0000"',
        b"[" * 400 + b"]" * 400,
    ],
)
def test_what_is_json(value: bytes) -> None:
    """RFC 8259 texts pass, escaped lone surrogates and numbers of any length included."""
    assert json_fault(value) == ""


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b" ",
        b"{",
        b"[1,]",
        b"{'a':1}",
        b"NaN",
        b"1 2",
        b'"\x01"',
        b'"\xff"',
        b'"\xed\xa0\x80"',
        b"\xef\xbb\xbf{}",
        b"\x00",
        b'[NaN, "\\ud800"]',
    ],
)
def test_what_is_no_json(value: bytes) -> None:
    """Everything else has a fault that can be told."""
    assert json_fault(value) != ""


def test_what_is_too_deep_is_a_fault_and_no_crash() -> None:
    """A value nested deeper than the decoder goes is refused."""
    assert json_fault(b"[" * 200_000 + b"]" * 200_000) == "too deeply nested"


@pytest.mark.parametrize("kind", [WorkspaceSession, JsonSession, SqliteSession])
async def test_what_is_no_json_is_not_saved(tmp_path: Path, kind: type[WorkspaceSession | JsonSession | SqliteSession]) -> None:
    """Saving it is StoreError, and the old value stays."""
    session = kind(tmp_path)
    await session.save(KEY, "memory", b"1")
    with pytest.raises(StoreError, match="no JSON"):
        await session.save(KEY, "memory", b"{")
    assert await session.load(KEY, "memory") == b"1"
    await session.close()


@pytest.mark.parametrize("kind", [WorkspaceSession, JsonSession, SqliteSession])
async def test_saves_of_one_value_keep_their_order(
    tmp_path: Path, kind: type[WorkspaceSession | JsonSession | SqliteSession]
) -> None:
    """Of saves that were asked for one after the other the last one wins, also when nobody waited in between."""
    session = kind(tmp_path, sync=False)
    for _ in range(5):
        await asyncio.gather(*(session.save(KEY, "memory", b"%d" % n) for n in range(50)))
        assert await session.load(KEY, "memory") == b"49"
    await session.close()


async def test_a_cancelled_save_is_still_made(tmp_path: Path) -> None:
    """Cancelling gives up the answer; the value is saved."""
    session = WorkspaceSession(tmp_path)
    saving = asyncio.gather(session.save(KEY, "memory", b"1"))
    await asyncio.sleep(0)
    saving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await saving
    assert await session.load(KEY, "memory") == b"1"
    await session.close()


def test_the_files_are_where_the_documents_say(tmp_path: Path) -> None:
    """`json` and `workspace` differ by the folder of the agent."""

    async def save() -> None:
        for session in (WorkspaceSession(tmp_path), JsonSession(tmp_path)):
            for user in (None, "alice"):
                await session.save(Key("coder", "s", user), "memory", b"1")
            await session.close()

    asyncio.run(save())
    assert sorted(str(path.relative_to(tmp_path)) for path in below(tmp_path) if path.is_file()) == [
        "agents/coder/context/s/memory.json",
        "context/s/memory.json",
        "u-alice/agents/coder/context/s/memory.json",
        "u-alice/context/s/memory.json",
    ]


async def test_the_unreadable_is_put_aside_once(tmp_path: Path) -> None:
    """One copy, named in the error; it is no state of its own, and goes when the value is deleted."""
    session = WorkspaceSession(tmp_path)
    await session.save(KEY, "memory", b"1")
    (path,) = below(tmp_path, "memory.json")
    path.write_bytes(b"{torn")
    for _ in range(3):
        with pytest.raises(StateUnreadable, match=r"memory\.json\.unreadable-"):
            await session.load(KEY, "memory")
    (aside,) = path.parent.glob("*unreadable*")
    assert (path.read_bytes(), aside.read_bytes()) == (b"{torn", b"{torn")
    assert await session.names(KEY) == ["memory"]
    await session.delete(KEY, "memory")
    assert list(path.parent.iterdir()) == []
    await session.close()


class Recorded(Files):
    """Writes down the system calls; fails at one."""

    def __init__(self, fail: str = "") -> None:
        self.calls: list[str] = []
        self.fail = fail

    def _note(self, name: str) -> None:
        self.calls.append(name)
        if name == self.fail:
            raise OSError(28, "No space left on device")

    def write(self, fd: int, data: bytes | memoryview) -> int:
        self._note("write")
        return super().write(fd, data)

    def fdatasync(self, fd: int) -> None:
        self._note("fdatasync")
        super().fdatasync(fd)

    def fsync(self, fd: int) -> None:
        self._note("fsync")
        super().fsync(fd)

    def replace(self, source: Path, target: Path) -> None:
        self._note("replace")
        super().replace(source, target)


@pytest.mark.parametrize(("sync", "calls"), [(True, ["write", "fdatasync", "replace", "fsync"]), (False, ["write", "replace"])])
async def test_a_save_is_on_disk_when_it_returns(tmp_path: Path, sync: bool, calls: list[str]) -> None:
    """Bytes, then name, then the folder's sync; without `sync` the same without syncs."""
    files = Recorded()
    session = WorkspaceSession(tmp_path, sync=sync, files=files)
    await session.save(KEY, "memory", b"1")
    files.calls.clear()
    await session.save(KEY, "memory", b"2")
    assert files.calls == calls
    await session.close()


@pytest.mark.parametrize("call", ["write", "fdatasync", "replace"])
async def test_a_save_that_fails_leaves_the_old_value(tmp_path: Path, call: str) -> None:
    """Whichever call fails: StoreError with the next step, the old value, and no rest of the new one."""
    await (session := WorkspaceSession(tmp_path)).save(KEY, "memory", b'"old"')
    await session.close()
    session = WorkspaceSession(tmp_path, files=Recorded(fail=call))
    with pytest.raises(StoreError, match="free space") as caught:
        await session.save(KEY, "memory", b'"new"')
    assert caught.value.retryable
    assert await session.load(KEY, "memory") == b'"old"'
    await session.close()
    assert [path.name for path in below(tmp_path) if path.is_file()] == ["memory.json"]


def test_an_unknown_backend_is_named(tmp_path: Path) -> None:
    """`open_store` says which there are."""
    with pytest.raises(ConfigError, match=r"'postgres'.*workspace, json, sqlite"):
        open_store("postgres", tmp_path)


@pytest.mark.parametrize("name", ["workspace", "json", "sqlite"])
def test_opening_a_store_touches_nothing(tmp_path: Path, name: str) -> None:
    """Nothing is made or started before the first call."""
    open_store(name, tmp_path / "new")
    assert list(tmp_path.iterdir()) == []
