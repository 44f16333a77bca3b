"""`sessions.json`: the sessions of one agent, for other tools. A cache that acpd writes and never needs.

`{"version": 1, "sessions": {<id>: {"title", "summary", "cwd", "createdAt", "updatedAt", "messageCount", "leaf"}}}`.
It is merged field by field under a flock, so that several processes and other programs may write it: fields and
entries that acpd does not know stay. The newest 10,000 are kept; an entry without a time is never dropped. A file
that is no such JSON is put aside and made anew.

The catalog says when something changed; its rows are merged in a thread at close and at most every 60 seconds. All of them,
as they are then: which also makes good what a killed process had not written yet.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from acpd.errors import StoreError
from acpd.storage.contract import Key, Row
from acpd_backends.files import FILES, Files, failed
from acpd_backends.names import Layout

NAME = "sessions.json"
VERSION = 1
LIMIT = 10_000
"""Entries; the oldest by updatedAt go first."""

INTERVAL = 60.0
"""Seconds between two writings while there are changes."""

Entries = dict[str, Any]
Changes = dict[str, dict[str, Row | None]]
"""By agent (all together where agents have no folder), by session id. None: it is gone."""


def entry(row: Row) -> dict[str, Any]:
    """The fields of a session that acpd writes."""
    return {
        "title": row.title,
        "cwd": row.cwd,
        "createdAt": row.createdAt,
        "updatedAt": row.updatedAt,
        "messageCount": row.messages,
        "leaf": row.leaf,
    }


def parse(raw: bytes) -> dict[str, Any] | None:
    """The document in this text, of whatever version; None if it is none of ours."""
    import json

    try:
        document = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict) or not isinstance(document.get("sessions"), dict):
        return None
    return document if isinstance(document.setdefault("version", VERSION), int) else None


def merge(sessions: Entries, changes: dict[str, Row | None]) -> Entries:
    """These entries with the changes in their fields; None removes an entry. The newest 10,000. Changes `sessions`."""
    for identifier, row in changes.items():
        if row is None:
            sessions.pop(identifier, None)
            continue
        old = sessions.get(identifier)
        sessions[identifier] = {"summary": "", **(old if isinstance(old, dict) else {}), **entry(row)}
    if len(sessions) <= LIMIT:
        return sessions
    timed = sorted(((_time(value), identifier) for identifier, value in sessions.items() if _time(value)), reverse=True)
    drop = {identifier for _, identifier in timed[max(0, LIMIT - (len(sessions) - len(timed))) :]}
    return {identifier: value for identifier, value in sessions.items() if identifier not in drop}


def _time(value: object) -> str:
    found = value.get("updatedAt") if isinstance(value, dict) else None
    return found if isinstance(found, str) else ""


def _none(_agent: str | None) -> list[Row]:
    return []


class SessionsJson:
    """The `sessions.json` files of one user.

    `rows(agent)` gives the newest 10,000 rows of an agent (None: of all); it is called in a thread.
    """

    def __init__(
        self,
        layout: Layout,
        user: str | None,
        rows: Callable[[str | None], list[Row]] | None,
        *,
        interval: float = INTERVAL,
        files: Files = FILES,
    ) -> None:
        self._layout = layout
        self._user = user
        self._rows = rows
        self._interval = interval
        self._files = files
        self._dirty: Changes = {}
        self._timer: asyncio.TimerHandle | None = None
        self._thread: ThreadPoolExecutor | None = None
        self.problem: StoreError | None = None
        """Why the newest writing failed, if it did. What is behind is written with the next one."""

    def changed(self, row: Row) -> None:
        """This session is new or different. Plain, no I/O. One never prompted is nobody's business yet."""
        if row.prompted:
            self._mark(row.agent, row.id, row)

    def removed(self, agent: str, session_id: str) -> None:
        """This session is gone. Plain, no I/O."""
        self._mark(agent, session_id, None)

    def _mark(self, agent: str, session_id: str, row: Row | None) -> None:
        if self._rows is None:
            return
        group = agent if self._layout.per_agent else ""
        self._dirty.setdefault(group, {})[session_id] = row
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._interval, self._due)

    def _due(self) -> None:
        self._timer = None
        self._start()

    def _start(self) -> asyncio.Future[Changes] | None:
        dirty, self._dirty = self._dirty, {}
        if not dirty:
            return None
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="sessions.json")
        done = asyncio.get_running_loop().run_in_executor(self._thread, self._write_all, dirty)
        done.add_done_callback(self._ended)
        return done

    def _ended(self, done: asyncio.Future[Changes]) -> None:
        """What could not be written is written with the next change."""
        if not done.cancelled() and done.exception() is None:
            for group, changes in done.result().items():
                self._dirty[group] = {**changes, **self._dirty.get(group, {})}

    async def write(self) -> None:
        """Write what is behind. Never fails: `problem` says what did. Cancelling stops the waiting only."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        done = self._start()
        if done is not None:
            await asyncio.shield(done)

    async def close(self) -> None:
        """As `write`; the thread has ended then. Raises StoreError if something is behind for good."""
        await self.write()
        thread, self._thread = self._thread, None
        if thread is not None:
            await asyncio.get_running_loop().run_in_executor(None, thread.shutdown)
        if self.problem is not None:
            raise self.problem

    # The thread.

    def _write_all(self, dirty: Changes) -> Changes:
        """What could not be written."""
        left: Changes = {}
        self.problem = None
        for group, changes in dirty.items():
            try:
                self._write(group, changes)
            except (OSError, StoreError) as error:
                path = str(self._folder(group) / NAME)
                self.problem = error if isinstance(error, StoreError) else failed("update", path, error)
                left[group] = changes
        return left

    def _folder(self, group: str) -> Path:
        return self._layout.sessions(Key(group, "-", self._user))  # the session's own part of the key is not in it

    def _write(self, group: str, changes: dict[str, Row | None]) -> None:
        import json

        folder = self._folder(group)
        if not folder.is_dir():
            if not any(changes.values()):
                return
            self._layout.make(Key(group, "-", self._user), "sessions", sync=True, files=self._files)
        with self._lock(folder):
            document = self._read(folder / NAME) or {"version": VERSION, "sessions": {}}
            # By now another process may have gone on with a session, or removed it: the catalog knows, what is here may not.
            known = {row.id: row for row in (self._rows or _none)(group if self._layout.per_agent else None)}
            document["sessions"] = merge(document["sessions"], {**dict.fromkeys(changes), **known})
            self._files.write_atomic(folder / NAME, json.dumps(document).encode(), sync=False)

    def _read(self, path: Path) -> dict[str, Any] | None:
        """None if it has to be made anew; what was there is then beside it. Raises StoreError for a newer version."""
        try:
            raw = path.read_bytes()
        except FileNotFoundError:
            return None
        document = parse(raw)
        if document is None:
            aside = path.with_name(f"{NAME}.unreadable-{hashlib.sha256(raw).hexdigest()[:12]}")
            self._files.replace(path, aside)
        elif document["version"] > VERSION:
            raise StoreError("update", str(path), cause=f"its version {document['version']} is newer than {VERSION}")
        return document

    @contextmanager
    def _lock(self, folder: Path) -> Generator[None]:
        fd = self._files.open_lock(folder / (NAME + ".lock"))
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            self._files.close(fd)
