"""Looking into a folder while somebody works in it."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

from tests.support.paths import ROOT
from tests.support.walk import below, contents, sizes


def _churn(folder: Path, stop: Event) -> None:
    while not stop.is_set():
        for n in range(20):
            deep = folder / f"n{n}" / "a" / "b"
            deep.mkdir(parents=True)
            (deep / "gone").write_bytes(b"x")
        shutil.rmtree(folder)


def test_what_vanishes_meanwhile_is_left_out(tmp_path: Path) -> None:
    """Folders and files go while the tree is walked: what stays is found each time, with its size and its bytes."""
    stays = tmp_path / "store" / "stays"
    stays.parent.mkdir()
    stays.write_bytes(b"here")
    stop = Event()
    with ThreadPoolExecutor(1) as pool:
        busy = pool.submit(_churn, tmp_path / "store" / "busy", stop)
        try:
            for _ in range(100):
                assert stays in below(tmp_path, "stays")
                assert 4 == sizes(tmp_path)[stays]
                assert b"here" == contents(tmp_path)[stays]
        finally:
            stop.set()
        busy.result()


def test_patterns_match_the_last_parts(tmp_path: Path) -> None:
    """A pattern is compared with the end of a path, part by part, files and folders alike, sorted."""
    for name in ("b.blobs/2", "b.blobs/1", "other/3"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert [tmp_path / "b.blobs" / "1", tmp_path / "b.blobs" / "2"] == below(tmp_path, "*.blobs/*")
    assert [tmp_path / "b.blobs"] == below(tmp_path, "*.blobs")
    assert 5 == len(below(tmp_path))


def test_no_test_searches_a_store_in_another_way() -> None:
    """`Path.rglob` raises for a folder that vanishes: only the sources, which nobody changes, are searched with it."""
    call = "." + "rglob("
    users = [path.name for path in below(ROOT / "tests", "*.py") if call in path.read_text()]
    assert ["test_docs.py", "test_files.py"] == sorted(users)
