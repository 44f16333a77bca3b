"""acpd with its files and its streams recorded: `python -m tests.support.recording ORDER [--plant BUG] -- ARG...`.

Runs the same program as the console script. Before that, the seam through which the backends write
(acpd_backends.files.Files) and the one call by which bytes leave a connection (Peer's writer) are wrapped, so that the
order of writes, syncs and sends is known. One JSON object a line is written to ORDER at the end:

    {"do": "write", "path", "text"}   bytes are in the kernel, appended to this file
    {"do": "sync", "path"}            an fdatasync or fsync began; {"do": "synced", "path"} it is done
    {"do": "replace", "path", "to"}   renamed
    {"do": "send", "text"}            bytes are about to leave: to the client or to an agent

`--plant unsynced`: the journal says that all is on disk already. `--plant unwritten`: a flush is put off until the
loop's next round. `--plant unsettled`: nobody waits for the sync of a session. The test of the test must see them all.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

_lock = threading.Lock()
_events: list[dict[str, str]] = []


def note(**event: str) -> None:
    with _lock:
        _events.append(event)


def record_files() -> None:
    """Wrap the system calls of the backends."""
    from acpd_backends.files import Files

    wrote, replaced = Files.write, Files.replace
    syncs: dict[str, Callable[[Files, int], None]] = {"fdatasync": Files.fdatasync, "fsync": Files.fsync}

    def write(self: Files, fd: int, data: bytes | memoryview) -> int:
        done = wrote(self, fd, data)
        note(do="write", path=_path(fd), text=bytes(data[:done]).decode("latin-1"))
        return done

    def sync_with(name: str) -> Callable[[Files, int], None]:
        def sync(self: Files, fd: int) -> None:
            path = _path(fd)
            note(do="sync", path=path)
            syncs[name](self, fd)
            note(do="synced", path=path)

        return sync

    def replace(self: Files, source: Path, target: Path) -> None:
        replaced(self, source, target)
        note(do="replace", path=str(source), to=str(target))

    wrapped: dict[str, Any] = {"write": write, "replace": replace}
    wrapped |= {name: sync_with(name) for name in syncs}
    for name, method in wrapped.items():
        setattr(Files, name, method)


def record_kernel() -> None:
    """Wrap the syncs that the kernel does by itself."""
    from acpd_backends.kernelsync import Done, KernelSyncs

    took = KernelSyncs.take

    def noted(path: str, done: Done) -> Done:
        def then(error: OSError | None) -> None:
            if error is None:
                note(do="synced", path=path)
            done(error)

        return then

    def take(self: KernelSyncs, syncs: Sequence[tuple[int, Done]]) -> int:
        for fd, _ in syncs:
            note(do="sync", path=_path(fd))
        return took(self, [(fd, noted(_path(fd), done)) for fd, done in syncs])

    KernelSyncs.take = take  # type: ignore[method-assign]


def _path(fd: int) -> str:
    """The kernel knows the names, also of what was opened past the seam."""
    return os.readlink(f"/proc/self/fd/{fd}")


class _Writer:
    """A transport that notes what is written."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport

    def write(self, data: bytes) -> None:
        note(do="send", text=bytes(data).decode("latin-1"))
        self._transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def record_streams() -> None:
    """Wrap what every connection writes to."""
    from acpd.peer import Peer

    use = Peer.use_writer

    def use_writer(self: Peer, transport: Any) -> None:
        use(self, _Writer(transport))  # type: ignore[arg-type]  # it has what a WriteTransport has

    Peer.use_writer = use_writer  # type: ignore[method-assign]


def plant(bug: str) -> None:
    """Break the promise that the test is about."""
    if bug == "unsettled":
        from acpd.scribe import Scribe

        async def settled(self: Any) -> None:
            return

        Scribe.settled = settled  # type: ignore[method-assign]
        return
    from acpd.storage.contract import Journal
    from acpd_backends import jsonl

    journal: Any = next(
        kind for kind in vars(jsonl).values() if isinstance(kind, type) and issubclass(kind, Journal) and kind is not Journal
    )
    if bug == "unsynced":
        journal.sync = lambda self: None
        return
    assert bug == "unwritten", bug
    flush = journal.flush

    def late(self: Any) -> None:
        import asyncio

        asyncio.get_running_loop().call_later(0.05, flush, self)

    journal.flush = late


def main(arguments: list[str]) -> int:
    cut = arguments.index("--")
    order, *options = arguments[:cut]
    record_files()
    record_kernel()
    record_streams()
    if options:
        plant(options[1])
    from acpd.cli.program import program

    try:
        return program(arguments[cut + 1 :], os.environ)
    finally:
        Path(order).write_text("".join(json.dumps(event) + "\n" for event in _events), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
