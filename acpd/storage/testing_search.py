"""The conformance suite of search. Part of `acpd.storage.testing`, which is what to import."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec.structs import replace

from acpd.errors import QueryError
from acpd.storage.contract import After, Backend, Row, SearchCatalog
from acpd.storage.hits import Batch, Document, Find
from acpd.storage.queries import Scope, parse
from acpd.storage.testing_store import ODD_NAMES, Store, row_at


def doc(text: str, seq: int = 1, *, entry: str = "", second: int | None = None, scope: Scope = "answer") -> Document:
    """Its time is that of a row of that second; without one, of its seq."""
    at = row_at("", seq if second is None else second).updatedAt
    return Document(entry=entry or f"e{seq}", seq=seq, at=at, scope=scope, text=text)


def searched(store: Backend) -> SearchCatalog:
    assert isinstance(store.catalog, SearchCatalog), "this suite needs a catalog with search"
    return store.catalog


async def put(catalog: SearchCatalog, row: Row, *documents: Document) -> None:
    """The whole of a session's documents, settled."""
    batch = Batch(await catalog.place(row.id) or 0, row.seq, row.seq, documents)
    await catalog.put(row)
    assert await catalog.index(row.id, batch, row)


async def found(catalog: SearchCatalog, text: str, **find: Any) -> list[tuple[str, str]]:
    """Sessions and entries, in the order of the hits."""
    hits = (await catalog.search(replace(Find(query=parse(text)), **find))).hits
    return [(hit.row.id, hit.entry) for hit in hits]


