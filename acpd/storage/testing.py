"""The conformance suite of the storage contract: public, for every backend, ours and other people's.

    class TestMine(SessionConformance):
        store = "mine.stores:open_for_tests"    # a function (root: Path) -> Backend

pytest collects the methods; it needs pytest-asyncio in its automatic mode and its own `tmp_path`. This module imports no
pytest. `store` is text, because some tests open the same store in other processes and kill those.

`SessionConformance` is what every `Session` promises; `DurableSessionConformance` adds what one that writes to disk
does; `BackendConformance` adds logs, catalog and leases, for a backend that brings all four, `SearchConformance` what a
catalog promises that can be searched, and `MemoryConformance` what a memory does.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from pathlib import Path
from typing import ClassVar

from acpd.errors import StateUnreadable
from acpd.storage.contract import Key
from acpd.storage.testing_parts import CatalogConformance, JournalsConformance, LeaseConformance, MemoryConformance
from acpd.storage.testing_search import SearchConformance
from acpd.storage.testing_store import (
    ODD_NAMES,
    Store,
    below,
    big_value,
    child_save,
    child_save_for_ever,
    child_save_too_much,
    kill_after,
    raises,
)

__all__ = [
    "ODD_NAMES",
    "BackendConformance",
    "CatalogConformance",
    "DurableSessionConformance",
    "JournalsConformance",
    "LeaseConformance",
    "MemoryConformance",
    "SearchConformance",
    "SessionConformance",
]

VALUES = (
    b"{}", b"[]", b"null", b'""', b"0", b" { } \n", b'{"a":1,"a":2}', b"1234567890123456789012345678901234567890.5e3",
    b'"\\u0000\\ud800\\u2028"', '"\u2028\u00e9\U0001f600"'.encode(), b'{"text":"' + b"x" * 3_000_000 + b'"}',
)  # fmt: skip
"""JSON texts that a parse and a dump would change."""


class SessionConformance(Store):
    """What every Session promises."""

    per_agent: ClassVar[bool] = True
    """False for a store in which the session alone names its state; then the agent of a key plays no part."""

    async def test_a_value_comes_back_byte_for_byte(self, tmp_path: Path) -> None:
        """What is loaded is what was saved: white space, double members, escapes and all."""
        async with self.opened(tmp_path) as store:
            for number, value in enumerate(VALUES):
                await store.session.save(Key("agent", "s"), f"name{number}", value)
            for number, value in enumerate(VALUES):
                assert value == await store.session.load(Key("agent", "s"), f"name{number}")

    async def test_what_was_never_saved_is_none(self, tmp_path: Path) -> None:
        """An absent value is None, an absent session has no names, an empty store no keys."""
        async with self.opened(tmp_path) as store:
            assert await store.session.load(Key("agent", "s"), "memory") is None
            assert await store.session.names(Key("agent", "s")) == []
            assert await store.session.keys() == []

    async def test_save_replaces_the_whole_value(self, tmp_path: Path) -> None:
        """A shorter value after a longer one leaves nothing of it; an empty list saved after a full one stays empty."""
        key = Key("agent", "s")
        async with self.opened(tmp_path) as store:
            for value in (b'["a long one", 1, 2, 3]', b"[]"):
                await store.session.save(key, "memory", value)
                assert value == await store.session.load(key, "memory")

    async def test_names_are_sorted(self, tmp_path: Path) -> None:
        """`names` are those of this session that have a value, sorted."""
        async with self.opened(tmp_path) as store:
            for name in ("plan", "memory", "Tools", "a.b"):
                await store.session.save(Key("agent", "s"), name, b"1")
            await store.session.save(Key("agent", "other"), "else", b"1")
            assert await store.session.names(Key("agent", "s")) == ["Tools", "a.b", "memory", "plan"]

    async def test_delete_is_idempotent(self, tmp_path: Path) -> None:
        """Deleting removes one value or all of one session, nothing else; deleting what is absent is no error."""
        one, other = Key("agent", "one"), Key("agent", "other")
        async with self.opened(tmp_path) as store:
            for key in (one, other):
                await store.session.save(key, "memory", b"1")
                await store.session.save(key, "plan", b"2")
            for _ in range(2):
                await store.session.delete(one, "memory")
                assert await store.session.names(one) == ["plan"]
            for _ in range(2):
                await store.session.delete(one)
                assert await store.session.names(one) == []
            assert await store.session.load(one, "plan") is None
            assert await store.session.names(other) == ["memory", "plan"]
            assert [key.session for key in await store.session.keys()] == ["other"]

    async def test_users_and_sessions_do_not_meet(self, tmp_path: Path) -> None:
        """One name under different users, sessions and agents is as many values."""
        keys = [Key("agent", session, user) for session in ("s", "t") for user in (None, "alice", "bob")]
        keys += [Key("second", "s"), Key("second", "s", "alice")] if self.per_agent else []
        async with self.opened(tmp_path) as store:
            for number, key in enumerate(keys):
                await store.session.save(key, "memory", b"%d" % number)
            for number, key in enumerate(keys):
                assert b"%d" % number == await store.session.load(key, "memory")
            await store.session.delete(keys[0])
            assert self._seen(keys[1:]) == self._seen(await store.session.keys())

    async def test_any_text_is_a_name(self, tmp_path: Path) -> None:
        """Users, agents, sessions and state names may be any text; they stay apart and are listed as they were given."""
        keys = [Key("agent", odd) for odd in ODD_NAMES] + [Key("agent", "s", odd) for odd in ODD_NAMES]
        keys += [Key(odd, "s-" + odd) for odd in ODD_NAMES]
        root = tmp_path / "inside" / "root"
        async with self.opened(root) as store:
            for number, key in enumerate(keys):
                await store.session.save(key, "memory", b"%d" % number)
            for name in ODD_NAMES:
                await store.session.save(keys[0], name, b'"%d"' % ODD_NAMES.index(name))
            for number, key in enumerate(keys):
                assert b"%d" % number == await store.session.load(key, "memory")
            assert self._seen(keys) == self._seen(await store.session.keys())
            assert sorted({*ODD_NAMES, "memory"}) == await store.session.names(keys[0])
            for key in keys[1:]:
                await store.session.delete(key)
            assert self._seen(keys[:1]) == self._seen(await store.session.keys())
            assert await store.session.load(keys[0], ODD_NAMES[3]) == b'"3"'
        outside = [path for path in await asyncio.to_thread(below, tmp_path) if root not in (path, *path.parents)]
        assert outside in ([], [tmp_path / "inside"])

    async def test_concurrent_saves_are_each_whole(self, tmp_path: Path) -> None:
        """Saves at the same time do not mix: other names and sessions all arrive, of one name one value stays whole."""
        key = Key("agent", "s")
        values = [b'"' + b"%c" % (97 + n) * 50_000 + b'"' for n in range(20)]
        async with self.opened(tmp_path) as store:
            same = [store.session.save(key, "same", value) for value in values]
            others = [store.session.save(Key("agent", f"s{n}"), "memory", b"%d" % n) for n in range(50)]
            names = [store.session.save(key, f"n{n}", b"%d" % n) for n in range(50)]
            await asyncio.gather(*same, *others, *names)
            assert await store.session.load(key, "same") in values
            assert [b"%d" % n for n in range(50)] == [
                await store.session.load(Key("agent", f"s{n}"), "memory") for n in range(50)
            ]
            assert [b"%d" % n for n in range(50)] == [await store.session.load(key, f"n{n}") for n in range(50)]

    def _seen(self, keys: list[Key]) -> list[tuple[str, str, str]]:
        """Comparable, without what this store does not tell apart. Sorted; nothing is merged."""
        return sorted((key.user or "-", key.agent if self.per_agent else "", key.session) for key in keys)


class DurableSessionConformance(SessionConformance):
    """What a Session on disk promises besides."""

    @abstractmethod
    def damage(self, root: Path, key: Key, name: str, garbage: bytes) -> None:
        """Put `garbage` where this value is stored, behind the store's back. The store is closed. May block."""

    async def test_values_outlive_the_process(self, tmp_path: Path) -> None:
        """What one process saved another loads."""
        await self.run_children(child_save, tmp_path, ("s", "0", "3"))
        async with self.opened(tmp_path) as store:
            assert await store.session.load(Key("agent", "s"), "n2") == b"2"

    async def test_several_processes_share_a_store(self, tmp_path: Path) -> None:
        """Processes that save at the same time all succeed, and nothing of theirs is lost."""
        await self.run_children(child_save, tmp_path, *(("s", str(n * 100), "100") for n in range(3)))
        async with self.opened(tmp_path) as store:
            assert len(await store.session.names(Key("agent", "s"))) == 300

    async def test_a_kill_while_saving_leaves_old_or_new(self, tmp_path: Path) -> None:
        """After kill -9 the value is whole, and not older than the last save that returned."""
        for round_ in range(6):
            child = await asyncio.to_thread(self.child, child_save_for_ever, tmp_path)
            last = await asyncio.to_thread(kill_after, child, 2, 0.0025 * round_)
            async with self.opened(tmp_path) as store:
                value = await store.session.load(Key("agent", "s"), "memory")
            assert value is not None
            number = int(value[1:9])
            assert value == big_value(number)
            assert last <= number <= last + 1000

    async def test_a_failed_save_leaves_the_old_value(self, tmp_path: Path) -> None:
        """A save that cannot be written raises StoreError, and the old value stays whole."""
        async with self.opened(tmp_path) as store:
            await store.session.save(Key("agent", "s"), "memory", b'"old"')
        assert await self.run_children(child_save_too_much, tmp_path, ()) == ["refused\n"]
        async with self.opened(tmp_path) as store:
            assert await store.session.load(Key("agent", "s"), "memory") == b'"old"'

    async def test_an_unreadable_value_is_an_error_and_stays(self, tmp_path: Path) -> None:
        """What is no JSON raises StateUnreadable each time, until it is saved anew; others are not disturbed."""
        key, other = Key("agent", "s"), Key("agent", "other")
        for garbage in (b'{"torn":', b"", b"\x00" * 20, b'"\xff"'):
            async with self.opened(tmp_path) as store:
                await store.session.save(key, "memory", b'{"torn": 1}')
            await asyncio.to_thread(self.damage, tmp_path, key, "memory", garbage)
            for _ in range(2):
                async with self.opened(tmp_path) as store:
                    await store.session.save(other, "memory", b"1")
                    await raises(StateUnreadable, store.session.load(key, "memory"))
                    assert await store.session.names(key) == ["memory"]
                    assert await store.session.load(other, "memory") == b"1"
            async with self.opened(tmp_path) as store:
                await store.session.save(key, "memory", b"2")
                assert await store.session.load(key, "memory") == b"2"


class BackendConformance(DurableSessionConformance, JournalsConformance, CatalogConformance, LeaseConformance):
    """Everything, for a backend that brings all four parts."""
