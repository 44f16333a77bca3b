"""The conformance suites of logs, catalogs, leases and memories. Part of `acpd.storage.testing`, which is what to import."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from msgspec.structs import replace

from acpd.errors import SessionBusy, SessionNotFound, StoreError
from acpd.storage.contract import After, Journals, Key
from acpd.storage.testing_store import (
    KEY,
    ODD_NAMES,
    Store,
    child_append_for_ever,
    child_hold,
    header_of,
    kill,
    kill_after,
    new_journal,
    part,
    prompt_line,
    raises,
    read_all,
    read_path,
    row_at,
)
from acpd.wire.lines import Parent, fact


class JournalsConformance(Store):
    """What the logs of a store promise. `store` gives a Backend with `journals`."""

    async def test_a_log_is_read_as_it_was_written(self, tmp_path: Path) -> None:
        """After flush every line can be read, in file order, with its seq; after and until select by seq."""
        async with self.opened(tmp_path) as store:
            journals = part(store.journals)
            journal = await new_journal(journals, KEY, turns=5)
            assert [line.seq for line in await read_all(journals, KEY)] == [1, 2, 3, 4, 5]
            assert [line.seq for line in await read_all(journals, KEY, after=2, until=4)] == [3, 4]
            assert await read_all(journals, KEY, after=5) == []
            before = journal.size
            journal.append(prompt_line("e6", "e5", 6))
            assert len(await read_all(journals, KEY)) == 5
            journal.flush()
            assert len(await read_all(journals, KEY)) == 6
            assert before < journal.size
            await journal.close()

    async def test_sync_is_done_when_its_future_is(self, tmp_path: Path) -> None:
        """`sync` gives None or a future that ends; so do several at once."""
        async with self.opened(tmp_path) as store:
            journal = await new_journal(part(store.journals), KEY, turns=1)
            waiting = [future for _ in range(3) if (future := journal.sync()) is not None]
            await asyncio.wait_for(asyncio.gather(*waiting), 30)
            await journal.close()

    async def test_a_log_is_opened_again_where_it_ended(self, tmp_path: Path) -> None:
        """A log that was closed opens with the header and the fold of its lines, and goes on behind them."""
        async with self.opened(tmp_path) as store:
            await (await new_journal(part(store.journals), KEY, turns=3)).close()
        async with self.opened(tmp_path) as store:
            journals = part(store.journals)
            journal = await journals.open(KEY)
            assert (header_of(KEY.session), 3, "e3") == (journal.header, journal.fold.seq, journal.fold.leaf)
            journal.append(prompt_line("e4", "e3", 4))
            journal.flush()
            await journal.close()
            header, fold = await journals.peek(KEY)
            assert (header_of(KEY.session), 4, "e4") == (header, fold.seq, fold.leaf)

    async def test_a_log_says_where_its_project_has_moved(self, tmp_path: Path) -> None:
        """The header that is given, by `open` and `peek`, has the folder of the newest `info` fact with a `cwd`."""
        async with self.opened(tmp_path) as store:
            journals = part(store.journals)
            journal = await new_journal(journals, KEY, turns=1)
            there = b',"cwd":"/new","folder":"/real","additionalDirectories":["/new/d"]'
            moves = (b',"cwd":"/x","folder":"","additionalDirectories":["/x/d"]', there, b',"title":"t"')
            for seq, body in enumerate(moves, 2):
                journal.append(fact("info", f"f{seq}", seq, "2026-01-01T00:00:00.000Z", body))
            journal.flush()
            await journal.close()
        async with self.opened(tmp_path) as store:
            journals = part(store.journals)
            journal = await journals.open(KEY)
            for header in (journal.header, (await journals.peek(KEY))[0]):
                assert ("/new", "/real", KEY.session) == (header.cwd, header.folder, header.id)
                assert header.additionalDirectories == ("/new/d",)
            await journal.close()

    async def test_there_is_one_log_of_a_session(self, tmp_path: Path) -> None:
        """Creating what is there is StoreError; opening or looking at what is not there is SessionNotFound."""
        async with self.opened(tmp_path) as store:
            journals = part(store.journals)
            await raises(SessionNotFound, journals.open(KEY))
            await raises(SessionNotFound, journals.peek(KEY))
            await (await new_journal(journals, KEY, turns=1)).close()
            await raises(StoreError, journals.create(KEY, header_of(KEY.session)))
            assert (await journals.peek(KEY))[1].seq == 1

    async def test_a_path_goes_from_the_root_to_the_leaf(self, tmp_path: Path) -> None:
        """A branch that was left is not on the path; it still is on the path to its own leaf, and in the tree."""
        async with self.opened(tmp_path) as store:
            journals = part(store.journals)
            await self._branched(journals)
            assert [line.id for line in await read_path(journals, KEY)] == ["e1", "e2", "e5"]
            assert [line.id for line in await read_path(journals, KEY, leaf="e3")] == ["e1", "e2", "e3"]
            assert [line.id for line in await journals.last(KEY, 2)] == ["e2", "e5"]
            assert len(await read_all(journals, KEY)) == 5

    async def test_a_fork_has_the_path_up_to_the_entry(self, tmp_path: Path) -> None:
        """A fork holds the entries of the path under their ids; the source stays as it is."""
        target = Key("agent", "fork")
        header = header_of("fork", Parent("s", "e2"))
        async with self.opened(tmp_path) as store:
            journals = part(store.journals)
            await self._branched(journals)
            await journals.fork(KEY, target, header, entry="e2")
            assert [line.id for line in await read_path(journals, target)] == ["e1", "e2"]
            assert (header, "e2") == ((await journals.peek(target))[0], (await journals.peek(target))[1].leaf)
            assert len(await read_all(journals, KEY)) == 5
            await journals.delete(KEY)
            assert [line.id for line in await read_path(journals, target)] == ["e1", "e2"]

    async def test_deleting_a_log_is_idempotent(self, tmp_path: Path) -> None:
        """A deleted log is not found, others stay, deleting again is no error."""
        other = Key("agent", "other")
        async with self.opened(tmp_path) as store:
            journals = part(store.journals)
            for key in (KEY, other):
                await (await new_journal(journals, key, turns=1)).close()
            for _ in range(2):
                await journals.delete(KEY)
                await raises(SessionNotFound, journals.peek(KEY))
            assert [other] == [key async for key in journals.scan(None)]

    async def test_scan_gives_every_log_of_one_user(self, tmp_path: Path) -> None:
        """`scan` names the logs of this user under any name, and no other's."""
        keys = [Key("agent", odd) for odd in ODD_NAMES if "\ud800" not in odd and "\udfff" not in odd]
        alice = Key("agent", "s", "alice")
        async with self.opened(tmp_path) as store:
            journals = part(store.journals)
            for key in (*keys, alice):
                await (await new_journal(journals, key, turns=1)).close()
            assert sorted(key.session for key in keys) == sorted([key.session async for key in journals.scan(None)])
            assert [alice] == [key async for key in journals.scan("alice")]
            assert [key async for key in journals.scan("bob")] == []

    async def test_a_killed_writer_loses_nothing_flushed(self, tmp_path: Path) -> None:
        """After kill -9 every line that was flushed is there, and the log opens for more."""
        child = await asyncio.to_thread(self.child, child_append_for_ever, tmp_path)
        last = await asyncio.to_thread(kill_after, child, 50)
        async with self.opened(tmp_path) as store:
            journals = part(store.journals)
            journal = await journals.open(KEY)
            seqs = [line.seq for line in await read_all(journals, KEY)]
            assert list(range(1, len(seqs) + 1)) == seqs
            assert last <= len(seqs) == journal.fold.seq
            await journal.close()

    async def _branched(self, journals: Journals) -> None:
        """e1, e2, e3; then back to e2 and e5. The fact in between is seq 4."""
        journal = await new_journal(journals, KEY, turns=3)
        journal.append(fact("leaf", "f4", 4, "2026-01-01T00:00:00.000Z", b',"entry":"e2"'))
        journal.append(prompt_line("e5", "e2", 5))
        journal.flush()
        await journal.close()