class SearchConformance(Store):
    """What a catalog with search promises. `store` gives a Backend with such a catalog."""

    async def test_what_was_indexed_is_found(self, tmp_path: Path) -> None:
        """By its words, with the row of its session, also when the store is opened again."""
        row = row_at("s", 1, seq=7, title="About")
        async with self.opened(tmp_path) as store:
            await put(searched(store), row, doc("the quick brown fox", 3))
        async with self.opened(tmp_path) as store:
            catalog = searched(store)
            (hit,) = (await catalog.search(Find(query=parse("brown quick")))).hits
            assert ("e3", 3, "answer", row_at("s", 3).updatedAt) == (hit.entry, hit.seq, hit.scope, hit.at)
            assert replace(row, searched=7) == hit.row
            assert "the quick brown fox" == "".join(hit.snippet)
            assert ("brown", "quick") == tuple(sorted(hit.snippet[1::2]))
            assert [] == await found(catalog, "slow")
            assert [("s", "e3")] == await found(catalog, '"quick brown" fo* -slow')

    async def test_a_batch_has_its_place(self, tmp_path: Path) -> None:
        """It replaces what was not settled; one that begins elsewhere is refused, and its row is put all the same."""
        async with self.opened(tmp_path) as store:
            catalog = searched(store)
            assert await catalog.place("s") is None
            await catalog.put(row_at("s", 1, seq=9))
            assert await catalog.place("s") == 0
            assert await catalog.index("s", Batch(0, 6, 4, [doc("settled", 2), doc("first", 5)]))
            assert await catalog.place("s") == 4
            assert not await catalog.index("s", Batch(6, 9, 9, [doc("other", 8)]), row_at("s", 1, seq=9, title="new"))
            assert await catalog.index("s", Batch(4, 9, 9, [doc("second", 5)]))
            row = await catalog.get("s")
            assert row is not None
            assert (9, "new") == (row.searched, row.title)
            assert [[], [("s", "e5")], [("s", "e2")]] == [
                await found(catalog, text) for text in ("first OR other", "second", "settled")
            ]

    async def test_who_is_behind_is_known(self, tmp_path: Path) -> None:
        """Prompted sessions whose log is longer than what was searched, the newest first, by pages."""
        async with self.opened(tmp_path) as store:
            catalog = searched(store)
            for number in range(5):
                await catalog.put(row_at(f"s{number}", number, seq=3))
            await catalog.put(row_at("quiet", 9, seq=3, prompted=False))
            assert await catalog.index("s2", Batch(0, 3, 3, []))
            first = await catalog.behind(limit=2)
            assert ["s4", "s3"] == [row.id for row in first]
            assert ["s1", "s0"] == [row.id for row in await catalog.behind(after=After(first[-1].updatedAt, first[-1].id))]
            await catalog.put(row_at("s2", 2, seq=4))
            assert ["s4", "s3", "s2", "s1", "s0"] == [row.id for row in await catalog.behind()]

    async def test_deleting_leaves_no_hit(self, tmp_path: Path) -> None:
        """A session that is deleted, or deleted and made again, has no document; others keep theirs."""
        async with self.opened(tmp_path) as store:
            catalog = searched(store)
            for name in ("s", "t"):
                await put(catalog, row_at(name, 1, seq=100), *(doc(f"needle {n}", n, entry=f"{name}{n}") for n in range(1, 80)))
            await catalog.delete("s")
            assert {"t"} == {session for session, _ in await found(catalog, "needle", limit=200, each=0)}
            await catalog.put(row_at("s", 1, seq=100))
            assert 79 == len(await found(catalog, "needle", limit=200, each=0))
            assert await catalog.place("s") == 0

    async def test_the_newest_come_first(self, tmp_path: Path) -> None:
        """By the documents' own times, in whatever order they were indexed; `limit` and `each` bound them, and say so."""
        async with self.opened(tmp_path) as store:
            catalog = searched(store)
            await put(catalog, row_at("a", 9, seq=9), *(doc("x", n, entry=f"a{n}", second=n * 100) for n in (1, 3, 5)))
            await put(catalog, row_at("b", 1, seq=9), *(doc("x", n, entry=f"b{n}", second=n * 100) for n in (2, 4)))
            assert ["a5", "b4", "a3", "b2", "a1"] == [entry for _, entry in await found(catalog, "x")]
            assert ["a5", "b4"] == [entry for _, entry in await found(catalog, "x", each=1)]
            assert ["a5", "b4", "a3"] == [entry for _, entry in await found(catalog, "x", limit=3)]
            assert [False, True, True] == [
                (await catalog.search(Find(query=parse("x"), limit=limit, each=each))).more
                for limit, each in ((5, 3), (4, 3), (5, 1))
            ]

    async def test_filters_are_exact(self, tmp_path: Path) -> None:
        """Agent, folder, time and scope, together; names may be any text."""
        async with self.opened(tmp_path) as store:
            catalog = searched(store)
            for number, odd in enumerate(ODD_NAMES):
                row = row_at(odd, number, agent=odd, cwd="/" + odd, seq=9)
                await put(
                    catalog, row, doc("x", 1, entry=f"e{number}", second=number), doc("y", 2, scope="tool", second=number)
                )
            for number, odd in enumerate(ODD_NAMES):
                expected = [(odd, f"e{number}")]
                assert expected == await found(catalog, "x", agent=odd)
                assert expected == await found(catalog, "x", folders=("/" + odd,), agent=odd)
            assert [] == await found(catalog, "x", agent=ODD_NAMES[0], folders=("/" + ODD_NAMES[1],))
            ms = 1_767_225_600_000  # of row_at's second 0
            assert ["e2", "e1"] == [entry for _, entry in await found(catalog, "x", since=ms + 1000, until=ms + 3000)]
            assert [] == await found(catalog, "tool:x")
            assert 1 == len(await found(catalog, "tool:y", limit=1))

    async def test_the_best_come_first(self, tmp_path: Path) -> None:
        """What is most about the words, not what is newest."""
        async with self.opened(tmp_path) as store:
            catalog = searched(store)
            texts = ["fox fox fox", "a fox " + "in the grass " * 100]
            await put(catalog, row_at("s", 1, seq=9), *(doc(text, n) for n, text in enumerate(texts, 1)))
            assert [("s", "e1"), ("s", "e2")] == await found(catalog, "fox", best=True)

    async def test_any_text_is_kept_and_asked_for(self, tmp_path: Path) -> None:
        """Whatever a document says, and whatever is looked for: no error but that of a query that says nothing."""
        async with self.opened(tmp_path) as store:
            catalog = searched(store)
            texts = [*ODD_NAMES, "NEAR(a b)", '"', "x" * 100_000, "\u4f1a\u8bdd", " "]
            await put(catalog, row_at("s", 1, seq=99), *(doc(text, n) for n, text in enumerate(texts, 1)))
            for text in texts:
                try:
                    await found(catalog, text)
                except QueryError:
                    continue
            assert 1 == len(await found(catalog, "\u4f1a"))
