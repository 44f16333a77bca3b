"""Row 11: search over a catalog that is filled by its own door, through the protocol.

The text is as in the kit's own bench of search: sentences of a Zipf-like vocabulary of 60,000 words, documents of about 1 KB
in 200 sessions, half a minute apart.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from acpd.storage.contract import Row, SearchCatalog
from acpd.storage.hits import Batch, Document
from acpd.storage.queries import Scope
from acpd_backends.search import time_of
from acpd_backends.stores import open_store
from tests.bench.stall import Client, cpu

SESSIONS = 200
BATCH = 32
FIRST = 1_767_225_600_000
"""The time of the first document, in ms since 1970; STEP is between two."""
STEP = 30_000
_SYLLABLES = re.findall("..", "babebicocudadofafigagohakakelalilomamimonuparesitovuwaxeyozieraninorstlyqu")
SCOPES: tuple[Scope, ...] = ("answer", "answer", "answer", "tool", "prompt", "thought")


class Vocabulary:
    """Deterministic."""

    def __init__(self, size: int = 60_000) -> None:
        self.chance = random.Random(11)
        words: dict[str, None] = {}
        while len(words) < size:
            words["".join(self.chance.choices(_SYLLABLES, k=self.chance.randint(1, 4)))] = None
        self.words = list(words)
        weights = list(accumulate(1.0 / rank for rank in range(1, size + 1)))
        self.sentences = [
            " ".join(self.chance.choices(self.words, cum_weights=weights, k=12)) for _ in range(min(size, 60_000))
        ]

    def queries(self) -> dict[str, str]:
        """One of each kind."""
        word = self.words
        return {
            "unique": "needle100x25",
            "name": "needleName100",
            "rare": word[40_000],
            "mid": word[2_000],
            "common": word[5],
            "two words": f"{word[300]} {word[900]}",
            "phrase": '"' + " ".join(self.sentences[777].split()[2:5]) + '"',
            "prefix": f"{word[2_000][:4]}*",
            "scope": f"tool:{word[50]}",
            "best": word[2_000],
            "best, common": word[5],
            "none": "nosuchword",
        }

    def documents(self, characters: int, session: int) -> Iterator[Document]:
        """Of one session, about so many characters in all."""
        number = 0
        while characters > 0:
            text = ". ".join(self.chance.choice(self.sentences) for _ in range(self.chance.randint(2, 18)))
            if number % 50 == 25:
                text += f" needle{session}x{number} needleName{session}"
            characters -= len(text)
            number += 1
            at = time_of(FIRST + (number * SESSIONS + session) * STEP)
            scope = SCOPES[number % len(SCOPES)]
            paths = f"/src/{text[:5]}/{text[6:11]}_{number % 977}.py" if scope == "tool" else ""
            yield Document(
                entry=f"{session:08x}-0000-7000-8000-{number:012x}", seq=number, at=at, scope=scope, text=text, paths=paths
            )


def _catalog(home: str) -> SearchCatalog:
    catalog = open_store("workspace", Path(home, "data"), sync="process").catalog
    assert isinstance(catalog, SearchCatalog)
    return catalog


def _row(session: int) -> Row:
    at = time_of(FIRST)
    cwd = f"/home/dev/project-{session % 10}"
    return Row(id=f"s{session:08}", agent="bench", cwd=cwd, title="Bench", createdAt=at, updatedAt=at, prompted=True, seq=10**7)


async def fill(home: str, megabytes: int) -> dict[str, float]:
    """Every session's documents, in batches as a catch-up has them. Sizes are of the file, and of it without the texts."""
    catalog, vocabulary = _catalog(home), Vocabulary()
    await catalog.recover(open_store("workspace", Path(home, "data"), sync="process").journals)  # type: ignore[arg-type]
    text = count = 0
    taken: list[float] = []
    started = time.perf_counter()
    for session in range(SESSIONS):
        row = _row(session)
        await catalog.put(row)
        documents = list(vocabulary.documents(megabytes * 1_000_000 // SESSIONS, session))
        text += sum(len(each.text) + len(each.paths) for each in documents)
        count += len(documents)
        for first in range(0, len(documents), BATCH):
            batch = documents[first : first + BATCH]
            before = time.perf_counter()
            assert await catalog.index(row.id, Batch(first, batch[-1].seq, batch[-1].seq, batch))
            taken.append(time.perf_counter() - before)
    seconds = time.perf_counter() - started
    await catalog.close()
    size = await asyncio.to_thread(lambda: Path(home, "data/.acpd/catalog.db").stat().st_size)
    return {
        "text": text,
        "documents": count,
        "seconds": seconds,
        "of_text": (size - text) / text,
        "batch_ms": sorted(taken)[len(taken) * 99 // 100] * 1e3,
    }


async def turn(home: str) -> dict[str, float]:
    """Microseconds that the documents of a turn (a prompt, three calls, a message) add to the row's, in a full index."""
    catalog, vocabulary = _catalog(home), Vocabulary()
    documents = list(vocabulary.documents(400_000, SESSIONS))
    row = _row(SESSIONS)
    plain: list[float] = []
    added: list[float] = []
    await catalog.put(row)
    for first in range(0, len(documents) - 5, 5):
        started = time.perf_counter()
        await catalog.put(row)
        plain.append(time.perf_counter() - started)
        part = documents[first : first + 5]
        started = time.perf_counter()
        assert await catalog.index(row.id, Batch(first, first + 5, first + 5, part), row)
        added.append(time.perf_counter() - started)
    await catalog.delete(row.id)
    await catalog.close()
    return {"put_us": statistics.median(plain) * 1e6, "index_us": statistics.median(added) * 1e6}


class Latency(NamedTuple):
    """Milliseconds; `cpu` is acpd's own for one request, `each` the median by kind of query."""

    p50: float
    p99: float
    cpu: float
    each: dict[str, float]


def measure(command: Sequence[str], env: Mapping[str, str], queries: Mapping[str, str], rounds: int) -> Latency:
    """Every query in each round, one at a time, as an editor would ask."""
    client = Client(command, env)
    try:
        client.send(0, "initialize", {"protocolVersion": 1, "clientCapabilities": {}})
        client.answer(0)
        taken: dict[str, list[float]] = {kind: [] for kind in queries}
        number = 0
        before = cpu(client.process.pid)
        for _ in range(rounds):
            for kind, text in queries.items():
                number += 1
                started = time.perf_counter()
                client.send(number, "_acpd/search", {"query": text, "best": kind.startswith("best")})
                found = client.answer(number)
                taken[kind].append((time.perf_counter() - started) * 1e3)
                assert bool(found["hits"]) == (kind != "none") or kind == "rare", kind
        used = (cpu(client.process.pid) - before) * 1000 / os.sysconf("SC_CLK_TCK") / number
    finally:
        client.close()
    every = sorted(one for each in taken.values() for one in each)
    return Latency(
        statistics.median(every),
        every[len(every) * 99 // 100],
        used,
        {kind: statistics.median(each) for kind, each in taken.items()},
    )