class CatalogConformance(Store):
    """What a catalog promises. `store` gives a Backend with `catalog` and `journals`."""

    async def test_a_row_comes_back_as_it_was_put(self, tmp_path: Path) -> None:
        """Every field of a row is kept, under any id; a second put replaces the row; an absent one is None."""
        async with self.opened(tmp_path) as store:
            catalog = part(store.catalog)
            rows = [row_at(odd, 1, cwd=odd, title=odd, leaf="e", parent="p", dirs=("/x", odd), inner=odd) for odd in ODD_NAMES]
            for row in rows:
                await catalog.put(row)
            assert rows == [await catalog.get(row.id) for row in rows]
            await catalog.put(row_at("a", 2, title="", prompted=False))
            assert row_at("a", 2, title="", prompted=False) == await catalog.get("a")
            assert await catalog.get("absent") is None

    async def test_rows_outlive_the_process(self, tmp_path: Path) -> None:
        """What was put is there when the store is opened again."""
        async with self.opened(tmp_path) as store:
            await part(store.catalog).put(row_at("s", 1))
        async with self.opened(tmp_path) as store:
            assert row_at("s", 1) == await part(store.catalog).get("s")

    async def test_a_prefix_is_taken_literally(self, tmp_path: Path) -> None:
        """`find` gives the rows whose id starts with the text, newest first, no pattern in it, at most `limit`."""
        async with self.opened(tmp_path) as store:
            catalog = part(store.catalog)
            for number, identifier in enumerate(("abc", "abd", "ab%", "a_c", "ABC", "b", "ab\U0010ffff")):
                await catalog.put(row_at(identifier, number))
            assert [row.id for row in await catalog.find("ab%")] == ["ab%"]
            assert [row.id for row in await catalog.find("a_")] == ["a_c"]
            assert [row.id for row in await catalog.find("ab")] == ["ab\U0010ffff", "ab%"]
            assert len(await catalog.find("ab", limit=10)) == 4
            assert await catalog.find("zz") == []

    async def test_a_listing_is_newest_first_and_filtered_exactly(self, tmp_path: Path) -> None:
        """Prompted sessions by time and id descending; agent and cwd filter exactly and together."""
        async with self.opened(tmp_path) as store:
            catalog = part(store.catalog)
            for number in range(12):
                await catalog.put(row_at(f"s{number:02}", number // 2, agent="ab"[number % 2], cwd=f"/p{number % 3}"))
            await catalog.put(row_at("quiet", 99, prompted=False))
            order = [f"s{number:02}" for number in range(11, -1, -1)]
            assert order == [row.id for row in await catalog.page()]
            assert order[1::2] == [row.id for row in await catalog.page(agent="a")]
            assert [row.id for row in await catalog.page(cwd="/p1")] == ["s10", "s07", "s04", "s01"]
            assert [row.id for row in await catalog.page(cwd="/p1", agent="a")] == ["s10", "s04"]
            assert await catalog.page(cwd="/p") == []
            assert await catalog.page(agent="A") == []

    async def test_pages_are_stable_while_sessions_come_and_go(self, tmp_path: Path) -> None:
        """Every session that was there from the first page to the last, unchanged, is listed exactly once."""
        async with self.opened(tmp_path) as store:
            catalog = part(store.catalog)
            for number in range(50):
                await catalog.put(row_at(f"s{number:02}", number // 5))
            seen: list[str] = []
            after = None
            while page := await catalog.page(after=after, limit=7):
                seen += [row.id for row in page]
                after = After(page[-1].updatedAt, page[-1].id)
                await catalog.put(row_at(f"new{len(seen)}", 1000 + len(seen)))
                await catalog.delete(page[-1].id)
            assert [f"s{number:02}" for number in range(49, -1, -1)] == seen

    async def test_deleting_a_row_is_idempotent(self, tmp_path: Path) -> None:
        """A deleted row is not found and not listed; deleting again is no error."""
        async with self.opened(tmp_path) as store:
            catalog = part(store.catalog)
            await catalog.put(row_at("s", 1))
            await catalog.put(row_at("t", 1))
            for _ in range(2):
                await catalog.delete("s")
                assert (await catalog.get("s"), [row.id for row in await catalog.page()]) == (None, ["t"])

    async def test_inner_ids_are_those_of_one_agent(self, tmp_path: Path) -> None:
        """`known_inner` tells which ids are this agent's own for sessions of the store."""
        async with self.opened(tmp_path) as store:
            catalog = part(store.catalog)
            for identifier, agent, inner in (("1", "a", "x"), ("2", "a", "y"), ("3", "b", "z"), ("4", "a", "")):
                await catalog.put(row_at(identifier, 1, agent=agent, inner=inner))
            assert {"x", "y"} == await catalog.known_inner("a", ["x", "y", "z", "", "w"])
            assert set() == await catalog.known_inner("c", ["x"])

    async def test_the_agents_of_prompted_sessions_are_told(self, tmp_path: Path) -> None:
        """`agents` has each once, in order, and none whose sessions were never prompted or are deleted."""
        async with self.opened(tmp_path) as store:
            catalog = part(store.catalog)
            assert await catalog.agents() == []
            for identifier, agent in (("1", "b"), ("2", "a"), ("3", "b"), ("4", "é"), ("5", "gone")):
                await catalog.put(row_at(identifier, 1, agent=agent))
            await catalog.put(row_at("6", 1, agent="silent", prompted=False))
            await catalog.delete("5")
            assert await catalog.agents() == ["a", "b", "é"]

    async def test_sessions_that_were_never_prompted_are_found(self, tmp_path: Path) -> None:
        """`unprompted` gives clean rows without a prompt that are older than the time."""
        async with self.opened(tmp_path) as store:
            catalog = part(store.catalog)
            await catalog.put(row_at("old", 1, prompted=False))
            await catalog.put(row_at("open", 1, prompted=False, state="open"))
            await catalog.put(row_at("prompted", 1))
            await catalog.put(row_at("new", 3, prompted=False))
            assert [row.id for row in await catalog.unprompted(row_at("t", 2).updatedAt)] == ["old"]

    async def test_recovery_reads_open_rows_again(self, tmp_path: Path) -> None:
        """A new catalog reads every log; later only "open" rows are read again; one whose log is gone goes."""
        async with self.opened(tmp_path) as store:
            catalog, journals = part(store.catalog), part(store.journals)
            await (await new_journal(journals, KEY, turns=3)).close()
            assert await catalog.recover(journals) == 1
            found = await catalog.get("s")
            assert found is not None
            assert (found.seq, found.prompted, found.state, found.leaf, found.cwd) == (3, True, "clean", "e3", "/src/x")
            assert await catalog.recover(journals) == 0
            await catalog.put(row_at("s", 1, state="open"))
            await catalog.put(row_at("gone", 1, state="open"))
            await (await new_journal(journals, replace(KEY, session="trusted"), turns=3)).close()
            await catalog.put(row_at("trusted", 1))
            assert await catalog.recover(journals) == 1
            assert found == await catalog.get("s")
            assert await catalog.get("gone") is None
            assert row_at("trusted", 1) == await catalog.get("trusted")

    async def test_what_a_start_waits_for(self, tmp_path: Path) -> None:
        """A new catalog reads every log; then only rows that say "open"; and both parts together miss nothing."""
        async with self.opened(tmp_path) as store:
            catalog, journals = part(store.catalog), part(store.journals)
            await (await new_journal(journals, KEY, turns=3)).close()
            assert await catalog.mend(journals) == 1
            found = await catalog.get("s")
            await catalog.put(row_at("s", 1, state="open"))
            assert await catalog.mend(journals) == 1
            assert found is not None
            assert found == await catalog.get("s")
            await (await new_journal(journals, replace(KEY, session="new"), turns=3)).close()
            await catalog.mend(journals)
            await catalog.compare(journals, rest=1)
            assert await catalog.get("new") is not None


class LeaseConformance(Store):
    """What leases promise. `store` gives a Backend with `lease`."""

    async def test_a_lease_is_taken_once(self, tmp_path: Path) -> None:
        """Taking it twice is SessionBusy, also in one process; given up, it can be taken; giving up twice is no error."""
        async with self.opened(tmp_path) as store:
            lease = part(store.lease)
            assert await lease.holder(KEY) is None
            await lease.take(KEY)
            assert os.getpid() == await lease.holder(KEY)
            await raises(SessionBusy, lease.take(KEY))
            await lease.take(Key("agent", "other"))
            for _ in range(2):
                await lease.give_up(KEY)
            assert await lease.holder(KEY) is None
            await lease.take(KEY)
            for key in (KEY, Key("agent", "other")):
                await lease.give_up(key)

    async def test_a_lease_ends_with_its_process(self, tmp_path: Path) -> None:
        """While another process holds it, its pid is told; when that one is killed, the lease is free."""
        child = await asyncio.to_thread(self.child, child_hold, tmp_path)
        assert child.stdout is not None
        assert await asyncio.to_thread(child.stdout.readline) == "held\n"
        async with self.opened(tmp_path) as store:
            lease = part(store.lease)
            error = await raises(SessionBusy, lease.take(KEY))
            assert child.pid == error.pid == await lease.holder(KEY)
            await asyncio.to_thread(kill, child)
            assert await lease.holder(KEY) is None
            await lease.take(KEY)
            await lease.give_up(KEY)


class MemoryConformance(Store):
    """What a memory promises. `store` gives a Backend with `memory`."""

    async def test_users_and_agents_have_memories_of_their_own(self, tmp_path: Path) -> None:
        """Whatever their names are; the session of a key names no other memory."""
        whose = [Key(name, "s") for name in ODD_NAMES] + [Key("agent", "s", name) for name in ODD_NAMES]
        async with self.opened(tmp_path) as store:
            memory = part(store.memory)
            for number, key in enumerate(whose):
                assert await memory.texts(key) == []
                assert await memory.append(key, f"- fact {number}.") == 1
        async with self.opened(tmp_path) as store:
            memory = part(store.memory)
            for number, key in enumerate(whose):
                ((_, text),) = await memory.texts(replace(key, session="another"))
                assert f"- fact {number}." in text

    async def test_nothing_is_said_twice(self, tmp_path: Path) -> None:
        """A line that is there is left out; of several who say one thing at the same time, one is heard."""
        async with self.opened(tmp_path) as store:
            memory = part(store.memory)
            added = await asyncio.gather(*(memory.append(KEY, f"- same\n- of {number}") for number in range(4)))
            assert sum(added) == 5
            assert await memory.append(KEY, "- Same\n\n") == 0
            ((path, text),) = await memory.texts(KEY)
            assert text.count("- same") == 1
            assert await memory.texts(KEY, path) == [(path, text)]
            for other in ("..", "../../x", "/etc/passwd", "nothing.md", ""):
                assert await memory.texts(KEY, other) == []

    async def test_memory_is_replaced_as_it_was_seen(self, tmp_path: Path) -> None:
        """Of several who have read the same one replaces it; what was appended since is still to be consolidated."""
        async with self.opened(tmp_path) as store:
            memory = part(store.memory)
            await memory.append(KEY, "- one")
            read = await memory.read(KEY)
            assert (read.text, read.age, "- one" in read.recent) == ("", None, True)
            await memory.append(KEY, "- two")
            works = (memory.consolidate(KEY, read.seen, f"by {number}") for number in range(4))
            failed = [each for each in await asyncio.gather(*works, return_exceptions=True) if each is not None]
            assert [type(each) for each in failed] == [StoreError] * 3
            await raises(StoreError, memory.consolidate(KEY, "never seen", "x"))
            later = await memory.read(KEY)
            assert later.text.startswith("by ")
            assert ("- one" in later.recent, "- two" in later.recent, later.age is None) == (False, True, False)
            await raises(StoreError, memory.consolidate(KEY, later.seen, " \n"))
            assert later.text == (await memory.read(KEY)).text
