"""Big strings: out of the line into a file, and back byte for byte."""

from __future__ import annotations

import asyncio
import hashlib
import json
import tempfile
import time
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET

from acpd.errors import StoreError
from acpd.wire import blobs
from acpd.wire.lines import encode
from tests.backends.journal_logs import KEY, FaultyFiles, config, fresh, path, place, read, store, update

SHA = "a" * 64
LITERAL = {"$blob": SHA, "bytes": 3}
TEXT = st.one_of(
    st.text(max_size=40),
    st.sampled_from(["x" * 50, '"' * 40, "\\" * 33, '{"$blob":"' + SHA + '","bytes":3}', "é" * 30, "\u2028" * 20]),
)
VALUE = st.recursive(
    st.one_of(TEXT, st.integers(), st.none(), st.just(LITERAL)),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXT, inner, max_size=4)),
    max_leaves=12,
)


def spelled(value: object, ascii_only: bool, space: bool) -> bytes:
    return json.dumps(value, ensure_ascii=ascii_only, separators=(" , ", " : ") if space else (",", ":")).encode()


@given(VALUE, st.booleans(), st.booleans(), st.integers(8, 60))
def test_payloads_come_back_byte_for_byte(value: object, ascii_only: bool, space: bool, limit: int) -> None:
    """Whatever a payload contains, also text that looks like a reference, it is restored exactly."""
    raw = spelled(value, ascii_only, space)
    text, offsets, found = blobs.extract(raw, limit)
    stored = dict(found)
    assert raw == blobs.restore(text, offsets, lambda name, size: stored[name])
    assert list(offsets) == sorted(offsets)
    assert all(len(data) >= limit and hashlib.sha256(data).hexdigest() == name for name, data in found)
    assert [name for name, _ in found] == list(dict.fromkeys(name for _, _, name, _ in blobs.places(text, offsets)))
    json.loads(text)


def test_only_values_of_the_limit_and_more_are_taken_out() -> None:
    """64 KiB between the quotes is big; names of members stay; the same value twice is one blob."""
    big, small = "x" * blobs.LIMIT, "y" * (blobs.LIMIT - 1)
    raw = spelled({"a": big, "b": small, big: big}, True, False)
    text, offsets, found = blobs.extract(raw)
    assert (2, 1) == (len(offsets), len(found))
    assert {"a", "b", big} == set(json.loads(text))
    assert (raw[:100], (), []) == blobs.extract(raw[:100])


def test_a_missing_blob_leaves_its_reference() -> None:
    """What cannot be had stays a reference; offsets that lead nowhere change nothing."""
    text, offsets, _ = blobs.extract(spelled(["x" * 20, "y" * 20], True, False), 10)
    assert text == blobs.restore(text, offsets, lambda name, size: None)
    assert b'["a"]' == blobs.restore(b'["a"]', (0, 1, 99, -1), lambda name, size: b"")


@pytest.mark.parametrize("wrong", [(0, 1), (99, 100), (-1, 5), (3,)])
def test_offsets_that_are_wrong_are_not_needed(wrong: tuple[int, ...]) -> None:
    """Where one of them points at nothing, the places are found by their look: a string is never an object."""
    text, offsets, found = blobs.extract(spelled(["x" * 20, "y" * 20], True, False), 10)
    stored = dict(found)
    whole = blobs.restore(text, offsets, lambda name, size: stored[name])
    for some in (wrong, (offsets[0], *wrong), (offsets[1], offsets[0])):
        assert whole == blobs.restore(text, some, lambda name, size: stored[name])


def test_extraction_is_linear() -> None:
    """Twice the quotes and escapes take about twice the time, and no more memory than a few copies."""

    def spent(count: int) -> float:
        raw = b'["' + b'\\"' * count + b'",' + b'"a",' * count + b"1]"
        best = 9.0
        for _ in range(3):
            start = time.process_time()
            blobs.extract(raw)
            best = min(best, time.process_time() - start)
        return best

    assert spent(800_000) < 4 * spent(200_000) * 2.5 + 0.05
    raw = b'["' + b'\\"' * 2_000_000 + b'"]'
    tracemalloc.start()
    blobs.extract(raw)
    assert tracemalloc.get_traced_memory()[1] < 4 * len(raw)
    tracemalloc.stop()


