"""The model finds what it is there for: bugs that are planted in acpd, each by what it breaks.

That the same histories are clean without them is what test_promises says.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec import Raw

from acpd import moving, recovery, registry
from acpd.needs import Store
from acpd.recorder import Recorder
from acpd.saving import Saver
from acpd.session import LiveSession
from acpd.storage.contract import After, Key, Row
from acpd.wire.lines import Stored
from acpd_backends import jsonl, logfile, repairs
from acpd_backends.catalog import SqliteCatalog
from acpd_backends.files import Files
from acpd_backends.lineindex import LineIndex
from acpd_backends.logfile import LogFile
from acpd_backends.openlog import JsonlJournal
from tests.crash.commands import COMMANDS
from tests.crash.examine import Examination, recorded
from tests.crash.histories import SHORT
from tests.crash.promises import Violation

LIMIT = 12
SELDOM = 8
Plant = Callable[[pytest.MonkeyPatch], None]


def no_sync_before_the_answer(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(JsonlJournal, "sync", lambda self: None)


def no_sync_of_the_folder(patch: pytest.MonkeyPatch) -> None:
    real = JsonlJournal._sync
    patch.setattr(JsonlJournal, "_sync", lambda self, descriptor, size, folder: real(self, descriptor, size, None))


def append_behind_a_torn_tail(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(jsonl, "_mend_tail", lambda log, paths, files: "")


def trust_a_stale_index(patch: pytest.MonkeyPatch) -> None:
    """What was appended since the index was written is not looked at."""

    def current_index(log: LogFile) -> tuple[LineIndex, bool]:
        saved = logfile.read_index(log)
        return (saved, False) if saved is not None else logfile.complete_index(log)

    patch.setattr(logfile, "current_index", current_index)


def trust_a_state_over_the_log(patch: pytest.MonkeyPatch) -> None:
    real = recovery.recover

    async def trusting(session: LiveSession) -> None:
        await real(session)
        if raw := await session.store.session.load(session.key, "acpd.config"):
            modes = Raw(json.dumps(json.loads(raw)["value"]["modes"]).encode())
            session.fold.config = Stored(type="config", id="x", modes=modes)

    patch.setattr(registry, "recover", trusting)


def a_blob_behind_its_line(patch: pytest.MonkeyPatch) -> None:
    real = Recorder.put_blobs

    async def late(self: Recorder, found: list[tuple[str, bytes]], wanted: Callable[[], bool] | None = None) -> None:
        before = self.scribe.flushed

        async def store() -> None:
            while self.scribe.flushed == before:
                await asyncio.sleep(0)
            await real(self, found, wanted)

        self._tasks.spawn(store(), name="late")

    patch.setattr(Recorder, "put_blobs", late)


def folders_without_sync(patch: pytest.MonkeyPatch) -> None:
    real = Files.make_folders
    patch.setattr(Files, "make_folders", lambda self, path, *, sync: real(self, path, sync=False))


def a_catalog_that_forgets_who_is_open(patch: pytest.MonkeyPatch) -> None:
    async def put(self: SqliteCatalog, row: Row, /) -> None:
        self._marked.add(row.id)
        await real(self, row)

    real = SqliteCatalog.put
    patch.setattr(SqliteCatalog, "put", put)


def a_state_ahead_of_the_log(patch: pytest.MonkeyPatch) -> None:
    async def discard(self: Saver) -> None:
        self._discarded = True

    patch.setattr(Saver, "_discard", discard)


def an_answer_before_what_is_kept(patch: pytest.MonkeyPatch) -> None:
    """A state's file is renamed, and neither it nor its folder is synced."""

    def write_atomic(self: Files, path: Path, data: bytes, *, sync: bool) -> None:
        real(self, path, data, sync=False)

    real = Files.write_atomic
    patch.setattr(Files, "write_atomic", write_atomic)


def a_move_that_nobody_marks(patch: pytest.MonkeyPatch) -> None:
    async def mark_open(store: Store, key: Key) -> None:
        """The row stays one of a session that nobody has open."""

    patch.setattr(moving, "mark_open", mark_open)


def a_repair_that_keeps_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(repairs, "_keep", lambda paths, files: paths.damaged(1))


def an_index_that_is_believed(patch: pytest.MonkeyPatch) -> None:
    """What was searched before is taken for all that there is."""

    async def behind(self: SqliteCatalog, /, *, after: After | None = None, limit: int = 100) -> list[Row]:
        return []

    patch.setattr(SqliteCatalog, "behind", behind)


MUTATIONS: list[tuple[Plant, str, str]] = [
    (no_sync_before_the_answer, "one_turn", "left, and (a part of the log before it is lost|the log is not there)"),
    (no_sync_of_the_folder, "one_turn", "left, and the log is not there"),
    (append_behind_a_torn_tail, "torn", "appended behind a torn one"),
    (trust_a_stale_index, "reopening", "something else by its index"),
    (trust_a_state_over_the_log, "settings", "the mode is said to be"),
    (a_blob_behind_its_line, "blob", "names a blob that is not there"),
    (folders_without_sync, "one_turn", "left, and the log is not there"),
    (a_catalog_that_forgets_who_is_open, "unprompted", "prompted and is not listed"),
    (a_state_ahead_of_the_log, "ahead", "the state acpd.config says"),
    (an_answer_before_what_is_kept, "keeping", "was told that memory is kept"),
    (a_move_that_nobody_marks, "moved", "is listed in /tmp and is in /moved"),
    (a_repair_that_keeps_nothing, "repaired", "the damaged log is not kept"),
    (an_index_that_is_believed, "one_turn", "'p1' was promised of session .* and is not found"),
]
WRITING = {no_sync_before_the_answer, no_sync_of_the_folder, a_blob_behind_its_line, folders_without_sync}


@pytest.mark.parametrize(("plant", "history", "words"), MUTATIONS, ids=[each[0].__name__ for each in MUTATIONS])
async def test_a_planted_bug_is_found(
    plant: Plant, history: str, words: str, disks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The text of what was found says what was broken, and where."""
    plant(monkeypatch)
    scene = await recorded({**SHORT, **COMMANDS}[history], disks / "history")
    if plant in WRITING:  # the acpd that opens what is left is a sound one
        monkeypatch.undo()
    with pytest.raises(Violation, match=words):
        await Examination(scene, disks, limit=1 if history in COMMANDS else LIMIT, searched=SELDOM).run()