@settings(max_examples=25)
@given(st.lists(VALUE, min_size=1, max_size=5), st.integers(8, 40))
def test_the_journal_puts_blobs_back(values: list[object], limit: int) -> None:
    """What is read of a log is what was given to it, by every way of reading."""

    async def run(root: Path) -> None:
        journals = store(root, sync=False)
        journal = await fresh(journals)
        raws = [spelled(value, False, False) for value in values]
        for number, raw in enumerate(raws, 1):
            text, offsets, found = blobs.extract(raw, limit)
            await journal.put_blobs(found)
            body = b',"params":' + text + (b',"blobs":' + encode(offsets) if offsets else b"")
            journal.append(update(number, number - 1 or None, body))
        journal.flush()
        for lines in (await read(journals), await path(journals), await journals.last(KEY, 9)):
            assert raws == [bytes(line.params) for line in lines if line.params is not UNSET]
        await journals.close()

    with tempfile.TemporaryDirectory() as root:
        asyncio.run(run(Path(root)))


async def test_facts_and_asks_of_the_fold_are_whole(tmp_path: Path) -> None:
    """What a fold keeps of a log has its blobs put back too."""
    text, offsets, found = blobs.extract(b'{"mode":"' + b"m" * 50 + b'"}', 10)
    line = config(1).replace(b'"params":{"mode":"x"}', b'"params":%b,"blobs":%b' % (text, encode(offsets)))
    journals, _ = place(tmp_path, line)
    _, fold = await journals.peek(KEY)
    assert [f"blob {found[0][0]} is missing"] == fold.warnings
    journal = await journals.open(KEY)
    await journal.put_blobs(found)
    _, fold = await journals.peek(KEY)
    assert fold.config is not None
    assert (b'{"mode":"' + b"m" * 50 + b'"}', []) == (bytes(fold.config.params or b""), fold.warnings)
    await journals.close()


async def test_a_lost_or_cut_blob_is_a_finding(tmp_path: Path) -> None:
    """Words stand for a blob that is gone or not whole, and the tree says where."""
    text, offsets, found = blobs.extract(b'["' + b"m" * 50 + b'"]', 10)
    body = b',"params":' + text + b',"blobs":' + encode(offsets)
    journals, log = place(tmp_path, update(1, None, body), update(2, 1, body))
    folder = log.with_name("session.blobs")
    folder.mkdir()
    (folder / found[0][0]).write_bytes(found[0][1][:-1])
    words = b'["[acpd has lost these 50 bytes, blob %b]"]' % found[0][0].encode()
    assert [words, words] == [bytes(line.params or b"") for line in await read(journals)]
    tree = await journals.tree(KEY)
    assert [(2, "missing-blob", found[0][0]), (3, "missing-blob", found[0][0])] == [tuple(finding) for finding in tree.findings]


async def test_blobs_are_durable_and_stored_once(tmp_path: Path) -> None:
    """A blob is synced, and its folder, before the call returns; one that is there is not written again."""
    files = FaultyFiles()
    journals = store(tmp_path, files)
    journal = await fresh(journals)
    found = [(hashlib.sha256(data).hexdigest(), data) for data in (b"one", b"two")]
    before = files.syncs
    await journal.put_blobs(found)
    assert 2 == files.syncs - before
    folders = files.folders
    await journal.put_blobs(found)
    assert (2, True) == (files.syncs - before, files.folders > folders)
    folder = Path(journals.log_path(KEY)).with_name("session.blobs")
    assert dict(found) == {file.name: file.read_bytes() for file in folder.iterdir()}
    with pytest.raises(StoreError, match="not a SHA-256"):
        await journal.put_blobs([("../x", b"x")])
    await journals.close()


async def test_windows_with_blobs_are_bounded(tmp_path: Path) -> None:
    """Many lines that name big blobs come in many windows: not all are held at once."""
    value = b"A" * 400_000
    text, offsets, found = blobs.extract(b'["' + value + b'"]')
    body = b',"params":' + text + b',"blobs":' + encode(offsets)
    journals, log = place(tmp_path, *[update(number, number - 1 or None, body) for number in range(1, 101)])
    folder = log.with_name("session.blobs")
    folder.mkdir()
    (folder / found[0][0]).write_bytes(value)
    tracemalloc.start()
    count = 0
    async for window in journals.path(KEY):
        assert len(window) <= 3
        count += len(window)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert 100 == count
    assert peak < 8 << 20
